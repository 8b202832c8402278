package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.partition.PartitionReplicationEvent;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.partition.MigrationListener;
import com.hazelcast.partition.MigrationState;
import com.hazelcast.partition.ReplicaMigrationEvent;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionalMap;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Changes in flight or in doubt while their partitions get another owner. */
class DoubtHandoverTest extends SettlementFixture {
    @Test
    void leavingMemberSettlesItsDoubtsFirst() throws Exception {
        timeoutMs = 2000;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        int key = fillWithKeyOf(a, map);
        agents.get(0).faults.onAppend = OnAppend.SILENT_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set(key, 1000));
        agents.get(0).faults.onAppend = OnAppend.ACK;
        a.shutdown();
        assertEquals(1000, map.get(key));
    }

    @Test
    void nextOwnerSettlesDoubtsOfLeavingMember() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        settleTimeoutMs = 10_000;
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        int key = fillWithKeyOf(a, map);
        agents.get(0).faults.onAppend = OnAppend.DIE_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set(key, 1000));
        a.shutdown();
        assertEquals(1000, map.get(key));
        assertEquals(40, map.size());
    }

    /** Hazelcast runs no operation on keys of a member that leaves. */
    @Test
    void nextOwnerSettlesDoubtsThatBeganDuringTheShutdown() throws Exception {
        timeoutMs = 2000;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        int key = fillWithKeyOf(a, map);
        FakeAgent agent = agents.get(0);
        int before = agent.appends;
        agent.faults.onAppend = OnAppend.SILENT_AFTER;
        CompletionStage<Void> change = map.setAsync(key, 1000);
        eventually(() -> agent.appends > before);
        FutureTask<Void> left = new FutureTask<>(a::shutdown, null);
        new Thread(left).start();
        // It ends when the doubt begins. The doubt itself may be settled before a test can see it.
        assertThrows(CompletionException.class, () -> change.toCompletableFuture().join());
        agent.faults.onAppend = OnAppend.ACK;
        left.get();
        assertEquals(1000, map.get(key));
    }

    @Test
    void nextOwnerSettlesKeysNewerInLog() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        settleTimeoutMs = 10_000;
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = oneOfEachPartition(a);
        keys.forEach(key -> map.set(key, key));
        // As after an append while the migration began, if this member cannot settle the keys.
        agents.get(0).faults.readError = "it cannot be read here";
        WalPlugin plugin = WalPlugin.of(a);
        for (int key : keys) {
            cluster.logOnly(a, key, 1000 + key, 0);
            plugin.maps().reconciler().add(plugin.maps().links().of("orders"), "orders",
                    plugin.member().nodeEngine().toData(key), null);
        }
        HazelcastInstance b = start(1);
        eventually(() -> ownedPartitions(b) > 0);
        cluster.awaitSafe();
        for (int key : keys) {
            if (b.getCluster().getLocalMember()
                    .equals(b.getPartitionService().getPartition(key).getOwner())) {
                eventually(() -> b.<Integer, Integer>getMap("orders").get(key) == 1000 + key);
            }
        }
    }

    /** If this member died before it had the outcome, the next owner would lack the change. */
    @Test
    void partitionWithInFlightChangeDoesNotMigrate() throws Exception {
        offload = true;
        timeoutMs = 30_000;
        settleTimeoutMs = 2000;
        HazelcastInstance a = start(0);
        settleTimeoutMs = 10_000;
        IMap<Integer, Integer> map = a.getMap("orders");
        // Fewer than the threads that Hazelcast uses for changes with offload.
        List<Integer> keys = oneOfEachPartition(a).subList(0, 12);
        keys.forEach(key -> map.set(key, key));
        agents.get(0).faults.hold = new CountDownLatch(1);
        AtomicInteger failed = new AtomicInteger();
        a.getPartitionService().addMigrationListener(new MigrationListener() {
            @Override
            public void migrationStarted(MigrationState state) {
                // Only failures are counted.
            }

            @Override
            public void migrationFinished(MigrationState state) {
                // Only failures are counted.
            }

            @Override
            public void replicaMigrationCompleted(ReplicaMigrationEvent event) {
                // Only failures are counted.
            }

            @Override
            public void replicaMigrationFailed(ReplicaMigrationEvent event) {
                failed.incrementAndGet();
            }
        });
        List<CompletionStage<Void>> changes = new ArrayList<>();
        keys.forEach(key -> changes.add(map.setAsync(key, 1000 + key)));
        AgentLink link = WalPlugin.of(a).maps().links().of("orders");
        eventually(() -> keys.stream().allMatch(key ->
                link.pending(a.getPartitionService().getPartition(key).getPartitionId()) > 0));
        HazelcastInstance b = start(1);
        eventually(() -> failed.get() > 0 || ownedPartitions(b) > 0);
        assertEquals(0, ownedPartitions(b));
        agents.get(0).faults.hold.countDown();
        changes.forEach(change -> change.toCompletableFuture().join());
        eventually(() -> ownedPartitions(b) > 0);
        cluster.awaitSafe();
        for (int key : keys) {
            assertEquals(1000 + key, b.getMap("orders").get(key));
        }
    }

    /**
     * With offload, the partition's thread changes memory after the agent has acknowledged. If the
     * partition migrates in between, and the former owner dies, nothing repeats the change.
     */
    @Test
    void nextOwnerSettlesChangeThatIsNotInMemoryYet() throws Exception {
        offload = true;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.set(1, 1);
        Data key = WalPlugin.of(a).member().nodeEngine().toData(1);
        CarriedState.Contents single = carriedAfterAppend(a, () -> map.setAsync(1, 2));
        assertEquals(Map.of("orders", List.of(key)), single.changed());
        assertEquals(Set.of("orders"), single.whole());
        CarriedState.Contents batch = carriedAfterAppend(a, () -> map.setAllAsync(Map.of(1, 3)));
        assertEquals(Set.of(), batch.whole());
        CarriedState.Contents processed = carriedAfterAppend(a,
                () -> map.submitToKey(1, entry -> entry.setValue(4)));
        assertEquals(Set.of(), processed.whole());
        eventually(() -> map.get(1) == 4);
    }

    /** What the next owner of the partition of key 1 gets when the change is in the log only. */
    private CarriedState.Contents carriedAfterAppend(HazelcastInstance member, Runnable change)
            throws Exception {
        WalPlugin plugin = WalPlugin.of(member);
        int partition = member.getPartitionService().getPartition(1).getPartitionId();
        AgentLink link = plugin.maps().links().of("orders");
        FakeAgent agent = agents.get(0);
        agent.faults.hold = new CountDownLatch(1);
        change.run();
        eventually(() -> link.pending(partition) > 0);
        FutureTask<CarriedState.Contents> carried = new FutureTask<>(() -> {
            agent.faults.hold.countDown();
            eventually(() -> link.pending(partition) == 0);
            return ((CarriedState) PartitionMoves.of(plugin.member().nodeEngine())
                    .prepareReplicationOperation(
                    new PartitionReplicationEvent(null, partition, 0))).contents();
        });
        new PartitionThreads(plugin.member().nodeEngine()).next(partition, id -> carried.run());
        return carried.get();
    }

    /** Otherwise their keys would be removed from memory, as keys that the log does not have. */
    @Test
    void comparisonWaitsForChangesThatBeganBefore() throws Exception {
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
        Wholeness wholeness = plugin.maps().state("orders").wholeness();
        int partition = a.getPartitionService().getPartition(1).getPartitionId();
        int digests = agent.digests;
        plugin.maps().state("orders").doubt(partition, null);
        plugin.maps().wake();
        eventually(() -> wholeness.unsettled(partition).reason.contains("that began before"));
        assertEquals(digests, agent.digests);
        agent.faults.hold.countDown();
        change.toCompletableFuture().join();
        eventually(() -> !wholeness.isAnyUnsettled());
        assertEquals(digests + 1, agent.digests);
        assertEquals(2, map.get(1));
    }

    /** The newest view may leave out a member that knows only an older one. */
    @Test
    void ownerJoinsTransactionOnlyInItsView() throws Exception {
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
        assertEquals(2, WalPlugin.of(a).maps().links().of("orders").session().incarnation());
        assertEquals(1, WalPlugin.of(b).maps().links().of("orders").session().incarnation());
        TransactionContext transaction = a.newTransactionContext();
        transaction.beginTransaction();
        TransactionalMap<Integer, Integer> changes = transaction.getMap("orders");
        changes.set(own, 1001);
        changes.set(other, 1002);
        transaction.commitTransaction();
        assertEquals(2, WalPlugin.of(b).maps().links().of("orders").session().incarnation());
        assertEquals(1001, map.get(own));
        assertEquals(1002, map.get(other));
    }

    /** The first attempt is in the log. Then Hazelcast repeats the change. */
    @Test
    void refusedRetryHasUnknownOutcome() throws Exception {
        settleTimeoutMs = 1500;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = oneOfEachPartition(a);
        WalPlugin plugin = WalPlugin.of(a);
        cluster.logOnly(a, keys.get(0), 1000, 0);
        agents.get(0).stop();
        plugin.maps().reconciler().add(plugin.maps().links().of("orders"), "orders",
                plugin.member().nodeEngine().toData(keys.get(0)), null);
        assertThrows(OutcomeUnknown.class, () -> map.set(keys.get(0), 1000));
        RuntimeException refused =
                assertThrows(RuntimeException.class, () -> map.set(keys.get(1), 1000));
        assertTrue(refused instanceof LogUnavailable || refused instanceof NotAppended,
                refused.toString());
    }

    /** As above, and the first attempt was settled before the change was repeated. */
    @Test
    void refusedRetryAfterSettlingHasUnknownOutcome() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = oneOfEachPartition(a);
        WalPlugin plugin = WalPlugin.of(a);
        cluster.logOnly(a, keys.get(0), 1000, 0);
        plugin.maps().reconciler().add(plugin.maps().links().of("orders"), "orders",
                plugin.member().nodeEngine().toData(keys.get(0)), null);
        eventually(() -> plugin.maps().reconciler().idle() && map.get(keys.get(0)) == 1000);
        agents.get(0).stop();
        assertThrows(OutcomeUnknown.class, () -> map.set(keys.get(0), 1000));
        RuntimeException refused =
                assertThrows(RuntimeException.class, () -> map.set(keys.get(1), 1000));
        assertTrue(refused instanceof LogUnavailable || refused instanceof NotAppended,
                refused.toString());
    }
}
