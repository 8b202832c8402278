"""Hellos whose answers need a look at the signs of other agents: they are kept until the look is
done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from imap_wal.agent.room import Room
from imap_wal.agent.transport.router import Message
from imap_wal.clock import Clock

LOOK_S = 1.0
"""A hello that claims the log waits for a look at most for this time, which is shorter than the
wait of a plug-in."""


@dataclass(frozen=True, slots=True)
class KeptHello:
    """A hello whose answer depends on look `number`. `until`: when it is answered at the latest
    (monotonic seconds)."""

    message: Message
    number: int
    until: float


class KeptHellos:
    """At most one of each connection. Used by the serving thread."""

    def __init__(self, clock: Clock, room: Room) -> None:
        self._clock, self._room = clock, room
        self._kept: dict[bytes, KeptHello] = {}
        """By sender."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def __contains__(self, sender: bytes) -> bool:
        return sender in self._kept

    def __iter__(self) -> Iterator[KeptHello]:
        return iter(list(self._kept.values()))

    def is_late(self, hello: KeptHello) -> bool:
        """Whether it has waited for too long."""
        return self._clock.monotonic() >= hello.until

    def keep(self, message: Message, number: int, before: KeptHello | None) -> bool:
        """Keep a hello until the look with this number has ended. `before`: how it was kept until
        now. False if requests of other connections use all the memory."""
        if not self._room.enter(message.memory):
            return False
        until = self._clock.monotonic() + LOOK_S if before is None else before.until
        self._kept[message.sender] = KeptHello(message, number, until)
        return True

    def take(self, sender: bytes) -> KeptHello | None:
        """Remove and return the hello of this connection; None: there is none."""
        hello = self._kept.pop(sender, None)
        if hello is not None:
            self._room.leave(hello.message.memory)
        return hello

    def take_all(self) -> list[Message]:
        """Remove and return all of them."""
        return [hello.message for hello in self if self.take(hello.message.sender)]

    def take_due(self, looked: Callable[[int], bool]) -> Iterator[KeptHello]:
        """Remove and return, one after the other, those whose look is done, and those that have
        waited for too long."""
        for hello in self:
            if looked(hello.number) or self.is_late(hello):
                self.take(hello.message.sender)
                yield hello
