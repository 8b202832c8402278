"""DataEntry: one change of one key, and the order that says which of two changes is newer.

On disk and on the wire a DataEntry is one msgpack array of ten. In hot paths it stays the plain tuple msgpack gives back; the
indices below name its fields. `DataEntry` is the same tuple with names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

Order: TypeAlias = tuple[int, int, int, int]
"""(incarnation, partition_version, session, request). The greater tuple is the newer change. No clock takes part."""

MAP: Final = 0
KEY: Final = 1
KEY_CLASS: Final = 2
VALUE: Final = 3
VALUE_CLASS: Final = 4
DELETED: Final = 5
TIMESTAMP_MS: Final = 6
EXPIRES_AT_MS: Final = 7
PARTITION: Final = 8
ORDER: Final = 9


class DataEntry(NamedTuple):
    """One upsert or tombstone. `value` is None exactly when `deleted`; `expires_at_ms` is Unix time, 0 for never."""

    map: str
    key: bytes
    key_class: str
    value: bytes | None
    value_class: str
    deleted: bool
    timestamp_ms: int
    expires_at_ms: int
    partition: int
    order: Order


Row: TypeAlias = tuple[str, bytes, str, bytes | None, str, bool, int, int, int, Order]
"""A DataEntry as msgpack gives it back: a plain tuple."""


def pack(entry: Row | DataEntry) -> bytes:
    """The msgpack array of one entry."""
    packed: bytes = msgpack.packb(tuple(entry), use_bin_type=True)
    return packed


SMALL_UPSERT: Final = b"%b\xc4%c%b%b\xc4%c%b%b\xce%b"
"""What `pack` gives for an upsert whose key and value have at most 255 bytes each, to be filled with: head, key's length, key, middle, value's length, value,
tail, and the request as four bytes. Head, middle and tail are `small_upsert_parts`. A fifth quicker than msgpack, where every microsecond is 256 callers'."""


def small_upsert_parts(map_name: str, label: str, timestamp_ms: int, incarnation: int, session: int) -> tuple[bytes, bytes, bytes]:
    """What the small upserts of one map in one commit have in common: all but key, value and request. They never expire; partition and its version are 0."""
    name, label_, timestamp = msgpack.packb(map_name), msgpack.packb(label), msgpack.packb(timestamp_ms)
    order = b"\x94" + msgpack.packb(incarnation) + b"\x00" + msgpack.packb(session)
    return b"\x9a" + name, label_, label_ + b"\xc2" + timestamp + b"\x00\x00" + order


def rows(payload: bytes | memoryview, max_bytes: int = 2**32 - 1) -> Iterator[Row]:
    """The entries of a msgpack stream, in order. Raises ValueError where it is not one."""
    unpacker = msgpack.Unpacker(use_list=False, raw=False, max_buffer_size=max_bytes, strict_map_key=False)
    unpacker.feed(payload)
    return iter(unpacker)


def values(payload: bytes | memoryview) -> list[Any]:
    """All values of a msgpack stream."""
    return list(rows(payload))
