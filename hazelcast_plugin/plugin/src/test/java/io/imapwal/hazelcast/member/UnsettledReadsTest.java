package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.query.LocalIndexStats;
import com.hazelcast.query.Predicates;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.SettlementFixture;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

import java.io.Serializable;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Queries, iterators and reads wait for partitions that are not settled. */
class UnsettledReadsTest extends SettlementFixture {
    @Test
    void indexQueriesWaitForUnsettledPartitions() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        int key = changeOnlyInLog(a, b, 1000);
        agents.get(1).faults.readError = NO_DISK;
        a.getLifecycleService().terminate();
        awaitUnavailable(map, key);
        assertThrows(LogUnavailable.class, () -> map.values(Predicates.equal("this", 1000)));
        assertThrows(LogUnavailable.class, () ->
                map.entrySet(Predicates.greaterEqual("this", 150)));
        agents.get(1).faults.readError = null;
        eventually(() -> map.get(key) == 1000);
        assertEquals(List.of(1000), List.copyOf(map.values(Predicates.equal("this", 1000))));
        cluster.awaitSafe();
        long hits = indexHits(map);
        assertEquals(1, map.values(Predicates.equal("this", 1000)).size());
        assertTrue(indexHits(map) > hits, "the index is used again");
    }

    /** Hazelcast marks a partition as indexed at the first use of the map, even if it is empty. */
    @Test
    void indexQueriesWaitForPartitionsNeverLoaded() throws Exception {
        IMap<Integer, Integer> map = notLoaded();
        assertThrows(LogUnavailable.class, () -> map.values(Predicates.greaterEqual("__key", 0)),
                "with a scan");
        assertThrows(LogUnavailable.class, () -> map.values(Predicates.greaterEqual("this", 0)),
                "with the index");
    }

    /**
     * Hazelcast marks the partition as indexed after it has informed the plug-in of the promotion.
     * The worker is busy meanwhile.
     */
    @Test
    void indexQueriesWaitForPromotedPartition() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        int key = changeOnlyInLog(a, b, 1000);
        MapState state = WalPlugin.of(b).maps().state("orders");
        state.settling().lock();
        try {
            a.getLifecycleService().terminate();
            eventually(() -> owned(b, 1).size() == 1 && ownedPartitions(b) == 31
                    && state.wholeness().isAnyUnsettled());
            cluster.awaitSafe();
            eventually(() -> assertThrows(LogUnavailable.class, () -> map.get(key)) != null);
            assertThrows(LogUnavailable.class, () -> map.values(Predicates.equal("this", 1000)));
        } finally {
            state.settling().unlock();
        }
    }

    @Test
    void processorsAndIteratorsWaitForUnsettledPartitions() throws Exception {
        assertProcessorsAndIteratorsWait();
    }

    @Tag("thorough")
    @Test
    void processorsAndIteratorsWaitWithOffloadToo() throws Exception {
        offload = true;
        assertProcessorsAndIteratorsWait();
    }

    private void assertProcessorsAndIteratorsWait() throws Exception {
        cluster.heartbeatS = 2;
        settleTimeoutMs = 500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        HazelcastInstance c = start(2);
        IMap<Integer, Integer> map = b.getMap("orders");
        cluster.awaitSafe();
        // The survivor has neither these keys nor their backups.
        List<Integer> keys = IntStream.range(0, 1000).filter(key -> !hasReplica(b, key)).limit(20)
                .boxed().toList();
        keys.forEach(key -> map.set(key, key));
        agents.get(1).faults.readError = NO_DISK;
        a.getLifecycleService().terminate();
        c.getLifecycleService().terminate();
        awaitUnavailable(map, keys.get(0));
        assertThrows(OutcomeUnknown.class, () -> map.executeOnEntries(new ValueOf()));
        assertThrows(OutcomeUnknown.class, () ->
                map.executeOnEntries(new ValueOf(), Predicates.greaterEqual("this", 0)));
        assertThrows(LogUnavailable.class, () -> map.iterator().forEachRemaining(each -> { }));
        assertThrows(LogUnavailable.class, () -> map.keySet(Predicates.pagingPredicate(10)));
        assertThrows(OutcomeUnknown.class, map::clear);
        agents.get(1).faults.readError = null;
        eventually(() -> !WalPlugin.of(b).maps().state("orders").wholeness().isAnyUnsettled());
        assertEquals(Set.copyOf(keys), map.executeOnEntries(new ValueOf()).keySet());
        map.clear();
        assertTrue(map.isEmpty());
    }

    @Test
    void entryViewWaitsForItsPartition() throws Exception {
        IMap<Integer, Integer> map = notLoaded();
        assertThrows(LogUnavailable.class, () -> map.get(7));
        assertThrows(LogUnavailable.class, () -> map.getEntryView(7));
    }

    @Test
    void backupReadWaitsAfterPromotion() throws Exception {
        settleTimeoutMs = 1500;
        readBackups = true;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        int key = changeOnlyInLog(a, b, null);
        MapState state = WalPlugin.of(b).maps().state("orders");
        state.settling().lock();
        try {
            a.getLifecycleService().terminate();
            eventually(() -> ownedPartitions(b) == 31 && state.wholeness().isAnyUnsettled());
            assertThrows(LogUnavailable.class, () -> map.containsKey(key));
            assertThrows(LogUnavailable.class, () -> map.get(key));
        } finally {
            state.settling().unlock();
        }
    }

    /** Fills the map. Then only the log has a change of a key of the owner; returns the key. */
    private int changeOnlyInLog(HazelcastInstance owner, HazelcastInstance other, Integer value)
            throws Exception {
        fill(other.getMap("orders"), 200);
        cluster.awaitSafe();
        int key = owned(owner, 1).get(0);
        cluster.logOnly(other, key, value, 0);
        return key;
    }

    private IMap<Integer, Integer> notLoaded() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> before = a.getMap("orders");
        fill(before, 200);
        a.getLifecycleService().terminate();
        FakeAgent agent = cluster.startAgent();
        Config config = Members.config("settlement", port, agent.endpoint());
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setProperty("restore-timeout-ms", "1500");
        map.addIndexConfig(new IndexConfig(IndexType.SORTED, "this"));
        config.addMapConfig(map);
        HazelcastInstance b = cluster.start(config);
        IMap<Integer, Integer> loaded = b.getMap("orders");
        agent.faults.unreadable = log.maps.get("orders").firstKey();
        WalPlugin.of(b).localMaps().drop(List.of("orders"));
        eventually(() -> assertThrows(RuntimeException.class, () -> loaded.get(7))
                instanceof LogUnavailable);
        return loaded;
    }

    private static long indexHits(IMap<?, ?> map) {
        return map.getLocalMapStats().getIndexStats().values().stream()
                .mapToLong(LocalIndexStats::getHitCount).sum();
    }

    private static boolean hasReplica(HazelcastInstance member, int key) {
        var engine = WalPlugin.of(member).member().nodeEngine();
        var partition = engine.getPartitionService()
                .getPartition(engine.getPartitionService().getPartitionId(key));
        return List.of(partition.getReplicaAddress(0), partition.getReplicaAddress(1))
                .contains(engine.getThisAddress());
    }

    /** Reads the value. */
    static final class ValueOf implements EntryProcessor<Integer, Integer, Integer>, Serializable {
        @Override
        public Integer process(Map.Entry<Integer, Integer> entry) {
            return entry.getValue();
        }

        @Override
        public EntryProcessor<Integer, Integer, Integer> getBackupProcessor() {
            return null;
        }
    }
}
