package io.imapwal.hazelcast.member;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.PartitionContainer;
import io.imapwal.hazelcast.settle.SettlementFixture;
import org.junit.jupiter.api.Test;

import java.util.List;

import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;

/** Hazelcast collects the maps of a part of a split network, to merge them into the other part. */
class MergeTest extends SettlementFixture {
    private static final List<String> PLAIN = List.of("plain-1", "plain-2", "plain-3", "plain-4");
    private static final int KEYS = 200;

    /** In a partition in which a map of ours waited, Hazelcast found no further map. */
    @Test
    void otherMapsAreMergedWhilePartitionsWait() throws Exception {
        settleTimeoutMs = 500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, KEYS);
        PLAIN.forEach(name -> fill(b.getMap(name), KEYS));
        cluster.awaitSafe();
        int lost = owned(a, 1).get(0);
        int kept = owned(b, 1).get(0);
        cluster.logOnly(b, kept, null, 0);  // the other part removed it
        agents.get(1).faults.readError = NO_DISK;
        a.getLifecycleService().terminate();
        awaitUnavailable(map, lost);
        int logged = log.appended().size();

        MapService service = WalPlugin.of(b).member().nodeEngine()
                .getService(MapService.SERVICE_NAME);
        Runnable merge = service.prepareMergeRunnable();

        for (PartitionContainer container : service.getMapServiceContext()
                .getPartitionContainers()) {
            assertEquals(List.of(), List.copyOf(container.getMaps().keySet()),
                    "not collected in partition " + container.getPartitionId());
        }
        merge.run();
        PLAIN.forEach(name -> assertEquals(KEYS, b.getMap(name).size(), name));
        assertEquals(logged, log.appended().size(), "no entry of our map is merged");
    }
}
