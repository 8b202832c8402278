package io.imapwal.hazelcast.append;

import com.hazelcast.core.HazelcastInstance;
import io.imapwal.hazelcast.member.WalPlugin;
import io.imapwal.hazelcast.settle.SettlementFixture;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** The orders of changes of one partition, while its owner stays the same. */
class OrderGuardTest extends SettlementFixture {
    /** Another node may log the change of a place: no other change may have the same order. */
    @Test
    void placeIsAfterFormerChangesAndBeforeLaterOnes() throws Exception {
        HazelcastInstance a = start(0);
        a.getMap("orders").set(1, 1);
        OrderGuard guard = WalPlugin.of(a).maps().guard();
        List<Long> orders = new ArrayList<>();
        for (int turn = 0; turn < 3; turn++) {
            orders.add(guard.take(1).order());
            orders.add(guard.place(1).order());
        }
        orders.add(guard.take(1).order());
        assertEquals(new ArrayList<>(new TreeSet<>(orders)), orders);
        assertTrue(orders.stream().allMatch(order -> guard.isPresentVersion(1, order)));
    }
}
