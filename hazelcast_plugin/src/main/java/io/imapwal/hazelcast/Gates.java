package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.PartitionSpecificRunnable;
import com.hazelcast.spi.impl.operationexecutor.OperationExecutor;
import com.hazelcast.spi.impl.operationservice.impl.OperationServiceImpl;

import java.util.Collection;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Closes the gates of partitions on their own threads. A partition that was lost with its backups
 * has no record store; one is made to carry the gate, because {@code size} and queries would make
 * an empty one otherwise, and count it.
 */
final class Gates {
    private static final long WAIT_S = 10;

    private final WalPlugin plugin;

    Gates(WalPlugin plugin) {
        this.plugin = plugin;
    }

    /** Returns when they are closed, or after a while: a thread may be busy. Never on a partition's thread. */
    void close(MapState state, Collection<Integer> partitions) throws InterruptedException {
        boolean empty = plugin.states().size() <= MapState.HELD_EMPTY_MAX;
        OperationExecutor executor = ((OperationServiceImpl) plugin.nodeEngine().getOperationService()).getOperationExecutor();
        CountDownLatch left = new CountDownLatch(partitions.size());
        for (int partition : partitions) {
            executor.execute(new Closing(state, partition, empty, left));
        }
        left.await(WAIT_S, TimeUnit.SECONDS);
    }

    private record Closing(MapState state, int partition, boolean empty, CountDownLatch left) implements PartitionSpecificRunnable {
        @Override
        public void run() {
            try {
                if (!state.wholeness().settled(partition)) {
                    state.hold(partition, empty);
                }
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
