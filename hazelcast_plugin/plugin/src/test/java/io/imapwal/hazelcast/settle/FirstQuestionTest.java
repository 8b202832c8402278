package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.partition.InternalPartitionService;
import io.imapwal.hazelcast.member.WalPlugin;
import io.imapwal.hazelcast.read.Readers;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.List;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;

/** The answer to the question of an opening holds only for partitions with the same owner. */
class FirstQuestionTest extends OpeningFixture {
    @Test
    void openingOfMapAsksOnce() throws Exception {
        HazelcastInstance a = start(0);
        a.getMap("orders").set(1, 1);
        a.getMap("invoices").set(1, 1);
        assertEquals(2, agents.get(0).merges);
    }

    @Test
    void answerHoldsForPartitionsThatStayed() throws Exception {
        HazelcastInstance a = start(0);
        a.getMap("orders").set(1, 1);
        WalPlugin plugin = WalPlugin.of(a);
        InternalPartitionService partitions =
                (InternalPartitionService) plugin.member().nodeEngine().getPartitionService();
        Readers readers = plugin.maps().readers().of(plugin.maps().state("orders").settings());
        List<FirstQuestion> asked = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            asked.add(new FirstQuestion(partitions));
            asked.get(i).ask(readers, "orders", 7);
        }
        start(1);
        cluster.awaitSafe();
        List<Integer> stayed = new ArrayList<>();
        List<Integer> moved = new ArrayList<>();
        for (int id = 0; id < partitions.getPartitionCount(); id++) {
            (partitions.getPartition(id).isLocal() ? stayed : moved).add(id);
        }
        assertFalse(moved.isEmpty());
        assertNull(asked.get(0).take(7, moved));
        assertNull(asked.get(1).take(8, List.of()), "of another generation");
        // The backups of partitions that stayed are new, which also counts as a change.
        HazelcastInstance other = cluster.members.get(1);
        other.getLifecycleService().terminate();
        cluster.awaitSafe();
        assertNull(asked.get(2).take(7, moved), "it has returned");
        FirstQuestion now = asked.get(3);
        now.ask(readers, "orders", 7);
        assertEquals(true, now.take(7, stayed));
        assertNull(now.take(7, stayed), "it is given once");
    }
}
