/**
 * A map store for the maps of SeaTunnel's engine, whose changes it appends to the log of the agent
 * beside the server. For Java 8 and the Hazelcast 5.1 in SeaTunnel, on {@code io.imapwal.wire}.
 *
 * <pre>
 * factory-class-name: io.imapwal.seatunnel.ImapWalMapStoreFactory ─▶ ImapWalMapStore ─┐
 * type: imap-wal, through SeaTunnel's FileMapStore ─▶ ImapWalStorage ─────────────────┤
 *                                                                                     ▼
 * ThisMember (version of a partition, cluster)  ◀── LogMap ──▶ Change ──▶ TypedBytes (of an object)
 *                                                     │
 *                          LogClient, one per agent ──┼─▶ Appender ═ append ═▶ agent
 *                                                     ├─▶ LogReader ═ keys, load ═▶ agent
 *                                                     └─▶ Doubts: memory := log, after no answer
 * </pre>
 */
package io.imapwal.seatunnel;
