package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.nio.Packet;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.spi.impl.PacketDispatcher;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionalMap;
import org.junit.jupiter.api.Test;

import java.lang.reflect.Field;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.Predicate;

import static io.imapwal.hazelcast.Members.eventually;
import static io.imapwal.hazelcast.TestCluster.fill;
import static io.imapwal.hazelcast.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
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
    }

    /** Drops the operations that a member gets from others and that fit. */
    @SuppressWarnings("unchecked")
    private static void drop(HazelcastInstance member, Predicate<Object> which) throws Exception {
        var engine = WalPlugin.of(member).nodeEngine();
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
        return WalPlugin.of(owner).placements();
    }

    /** As if the coordinator had ended the transaction, or ends it before the place arrives. */
    private void place(int key, boolean answers) {
        WalPlugin plugin = WalPlugin.of(owner);
        Data data = plugin.nodeEngine().toData(key);
        int partition = owner.getPartitionService().getPartition(key).getPartitionId();
        plugin.placements().place("orders", data, UUID.randomUUID(),
                coordinator.getCluster().getLocalMember().getUuid(), answers, partition,
                plugin.guard().place(partition).order());
        plugin.inquiry().watch();
    }

    @Test
    void keysCanBeChangedAfterTheirReleaseWasLost() throws Exception {
        start();
        AtomicInteger dropped = new AtomicInteger();
        drop(owner, each -> each instanceof ReleaseOperation && dropped.incrementAndGet() > 0);
        agents.get(0).faults.onAppend = OnAppend.FULL;
        assertThrows(NotAppended.class, () -> commit(1000));
        agents.get(0).faults.onAppend = OnAppend.ACK;
        eventually(() -> dropped.get() > 0);
        assertEquals(2, placements().size());
        eventually(() -> placements().none());
        keys.forEach(key -> assertEquals(0, map.get(key)));
        commit(1001);
        keys.forEach(key -> assertEquals(1001, map.get(key)));
    }

    @Test
    void loggedChangeIsInMemoryAfterItsApplicationWasLost() throws Exception {
        start();
        int key = keys.get(0);
        place(key, true);
        cluster.logOnly(owner, key, 1000, 0);
        eventually(() -> placements().none() && map.get(key) == 1000);
        map.set(key, 1001);
        assertEquals(1001, map.get(key));
    }

    @Test
    void latePlaceEnds() throws Exception {
        start();
        int key = keys.get(0);
        place(key, true);
        map.set(key, 1000);
        assertEquals(1000, map.get(key));
        assertTrue(placements().none());
    }

    /** It does not know the question, and would log an error for each. */
    @Test
    void coordinatorOfAnEarlierReleaseIsNotAsked() throws Exception {
        start();
        AtomicInteger asked = new AtomicInteger();
        drop(coordinator, each -> each instanceof InquiryOperation
                && asked.incrementAndGet() < 0);
        place(keys.get(0), false);
        place(keys.get(1), true);
        eventually(() -> placements().size() == 1);
        assertEquals(1, asked.get());
        assertTrue(placements().olderThan(0).isEmpty());
        placements().clear();
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
        assertTrue(WalPlugin.of(owner).reconciler().idle());
        agents.get(0).faults.hold.countDown();
        committed.join();
        assertTrue(placements().none());
        keys.forEach(key -> assertEquals(1000, map.get(key)));
    }
}
