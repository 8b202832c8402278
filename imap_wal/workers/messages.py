"""What the processes send each other: a length of four bytes, and one msgpack value.

    hello     ["hello", VERSION, client, kind, acknowledged]    client: 16 random bytes for each
              socket; kind: what it expects there, such as maps
    welcome   ["welcome", VERSION, pid, largest message, largest value], or ["replaced" or "other",
              text]
    request   [number, kind, …]                           one at a time on each socket
    answer    [number, "ok", value] or [number, "error", class, text, fields];
              before it, any number of [number, "part", value]

`acknowledged` is what the log must have because it was acknowledged to this process; what it is
depends on the kind.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from imap_wal import errors
from imap_wal.errors import ImapWalError, TooLarge

VERSION = 1
HELLO_BYTES_MAX = 256 * 1024
ANSWER_BYTES_MAX = 2**32 - 1
"""Of a message of the process that serves."""
SMALL_BYTES = 64 * 1024
PART_BYTES = 1024 * 1024

_LENGTH = struct.Struct(">I")


class NotUnderstood(ImapWalError):
    """A message does not have the form of this version. Use the same version of imap-wal in all
    processes."""


def send(connection: socket.socket, message: Sequence[Any], bytes_max: int) -> None:
    """Raises `TooLarge` before anything is sent."""
    data = msgpack.packb(message)
    if len(data) > bytes_max:
        raise TooLarge(
            f"a request of {len(data)} bytes is larger than the {bytes_max} bytes that the process "
            "that serves the store accepts; split it, or raise ring_bytes there"
        )
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(
    connection: socket.socket,
    bytes_max: int,
    has_begun: Callable[[int], object] = lambda size: None,
) -> list[Any]:
    """The next message. `has_begun` is called with its size before it is read. Raises
    ConnectionError at the end of the connection, OSError, and `NotUnderstood`."""
    (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if size > bytes_max:
        raise NotUnderstood(f"a message of {size} bytes is too large; at most {bytes_max} are read")
    has_begun(size)
    try:
        message = msgpack.unpackb(_read(connection, size), use_list=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise NotUnderstood(f"a message is not msgpack: {error}") from None
    if not isinstance(message, list) or not message:
        raise NotUnderstood("a message is not a list")
    return message


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 2**20))
        if not part:
            raise ConnectionResetError("the other process has closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_hello(message: list[Any]) -> tuple[bytes, str, Any]:
    """The client, what it expects, and what the log must have. Raises `NotUnderstood`."""
    match message:
        case ["hello", version, *_] if version != VERSION:
            raise NotUnderstood(f"a client has version {version!r}, and this process {VERSION}")
        case ["hello", _, bytes(client), str(kind), acknowledged] if len(client) == 16:
            return client, kind, acknowledged
    raise NotUnderstood("the first message is not a hello")


# ---- errors ----

_BUILT_IN: Mapping[str, type[Exception]] = {"TypeError": TypeError, "ValueError": ValueError}
_FROM_TEXT = (
    *("NotAppended", "NotSerializable", "TooLarge", "OutcomeUnknown", "Fenced", "LostRace"),
    *("Closed", "MissingNode", "InvalidSetting", "StorageUnavailable"),
)
_WITH_FIELDS: Mapping[str, tuple[str, ...]] = {
    "Conflict": ("lock", "partition", "newest", "seen"),
    "PositionGone": ("asked", "oldest"),
    "OtherHistory": ("asked", "oldest"),
}


def error_fields(error: Exception) -> list[Any]:
    """The class, the text and the attributes of an error."""
    name = type(error).__name__
    values = [getattr(error, field) for field in _WITH_FIELDS.get(name, ())]
    return [name, str(error), values]


def error_of(name: Any, text: Any, values: Any = ()) -> Exception:
    """The error of an answer."""
    if name in _FROM_TEXT:
        made: Exception = getattr(errors, name)(str(text))
        return made
    if name in _WITH_FIELDS and len(values) == len(_WITH_FIELDS[name]):
        kind: type[ImapWalError] = getattr(errors, name)
        with_fields = kind.__new__(kind, str(text))
        for field, value in zip(_WITH_FIELDS[name], values, strict=True):
            setattr(with_fields, field, value)
        return with_fields
    return _BUILT_IN.get(name, ImapWalError)(str(text))
