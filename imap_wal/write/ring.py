"""A bounded ring buffer like the LMAX Disruptor: several producers, one consumer, sequence numbers.

Every item gets the next sequence number, from 0, and the slot `sequence & (slots - 1)`. The
consumer has its own sequence: the number of consumed items. A slot is free again when the consumer
has passed it. Until then a producer is refused (backpressure), so nothing is overwritten or lost.
The bytes in the ring are limited too.

Python's lock replaces the Disruptor's compare-and-swap: claim and publish are one step, so the
consumer never sees a gap.

A Ctrl-C may raise at any line here. So values that belong together change in one assignment, and
the lock is a plain one, whose `with` has no gap between lock and block.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from imap_wal.errors import InvalidSetting

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """Counters of a ring. `published`: all items so far; `waiting`: those that are not consumed."""

    slots: int
    published: int
    waiting: int
    waiting_bytes: int
    waits: int
    """The number of times that a producer found the ring full."""


class RingBuffer(Generic[T]):
    """See the module's docstring. `slots` is a power of two. An item larger than `bytes_max` enters
    only an empty ring. `ready`, `take` and `advance` are for the consumer: one thread at a
    time."""

    def __init__(self, slots: int, bytes_max: int = 2**62) -> None:
        if slots < 1 or slots & (slots - 1):
            raise InvalidSetting(
                f"the number of slots of a ring must be a power of two, not {slots}"
            )
        self._slots: list[T | None] = [None] * slots
        self._sizes = [0] * slots
        self._mask = slots - 1
        self._bytes_max = bytes_max
        self._mutex = threading.Lock()
        self.sequence = 0
        """The first unconsumed item."""
        self._next = 0
        self._free = 0
        self._bytes = 0
        self._waits = 0

    # ---- producers ----

    def try_publish(self, item: T, size: int = 0) -> bool:
        """Put the item (of `size` bytes) in the ring if there is room now."""
        with self._mutex:
            if self._full(size):
                self._release()  # the consumer may have been interrupted before it did so
                if self._full(size):
                    self._waits += 1
                    return False
            slot = self._next & self._mask
            self._slots[slot] = item
            self._sizes[slot] = size
            self._next, self._bytes = self._next + 1, self._bytes + size
            return True

    def waiting(self) -> list[T]:
        """The published items that are not consumed, in order."""
        with self._mutex:
            slots = [self._slots[number & self._mask] for number in range(self._free, self._next)]
            return cast("list[T]", slots)  # a published slot has an item

    @property
    def statistics(self) -> RingStatistics:
        with self._mutex:
            return RingStatistics(
                self._mask + 1, self._next, self._next - self._free, self._bytes, self._waits
            )

    # ---- the consumer ----

    def ready(self) -> bool:
        """Whether there is an item to take."""
        return self._next > self.sequence

    def take(self, bytes_max: int = 2**62) -> list[T]:
        """The ready items, in order, up to `bytes_max` (at least one), without consuming them:
        `advance` does that."""
        with self._mutex:
            taken: list[T] = []
            size = 0
            for sequence in range(self.sequence, self._next):
                slot = sequence & self._mask
                size += self._sizes[slot]
                if taken and size > bytes_max:
                    break
                taken.append(self._slots[slot])  # type: ignore[arg-type]  # a published slot has an item
            return taken

    def advance(self, count: int) -> None:
        """Consume the next `count` items; producers may reuse their slots."""
        with self._mutex:
            self.sequence += count
            self._release()

    # ---- with the lock held ----

    def _full(self, size: int) -> bool:
        return self._next - self._free > self._mask or bool(
            self._bytes + size > self._bytes_max and self._bytes
        )

    def _release(self) -> None:
        """Free the slots that the consumer has passed."""
        for sequence in range(self._free, self.sequence):
            slot = sequence & self._mask
            self._slots[slot] = None
            self._free, self._bytes = sequence + 1, self._bytes - self._sizes[slot]
