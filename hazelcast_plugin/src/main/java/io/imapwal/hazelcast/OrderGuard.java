package io.imapwal.hazelcast;

import com.hazelcast.cluster.Member;
import com.hazelcast.internal.cluster.ClusterService;
import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.InternalPartitionService;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.operationexecutor.impl.OperationThread;
import com.hazelcast.spi.impl.operationservice.BackupOperation;

import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;

/**
 * Gives a change its place among the owners of its partition.
 *
 * <p>A partition's version grows with every change of hands, so of two changes of one key by two owners the one with the
 * greater version is the newer. That holds only for changes made by the owner, and a migration does not wait for an
 * offloaded store: hence version, ownership, version again, and the whole once more by the thread that sends
 * ({@link #holds}), because a change may have waited in the queue meanwhile. What changes hands after that is sent with the
 * older version, which is right: the new owner's changes are newer, and the operation itself is refused by Hazelcast on
 * its way back to memory and repeated on the new owner.
 */
final class OrderGuard {
    private final InternalPartitionService partitions;
    private final ClusterService cluster;

    OrderGuard(NodeEngine nodeEngine) {
        this.partitions = (InternalPartitionService) nodeEngine.getPartitionService();
        this.cluster = nodeEngine.getClusterService();
    }

    /** Where and when a change was made. @param member its UUID then: a member that has merged starts anew */
    record Stamp(UUID clusterId, UUID member, int partition, int version) {
    }

    /** @throws RetryableHazelcastException when this member does not own the partition undisturbed: nothing was appended, Hazelcast repeats the operation */
    Stamp take(int partitionId) {
        UUID clusterId = cluster.getClusterId();
        UUID member = member();
        InternalPartition partition = partitions.getPartition(partitionId, false);
        int version = partition.version();
        if (clusterId == null || !partition.isLocal() || partition.isMigrating() || partition.version() != version) {
            throw moved(partitionId);
        }
        return new Stamp(clusterId, member, partitionId, version);
    }

    boolean holds(Stamp stamp) {
        InternalPartition partition = partitions.getPartition(stamp.partition, false);
        return partition.isLocal() && !partition.isMigrating() && partition.version() == stamp.version
                && stamp.clusterId.equals(cluster.getClusterId()) && stamp.member.equals(member());
    }

    /**
     * Whether this thread carries out a backup. Backups store nothing, but for {@code setTtl}, whose backup calls the map
     * store once more (5.7.0); its owner has logged it.
     */
    boolean onBackup(int partitionId) {
        return Thread.currentThread() instanceof OperationThread thread
                && thread.operationRunner(partitionId).currentTask() instanceof BackupOperation;
    }

    int partitionCount() {
        return partitions.getPartitionCount();
    }

    UUID clusterId() {
        return cluster.getClusterId();
    }

    UUID member() {
        return cluster.getLocalMember().getUuid();
    }

    Membership membership() {
        return new Membership(clusterId(), member());
    }

    /** Whether this member is still in that cluster, as the same member. */
    boolean isPresent(Membership membership) {
        return membership.clusterId() != null && membership.clusterId().equals(clusterId()) && membership.member().equals(member());
    }

    /** Whether that member is in this member's cluster now: what it says is about this cluster. */
    boolean isFellow(Membership membership) {
        return membership.clusterId() != null && membership.clusterId().equals(clusterId()) && cluster.getMember(membership.member()) != null;
    }

    /** The UUIDs of all members, this one included. */
    Set<UUID> members() {
        return cluster.getMembers().stream().map(Member::getUuid).collect(Collectors.toSet());
    }

    static RetryableHazelcastException moved(int partitionId) {
        return new RetryableHazelcastException("partition " + partitionId + " is changing hands; nothing was appended");
    }

    static RetryableHazelcastException movedMeanwhile(int partitionId) {
        return new RetryableHazelcastException("partition " + partitionId + " moved to another member while a change of it was appended; "
                + "Hazelcast repeats the change");
    }
}
