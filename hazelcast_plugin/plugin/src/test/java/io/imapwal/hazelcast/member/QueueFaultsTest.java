package io.imapwal.hazelcast.member;

import com.hazelcast.collection.IQueue;
import com.hazelcast.collection.impl.queue.QueueItem;
import com.hazelcast.collection.impl.queue.QueueService;
import com.hazelcast.collection.impl.queue.operations.QueueMergeOperation;
import com.hazelcast.config.Config;
import com.hazelcast.config.MergePolicyConfig;
import com.hazelcast.config.QueueConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.HazelcastInstanceAware;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.merge.MergingValueFactory;
import com.hazelcast.spi.impl.operationparker.impl.OperationParkerImpl;
import com.hazelcast.spi.merge.PassThroughMergePolicy;
import com.hazelcast.spi.merge.PutIfAbsentMergePolicy;
import com.hazelcast.spi.merge.SplitBrainMergePolicy;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.impl.TransactionImpl;
import io.imapwal.hazelcast.OutcomeUnknown;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.io.Serializable;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Durable queues when owners, agents, transactions or comparators fail. */
class QueueFaultsTest {
    private static final String MAP = "queue:jobs";

    private final TestCluster cluster = new TestCluster("hostile");
    private QueueConfig queueConfig;
    private String extra = "";

    private Config config(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent)
                .setProperty("imap-wal.agent", agent.endpoint())
                .setProperty("imap-wal.timeout-ms", "10000")
                .setProperty("hazelcast.invocation.max.retry.count", "50")
                .setProperty("imap-wal.durable-queues", "jobs, work-*" + extra);
        if (queueConfig != null) {
            config.addQueueConfig(queueConfig);
        }
        return config;
    }

    private HazelcastInstance start(int number) throws Exception {
        return cluster.start(config(number));
    }

    private static IQueue<String> jobs(HazelcastInstance member) {
        return member.getQueue("jobs");
    }

    private static boolean isOwner(HazelcastInstance member, String name) {
        return member.getCluster().getLocalMember().equals(
                member.getPartitionService().getPartition(name).getOwner());
    }

    private List<HazelcastInstance> two() throws Exception {
        List<HazelcastInstance> both = new ArrayList<>(List.of(start(0), start(1)));
        cluster.awaitSafe();
        if (!isOwner(both.get(0), "jobs")) {
            both.add(both.remove(0));
        }
        return both;
    }

    private FakeAgent agentOf(HazelcastInstance member) {
        return cluster.agents.get(cluster.members.indexOf(member));
    }

    @BeforeEach
    void begin() throws Exception {
        clearThreadFlag();
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    /** The partition of the queue stays, others move. */
    @Test
    void aTransactionSurvivesTheMoveOfOtherPartitions() throws Exception {
        HazelcastInstance first = start(0);
        String name = null;
        HazelcastInstance second = null;
        // Reserve in several queues; those whose partition stays must commit.
        List<TransactionContext> open = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            first.getQueue("work-" + i).addAll(List.of("a", "b"));
            TransactionContext transaction = first.newTransactionContext();
            transaction.beginTransaction();
            assertEquals("a", transaction.getQueue("work-" + i).poll());
            open.add(transaction);
            // A transaction is of one thread: leave the thread's flag.
            clearThreadFlag();
        }
        second = start(1);
        cluster.awaitSafe();
        List<String> failed = new ArrayList<>();
        int stayed = 0;
        for (int i = 0; i < 8; i++) {
            first.getQueue("work-" + i).size();
            if (!isOwner(first, "work-" + i)) {
                continue;
            }
            stayed++;
            try {
                open.get(i).commitTransaction();
            } catch (RuntimeException e) {
                failed.add("work-" + i + ": " + e);
            }
        }
        assertTrue(stayed > 0);
        assertEquals(List.of(), failed, "of " + stayed);
    }

    /** Hazelcast allows a thread one transaction. */
    private static void clearThreadFlag() throws Exception {
        Field flag = TransactionImpl.class.getDeclaredField("TRANSACTION_EXISTS");
        flag.setAccessible(true);
        ((ThreadLocal<?>) flag.get(null)).remove();
    }

    /** With two members: the owner is lost in between. */
    @Test
    void aNumberIsNotGivenTwice() throws Exception {
        List<HazelcastInstance> both = two();
        HazelcastInstance stays = both.get(1);
        TransactionContext a = stays.newTransactionContext();
        a.beginTransaction();
        a.<String>getQueue("jobs").offer("of A");  // a number is reserved
        clearThreadFlag();
        both.get(0).getLifecycleService().terminate();
        IQueue<String> queue = jobs(stays);
        eventually(() -> queue.size() == 0);
        List<String> acked = new ArrayList<>();
        assertTrue(queue.offer("acknowledged"));
        acked.add("acknowledged");
        TransactionContext b = stays.newTransactionContext();
        b.beginTransaction();
        assertEquals("acknowledged", b.getQueue("jobs").poll());
        clearThreadFlag();
        String outcomeA;
        try {
            a.commitTransaction();
            outcomeA = "committed";
        } catch (RuntimeException e) {
            outcomeA = e.toString();
        }
        String outcomeB;
        try {
            b.rollbackTransaction();
            outcomeB = "rolled back";
        } catch (RuntimeException e) {
            outcomeB = e.toString();
        }
        List<String> left = new ArrayList<>(queue);
        assertTrue(left.contains("acknowledged"), "A: " + outcomeA + "; B: " + outcomeB
                + "; the queue: " + left);
    }

    public static final class ByNumber implements Comparator<Object>, Serializable {
        private static final long serialVersionUID = 1L;

        @Override
        public int compare(Object a, Object b) {
            return ((Integer) a).compareTo((Integer) b);
        }
    }

    @Test
    void anItemThatAComparatorRefusesIsNotLogged() throws Exception {
        queueConfig = new QueueConfig("jobs").setPriorityComparatorClassName(
                ByNumber.class.getName());
        IQueue<Object> queue = start(0).getQueue("jobs");
        queue.add(3);
        queue.add(1);
        queue.add(2);
        assertThrows(RuntimeException.class, () -> queue.add("text"));
        assertEquals(1, queue.peek());
        assertEquals(3, queue.size());
        assertEquals(3, cluster.log.size(MAP), "the refused item is in the log");
        cluster.terminateAll();
        IQueue<Object> restored = start(1).getQueue("jobs");
        assertEquals(1, restored.poll());
    }

    /** A queue that is made again in part. */
    @Test
    void aPriorityQueueIsNotMadeOfSomeItemsOnly() throws Exception {
        queueConfig = new QueueConfig("jobs").setPriorityComparatorClassName(
                ByNumber.class.getName());
        IQueue<Object> queue = start(0).getQueue("jobs");
        queue.add(3);
        queue.add(1);
        assertThrows(RuntimeException.class, () -> queue.add("text"));
        IntStream.range(10, 20).forEach(queue::add);
        int before = queue.size();
        cluster.agents.get(0).faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> queue.add(99));
        cluster.agents.get(0).faults.onAppend = OnAppend.ACK;
        String said;
        try {
            said = String.valueOf(queue.size());
        } catch (RuntimeException e) {
            said = e.toString();
        }
        assertEquals(String.valueOf(before + 1), said, "in the log: " + cluster.log.size(MAP));
    }

    public static final class Offers implements EntryProcessor<String, String, Boolean>,
            HazelcastInstanceAware, Serializable {
        private static final long serialVersionUID = 1L;
        private transient HazelcastInstance member;

        @Override
        public void setHazelcastInstance(HazelcastInstance member) {
            this.member = member;
        }

        @Override
        public Boolean process(Map.Entry<String, String> entry) {
            return member.<String>getQueue("work-1@key").offer("from a processor");
        }
    }

    /** An operation on the queue runs inside one of a map in the same partition. */
    @Test
    void anOfferOfAnEntryProcessorIsLogged() throws Exception {
        HazelcastInstance member = start(0);
        member.getMap("orders").put("key", "value");
        member.getQueue("work-1@key");  // the proxy
        // It may fail while the queue is not loaded; if it succeeds, the item is in the log.
        eventually(() -> member.<String, String>getMap("orders").executeOnKey("key",
                new Offers()).equals(true));
        assertEquals(1, cluster.log.size("queue:work-1@key"));
        cluster.terminateAll();
        assertEquals("from a processor", start(1).getQueue("work-1@key").poll());
    }

    /** The log has items from before. */
    @Test
    void aProcessorsOfferIsAddedToTheLog() throws Exception {
        HazelcastInstance member = start(0);
        member.getMap("orders").put("key", "value");
        member.getQueue("work-1@key").add("before");
        cluster.terminateAll();
        HazelcastInstance restarted = start(1);
        restarted.getQueue("work-1@key");
        eventually(() -> restarted.<String, String>getMap("orders").executeOnKey("key",
                new Offers()).equals(true));
        assertEquals(List.of("before", "from a processor"),
                new ArrayList<>(restarted.getQueue("work-1@key")));
    }

    @Test
    void theOrderAfterARestartIsTheOrderBefore() throws Exception {
        HazelcastInstance member = start(0);
        IQueue<String> queue = jobs(member);
        TransactionContext transaction = member.newTransactionContext();
        transaction.beginTransaction();
        transaction.<String>getQueue("jobs").offer("of the transaction");
        queue.add("plain");
        transaction.commitTransaction();
        List<String> before = new ArrayList<>(queue);
        cluster.terminateAll();
        assertEquals(before, new ArrayList<>(jobs(start(1))));
    }

    @Test
    void aCommitThatIsNotLoggedFailsAndRollsBack() throws Exception {
        HazelcastInstance member = start(0);
        IQueue<String> queue = jobs(member);
        queue.addAll(List.of("a", "b"));
        TransactionContext transaction = member.newTransactionContext();
        transaction.beginTransaction();
        assertEquals("a", transaction.getQueue("jobs").poll());
        transaction.<String>getQueue("jobs").offer("c");
        cluster.agents.get(0).stop();
        assertThrows(RuntimeException.class, transaction::commitTransaction);
        cluster.agents.get(0).start();
        transaction.rollbackTransaction();
        eventually(() -> queue.size() == 2);
        assertEquals(List.of("a", "b"), new ArrayList<>(queue));
    }

    @Test
    void aWaitingConsumerGetsAnItemOfUnknownOutcome() throws Exception {
        HazelcastInstance member = start(0);
        IQueue<String> queue = jobs(member);
        CompletableFuture<String> taken = CompletableFuture.supplyAsync(() -> {
            try {
                return queue.take();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        NodeEngineImpl engine = WalPlugin.of(member).member().nodeEngine();
        OperationParkerImpl parker = (OperationParkerImpl) engine.getOperationParker();
        eventually(() -> parker.getTotalParkedOperationCount() == 1);
        cluster.agents.get(0).faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> queue.add("perhaps"));
        cluster.agents.get(0).faults.onAppend = OnAppend.ACK;
        assertEquals(1, cluster.log.size(MAP));
        eventually(taken::isDone);
        assertEquals("perhaps", taken.get());
    }

    /** Two members destroy queues of their own on threads that have the same number. */
    @Test
    void membersThatDestroyQueuesDoNotWaitForEachOther() throws Exception {
        queueConfig = new QueueConfig("work-*").setEmptyQueueTtl(0);
        Config one = config(0).setProperty("hazelcast.operation.thread.count", "2");
        HazelcastInstance a = cluster.start(one);
        HazelcastInstance b = cluster.start(config(1)
                .setProperty("hazelcast.operation.thread.count", "2"));
        cluster.awaitSafe();
        String ofA = null;
        String ofB = null;
        for (int i = 0; ofA == null || ofB == null; i++) {
            String name = "work-" + i;
            int partition = a.getPartitionService().getPartition(name).getPartitionId();
            if (partition % 2 == 0) {
                if (isOwner(a, name)) {
                    ofA = name;
                } else {
                    ofB = name;
                }
            }
        }
        long slowest = 0;
        for (int round = 0; round < 30 && slowest < 5000; round++) {
            a.getQueue(ofA).add("x");
            b.getQueue(ofB).add("x");
            CountDownLatch go = new CountDownLatch(1);
            String nameA = ofA;
            String nameB = ofB;
            CompletableFuture<Long> first = timed(go, () -> a.getQueue(nameA).poll());
            CompletableFuture<Long> second = timed(go, () -> b.getQueue(nameB).poll());
            go.countDown();
            slowest = Math.max(slowest, Math.max(first.join(), second.join()));
        }
        assertTrue(slowest < 5000, "a poll took " + slowest + " ms");
    }

    private static CompletableFuture<Long> timed(CountDownLatch go, Runnable action) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                go.await();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
            long began = System.nanoTime();
            action.run();
            return (System.nanoTime() - began) / 1_000_000;
        });
    }

    /** A queue that has arrived, and was not used since, is merged after a split. */
    @Test
    void aMergeDoesNotDeleteItems() throws Exception {
        queueConfig = new QueueConfig("jobs").setMergePolicyConfig(
                new MergePolicyConfig().setPolicy(PassThroughMergePolicy.class.getName()));
        HazelcastInstance first = start(0);
        jobs(first).addAll(List.of("a", "b"));
        HazelcastInstance second = start(1);
        cluster.awaitSafe();
        first.shutdown();
        second.getQueue("other").add("x");  // without any item to merge, nothing is sent
        QueueService service = WalPlugin.of(second).member().nodeEngine()
                .getService(QueueService.SERVICE_NAME);
        service.prepareMergeRunnable().run();
        assertEquals(2, cluster.log.size(MAP), "in the log");
        assertEquals(List.of("a", "b"), new ArrayList<>(jobs(second)));
    }

    /** All items are reserved by a transaction while a merge arrives. */
    @Test
    @SuppressWarnings({"rawtypes", "unchecked"})
    void aMergeDoesNotDeleteReservedItems() throws Exception {
        HazelcastInstance first = start(0);
        jobs(first).add("a");
        TransactionContext transaction = first.newTransactionContext();
        transaction.beginTransaction();
        assertEquals("a", transaction.getQueue("jobs").poll());
        NodeEngineImpl engine = WalPlugin.of(first).member().nodeEngine();
        engine.getOperationService().invokeOnPartition(QueueService.SERVICE_NAME,
                new QueueMergeOperation("jobs",
                        (SplitBrainMergePolicy) new PutIfAbsentMergePolicy(),
                        MergingValueFactory.createMergingValue(engine.getSerializationService(),
                                (Queue<QueueItem>) new LinkedList<QueueItem>())),
                first.getPartitionService().getPartition("jobs").getPartitionId()).join();
        assertEquals(1, cluster.log.size(MAP), "in the log");
        transaction.rollbackTransaction();
        assertEquals(List.of("a"), new ArrayList<>(jobs(first)));
    }

    @Test
    void aDrainOfUnknownOutcomeIsSettled() throws Exception {
        HazelcastInstance member = start(0);
        IQueue<String> queue = jobs(member);
        int count = 1000;
        queue.addAll(IntStream.range(0, count).mapToObj(number -> "job " + number).toList());
        cluster.agents.get(0).faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> queue.drainTo(new ArrayList<>()));
        cluster.agents.get(0).faults.onAppend = OnAppend.ACK;
        eventually(() -> queue.size() == cluster.log.size(MAP));
    }

    @Test
    void namesOfAnyKind() throws Exception {
        extra = ", n*";
        HazelcastInstance member = start(0);
        List<String> names = List.of("n@key", "n*x", "n:a:b", "n" + "x".repeat(300), "n é 日本");
        List<String> failed = new ArrayList<>();
        for (String name : names) {
            try {
                member.getQueue(name).add("a");
            } catch (RuntimeException e) {
                failed.add(name + ": " + e);
            }
        }
        cluster.terminateAll();
        HazelcastInstance again = start(1);
        for (String name : names) {
            try {
                if (!"a".equals(again.getQueue(name).poll())) {
                    failed.add(name + ": not restored");
                }
            } catch (RuntimeException e) {
                failed.add(name + ": " + e);
            }
        }
        assertEquals(List.of(), failed);
    }
}
