"""Reads records of Apache SeaTunnel's `imap-storage-file`, as 2.3.8 writes them.

    ┌────────────────────────┬─────────┬─────────────────────────────┐
    │ length, little-endian  │ zeros   │ IMapFileData, as protostuff │
    │ 4 bytes                │ 8 bytes │                             │
    └────────────────────────┴─────────┴─────────────────────────────┘

    1 deleted  2 key  3 class of the key  4 value  5 class of the value  6 Unix time in milliseconds

A record of a deletion has no value and no class of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, NamedTuple, TypeAlias

from imap_wal.seatunnel import VARINT_BYTES_MAX, signed, varint
from imap_wal.settings import Settings

HEAD_BYTES = 12
SEARCHED_BYTES = 1024 * 1024
RECORD_BYTES_MAX = 2 * Settings().max_value_bytes
DELETED, KEY, KEY_CLASS, VALUE, VALUE_CLASS, TIMESTAMP = range(1, 7)
_VARINT, _BYTES = 0, 2
_TYPES = dict.fromkeys(range(1, 7), _BYTES) | {DELETED: _VARINT, TIMESTAMP: _VARINT}


class StoredChange(NamedTuple):
    """One change of a key. `value_at`, `value_bytes`: where its value is in the file."""

    key_class: str
    key: bytes
    timestamp_ms: int
    deleted: bool
    value_class: str
    value_at: int
    value_bytes: int


class Damaged(ValueError):
    """There is no record at `position`. `torn`: perhaps the writer ended before the record did."""

    def __init__(self, position: int, problem: str, *, torn: bool = False) -> None:
        super().__init__(problem)
        self.position, self.torn = position, torn


def changes(file: BinaryIO, size: int, position: int = 0) -> Iterator[tuple[int, StoredChange]]:
    """The changes in a file of `size` bytes from `position` on, with the position of each record,
    in the order in which they were written. Raises `Damaged`."""
    file.seek(position)
    while position < size:
        head = file.read(HEAD_BYTES)
        length = int.from_bytes(head[:4], "little", signed=True)
        if len(head) < HEAD_BYTES:
            raise Damaged(position, "the file ends before the record does", torn=True)
        if not any(head) and _is_zero(file):
            # What a machine leaves that lost its power: SeaTunnel does not sync local files.
            raise Damaged(position, "the file ends in zeros", torn=True)
        if any(head[4:]) or not 0 < length <= RECORD_BYTES_MAX:
            raise Damaged(position, "no length of a record is there, or the record is too large")
        data = file.read(length)
        torn = len(data) < length
        try:
            fields = _fields(data, cut=torn)
            change = None if torn else _change(data, fields, position + HEAD_BYTES)
        except KeyError as error:
            raise Damaged(position, f"the record has no field {error}") from error
        except ValueError as error:
            raise Damaged(position, f"the record cannot be read: {error}") from error
        if change is None:
            raise Damaged(position, "the file ends before the record does", torn=True)
        yield position, change
        position += HEAD_BYTES + length


_MAYBE = re.compile(rb".{4}\0{8}\x08[\0\1]\x12", re.DOTALL)
"""How a record begins: its length, and the fields 1 and 2."""
_MAYBE_BYTES = 15


def next_place(file: BinaryIO, position: int) -> int | None:
    """The first place after a damaged record where another one may begin. A writer whose disk was
    full leaves a part of a record, and then the whole."""
    at, held = position + 1, b""
    file.seek(at)
    while part := file.read(SEARCHED_BYTES):
        held += part
        if matched := _MAYBE.search(held):
            return at + matched.start()
        at += max(len(held) - _MAYBE_BYTES, 0)
        held = held[-_MAYBE_BYTES:]
    return None


_Fields: TypeAlias = dict[int, tuple[int, int]]
"""Number of a field → (0, its number), or where it begins and ends."""


def _fields(data: bytes, *, cut: bool) -> _Fields:
    """The fields of a record, in rising order as the serializer writes them. `cut`: the last one
    may be incomplete. Raises ValueError."""
    fields: _Fields = {}
    at = former = 0
    size = len(data)
    while at < size:
        number, kind = data[at] >> 3, data[at] & 7
        if not former < number <= TIMESTAMP or kind != _TYPES[number]:
            raise ValueError(f"byte {at} begins no field")
        if cut and at + VARINT_BYTES_MAX >= size:
            return fields
        value, at = varint(data, at + 1)
        if kind == _VARINT:
            fields[number] = 0, value
        else:
            fields[number] = at, at + value
            at += value
        former = number
    if at > size and not cut:
        raise ValueError(f"field {former} is cut off")
    return fields


def _change(data: bytes, fields: _Fields, start: int) -> StoredChange:
    deleted = fields[DELETED][1] != 0
    value_at, value_end = (0, 0) if deleted else fields[VALUE]
    return StoredChange(
        _class(data[slice(*fields[KEY_CLASS])]),
        data[slice(*fields[KEY])],
        signed(fields[TIMESTAMP][1]),
        deleted,
        "" if deleted else _class(data[slice(*fields[VALUE_CLASS])]),
        start + value_at,
        value_end - value_at,
    )


@lru_cache
def _class(name: bytes) -> str:
    if not 0 < len(name) < 2**16:
        raise ValueError(f"the name of a class has {len(name)} bytes")
    return name.decode()


def _is_zero(file: BinaryIO) -> bool:
    return not any(map(any, iter(lambda: file.read(1024 * 1024), b"")))
