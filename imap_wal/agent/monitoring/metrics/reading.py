"""Reads and merges."""

from __future__ import annotations

from imap_wal.agent.monitoring.metrics.metric import AgentMetric

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
        "Keys with an entry in the merged logs, even if deleted; absent if they are on disk.",
        lambda now: now.merged.keys,
    ),
    AgentMetric(
        "imap_wal_conflicts",
        "gauge",
        "Keys that reads found in conflict of order between nodes, at most 100.",
        lambda now: now.conflicts,
    ),
)
