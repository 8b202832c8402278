"""How the log gets smaller."""

from __future__ import annotations

from imap_wal.agent.monitoring.metrics.metric import AgentMetric

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
)
