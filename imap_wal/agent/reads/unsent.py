"""Answers to reads that have not left the agent: their senders and their memory.

A peer may send requests and never read the answers. Its answer stays in memory, so it gets no
second one. When all such answers together take UNSENT_BYTES, no new answer is begun until one has
left. If none leaves, the connection with the oldest answer is closed.
"""

from __future__ import annotations

from imap_wal.agent.bounds import UNSENT_BYTES
from imap_wal.clock import Clock

GRACE_S = 5.0
"""How long an answer may stay unsent while others need its room."""


class Unsent:
    """Counts the unsent answers. Used by the thread of reads. Each answer has its own number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[bytes, tuple[int, int, float]] = {}
        """Sender → number, size and time of its answer; the oldest first."""
        self.bytes = 0

    def __contains__(self, sender: bytes) -> bool:
        return sender in self._answers

    def add(self, sender: bytes, number: int, size: int) -> None:
        self._answers[sender] = number, size, self._clock.monotonic()
        self.bytes += size

    def left(self, sender: bytes, number: int) -> None:
        """This answer has left the agent, or was never sent."""
        if sender in self._answers and self._answers[sender][0] == number:
            self.bytes -= self._answers.pop(sender)[1]

    @property
    def full(self) -> bool:
        return self.bytes >= UNSENT_BYTES

    def stuck(self) -> bytes | None:
        """If `full`: the sender of an answer that has been unsent for too long, or None."""
        sender, (_, _, since) = next(iter(self._answers.items()))
        return sender if self._clock.monotonic() - since >= GRACE_S else None
