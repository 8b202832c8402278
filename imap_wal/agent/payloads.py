"""The payloads of requests with changes and schemas, checked: what is in the log must always be
readable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from imap_wal import entry, layout
from imap_wal.entry import (
    HIGHEST,
    KEY,
    LOWEST,
    MAP,
    ORDER,
    PARTITION,
    PARTITION_COUNT,
    PARTITION_MAX,
    VALUE,
)
from imap_wal.errors import TooLarge
from imap_wal.schemas import BadSchema, Schema, check_known, read_schema


class Checked(NamedTuple):
    """`clears`: whether there is a clear. `maps`: the names of all maps."""

    clears: bool
    maps: set[str]


def check_entries(
    payload: bytes,
    count: int,
    first: tuple[int, int, int],
    value_bytes_max: int,
    partition_count: int,
) -> Checked:
    """Checks that every value is a DataEntry of this incarnation and session, numbered from the
    request on (`first`: these three), because the log must always be readable. Raises ValueError
    and `TooLarge`."""
    incarnation, session, request = first
    name, clears, maps = "", False, set[str]()
    for row in _entries(payload, count, request):
        key, value, order = row[KEY], row[VALUE], row[ORDER]
        if row[MAP] != name:
            name = row[MAP]
            layout.check_map_name(name)
            maps.add(name)
        if not 0 <= row[PARTITION] <= PARTITION_MAX:
            raise ValueError(
                f"request {request}: partition is {row[PARTITION]}; it takes 0 to 2^31 - 2"
            )
        if order != (incarnation, order[1], session, request):
            raise ValueError(
                f"an entry has order {order} where ({incarnation}, partition version, "
                f"{session}, {request}) belongs"
            )
        if key is None:
            _check_count(row[PARTITION_COUNT], partition_count)
            clears = True
        elif value is not None and len(key) + len(value) > value_bytes_max:
            raise TooLarge(
                f"map {name!r}: key and value take {len(key) + len(value)} bytes, "
                f"max_value_bytes is {value_bytes_max}"
            )
        request += 1
    return Checked(clears, maps)


def _entries(payload: bytes, count: int, request: int) -> Sequence[tuple[Any, ...]]:
    """The entries of a payload of exactly `count` entries. Raises ValueError, which names the first
    invalid one."""
    try:
        return entry.decoded(payload, count)
    except ValueError:
        for number, row in enumerate(_values(payload, count)):
            try:
                entry.check(row)
            except ValueError as error:
                raise ValueError(f"request {request + number}: {error}") from error
        raise


def _check_count(count: int, of_hello: int) -> None:
    """A clear with a lower number of partitions would delete keys of other partitions."""
    if not of_hello:
        raise ValueError("a clear needs the number of partitions; say hello with partition_count")
    if count != of_hello:
        raise ValueError(
            f"a clear is for one of {count} partitions; the hello of this connection gave "
            f"partition_count {of_hello}"
        )


def schemas_of(payload: bytes, count: int, known: Mapping[int, Schema]) -> dict[int, Schema]:
    """The schemas of a metadata message by their ids. Raises `BadSchema` if one is not valid, or if
    another schema is known by its id."""
    found: dict[int, Schema] = {}
    for kind, number, content in _values(payload, count):
        if (
            kind != "schema"
            or type(number) is not int
            or not LOWEST <= number <= HIGHEST
            or type(content) is not bytes
        ):
            raise ValueError('a metadata array is ["schema", a signed number of 64 bits, bytes]')
        try:
            schema = read_schema(number, content)
            check_known(number, schema, known)
            check_known(number, schema, found)
        except BadSchema as error:
            raise BadSchema(f"Compact schema {number}: {error}") from error
        found[number] = schema
    return found


def without_front(payload: bytes, count: int) -> bytes:
    unpacker = msgpack.Unpacker(max_buffer_size=2**32 - 1)
    unpacker.feed(payload)
    for _ in range(count):
        unpacker.skip()
    return payload[unpacker.tell() :]


def _values(payload: bytes, count: int) -> Iterator[Any]:
    """The values of a stream of exactly `count` values. Raises ValueError."""
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=2**32 - 1, strict_map_key=False)
    unpacker.feed(payload)
    for number in range(count):
        try:
            yield unpacker.unpack()
        except UnicodeDecodeError as error:
            text = error.object[max(0, error.start - 20) : error.start + 20]
            raise ValueError(
                f"value {number + 1} of {count} has text that is not UTF-8, at byte "
                f"{error.start} of it: {text!r}"
            ) from error
    if unpacker.tell() != len(payload):
        raise ValueError(f"{count} values are announced, and the payload has more")
