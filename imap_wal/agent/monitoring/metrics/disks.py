"""Local disks, and those that only one node sees."""

from __future__ import annotations

from imap_wal.agent.monitoring.metrics.metric import AgentMetric

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
