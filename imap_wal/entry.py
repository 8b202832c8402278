"""DataEntry: one change of one key, and the order that decides which of two changes is newer.

On disk and on the wire a DataEntry is a msgpack array of ten values. Hot paths use the plain tuple
that msgpack returns, with the indices below. `DataEntry` is the same tuple with named fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgpack
from msgspec import Meta, MsgspecError
from msgspec.msgpack import Decoder, Encoder

Order: TypeAlias = tuple[int, int, int, int]
"""The numbers that decide which of two changes is newer (`imap_wal.rules.newer`). No clock takes
part."""
Pair: TypeAlias = tuple[int, int]
"""(incarnation, partition version): the start of an order."""
ORDER_FIELDS: Final = ("incarnation", "partition_version", "session", "request")
TURNS: Final = 2**32
"""In a member's entry, `partition_version` is Hazelcast's own version times this, plus a turn
(docs/protocol.md)."""
COPIES_MAX = 3
"""In how many logs a plug-in can append each change."""
SHARED_SESSIONS: Final = 2**62
"""The first number of a shared session: one that a plug-in has in the logs of several nodes,
because it appends each change to several agents (`shared_session`). Lower numbers are of one
node."""
_PLUGIN_BITS = 32

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
PARTITION_COUNT: Final = EXPIRES_AT_MS
"""A clear has its number of partitions in this field."""

LOWEST, HIGHEST = -(2**63), 2**63 - 1
"""The range of the integer columns of an archive."""
PARTITIONS_MAX: Final = 2**31 - 1
PARTITION_MAX: Final = PARTITIONS_MAX - 1
"""The limit for a member's entry. An entry of `imap_wal.log` may have any number."""
RAW = "raw"
"""The class of keys and values that are plain bytes."""
MSGPACK = "msgpack"
"""The class of keys and values of the default serializer."""
TYPED = "msgpack["
"""What the class of a map with types begins with, as in `msgpack[str, Order]`."""
PICKLE = "pickle"
"""The class of pickled values; the keys are msgpack."""


class DataEntry(NamedTuple):
    """One upsert, tombstone or clear.

    `key_class`, `value_class`: the classes of key and value, or the name of their serializer.
    `value` is None exactly if `deleted`. `timestamp_ms` and `expires_at_ms` are Unix time in
    milliseconds; `expires_at_ms` 0: never. `partition`: Hazelcast's, 0 in an embedded store.
    `order`: decides which of two changes of a key is newer.

    A clear deletes all keys of one partition: its `key` is None, and its `expires_at_ms` is the
    number of partitions (`imap_wal.rules.cleared`)."""

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


def shared_session(plugin: str, incarnation: int) -> int:
    """The number of a plug-in's shared session in an incarnation, which every agent computes alike.
    Raises ValueError for an incarnation that does not fit."""
    if not 0 <= incarnation < 2 ** (62 - _PLUGIN_BITS):
        raise ValueError(
            f"incarnation {incarnation} is too high for changes in several logs: set copies to 1"
        )
    digest = sha256(plugin.encode()).digest()
    start = int.from_bytes(digest[: _PLUGIN_BITS // 8], "big")
    return SHARED_SESSIONS + (incarnation << _PLUGIN_BITS) + start


def is_shared(order: Order) -> bool:
    """Whether a change may be in the logs of several nodes, with this order."""
    return order[2] >= SHARED_SESSIONS


def is_msgpack(label: str) -> bool:
    """Whether values of this class are msgpack."""
    return label == MSGPACK or label.startswith(TYPED)


Row: TypeAlias = tuple[str, bytes, str, bytes | None, str, bool, int, int, int, Order]
"""A DataEntry as msgpack returns it: a plain tuple."""


def clear_of(
    map_name: str, partition: int, partition_count: int, timestamp_ms: int, order: Order
) -> Row:
    """A clear: it deletes all entries with a lower order in one of `partition_count` partitions."""
    return cast(
        Row, (map_name, None, "", None, "", True, timestamp_ms, partition_count, partition, order)
    )


def is_clear(row: Row | DataEntry) -> bool:
    return row[KEY] is None


def subject(row: Row) -> tuple[str, bytes | tuple[int, int]]:
    """The subject of a row: (map, key), or for a clear (map, (partition count, partition))."""
    return row[MAP], (row[PARTITION_COUNT], row[PARTITION]) if is_clear(row) else row[KEY]


Number: TypeAlias = Annotated[int, Meta(ge=LOWEST, le=HIGHEST)]
Counter: TypeAlias = Annotated[int, Meta(ge=0, le=HIGHEST)]
_Entry: TypeAlias = tuple[
    str,
    bytes | None,
    str,
    bytes | None,
    str,
    bool,
    Number,
    Number,
    Number,
    tuple[Counter, Counter, Counter, Counter],
]
_decode: Final = Decoder(list[_Entry]).decode
_Loose: TypeAlias = int | float | bool | None
decode_loosely: Final = Decoder(
    tuple[
        str,
        bytes | None,
        str,
        bytes | None,
        str,
        _Loose,
        _Loose,
        _Loose,
        _Loose,
        tuple[_Loose, _Loose, _Loose, _Loose],
    ]
).decode
"""One entry whose numbers may have other types and any size, for `check`."""
FAULTS: Final = (MsgspecError, RecursionError, UnicodeDecodeError)
"""All errors that msgspec raises for invalid bytes."""

_UPSERT = (str, bytes, str, bytes, str, bool, int, int, int, tuple)
_TOMBSTONE = (str, bytes, str, NoneType, str, bool, int, int, int, tuple)
_CLEAR = (str, NoneType, str, NoneType, str, bool, int, int, int, tuple)
_ORDER = (int, int, int, int)


def check(row: Any) -> None:
    """Raises ValueError for an entry that must not be logged, because a reader or an archive would
    refuse or misread it."""
    kinds = tuple(map(type, row)) if isinstance(row, tuple) else ()
    if kinds != _UPSERT and kinds != _TOMBSTONE and kinds != _CLEAR:
        raise ValueError("it is not a DataEntry")
    name, key, key_class, value, value_class, deleted, _, expires_at_ms, partition, order = row
    if deleted is not (value is None) or not name or tuple(map(type, order)) != _ORDER:
        raise ValueError("it is not a DataEntry")
    for field, number, lowest, highest in _numbers(row):
        if not lowest <= number <= highest:
            raise ValueError(f"{field} is {number}; it takes {_RANGES[lowest, highest]}")
    if not deleted:
        return
    if key is not None:
        if expires_at_ms:  # with an empty key, this is how an archive stores a clear
            raise ValueError(f"expires_at_ms of a tombstone is {expires_at_ms}; it must be 0")
    elif not 0 <= partition < expires_at_ms <= PARTITIONS_MAX:
        raise ValueError(
            f"a clear names partition {partition} of {expires_at_ms}; partitions are "
            f"numbered from 0, and there are at most {PARTITIONS_MAX}"
        )
    elif key_class or value_class:
        raise ValueError("a clear has key_class or value_class; both must be empty")


_RANGES = {(LOWEST, HIGHEST): "-2^63 to 2^63 - 1", (0, HIGHEST): "0 to 2^63 - 1"}


def _numbers(row: tuple[Any, ...]) -> tuple[tuple[str, Any, int, int], ...]:
    """(field, value, lowest, highest); the fields of the order come last, in their order."""
    incarnation, version, session, request = row[ORDER]
    return (
        ("timestamp_ms", row[TIMESTAMP_MS], LOWEST, HIGHEST),
        ("expires_at_ms", row[EXPIRES_AT_MS], 0, HIGHEST),
        ("partition", row[PARTITION], LOWEST, HIGHEST),
        ("incarnation", incarnation, 0, HIGHEST),
        ("partition_version", version, 0, HIGHEST),
        ("session", session, 0, HIGHEST),
        ("request", request, 0, HIGHEST),
    )


class Upserts(list[Row]):
    """Entries that set keys of one map, and never expire: all have the map and the classes of the
    first one."""


def differing(rows: Sequence[Row]) -> Sequence[Row]:
    """Those of the rows that can differ in map, classes, expiry, and whether they are deleted."""
    return rows[:1] if isinstance(rows, Upserts) else rows


def _like(row: Row) -> tuple[str, str, str, int, int]:
    """What most entries of a file have in common with this one."""
    incarnation, _, session, _ = row[ORDER]
    return row[MAP], row[KEY_CLASS], row[VALUE_CLASS], incarnation, session


def _decode_upserts(
    map_name: str, key_class: str, value_class: str, incarnation: int, session: int
) -> Callable[[bytes], Any]:
    """Decodes valid entries of `Upserts`, and entries that are said to be deleted. Raises for all
    others. What they have in common is not made again for each entry."""
    entry = tuple[
        Literal[map_name],  # type: ignore[valid-type]
        bytes,
        Literal[key_class],  # type: ignore[valid-type]
        bytes,
        Literal[value_class],  # type: ignore[valid-type]
        bool,
        Number,
        Literal[0],
        Number,
        tuple[Literal[incarnation], Counter, Literal[session], Counter],  # type: ignore[valid-type]
    ]
    return Decoder(list[entry]).decode


class EntryDecoder:
    """`decoded` for the batches of one file. Most batches are `Upserts` of the same map as the one
    before. Those are decoded in three quarters of the time, and a reader need not look at each
    entry."""

    def __init__(self, least: int = 500) -> None:
        """`least`: the fewest entries of a batch for which another type takes less time."""
        self._least = least
        self._like: tuple[Any, ...] | None = None
        """`_like` of the batch before."""
        self._decode: tuple[tuple[Any, ...], Callable[[bytes], Any]] | None = None
        """Decodes `Upserts` like that."""
        self._pause = self._pause_next = 0
        """How many batches are not tried, because another one could not be decoded in this way."""

    def decoded(self, payload: Sequence[bytes], count: int) -> list[Row]:
        """`decoded` of a stream in pieces. `Upserts`, if it is known that they are."""
        data = in_array(payload, count)
        if count < self._least:
            return _checked(data)
        if self._pause:
            self._pause -= 1
        elif self._like is not None:
            if self._decode is None or self._decode[0] != self._like:
                self._decode = self._like, _decode_upserts(*self._like)
            try:
                upserts = Upserts(self._decode[1](data))
                if not any(map(itemgetter(DELETED), upserts)):
                    self._pause_next = 0
                    return upserts
            except FAULTS:
                pass
            self._pause = self._pause_next = min(2 * self._pause_next + 1, 63)
        rows = _checked(data)
        self._like = _like(rows[-1]) if _like(rows[0]) == _like(rows[-1]) else None
        return rows


def decoded(payload: bytes, count: int) -> list[Row]:
    """The entries of a msgpack stream of exactly `count` entries, each valid by `check`. Raises
    ValueError for any other stream."""
    return _checked(in_array([payload], count))


def _checked(data: bytes) -> list[Row]:
    try:
        rows = cast(list[Row], _decode(data))
    except FAULTS as error:
        raise ValueError(str(error)) from error
    # Types and ranges are correct. `check` tests the rest: tombstones, clears and empty names.
    for row in [
        row
        for row in rows
        if row[DELETED] is not (row[VALUE] is None)
        or not row[MAP]
        or (row[DELETED] and (row[EXPIRES_AT_MS] or row[KEY] is None))
    ]:
        check(row)
    return rows


def in_array(payload: Sequence[bytes], count: int) -> bytes:
    """A msgpack stream of `count` values, in pieces, as one array."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *payload))


def pack(entry: Row | DataEntry) -> bytes:
    """The msgpack array of one entry."""
    packed: bytes = msgpack.packb(tuple(entry), use_bin_type=True)
    return packed


class _BinHeaders(dict[int, bytes]):
    """Size of a byte string → its msgpack header; the headers of small sizes are cached."""

    def __missing__(self, size: int) -> bytes:
        if size < 2**8:
            header = b"\xc4" + size.to_bytes(1, "big")
        elif size < 2**16:
            header = b"\xc5" + size.to_bytes(2, "big")
        else:
            header = b"\xc6" + size.to_bytes(4, "big")
        if size < 4096:
            self[size] = header
        return header


_encode: Final = Encoder().encode
"""Five times as fast as `msgpack.packb`, for numbers and text the same bytes."""
_bin_header = _BinHeaders().__getitem__
_LAST_BYTE: Final = [bytes((number,)) for number in range(256)]


@lru_cache(1024)
def _around(
    map_name: str, label: str, incarnation: int, session: int
) -> tuple[bytes, bytes, bytes, bytes]:
    """What all upserts of a session in a map have in common, packed: before the key, between key
    and value, between value and timestamp, and between timestamp and request."""
    label_ = _encode(label)
    end = b"\x00\x00\x94" + _encode(incarnation) + b"\x00" + _encode(session)
    return b"\x9a" + _encode(map_name), label_, label_ + b"\xc2", end


def pack_upserts(
    map_name: str,
    label: str,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    timestamp_ms: int,
    incarnation: int,
    session: int,
    request: int,
) -> list[bytes]:
    """The same bytes as `pack`, in chunks of at most 256 entries, for upserts of one map that never
    expire, numbered from `request` on; partition and partition version are 0. The columns are put
    into one list and joined, without Python code for each entry. Up to 256 callers wait
    for this, and it is three times as fast as msgpack."""
    head, label_, middle, end = _around(map_name, label, incarnation, session)
    tail = middle + _encode(timestamp_ms) + end
    if len(keys) == 1:  # common, and columns are slow for one entry
        key, value = keys[0], values[0]
        key_size, value_size = _bin_header(len(key)), _bin_header(len(value))
        number = _encode(request)
        return [b"".join((head, key_size, key, label_, value_size, value, tail, number))]
    return _join_columns(head, label_, tail, keys, values, request)


def _join_columns(
    head: bytes,
    label: bytes,
    tail: bytes,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    request: int,
) -> list[bytes]:
    """`pack_upserts` of many entries. `head` is what comes before a key, `tail` what comes between
    a value and its request, both packed."""
    pieces, start = [], 0
    while start < len(keys):
        low = request & 255  # the numbers of a piece differ only in their last byte
        high = (
            b"\xcf" + (request >> 8).to_bytes(7, "big")
            if request >> 32
            else b"\xce" + (request >> 8).to_bytes(3, "big")
        )
        stop = min(start + 256 - low, len(keys))
        count = stop - start
        some_keys, some_values = (
            (keys, values) if count == len(keys) else (keys[start:stop], values[start:stop])
        )
        columns = [head, b"", b"", label, b"", b"", tail + high, b""] * count
        columns[1::8] = map(_bin_header, map(len, some_keys))
        columns[2::8] = some_keys
        columns[4::8] = map(_bin_header, map(len, some_values))
        columns[5::8] = some_values
        columns[7::8] = _LAST_BYTE[low : low + count]
        pieces.append(b"".join(columns))
        request += count
        start = stop
    return pieces


def rows(payload: bytes | memoryview, max_bytes: int = 2**32 - 1) -> Iterator[Row]:
    """The entries of a msgpack stream, in order. Raises ValueError for invalid bytes."""
    unpacker = msgpack.Unpacker(
        use_list=False, raw=False, max_buffer_size=max_bytes, strict_map_key=False
    )
    unpacker.feed(payload)
    return iter(unpacker)


def values(payload: bytes | memoryview) -> list[Any]:
    """All values of a msgpack stream."""
    return list(rows(payload))
