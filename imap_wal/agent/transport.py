"""The agent's socket. The only module that knows ZeroMQ; see `docs/protocol.md` for what travels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import zmq

from imap_wal.errors import InvalidSetting

_INBOX = "inproc://answers"


@dataclass(frozen=True, slots=True)
class Message:
    """One request. `sender` is the connection; `header` is None where it could not be read."""

    sender: bytes
    header: list[Any] | None
    payload: bytes


class Router:
    """The ROUTER socket, for the serving thread; other threads answer through `outbox()`."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.RCVHWM, 10_000)
        self._socket.setsockopt(zmq.SNDHWM, 10_000)
        if endpoint.startswith("ipc://"):
            Path(endpoint.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise InvalidSetting(f"endpoint {endpoint}: {error.strerror}; another agent may have it") from error
        if endpoint.startswith("ipc://"):
            os.chmod(endpoint.removeprefix("ipc://"), 0o600)  # whoever may write here may write the log
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.bind(_INBOX)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._inbox, zmq.POLLIN)

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
                    messages.append(_decode(self._socket.recv_multipart()))
        return messages

    def _pass_on(self) -> None:
        while True:
            try:
                self._socket.send_multipart(self._inbox.recv_multipart(zmq.NOBLOCK), zmq.NOBLOCK)
            except zmq.Again:
                return

    def send(self, to: bytes, header: Sequence[Any], payload: bytes = b"") -> None:
        """Answer; a connection that is gone loses it, and asks again after its next hello."""
        try:
            self._socket.send_multipart([to, msgpack.packb(header), payload], zmq.NOBLOCK)
        except zmq.Again:
            pass

    def close(self, wait: bool = True) -> None:
        """Send what is to be sent, for a moment. `wait=False`: another thread hangs in an outbox,
        which ends with the process."""
        self._inbox.close(0)
        self._socket.close()
        if wait:
            self._context.term()


class Outbox:
    """How another thread answers."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(_INBOX)

    def send(self, to: bytes, header: Sequence[Any], payload: bytes = b"") -> None:
        self._socket.send_multipart([to, msgpack.packb(header), payload])

    def close(self) -> None:
        self._socket.close(0)


def _decode(frames: list[bytes]) -> Message:
    sender = frames[0]
    if len(frames) != 3:
        return Message(sender, None, b"")
    try:
        header = msgpack.unpackb(frames[1], strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):  # TypeError: a map whose key is a list
        header = None
    usable = isinstance(header, list) and len(header) >= 2 and isinstance(header[0], str) and isinstance(header[1], int)
    return Message(sender, header if usable else None, frames[2])


class Client:
    """A DEALER for tools. `TimeoutError` when no answer comes."""

    def __init__(self, endpoint: str, timeout_ms: int = 5000) -> None:
        self.endpoint, self._timeout_ms = endpoint, timeout_ms
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
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
        while self._socket.poll(self._timeout_ms):
            header, body = self._socket.recv_multipart()
            answer = msgpack.unpackb(header, strict_map_key=False)
            if answer[1] == number:
                return answer, body
        raise TimeoutError(f"no answer from {self.endpoint} within {self._timeout_ms} ms")

    def close(self) -> None:
        self._context.destroy(linger=0)
