"""Keys and values of SeaTunnel's engine, as decision 98 defines them, and the simple ones decoded.

    ┌────────────────┬──────────────┬───────────────────────────────────┐
    │ length, 2 bytes│ name of class│ bytes of its ProtoStuffSerializer │
    └────────────────┴──────────────┴───────────────────────────────────┘

The serializer writes a number, a text or a truth value as the field 1 of a wrapper, a group:

    0b   tag of the value   value   0c
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

_GROUP, _END = b"\x0b", b"\x0c"
_KINDS: Final = {
    "java.lang.Boolean": 0x08,
    "java.lang.Integer": 0x28,
    "java.lang.Long": 0x30,
    "java.lang.Double": 0x41,
    "java.lang.String": 0x4A,
}
"""Class → tag of its value."""
_TYPES: Final[Mapping[str, Any]] = {
    "java.lang.Boolean": bool,
    "java.lang.Integer": int,
    "java.lang.Long": int,
    "java.lang.Double": float,
    "java.lang.String": str,
}
VARINT_BYTES_MAX = 10


def form_of(name: str, data: bytes) -> bytes:
    """The bytes in a log for the serializer's bytes of an object of the class `name`."""
    encoded = name.encode()
    return len(encoded).to_bytes(2, "big") + encoded + data


def is_simple(data: bytes, label: str) -> bool:
    """Whether a key or value of a log has this form, and the class of a simple value. Hazelcast's
    Data never has: its fifth to eighth byte are the number of a type, and not part of a name."""
    return label in _KINDS and data.startswith(form_of(label, b""))


def load(data: bytes, label: str) -> bool | int | float | str:
    """The value of `is_simple` bytes. Raises ValueError for bytes that the serializer does not
    write: two keys are never shown as one."""
    content = data[len(form_of(label, b"")) :]
    if content[:2] != _GROUP + bytes((_KINDS[label],)) or content[-1:] != _END:
        raise ValueError(f"the serializer writes no such {label}")
    body = content[2:-1]
    if label == "java.lang.Double":
        if len(body) != struct.calcsize("<d"):
            raise ValueError("the length of a number is wrong")
        return float(*struct.unpack("<d", body))
    number, end = varint(body, 0)
    if label == "java.lang.String":
        text = body[end:]
        if len(text) != number:
            raise ValueError("the length of a text is wrong")
        return text.decode()
    if end != len(body):
        raise ValueError("there are bytes after a number")
    if label == "java.lang.Boolean":
        if number > 1:
            raise ValueError(f"{number} is not a Boolean; it must be 0 or 1")
        return number == 1
    number = signed(number)
    if label == "java.lang.Integer" and not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is too large or too small for an Integer")
    return number


def forms(value: Any) -> Iterator[bytes]:
    """The bytes for which `load` returns this value: of each class that has it."""
    for label, tag in _KINDS.items():
        if type(value) is not _TYPES[label]:
            continue
        if label == "java.lang.Double":
            body = struct.pack("<d", value)
        elif label == "java.lang.String":
            text = value.encode("utf-8", "replace")
            body = _varint_of(len(text)) + text
        else:
            body = _varint_of(value % 2**64)
        data = form_of(label, _GROUP + bytes((tag,)) + body + _END)
        with suppress(ValueError):  # an int may be too large for its class
            if load(data, label) == value:
                yield data


def _varint_of(number: int) -> bytes:
    parts = bytearray()
    while number >= 128:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of at most 64 bits at this place, and where it ends. Raises ValueError if
    it is cut off, too large, or longer than the serializer writes it."""
    if at < len(data) and data[at] < 128:  # common
        return data[at], at + 1
    number = shift = 0
    for byte in data[at : at + VARINT_BYTES_MAX]:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if not byte or number >= 2**64:
                break
            return number, at + shift // 7
    raise ValueError(f"byte {at} begins no number")


def signed(number: int) -> int:
    """A number of 64 bits as Java reads it."""
    return number - 2**64 if number >= 2**63 else number
