"""A queue for requests that take long and have no changes: hello, view, stat, bye. It serves the
connections in turn, so that a flood of such requests does not delay acknowledgements.

While changes arrive, these requests take at most a third of the time: after a request that took t,
the next one begins 2 t later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from imap_wal.agent.bounds import WAITING_BYTES
from imap_wal.agent.room import Room
from imap_wal.agent.transport.router import Message
from imap_wal.clock import Clock

PAUSE = 2
"""The pause after a request, as a multiple of its duration."""
TURN_S = 0.02
"""After this time the loop receives changes again, even if requests wait."""
BUSY_S = 0.1
"""For this time after a change, more changes are expected."""
PAUSE_S_MAX = 0.1
"""The longest pause, even after a request that waited for a slow storage."""


@dataclass(slots=True)
class _Waiting:
    messages: deque[Message]
    bytes: int = 0


class Lane:
    """Used by the serving thread."""

    def __init__(self, clock: Clock, room: Room) -> None:
        self._clock, self._room = clock, room
        self._waiting: dict[bytes, _Waiting] = {}
        """The waiting requests, by sender; the first sender is served next."""
        self._next_at = self._busy_until = 0.0

    def put(self, message: Message) -> bool:
        """Add a request. Returns False if there is no room: each connection may have
        `WAITING_BYTES` waiting, or one larger request, and all connections together what `Room`
        allows."""
        waiting = self._waiting.get(message.sender) or _Waiting(deque())
        if waiting.messages and waiting.bytes + message.memory > WAITING_BYTES:
            return False
        if not self._room.enter(message.memory):
            return False
        waiting.messages.append(message)
        waiting.bytes += message.memory
        self._waiting[message.sender] = waiting
        return True

    def changes(self) -> None:
        """Called when changes arrive."""
        self._busy_until = self._clock.monotonic() + BUSY_S

    def wait_ms(self, most: int) -> int:
        """How many milliseconds, at most `most`, the loop may wait before `take` has a request."""
        if not self._waiting:
            return most
        return min(most, max(0, int(1000 * (self._next_at - self._clock.monotonic()) + 0.999)))

    @property
    def busy(self) -> bool:
        """Whether changes arrive."""
        return self._clock.monotonic() < self._busy_until

    def take(self, *, at_once: bool = False) -> Message | None:
        """The next request, if it is due; `at_once`: even if it is not due."""
        if not self._waiting or (self._clock.monotonic() < self._next_at and not at_once):
            return None
        sender = next(iter(self._waiting))
        waiting = self._waiting.pop(sender)
        message = waiting.messages.popleft()
        waiting.bytes -= message.memory
        self._room.leave(message.memory)
        if waiting.messages:
            self._waiting[sender] = waiting  # after the other connections
        return message

    def took(self, began: float) -> None:
        """The request that was taken last is done; it began at `began`."""
        now = self._clock.monotonic()
        self._next_at = (
            now + min(PAUSE_S_MAX, PAUSE * (now - began)) if now < self._busy_until else now
        )

    def forget(self, sender: bytes) -> None:
        """The connection has ended: drop its requests."""
        if waiting := self._waiting.pop(sender, None):
            self._room.leave(waiting.bytes)
