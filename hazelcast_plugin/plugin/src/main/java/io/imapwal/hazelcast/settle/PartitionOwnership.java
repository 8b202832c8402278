package io.imapwal.hazelcast.settle;

import com.hazelcast.cluster.Member;
import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.InternalPartitionService;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.properties.ClusterProperty;
import com.hazelcast.spi.properties.HazelcastProperties;
import io.imapwal.hazelcast.append.Repeats;

import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * Which partitions this member owns, which members have left, and for how long operations may be
 * repeated because of that. {@link PartitionMoves} keeps it up to date.
 */
public final class PartitionOwnership {
    /** A part of a split network claims its view within this time after it has noticed the loss. */
    private static final long CLAIM_MS = 500;

    /** The time for which clients repeat an operation by default. */
    private static final long CLIENT_MS = 120_000;

    private final NodeEngine nodeEngine;
    private final InternalPartitionService partitions;
    /** The members that a new view must leave out. */
    private final Departures departures;
    private final Repeats repeats;

    public PartitionOwnership(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
        this.partitions = (InternalPartitionService) nodeEngine.getPartitionService();
        // Members notice the same loss at their next heartbeats.
        long heartbeatMs = nodeEngine.getProperties()
                .getMillis(ClusterProperty.HEARTBEAT_INTERVAL_SECONDS);
        this.departures = new Departures(TimeUnit.MILLISECONDS.toNanos(heartbeatMs + CLAIM_MS),
                () -> nodeEngine.getClusterService().getSize(DATA_MEMBER_SELECTOR),
                System::nanoTime);
        this.repeats = new Repeats(TimeUnit.MILLISECONDS.toNanos(repeatedMs(
                nodeEngine.getProperties())), this::present, System::nanoTime);
    }

    /** The time for which operations may be repeated after a member has left. */
    private static long repeatedMs(HazelcastProperties properties) {
        long membersMs = properties.getInteger(ClusterProperty.INVOCATION_MAX_RETRY_COUNT)
                * properties.getMillis(ClusterProperty.INVOCATION_RETRY_PAUSE);
        // The member that repeats it may be the last to notice the loss.
        return Math.max(membersMs, CLIENT_MS)
                + properties.getMillis(ClusterProperty.MAX_NO_HEARTBEAT_SECONDS);
    }

    private Set<UUID> present() {
        return nodeEngine.getClusterService().getMembers().stream().map(Member::getUuid)
                .collect(Collectors.toSet());
    }

    /** The members that have left or were replaced as owners: they may not write any more. */
    Departures departures() {
        return departures;
    }

    /**
     * Also true before the commit of a promotion: Hazelcast accepts reads as soon as the partition
     * table names this member.
     */
    public boolean isOwner(int partition) {
        return partitions.getPartition(partition, false).isLocal();
    }

    public List<Integer> owned() {
        return IntStream.range(0, partitions.getPartitionCount()).filter(this::isOwner).boxed()
                .toList();
    }

    /** Whether this member owns it, and it is not migrating. */
    boolean owns(int partition) {
        InternalPartition now = partitions.getPartition(partition, false);
        return now.isLocal() && !now.isMigrating();
    }

    /**
     * Whether the partitions of the cluster have owners. If not, Hazelcast is made to assign them.
     */
    boolean assigned() {
        return partitions.getPartition(0).getOwnerOrNull() != null;
    }

    /** Whether an operation may be a repetition. */
    public Repeats repeats() {
        return repeats;
    }
}
