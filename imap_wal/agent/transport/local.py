"""The agent's Unix socket. The loop itself reads and writes the connections, without a thread or a
queue in between: what arrives during a sync is the next commit. It speaks ZMTP (`zmtp`).

A helper thread does what must not wait for the loop's next turn: it continues large requests and
answers, which the kernel transfers in parts. And while the loop is busy with one request, it
accepts connections, answers pings, and reads a few messages of each connection in advance. So a
member can distinguish a busy agent from one that hangs.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from imap_wal.agent.access.admission import Admission, Users, report
from imap_wal.agent.access.peers import LOCAL, Peer
from imap_wal.agent.bounds import RECEIVED_BYTES, REQUESTS_MAX, Bounds
from imap_wal.agent.lines import Lines
from imap_wal.agent.transport import zmtp
from imap_wal.agent.transport.connection import LocalConnection
from imap_wal.agent.transport.endpoint import EndpointLock
from imap_wal.agent.transport.router import ConnectionStatistics, Message, decode, joined
from imap_wal.clock import Clock
from imap_wal.errors import InvalidSetting
from imap_wal.worker import Worker

HANDSHAKE_S = 3.0
"""A peer that has not completed the handshake in this time is disconnected."""
GREETING_S = 1.0
"""Above the limit, the oldest connection that has not said hello within this time is closed."""
READ_BYTES = 128 * 1024
"""How much is read at once. The rest of a larger frame is read into its own buffer."""
BODY_BYTES = 2 * 1024 * 1024
"""The initial size of the buffer of a large frame. When it is full, the rest is added: a wrong size
in a frame takes no more memory than this."""
AHEAD_MAX = 4
"""No more is read from a connection while this many of its messages wait for the loop."""
COMMANDS_MAX = 64
"""A connection that sends more commands than this at once is closed."""
FRAMES_MAX = 16
"""A connection that sends a message of more frames than this is closed."""
UNSENT_MAX = 2 * REQUESTS_MAX
"""A connection whose peer leaves more answers than this unread is closed."""
NEXT_PART_MS = 1
"""How long to wait for the next part of a large frame, before the helper waits for it."""
ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before others are read."""
TAKE_OVER_S = 0.05
"""When the loop has not turned for this time, the helper does its work, in seconds."""
RETRY_S = 0.1
"""The pause after a connection could not be accepted, because no descriptor is free."""
PAUSE_S = 0.005
"""The pause of the helper while too many messages wait for the loop."""
LINGER_S = 0.2
"""How long `close` tries to send the remaining answers, in seconds."""

NOT_READ = "a peer does not read its answers"

_IN, _OUT = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT
_PEER = struct.Struct("iII")
"""What the kernel reports of a peer: process, user, group."""


class LocalRouter:
    """A `Router` at the path of a Unix socket."""

    def __init__(
        self, lock: EndpointLock, bounds: Bounds, rules: Users | None, clock: Clock, lines: Lines
    ) -> None:
        """Listen at the endpoint of `lock`; `close` releases it. `rules` decide who may connect;
        None: everyone that can open the socket. Raises `InvalidSetting` if it cannot listen."""
        self.endpoint, self._lock, self._rules = lock.endpoint, lock, rules
        self._connections_max, self._clock, self._lines = bounds.connections, clock, lines
        self._frame_max = bounds.message_bytes if bounds.message_bytes >= 0 else 2**62
        try:
            self._listening = lock.listen()
        except OSError as error:
            raise InvalidSetting(f"endpoint {self.endpoint}: {error.strerror or error}") from error
        self._listens_at = self._listening.fileno()
        self._mutex = threading.Lock()
        """Protects all that follows."""
        self._accept_at = 0.0
        """When connections are accepted again; 0: now."""
        self._open: dict[int, LocalConnection] = {}
        """By descriptor; the oldest first."""
        self._by_sender: dict[bytes, LocalConnection] = {}
        self._in_handshake: deque[LocalConnection] = deque()
        """Those that were accepted last and may not have completed the handshake; oldest first."""
        self._arrived = memoryview(bytearray(READ_BYTES))
        self._spare = bytearray()
        """A buffer for the next large frame."""
        self._ready: deque[tuple[LocalConnection, Message]] = deque()
        self._ready_bytes = 0
        self._gone: list[bytes] = []
        self._names = itertools.count(1)
        self._refused = 0
        self.refused = self.revoked = 0
        self._waits, self._last_turn = False, clock.monotonic()
        self._helper = Worker("imap-wal-socket", self._help)
        with ExitStack() as opened:
            opened.callback(self._listening.close)
            self._epoll = select.epoll()
            """What the loop waits for."""
            opened.callback(self._epoll.close)
            self._helper_epoll = select.epoll()
            opened.callback(self._helper_epoll.close)
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            """Ends the wait of the loop: there is a message."""
            opened.callback(os.close, self._wake)
            self._epoll.register(self._wake, select.EPOLLIN)
            self._epoll.register(self._listens_at, select.EPOLLIN)
            self._helper.start()
            self._descriptors = opened.pop_all()

    @property
    def workers(self) -> list[Worker]:
        return [self._helper]

    @property
    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(len(self._open), self._connections_max, self._refused)

    def outbox(self) -> _Outbox:
        return _Outbox(self)

    def peer(self, user: str) -> Peer:
        return LOCAL

    # ---- the loop ----

    def receive(self, timeout_ms: int, most: int = 1024) -> list[Message]:
        with self._mutex:  # the helper wakes a loop that waits
            self._waits = not self._ready and timeout_ms > 0
            timeout_s = timeout_ms / 1000 if self._waits else 0
        events = self._epoll.poll(timeout_s)
        self._waits = False
        self._serve(events)
        messages: list[Message] = []
        size = 0
        with self._mutex:
            self._last_turn = self._clock.monotonic()
            while self._ready and len(messages) < most and size < RECEIVED_BYTES:
                connection, message = self._ready.popleft()
                connection.queued -= 1
                if not connection.queued and connection.state == "closed":
                    self._gone.append(connection.sender)
                messages.append(message)
                size += _size(message)
            self._ready_bytes -= size
        return messages

    def gone(self) -> list[bytes]:
        """As in `Router`. A connection whose messages still wait is reported after they were
        received."""
        if not self._gone:
            return []
        with self._mutex:
            senders, self._gone = self._gone, []
            return senders

    def send(self, to: bytes, header: Sequence[Any], payload: bytes | bytearray = b"") -> None:
        frame = joined(header, payload)
        with self._mutex:
            connection = self._by_sender.get(to)
            if connection is None:
                return
            connection.unanswered = max(0, connection.unanswered - 1)
            front = zmtp.frame_header(len(frame))
            if len(frame) < READ_BYTES:
                self._write(connection, front + frame)
            else:
                self._write(connection, front)
                self._write(connection, frame)

    def greeted(self, sender: bytes) -> None:
        with self._mutex:
            if connection := self._by_sender.get(sender):
                connection.greeted = True

    def shut(self, sender: bytes, why: str) -> None:
        with self._mutex:
            if connection := self._by_sender.get(sender):
                self._shut(connection, why)

    def close(self, wait: bool = True) -> None:
        self._helper.stop(1)
        until = self._clock.monotonic() + LINGER_S
        with self._mutex:
            while unsent := [one for one in self._open.values() if one.unsent]:
                left = until - self._clock.monotonic()
                if left <= 0:
                    break
                writable = select.poll()
                for connection in unsent:
                    writable.register(connection.socket, select.POLLOUT)
                writable.poll(1000 * left)
                for connection in unsent:
                    self._flush(connection)
            for connection in list(self._open.values()):
                self._end(connection)
            self._descriptors.close()
        self._lock.release()

    # ---- the helper ----

    def _help(self, worker: Worker) -> bool:
        events = self._helper_epoll.poll(TAKE_OVER_S)
        pauses = bool(events)
        for fd, event in events:
            with self._mutex:
                if (connection := self._open.get(fd)) is None:
                    continue
                if event & ~_OUT and connection.is_large and connection.queued < AHEAD_MAX:
                    self._read(connection)
                    pauses = False
                if event & ~_IN:
                    self._flush(connection)
                    pauses = False
        if not self._waits and self._clock.monotonic() - self._last_turn >= TAKE_OVER_S:
            self._serve(self._epoll.poll(0))
        if pauses or self._is_full():  # until the loop has received what waits
            worker.stopping.wait(PAUSE_S)
        return True

    def _is_full(self) -> bool:
        """Whether so many messages wait for the loop that no more are read."""
        return self._ready_bytes >= RECEIVED_BYTES

    # ---- connections; with the mutex ----

    def _serve(self, events: list[tuple[int, int]]) -> None:
        """Accept and read what is ready. Call it without the mutex, which it releases after each
        connection."""
        for fd, _ in events:
            with self._mutex:
                if fd == self._listens_at:
                    self._accept()
                elif fd == self._wake:
                    with suppress(BlockingIOError):
                        os.eventfd_read(fd)
                elif (
                    (connection := self._open.get(fd)) is not None
                    and connection.queued < AHEAD_MAX
                    and not self._is_full()
                ):
                    self._read(connection)
        if self._in_handshake or self._accept_at:
            with self._mutex:
                self._end_unfinished()
                if self._accept_at and self._clock.monotonic() >= self._accept_at:
                    self._accept_at = 0.0
                    self._epoll.register(self._listens_at, select.EPOLLIN)

    def _await(self, connection: LocalConnection) -> None:
        """Let the helper wait for the rest of a large request, and for room for answers."""
        events = (_IN if connection.is_large else 0) | (_OUT if connection.unsent else 0)
        if events == connection.helped or connection.state == "closed":
            return
        fd = connection.socket.fileno()
        if not connection.helped:
            self._helper_epoll.register(fd, events)
        elif events:
            self._helper_epoll.modify(fd, events)
        else:
            self._helper_epoll.unregister(fd)
        if (events ^ connection.helped) & _IN:
            self._epoll.modify(fd, 0 if events & _IN else _IN)
        connection.helped = events

    def _accept(self) -> None:
        if self._accept_at:
            return  # an older event
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is free
                self._lines.warning("connection not accepted", error.errno, error=str(error))
                self._epoll.unregister(self._listens_at)
                self._accept_at = self._clock.monotonic() + RETRY_S
                return
            self._enter(accepted)

    def _enter(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        sender = b"\0" + (next(self._names) % 2**32).to_bytes(4)
        connection = LocalConnection(
            accepted, sender, self._clock.monotonic(), self._admission_of(accepted)
        )
        fd = accepted.fileno()
        self._open[fd] = self._by_sender[sender] = connection
        self._epoll.register(fd, _IN)
        if len(self._open) > self._connections_max:
            self._make_room(connection)
        if connection.state != "closed":
            self._in_handshake.append(connection)
            self._write(connection, zmtp.GREETING)

    def _admission_of(self, accepted: socket.socket) -> Admission | None:
        if self._rules is None:
            return None
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, uid, _ = _PEER.unpack(credentials)
        return self._rules.judge(uid, pid)

    def _make_room(self, new: LocalConnection) -> None:
        """Close the oldest silent connection, or the new one."""
        before = new.since - GREETING_S
        silent = (
            connection
            for connection in self._open.values()
            if not connection.greeted and connection.since < before
        )
        self._refused += 1
        self._end(next(silent, new))
        self._lines.warning(
            "too many connections", most=self._connections_max, refused=self._refused
        )

    def _end_unfinished(self) -> None:
        """Close the connections whose handshake takes too long."""
        before = self._clock.monotonic() - HANDSHAKE_S
        while self._in_handshake:
            connection = self._in_handshake[0]
            if connection.state in ("greeting", "handshake"):
                if connection.since > before:
                    return
                self._end(connection)
            self._in_handshake.popleft()

    def _shut(self, connection: LocalConnection, why: str) -> None:
        self._lines.warning("connection closed", why, reason=why)
        self._refused += 1
        self._end(connection)

    def _end(self, connection: LocalConnection) -> None:
        if connection.state == "closed":
            return
        connection.state = "closed"
        fd = connection.socket.fileno()
        self._epoll.unregister(fd)
        if connection.helped:
            self._helper_epoll.unregister(fd)
        connection.socket.close()
        connection.unsent.clear()
        connection.body = None
        connection.rest = connection.header = connection.payload = b""
        del self._open[fd], self._by_sender[connection.sender]
        if not connection.queued:
            self._gone.append(connection.sender)

    # ---- what arrives ----

    def _read(self, connection: LocalConnection) -> None:
        """Read what a connection has sent. `READ_BYTES` are read at once; the rest waits for the
        next turn, except that of a large frame."""
        connection.is_large = connection.body is not None
        try:
            if connection.body is None:
                data = self._arrived[: connection.socket.recv_into(self._arrived)].tobytes()
                if data:
                    self._parse(connection, connection.rest + data if connection.rest else data)
                else:
                    self._end(connection)
            while connection.body is not None:
                try:
                    self._fill(connection, connection.body)
                except BlockingIOError:
                    if not _arrives(connection.socket):
                        raise
        except BlockingIOError:
            pass
        except OSError:
            self._end(connection)
        except zmtp.NotZmtp as error:
            self._shut(connection, f"a peer broke the protocol: {error}")
        if connection.is_large or connection.helped:
            self._await(connection)

    def _fill(self, connection: LocalConnection, body: bytearray) -> None:
        """Read more of a large frame. Raises OSError."""
        if connection.filled == len(body):  # the peer does send a large frame
            whole = bytearray(connection.size)
            whole[: connection.filled] = body
            body = connection.body = whole
        with memoryview(body) as view:
            count = connection.socket.recv_into(view[connection.filled : connection.size])
        connection.filled += count
        if not count:
            self._end(connection)
        elif connection.filled == connection.size:
            connection.body = None
            with memoryview(body) as view:
                payload = view[: connection.size].tobytes()
            if len(self._spare) < len(body) <= BODY_BYTES:
                self._spare = body  # new memory costs as much as reading into it
            self._frame(connection, connection.flags, payload)

    def _parse(self, connection: LocalConnection, data: bytes) -> None:
        """Take the whole frames from `data`, and keep the rest. Raises `zmtp.NotZmtp`."""
        at, end = 0, len(data)
        if connection.state == "greeting":
            if end < zmtp.GREETING_BYTES:
                connection.rest = data
                return
            zmtp.check_greeting(data)
            connection.state, at = "handshake", zmtp.GREETING_BYTES
        commands = 0
        while end - at >= 2 and connection.state != "closed":
            flags = data[at]
            commands += flags & zmtp.COMMAND
            if commands > COMMANDS_MAX * zmtp.COMMAND:
                raise zmtp.NotZmtp(f"it sent more than {COMMANDS_MAX} commands at once")
            if flags & zmtp.LONG:
                if end - at < 9:
                    break
                size, begin = zmtp.long_size(data, at), at + 9
            else:
                size, begin = data[at + 1], at + 2
            if size > self._frame_max or (
                size > zmtp.COMMAND_BYTES_MAX
                and (flags & zmtp.COMMAND or connection.state != "open")
            ):
                raise zmtp.NotZmtp(f"a frame of {size} bytes; at most {self._frame_max} are read")
            if begin + size > end:
                if size > READ_BYTES:
                    connection.body, self._spare = self._spare, bytearray()
                    if len(connection.body) < (first := min(size, BODY_BYTES)):
                        connection.body = bytearray(first)
                    connection.body[: end - begin] = data[begin:]
                    connection.filled, connection.size = end - begin, size
                    connection.is_large = True
                    connection.flags, connection.rest = flags, b""
                    return
                break
            at = begin + size
            self._frame(connection, flags, data[begin:at])
        connection.rest = data[at:]

    def _frame(self, connection: LocalConnection, flags: int, body: bytes) -> None:
        if flags & zmtp.COMMAND or connection.state != "open":
            self._command(connection, flags, body)
            return
        if connection.frames == 0:
            connection.header = body
        else:
            connection.payload = body if connection.frames == 1 else b""
        connection.frames += 1
        if connection.frames > FRAMES_MAX:
            raise zmtp.NotZmtp(f"it sent a message of more than {FRAMES_MAX} frames")
        if flags & zmtp.MORE:
            return
        if connection.unanswered >= REQUESTS_MAX:
            self._shut(
                connection,
                f"a peer sent more than {REQUESTS_MAX} requests without waiting for their answers",
            )
            return
        connection.unanswered += 1
        connection.queued += 1
        message = decode(
            connection.sender, connection.header, connection.payload, connection.frames
        )
        connection.header = connection.payload = b""
        connection.frames = 0
        self._ready.append((connection, message))
        self._ready_bytes += _size(message)
        if self._waits:
            os.eventfd_write(self._wake, 1)

    def _command(self, connection: LocalConnection, flags: int, body: bytes) -> None:
        if connection.state == "open":
            if answer := zmtp.pong(body):
                self._write(connection, answer)
            return
        if not flags & zmtp.COMMAND:
            raise zmtp.NotZmtp("it sent a message before its handshake")
        zmtp.check_ready(body)
        admission = connection.admission
        if admission is not None:
            report(admission, self.endpoint, self._lines)
        if admission is None or not admission.why:
            connection.state = "open"
            self._write(connection, zmtp.READY)
        else:
            self.refused += 1
            self._write(connection, zmtp.REFUSED)
            self._end(connection)

    # ---- what leaves ----

    def _write(self, connection: LocalConnection, data: bytes | bytearray) -> None:
        """Send now what the system accepts, and the rest when it accepts more."""
        if connection.unwritable:
            return
        sent = 0
        if not connection.unsent:
            try:
                sent = connection.socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                self._silence(connection)
                return
            if sent == len(data):
                return
        connection.unsent.append(memoryview(data)[sent:])
        if len(connection.unsent) > UNSENT_MAX:
            self._shut(connection, NOT_READ)
        self._await(connection)

    def _flush(self, connection: LocalConnection) -> None:
        try:
            while connection.unsent:
                data = connection.unsent[0]
                sent = connection.socket.send(data)
                if sent < len(data):
                    connection.unsent[0] = data[sent:]
                    return
                connection.unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._silence(connection)
        self._await(connection)

    def _silence(self, connection: LocalConnection) -> None:
        """The peer reads no more. What it has sent before is read up to the end."""
        connection.unwritable = True
        connection.unsent.clear()


def _arrives(connection: socket.socket) -> bool:
    """Whether more arrives at once: the peer is sending a large frame, and has to wait until what
    it has sent was read."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(NEXT_PART_MS))


def _size(message: Message) -> int:
    return message.header_bytes + len(message.payload)


class _Outbox:
    """Writes to the connections at once."""

    def __init__(self, router: LocalRouter) -> None:
        self._router = router

    def send(self, to: bytes, header: Sequence[Any], payload: bytes | bytearray = b"") -> None:
        self._router.send(to, header, payload)

    def close(self) -> None: ...
