"""Answers to reads that have not left the agent: how much they take, and whose they are.

A peer may ask and never read. Its answer stays in memory, so it gets no second one, and when all
such answers together take UNSENT_BYTES, no answer is begun until one has left. If none does, the
connection whose answer is the oldest is closed.
"""

from __future__ import annotations

from collections.abc import Callable

from imap_wal.agent.bounds import UNSENT_BYTES
from imap_wal.clock import Clock

GRACE_S = 5.0
"""How long an answer may be under way while others need its room."""


class Payload(bytearray):
    """The payload of an answer. It calls `released` when its memory is free, which may be on any
    thread."""

    def __init__(self, released: Callable[[], None]) -> None:
        super().__init__()
        self._released = released

    def __del__(self) -> None:
        self._released()


class Unsent:
    """Used by the thread of reads. Each answer has a number of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[bytes, tuple[int, int, float]] = {}
        """Sender → number and size of its answer, and since when; the oldest first."""
        self.bytes = 0

    def __contains__(self, sender: bytes) -> bool:
        return sender in self._answers

    def add(self, sender: bytes, number: int, size: int) -> None:
        self._answers[sender] = number, size, self._clock.monotonic()
        self.bytes += size

    def left(self, sender: bytes, number: int) -> None:
        """Also of an answer that was never sent."""
        if sender in self._answers and self._answers[sender][0] == number:
            self.bytes -= self._answers.pop(sender)[1]

    @property
    def full(self) -> bool:
        return self.bytes >= UNSENT_BYTES

    def stuck(self) -> bytes | None:
        """While it is full: whose answer is under way for too long."""
        sender, (_, _, since) = next(iter(self._answers.items()))
        return sender if self._clock.monotonic() - since >= GRACE_S else None
