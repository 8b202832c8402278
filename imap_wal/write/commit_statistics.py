"""What a committer counts."""

from __future__ import annotations

from dataclasses import dataclass

from imap_wal.histogram import Distribution

SYNC_SECONDS_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
COMMIT_BYTES_BOUNDS = (256, 1024, 4096, 16_384, 65_536, 262_144, 2**20, 2**22, 2**24)
"""The ranges in which the times of syncs and the sizes of commits are counted."""


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """Counters since the log was opened. `records`: entries. `sync_seconds`: the time spent in
    syncs. `rotations`: sealed segments. `sync_times`, `commit_sizes`: how many syncs took how many
    seconds, and how many commits wrote how many bytes."""

    commits: int
    records: int
    bytes: int
    syncs: int
    sync_seconds: float
    rotations: int
    sync_times: Distribution
    commit_sizes: Distribution
