"""What a rewrite, a prune and a drop did: plain values, for tables and JSON alike. Bytes are on
storage unless a name says otherwise."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from imap_wal.format import Position


@dataclass(frozen=True, slots=True)
class MapRewrite:
    """One map of a rewrite. `records_read` from logs and the former snapshot; `dropped` of them
    were superseded, deleted for good or expired. `bytes_before`: what the map takes in segments,
    archives and the former snapshot. `unchanged`: nothing was written since the former snapshot."""

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
    """Keys that two nodes claimed, and that were decided."""
    undecided: int = 0
    """Keys that two nodes claim, and that were not decided: all claims are kept."""
    set_aside: str = ""
    """The file that holds the claims that lost."""

    @property
    def dropped(self) -> int:
        return max(self.records_read - self.live - self.tombstones, 0)

    @property
    def saved_bytes(self) -> int:
        """What `prune` can give back afterwards."""
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """A rewrite of one cluster, published or (`dry_run`) only tried. `covered` is the low-water
    mark of each node. `clock_skew_ms`: by how much this machine's clock is ahead of the storage's;
    None where it was not looked, or the storage does not tell."""

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

    @property
    def records_per_second(self) -> float:
        return self.records_read / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What was removed, or (`dry_run`) would be. `segments`, `archives`, `snapshot_files` are
    paths."""

    namespace: str
    cluster: str
    segments: tuple[str, ...]
    archives: tuple[str, ...]
    snapshot_files: tuple[str, ...]
    bytes: int
    skipped: Mapping[str, str]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class DropReport:
    """A map that was forgotten. `records` and `bytes` of its former snapshot; its entries in logs
    go with the next prune."""

    map: str
    generation: int
    covered: Mapping[str, Position]


def memory_max_bytes() -> int:
    """The most memory this process ever had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
