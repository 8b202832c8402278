"""What a metric is, and the metrics of an agent. docs/hooks/metrics.py lists them on the page about
monitoring."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from imap_wal.agent.monitoring.health import why_dead, why_not_ready
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.histogram import Distribution
from imap_wal.version import VERSION

S_contra = TypeVar("S_contra", contravariant=True)
Value: TypeAlias = (
    float
    | Mapping[str, float]
    | Mapping[tuple[str, ...], float]
    | Distribution
    | Mapping[str, str]
    | None
)
"""A number, numbers by the value of `label` or of several labels, a distribution, or the labels of
an info. None: not known, so the metric is left out."""


@dataclass(frozen=True)  # with slots, Python 3.11 cannot make a generic one
class ExportedMetric(Generic[S_contra]):
    """`name`: as it is exported, without the suffixes of a histogram. `label`: the name of the
    labels of its values, if there are several values. `value`: from a snapshot."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    help: str
    value: Callable[[S_contra], Value]
    label: str | tuple[str, ...] = ""


AgentMetric: TypeAlias = ExportedMetric[AgentSnapshot]

BUILD = ExportedMetric[object](
    "imap_wal_build_info",
    "info",
    "Versions of imap-wal and Python.",
    lambda _: {"version": VERSION, "python": platform.python_version()},
)


AGENT: tuple[AgentMetric, ...] = (
    # What it is
    BUILD,
    AgentMetric(
        "imap_wal_agent_info",
        "info",
        "Namespace, cluster, node and durability of this agent, as labels.",
        lambda now: {
            "namespace": now.namespace,
            "cluster": now.cluster,
            "node": now.node,
            "durability": now.durability,
        },
    ),
    AgentMetric(
        "imap_wal_uptime_seconds",
        "gauge",
        "Seconds since the agent started.",
        lambda now: now.uptime_seconds,
    ),
    # Health
    AgentMetric(
        "imap_wal_live",
        "gauge",
        "1 if /livez answers 200: all threads run.",
        lambda now: float(not why_dead(now)),
    ),
    AgentMetric(
        "imap_wal_ready",
        "gauge",
        "1 if /readyz answers 200: changes can be appended, and no operation waits for the log.",
        lambda now: float(not why_not_ready(now)),
    ),
    AgentMetric(
        "imap_wal_log_failed",
        "gauge",
        "1 while the log has failed and has not been opened again.",
        lambda now: float(bool(now.failure)),
    ),
    AgentMetric(
        "imap_wal_fenced",
        "gauge",
        "1 if another process has taken over the log; the agent then ends.",
        lambda now: float(now.fenced),
    ),
    AgentMetric(
        "imap_wal_lease_age_seconds",
        "gauge",
        "Seconds since the lease of the node's lock was renewed; absent without a lease.",
        lambda now: now.lease_age_s,
    ),
    AgentMetric(
        "imap_wal_turn_seconds",
        "gauge",
        "How long the current turn of the agent's loop has lasted.",
        lambda now: now.turn_seconds,
    ),
    AgentMetric(
        "imap_wal_thread_alive",
        "gauge",
        "1 if the background thread runs.",
        lambda now: {name: float(state.alive) for name, state in now.threads.items()},
        "thread",
    ),
    AgentMetric(
        "imap_wal_thread_failing",
        "gauge",
        "1 if the last turn of the background thread failed; it tries again.",
        lambda now: {name: float(bool(state.error)) for name, state in now.threads.items()},
        "thread",
    ),
    AgentMetric(
        "imap_wal_thread_failures_total",
        "counter",
        "Turns of the background thread that failed.",
        lambda now: {name: state.failures for name, state in now.threads.items()},
        "thread",
    ),
)


WRITING: tuple[AgentMetric, ...] = (
    AgentMetric(
        "imap_wal_appends_total",
        "counter",
        "Changes that members sent.",
        lambda now: now.appends,
    ),
    AgentMetric(
        "imap_wal_duplicates_total",
        "counter",
        "Changes that members sent again, and that were already in the log.",
        lambda now: now.duplicates,
    ),
    AgentMetric(
        "imap_wal_records_total",
        "counter",
        "Entries written to the log since it was opened.",
        lambda now: now.commit.records,
    ),
    AgentMetric(
        "imap_wal_written_bytes_total",
        "counter",
        "Bytes written to the log since it was opened.",
        lambda now: now.commit.bytes,
    ),
    AgentMetric(
        "imap_wal_commit_size_bytes",
        "histogram",
        "Bytes that one commit wrote.",
        lambda now: now.commit.commit_sizes,
    ),
    AgentMetric(
        "imap_wal_sync_seconds",
        "histogram",
        "How long a sync of the log took.",
        lambda now: now.commit.sync_times,
    ),
    AgentMetric(
        "imap_wal_rotations_total",
        "counter",
        "Segments that were sealed since the log was opened.",
        lambda now: now.commit.rotations,
    ),
    AgentMetric(
        "imap_wal_epoch",
        "gauge",
        "The epoch of the log; it grows with every open.",
        lambda now: now.epoch,
    ),
    AgentMetric(
        "imap_wal_ring_fill_ratio",
        "gauge",
        "The part of the ring that is used, from 0 to 1, by slots or by bytes.",
        lambda now: now.ring_fill,
    ),
    AgentMetric(
        "imap_wal_ring_waits_total",
        "counter",
        "How often a change found the ring full.",
        lambda now: now.ring.waits,
    ),
)


MAINTENANCE: tuple[AgentMetric, ...] = (
    AgentMetric(
        "imap_wal_archive_runs_total",
        "counter",
        "Runs of the archiver.",
        lambda now: now.maintenance.archives,
    ),
    AgentMetric(
        "imap_wal_archive_failures_total",
        "counter",
        "Runs of the archiver that failed.",
        lambda now: now.maintenance.archive_failures,
    ),
    AgentMetric(
        "imap_wal_archive_failing",
        "gauge",
        "1 if the last run of the archiver failed.",
        lambda now: float(bool(now.maintenance.archive_error)),
    ),
    AgentMetric(
        "imap_wal_retention_runs_total",
        "counter",
        "Runs that removed covered files.",
        lambda now: now.maintenance.removals,
    ),
    AgentMetric(
        "imap_wal_retention_failures_total",
        "counter",
        "Runs to remove covered files that failed.",
        lambda now: now.maintenance.removal_failures,
    ),
    AgentMetric(
        "imap_wal_retention_failing",
        "gauge",
        "1 if the last run to remove covered files failed.",
        lambda now: float(bool(now.maintenance.retention_error)),
    ),
    AgentMetric(
        "imap_wal_compaction_runs_total",
        "counter",
        "Compactions of the cluster's logs that this agent started.",
        lambda now: now.compaction.runs,
    ),
    AgentMetric(
        "imap_wal_compaction_failures_total",
        "counter",
        "Compactions that failed.",
        lambda now: now.compaction.failures,
    ),
    AgentMetric(
        "imap_wal_compaction_failing",
        "gauge",
        "1 if the last compaction failed.",
        lambda now: float(bool(now.compaction.error)),
    ),
    AgentMetric(
        "imap_wal_compaction_seconds_total",
        "counter",
        "Seconds that compactions took.",
        lambda now: now.compaction.seconds,
    ),
    AgentMetric(
        "imap_wal_compaction_removed_bytes_total",
        "counter",
        "Bytes of the files that compactions removed.",
        lambda now: now.compaction.removed_bytes,
    ),
    AgentMetric(
        "imap_wal_compaction_progress_ratio",
        "gauge",
        "How much of the logs a running compaction has read, from 0 to 1; absent while none runs.",
        lambda now: now.compaction_part,
    ),
    AgentMetric(
        "imap_wal_compaction_age_seconds",
        "gauge",
        "Seconds since the newest snapshot was written, by a compaction of any agent or a rewrite; "
        "absent before the first one.",
        lambda now: now.compaction_age_s,
    ),
    AgentMetric(
        "imap_wal_backup_age_seconds",
        "gauge",
        "Seconds since the last whole backup of the log ended; absent if there was none.",
        lambda now: now.backup_age_s,
    ),
    AgentMetric(
        "imap_wal_reader_unread_bytes",
        "gauge",
        "Bytes of this node's log that the registered reader, such as a stream of Spark, has not "
        "read.",
        lambda now: now.unread_bytes,
        "reader",
    ),
    AgentMetric(
        "imap_wal_reader_stalled_seconds",
        "gauge",
        "Seconds for which the registered reader has not moved although it has not read all of "
        "this node's log; 0 if it has read everything.",
        lambda now: now.stalled_s,
        "reader",
    ),
    AgentMetric(
        "imap_wal_tables_stalled_seconds",
        "gauge",
        "Seconds for which no publication of a published table has begun although its map has a "
        "newer snapshot: the greatest value of all tables; absent without published tables.",
        lambda now: now.tables_stalled_s,
    ),
)


DISKS: tuple[AgentMetric, ...] = (
    # Disks
    AgentMetric(
        "imap_wal_disk_free_bytes",
        "gauge",
        "Free bytes of the local disk of the root or of wal_dir.",
        lambda now: {name: disk.free for name, disk in now.disks.items()},
        "folder",
    ),
    AgentMetric(
        "imap_wal_disk_size_bytes",
        "gauge",
        "Size of the same disk.",
        lambda now: {name: disk.size for name, disk in now.disks.items()},
        "folder",
    ),
    AgentMetric(
        "imap_wal_reserve_held_bytes",
        "gauge",
        "Bytes that the reserve for maintenance occupies.",
        lambda now: {name: disk.held for name, disk in now.disks.items()},
        "folder",
    ),
    AgentMetric(
        "imap_wal_reserve_given_up",
        "gauge",
        "1 while the reserve is given up for maintenance: appends leave that many bytes free.",
        lambda now: {name: float(disk.held < disk.wanted) for name, disk in now.disks.items()},
        "folder",
    ),
    # Own disks
    AgentMetric(
        "imap_wal_upload_waiting_bytes",
        "gauge",
        "Bytes that only the node's own disk has; absent without one.",
        lambda now: None if now.upload is None else now.upload.bytes,
    ),
    AgentMetric(
        "imap_wal_upload_waiting_seconds",
        "gauge",
        "Age of the oldest segment that only the node's own disk has; 0: none has entries.",
        lambda now: None if now.upload is None else now.upload.seconds,
    ),
    AgentMetric(
        "imap_wal_uploads_total",
        "counter",
        "Segments that were uploaded since the log was opened.",
        lambda now: None if now.upload is None else now.upload.uploaded,
    ),
    AgentMetric(
        "imap_wal_uploaded_bytes_total",
        "counter",
        "Bytes that were uploaded since the log was opened.",
        lambda now: None if now.upload is None else now.upload.uploaded_bytes,
    ),
    AgentMetric(
        "imap_wal_upload_failures_total",
        "counter",
        "Runs to upload segments that failed.",
        lambda now: None if now.upload is None else now.upload.failures,
    ),
    AgentMetric(
        "imap_wal_tail_reads_total",
        "counter",
        "Parts of segments on the own disk that other agents read.",
        lambda now: now.tail_reads,
    ),
    AgentMetric(
        "imap_wal_left_out_nodes",
        "gauge",
        "Nodes whose entries, or a part of them, the last merge left out.",
        lambda now: len(now.left_out),
    ),
    AgentMetric(
        "imap_wal_read_from_copies_nodes",
        "gauge",
        "Nodes that the last merge could not read, whose acknowledged changes other logs have.",
        lambda now: len(now.read_from_copies),
    ),
)


MEMBERS: tuple[AgentMetric, ...] = (
    AgentMetric(
        "imap_wal_connections",
        "gauge",
        "Open connections of members and clients.",
        lambda now: now.connections.open,
    ),
    AgentMetric(
        "imap_wal_connections_max",
        "gauge",
        "The limit of connections.",
        lambda now: now.connections.most,
    ),
    AgentMetric(
        "imap_wal_connections_refused_total",
        "counter",
        "Connections that were closed: too many, against the protocol, or with a revoked key.",
        lambda now: now.connections.refused,
    ),
    AgentMetric(
        "imap_wal_connections_revoked_total",
        "counter",
        "Connections that were closed because their keys were revoked.",
        lambda now: now.revoked,
    ),
    AgentMetric(
        "imap_wal_peers_refused_total",
        "counter",
        "Peers that were not admitted, because of their user or key.",
        lambda now: now.peers_refused,
    ),
    AgentMetric(
        "imap_wal_errors_total",
        "counter",
        "Requests that were answered with an error, by its code.",
        lambda now: now.errors,
        "code",
    ),
    AgentMetric(
        "imap_wal_incarnation",
        "gauge",
        "The incarnation of the cluster that has the log; 0: none has claimed it.",
        lambda now: now.incarnation,
    ),
    AgentMetric(
        "imap_wal_cluster_alive",
        "gauge",
        "1 if members of the cluster that has the log may be alive.",
        lambda now: float(now.alive),
    ),
    AgentMetric(
        "imap_wal_nodes_without_agent",
        "gauge",
        "Nodes of this log without a running agent: the next start of all members waits for them.",
        lambda now: len(now.absent),
    ),
    AgentMetric(
        "imap_wal_clock_skew_seconds",
        "gauge",
        "By how much this agent's clock is ahead of another agent's or the storage's, the largest "
        "difference; negative: behind.",
        lambda now: now.clock_skew_ms / 1000,
    ),
    AgentMetric(
        "imap_wal_clocks_differ",
        "gauge",
        "1 if clocks differ by more than clock_skew_max_s: restores keep expired entries.",
        lambda now: float(bool(now.clock_doubt)),
    ),
    AgentMetric(
        "imap_wal_start_waiting_seconds",
        "gauge",
        "How long a new cluster has waited for the log here; 0: none waits.",
        lambda now: now.waiting_seconds,
    ),
    AgentMetric(
        "imap_wal_superseded_members",
        "gauge",
        "Connected members that have lost the log to another cluster, and must be restarted.",
        lambda now: now.superseded,
    ),
    AgentMetric(
        "imap_wal_settling_partitions",
        "gauge",
        "Partitions that connected members still compare with the log; operations on them wait.",
        lambda now: now.settling,
    ),
    AgentMetric(
        "imap_wal_settling_seconds_total",
        "counter",
        "Seconds in which partitions were being compared with the log.",
        lambda now: now.settling_seconds,
    ),
)


READING: tuple[AgentMetric, ...] = (
    AgentMetric(
        "imap_wal_reads_total",
        "counter",
        "Answered read requests.",
        lambda now: now.reads,
    ),
    AgentMetric(
        "imap_wal_unmerged_bytes",
        "gauge",
        "Bytes that this node has written since the last merge.",
        lambda now: now.unmerged_bytes,
    ),
    AgentMetric(
        "imap_wal_merges_total",
        "counter",
        "Merges of the logs that had something to read; the first one is the restore.",
        lambda now: now.merged.merges,
    ),
    AgentMetric(
        "imap_wal_merge_seconds_total",
        "counter",
        "Seconds that merges took.",
        lambda now: now.merged.seconds,
    ),
    AgentMetric(
        "imap_wal_merged_records_total",
        "counter",
        "Entries that merges read.",
        lambda now: now.merged.records,
    ),
    AgentMetric(
        "imap_wal_merged_bytes_total",
        "counter",
        "Bytes that merges read.",
        lambda now: now.merged.bytes,
    ),
    AgentMetric(
        "imap_wal_merge_progress_ratio",
        "gauge",
        "How much of the last merge is done, from 0 to 1; absent before the first merge.",
        lambda now: None if now.merge is None else now.merge.part,
    ),
    AgentMetric(
        "imap_wal_merge_failing",
        "gauge",
        "1 if the last merge failed; members cannot load maps until one succeeds.",
        lambda now: 1 if now.merge_error else 0,
    ),
    AgentMetric(
        "imap_wal_keys",
        "gauge",
        "Keys with an entry in the merged logs, even if deleted; absent while they are on scratch.",
        lambda now: now.merged.keys,
    ),
    AgentMetric(
        "imap_wal_conflicts",
        "gauge",
        "Keys that reads found in conflict of order between nodes, at most 100.",
        lambda now: now.conflicts,
    ),
)

GROUPS: Mapping[str, tuple[AgentMetric, ...]] = {
    "Health": AGENT,
    "Writing": WRITING,
    "Maintenance": MAINTENANCE,
    "Disks": DISKS,
    "Members": MEMBERS,
    "Reading": READING,
}
METRICS = tuple(metric for group in GROUPS.values() for metric in group)
