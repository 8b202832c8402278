"""What merges of the logs report: how far one is, and what was merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """Progress of a merge, in files and in bytes of storage. `step`: of several that begin at 0
    each, whose `files` are tasks."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    records: int
    step: str = ""

    @property
    def part(self) -> float:
        """The progress from 0 to 1, by bytes."""
        return self.bytes / self.bytes_total if self.bytes_total else 1.0

    def __str__(self) -> str:
        if self.step:
            return f"{self.step}, {self.files} of {self.files_total} tasks"
        return (
            f"{self.part:.0%}, {self.files} of {self.files_total} files, {self.records:,} records"
        )


@dataclass(frozen=True, slots=True)
class MergeStatistics:
    """What a view has merged since it was made, as far as it is known without reading. `merges`:
    how many merges had something to read. `keys`: how many keys have an entry, including
    tombstones; None: not known."""

    merges: int = 0
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """What a view has merged since it was made. `live` and `tombstones` (including expired entries)
    count keys now, `conflicts` those that several nodes claim with the same order
    (`imap_wal.read.newest.rivals`)."""

    records: int
    bytes: int
    live: int
    tombstones: int
    seconds: float
    missing: Mapping[str, str]
    conflicts: int = 0
