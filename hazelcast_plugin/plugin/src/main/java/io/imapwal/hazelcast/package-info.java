/**
 * The part of imap-wal that runs inside a Hazelcast member. It encodes, sends, waits and loads. The
 * log itself is with the agent. This package has the errors that callers get; the others, each of
 * which uses only those to its left (decision 83 in docs/decisions/code.md; wire is another module
 * of Maven):
 *
 * <pre>
 * wire ◀ engine ◀ append, read ◀ settle ◀ transactions ◀ member
 *
 * write    IMap operation ─▶ WalMapStore.store ─▶ OrderGuard ─▶ AgentLink ═ append ═▶ agent
 *                                                                  │ NotAppended, OutcomeUnknown
 *          Reconciler ◀── keys whose outcome is unknown ───────────┘
 *             └──▶ DoubtProcessor on the key's owner: memory gets what the log has
 *
 * restore  WalMapStore.init ─▶ MapOpening (is the log there?)
 *          ─▶ MapPeers (have the other members opened the map?)
 *          ─▶ SettlementWorker.load: all partitions of this member are settled; meanwhile their
 *             LoggedRecordStores hold operations
 *
 * settle   PartitionMoves (how did this member get the partition?) ─▶ Wholeness of each map,
 *          which LoggedRecordStore asks
 *          SettlementWorker ─▶ MemoryDigests on the partitions' threads, and meanwhile
 *             AgentLink.view ─▶ Settlement ═ digests, list, load ═▶ agent
 *             ─▶ SettleOperation on the partition's thread ─▶ CorrectionBackup
 *          MemoryWatch ─▶ Wholeness: keys that are not in memory are read from the log, and
 *             digests of memory that has changed since are not used
 *
 * wire     AgentLink, AgentReader ─▶ ReadConnection ─▶ AgentConnection (hello, request, answer)
 *          ─▶ ZmtpConnection (frames); MsgpackWriter, MsgpackReader; see docs/protocol.md
 *
 * config   Durability: DurableMaps (each map gets its map store by its name), Structures (what no
 *          log keeps is reported or refused); MemberSettings, AgentSettings
 *
 * look     JmxBeans: state and counters, if hazelcast.jmx is true
 * </pre>
 *
 * {@code WalPlugin} makes the parts of a member in one pass. What Hazelcast makes itself, like
 * operations, finds them in {@code Composed}.
 */
package io.imapwal.hazelcast;
