package io.imapwal.hazelcast.engine;

import com.hazelcast.internal.partition.MigrationCycleOperation;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.PartitionSpecificRunnable;
import com.hazelcast.spi.impl.operationexecutor.OperationExecutor;
import com.hazelcast.spi.impl.operationexecutor.impl.PartitionOperationThread;
import com.hazelcast.spi.impl.operationservice.BackupOperation;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.spi.impl.operationservice.ReadonlyOperation;
import com.hazelcast.spi.impl.operationservice.UrgentSystemOperation;
import com.hazelcast.spi.impl.operationservice.impl.OperationServiceImpl;

import java.util.Collection;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;

/** Runs actions on the threads of partitions, between their operations. */
public final class PartitionThreads {
    private final NodeEngine nodeEngine;

    public PartitionThreads(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
    }

    /**
     * Waits for the action, so it must not be called on a partition's thread.
     *
     * @return on how many partitions the action has not run in this time; it runs there later
     */
    public long run(Collection<Integer> partitions, IntConsumer action, long seconds)
            throws InterruptedException {
        CountDownLatch left = begin(partitions, action);
        left.await(seconds, TimeUnit.SECONDS);
        return left.getCount();
    }

    /** As {@link #run}, but does not wait. @return counts the partitions where it has not run */
    public CountDownLatch begin(Collection<Integer> partitions, IntConsumer action) {
        OperationExecutor executor = executor();
        CountDownLatch left = new CountDownLatch(partitions.size());
        for (int partition : partitions) {
            executor.execute(new Task(partition, action, left));
        }
        return left;
    }

    /** Runs an action before all operations that wait for the partition's thread. Does not wait. */
    public void next(int partition, IntConsumer action) {
        executor().execute(new Urgent(partition, action));
    }

    private record Urgent(int partition, IntConsumer action)
            implements PartitionSpecificRunnable, UrgentSystemOperation {
        @Override
        public void run() {
            action.accept(partition);
        }

        @Override
        public int getPartitionId() {
            return partition;
        }
    }

    /** Whether an operation that only reads runs now, on the partition's thread. */
    public static boolean reads(int partition) {
        return task(partition) instanceof ReadonlyOperation;
    }

    /** Whether an operation that may change something runs now, on the partition's thread. */
    public static boolean changes(int partition) {
        Object task = task(partition);
        return task != null && !(task instanceof ReadonlyOperation);
    }

    /**
     * Whether an operation of the partition's owner runs now, on the partition's thread: neither a
     * backup's, nor one of a migration.
     */
    public static boolean isUsed(int partition) {
        Object task = task(partition);
        return task instanceof Operation && !(task instanceof BackupOperation)
                && !(task instanceof MigrationCycleOperation);
    }

    /** Whether this is the partition's thread. */
    public boolean isOn(int partition) {
        return Thread.currentThread() instanceof PartitionOperationThread thread
                && thread.getThreadId() == executor().getPartitionThreadId(partition);
    }

    /** The task that runs now, if this is the partition's thread; null if it is not known. */
    public static Object task(int partition) {
        return Thread.currentThread() instanceof PartitionOperationThread thread
                ? thread.operationRunner(partition).currentTask() : null;
    }

    private OperationExecutor executor() {
        return ((OperationServiceImpl) nodeEngine.getOperationService()).getOperationExecutor();
    }

    private record Task(int partition, IntConsumer action, CountDownLatch left)
            implements PartitionSpecificRunnable {
        @Override
        public void run() {
            try {
                action.accept(partition);
            } finally {
                left.countDown();
            }
        }

        @Override
        public int getPartitionId() {
            return partition;
        }
    }
}
