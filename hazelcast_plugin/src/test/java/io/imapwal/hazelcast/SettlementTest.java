package io.imapwal.hazelcast;

import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.partition.MigrationListener;
import com.hazelcast.partition.MigrationState;
import com.hazelcast.partition.ReplicaMigrationEvent;
import com.hazelcast.query.LocalIndexStats;
import com.hazelcast.query.Predicates;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionalMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.Members.eventually;
import static io.imapwal.hazelcast.TestCluster.fill;
import static io.imapwal.hazelcast.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** After members were lost, or left with keys in doubt, memory agrees with the log. */
class SettlementTest {
    private final TestCluster cluster = new TestCluster("settlement");
    private final FakeLog log = cluster.log;
    private final List<FakeAgent> agents = cluster.agents;
    private final int port = cluster.port;
    private boolean offload;
    private boolean readBackups;
    private int settleTimeoutMs = 10_000;
    private int timeoutMs = 10_000;
    private int restoreChunk = 10_000;

    private HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setOffload(offload);
        map.setReadBackupData(readBackups);
        map.getMapStoreConfig().setProperty("settle-timeout-ms", String.valueOf(settleTimeoutMs));
        map.getMapStoreConfig().setProperty("timeout-ms", String.valueOf(timeoutMs));
        map.getMapStoreConfig().setProperty("restore-chunk", String.valueOf(restoreChunk));
        map.addIndexConfig(new IndexConfig(IndexType.SORTED, "this"));
        config.addMapConfig(map);
        return cluster.start(config);
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
        agents.forEach(agent -> assertEquals(List.of(), agent.violations));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void changesThatOnlyTheLogHasAreInMemoryAfterTheirOwnerDied(boolean offloaded)
            throws Exception {
        offload = offloaded;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        List<Integer> keys = owned(a, 8);
        cluster.logOnly(b, keys.get(0), 1000, 0);
        cluster.logOnly(b, keys.get(1), null, 0);
        cluster.logOnly(b, keys.get(2), 1002, System.currentTimeMillis() + 3_600_000);
        int absent = keys.get(keys.size() - 1) + 100_000;
        while (!a.getCluster().getLocalMember()
                .equals(a.getPartitionService().getPartition(absent).getOwner())) {
            absent++;
        }
        cluster.logOnly(b, absent, 1003, 0);
        int logged = log.appended().size();
        a.getLifecycleService().terminate();
        assertEquals(1000, map.get(keys.get(0)));
        assertFalse(map.containsKey(keys.get(1)));
        assertEquals(1002, map.get(keys.get(2)));
        long left = map.getEntryView(keys.get(2)).getExpirationTime() - System.currentTimeMillis();
        assertTrue(left > 3_500_000 && left <= 3_601_000, "expires in " + left);
        assertEquals(1003, map.putIfAbsent(absent, 7));
        assertEquals(keys.get(3), map.get(keys.get(3)));
        assertEquals(200, map.size());
        assertEquals(3, map.values(Predicates.greaterEqual("this", 1000)).size());
        assertEquals(logged, log.appended().size(), "settling logs nothing");
    }

    @Test
    void theBackupHasWhatWasSettledToo() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        HazelcastInstance c = start(2);
        IMap<Integer, Integer> map = c.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        List<Integer> keys = owned(a, 20);
        keys.forEach(key -> cluster.logOnly(c, key, 1000 + key, 0));
        a.getLifecycleService().terminate();
        keys.forEach(key -> assertEquals(1000 + key, map.get(key)));
        cluster.awaitSafe();
        agents.get(2).faults.readError = "it shall not be asked";
        b.shutdown();
        keys.forEach(key -> assertEquals(1000 + key, map.get(key)));
    }

    @Test
    void partitionsThatWereLostWithTheirBackupsAreReadFromTheLog() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        HazelcastInstance c = start(2);
        IMap<Integer, Integer> map = c.getMap("orders");
        fill(map, 2000);
        cluster.awaitSafe();
        Thread other = new Thread(() -> a.getLifecycleService().terminate());
        other.start();
        b.getLifecycleService().terminate();
        other.join();
        for (int i = 0; i < 2000; i += 7) {
            assertEquals(i, map.remove(i));
        }
        for (int i = 0; i < 2000; i++) {
            assertEquals(i % 7 == 0 ? null : i, map.get(i));
        }
        assertEquals(2000 - 286, map.size());
        for (int i = 0; i < 2000; i += 7) {
            assertNull(log.newest("orders", WalPlugin.of(c).nodeEngine().toData(i).toByteArray()));
        }
    }

    /** Both halves of a split network could restore the map otherwise, and write. */
    @Test
    void aMapThatIsFirstUsedAfterALossIsRestoredInAViewWithoutTheLostMember() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        cluster.awaitSafe();
        a.getLifecycleService().terminate();
        eventually(() -> !SettlementService.of(WalPlugin.of(b).nodeEngine()).departures().members()
                .isEmpty());
        b.<Integer, Integer>getMap("orders").set(1, 1);
        assertEquals(Set.of(b.getCluster().getLocalMember().getUuid().toString()), log.viewMembers);
    }

    @Test
    void aPartitionThatCannotBeSettledFailsWithAReasonAndOthersContinue() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int lost = owned(a, 1).get(0);
        int kept = owned(b, 1).get(0);
        int partition = b.getPartitionService().getPartition(lost).getPartitionId();
        agents.get(1).faults.readError = "the disk is away";
        a.getLifecycleService().terminate();
        eventually(() -> assertThrows(LogUnavailable.class, () -> map.get(lost)).getMessage()
                .contains("the disk is away"));
        LogUnavailable failure = assertThrows(LogUnavailable.class, () -> map.get(lost));
        for (String part : List.of("\"orders\"", "partition " + partition + " ",
                agents.get(1).endpoint())) {
            assertTrue(failure.getMessage().contains(part), failure.getMessage());
        }
        assertThrows(LogUnavailable.class, () -> map.set(lost, 1));
        assertThrows(LogUnavailable.class, () -> map.get(lost));
        assertEquals(kept, map.get(kept));
        map.set(kept, 7);
        agents.get(1).faults.readError = null;
        eventually(() -> map.get(lost) == lost);
        assertEquals(200, map.size());
    }

    @Test
    void aKeyThatWasEvictedIsReadFromTheLog() throws Exception {
        HazelcastInstance a = start(0);
        start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 20);
        map.set(100, 100, 1, TimeUnit.SECONDS);
        for (int i = 0; i < 8; i++) {
            assertTrue(map.evict(i));
        }
        assertEquals(0, map.get(0));
        assertTrue(map.containsKey(1));
        assertEquals(2, map.putIfAbsent(2, 1000));
        assertEquals(3, map.remove(3));
        assertNull(map.get(3));
        assertEquals(4, map.replace(4, 1004));
        assertTrue(map.replace(5, 5, 1005));
        assertEquals(6, map.put(6, 1006));
        assertEquals(Map.of(7, 7, 8, 8), map.getAll(java.util.Set.of(7, 8, 3)));
        map.evictAll();
        Map<Integer, Integer> expected = new HashMap<>();
        for (int i = 0; i < 20; i++) {
            expected.put(i, i);
        }
        expected.putAll(Map.of(4, 1004, 5, 1005, 6, 1006));
        expected.remove(3);
        Map<Integer, Integer> got = new HashMap<>();
        for (int i = 0; i < 20; i++) {
            Integer value = map.get(i);
            if (value != null) {
                got.put(i, value);
            }
        }
        assertEquals(expected, got);
        // Also by the next owner.
        map.evict(9);
        HazelcastInstance left = cluster.members.get(0);
        IMap<Integer, Integer> other = cluster.members.get(1).getMap("orders");
        left.shutdown();
        assertEquals(9, other.get(9));
    }

    @Test
    void anExpiredKeyIsNotAnEvictedOne() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.set(1, 1, 1, TimeUnit.SECONDS);
        eventually(() -> map.get(1) == null);
        int loads = agents.get(0).loads;
        assertNull(map.get(1));
        assertEquals(loads, agents.get(0).loads);
    }

    @Test
    void aMemberThatLeavesSettlesItsDoubtsFirst() throws Exception {
        timeoutMs = 2000;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 40);
        cluster.awaitSafe();
        int key = owned(a, 1).get(0);
        agents.get(0).faults.onAppend = OnAppend.SILENT_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set(key, 1000));
        agents.get(0).faults.onAppend = OnAppend.ACK;
        a.shutdown();
        assertEquals(1000, map.get(key));
    }

    @Test
    void doubtsThatAMemberCannotSettleAreSettledByTheNextOwner() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        settleTimeoutMs = 10_000;
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 40);
        cluster.awaitSafe();
        int key = owned(a, 1).get(0);
        agents.get(0).faults.onAppend = OnAppend.DIE_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set(key, 1000));
        a.shutdown();
        assertEquals(1000, map.get(key));
        assertEquals(40, map.size());
    }

    /**
     * Its init throws, because its agent is away. Hazelcast marks the backup as synchronised all
     * the same (PartitionReplicaSyncResponse).
     */
    @Test
    void aBackupThatCouldNotBeMadeLosesNothing() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 200);
        FakeAgent away = new FakeAgent(log);
        agents.add(away);
        Config config = Members.config("settlement", port + 1, away.endpoint());
        config.addMapConfig(Members.map("orders", away.endpoint()));
        HazelcastInstance b = cluster.start(config);
        // Until a replica was tried.
        eventually(() -> WalPlugin.of(b).states().stream()
                .anyMatch(state -> state.map().equals("orders")));
        away.start();
        a.getLifecycleService().terminate();
        for (int i = 0; i < 200; i++) {
            int key = i;
            eventually(() -> b.<Integer, Integer>getMap("orders").get(key) == key);
        }
        assertEquals(200, b.getMap("orders").size());
    }

    /** Memory of the next owner would lack it, if this member died before it knew the outcome. */
    @Test
    void aPartitionWithAChangeUnderWayIsNotHandedOver() throws Exception {
        offload = true;
        timeoutMs = 30_000;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        // Fewer than the threads that Hazelcast has for changes with offload.
        List<Integer> keys = oneOfEachPartition(a).subList(0, 12);
        keys.forEach(key -> map.set(key, key));
        agents.get(0).faults.hold = new CountDownLatch(1);
        AtomicInteger failed = new AtomicInteger();
        a.getPartitionService().addMigrationListener(new MigrationListener() {
            @Override
            public void migrationStarted(MigrationState state) {
                // only what fails is counted
            }

            @Override
            public void migrationFinished(MigrationState state) {
                // only what fails is counted
            }

            @Override
            public void replicaMigrationCompleted(ReplicaMigrationEvent event) {
                // only what fails is counted
            }

            @Override
            public void replicaMigrationFailed(ReplicaMigrationEvent event) {
                failed.incrementAndGet();
            }
        });
        List<CompletionStage<Void>> changes = new ArrayList<>();
        keys.forEach(key -> changes.add(map.setAsync(key, 1000 + key)));
        AgentLink link = WalPlugin.of(a).linkOf("orders");
        eventually(() -> keys.stream().allMatch(key ->
                link.pending(a.getPartitionService().getPartition(key).getPartitionId()) > 0));
        HazelcastInstance b = start(1);
        eventually(() -> failed.get() > 0 || count(b) > 0);
        assertEquals(0, count(b));
        agents.get(0).faults.hold.countDown();
        changes.forEach(change -> change.toCompletableFuture().join());
        eventually(() -> count(b) > 0);
        cluster.awaitSafe();
        for (int key : keys) {
            assertEquals(1000 + key, b.getMap("orders").get(key));
        }
    }

    /** It would be taken for a key that the log does not have, and removed from memory. */
    @Test
    void aPartitionIsComparedWithTheLogWhenChangesThatBeganBeforeHaveEnded() throws Exception {
        offload = true;
        timeoutMs = 30_000;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.set(1, 1);
        FakeAgent agent = agents.get(0);
        agent.faults.hold = new CountDownLatch(1);
        int before = agent.appends;
        CompletionStage<Void> change = map.setAsync(1, 2);
        eventually(() -> agent.appends > before);
        WalPlugin plugin = WalPlugin.of(a);
        Wholeness wholeness = plugin.state("orders").wholeness();
        int partition = a.getPartitionService().getPartition(1).getPartitionId();
        int listings = agent.listings;
        plugin.state("orders").doubt(partition, null);
        plugin.settlements().wake();
        eventually(() -> wholeness.unsettled(partition).reason.contains("that began before"));
        assertEquals(listings, agent.listings);
        agent.faults.hold.countDown();
        change.toCompletableFuture().join();
        eventually(() -> !wholeness.isAnyUnsettled());
        assertEquals(listings + 1, agent.listings);
        assertEquals(2, map.get(1));
    }

    @Test
    void aKeyThatIsEvictedWhileItsPartitionIsComparedIsReadFromTheLog() throws Exception {
        restoreChunk = 1000;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        int partition = a.getPartitionService().getPartition(0).getPartitionId();
        Map<Integer, Integer> entries = new HashMap<>();
        for (int key = 0; entries.size() < 1500; key++) {
            if (a.getPartitionService().getPartition(key).getPartitionId() == partition) {
                entries.put(key, key);
            }
        }
        map.putAll(entries);
        FakeAgent agent = agents.get(0);
        agent.faults.readDelayMs = 1000;
        int before = agent.loads;
        WalPlugin plugin = WalPlugin.of(a);
        plugin.state("orders").doubt(partition, null);
        plugin.settlements().wake();
        // The first 1,000 were compared, or the partition's thread compares them before it evicts.
        eventually(() -> agent.loads == before + 2);
        entries.keySet().stream().limit(100).forEach(map::evict);
        assertFalse(plugin.state("orders").wholeness().whole(partition));
        eventually(() -> plugin.state("orders").wholeness().whole(partition));
        agent.faults.readDelayMs = 0;
        assertEquals(entries, map.getAll(entries.keySet()));
    }

    @Test
    void keysOfWhichTheLogIsNewerAreSettledByTheNextOwner() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = oneOfEachPartition(a);
        keys.forEach(key -> map.set(key, key));
        // As after an append while the partition began to migrate, if this member cannot settle it.
        agents.get(0).faults.readError = "it cannot be read here";
        WalPlugin plugin = WalPlugin.of(a);
        for (int key : keys) {
            cluster.logOnly(a, key, 1000 + key, 0);
            plugin.reconciler().add(plugin.linkOf("orders"), "orders",
                    plugin.nodeEngine().toData(key), null);
        }
        HazelcastInstance b = start(1);
        eventually(() -> count(b) > 0);
        cluster.awaitSafe();
        for (int key : keys) {
            if (b.getCluster().getLocalMember()
                    .equals(b.getPartitionService().getPartition(key).getOwner())) {
                eventually(() -> b.<Integer, Integer>getMap("orders").get(key) == 1000 + key);
            }
        }
    }

    /** In an older view it could have been left out, and the partition have another owner. */
    @Test
    void anOwnerTakesPartInATransactionOnlyInItsView() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int own = owned(a, 1).get(0);
        int other = owned(b, 1).get(0);
        log.claimView(Set.of(a.getCluster().getLocalMember().getUuid().toString(),
                b.getCluster().getLocalMember().getUuid().toString()));
        map.set(own, 1000);
        assertEquals(2, WalPlugin.of(a).linkOf("orders").session().incarnation());
        assertEquals(1, WalPlugin.of(b).linkOf("orders").session().incarnation());
        TransactionContext transaction = a.newTransactionContext();
        transaction.beginTransaction();
        TransactionalMap<Integer, Integer> changes = transaction.getMap("orders");
        changes.set(own, 1001);
        changes.set(other, 1002);
        transaction.commitTransaction();
        assertEquals(2, WalPlugin.of(b).linkOf("orders").session().incarnation());
        assertEquals(1001, map.get(own));
        assertEquals(1002, map.get(other));
    }

    /** The first attempt is in the log, the partition moved, and Hazelcast repeats the change. */
    @Test
    void aRepeatedChangeThatIsRefusedHasAnUnknownOutcome() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = oneOfEachPartition(a);
        WalPlugin plugin = WalPlugin.of(a);
        cluster.logOnly(a, keys.get(0), 1000, 0);
        agents.get(0).stop();
        plugin.reconciler().add(plugin.linkOf("orders"), "orders",
                plugin.nodeEngine().toData(keys.get(0)), null);
        assertThrows(OutcomeUnknown.class, () -> map.set(keys.get(0), 1000));
        RuntimeException refused =
                assertThrows(RuntimeException.class, () -> map.set(keys.get(1), 1000));
        assertTrue(refused instanceof LogUnavailable || refused instanceof NotAppended,
                refused.toString());
    }

    /** The same, and the first attempt was settled before the change was repeated. */
    @Test
    void aRepeatedChangeThatIsRefusedAfterItsFirstAttemptWasSettledHasAnUnknownOutcome()
            throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = oneOfEachPartition(a);
        WalPlugin plugin = WalPlugin.of(a);
        cluster.logOnly(a, keys.get(0), 1000, 0);
        plugin.reconciler().add(plugin.linkOf("orders"), "orders",
                plugin.nodeEngine().toData(keys.get(0)), null);
        eventually(() -> plugin.reconciler().idle() && map.get(keys.get(0)) == 1000);
        agents.get(0).stop();
        assertThrows(OutcomeUnknown.class, () -> map.set(keys.get(0), 1000));
        RuntimeException refused =
                assertThrows(RuntimeException.class, () -> map.set(keys.get(1), 1000));
        assertTrue(refused instanceof LogUnavailable || refused instanceof NotAppended,
                refused.toString());
    }

    @Test
    void queriesByAnIndexWaitForPartitionsThatAreNotSettled() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int key = owned(a, 1).get(0);
        cluster.logOnly(b, key, 1000, 0);
        agents.get(1).faults.readError = "the disk is away";
        a.getLifecycleService().terminate();
        eventually(() -> assertThrows(LogUnavailable.class, () -> map.get(key)).getMessage()
                .contains("the disk is away"));
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

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void allEntriesAreProcessedAndIteratedOnlyWhereMemoryIsWhole(boolean offloaded)
            throws Exception {
        offload = offloaded;
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        HazelcastInstance c = start(2);
        IMap<Integer, Integer> map = b.getMap("orders");
        cluster.awaitSafe();
        // The survivor has neither them nor their backups.
        List<Integer> keys = IntStream.range(0, 1000).filter(key -> !hasReplica(b, key)).limit(20)
                .boxed().toList();
        keys.forEach(key -> map.set(key, key));
        agents.get(1).faults.readError = "the disk is away";
        a.getLifecycleService().terminate();
        c.getLifecycleService().terminate();
        eventually(() -> assertThrows(LogUnavailable.class, () -> map.get(keys.get(0))).getMessage()
                .contains("the disk is away"));
        assertThrows(LogUnavailable.class, () -> map.executeOnEntries(new ValueOf()));
        assertThrows(LogUnavailable.class, () ->
                map.executeOnEntries(new ValueOf(), Predicates.greaterEqual("this", 0)));
        assertThrows(LogUnavailable.class, () -> map.iterator().forEachRemaining(each -> { }));
        assertThrows(LogUnavailable.class, () -> map.keySet(Predicates.pagingPredicate(10)));
        assertThrows(LogUnavailable.class, map::clear);
        agents.get(1).faults.readError = null;
        eventually(() -> map.get(keys.get(0)) != null);
        assertEquals(Set.copyOf(keys), map.executeOnEntries(new ValueOf()).keySet());
        map.clear();
        assertTrue(map.isEmpty());
    }

    private static boolean hasReplica(HazelcastInstance member, int key) {
        var engine = WalPlugin.of(member).nodeEngine();
        var partition = engine.getPartitionService()
                .getPartition(engine.getPartitionService().getPartitionId(key));
        return List.of(partition.getReplicaAddress(0), partition.getReplicaAddress(1))
                .contains(engine.getThisAddress());
    }

    /** Reads. */
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

    /**
     * The other member opens it while it is destroyed: this one answers that the map is restored.
     * It is, as nothing is left.
     */
    @Test
    void aMapThatIsUsedWhileItsDestructionFailsIsReadFromTheLogAgain() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int key = owned(b, 1).get(0);
        int generation = WalPlugin.of(b).state("orders").generation();
        agents.get(0).faults.frozen = true;
        CompletableFuture<Void> destroyed = CompletableFuture.runAsync(map::destroy);
        eventually(() -> WalPlugin.of(b).state("orders").generation() > generation);
        CompletableFuture<Object> used =
                CompletableFuture.supplyAsync(() -> b.getMap("orders").get(key));
        assertThrows(CompletionException.class, destroyed::join);
        agents.get(0).faults.frozen = false;
        used.handle((value, failure) -> value).join();
        for (HazelcastInstance member : List.of(a, b)) {
            for (int i = 0; i < 200; i++) {
                int number = i;
                eventually(() -> member.<Integer, Integer>getMap("orders").get(number) == number);
            }
        }
        assertEquals(200, b.getMap("orders").size());
    }

    /** One part meets a migration that then fails; the last part does not. */
    @Test
    void aPartitionOfWhichOnePartFailedIsNotWhole() throws Exception {
        restoreChunk = 500;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        int partition = a.getPartitionService().getPartition(0).getPartitionId();
        Map<Integer, Integer> entries = new HashMap<>();
        for (int key = 0; entries.size() < 2500; key++) {
            if (a.getPartitionService().getPartition(key).getPartitionId() == partition) {
                entries.put(key, key);
            }
        }
        map.putAll(entries);
        FakeAgent agent = agents.get(0);
        agent.faults.readDelayMs = 500;
        int before = agent.loads;
        WalPlugin plugin = WalPlugin.of(a);
        plugin.state("orders").doubt(partition, null);
        plugin.settlements().wake();
        var hazelcastPartition = (com.hazelcast.internal.partition.impl.InternalPartitionImpl)
                plugin.nodeEngine().getPartitionService().getPartition(partition);
        // The first two pages are compared, the next two fail, and the last page waits.
        eventually(() -> agent.loads >= before + 3);
        hazelcastPartition.setMigrating();
        agent.faults.readDelayMs = 1500;
        eventually(() -> agent.loads >= before + 5);
        Thread.sleep(500);
        hazelcastPartition.resetMigrating();
        agent.faults.readDelayMs = 0;
        eventually(() -> plugin.state("orders").wholeness().whole(partition));
        assertEquals(2500, map.size());
        assertEquals(entries, map.getAll(entries.keySet()));
    }

    /** Hazelcast marks a partition as indexed when the map is first used, whatever is in memory. */
    @Test
    void aQueryByAnIndexWaitsForPartitionsThatWereNeverLoaded() throws Exception {
        IMap<Integer, Integer> map = notLoaded();
        assertThrows(LogUnavailable.class, () -> map.values(Predicates.greaterEqual("__key", 0)),
                "by a scan");
        assertThrows(LogUnavailable.class, () -> map.values(Predicates.greaterEqual("this", 0)),
                "by the index");
    }

    @Test
    void anEntryViewWaitsForItsPartition() throws Exception {
        IMap<Integer, Integer> map = notLoaded();
        assertThrows(LogUnavailable.class, () -> map.get(7));
        assertThrows(LogUnavailable.class, () -> map.getEntryView(7));
    }

    /**
     * Hazelcast marks the partition as indexed after it has informed the plug-in of the promotion.
     * The worker is busy meanwhile.
     */
    @Test
    void aQueryByAnIndexWaitsForAPromotedPartitionWhileTheWorkerIsBusy() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int key = owned(a, 1).get(0);
        cluster.logOnly(b, key, 1000, 0);
        MapState state = WalPlugin.of(b).state("orders");
        state.settling().lock();
        try {
            a.getLifecycleService().terminate();
            eventually(() -> owned(b, 1).size() == 1 && count(b) == 31
                    && state.wholeness().isAnyUnsettled());
            cluster.awaitSafe();
            eventually(() -> assertThrows(LogUnavailable.class, () -> map.get(key)) != null);
            assertThrows(LogUnavailable.class, () -> map.values(Predicates.equal("this", 1000)));
        } finally {
            state.settling().unlock();
        }
    }

    /**
     * As if a member is informed of a destruction while a partition moves: MapState.destroyed is
     * not on the partition's thread.
     */
    @Test
    void aDoubtOfAPartitionThatHasMovedEnds() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        a.getMap("orders").set(1, 1);
        cluster.awaitSafe();
        int partition = a.getPartitionService().getPartition(owned(b, 1).get(0)).getPartitionId();
        MapState state = WalPlugin.of(a).state("orders");
        state.doubt(partition, null);
        WalPlugin.of(a).settlements().wake();
        long until = System.nanoTime() + 10_000_000_000L;
        while (state.wholeness().isAnyUnsettled() && System.nanoTime() < until) {
            Thread.sleep(50);
        }
        assertFalse(state.wholeness().isAnyUnsettled(), "after 10 s");
    }

    @Test
    void aClosedMapIsNotLoaded() throws Exception {
        HazelcastInstance a = start(0);
        a.getMap("orders").set(1, 1);
        MapState state = WalPlugin.of(a).state("other");
        state.use(WalPlugin.of(a).state("orders").settings());
        eventually(state::isLoaded);
        int generation = state.generation();
        state.close();
        WalPlugin.of(a).settlements().load(state, generation);
        assertFalse(state.isLoaded(), "of the opening before");
        WalPlugin.of(a).settlements().load(state, state.generation());
        assertFalse(state.isLoaded(), "loaded though closed; any partition whole: "
                + state.wholeness().whole(0));
    }

    @Test
    void aReadOfABackupThatHasBecomeTheOwnerWaits() throws Exception {
        settleTimeoutMs = 1500;
        readBackups = true;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int key = owned(a, 1).get(0);
        cluster.logOnly(b, key, null, 0);
        MapState state = WalPlugin.of(b).state("orders");
        state.settling().lock();
        try {
            a.getLifecycleService().terminate();
            eventually(() -> count(b) == 31 && state.wholeness().isAnyUnsettled());
            assertThrows(LogUnavailable.class, () -> map.containsKey(key));
            assertThrows(LogUnavailable.class, () -> map.get(key));
        } finally {
            state.settling().unlock();
        }
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
        WalPlugin.of(b).localMaps().drop("orders");
        eventually(() -> assertThrows(RuntimeException.class, () -> loaded.get(7))
                instanceof LogUnavailable);
        return loaded;
    }

    private static long indexHits(IMap<?, ?> map) {
        return map.getLocalMapStats().getIndexStats().values().stream()
                .mapToLong(LocalIndexStats::getHitCount).sum();
    }

    private static long count(HazelcastInstance member) {
        return member.getPartitionService().getPartitions().stream()
                .filter(partition -> member.getCluster().getLocalMember()
                    .equals(partition.getOwner())).count();
    }

    private static List<Integer> oneOfEachPartition(HazelcastInstance member) {
        Map<Integer, Integer> keys = new HashMap<>();
        int partitions = member.getPartitionService().getPartitions().size();
        for (int key = 0; keys.size() < partitions; key++) {
            keys.putIfAbsent(member.getPartitionService().getPartition(key).getPartitionId(), key);
        }
        return new ArrayList<>(keys.values());
    }
}
