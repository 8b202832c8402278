package io.imapwal.hazelcast.member;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.settle.SettlementFixture;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

import java.util.Map;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** With offload, Hazelcast logs all keys of an operation before it changes memory. */
class OffloadedBatchTest extends SettlementFixture {
    private static final int COUNT = 20;

    @Test
    void memoryHasWhatLogHasOfRefusedBatch() throws Exception {
        offload = true;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        int partition = a.getPartitionService().getPartition(0).getPartitionId();
        Map<Integer, Integer> batch = fillPartition(a, partition, COUNT);
        batch.replaceAll((key, value) -> -2);
        requireSame(a, -2, () -> map.putAll(batch));
        requireSame(a, -3,
                () -> map.executeOnKeys(batch.keySet(), entry -> entry.setValue(-3)));
    }

    /** Some keys get the value in the log, and then in memory too. */
    private void requireSame(HazelcastInstance member, int value, Executable change)
            throws Exception {
        WalPlugin plugin = WalPlugin.of(member);
        FakeAgent agent = agents.get(0);
        agent.faults.onAppend = OnAppend.FULL_LATER;
        assertThrows(HazelcastException.class, change);
        agent.faults.onAppend = OnAppend.ACK;
        long logged = log.liveKeys("orders").stream().filter(key -> plugin.member().nodeEngine()
                .toObject(new HeapData(log.newest("orders", key).value())).equals(value)).count();
        assertTrue(logged > 0 && logged < COUNT, "in the log: " + logged);
        eventually(() -> plugin.maps().reconciler().idle());
        IMap<Integer, Integer> map = member.getMap("orders");
        assertEquals(logged, map.values().stream().filter(each -> each == value).count());
    }
}
