package io.imapwal.hazelcast.transactions;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.LifecycleEvent.LifecycleState;
import com.hazelcast.instance.impl.LifecycleServiceImpl;
import com.hazelcast.internal.cluster.impl.ClusterServiceImpl;
import com.hazelcast.internal.nio.Packet;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.tx.TxnRollbackOperation;
import com.hazelcast.spi.impl.PacketDispatcher;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionalMap;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.append.Placements;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.WalPlugin;
import io.imapwal.hazelcast.settle.PartitionMoves;
import io.imapwal.hazelcast.settle.SettlementFixture;
import org.junit.jupiter.api.Test;

import java.lang.reflect.Field;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.Predicate;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeout;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Transactions of one member, keys of another one, and messages between them that are lost. */
class LostMessageTest extends SettlementFixture {
    private HazelcastInstance coordinator;
    private HazelcastInstance owner;
    private List<Integer> keys;
    private IMap<Integer, Integer> map;

    private void start() throws Exception {
        coordinator = start(0);
        owner = start(1);
        map = owner.getMap("orders");
        fill(map, 40);
        cluster.awaitSafe();
        keys = owned(owner, 2);
        keys.forEach(key -> map.set(key, 0));
        WalPlugin.of(owner).inquiry().pauseMs = 500;
        PartitionMoves.of(WalPlugin.of(owner).member().nodeEngine()).placedNanos = 500_000_000;
    }

    /** Drops the operations that a member gets from others and that fit. */
    @SuppressWarnings("unchecked")
    private static void drop(HazelcastInstance member, Predicate<Object> which) throws Exception {
        var engine = WalPlugin.of(member).member().nodeEngine();
        Field field = PacketDispatcher.class.getDeclaredField("operationExecutor");
        field.setAccessible(true);
        var dispatcher = engine.getPacketDispatcher();
        var executor = (Consumer<Packet>) field.get(dispatcher);
        field.set(dispatcher, (Consumer<Packet>) packet -> {
            if (packet.isFlagRaised(Packet.FLAG_OP_RESPONSE)
                    || !which.test(engine.getSerializationService().toObject(packet))) {
                executor.accept(packet);
            }
        });
    }

    private void commit(int value) {
        TransactionContext transaction = coordinator.newTransactionContext();
        transaction.beginTransaction();
        try {
            TransactionalMap<Integer, Integer> changes = transaction.getMap("orders");
            keys.forEach(key -> changes.set(key, value));
            transaction.commitTransaction();
        } catch (RuntimeException e) {
            transaction.rollbackTransaction();
            throw e;
        }
    }

    private Placements placements() {
        return WalPlugin.of(owner).maps().placements();
    }

    /** As if the coordinator had ended the transaction, or ends it before the place arrives. */
    private void place(int key) {
        WalPlugin plugin = WalPlugin.of(owner);
        Data data = plugin.member().nodeEngine().toData(key);
        int partition = owner.getPartitionService().getPartition(key).getPartitionId();
        plugin.maps().placements().place("orders", data, UUID.randomUUID(),
                coordinator.getCluster().getLocalMember().getUuid(), partition,
                plugin.maps().guard().place(partition).order());
    }

    /** As each new place does: the owner asks soon whether its transaction has ended. */
    private void watch() {
        WalPlugin.of(owner).inquiry().watch();
    }

    @Test
    void keysCanBeChangedAfterTheirReleaseWasLost() throws Exception {
        start();
        AtomicInteger dropped = new AtomicInteger();
        drop(owner, each -> each instanceof ReleaseOperation && dropped.incrementAndGet() > 0);
        AtomicBoolean asks = new AtomicBoolean();
        drop(coordinator, each -> each instanceof InquiryOperation && !asks.get());
        agents.get(0).faults.onAppend = OnAppend.FULL;
        assertThrows(NotAppended.class, () -> commit(1000));
        agents.get(0).faults.onAppend = OnAppend.ACK;
        eventually(() -> dropped.get() > 0);
        assertEquals(2, placements().size());
        asks.set(true);
        eventually(() -> placements().none());
        keys.forEach(key -> assertEquals(0, map.get(key)));
        commit(1001);
        keys.forEach(key -> assertEquals(1001, map.get(key)));
    }

    @Test
    void loggedChangeIsInMemoryAfterItsApplicationWasLost() throws Exception {
        start();
        int key = keys.get(0);
        place(key);
        cluster.logOnly(owner, key, 1000, 0);
        watch();
        eventually(() -> placements().none() && map.get(key) == 1000);
        map.set(key, 1001);
        assertEquals(1001, map.get(key));
    }

    @Test
    void latePlaceEnds() throws Exception {
        start();
        int key = keys.get(0);
        place(key);
        watch();
        map.set(key, 1000);
        assertEquals(1000, map.get(key));
        assertTrue(placements().none());
    }

    /** The owner cannot learn whether the transaction has ended. */
    @Test
    void leavingOwnerHandsOverKeysOfTransactions() throws Exception {
        start();
        int key = keys.get(0);
        drop(coordinator, each -> each instanceof InquiryOperation);
        place(key);
        cluster.logOnly(owner, key, 1000, 0);
        watch();
        assertTimeoutPreemptively(Duration.ofSeconds(60), owner::shutdown);
        assertEquals(1000, coordinator.getMap("orders").get(key));
    }

    /** The doubt of a coordinator ends with it, so the owner must keep the place until then. */
    @Test
    void keyIsSettledAfterTheCoordinatorSettlingItIsLost() throws Exception {
        settleTimeoutMs = 2000;  // for which a member that stops waits
        start();
        int key = keys.get(0);
        UUID transaction = placeAndLog(key);
        agents.get(1).faults.readError = NO_DISK;
        int before = agents.get(1).loads;
        settle(key, transaction);
        eventually(() -> agents.get(1).loads > before + 1);
        coordinator.getLifecycleService().terminate();
        agents.get(1).faults.readError = null;
        eventually(() -> map.get(key) == 1000);
        assertTrue(placements().none());
    }

    /** The value is in the log already, so it is not logged again. */
    @Test
    void keyOfLostTransactionIsSettledWhileDiskIsFull() throws Exception {
        start();
        int key = keys.get(0);
        UUID transaction = placeAndLog(key);
        agents.get(1).faults.onAppend = OnAppend.FULL;
        int before = agents.get(1).appends;
        settle(key, transaction);
        eventually(() -> placements().none());
        assertEquals(1000, map.get(key));
        assertEquals(before, agents.get(1).appends);
    }

    private UUID placeAndLog(int key) {
        Data data = WalPlugin.of(owner).member().nodeEngine().toData(key);
        int partition = owner.getPartitionService().getPartition(key).getPartitionId();
        UUID transaction = UUID.randomUUID();
        placements().place("orders", data, transaction,
                coordinator.getCluster().getLocalMember().getUuid(), partition,
                WalPlugin.of(owner).maps().guard().place(partition).order());
        cluster.logOnly(owner, key, 1000, 0);
        return transaction;
    }

    private void settle(int key, UUID transaction) {
        WalPlugin plugin = WalPlugin.of(coordinator);
        plugin.maps().settle("orders", plugin.member().nodeEngine().toData(key), transaction);
    }

    /** It forgets what it has in doubt, but its agent may still log it. */
    @Test
    void mergingMemberDoesNotSayThatTransactionsHaveEnded() throws Exception {
        start();
        agents.get(0).faults.readError = NO_DISK;
        WalPlugin plugin = WalPlugin.of(coordinator);
        UUID transaction = UUID.randomUUID();
        plugin.maps().settle("orders", plugin.member().nodeEngine().toData(keys.get(0)),
                transaction);
        assertEquals(List.of(), plugin.inquiry().ended(List.of(transaction)));
        ((LifecycleServiceImpl) plugin.member().instance().getLifecycleService())
                .fireLifecycleEvent(LifecycleState.MERGING);
        assertEquals(List.of(), plugin.inquiry().ended(List.of(transaction)));
    }

    /** Hazelcast ends the transactions of clients while a member has no connections. */
    @Test
    void mergingMemberDoesNotWaitForARollback() throws Exception {
        start();
        drop(owner, each -> each instanceof TxnRollbackOperation);
        TransactionContext transaction = coordinator.newTransactionContext();
        transaction.beginTransaction();
        transaction.getMap("orders").set(keys.get(0), 1000);
        ((LifecycleServiceImpl) WalPlugin.of(coordinator).member().instance().getLifecycleService())
                .fireLifecycleEvent(LifecycleState.MERGING);
        ((ClusterServiceImpl) WalPlugin.of(coordinator).member().nodeEngine().getClusterService())
                .reset();
        assertTimeout(Duration.ofSeconds(20), transaction::rollbackTransaction);
    }

    @Test
    void slowTransactionIsNotDisturbed() throws Exception {
        timeoutMs = 60_000;
        start();
        AtomicInteger asked = new AtomicInteger();
        drop(coordinator, each -> each instanceof InquiryOperation && asked.incrementAndGet() < 0);
        agents.get(0).faults.hold = new CountDownLatch(1);
        CompletableFuture<Void> committed = CompletableFuture.runAsync(() -> commit(1000));
        // When the third question arrives, the answers to the first two have had their effect.
        eventually(() -> asked.get() > 2);
        assertEquals(2, placements().size());
        assertTrue(WalPlugin.of(owner).maps().reconciler().idle());
        agents.get(0).faults.hold.countDown();
        committed.join();
        assertTrue(placements().none());
        keys.forEach(key -> assertEquals(1000, map.get(key)));
    }
}
