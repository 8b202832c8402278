package io.imapwal.hazelcast.settle;

import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.partition.MigrationEndpoint;
import com.hazelcast.internal.partition.PartitionMigrationEvent;
import com.hazelcast.internal.partition.impl.InternalPartitionImpl;
import com.hazelcast.map.IMap;
import com.hazelcast.query.Predicates;
import com.hazelcast.spi.exception.RetryableException;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** After members were lost or keys were evicted, memory agrees with the log. */
class SettlementTest extends SettlementFixture {
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void changesMissingInMemoryAreReadAfterOwnerDied(boolean offloaded) throws Exception {
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

    /** It ends with an error after which it is tried again soon, if it is needed at all. */
    @Test
    void partitionThatMovedIsNotSettledHere() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        fill(b.getMap("orders"), 40);
        cluster.awaitSafe();
        int partition = b.getPartitionService().getPartition(owned(a, 1).get(0)).getPartitionId();
        WalPlugin plugin = WalPlugin.of(b);
        MapState state = plugin.maps().state("orders");
        state.doubt(partition, null);
        ExecutionException error = assertThrows(ExecutionException.class, () ->
                new Settlement(plugin.member(), state, state.wholeness().unsettled()).run(null));
        assertInstanceOf(RetryableException.class, error.getCause());
        assertEquals(40, b.getMap("orders").size());
    }

    @Test
    void settledEntriesAreAlsoOnTheBackup() throws Exception {
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
        agents.get(2).faults.readError = "it must not be asked";
        b.shutdown();
        keys.forEach(key -> assertEquals(1000 + key, map.get(key)));
    }

    @Test
    void partitionsLostWithBackupsAreReadFromLog() throws Exception {
        cluster.heartbeatS = 2;
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
            assertNull(log.newest("orders",
                    WalPlugin.of(c).member().nodeEngine().toData(i).toByteArray()));
        }
    }

    /** Otherwise both halves of a split network could restore the map and write. */
    @Test
    void mapFirstUsedAfterLossGetsNewView() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        cluster.awaitSafe();
        a.getLifecycleService().terminate();
        eventually(() -> !WalPlugin.of(b).maps().ownership().departures().members().isEmpty());
        b.<Integer, Integer>getMap("orders").set(1, 1);
        assertEquals(Set.of(b.getCluster().getLocalMember().getUuid().toString()), log.viewMembers);
    }

    /** The owner is lost while it migrates the partition to the member that has its backup. */
    @Test
    void promotionAfterFailedMigrationKnowsReplacedOwner() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        a.getMap("orders").set(1, 1);
        cluster.awaitSafe();
        int partition = a.getPartitionService().getPartition(owned(a, 1).get(0)).getPartitionId();
        PartitionMoves moves = PartitionMoves.of(WalPlugin.of(b).member().nodeEngine());
        PartitionMigrationEvent migration = new PartitionMigrationEvent(
                MigrationEndpoint.DESTINATION, partition, -1, 0, UUID.randomUUID());
        PartitionMigrationEvent promotion = new PartitionMigrationEvent(
                MigrationEndpoint.DESTINATION, partition, 1, 0, UUID.randomUUID());
        moves.beforeMigration(migration);
        moves.beforeMigration(promotion);
        moves.rollbackMigration(migration);
        moves.commitMigration(promotion);
        assertEquals(Set.of(a.getCluster().getLocalMember().getUuid()),
                moves.ownership().departures().members());
    }

    @Test
    void unsettledPartitionFailsWithReasonOthersContinue() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int lost = owned(a, 1).get(0);
        int kept = owned(b, 1).get(0);
        int partition = b.getPartitionService().getPartition(lost).getPartitionId();
        agents.get(1).faults.readError = NO_DISK;
        a.getLifecycleService().terminate();
        awaitUnavailable(map, lost);
        LogUnavailable failure = assertThrows(LogUnavailable.class, () -> map.get(lost));
        for (String part : List.of("\"orders\"", "partition " + partition + " ",
                agents.get(1).endpoint())) {
            assertTrue(failure.getMessage().contains(part), failure.getMessage());
        }
        assertThrows(OutcomeUnknown.class, () -> map.set(lost, 1));  // perhaps a repetition
        assertThrows(LogUnavailable.class, () -> map.get(lost));
        assertEquals(kept, map.get(kept));
        map.set(kept, 7);
        agents.get(1).faults.readError = null;
        eventually(() -> map.get(lost) == lost);
        assertEquals(200, map.size());
    }

    /** Its owner logged it and died. Hazelcast repeated it at the next owner, which refused it. */
    @Test
    void changeOfLostOwnerHasUnknownOutcome() throws Exception {
        settleTimeoutMs = 500;
        timeoutMs = 60_000;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int lost = owned(a, 1).get(0);
        agents.get(0).faults.onAppend = OnAppend.SILENT_AFTER;
        int before = log.appended().size();
        CompletableFuture<Void> change = map.setAsync(lost, 1000).toCompletableFuture();
        eventually(() -> log.appended().size() > before);
        agents.get(1).faults.readError = NO_DISK;
        a.getLifecycleService().terminate();
        assertInstanceOf(OutcomeUnknown.class,
                assertThrows(CompletionException.class, change::join).getCause());
        agents.get(1).faults.readError = null;
        eventually(() -> map.get(lost) == 1000);
    }

    /**
     * Its init throws, because its agent does not run. Hazelcast marks the backup as synchronised
     * nevertheless (PartitionReplicaSyncResponse).
     */
    @Test
    void failedBackupLosesNothing() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 200);
        FakeAgent away = new FakeAgent(log);
        agents.add(away);
        Config config = Members.config("settlement", port + 1, away.endpoint());
        config.addMapConfig(Members.map("orders", away.endpoint()));
        HazelcastInstance b = cluster.start(config);
        // Hazelcast has tried to make a replica.
        eventually(() -> WalPlugin.of(b).maps().states().stream()
                .anyMatch(state -> state.map().equals("orders")));
        away.start();
        a.getLifecycleService().terminate();
        for (int i = 0; i < 200; i++) {
            int key = i;
            eventually(() -> b.<Integer, Integer>getMap("orders").get(key) == key);
        }
        assertEquals(200, b.getMap("orders").size());
    }

    /** A migration, which then fails, meets one part of the comparison, but not the last one. */
    @Test
    void partitionWithFailedPartIsNotWhole() throws Exception {
        restoreChunk = 500;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        int partition = a.getPartitionService().getPartition(0).getPartitionId();
        Map<Integer, Integer> entries = fillPartition(a, partition, 2500);
        FakeAgent agent = agents.get(0);
        agent.faults.hasNoDigests = true;  // memory is equal to the log
        agent.faults.readDelayMs = 500;
        int before = agent.loads;
        WalPlugin plugin = WalPlugin.of(a);
        plugin.maps().state("orders").doubt(partition, null);
        plugin.maps().wake();
        var hazelcastPartition = (InternalPartitionImpl)
                plugin.member().nodeEngine().getPartitionService().getPartition(partition);
        // The first two pages are compared, the next two fail, and the last page waits.
        eventually(() -> agent.loads >= before + 3);
        hazelcastPartition.setMigrating();
        agent.faults.readDelayMs = 1500;
        eventually(() -> agent.loads >= before + 5);
        // Nothing shows when the partition's thread has refused the fourth page. The last page
        // takes 1.5 s to read, so the thread has time for it.
        Thread.sleep(500);
        hazelcastPartition.resetMigrating();
        agent.faults.readDelayMs = 0;
        eventually(() -> plugin.maps().state("orders").wholeness().whole(partition));
        assertEquals(2500, map.size());
        assertEquals(entries, map.getAll(entries.keySet()));
    }

    /**
     * As when a member is informed of a destruction while a partition migrates: MapState.destroyed
     * does not run on the partition's thread.
     */
    @Test
    void doubtOfMigratedPartitionEnds() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        a.getMap("orders").set(1, 1);
        cluster.awaitSafe();
        int partition = a.getPartitionService().getPartition(owned(b, 1).get(0)).getPartitionId();
        MapState state = WalPlugin.of(a).maps().state("orders");
        state.doubt(partition, null);
        WalPlugin.of(a).maps().wake();
        eventually(() -> !state.wholeness().isAnyUnsettled());
    }

    /**
     * The other member opens the map while it is destroyed. This member answers that the map is
     * restored, because nothing is left of it.
     */
    @Test
    void mapUsedDuringFailedDestroyIsReadAgain() throws Exception {
        connectTimeoutMs = 2000;  // to a frozen agent
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 200);
        cluster.awaitSafe();
        int key = owned(b, 1).get(0);
        int generation = WalPlugin.of(b).maps().state("orders").opening().generation();
        agents.get(0).faults.frozen = true;
        CompletableFuture<Void> destroyed = CompletableFuture.runAsync(map::destroy);
        eventually(() -> WalPlugin.of(b).maps().state("orders").opening()
                .generation() > generation);
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

    @Test
    void closedMapIsNotLoaded() throws Exception {
        HazelcastInstance a = start(0);
        a.getMap("orders").set(1, 1);
        MapState state = WalPlugin.of(a).maps().state("other");
        state.opening().use(WalPlugin.of(a).maps().state("orders").settings());
        eventually(state::isLoaded);
        int generation = state.opening().generation();
        state.close();
        WalPlugin.of(a).maps().worker().load(state, generation);
        assertFalse(state.isLoaded(), "by the former opening");
        WalPlugin.of(a).maps().worker().load(state, state.opening().generation());
        assertFalse(state.isLoaded(), "loaded though closed; any partition whole: "
                + state.wholeness().whole(0));
    }

    @Test
    void evictedKeyIsReadFromLog() throws Exception {
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
        assertEquals(Map.of(7, 7, 8, 8), map.getAll(Set.of(7, 8, 3)));
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
        // The next owner reads it too.
        map.evict(9);
        HazelcastInstance left = cluster.members.get(0);
        IMap<Integer, Integer> other = cluster.members.get(1).getMap("orders");
        left.shutdown();
        assertEquals(9, other.get(9));
    }

    @Test
    void expiredKeyIsNotReadFromLog() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.set(1, 1, 1, TimeUnit.SECONDS);
        eventually(() -> map.get(1) == null);
        int loads = agents.get(0).loads;
        assertNull(map.get(1));
        assertEquals(loads, agents.get(0).loads);
    }

    @Test
    void keyEvictedDuringComparisonIsReadFromLog() throws Exception {
        restoreChunk = 1000;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        int partition = a.getPartitionService().getPartition(0).getPartitionId();
        Map<Integer, Integer> entries = fillPartition(a, partition, 1500);
        FakeAgent agent = agents.get(0);
        agent.faults.hasNoDigests = true;  // memory is equal to the log
        int before = agent.loads;
        agent.faults.holdsAfterLoads = before + 1;
        WalPlugin plugin = WalPlugin.of(a);
        plugin.maps().state("orders").doubt(partition, null);
        plugin.maps().wake();
        // The first 1,000 keys are compared before the partition's thread evicts any.
        eventually(() -> agent.loads == before + 2);
        entries.keySet().stream().limit(100).forEach(map::evict);
        assertFalse(plugin.maps().state("orders").wholeness().whole(partition));
        agent.faults.heldLoads.countDown();
        eventually(() -> plugin.maps().state("orders").wholeness().whole(partition));
        assertEquals(entries, map.getAll(entries.keySet()));
    }
}
