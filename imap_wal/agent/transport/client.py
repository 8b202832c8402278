"""The other end of the socket, for tools and tests."""

from __future__ import annotations

import struct
import sys
import time
from typing import Any

import msgpack

from imap_wal.agent.access.keys import KeyPair
from imap_wal.agent.transport.gate import identify
from imap_wal.agent.transport.router import parts
from imap_wal.errors import ImapWalError, NotAllowed
from storage_backends.extras import needs

with needs("agent"):
    import zmq


class NoAgent(ImapWalError):
    """An answer does not have the form of an agent's answer. Check the endpoint, and which process
    listens there."""


class AgentClient:
    """A DEALER socket for tools. `key`: the tool's own key; `agent_key`: the agent's public key;
    both for an endpoint with keys. `waits`: whether to wait for an agent that does not listen yet;
    otherwise that raises `NoAgent` at once. A call raises TimeoutError if no answer arrives,
    `NotAllowed` if the agent refuses the connection, and `NoAgent`."""

    def __init__(
        self,
        endpoint: str,
        timeout_ms: int = 5000,
        key: KeyPair | None = None,
        agent_key: str = "",
        *,
        waits: bool = True,
    ) -> None:
        self.endpoint, self._timeout_ms = endpoint, timeout_ms
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if key is not None:
            identify(self._socket, key, agent_key)
        self._events = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | (0 if waits else zmq.EVENT_CONNECT_RETRIED)
        )
        self._poller = zmq.Poller()
        self._poller.register(self._events, zmq.POLLIN)
        self._socket.connect(endpoint)
        self._number = 0
        self._is_hung_up = False

    def ask(self, kind: str, *fields: Any, payload: bytes = b"") -> tuple[list[Any], bytes]:
        """Send `[kind, number, *fields]`. Returns the answer's header and payload."""
        return self.answer(self.post(kind, *fields, payload=payload))

    def post(self, kind: str, *fields: Any, payload: bytes = b"") -> int:
        """Send a request. Returns its number. Raises as `answer` does: libzmq has no queue for a
        connection that was refused, or for one whose queue is full."""
        self._number += 1
        frames = [msgpack.packb([kind, self._number, *fields]), payload]
        until = self._until()
        while True:
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
                return self._number
            except zmq.Again:
                self._wait(zmq.POLLOUT, until)

    def answer(self, number: int) -> tuple[list[Any], bytes]:
        """The answer to the request of this number; answers to earlier requests are skipped."""
        until = self._until()
        while True:
            self._wait(zmq.POLLIN, until)
            header, payload = self._parts(self._socket.recv())
            if header[1] == number:
                return header, payload

    def _until(self) -> float:
        return time.monotonic() + self._timeout_ms / 1000

    def _wait(self, ready: int, until: float) -> None:
        """Wait until the socket is ready for that. Raises if it will not be, or is not in time."""
        self._poller.register(self._socket, ready)
        while sockets := dict(self._poller.poll(_ms_until(until))):
            if self._socket in sockets:
                return
            self._note_event()
        if self._is_hung_up:
            raise NotAllowed(
                f"{self.endpoint} ended each handshake: the agent has keys and this client has "
                "none, or the reverse, or the agent has another key than the one given"
            )
        raise TimeoutError(f"no answer from {self.endpoint} within {self._timeout_ms} ms")

    def _parts(self, frame: bytes) -> tuple[list[Any], bytes]:
        try:
            header, payload = parts(frame)
        except (struct.error, ValueError, msgpack.UnpackException):
            header, payload = [], b""
        if type(header) is not list or len(header) < 2 or type(header[0]) is not str:
            raise NoAgent(
                f"the process that listens at {self.endpoint} is not an agent, or has another "
                "version: its answer does not have the form of docs/protocol.md"
            )
        return header, payload

    def _note_event(self) -> None:
        """Raises what an event of the connection means for certain."""
        event = int.from_bytes(self._events.recv_multipart()[0][:2], sys.byteorder)
        if event == zmq.EVENT_CONNECT_RETRIED:
            raise NoAgent(f"no agent listens at {self.endpoint}")
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            raise NotAllowed(
                f"the agent at {self.endpoint} does not admit this user or key; its log "
                "lines name the refused peers and the reasons"
            )
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            raise NotAllowed(
                f"{self.endpoint} did not accept the handshake: the agent has keys and this "
                "client has none, or the reverse"
            )
        # The side that first sees that the two do not agree closes the connection. The other side
        # sees only that it was closed, as when an agent stops.
        self._is_hung_up = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

    def close(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)


def _ms_until(until: float) -> int:
    return max(0, round(1000 * (until - time.monotonic())))
