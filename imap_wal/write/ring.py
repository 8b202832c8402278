"""A bounded ring buffer in the manner of the LMAX Disruptor: several producers, several consumers, sequence numbers.

Every item gets the next sequence number, from 0, and stands in slot `sequence & (slots - 1)`. Each consumer keeps a sequence of its own: what it has consumed. A slot
is free again when the slowest consumer is past it; until then producers wait (backpressure), so nothing is ever overwritten or lost. Besides slots, the bytes
that stand in the ring are bounded.

Python's lock stands where the Disruptor has compare-and-swap: claim and publish are one step, so consumers never see a gap.

A Ctrl-C may raise at any line here. So what must change together changes in one assignment; and the
lock is a plain one, whose `with` has no gap for an interrupt to get between lock and block:
entering a Condition runs Python, and has one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from imap_wal.errors import InvalidSetting

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """A snapshot. `published` is the number of items ever; `waiting` what the slowest consumer has not consumed."""

    slots: int
    published: int
    waiting: int
    waiting_bytes: int
    waits: int
    """How often a producer found the ring full."""


class RingBuffer(Generic[T]):
    """See the module. `slots` is a power of two; an item larger than `bytes_max` is let in when the ring is empty."""

    def __init__(self, slots: int, bytes_max: int = 2**62) -> None:
        if slots < 1 or slots & (slots - 1):
            raise InvalidSetting(f"a ring takes a power of two of slots, not {slots}")
        self._slots: list[T | None] = [None] * slots
        self._sizes = [0] * slots
        self._mask = slots - 1
        self._bytes_max = bytes_max
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._next = 0
        self._free = 0
        self._bytes = 0
        self._waits = 0
        self._sleepers = 0
        self._consumers: list[Consumer[T]] = []

    def consumer(self) -> Consumer[T]:
        """A new consumer; it sees what is published from now on, and holds producers back from now on, until `Consumer.close`."""
        with self._mutex:
            consumer = Consumer(self, self._next)
            self._consumers.append(consumer)
            return consumer

    def try_publish(self, item: T, size: int = 0) -> bool:
        """Put the item (of `size` bytes) in the ring if there is room now."""
        with self._mutex:
            if self._full(size):
                self._release()  # a consumer may have been interrupted between its step and this
                if self._full(size):
                    self._waits += 1
                    return False
            slot = self._next & self._mask
            self._slots[slot] = item
            self._sizes[slot] = size
            self._next, self._bytes = self._next + 1, self._bytes + size
            if self._sleepers:
                self._changed.notify_all()
            return True

    def publish(self, item: T, size: int = 0, timeout: float | None = None) -> bool:
        """The same, waiting for room; False after `timeout` seconds without."""
        while not self.try_publish(item, size):
            with self._mutex:
                if self._full(size) and not self._sleep(timeout):
                    return False
        return True

    def waiting(self) -> list[T]:
        """What was published and not every consumer has consumed, in order."""
        with self._mutex:
            return [self._slots[sequence & self._mask] for sequence in range(self._free, self._next)]  # type: ignore[misc]  # a published slot holds an item

    @property
    def statistics(self) -> RingStatistics:
        with self._mutex:
            return RingStatistics(self._mask + 1, self._next, self._next - self._free, self._bytes, self._waits)

    def _full(self, size: int) -> bool:
        return self._next - self._free > self._mask or bool(self._bytes + size > self._bytes_max and self._bytes)

    def _sleep(self, timeout: float | None) -> bool:
        self._sleepers += 1
        try:
            return self._changed.wait(timeout)
        finally:
            self._sleepers -= 1

    def _release(self) -> None:
        """Free what all consumers are past. Called with the lock held."""
        slowest = min((consumer.sequence for consumer in self._consumers), default=self._next)
        for sequence in range(self._free, slowest):
            slot = sequence & self._mask
            self._slots[slot] = None
            self._free, self._bytes = sequence + 1, self._bytes - self._sizes[slot]
        if self._sleepers:
            self._changed.notify_all()


class Consumer(Generic[T]):
    """One reader of a ring, used by one thread at a time. `sequence` is the first it has not consumed."""

    def __init__(self, ring: RingBuffer[T], sequence: int) -> None:
        self._ring = ring
        self.sequence = sequence

    def ready(self) -> bool:
        return self._ring._next > self.sequence

    def take(self, bytes_max: int = 2**62) -> list[T]:
        """What is ready, in order, up to `bytes_max` (at least one item), without consuming it: `advance` does."""
        ring = self._ring
        with ring._mutex:
            taken: list[T] = []
            size = 0
            for sequence in range(self.sequence, ring._next):
                slot = sequence & ring._mask
                size += ring._sizes[slot]
                if taken and size > bytes_max:
                    break
                taken.append(ring._slots[slot])  # type: ignore[arg-type]  # a published slot holds an item
            return taken

    def advance(self, count: int) -> None:
        """Consume the next `count` items; producers may use their slots again."""
        with self._ring._mutex:
            self.sequence += count
            self._ring._release()

    def wait(self, timeout: float | None = None) -> bool:
        """Until something is ready; False after `timeout` seconds with nothing."""
        with self._ring._mutex:
            return self.ready() or (self._ring._sleep(timeout) and self.ready())

    def close(self) -> None:
        """Hold producers back no longer."""
        with self._ring._mutex:
            if self in self._ring._consumers:
                self._ring._consumers.remove(self)
                self._ring._release()
