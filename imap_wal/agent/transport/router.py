"""The interface between an agent's loop and its socket. `docs/protocol.md` describes the messages.

ipc://   `local`: the loop itself reads and writes the connections
tcp://   `network`: libzmq does, also for agents with keys
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack

from imap_wal.agent.access.peers import Peer
from imap_wal.agent.bounds import HEADER_MEMORY
from imap_wal.agent.requests import Malformed, Request, kind_of, read, with_payload
from imap_wal.worker import Worker

_HEADER = struct.Struct(">I")
"""An answer begins with the size of its header."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the connection `sender`: a request, or a malformed one. `user`: the public key
    of the connection; "": none. `Router.peer` returns the peer when the message is served."""

    sender: bytes
    request: Request | Malformed
    payload: bytes
    header_bytes: int = 0
    user: str = ""

    @property
    def kind(self) -> str:
        """The kind of the request; "" if it cannot be read."""
        return kind_of(self.request)

    @property
    def memory(self) -> int:
        """Its approximate memory in bytes while it waits. Of a malformed message, only the reason
        is kept."""
        return (
            0
            if isinstance(self.request, Malformed)
            else HEADER_MEMORY * self.header_bytes + len(self.payload)
        )


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """`open`: connections now. `most`: their limit. `refused`: connections that were closed because
    they were too many or broke the protocol."""

    open: int
    most: int
    refused: int


class Outbox(Protocol):
    """Sends the answers of one thread."""

    def send(self, to: bytes, header: Sequence[Any], payload: bytes | bytearray = b"") -> None:
        """Send an answer. If the connection has ended, the answer is lost; the peer sends the
        request again after its next hello. A bytearray is extended in place, not copied; it is
        released when it has left the agent."""

    def close(self) -> None: ...


class Router(Protocol):
    """The socket of an agent, for the serving thread. Other threads answer through `outbox()`, and
    may call `shut` and read the properties."""

    endpoint: str
    revoked: int
    """The number of connections that were closed because their keys were revoked."""

    @property
    def refused(self) -> int:
        """How many peers the access rules refused."""

    @property
    def statistics(self) -> ConnectionStatistics: ...

    @property
    def workers(self) -> list[Worker]:
        """The background threads."""

    def outbox(self) -> Outbox:
        """An outbox for another thread. Call it in that thread."""

    def receive(self, timeout_ms: int, most: int = 1024) -> list[Message]:
        """All waiting requests, at most `most` and about `RECEIVED_BYTES`; waits up to `timeout_ms`
        for the first one."""

    def peer(self, user: str) -> Peer:
        """The peer of a message's `user`, with its current rights. Thread-safe."""

    def send(self, to: bytes, header: Sequence[Any], payload: bytes | bytearray = b"") -> None:
        """As `Outbox.send`."""

    def greeted(self, sender: bytes) -> None:
        """The hello of this connection was accepted, so it is not closed to make room."""

    def shut(self, sender: bytes, why: str) -> None:
        """Close the connection of this sender, and log the reason."""

    def gone(self) -> list[bytes]:
        """The senders whose connections have ended since the last call."""

    def close(self, wait: bool = True) -> None:
        """Send the remaining answers for a short time, and close. `wait=False`: another thread may
        be stuck in an outbox, which then ends with the process."""


def decode(sender: bytes, header: bytes, payload: bytes, frames: int) -> Message:
    if frames != 2:
        text = (
            f"a message has a header [kind, number, ...] and a payload; this one has {frames} "
            "frames"
        )
        return Message(sender, Malformed("", 0, text), b"")
    request = with_payload(read(header), len(payload))
    return Message(sender, request, b"" if isinstance(request, Malformed) else payload, len(header))


def joined(header: Sequence[Any], payload: bytes | bytearray) -> bytes | bytearray:
    """The frame of an answer. A bytearray is extended in place. The text of an error may quote a
    name that is not valid Unicode."""
    packed: bytes = msgpack.packb(header, unicode_errors="backslashreplace")
    front = _HEADER.pack(len(packed)) + packed
    if isinstance(payload, bytearray):
        payload[:0] = front
        return payload
    return front + payload


def parts(frame: bytes) -> tuple[list[Any], bytes]:
    """Header and payload of an answer."""
    end = _HEADER.size + _HEADER.unpack_from(frame)[0]
    header: list[Any] = msgpack.unpackb(frame[_HEADER.size : end], strict_map_key=False)
    return header, frame[end:]
