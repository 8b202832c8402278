"""ZMTP 3.0 (https://rfc.zeromq.org/spec/23) as a ROUTER without keys speaks it: bytes ↔ frames. It
does no input or output.

    greeting   FF, 8 bytes, 7F | major version, minor version | mechanism, 20 bytes | 32 bytes
    frame      flags(1): 1 more, 2 long, 4 command | size(1, or 8 big-endian when long) | body
    command    size of the name(1), name, data; in the handshake READY or ERROR, later PING
"""

from __future__ import annotations

import struct

MORE, LONG, COMMAND = 1, 2, 4
GREETING_BYTES = 64
COMMAND_BYTES_MAX = 4096
"""The largest command. A READY has about 50 bytes."""
_SIZE = struct.Struct(">Q")
_NULL = b"NULL".ljust(20, b"\0")

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + _NULL + bytes(32)


class NotZmtp(Exception):
    """The bytes are not those of a ZMTP 3 peer without keys."""


def check_greeting(greeting: bytes) -> None:
    """Raises `NotZmtp` unless the peer speaks version 3 or later, without keys."""
    if greeting[0] != 0xFF or not greeting[9] & 1 or greeting[10] < 3:
        raise NotZmtp("it does not speak ZMTP 3")
    if greeting[12:32] != _NULL:
        raise NotZmtp("it uses keys, and this endpoint has none")


def check_ready(body: bytes) -> None:
    """Raises `NotZmtp` unless this is the READY of a socket that may connect to a ROUTER."""
    if not body.startswith(b"\x05READY"):
        raise NotZmtp("its handshake has no READY")
    at, kind = 6, b""
    while at < len(body):
        name_end = at + 1 + body[at]
        value_at = name_end + 4
        at, name = value_at + int.from_bytes(body[name_end:value_at]), body[at + 1 : name_end]
        if at > len(body):
            raise NotZmtp("its READY is cut off")
        if name.lower() == b"socket-type":
            kind = body[value_at:at]
    if kind not in (b"DEALER", b"REQ"):
        raise NotZmtp(f"its socket is a {kind!r}, and only a DEALER or a REQ may ask")


def pong(body: bytes) -> bytes | None:
    """The frame that answers a command after the handshake; None: it needs no answer. A PING has a
    time to live (2 bytes) and up to 16 more, which the PONG repeats."""
    if not body.startswith(b"\x04PING"):
        return None
    return _command(b"\x04PONG" + body[7:23])


def frame_header(size: int) -> bytes:
    """What precedes the body of a message's only frame."""
    return bytes((0, size)) if size < 256 else b"\x02" + _SIZE.pack(size)


def long_size(data: bytes, at: int) -> int:
    """The size in a long frame that begins at `at`."""
    size: int = _SIZE.unpack_from(data, at + 1)[0]
    return size


def _command(body: bytes) -> bytes:
    return bytes((COMMAND, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4) + value


READY = _command(b"\x05READY" + _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b""))
REFUSED = _command(b"\x05ERROR\x03400")
"""The form in which libzmq sends the decision of an agent's access rules."""
