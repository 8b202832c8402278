package io.imapwal.wire;

import java.util.Objects;
import java.util.UUID;

/**
 * The cluster that a member is in, and its UUID there. A member that joins another cluster, or the
 * same one again, has no entries, and gets a new UUID. What it learned or sent before does not
 * count then.
 */
public final class Membership {
    private final UUID clusterId;
    private final UUID member;

    /** @param clusterId null while the member has not joined a cluster */
    public Membership(UUID clusterId, UUID member) {
        this.clusterId = clusterId;
        this.member = member;
    }

    public UUID clusterId() {
        return clusterId;
    }

    public UUID member() {
        return member;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Membership
                && Objects.equals(clusterId, ((Membership) other).clusterId)
                && Objects.equals(member, ((Membership) other).member);
    }

    @Override
    public int hashCode() {
        return Objects.hash(clusterId, member);
    }
}
