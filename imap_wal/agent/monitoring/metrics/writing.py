"""What an agent writes."""

from __future__ import annotations

from imap_wal.agent.monitoring.metrics.metric import AgentMetric

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
        lambda now: max(
            now.ring.waiting / now.ring.slots,
            min(1.0, now.ring.waiting_bytes / now.ring_bytes_max),
        ),
    ),
    AgentMetric(
        "imap_wal_ring_waits_total",
        "counter",
        "How often a change found the ring full.",
        lambda now: now.ring.waits,
    ),
)
