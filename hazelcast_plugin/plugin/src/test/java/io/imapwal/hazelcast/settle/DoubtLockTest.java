package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.Offloadable;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionalMap;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.Test;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Keys in doubt, and locks: a doubt and the holder of a lock never wait for each other. */
class DoubtLockTest extends SettlementFixture {
    /** The log has another value of the key, as after an append without an answer. */
    private void plantDoubt(HazelcastInstance owner, int key, int value) {
        cluster.logOnly(owner, key, value, 0);
        WalPlugin plugin = WalPlugin.of(owner);
        plugin.maps().reconciler().add(plugin.maps().links().of("orders"), "orders",
                plugin.member().nodeEngine().toData(key), null);
    }

    private static boolean isSettled(HazelcastInstance member) {
        return WalPlugin.of(member).maps().reconciler().idle();
    }

    @Test
    void lockOfUserDoesNotDelaySettlement() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 2);
        map.lock(1);
        plantDoubt(a, 1, 1000);
        eventually(() -> isSettled(a));
        assertTrue(map.isLocked(1));
        assertEquals(1000, map.get(1));
        map.set(1, 1001);
        map.unlock(1);
        assertEquals(1001, map.get(1));
    }

    @Test
    void lockOfUserDoesNotDelaySettlementWithOffload() throws Exception {
        offload = true;
        lockOfUserDoesNotDelaySettlement();
    }

    /** What it has read may not be what the log has, so it must not be committed. */
    @Test
    void transactionWithLockOfKeyInDoubtFailsAtOnce() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 3);
        TransactionContext transaction = a.newTransactionContext();
        transaction.beginTransaction();
        TransactionalMap<Integer, Integer> changes = transaction.getMap("orders");
        changes.set(1, changes.getForUpdate(1) + 5);
        changes.set(2, 5);
        plantDoubt(a, 1, 1000);
        NotAppended refused = assertThrows(NotAppended.class, transaction::commitTransaction);
        assertTrue(refused.getMessage().contains("has an unknown outcome"),
                refused.getMessage());
        eventually(() -> isSettled(a));
        assertEquals(Map.of(0, 0, 1, 1000, 2, 2), map.getAll(Set.of(0, 1, 2)));
    }

    /**
     * The owner of a key does not know the doubt of another member, but the place that the
     * transaction in doubt has.
     */
    @Test
    void transactionReadsAKeyAfterTheOneBeforeIsSettled() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 40);
        cluster.awaitSafe();
        List<Integer> keys = owned(b, 2);
        keys.forEach(key -> map.set(key, 0));
        FakeAgent agent = agents.get(0);
        agent.faults.readError = NO_DISK;
        agent.faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> add(a, keys, 1000));
        agent.faults.onAppend = OnAppend.ACK;
        CountDownLatch begun = new CountDownLatch(1);
        CompletableFuture<Integer> next = CompletableFuture.supplyAsync(() -> {
            begun.countDown();
            return add(b, keys, 1);
        });
        begun.await();
        int tries = agent.loads + 10;
        eventually(() -> agent.loads > tries);
        assertFalse(map.isLocked(keys.get(0)));
        assertFalse(next.isDone());
        agent.faults.readError = null;
        assertEquals(1000, next.join());
        assertEquals(1001, map.get(keys.get(0)));
        assertEquals(1001, map.get(keys.get(1)));
    }

    /**
     * A transaction whose request for a lock got no answer does not know that it has the lock. The
     * lock ends with the timeout of the transaction, unless the same caller gets it again.
     */
    @Test
    void callerThatStillHasALockDoesNotDelaySettlement() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = List.of(1, 2);
        keys.forEach(key -> map.set(key, 0));
        leaveLocked(a, 1, 2000);
        plantDoubt(a, 1, 1000);
        assertEquals(1000, add(a, keys, 1));
        assertTrue(isSettled(a));
        assertEquals(1001, map.get(1));
    }

    @Test
    void processorOnAnotherThreadReadsAKeyWhenSettled() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.set(1, 0);
        FakeAgent agent = agents.get(0);
        agent.faults.readError = NO_DISK;
        plantDoubt(a, 1, 1000);
        CompletableFuture<Integer> added = map.<Integer>submitToKey(1, new Offloaded())
                .toCompletableFuture();
        int tries = agent.loads + 6;
        eventually(() -> agent.loads > tries);
        assertFalse(added.isDone());
        agent.faults.readError = null;
        assertEquals(1001, added.join());
        eventually(() -> isSettled(a));
        assertEquals(1001, map.get(1));
    }

    private static final class Offloaded
            implements EntryProcessor<Integer, Integer, Integer>, Offloadable {
        @Override
        public Integer process(Map.Entry<Integer, Integer> entry) {
            entry.setValue(entry.getValue() + 1);
            return entry.getValue();
        }

        @Override
        public String getExecutorName() {
            return OFFLOADABLE_EXECUTOR;
        }
    }

    @Test
    void transactionsThatFollowEachOtherDoNotDelaySettlement() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        List<Integer> keys = List.of(1, 2);
        keys.forEach(key -> map.set(key, 0));
        AtomicBoolean ended = new AtomicBoolean();
        AtomicInteger committed = new AtomicInteger();
        List<CompletableFuture<Void>> callers = Stream.generate(() -> CompletableFuture.runAsync(
                () -> {
                    while (!ended.get()) {
                        try {
                            add(a, keys, 1);
                            committed.incrementAndGet();
                        } catch (NotAppended e) {
                            // It had the lock when the doubt began.
                        }
                    }
                })).limit(3).toList();
        for (int round = 0; round < 20; round++) {
            int before = committed.get() + 3;
            eventually(() -> committed.get() > before);
            WalPlugin plugin = WalPlugin.of(a);
            plugin.maps().reconciler().add(plugin.maps().links().of("orders"), "orders",
                    plugin.member().nodeEngine().toData(1), null);
            eventually(() -> isSettled(a));
        }
        ended.set(true);
        callers.forEach(CompletableFuture::join);
        assertEquals(committed.get(), map.get(1));
        assertEquals(committed.get(), map.get(2));
    }
}
