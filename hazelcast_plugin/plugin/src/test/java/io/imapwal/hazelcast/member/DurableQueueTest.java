package io.imapwal.hazelcast.member;

import com.hazelcast.collection.IQueue;
import com.hazelcast.config.Config;
import com.hazelcast.config.InvalidConfigurationException;
import com.hazelcast.config.QueueConfig;
import com.hazelcast.config.QueueStoreConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.InternalSerializationService;
import com.hazelcast.transaction.TransactionContext;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Queues whose items are in the log. */
class DurableQueueTest {
    private static final String MAP = "queue:jobs";

    private final TestCluster cluster = new TestCluster("queues");

    private Config config(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        return cluster.config(number, agent).setProperty("imap-wal.agent", agent.endpoint())
                .setProperty("imap-wal.timeout-ms", "10000")
                .setProperty("imap-wal.durable-queues", "jobs, work-*");
    }

    private HazelcastInstance start(int number) throws Exception {
        return cluster.start(config(number));
    }

    private static IQueue<String> jobs(HazelcastInstance member) {
        return member.getQueue("jobs");
    }

    /** Two members, and the one that has the queue first. */
    private List<HazelcastInstance> two() throws Exception {
        List<HazelcastInstance> both = new ArrayList<>(List.of(start(0), start(1)));
        cluster.awaitSafe();
        if (!isOwner(both.get(0))) {
            both.add(both.remove(0));
        }
        return both;
    }

    private static boolean isOwner(HazelcastInstance member) {
        return member.getCluster().getLocalMember().equals(
                member.getPartitionService().getPartition("jobs").getOwner());
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
        cluster.agents.forEach(agent -> assertEquals(List.of(), agent.violations));
    }

    @Test
    void itemsAreThereAfterARestartInTheirOrder() throws Exception {
        IQueue<String> queue = jobs(start(0));
        IntStream.range(0, 20).forEach(number -> queue.add("job " + number));
        assertEquals("job 0", queue.poll());
        assertTrue(queue.remove("job 5"));
        assertTrue(queue.contains("job 6"));
        assertEquals(List.of("job 1", "job 2"), List.copyOf(drained(queue, 2)));
        cluster.terminateAll();
        IQueue<String> restored = jobs(start(1));
        List<String> expected = new ArrayList<>(IntStream.range(3, 20)
                .filter(number -> number != 5).mapToObj(number -> "job " + number).toList());
        assertEquals(expected, new ArrayList<>(restored));
        assertTrue(restored.contains("job 19"));
        assertFalse(restored.contains("job 5"));
        restored.add("one more");
        assertTrue(restored.removeAll(List.of("job 3", "job 7")));
        expected.removeAll(List.of("job 3", "job 7"));
        expected.add("one more");
        assertEquals(expected, new ArrayList<>(restored));
        assertEquals(expected.size(), cluster.log.size(MAP));
        expected.forEach(each -> assertEquals(each, restored.poll()));
        assertNull(restored.poll());
        assertEquals(0, cluster.log.size(MAP));
    }

    private static List<String> drained(IQueue<String> queue, int count) {
        List<String> to = new ArrayList<>();
        queue.drainTo(to, count);
        return to;
    }

    @Test
    void bulkChangesAreInTheLog() throws Exception {
        IQueue<String> queue = jobs(start(0));
        queue.addAll(List.of("a", "b", "c", "d"));
        assertTrue(queue.retainAll(List.of("b", "d")));
        cluster.terminateAll();
        IQueue<String> restored = jobs(start(1));
        assertEquals(List.of("b", "d"), new ArrayList<>(restored));
        restored.clear();
        cluster.terminateAll();
        assertTrue(jobs(start(2)).isEmpty());
    }

    @Test
    void anotherMemberHasTheItemsWhenTheOwnerIsLost() throws Exception {
        List<HazelcastInstance> both = two();
        IQueue<String> queue = jobs(both.get(1));
        IntStream.range(0, 10).forEach(number -> queue.add("job " + number));
        queue.poll();
        both.get(0).getLifecycleService().terminate();
        assertEquals("job 1", queue.poll());
        queue.add("late");
        assertEquals(9, queue.size());
        assertEquals(9, cluster.log.size(MAP));
    }

    /** Hazelcast's copy of the queue is not used: it may lack what its transaction had reserved. */
    @Test
    void aQueueMovesWithItsPartition() throws Exception {
        HazelcastInstance first = start(0);
        IQueue<String> queue = jobs(first);
        IntStream.range(0, 10).forEach(number -> queue.add("job " + number));
        HazelcastInstance second = start(1);
        cluster.awaitSafe();
        first.shutdown();
        IQueue<String> moved = jobs(second);
        assertEquals(10, moved.size());
        assertEquals("job 0", moved.poll());
        assertEquals(9, cluster.log.size(MAP));
    }

    @Test
    void aWaitingConsumerGetsAnItemOfTheNextOwner() throws Exception {
        List<HazelcastInstance> both = two();
        CompletableFuture<String> taken = CompletableFuture.supplyAsync(() -> {
            try {
                return jobs(both.get(1)).take();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        jobs(both.get(0)).size();
        both.get(0).getLifecycleService().terminate();
        jobs(both.get(1)).add("job");
        assertEquals("job", taken.get(30, TimeUnit.SECONDS));
    }

    @Test
    void anItemNotLoggedIsNotInTheQueue() throws Exception {
        IQueue<String> queue = jobs(start(0));
        queue.add("job");
        cluster.agents.get(0).stop();
        assertThrows(NotAppended.class, () -> queue.add("lost"));
        assertThrows(NotAppended.class, queue::poll);
        assertEquals("job", queue.peek());
        cluster.agents.get(0).start();
        eventually(() -> queue.offer("next"));
        assertEquals(List.of("job", "next"), new ArrayList<>(queue));
    }

    /** The caller does not know whether the item is in the queue; the log does. */
    @Test
    void anItemOfUnknownOutcomeIsReadFromTheLog() throws Exception {
        IQueue<String> queue = jobs(start(0));
        queue.add("job");
        CompletableFuture<String> waiting = CompletableFuture.supplyAsync(() -> {
            try {
                queue.poll();
                return queue.poll(30, TimeUnit.SECONDS);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        eventually(queue::isEmpty);
        cluster.agents.get(0).faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> queue.add("perhaps"));
        cluster.agents.get(0).faults.onAppend = OnAppend.ACK;
        assertEquals(1, cluster.log.size(MAP));
        eventually(waiting::isDone);
        assertEquals("perhaps", waiting.get());
    }

    /** An item of a former owner, which was lost, and settled while the queue was in use. */
    @Test
    void aQueueIsReadAgainAfterAnotherSettlement() throws Exception {
        HazelcastInstance member = start(0);
        IQueue<String> queue = jobs(member);
        queue.add("job");
        InternalSerializationService data = (InternalSerializationService) WalPlugin.of(member)
                .member().nodeEngine().getSerializationService();
        int partition = member.getPartitionService().getPartition("jobs").getPartitionId();
        byte[] number = data.toData(2L, item -> "jobs").toByteArray();
        cluster.log.put(MAP, new FakeLog.Record(number, "", data.toData("late").toByteArray(), "",
                false, 0, partition, List.of(1L, 1_000_000L << 32, 1L, 1L)));
        WalPlugin.of(member).maps().doubt(MAP, partition);
        eventually(() -> WalPlugin.of(member).maps().isWhole(MAP, partition));
        assertEquals(Set.of("job", "late"), new HashSet<>(queue));
    }

    @Test
    void aTransactionFailsIfItsChangesAreNotLogged() throws Exception {
        HazelcastInstance member = start(0);
        jobs(member).add("a");
        for (boolean polls : List.of(true, false)) {
            TransactionContext transaction = member.newTransactionContext();
            transaction.beginTransaction();
            if (polls) {
                assertEquals("a", transaction.getQueue("jobs").poll());
            } else {
                transaction.<String>getQueue("jobs").offer("b");
            }
            cluster.agents.get(0).stop();
            assertThrows(RuntimeException.class, transaction::commitTransaction);
            transaction.rollbackTransaction();
            cluster.agents.get(0).start();
            assertEquals(List.of("a"), new ArrayList<>(jobs(member)));
        }
        assertEquals(1, cluster.log.size(MAP));
    }

    @Test
    void aDestroyedQueueIsEmptyAfterARestart() throws Exception {
        List<HazelcastInstance> both = two();
        IQueue<String> queue = jobs(both.get(0));
        queue.addAll(List.of("a", "b"));
        jobs(both.get(1)).destroy();
        assertEquals(0, cluster.log.size(MAP));
        assertTrue(jobs(both.get(0)).isEmpty());
        jobs(both.get(0)).add("new");
        cluster.terminateAll();
        assertEquals(List.of("new"), new ArrayList<>(jobs(start(2))));
    }

    @Test
    void aCommittedTransactionIsInTheLog() throws Exception {
        HazelcastInstance member = start(0);
        jobs(member).addAll(List.of("a", "b"));
        TransactionContext transaction = member.newTransactionContext();
        transaction.beginTransaction();
        assertEquals("a", transaction.getQueue("jobs").poll());
        transaction.<String>getQueue("jobs").offer("c");
        assertEquals(2, cluster.log.size(MAP));
        transaction.commitTransaction();
        assertEquals(List.of("b", "c"), new ArrayList<>(jobs(member)));
        // Of another thread: Hazelcast allows a thread one transaction, and this one stays open.
        Thread thread = new Thread(() -> {
            TransactionContext open = member.newTransactionContext();
            open.beginTransaction();
            open.getQueue("jobs").poll();
        });
        thread.start();
        thread.join();
        assertEquals("c", jobs(member).peek());
        cluster.terminateAll();
        assertEquals(List.of("b", "c"), new ArrayList<>(jobs(start(1))));
    }

    /** What it had reserved is forgotten, so it must not commit. */
    @Test
    void aTransactionFailsIfTheQueueHasAnotherOwner() throws Exception {
        List<HazelcastInstance> both = two();
        jobs(both.get(1)).addAll(List.of("a", "b"));
        TransactionContext transaction = both.get(1).newTransactionContext();
        transaction.beginTransaction();
        assertEquals("a", transaction.getQueue("jobs").poll());
        both.get(0).getLifecycleService().terminate();
        assertEquals(2, jobs(both.get(1)).size());
        assertThrows(RuntimeException.class, transaction::commitTransaction);
        transaction.rollbackTransaction();
        assertEquals(List.of("a", "b"), new ArrayList<>(jobs(both.get(1))));
    }

    /** Hazelcast repeats an operation whose answer is lost with its owner: one of each at most. */
    @Test
    @Tag("thorough")
    void eachItemIsPolledOnceWhileMembersJoinAndLeave() throws Exception {
        HazelcastInstance stays = start(0);
        IQueue<Long> queue = stays.getQueue("work-1");
        AtomicBoolean stop = new AtomicBoolean();
        AtomicLong offered = new AtomicLong();
        Set<Long> polled = new HashSet<>();
        List<Long> twice = new ArrayList<>();
        List<Throwable> failures = new ArrayList<>();
        Thread producer = new Thread(() -> {
            while (!stop.get()) {
                try {
                    queue.add(offered.get());
                    offered.incrementAndGet();
                } catch (RuntimeException e) {
                    failures.add(e);
                    return;
                }
            }
        });
        Thread consumer = new Thread(() -> {
            try {
                while (!stop.get() || !queue.isEmpty()) {
                    Long item = queue.poll(100, TimeUnit.MILLISECONDS);
                    if (item != null && !polled.add(item)) {
                        twice.add(item);
                    }
                }
            } catch (InterruptedException | RuntimeException e) {
                failures.add(e);
            }
        });
        producer.start();
        consumer.start();
        HazelcastInstance joins = start(1);
        cluster.awaitSafe();
        HazelcastInstance third = start(2);
        cluster.awaitSafe();
        joins.getLifecycleService().terminate();
        cluster.awaitSafe();
        third.shutdown();
        stop.set(true);
        producer.join();
        consumer.join();
        assertEquals(List.of(), failures);
        assertTrue(twice.size() <= 1, twice.toString());
        assertTrue(offered.get() - polled.size() <= 1, offered + " and " + polled.size());
        assertEquals(0, cluster.log.size("queue:work-1"));
    }

    @Test
    void aQueueWithAnotherStoreIsRefused() throws Exception {
        Config config = config(0);
        config.addQueueConfig(new QueueConfig("jobs").setQueueStoreConfig(
                new QueueStoreConfig().setEnabled(true).setClassName("com.example.Store")));
        HazelcastInstance member = cluster.start(config);
        String text = assertThrows(InvalidConfigurationException.class,
                () -> member.getQueue("jobs")).getMessage();
        assertTrue(text.contains("queue \"jobs\" is durable"), text);
    }

    @Test
    void aQueueNeedsAnAgent() {
        Config config = Members.config("queues", cluster.port, "ipc:///none")
                .setProperty("imap-wal.durable-queues", "jobs");
        String text = assertThrows(InvalidConfigurationException.class,
                () -> Members.start(config)).getMessage();
        assertTrue(text.contains("durable-queues\" needs imap-wal.agent"), text);
    }

    /** As in a rolling restart with a new configuration. */
    @Test
    void itemsFromBeforeAQueueWasDurableAreLogged() throws Exception {
        FakeAgent agent = cluster.startAgent();
        HazelcastInstance before = cluster.start(cluster.config(0, agent));
        jobs(before).addAll(List.of("a", "b"));
        HazelcastInstance after = start(1);
        cluster.awaitSafe();
        before.shutdown();
        assertEquals("a", jobs(after).poll());
        assertEquals(1, cluster.log.size(MAP));
        cluster.terminateAll();
        assertEquals(List.of("b"), new ArrayList<>(jobs(start(2))));
    }

    @Test
    void otherQueuesAreAsBefore() throws Exception {
        HazelcastInstance member = start(0);
        IQueue<String> other = member.getQueue("other");
        other.add("item");
        assertTrue(other.contains("item"));
        assertEquals("item", other.poll());
        other.destroy();
        assertEquals(0, cluster.log.appended().size());
    }
}
