"""What the processes send each other: a length of four bytes, and one msgpack value.

    hello     ["hello", VERSION, client, kind, acknowledged]    client: 16 random bytes for each
              socket; kind: what it expects there, such as maps
    welcome   ["welcome", VERSION, number of the server, largest message, largest value], or
              ["replaced", text], ["other", text], ["failed", class, text, attributes]
    request   [number, kind, …]                           one at a time on each socket
    answer    [number, "ok", value] or [number, "error", class, text, attributes];
              before it, any number of [number, "part", value]

`acknowledged` is what the log must have because it was acknowledged to this process; what it is
depends on the kind.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from imap_wal import errors
from imap_wal.errors import ImapWalError, StorageUnavailable, TooLarge

VERSION = 1
HELLO_BYTES_MAX = 256 * 1024
ANSWER_BYTES_MAX = 2**32 - 1
"""Of a message of the process that serves."""
SMALL_BYTES = 64 * 1024
PART_BYTES = 1024 * 1024

_LENGTH = struct.Struct(">I")
_TLS = 0x1603
"""The first bytes of a client that begins TLS."""


class NotUnderstood(ImapWalError):
    """A message does not have the form of this version. Use the same version of imap-wal in all
    processes."""


def send(connection: socket.socket, message: Sequence[Any], bytes_max: int) -> None:
    """Raises `TooLarge` before anything is sent."""
    data = msgpack.packb(message)
    if len(data) > bytes_max:
        raise TooLarge(
            f"a request of {len(data)} bytes is larger than the {bytes_max} bytes that the process "
            "that serves accepts; split it, or raise ring_bytes there"
        )
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(
    connection: socket.socket,
    bytes_max: int,
    has_begun: Callable[[int], float | None] = lambda size: None,
) -> list[Any]:
    """The next message. `has_begun` is called with its size before it is read, and may return the
    time when it must have arrived, in monotonic seconds. Raises ConnectionError at the end of the
    connection, OSError, and `NotUnderstood`."""
    (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if size > bytes_max:
        raise NotUnderstood(
            f"a message of {size} bytes is too large; at most {bytes_max} are read"
            + (": the client uses TLS, and this server has no certificates" * (size >> 16 == _TLS))
        )
    end = has_begun(size)
    try:
        message = msgpack.unpackb(_read(connection, size, end), use_list=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise NotUnderstood(f"a message is not msgpack: {error}") from None
    if not isinstance(message, list) or not message:
        raise NotUnderstood("a message is not a list")
    return message


def _read(connection: socket.socket, size: int, end: float | None = None) -> bytes:
    parts = []
    while size:
        if end is not None and time.monotonic() >= end:
            raise TimeoutError("the rest of a message did not arrive in time")
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
_TEXT_MAX = 1000
"""A longer attribute of an error, such as the value that cannot be read, is cut."""


def error_fields(error: Exception) -> list[Any]:
    """The class, the text and the plain attributes of an error."""
    if isinstance(error, OSError):
        error = StorageUnavailable(str(error))
    attributes = {
        name: value[:_TEXT_MAX] if isinstance(value, str | bytes) else value
        for name, value in vars(error).items()
        if type(value) in (str, bytes, int, bool)
    }
    return [type(error).__name__, str(error), attributes]


def error_of(name: Any, text: Any, attributes: Any = None) -> Exception:
    """The error of an answer."""
    if name == NotUnderstood.__name__:
        return NotUnderstood(str(text))
    kind = getattr(errors, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, ImapWalError)):
        return _BUILT_IN.get(name, ImapWalError)(str(text))
    made = kind.__new__(kind, str(text))
    made.args = (str(text),)
    vars(made).update(attributes or {})
    return made
