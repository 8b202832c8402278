"""Files as SeaTunnel's `imap-storage-file` 2.3.8 writes them. `tests/cli/test_import_seatunnel.py`
compares the bytes with those of its own classes."""

from __future__ import annotations

import struct
from pathlib import Path

LONG, TEXT = "java.lang.Long", "java.lang.String"


def number(value: int) -> bytes:
    """A varint of 64 bits."""
    left, data = value & (2**64 - 1), bytearray()
    while left > 127:
        data.append(left & 127 | 128)
        left >>= 7
    return bytes([*data, left])


def serialized(value: bool | float | str) -> bytes:
    """What its ProtoStuffSerializer writes for a Boolean, Long, Double or String."""
    if isinstance(value, bool):
        content = b"\x08" + number(value)
    elif isinstance(value, int):
        content = b"\x30" + number(value)
    elif isinstance(value, float):
        content = b"\x41" + struct.pack("<d", value)
    else:
        content = b"\x4a" + number(len(value.encode())) + value.encode()
    return b"\x0b" + content + b"\x0c"


def record(
    key: bytes,
    value: bytes | None,
    timestamp_ms: int,
    *,
    key_class: str = LONG,
    value_class: str = TEXT,
) -> bytes:
    """One change; without a value, a deletion."""
    fields = [(2, key), (3, key_class.encode())]
    if value is not None:
        fields += [(4, value), (5, value_class.encode())]
    data = b"\x08" + number(value is None)
    for field, content in fields:
        data += bytes([field << 3 | 2]) + number(len(content)) + content
    data += b"\x30" + number(timestamp_ms)
    return len(data).to_bytes(4, "little") + bytes(8) + data


def change(key: int, value: str | None, timestamp_ms: int) -> bytes:
    return record(serialized(key), None if value is None else serialized(value), timestamp_ms)


def write(folder: Path, name: str, start: int, data: bytes, file: str = "wal.txt") -> Path:
    """A file of one start of a server. `folder`: of the cluster."""
    path = folder / name / str(start) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
