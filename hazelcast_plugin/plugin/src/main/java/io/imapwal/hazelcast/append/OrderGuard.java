package io.imapwal.hazelcast.append;

import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.InternalPartitionService;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.PartitionSpecificRunnable;
import com.hazelcast.spi.impl.operationexecutor.impl.OperationThread;
import com.hazelcast.spi.impl.operationservice.BackupOperation;
import com.hazelcast.transaction.TransactionException;
import io.imapwal.hazelcast.engine.CurrentCluster;
import io.imapwal.hazelcast.engine.PartitionThreads;

import java.util.UUID;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Gives a change its place in the order, which depends on the owners of its partition.
 *
 * <p>A partition's version rises with each change of its owner. So of two changes of one key by two
 * owners, the one with the greater version is newer. This is true only for changes by the owner,
 * and a migration does not wait for an offloaded store. So the guard reads the version, the
 * ownership, and the version again. The sending thread does the same ({@link #isValid}), because a
 * change may have waited in the queue. If the partition migrates after that, the change is sent
 * with the older version. This is correct: the changes of the new owner are newer. Hazelcast
 * refuses the operation before it changes memory, and repeats it on the new owner.
 */
public final class OrderGuard {
    private static final int TURN_BITS = 32;
    private static final long MAX_TURN = (1L << TURN_BITS) - 3;

    private final InternalPartitionService partitions;
    private final CurrentCluster cluster;
    /**
     * For each partition, the turn of the changes that are stamped now, counted since this member
     * started: an even number. A place for a transaction takes the odd number after it, and later
     * changes have the even number after that.
     */
    private final AtomicLongArray turns;

    public OrderGuard(NodeEngine nodeEngine, CurrentCluster cluster) {
        this.partitions = (InternalPartitionService) nodeEngine.getPartitionService();
        this.cluster = cluster;
        this.turns = new AtomicLongArray(partitions.getPartitionCount());
    }

    /**
     * The stamp for a change that this member makes now, as the owner of the partition.
     *
     * @throws RetryableHazelcastException this member does not own the partition, or it is
     *                                     migrating: nothing was appended, Hazelcast repeats the
     *                                     operation
     */
    public PartitionStamp take(int partitionId) {
        UUID clusterId = cluster.clusterId();
        UUID member = cluster.member();
        InternalPartition partition = partitions.getPartition(partitionId, false);
        int version = partition.version();
        if (clusterId == null || !partition.isLocal() || partition.isMigrating()
                || partition.version() != version) {
            throw moved(partitionId);
        }
        long order = order(version, turns.get(partitionId));
        return new PartitionStamp(clusterId, member, partitionId, version, order, 0);
    }

    /**
     * A place in the order for changes that another member may log: after all changes stamped
     * before, and before all stamped later. No other place or stamp has its pair (incarnation,
     * order), so no two nodes have changes with the same pair.
     *
     * @throws RetryableHazelcastException as {@link #take}
     */
    public PartitionStamp place(int partitionId) {
        PartitionStamp now = take(partitionId);
        // This runs on the partition's thread, so no other place is given meanwhile. A turn above
        // the limit would count as a version, also for changes without a transaction.
        if (turns.get(partitionId) >= MAX_TURN) {
            throw new TransactionException("partition " + partitionId + " has had " + MAX_TURN / 2
                    + " transactions on this member, the most that it can count. Restart the"
                    + " member");
        }
        long turn = turns.addAndGet(partitionId, 2) - 1;
        long order = order(now.version(), turn);
        return new PartitionStamp(now.clusterId(), now.member(), partitionId, now.version(), order,
                0);
    }

    /** Whether an order was made with the present version of the partition. */
    boolean isPresentVersion(int partitionId, long order) {
        return partitions.getPartition(partitionId, false).version() == order >>> TURN_BITS;
    }

    /** The second number of a change's order; Python calls it the partition version. */
    private static long order(int version, long turn) {
        return (long) version << TURN_BITS | turn;
    }

    /** Whether the stamp is still valid, so that its change may be sent. */
    boolean isValid(PartitionStamp stamp) {
        if (stamp.incarnation() != 0) {
            // The owner keeps the partition until it knows the outcome. If the owner is lost, the
            // next incarnation begins.
            return stamp.clusterId().equals(cluster.clusterId())
                    && stamp.member().equals(cluster.member());
        }
        InternalPartition partition = partitions.getPartition(stamp.partition(), false);
        return partition.isLocal() && !partition.isMigrating()
                && partition.version() == stamp.version()
                && stamp.clusterId().equals(cluster.clusterId())
                && stamp.member().equals(cluster.member());
    }

    /**
     * Whether this thread runs a backup operation. Backups store nothing, except {@code setTtl},
     * whose backup calls the map store once more (5.7.0). The owner has logged it.
     */
    public boolean onBackup(int partitionId) {
        return Thread.currentThread() instanceof OperationThread thread
                && thread.operationRunner(partitionId).currentTask() instanceof BackupOperation;
    }

    /**
     * Whether this thread reads a backup: in a backup operation, or in a task that is not an
     * operation, so that Hazelcast would not repeat it on the owner. Hazelcast's own tests do so.
     */
    public boolean readsBackup(int partitionId) {
        return onBackup(partitionId)
                || PartitionThreads.task(partitionId) instanceof PartitionSpecificRunnable
                && !partitions.getPartition(partitionId, false).isLocal();
    }

    public static RetryableHazelcastException moved(int partitionId) {
        return new RetryableHazelcastException("partition " + partitionId
                + " is moving to another member; nothing was appended");
    }

    static RetryableHazelcastException movedMeanwhile(int partitionId) {
        return new RetryableHazelcastException("partition " + partitionId
                + " moved to another member while a change of it was appended; "
                + "Hazelcast repeats the change");
    }
}
