package io.imapwal.hazelcast.append;

import java.util.UUID;

/**
 * Where and when a change was made. {@link OrderGuard} creates stamps.
 *
 * @param clusterId   cluster of the member that sends the change
 * @param member      UUID of that member when it made the change; after a merge it has another one
 * @param partition   partition of the key
 * @param version     version of the partition, as Hazelcast counts it
 * @param order       second number of the change's order: version and turn
 * @param incarnation the only view in which the change may be sent, if another member gave the
 *                    place; 0: any view
 */
public record PartitionStamp(UUID clusterId, UUID member, int partition, int version, long order,
                      long incarnation) {
}
