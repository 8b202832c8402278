"""The agent's ZeroMQ socket at a TCP address."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imap_wal.agent.access.admission import ClientKeys
from imap_wal.agent.access.peers import LOCAL, UNKNOWN, Peer
from imap_wal.agent.bounds import RECEIVED_BYTES, REQUESTS_MAX, Bounds
from imap_wal.agent.lines import Lines
from imap_wal.agent.transport.connection_limit import ConnectionLimiter, Ended, SocketEvent
from imap_wal.agent.transport.gate import Gate
from imap_wal.agent.transport.router import ConnectionStatistics, Message, decode, joined
from imap_wal.clock import Clock
from imap_wal.errors import InvalidSetting
from imap_wal.worker import Worker
from storage_backends.extras import needs

with needs("agent"):
    import zmq

_INBOX, _EVENTS = "inproc://answers", "inproc://events"
_EVENT = struct.Struct("=HI")
HANDSHAKE_MS = 3000
"""A peer that has not completed the ZeroMQ handshake in this time is disconnected."""
KEEPALIVE_S, KEEPALIVE_PROBES = 10, 3
"""TCP keep-alive: the kernel probes a silent peer at this interval, and closes the connection after
this many unanswered probes. ZeroMQ heartbeats do not work here, because the plug-in reads only
while it waits for an answer."""
CURVE_BYTES = 64
"""CURVE adds 33 bytes to a frame, and libzmq counts them as a part of it."""
SETTLED_S = 1.0
"""When this time has passed after a change of the clients, connections are admitted by the new ones
only."""
REVOKED = "it has sent nothing, and a key was revoked, which may be its own"
TRACKED_BYTES = 4096
"""A larger answer is not copied. When its memory is released, it has left the agent."""


class NetworkRouter:
    """A `Router` that is a ROUTER socket of libzmq."""

    def __init__(
        self,
        endpoint: str,
        bounds: Bounds,
        rules: ClientKeys | None,
        clock: Clock,
        lines: Lines,
    ) -> None:
        """Bind to the endpoint. `rules` decide who may connect; None: every peer that reaches the
        endpoint. Raises `InvalidSetting` if the bind fails."""
        self._clock, self.endpoint = clock, endpoint
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._set_limits(bounds)
        self._rules = rules
        self._gate = Gate(self._context, rules, endpoint, lines) if rules is not None else None
        events = self._bind()
        self.limiter = ConnectionLimiter(
            events, self._port(), bounds.connections, clock, lines, has_keys=rules is not None
        )
        self.limiter.worker.start()
        self._unanswered: dict[bytes, int] = {}
        """Sender of at least one message → its unanswered requests."""
        self._users: dict[bytes, str] = {}
        """Sender of at least one message, with a key → its public key."""
        self._silent_until = 0.0
        self._compared_clients = self._rules.clients() if self._rules is not None else {}
        """The clients when the connections were last compared with them."""
        self.revoked = 0
        """The number of connections that were closed because their keys were revoked."""
        self._late: list[bytes] = []
        self._answers: deque[_Answer] = deque()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.bind(_INBOX)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._inbox, zmq.POLLIN)

    @property
    def workers(self) -> list[Worker]:
        """The background threads that admit and close connections."""
        return [self.limiter.worker, *([self._gate.worker] if self._gate is not None else [])]

    def _bind(self) -> _Events:
        """Bind the socket; returns the events of its connections. Raises `InvalidSetting`."""
        events = _Events(self._context, self._socket)
        try:
            if self._gate is not None:
                self._gate.guard(self._socket)
            self._socket.bind(self.endpoint)
            self._name_peers()
        except (zmq.ZMQError, OSError) as error:
            events.close()
            if self._gate is not None:
                self._gate.close()
            self._context.destroy(linger=0)
            raise InvalidSetting(
                f"endpoint {self.endpoint}: {error.strerror}; another agent may use it"
            ) from error
        return events

    def _set_limits(self, bounds: Bounds) -> None:
        """Set the limits that libzmq itself enforces."""
        for option, value in (
            (
                zmq.MAXMSGSIZE,
                bounds.message_bytes + CURVE_BYTES if bounds.message_bytes >= 0 else -1,
            ),
            (zmq.RCVHWM, 4),  # per connection; then its peer waits
            (zmq.SNDHWM, 2 * REQUESTS_MAX),
            (
                zmq.ROUTER_MANDATORY,
                1,
            ),  # without room, sending an answer fails; it is not dropped silently
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S),
            (zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S),
            (zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES),
        ):
            self._socket.setsockopt(option, value)
        self._socket.copy_threshold = TRACKED_BYTES

    def _name_peers(self) -> None:
        """Make libzmq assign a routing id to each connection and ignore the id that a peer sends.
        libzmq assigns ids by a counter, and aborts the process if a peer has already sent the same
        id. In raw mode it ignores the ids of peers. If the option is set after the bind, it changes
        only the routing ids, and that an answer has one frame: the listener keeps the options of
        the bind and still reads ZMTP messages."""
        self._socket.setsockopt(zmq.ROUTER_RAW, 1)

    def _port(self) -> int:
        """Where the socket listens, for the limiter."""
        last = bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT))
        return int(last.rstrip(b"\0").rpartition(b":")[2])

    @property
    def refused(self) -> int:
        return self._gate.refused if self._gate is not None else 0

    @property
    def statistics(self) -> ConnectionStatistics:
        return self.limiter.statistics

    def greeted(self, sender: bytes) -> None:
        self.limiter.greeted(sender)

    def shut(self, sender: bytes, why: str) -> None:
        self.limiter.shut(sender, why)

    def outbox(self) -> _Outbox:
        return _Outbox(self._context, self._answers)

    def receive(self, timeout_ms: int, most: int = 1024) -> list[Message]:
        """As in `Router`. It also sends the answers of other threads."""
        messages: list[Message] = []
        size = 0
        for socket, _ in self._poller.poll(timeout_ms):
            if socket is self._inbox:
                self._pass_on()
            else:
                while (
                    len(messages) < most
                    and size < RECEIVED_BYTES
                    and int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN
                ):
                    message = self._receive()
                    if message is not None:
                        messages.append(message)
                        size += message.header_bytes + len(message.payload)
        return messages

    def _receive(self) -> Message | None:
        """The next message; None if it is ignored: its connection is being closed."""
        user = ""
        if self._rules is None:
            sender: bytes = self._socket.recv()
        else:  # libzmq attaches the user to the frames
            frame = self._socket.recv(copy=False)
            sender, user = frame.bytes, str(frame.get("User-Id"))
        unanswered = self._unanswered.get(sender)
        first = (
            self._socket.recv(copy=unanswered is not None)
            if self._socket.getsockopt(zmq.RCVMORE)
            else b""
        )
        header: bytes = first if isinstance(first, bytes) else first.bytes
        payload, others = b"", -1
        while self._socket.getsockopt(zmq.RCVMORE):
            part = self._socket.recv()
            payload, others = (part, 0) if others < 0 else (b"", others + 1)
        if unanswered is None:
            unanswered = 0
            if not self.limiter.first_message(
                sender, -1 if isinstance(first, bytes) else first.get(zmq.SRCFD)
            ):
                self._late.append(sender)
            elif user:
                self._users[sender] = user
        self._unanswered[sender] = unanswered + 1
        if unanswered >= REQUESTS_MAX:
            if unanswered == REQUESTS_MAX:
                self.limiter.shut(
                    sender,
                    f"a peer sent more than {REQUESTS_MAX} requests without waiting for "
                    "their answers",
                )
            return None
        if user and user not in self._current_clients():
            self._end(sender)
            return None
        return replace(decode(sender, header, payload, 2 + others), user=user)

    def peer(self, user: str) -> Peer:
        return LOCAL if self._rules is None else self._current_clients().get(user, UNKNOWN)

    def _current_clients(self) -> Mapping[str, Peer]:
        return self._rules.clients() if self._rules is not None else {}

    def _end_revoked(self) -> None:
        """Close the connections of revoked keys. libzmq reports the key of a connection only with
        its messages. So if a key is revoked, all connections without a message are closed too:
        those that exist now, and later those that the gate admitted by the earlier list."""
        now, before = self._current_clients(), self._compared_clients
        if now is not before:
            self._compared_clients = now
            for sender in [sender for sender, user in self._users.items() if user not in now]:
                self._end(sender)
            if not before.keys() <= now.keys():
                self.limiter.shut_silent(REVOKED)
                self._silent_until = self._clock.monotonic() + SETTLED_S
        if self._silent_until and self._clock.monotonic() >= self._silent_until:
            self._silent_until = 0.0
            self.limiter.shut_silent(REVOKED)

    def _end(self, sender: bytes) -> None:
        if self._users.pop(sender, None) is not None:
            self.revoked += 1
            self.limiter.shut(sender, "its key was revoked")

    def gone(self) -> list[bytes]:
        """As in `Router`. It also closes the connections of revoked keys."""
        self._end_revoked()
        senders, self._late = self._late + self.limiter.gone(), []
        for sender in senders:
            self._unanswered.pop(sender, None)
            self._users.pop(sender, None)
        return senders

    def _pass_on(self) -> None:
        while True:
            try:
                self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            answer = self._answers.popleft()
            self._send(answer.to, answer.frame)

    def send(self, to: bytes, header: Sequence[Any], payload: bytes | bytearray = b"") -> None:
        self._send(to, joined(header, payload))

    def _send(self, to: bytes, frame: bytes | bytearray) -> None:
        unanswered = self._unanswered.get(to)
        if unanswered:
            self._unanswered[to] = unanswered - 1
        try:
            self._socket.send(to, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(frame, zmq.NOBLOCK, copy=len(frame) < TRACKED_BYTES)
        except zmq.Again:
            self.limiter.shut(to, "a peer does not read its answers")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def close(self, wait: bool = True) -> None:
        self._inbox.close(0)
        self._socket.close()  # the limiter still reads: libzmq waits if its events are unread
        if self._gate is not None:
            self._gate.close()
        if wait:
            self._context.term()
            if self.limiter.worker.stop(1):
                self.limiter.close()


class _Events:
    """The events of libzmq about the connections of a socket. For one thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], of: zmq.Socket[bytes]) -> None:
        of.monitor(_EVENTS, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.RCVHWM, 1)  # `UNSEEN_MAX` depends on this
        self._socket.connect(_EVENTS)

    def __call__(self) -> SocketEvent | None:
        try:
            while self._socket.poll(100):
                number, value = _EVENT.unpack(self._socket.recv_multipart()[0])
                if number in (zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED):
                    return SocketEvent(number == zmq.EVENT_ACCEPTED, value)
        except zmq.ContextTerminated:
            self.close()
            raise Ended from None
        return None

    def close(self) -> None:
        self._socket.close(0)


@dataclass(frozen=True, slots=True)
class _Answer:
    to: bytes
    frame: bytes | bytearray


class _Outbox:
    """The loop sends its answers."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], answers: deque[_Answer]) -> None:
        self._answers = answers
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(_INBOX)

    def send(self, to: bytes, header: Sequence[Any], payload: bytes | bytearray = b"") -> None:
        self._answers.append(_Answer(to, joined(header, payload)))
        self._socket.send(b"")

    def close(self) -> None:
        self._socket.close(0)
