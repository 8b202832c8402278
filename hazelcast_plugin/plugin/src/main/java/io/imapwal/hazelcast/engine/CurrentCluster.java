package io.imapwal.hazelcast.engine;

import com.hazelcast.cluster.Member;
import com.hazelcast.internal.cluster.ClusterService;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.wire.Membership;

import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;

/**
 * The Hazelcast cluster that this member is in now, and the members that it sees there. All of this
 * changes when the member joins another cluster. A {@link Membership} remembers it.
 */
public final class CurrentCluster {
    private final ClusterService cluster;

    public CurrentCluster(NodeEngine nodeEngine) {
        this.cluster = nodeEngine.getClusterService();
    }

    /** Null while this member has not joined a cluster. */
    public UUID clusterId() {
        return cluster.getClusterId();
    }

    /** The UUID of this member. */
    public UUID member() {
        return cluster.getLocalMember().getUuid();
    }

    /** The UUIDs of all members, this one included. */
    public Set<UUID> members() {
        return cluster.getMembers().stream().map(Member::getUuid).collect(Collectors.toSet());
    }

    public Membership membership() {
        return new Membership(clusterId(), member());
    }

    /** Whether this member is still in that cluster, as the same member. */
    public boolean isPresent(Membership membership) {
        return membership.clusterId() != null && membership.clusterId().equals(clusterId())
                && membership.member().equals(member());
    }

    /**
     * Whether that member is in this member's cluster now, so that its information is about this
     * cluster.
     */
    public boolean isFellow(Membership membership) {
        return membership.clusterId() != null && membership.clusterId().equals(clusterId())
                && cluster.getMember(membership.member()) != null;
    }
}
