"""Time and randomness, passed to whatever needs them, so that tests can control them."""

from __future__ import annotations

import os
import random
import time
import uuid
from datetime import UTC, datetime
from typing import Protocol


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
