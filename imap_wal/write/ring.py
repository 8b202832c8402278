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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from imap_wal.errors import ImapWalError, InvalidSetting, TooLarge
from imap_wal.format import COUNT_MAX, ENTRIES, PAYLOAD_BYTES_MAX, Position


class CommitRequest:
    """One caller's changes. `payload`: a msgpack stream of `count` entries, in pieces. `apply` runs
    when they are acknowledged, in log order and before any caller returns. `session` and `request`
    (its last) are for the duplicate check; 0 for none. `content` has the
    same changes as objects, for the caller."""

    __slots__ = (
        "apply",
        "awaited",
        "content",
        "count",
        "done",
        "error",
        "kind",
        "payload",
        "position",
        "request",
        "session",
        "size",
        "sleeper",
    )

    def __init__(
        self,
        payload: list[bytes],
        count: int,
        apply: Callable[[], None] | None = None,
        kind: int = ENTRIES,
        session: int = 0,
        request: int = 0,
        content: object = None,
    ) -> None:
        """Raises `TooLarge` if no frame can hold it."""
        self.payload, self.count, self.apply, self.kind, self.session, self.request = (
            payload,
            count,
            apply,
            kind,
            session,
            request,
        )
        self.content = content
        self.size = sum(map(len, payload))
        if self.size > PAYLOAD_BYTES_MAX or count > COUNT_MAX:
            raise TooLarge(
                f"one commit has {count} changes in {self.size} bytes; it may have at most "
                f"{COUNT_MAX} changes, and must be below 2 GiB: split it"
            )
        self.done = False
        self.awaited = False
        """A thread sleeps on it, or is about to check whether it must."""
        self.error: ImapWalError | None = None
        self.position: Position | None = None
        self.sleeper: threading.Lock | None = None

    def wake(self) -> None:
        """Wake the thread that waits for this batch, if there is one. Safe to call twice."""
        sleeper = self.sleeper
        if sleeper is not None and sleeper.locked():
            try:
                sleeper.release()
            except RuntimeError:
                pass  # another thread woke it between the two lines

    def result(self) -> Position:
        """The position of the first entry, or the error."""
        if self.error is not None:
            raise self.error
        assert self.position is not None
        return self.position


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
            if self._next - self._free > self._mask or self._bytes + size > self._bytes_max:
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
            return [item for item in slots if item is not None]  # None: `_release` was interrupted

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
            start, stop, slots = self.sequence & self._mask, self._next & self._mask, self._slots
            # A published slot has an item.
            ready = cast("list[T]", slots[start:stop])
            if start >= stop and self._next > self.sequence:
                ready = cast("list[T]", slots[start:] + slots[:stop])
            if self._bytes <= bytes_max:
                return ready
            size = 0
            for count in range(len(ready)):
                size += self._sizes[(start + count) & self._mask]
                if count and size > bytes_max:
                    return ready[:count]
            return ready

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
        size, slots, sizes, mask = 0, self._slots, self._sizes, self._mask
        for number in range(self._free, self.sequence):
            slots[number & mask] = None
            size += sizes[number & mask]
        self._free, self._bytes = self.sequence, self._bytes - size


Wake = Callable[[], object]


class CommitSignal:
    """The end of the log at the last acknowledged commit. Thread-safe. `position`: the end now."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.ended = False
        """The log was closed: there will be no more commits."""
        self._waiting: dict[object, Wake] = {}

    def reached(self, position: Position) -> None:
        """A commit up to there was acknowledged."""
        self.position = position
        if self._waiting:
            self.wake()

    def end(self) -> None:
        """The log was closed."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Call all that wait, once."""
        while self._waiting:
            with suppress(KeyError):  # another thread took the last one
                self._waiting.popitem()[1]()

    def add(self, wake: Wake) -> Callable[[], None]:
        """Call `wake` at the next commit. Returns a function that cancels this."""
        key = object()
        self._waiting[key] = wake

        def cancel() -> None:
            self._waiting.pop(key, None)

        return cancel

    def wait(
        self, seen: Position, seconds: float | None, stop: threading.Event | None = None
    ) -> None:
        """Return when there is a commit after `seen`, the log is closed, or `stop` is set: whoever
        sets it calls `wake`. Or after `seconds`; None: no limit."""
        woken = threading.Event()
        cancel = self._add(woken.set)  # before the look, so that no commit is missed
        try:
            if self._is_last(seen) and not (stop is not None and stop.is_set()):
                woken.wait(seconds)
        finally:
            cancel()

    async def wait_async(self, seen: Position, seconds: float) -> None:
        """The same in a task."""
        import asyncio  # most programs need none

        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(woken.set)

        cancel = self._add(wake)
        try:
            if self._is_last(seen):
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), seconds)
        finally:
            cancel()

    def _is_last(self, seen: Position) -> bool:
        return self.position == seen and not self.ended

    def _add(self, wake: Wake) -> Callable[[], None]:
        """Call `wake` at the next commit. Returns a function that cancels this."""
        key = object()
        self._waiting[key] = wake
        return lambda: self._waiting.pop(key, None) and None
