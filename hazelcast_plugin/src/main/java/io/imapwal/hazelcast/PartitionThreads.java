package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.PartitionSpecificRunnable;
import com.hazelcast.spi.impl.operationexecutor.OperationExecutor;
import com.hazelcast.spi.impl.operationservice.impl.OperationServiceImpl;

import java.util.Collection;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;

/** Runs something on the threads of partitions, between their operations. */
final class PartitionThreads {
    private final NodeEngine nodeEngine;

    PartitionThreads(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
    }

    /**
     * Waits for it: never on a partition's thread.
     *
     * @return on how many partitions it is not done after the time; it is done there later
     */
    long run(Collection<Integer> partitions, IntConsumer action, long seconds) throws InterruptedException {
        OperationExecutor executor = ((OperationServiceImpl) nodeEngine.getOperationService()).getOperationExecutor();
        CountDownLatch left = new CountDownLatch(partitions.size());
        for (int partition : partitions) {
            executor.execute(new Task(partition, action, left));
        }
        left.await(seconds, TimeUnit.SECONDS);
        return left.getCount();
    }

    /** Runs it after what waits for the partition's thread already. Does not wait. */
    void later(int partition, IntConsumer action) {
        OperationExecutor executor = ((OperationServiceImpl) nodeEngine.getOperationService()).getOperationExecutor();
        executor.execute(new Task(partition, action, new CountDownLatch(1)));
    }

    private record Task(int partition, IntConsumer action, CountDownLatch left) implements PartitionSpecificRunnable {
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
