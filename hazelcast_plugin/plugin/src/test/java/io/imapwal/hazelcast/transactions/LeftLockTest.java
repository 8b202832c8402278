package io.imapwal.hazelcast.transactions;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionOptions;
import com.hazelcast.transaction.TransactionTimedOutException;
import com.hazelcast.transaction.TransactionalMap;
import io.imapwal.hazelcast.settle.SettlementFixture;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * A lock of which its transaction does not know, because the answer was lost. The next transaction
 * of the same caller releases it.
 */
class LeftLockTest extends SettlementFixture {
    private static final List<Integer> KEYS = List.of(1, 2);
    private static final long LONG_MS = 600_000;

    private HazelcastInstance member;
    private IMap<Integer, Integer> map;

    @BeforeEach
    void startMember() throws Exception {
        member = start(0);
        map = member.getMap("orders");
        KEYS.forEach(key -> map.set(key, 0));
    }

    @Test
    void lockWithoutAnAnswerEndsWithTheNextTransaction() throws Exception {
        leaveLocked(member, 1, LONG_MS);
        assertTrue(map.isLocked(1));
        assertEquals(0, add(member, KEYS, 1));
        assertFalse(map.isLocked(1));
        assertEquals(1, map.get(1));
    }

    @Test
    void severalLocksWithoutAnswersEndToo() throws Exception {
        leaveLocked(member, 1, LONG_MS);
        leaveLocked(member, 1, LONG_MS);
        leaveLocked(member, 2, LONG_MS);
        add(member, KEYS, 1);
        assertFalse(map.isLocked(1));
        assertFalse(map.isLocked(2));
    }

    /** Its next owner replaces the lock too. */
    @Test
    void lockThatHasMovedEndsWithTheNextTransaction() throws Exception {
        for (int key = 0; key < 40; key++) {
            map.set(key, 0);
            leaveLocked(member, key, LONG_MS);
        }
        HazelcastInstance other = start(1);
        cluster.awaitSafe();
        List<Integer> moved = owned(other, 2).subList(0, 2);
        moved.forEach(key -> assertTrue(map.isLocked(key)));
        add(member, moved, 1);
        moved.forEach(key -> assertFalse(map.isLocked(key)));
    }

    /** As above, but it is not a transaction's alone. */
    @Test
    void lockOfAUserThatHasMovedOutlivesTransactions() throws Exception {
        for (int key = 0; key < 40; key++) {
            map.set(key, 0);
            map.lock(key);
        }
        add(member, KEYS, 1);
        HazelcastInstance other = start(1);
        cluster.awaitSafe();
        List<Integer> moved = owned(other, 2).subList(0, 2);
        moved.forEach(key -> map.set(key, 0));
        add(member, moved, 1);
        add(member, moved, 1);
        moved.forEach(key -> assertTrue(map.isLocked(key)));
    }

    @Test
    void lockOfAUserOutlivesTransactionsOfItsCaller() {
        map.lock(1);
        add(member, KEYS, 1);
        assertLockOutlivesTransactions();
    }

    private void assertLockOutlivesTransactions() {
        assertTrue(map.isLocked(1));
        add(member, KEYS, 1);
        add(member, KEYS, 1);
        assertTrue(map.isLocked(1));
        map.unlock(1);
        assertFalse(map.isLocked(1));
    }

    @Test
    void lockFromATransactionOfAUserOutlivesTheNext() {
        TransactionContext transaction = member.newTransactionContext();
        transaction.beginTransaction();
        TransactionalMap<Integer, Integer> changes = transaction.getMap("orders");
        changes.set(1, changes.getForUpdate(1) + 1);
        changes.set(2, 1);
        map.lock(1);
        transaction.commitTransaction();
        assertLockOutlivesTransactions();
    }

    @Test
    void anotherThreadDoesNotEndALock() throws Exception {
        TransactionContext transaction = member.newTransactionContext();
        transaction.beginTransaction();
        TransactionalMap<Integer, Integer> changes = transaction.getMap("orders");
        int before = changes.getForUpdate(1);
        CompletableFuture<Void> other = CompletableFuture.runAsync(() -> {
            TransactionContext second = member.newTransactionContext(
                    new TransactionOptions().setTimeout(300, TimeUnit.MILLISECONDS));
            second.beginTransaction();
            assertThrows(TransactionTimedOutException.class,
                    () -> second.<Integer, Integer>getMap("orders").getForUpdate(1));
            second.rollbackTransaction();
        });
        other.get(60, TimeUnit.SECONDS);
        changes.set(1, before + 1);
        transaction.commitTransaction();
        assertEquals(1, map.get(1));
        assertFalse(map.isLocked(1));
    }
}
