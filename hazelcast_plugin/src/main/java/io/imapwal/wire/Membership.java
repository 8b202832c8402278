package io.imapwal.wire;

import java.util.UUID;

/**
 * The cluster that a member is in, and its UUID there. A member that joins another cluster, or the
 * same one again, has no entries, and gets a new UUID. What it learned or sent before does not
 * count then.
 *
 * @param clusterId null while the member has not joined a cluster
 */
public record Membership(UUID clusterId, UUID member) {
}
