/**
 * Queues and ringbuffers that a log keeps. Their items are entries of a durable map, which has one
 * entry for each item, in the partition of the structure: so the order of changes, the settlement
 * after a loss, migrations and restores are those of maps. Hazelcast's own object of the structure
 * is made from these entries, and made again when they may have changed without it. It has no
 * backups: if its owner is lost, the next one reads the log.
 *
 * <pre>
 * offer    QueueContainer ─▶ QueueItems ─▶ LoggedItems.change ═ WalMapStore.log ═▶ agent
 *                                               └─▶ the record store of the map, in memory
 * first    LoggedQueues.get ─▶ LoggedQueue.refresh ─▶ LoggedItems.load: waits until the partition
 * use          of the map is whole, and no change of it is in doubt
 * </pre>
 */
package io.imapwal.hazelcast.structures;
