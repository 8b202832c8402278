"""What verification finds about a file, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from imap_wal.clock import Clock
from imap_wal.errors import LogError, UnsupportedVersion
from imap_wal.inspect.advice import advice
from imap_wal.segment import verdict as verdicts

CLEAN, TORN, CORRUPT, UNSUPPORTED = (
    verdicts.CLEAN,
    verdicts.TORN,
    verdicts.CORRUPT,
    verdicts.UNSUPPORTED,
)
CONFLICT = "conflict"
ADVICE = "bring the file back from a copy, or write a repaired copy of the log: imap-wal repair"
CUT = "the next start cuts it off"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding about one file. `offset`: of the first byte that is not whole. `first_lost`,
    `last_lost`: positions of the first and last entry that cannot be read. `frames_after`: whole
    frames after the damage. `lost_records`: the number of entries that cannot be read. None in any
    of them: unknown."""

    file: str
    kind: str
    status: str
    bytes: int = 0
    records: int = 0
    offset: int | None = None
    first_lost: str | None = None
    last_lost: str | None = None
    frames_after: int | None = None
    lost_records: int | None = None
    what: str = ""
    advice: str = ""
    unopened: bool = False
    """The file is encrypted and its key is missing: only its checksums were verified."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Unit:
    """One file to read. `age`: the number of newer files of the same kind and node."""

    file: str
    bytes: int
    kind: str
    age: int
    run: Callable[[Deadline], Finding]


class OutOfTime(Exception):
    """The deadline has passed: the file being read does not count as checked."""


class Deadline:
    """The time limit of a verification, in seconds; None: no limit."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock.monotonic() + seconds

    def check(self) -> None:
        """Raise `OutOfTime` if the time has passed."""
        if self._end is not None and self._clock.monotonic() >= self._end:
            raise OutOfTime


def damaged(file: str, kind: str, size: int, error: LogError, lost: str | None) -> Finding:
    """The finding for a reader's error."""
    status = UNSUPPORTED if isinstance(error, UnsupportedVersion) else CORRUPT
    return Finding(
        file, kind, status, size, 0, error.offset, lost, what=error.what, advice=advice(error)
    )
