"""Requests that take long and have no changes: hello, view, stat, bye. They wait here, one after
the other from each connection, so that a flood of them does not delay the acknowledgements of
others.

While changes arrive, these requests take at most a third of the time: after one that took t, the
next begins 2 t later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from imap_wal.agent.bounds import WAITING_BYTES
from imap_wal.agent.room import Room
from imap_wal.agent.transport.router import Message
from imap_wal.clock import Clock

PAUSE = 2
"""The pause after a request, in times of its duration."""
TURN_S = 0.02
"""After so long the loop looks for changes again, whatever waits in the lane."""
BUSY_S = 0.1
"""Changes arrive: one did within this time."""
PAUSE_S_MAX = 0.1
"""One request that waits for a slow storage does not keep the others out for longer."""


@dataclass(slots=True)
class _Waiting:
    messages: deque[Message]
    bytes: int = 0


class Lane:
    """Used by the serving thread."""

    def __init__(self, clock: Clock, room: Room) -> None:
        self._clock, self._room = clock, room
        self._waiting: dict[bytes, _Waiting] = {}
        """By the sender; the first is served next."""
        self._next_at = self._busy_until = 0.0

    def put(self, message: Message) -> bool:
        """Whether there is room for it: so many bytes of one connection may wait, or one request,
        as far as there is room for those of all connections."""
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
        """Changes arrived now."""
        self._busy_until = self._clock.monotonic() + BUSY_S

    def wait_ms(self, most: int) -> int:
        """How long the loop may wait for messages before `take` has something."""
        if not self._waiting:
            return most
        return min(most, max(0, int(1000 * (self._next_at - self._clock.monotonic()) + 0.999)))

    @property
    def busy(self) -> bool:
        """Whether changes arrive."""
        return self._clock.monotonic() < self._busy_until

    def take(self, *, at_once: bool = False) -> Message | None:
        """The next request, if it is time for one."""
        if not self._waiting or (self._clock.monotonic() < self._next_at and not at_once):
            return None
        sender = next(iter(self._waiting))
        waiting = self._waiting.pop(sender)
        message = waiting.messages.popleft()
        waiting.bytes -= message.memory
        self._room.leave(message.memory)
        if waiting.messages:
            self._waiting[sender] = waiting  # after those of the other connections
        return message

    def took(self, began: float) -> None:
        """The request that was taken last is done."""
        now = self._clock.monotonic()
        self._next_at = (
            now + min(PAUSE_S_MAX, PAUSE * (now - began)) if now < self._busy_until else now
        )

    def forget(self, sender: bytes) -> None:
        """Its connection is gone."""
        if waiting := self._waiting.pop(sender, None):
            self._room.leave(waiting.bytes)
