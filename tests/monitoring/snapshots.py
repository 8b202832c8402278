"""What an agent may know about itself, for tests without an agent."""

from __future__ import annotations

from typing import Any

from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.agent.own_disk.uploads import UploadStatistics
from imap_wal.agent.transport.router import ConnectionStatistics
from imap_wal.histogram import Distribution
from imap_wal.read.merge import MergeProgress, MergeStatistics
from imap_wal.rewrite.compaction import CompactionStatistics
from imap_wal.stream.monitoring import StreamSnapshot
from imap_wal.stream.progress import ConsumerProgress, StreamProgress
from imap_wal.worker import WorkerState
from imap_wal.write.committer import CommitStatistics
from imap_wal.write.maintenance import MaintenanceStatistics
from imap_wal.write.ring import RingStatistics
from storage_backends.reserve import DiskState

SYNCS = Distribution((0.001, 0.01), (3, 2, 1), 0.5)
SIZES = Distribution((256, 1024), (4, 3, 0), 1500.0)


OF_MEMBERS = {"io_imapwal_Agent_UnderCopied", "io_imapwal_Agent_CopiedAgain"}
"""Series of members, which an exporter makes of their beans."""


def snapshot(**changes: Any) -> AgentSnapshot:
    """A healthy agent. Every value is known, so that every metric is exported."""
    fields: dict[str, Any] = {
        "namespace": "default",
        "cluster": "eu",
        "node": "n1",
        "durability": "always",
        "epoch": 7,
        "uptime_seconds": 60.0,
        "failure": "",
        "disk_full": False,
        "fenced": False,
        "stopping": False,
        "turn_seconds": 0.1,
        "threads": {"imap-wal-reads": WorkerState(alive=True, error="", failures=2)},
        "appends": 100,
        "duplicates": 4,
        "errors": {"not-ready": 5},
        "commit": CommitStatistics(7, 96, 1500, 6, 0.5, 1, SYNCS, SIZES),
        "ring": RingStatistics(4096, 100, 1024, 50, 3),
        "ring_bytes_max": 1000,
        "maintenance": MaintenanceStatistics(5, 2, "StorageError: full", 3, 1, ""),
        "compaction": CompactionStatistics(),
        "compaction_part": 0.5,
        "lease_age_s": 4.0,
        "connections": ConnectionStatistics(10, 1000, 6),
        "revoked": 1,
        "peers_refused": 8,
        "incarnation": 3,
        "alive": True,
        "absent": ("n3",),
        "compaction_age_s": 3600.0,
        "backup_age_s": 7200.0,
        "unread_bytes": {"lake": 4000},
        "stalled_s": {"lake": 90.0},
        "tables_stalled_s": 0.0,
        "clock_skew_ms": -40,
        "clock_doubt": "",
        "waiting_seconds": 0.0,
        "members": 2,
        "superseded": 1,
        "settling": 0,
        "settling_seconds": 12.5,
        "settling_running_s": 0.0,
        "maps": {"durable": 3, "transient": 1, "unnamed": 0, "structures": 0},
        "ready_timeout_s": 300.0,
        "reads": 12,
        "unmerged_bytes": 900,
        "merged": MergeStatistics(2, 80, 1400, 0.25, 60),
        "merge": MergeProgress(1, 2, 700, 1400, 40),
        "merge_error": "",
        "conflicts": 0,
        "positions": {"n1": "(7, 1, 5, 0)", "n2": "(2, 3, 1, 9)"},
        "disks": {"root": DiskState(900, 1000, 64, 64)},
        "upload": UploadStatistics(5000, 3.5, 7, 70_000, 2, ""),
        "tail_reads": 11,
        "left_out": {},
        "read_from_copies": {},
    }
    return AgentSnapshot(**{**fields, **changes})


def consumer(partition: int, mark: int | None, process: str, failure: str = "") -> ConsumerProgress:
    lag = None if mark is None else 9 - mark
    return ConsumerProgress("c", partition, mark, 9, lag, process, 2, 3, failure, 0.5)


def stream_snapshot(*consumers: ConsumerProgress) -> StreamSnapshot:
    """Of a process that serves."""
    return StreamSnapshot("default", "stream", StreamProgress("one", [9, 9], consumers))
