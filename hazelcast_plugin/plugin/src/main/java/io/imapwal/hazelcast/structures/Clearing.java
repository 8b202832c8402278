package io.imapwal.hazelcast.structures;

import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.engine.PartitionThreads;

import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Deletes all items of a structure that is destroyed, in the log too. Hazelcast destroys an object
 * on all members; only the owner of the partition deletes the items.
 */
final class Clearing {
    private static final long TRY_S = 30;
    private static final long PAUSE_MS = 50;

    private final NodeEngine nodeEngine;
    private final int partition;
    private final LoggedItems items;
    private RuntimeException failure;

    Clearing(NodeEngine nodeEngine, int partition, LoggedItems items) {
        this.nodeEngine = nodeEngine;
        this.partition = partition;
        this.items = items;
    }

    /** @throws LogUnavailable the items are still there */
    void run() {
        PartitionThreads threads = new PartitionThreads(nodeEngine);
        if (threads.isOn(partition)) {
            // Hazelcast destroys an empty queue after its empty-queue-ttl.
            clear(partition);
        } else if (isLocal()) {
            // The member that asked for this waits, and may occupy the thread of a partition. So
            // a member that has nothing to delete must not wait for such a thread.
            waitFor(threads);
        }
        if (failure != null) {
            throw failure;
        }
    }

    private void waitFor(PartitionThreads threads) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TRY_S);
        try {
            do {
                if (threads.run(List.of(partition), this::clear, TRY_S) > 0) {
                    throw new LogUnavailable("the items of an object that is destroyed are not"
                            + " deleted yet: the thread of partition " + partition + " is busy",
                            null);
                }
                if (!(failure instanceof RetryableHazelcastException)) {
                    return;
                }
                TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
            } while (System.nanoTime() < deadline);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            failure = new LogUnavailable("the items of an object that is destroyed may still be in"
                    + " the log: the thread that waited was interrupted", e);
        }
    }

    private boolean isLocal() {
        return nodeEngine.getPartitionService().getPartition(partition, false).isLocal();
    }

    private void clear(int id) {
        failure = null;
        if (!isLocal()) {
            return;
        }
        try {
            items.clear();
        } catch (RuntimeException e) {
            failure = e;
        }
    }
}
