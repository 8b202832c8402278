"""What a committer counts."""

from __future__ import annotations

from dataclasses import dataclass

from imap_wal.histogram import Distribution, Exemplar, Histogram

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


class CommitCounts:
    """The numbers themselves. One thread at a time counts; any thread may call `statistics`."""

    __slots__ = ("_commit_sizes", "_sync_times", "commits", "last_sync", "records", "rotations")

    def __init__(self) -> None:
        self.commits = self.records = self.rotations = 0
        self.last_sync = (0.0, 0.0)
        """When the last sync began (monotonic), and its seconds. For the thread that commits."""
        self._sync_times = Histogram(SYNC_SECONDS_BOUNDS)
        self._commit_sizes = Histogram(COMMIT_BYTES_BOUNDS)

    def committed(self, size: int) -> None:
        """A commit wrote so many bytes."""
        self.commits += 1
        self._commit_sizes.add(size)

    def synced(self, start: float, seconds: float) -> None:
        self._sync_times.add(seconds)
        self.last_sync = start, seconds

    def exemplify_sync(self, trace_id: str, at_s: float) -> None:
        """Record that the last sync is a part of this trace. For the thread that commits."""
        self._sync_times.exemplify(Exemplar(trace_id, self.last_sync[1], at_s))

    def statistics(self, bytes_written: int) -> CommitStatistics:
        times, sizes = self._sync_times.snapshot(), self._commit_sizes.snapshot()
        return CommitStatistics(
            self.commits,
            self.records,
            bytes_written,
            times.count,
            times.sum,
            self.rotations,
            times,
            sizes,
        )
