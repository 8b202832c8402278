"""Counts the connections that libzmq accepts, closes those above a limit, and reports those that
have ended.

libzmq has no limit of connections. It reports each connection that it accepts or loses. For one
above the limit, this thread shuts down the socket, and libzmq closes it as if the peer had left. It
has its own thread, because the agent's loop may wait for a sync.
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
from imap_wal.agent.transport.router import ConnectionStatistics
from imap_wal.clock import Clock
from imap_wal.worker import Worker

GREETING_S = 1.0
"""Above the limit, the oldest connection that has not said hello within this time is closed."""
CLOSED_S = 0.02
"""libzmq reports an end shortly before it closes the descriptor. If the connection still exists
after this time, the report was about an earlier one on the same descriptor."""
SWEEP_S = 1.0
"""How often all connections are checked while there are too many: libzmq does not report every
end."""

SILENT = (
    "its connection ended before a request: it was refused, it has no key or a wrong key for the "
    "agent, or it only checked whether an agent listens"
)


@dataclass(frozen=True, slots=True)
class SocketEvent:
    """libzmq has accepted or lost the connection on the descriptor `fd`."""

    accepted: bool
    fd: int


class Ended(Exception):
    """There are no more events."""


@dataclass(slots=True)
class _Known:
    """An open connection. `inode`: of its socket, because the number `fd` is reused. `since`: when
    it was accepted. `address`: the peer's; "": it has none. `sender`: the routing id of its
    messages; b"": none has arrived. `greeted`: its hello was accepted. `reported`: when libzmq
    reported its end. Times are monotonic seconds."""

    fd: int
    inode: int
    since: float
    address: str = ""
    sender: bytes = b""
    greeted: bool = False
    reported: float = 0.0


class ConnectionLimiter:
    """Counts and closes connections. `next_event` waits briefly for an event; it returns None if
    there was none, and raises `Ended`. `port`: where libzmq listens. `connections_max`: the
    limit. `has_keys`: a peer without the right keys cannot send a message, and libzmq does
    not ask the gate about it; its end is reported here."""

    def __init__(
        self,
        next_event: Callable[[], SocketEvent | None],
        port: int,
        connections_max: int,
        clock: Clock,
        lines: Lines,
        *,
        has_keys: bool = False,
    ) -> None:
        self._next_event, self._port, self._connections_max, self._clock, self._lines = (
            next_event,
            port,
            connections_max,
            clock,
            lines,
        )
        self._has_keys = has_keys
        self._mutex = threading.Lock()
        self._open: dict[int, _Known] = {}
        self._shut_down: dict[int, int] = {}
        """The inodes of sockets that were shut down, by descriptor: libzmq closes them a little
        later, and may first deliver messages that it had received."""
        self._by_sender: dict[bytes, _Known] = {}
        self._gone: list[bytes] = []
        self._ending: deque[_Known] = deque()
        self._refused, self._swept = 0, -SWEEP_S
        # Examining a socket needs a descriptor; reserve one for when none is left.
        self._nothing, self._spare = (
            os.open(os.devnull, os.O_RDONLY),
            os.open(os.devnull, os.O_RDONLY),
        )
        self.worker = Worker("imap-wal-connections", self._turn)

    # ---- its thread ----

    def _turn(self, worker: Worker) -> bool:
        try:
            event = self._next_event()
        except Ended:
            worker.stopping.set()
            return False
        with self._mutex:
            if event is None:
                self._remove_ended()
                return False
            if event.accepted:
                self._enter(event.fd)
            elif (connection := self._open.get(event.fd)) is not None:
                connection.reported = self._clock.monotonic()
                self._ending.append(connection)
            self._remove_ended(CLOSED_S)
        return True

    def _remove_ended(self, after: float = 0.0) -> None:
        """Remove the ended connections that were reported at least `after` seconds ago."""
        until = self._clock.monotonic() - after
        while self._ending and self._ending[0].reported <= until:
            connection = self._ending.popleft()
            if (
                self._open.get(connection.fd) is connection
                and self._inode(connection.fd) != connection.inode
            ):
                self._leave(connection.fd)

    def _enter(self, fd: int) -> None:
        former = self._open.get(fd)
        connection = self._admit(fd)
        if connection is None:
            if former is None and fd not in self._shut_down:
                self._report_silent("")  # it ended before this thread examined it
        elif connection is not former:
            self._make_room(connection)

    def _make_room(self, new: _Known) -> bool:
        """If there are too many connections, close one that has ended, one that is silent, or the
        new one. Returns whether the new one is still open. The thread that first learns of a
        connection calls this: libzmq may deliver a hello before it reports the connection, and a
        connection whose hello was accepted is not closed."""
        if len(self._open) <= self._connections_max:
            return True
        self._remove_ended()
        now = self._clock.monotonic()
        if len(self._open) > self._connections_max and now - self._swept >= SWEEP_S:
            self._swept = now
            for other in list(self._open.values()):
                if self._inode(other.fd) != other.inode:
                    self._leave(other.fd)
        if len(self._open) > self._connections_max:
            before = now - GREETING_S
            silent = next(
                (
                    other
                    for other in self._open.values()
                    if not other.greeted and other.since < before
                ),
                new,
            )
            self._shut(silent)
            self._lines.warning(
                "too many connections", most=self._connections_max, refused=self._refused
            )
        return self._open.get(new.fd) is new

    def _admit(self, fd: int) -> _Known | None:
        """The current connection on this descriptor; None: it is closed, or was shut down."""
        (inode, address), connection = self._look(fd), self._open.get(fd)
        if inode and self._shut_down.get(fd) == inode:
            return None
        self._shut_down.pop(fd, None)
        if connection is not None and connection.inode == inode:
            return connection
        if connection is not None:
            self._leave(fd)
        if not inode:
            return None
        connection = self._open[fd] = _Known(fd, inode, self._clock.monotonic(), address)
        return connection

    def _leave(self, fd: int) -> None:
        connection = self._open.pop(fd, None)
        if connection is None:
            return
        if connection.sender:
            self._by_sender.pop(connection.sender, None)
            self._gone.append(connection.sender)
        elif self._shut_down.get(fd) != connection.inode:
            self._report_silent(connection.address)

    def _report_silent(self, address: str) -> None:
        """Log that a connection ended before a request. `address`: as in `_Known`."""
        if self._has_keys:
            peer = f"a peer at {address or 'an unknown address'}"
            self._lines.warning("peer refused", (SILENT, peer), peer=peer, reason=SILENT)

    def _shut(self, connection: _Known) -> None:
        """Shut down its socket; libzmq then closes it."""
        self._refused += 1
        if self._inode(connection.fd, shut=connection.inode) == connection.inode:
            self._shut_down[connection.fd] = connection.inode
        self._leave(connection.fd)

    def _inode(self, fd: int, shut: int = 0) -> int:
        """The inode of an accepted connection's socket; 0: the descriptor is not one any more.
        `shut`: shut down the socket if it has this inode."""
        return self._look(fd, shut)[0]

    def _look(self, fd: int, shut: int = 0) -> tuple[int, str]:
        """`_inode`, and the address of the peer. This examines a duplicate, because libzmq may
        close the descriptor at any time."""
        try:
            os.dup2(fd, self._spare, inheritable=False)
        except OSError:
            return 0, ""
        try:
            with socket.socket(fileno=self._spare) as peer_socket:
                try:
                    name = peer_socket.getsockname()
                    if not isinstance(name, tuple) or name[1] != self._port:
                        return 0, ""
                    inode = os.fstat(self._spare).st_ino
                    if inode == shut:
                        with suppress(OSError):  # the peer has disconnected
                            peer_socket.shutdown(socket.SHUT_RDWR)
                    return inode, _address_of(peer_socket)
                finally:
                    peer_socket.detach()
        except OSError:
            return 0, ""
        finally:
            os.dup2(self._nothing, self._spare, inheritable=False)

    # ---- the serving thread, and reads ----

    def first_message(self, sender: bytes, fd: int) -> bool:
        """The first message of `sender` arrived on this descriptor. Returns whether its connection
        is still open."""
        with self._mutex:
            former = self._open.get(fd)
            connection = self._admit(fd)
            if connection is None:
                return False
            if connection is not former and not self._make_room(connection):
                return False
            if connection.sender and connection.sender != sender:
                if not _later(sender, connection.sender):
                    return False  # of a closed connection whose descriptor is reused
                self._by_sender.pop(connection.sender, None)
                self._gone.append(connection.sender)
                connection.greeted = False
            connection.sender = sender
            self._by_sender[sender] = connection
            return True

    def greeted(self, sender: bytes) -> None:
        """The hello of this connection was accepted, so it is not closed to make room."""
        with self._mutex:
            if connection := self._by_sender.get(sender):
                connection.greeted = True

    def shut(self, sender: bytes, why: str) -> None:
        """Close the connection of this sender, and log the reason."""
        with self._mutex:
            if connection := self._by_sender.get(sender):
                self._lines.warning("connection closed", why, reason=why)
                self._shut(connection)

    def shut_silent(self, why: str) -> None:
        """Close all connections that have sent no message yet, and log the reason."""
        with self._mutex:
            for connection in [
                candidate for candidate in self._open.values() if not candidate.sender
            ]:
                self._lines.warning("connection closed", why, reason=why)
                self._shut(connection)

    def gone(self) -> list[bytes]:
        """The senders whose connections have ended since the last call."""
        with self._mutex:
            senders, self._gone = self._gone, []
            return senders

    @property
    def statistics(self) -> ConnectionStatistics:
        with self._mutex:
            return ConnectionStatistics(len(self._open), self._connections_max, self._refused)

    def close(self) -> None:
        """Release the descriptors. Call it after the thread has ended."""
        for fd in (self._nothing, self._spare):
            os.close(fd)


def _address_of(connection: socket.socket) -> str:
    """The peer's address without its port; "": it has left."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""


def _later(sender: bytes, other: bytes) -> bool:
    """Whether `sender` is later than `other`; libzmq's routing ids are a zero byte and a
    counter."""
    return 0 < (int.from_bytes(sender[1:]) - int.from_bytes(other[1:])) % 2**32 < 2**31
