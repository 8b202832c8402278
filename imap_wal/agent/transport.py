"""The agent's socket. The only module that knows ZeroMQ; see `docs/protocol.md` for what travels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import zmq

from imap_wal.agent.access import Rules
from imap_wal.agent.endpoint import EndpointLock
from imap_wal.agent.gate import Gate, identify
from imap_wal.agent.keys import KeyPair
from imap_wal.agent.peers import LOCAL, Peer
from imap_wal.agent.requests import Malformed, Request, kind_of, read
from imap_wal.clock import Clock, SystemClock
from imap_wal.errors import InvalidSetting, NotAllowed
from imap_wal.worker import Worker

_INBOX = "inproc://answers"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the connection `sender`: a request, or a malformed one, from `peer`."""

    sender: bytes
    request: Request | Malformed
    payload: bytes
    peer: Peer = LOCAL

    @property
    def kind(self) -> str:
        """The kind of the request; "" if it cannot be read."""
        return kind_of(self.request)


class Router:
    """The ROUTER socket, for the serving thread; other threads answer through `outbox()`."""

    def __init__(self, lock: EndpointLock, rules: Rules | None = None, clock: Clock | None = None) -> None:
        """Bind at the endpoint whose lock is held; `close` releases it. `InvalidSetting` if that
        is not possible. `rules` say who may connect; None: whoever reaches the endpoint."""
        self.endpoint, self._lock = lock.endpoint, lock
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.RCVHWM, 10_000)
        self._socket.setsockopt(zmq.SNDHWM, 10_000)
        self.gate = Gate(self._context, rules, self.endpoint, clock or SystemClock()) if rules is not None else None
        self._rules = rules if rules is not None and rules.own is not None else None
        """Where each connection has rights of its own."""
        try:
            if self.gate is not None:
                self.gate.guard(self._socket)
            with lock.private():
                self._socket.bind(self.endpoint)
        except (zmq.ZMQError, OSError) as error:
            if self.gate is not None:
                self.gate.close()
            self._context.destroy(linger=0)
            raise InvalidSetting(f"endpoint {self.endpoint}: {error.strerror}; another agent may have it") from error
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.bind(_INBOX)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._inbox, zmq.POLLIN)

    @property
    def workers(self) -> list[Worker]:
        """The background thread that admits connections, if there is one."""
        return [self.gate.worker] if self.gate is not None else []

    def outbox(self) -> Outbox:
        """For one other thread, made in that thread."""
        return Outbox(self._context)

    def receive(self, timeout_ms: int, most: int = 1024) -> list[Message]:
        """All requests that wait (at most `most`), after waiting up to `timeout_ms` for the first. Passes on the answers of other threads meanwhile."""
        messages: list[Message] = []
        for socket, _ in self._poller.poll(timeout_ms):
            if socket is self._inbox:
                self._pass_on()
            else:
                while len(messages) < most and int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                    messages.append(_decode(self._socket.recv_multipart()) if self._rules is None else self._receive_of(self._rules))
        return messages

    def _receive_of(self, rules: Rules) -> Message:
        """A message and its sender, whom libzmq names beside the frames."""
        frames = self._socket.recv_multipart(copy=False)
        message = _decode([bytes(frame.buffer) for frame in frames])
        return replace(message, peer=rules.peer(str(frames[0].get("User-Id"))))

    def _pass_on(self) -> None:
        while True:
            try:
                self._socket.send_multipart(self._inbox.recv_multipart(zmq.NOBLOCK), zmq.NOBLOCK)
            except zmq.Again:
                return

    def send(self, to: bytes, header: Sequence[Any], payload: bytes = b"") -> None:
        """Answer; a connection that is gone loses it, and asks again after its next hello."""
        try:
            self._socket.send_multipart([to, _packed(header), payload], zmq.NOBLOCK)
        except zmq.Again:
            pass

    def close(self, wait: bool = True) -> None:
        """Send what is to be sent, for a moment. `wait=False`: another thread hangs in an outbox,
        which ends with the process."""
        self._inbox.close(0)
        self._socket.close()
        if self.gate is not None:
            self.gate.close()
        if wait:
            self._context.term()
        self._lock.release()


class Outbox:
    """How another thread answers."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(_INBOX)

    def send(self, to: bytes, header: Sequence[Any], payload: bytes = b"") -> None:
        self._socket.send_multipart([to, _packed(header), payload])

    def close(self) -> None:
        self._socket.close(0)


def _decode(frames: list[bytes]) -> Message:
    sender = frames[0]
    if len(frames) != 3:
        return Message(
            sender, Malformed("", 0, f"a message has a header [kind, number, ...] and a payload; this one has {len(frames) - 1} frames"), b""
        )
    return Message(sender, read(frames[1]), frames[2])


def _packed(header: Sequence[Any]) -> bytes:
    """An answer's header. An error's text may quote a name that is not valid Unicode."""
    packed: bytes = msgpack.packb(header, unicode_errors="backslashreplace")
    return packed


class Client:
    """A DEALER for tools. `TimeoutError` when no answer comes; `NotAllowed` when the agent refuses
    the connection. `key`: the tool's own, `agent_key`: the agent's public one, both for an endpoint
    with keys."""

    def __init__(self, endpoint: str, timeout_ms: int = 5000, key: KeyPair | None = None, agent_key: str = "") -> None:
        self.endpoint, self._timeout_ms = endpoint, timeout_ms
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if key is not None:
            identify(self._socket, key, agent_key)
        self._refusals = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._refusals, zmq.POLLIN)
        self._socket.connect(endpoint)
        self._number = 0

    def ask(self, kind: str, *fields: Any, payload: bytes = b"") -> tuple[list[Any], bytes]:
        """Send `[kind, number, *fields]`; the answer's header and payload."""
        return self.answer(self.post(kind, *fields, payload=payload))

    def post(self, kind: str, *fields: Any, payload: bytes = b"") -> int:
        """Send a request; its number."""
        self._number += 1
        self._socket.send_multipart([msgpack.packb([kind, self._number, *fields]), payload])
        return self._number

    def answer(self, number: int) -> tuple[list[Any], bytes]:
        """The answer to the request of that number; answers to earlier ones are passed over."""
        while ready := dict(self._poller.poll(self._timeout_ms)):
            if self._socket not in ready:
                raise self._refusal()
            header, body = self._socket.recv_multipart()
            answer = msgpack.unpackb(header, strict_map_key=False)
            if answer[1] == number:
                return answer, body
        raise TimeoutError(f"no answer from {self.endpoint} within {self._timeout_ms} ms")

    def _refusal(self) -> NotAllowed:
        event = int.from_bytes(self._refusals.recv_multipart()[0][:2], sys.byteorder)
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return NotAllowed(f"the agent at {self.endpoint} does not admit this user or key; its log lines say whom it refused and why")
        return NotAllowed(f"{self.endpoint} did not accept the handshake: the agent has keys and this client none, or the reverse")

    def close(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)
