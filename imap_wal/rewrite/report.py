"""The reports of rewrite, prune and drop: plain values, for tables and JSON. Bytes are sizes on
storage, unless the name says otherwise."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imap_wal.format import Position
from imap_wal.publish.recorded import RewrittenTable
from imap_wal.retention.kept import KeptFor
from imap_wal.retention.snapshots import Unfinished


@dataclass(frozen=True, slots=True)
class Winner:
    """A key in conflict that was decided: the change of `node` counts. `over`: the nodes of the
    other changes. `key`: the beginning of the key, as shown to people."""

    key: str
    node: str
    timestamp_ms: int
    deleted: bool
    over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MapRewrite:
    """One map of a rewrite. `records_read`: from logs and the former snapshot; of these, `dropped`
    were replaced by newer ones, permanently deleted or expired. `bytes_before`: the size of the map
    in segments, archives and the former snapshot. `unchanged`: nothing was written since the former
    snapshot."""

    map: str
    records_read: int
    live: int
    tombstones: int
    bytes_before: int
    bytes_after: int
    generation: int
    files: tuple[str, ...] = ()
    unchanged: bool = False
    conflicts: int = 0
    """Keys in conflict that were decided."""
    winners: tuple[Winner, ...] = ()
    """The first of them."""
    undecided: int = 0
    """Keys in conflict that were not decided: all claims are kept."""
    set_aside: str = ""
    """The file with the losing claims."""
    records_kept: int = 0
    """Records in files of the former snapshot that were kept without reading them."""
    bytes_written: int = 0
    """The size of the new files."""

    @property
    def dropped(self) -> int:
        return max(self.records_read + self.records_kept - self.live - self.tombstones, 0)

    @property
    def saved_bytes(self) -> int:
        """The space that `prune` can free afterwards."""
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step of a rewrite whose tasks run on other machines. A task that was tried again counts
    once. `bytes_read`, `bytes_written`: between tasks and the storage, including what a task reads
    again to check it. `memory_max_bytes`: the largest resident memory of a process that ran a
    task."""

    step: str
    tasks: int
    seconds: float
    records_read: int
    bytes_read: int
    records_written: int
    bytes_written: int
    memory_max_bytes: int


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """A rewrite of one cluster; with `dry_run`, not published. `covered`: the low-water mark of
    each node. `missing`: node → why its log was not read. `memory_max_bytes`: of this process.
    `clock_skew_ms`: how far this machine's clock is ahead of the storage's; None: not measured, or
    the storage has no modification times. `steps`: of an engine that has tasks."""

    namespace: str
    cluster: str
    engine: str
    maps: tuple[MapRewrite, ...]
    covered: Mapping[str, Position]
    missing: Mapping[str, str]
    records_read: int
    seconds: float
    memory_max_bytes: int
    dry_run: bool
    clock_skew_ms: int | None = None
    steps: tuple[StepReport, ...] = ()
    tables: tuple[RewrittenTable, ...] = ()
    """The tables that are published at the end of each rewrite."""

    @property
    def records_per_second(self) -> float:
        return self.records_read / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What was removed, or with `dry_run` would be. `segments`, `archives`, `snapshot_files` and
    `backfill_files` (what ended backfills left) are paths. `skipped`: node → why it was skipped.
    `kept`: what is kept for readers. `unfinished`: what is kept because a rewrite may be
    running."""

    namespace: str
    cluster: str
    segments: tuple[str, ...]
    archives: tuple[str, ...]
    snapshot_files: tuple[str, ...]
    backfill_files: tuple[str, ...]
    bytes: int
    skipped: Mapping[str, str]
    dry_run: bool
    kept: tuple[KeptFor, ...] = ()
    unfinished: Unfinished | None = None


@dataclass(frozen=True, slots=True)
class DropReport:
    """A map that was dropped. `covered`: node → the position up to which its entries were dropped;
    the next prune removes them from the logs."""

    map: str
    generation: int
    covered: Mapping[str, Position]


def memory_max_bytes() -> int:
    """The largest resident memory of this process so far."""
    with suppress(OSError), Path("/proc/self/status").open(encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # Where there is no other: it begins with what the parent had when it made this process.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
