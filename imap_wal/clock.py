"""Time and randomness, passed to whatever needs them, so that tests can control them."""

from __future__ import annotations

import os
import random
import re
import time
import uuid
from datetime import UTC, datetime
from typing import Protocol

from imap_wal.errors import InvalidSetting
from storage_backends import SegmentStore


class Clock(Protocol):
    """Wall-clock time for timestamps and expiry, and monotonic time for durations."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases."""


class SystemClock:
    """The machine's clocks. `offset_ms` shifts `now_ms`, as a wrongly set clock would."""

    __slots__ = ("_offset_ms",)

    def __init__(self, offset_ms: int = 0) -> None:
        self._offset_ms = offset_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._offset_ms

    def monotonic(self) -> float:
        return time.monotonic()


def utc(milliseconds: int) -> str:
    """2026-11-21T10:00:00.123Z; outside of the years 1 to 9999, @ and the number: an entry may have
    any number."""
    try:
        seconds = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"@{milliseconds}"
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MOMENTS = (
    "2026-11-21T10:00 (UTC), 2026-11-21T10:00+01:00, 15m or 2h (ago), or milliseconds since 1970, "
    "also with an @"
)
"""The forms that `moment_ms` takes, for texts of errors."""


def unix_ms(moment: datetime) -> int:
    """Unix time in milliseconds; without a zone: UTC."""
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def moment_ms(text: str, now_ms: int) -> int:
    """Unix time in milliseconds, of a text in one of the forms of `MOMENTS`. Commands, Spark and
    Python take the same ones. Eight digits are a date. Raises ValueError."""
    text = text.strip()
    number = text.removeprefix("@")
    if number.isdecimal() and (number != text or len(number) != len("20261121")):
        return int(number)
    if ago := DURATION.fullmatch(text):
        return now_ms - round(float(ago[1]) * UNITS_MS[ago[2]])
    return unix_ms(datetime.fromisoformat(text))


class Randomness(Protocol):
    """The source of identities."""

    def token(self) -> bytes:
        """16 random bytes."""

    def name(self) -> str:
        """A random UUID as text."""


class SystemRandomness:
    """Randomness of the operating system."""

    def token(self) -> bytes:
        return os.urandom(16)

    def name(self) -> str:
        return str(uuid.uuid4())


class SeededRandomness:
    """For tests: the same seed gives the same sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self) -> bytes:
        return self._random.randbytes(16)

    def name(self) -> str:
        return str(uuid.UUID(bytes=self._random.randbytes(16), version=4))


# Compares this machine's clock with the storage's. Expiry depends on a clock, so before a machine
# permanently drops expired entries, it measures the difference between the clocks.

SKEW_MS_MAX = 300_000
"""A rewrite is refused if the clocks differ by more; expired entries are kept this much longer."""
PROBE_MS_MAX = 3_600_000
"""A probe file that is older than this was left by a process that died."""


def demand_past(time_ms: int, now_ms: int) -> None:
    """Raises `InvalidSetting` for the moment `time_ms` of a read if it is in the future."""
    if time_ms > now_ms + SKEW_MS_MAX:
        raise InvalidSetting(
            f"as_of {utc(time_ms)} is in the future: the clock of this machine says {utc(now_ms)}"
        )


def storage_now(store: SegmentStore, cluster_folder: str, randomness: Randomness) -> int:
    """Unix time in milliseconds by the storage's clock; 0 if the storage has no modification times.
    Creates an empty file and deletes it."""
    folder = f"{cluster_folder}/clock"
    path = f"{folder}/{randomness.name()}"
    store.create(path, b"")
    try:
        times = {file.path: file.modified_ms for file in store.list(folder)}
    finally:
        store.delete(path)
    now_ms = times.get(path, 0)
    for left, modified_ms in times.items():
        if 0 < modified_ms < now_ms - PROBE_MS_MAX:
            store.delete(left)
    return now_ms


def clock_skew(
    store: SegmentStore, cluster_folder: str, clock: Clock, randomness: Randomness
) -> int | None:
    """The milliseconds by which this machine's clock is ahead of the storage's; negative: it is
    slow. None: the storage has no modification times."""
    before = clock.now_ms()
    stored = storage_now(store, cluster_folder, randomness)
    after = clock.now_ms()
    if not stored:
        return None
    return before - min(stored, before) if stored <= after else after - stored


def demand_clock(
    store: SegmentStore,
    cluster_folder: str,
    clock: Clock,
    randomness: Randomness,
    skew_ms_max: int = SKEW_MS_MAX,
) -> int | None:
    """`clock_skew`. Raises `InvalidSetting` if it exceeds `skew_ms_max`."""
    skew_ms = clock_skew(store, cluster_folder, clock, randomness)
    if skew_ms is not None and abs(skew_ms) > skew_ms_max:
        way = "ahead of" if skew_ms > 0 else "behind"
        raise InvalidSetting(
            f"this machine's clock is {abs(skew_ms) / 1000:,.0f} s {way} the clock of {store.url}, "
            f"more than {skew_ms_max / 1000:,.0f} s: entries with a time to live would "
            "expire too early or too late. Correct the clock of this machine (or of the storage), "
            "or allow the difference with --max-clock-skew; nothing was changed"
        )
    return skew_ms
