"""Who is connected: counts the connections that libzmq accepts, refuses those above a number, and
tells which are gone.

libzmq has no limit of connections. It reports each one that it accepts or loses, and this thread
shuts the socket of one that is too many; libzmq then closes it as if the peer had left. It does not
depend on the agent's loop, which may be in a sync.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from imap_wal.agent.lines import Lines
from imap_wal.clock import Clock
from imap_wal.worker import Worker

GREETING_S = 1.0
"""While there are too many, the oldest connection that has said no hello for this time makes
room."""
CLOSED_S = 0.02
"""libzmq reports an end shortly before it closes the descriptor. If the connection is still there
after this time, the report was about an earlier one on the same descriptor."""
SWEEP_S = 1.0
"""How often all connections are looked at, while there are too many: libzmq does not report each
end."""


@dataclass(frozen=True, slots=True)
class Event:
    """libzmq accepted, or lost, the connection on the descriptor `fd`."""

    accepted: bool
    fd: int


class Ended(Exception):
    """There are no more events."""


@dataclass(slots=True)
class _Known:
    """An open connection. `inode`: its socket's, as the number `fd` is used again. `sender`: by
    which name its messages came; b"": none came. `greeted`: its hello was accepted. `reported`:
    when its end was."""

    fd: int
    inode: int
    since: float
    sender: bytes = b""
    greeted: bool = False
    reported: float = 0.0


@dataclass(frozen=True, slots=True)
class DoorStatistics:
    """`refused`: connections that were too many, or that broke the protocol."""

    open: int
    most: int
    refused: int


class Door:
    """`next_event` waits for an event for a moment, None: there was none; `Ended`. `place`: where
    libzmq listens, as `getsockname` gives it for each accepted connection: a path, or a port."""

    def __init__(
        self,
        next_event: Callable[[], Event | None],
        place: str | int,
        most: int,
        clock: Clock,
        lines: Lines,
    ) -> None:
        self._next_event, self._place, self._most, self._clock, self._lines = (
            next_event,
            place,
            most,
            clock,
            lines,
        )
        self._mutex = threading.Lock()
        self._open: dict[int, _Known] = {}
        self._by_sender: dict[bytes, _Known] = {}
        self._gone: list[bytes] = []
        self._ending: deque[_Known] = deque()
        self._refused, self._swept = 0, -SWEEP_S
        # To look at a socket takes a descriptor, also when there is none left.
        self._nothing, self._spare = (
            os.open(os.devnull, os.O_RDONLY),
            os.open(os.devnull, os.O_RDONLY),
        )
        self.worker = Worker("imap-wal-door", self._turn)

    # ---- its own thread ----

    def _turn(self, worker: Worker) -> bool:
        try:
            event = self._next_event()
        except Ended:
            worker.stopping.set()
            return False
        with self._mutex:
            if event is None:
                self._settle()
                return False
            if event.accepted:
                self._enter(event.fd)
            elif (known := self._open.get(event.fd)) is not None:
                known.reported = self._clock.monotonic()
                self._ending.append(known)
            self._settle(CLOSED_S)
        return True

    def _settle(self, after: float = 0.0) -> None:
        """Drop the connections whose end was reported so long ago."""
        until = self._clock.monotonic() - after
        while self._ending and self._ending[0].reported <= until:
            known = self._ending.popleft()
            if self._open.get(known.fd) is known and self._inode(known.fd) != known.inode:
                self._leave(known.fd)

    def _enter(self, fd: int) -> None:
        known = self._admit(fd)
        if known is None or len(self._open) <= self._most:
            return
        self._settle()
        now = self._clock.monotonic()
        if len(self._open) > self._most and now - self._swept >= SWEEP_S:
            self._swept = now
            for each in list(self._open.values()):
                if self._inode(each.fd) != each.inode:
                    self._leave(each.fd)
        if len(self._open) > self._most:
            before = now - GREETING_S
            silent = next(
                (each for each in self._open.values() if not each.greeted and each.since < before),
                known,
            )
            self._shut(silent)
            self._lines.warning("too many connections", most=self._most, refused=self._refused)

    def _admit(self, fd: int) -> _Known | None:
        """The connection that is on this descriptor now; None: it is closed already."""
        inode, known = self._inode(fd), self._open.get(fd)
        if known is not None and known.inode == inode:
            return known
        if known is not None:
            self._leave(fd)
        if not inode:
            return None
        known = self._open[fd] = _Known(fd, inode, self._clock.monotonic())
        return known

    def _leave(self, fd: int) -> None:
        known = self._open.pop(fd, None)
        if known is not None and known.sender:
            self._by_sender.pop(known.sender, None)
            self._gone.append(known.sender)

    def _shut(self, known: _Known) -> None:
        """libzmq closes it then."""
        self._refused += 1
        self._inode(known.fd, shut=known.inode)
        self._leave(known.fd)

    def _inode(self, fd: int, shut: int = 0) -> int:
        """The inode of the socket of an accepted connection; 0: this descriptor is none any more.
        `shut`: shut it if it has this inode. It looks at a duplicate, as libzmq may close the
        descriptor at any time."""
        try:
            os.dup2(fd, self._spare, inheritable=False)
        except OSError:
            return 0
        try:
            with socket.socket(fileno=self._spare) as found:
                try:
                    name = found.getsockname()
                    if (name[1] if isinstance(name, tuple) else name) != self._place:
                        return 0
                    inode = os.fstat(self._spare).st_ino
                    if inode == shut:
                        with suppress(OSError):  # its peer is gone
                            found.shutdown(socket.SHUT_RDWR)
                    return inode
                finally:
                    found.detach()
        except OSError:
            return 0
        finally:
            os.dup2(self._nothing, self._spare, inheritable=False)

    # ---- the serving thread, and reads ----

    def met(self, sender: bytes, fd: int) -> bool:
        """A first message of `sender` came on this descriptor. Whether its connection is still
        open."""
        with self._mutex:
            known = self._admit(fd)
            if known is None:
                return False
            if known.sender and known.sender != sender:
                if not _later(sender, known.sender):
                    return False  # a message of a closed connection, whose descriptor is used again
                self._by_sender.pop(known.sender, None)
                self._gone.append(known.sender)
                known.greeted = False
            known.sender = sender
            self._by_sender[sender] = known
            return True

    def greeted(self, sender: bytes) -> None:
        """Its hello was accepted: it is not the first to make room."""
        with self._mutex:
            if known := self._by_sender.get(sender):
                known.greeted = True

    def shut(self, sender: bytes, why: str) -> None:
        """Disconnect it."""
        with self._mutex:
            if known := self._by_sender.get(sender):
                self._lines.warning("connection closed", why, reason=why)
                self._shut(known)

    def gone(self) -> list[bytes]:
        """The senders whose connections have ended since the last call."""
        with self._mutex:
            found, self._gone = self._gone, []
            return found

    @property
    def statistics(self) -> DoorStatistics:
        with self._mutex:
            return DoorStatistics(len(self._open), self._most, self._refused)

    def close(self) -> None:
        """After its thread has ended."""
        for each in (self._nothing, self._spare):
            os.close(each)


def _later(sender: bytes, other: bytes) -> bool:
    """Of two names that libzmq gave, which is the later: a zero byte and a counter."""
    return 0 < (int.from_bytes(sender[1:]) - int.from_bytes(other[1:])) % 2**32 < 2**31
