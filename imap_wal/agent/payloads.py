"""The payloads of requests with changes and schemas, checked: what is in the log must always be
readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgpack
from msgspec import Meta, MsgspecError
from msgspec.msgpack import Decoder

from imap_wal import entry
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
from imap_wal.names import check_map_name
from imap_wal.rules.valid import demand_size
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
            check_map_name(name)
            maps.add(name)
        if not 0 <= row[PARTITION] <= PARTITION_MAX:
            raise ValueError(
                f"request {request}: partition is {row[PARTITION]}; it takes 0 to 2^31 - 2"
            )
        if order != (incarnation, order[1], session, request):
            raise ValueError(
                f"an entry has order {order}; it must be ({incarnation}, partition version, "
                f"{session}, {request})"
            )
        if key is None:
            _check_count(row[PARTITION_COUNT], partition_count)
            clears = True
        else:
            demand_size(f"map {name!r}", key, value, value_bytes_max)
        request += 1
    return Checked(clears, maps)


_NAMED_MAX = 10_000
"""An invalid entry is searched for only among this many, because other requests wait meanwhile."""


def _entries(payload: bytes, count: int, request: int) -> Sequence[tuple[Any, ...]]:
    """The entries of a payload of exactly `count` entries. Raises ValueError, which names the first
    invalid entry if it is near the start."""
    try:
        return entry.decoded(payload, count)
    except ValueError:
        for number, value in enumerate(islice(_values(payload, count), _NAMED_MAX)):
            try:
                entry.check(_read(entry.decode_loosely, value, "it is not a DataEntry"))
            except UnicodeDecodeError as error:
                raise _not_utf8(error, number, count) from error
            except ValueError as error:
                raise ValueError(f"request {request + number}: {error}") from error
        raise


def _check_count(count: int, of_hello: int) -> None:
    """A clear with a lower number of partitions would delete keys of other partitions."""
    if not of_hello:
        raise ValueError("a clear needs the number of partitions; send hello with partition_count")
    if count != of_hello:
        raise ValueError(
            f"a clear is for one of {count} partitions; the hello of this connection gave "
            f"partition_count {of_hello}"
        )


def schemas_of(payload: bytes, count: int, stored: Mapping[int, Schema]) -> dict[int, Schema]:
    """The schemas of a metadata message by their ids. Raises `BadSchema` if one is not valid, or if
    another schema is known by its id."""
    schemas: dict[int, Schema] = {}
    shape = 'a metadata array is ["schema", a signed number of 64 bits, bytes]'
    for value in _values(payload, count):
        _, number, content = _read(_decode_schema, value, shape)
        try:
            schema = read_schema(number, content)
            check_known(number, schema, stored)
            check_known(number, schema, schemas)
        except BadSchema as error:
            raise BadSchema(f"Compact schema {number}: {error}") from error
        schemas[number] = schema
    return schemas


_decode_schema = Decoder(
    tuple[Literal["schema"], Annotated[int, Meta(ge=LOWEST, le=HIGHEST)], bytes]
).decode

T = TypeVar("T")


def _read(decode: Callable[[bytes], T], value: bytes, shape: str) -> T:
    """A value of the shape that `decode` knows. No object is made from any other value, because it
    could take a hundred times its bytes in memory. Raises ValueError with the text `shape`, and
    UnicodeDecodeError."""
    try:
        return decode(value)
    except (MsgspecError, RecursionError) as error:
        raise ValueError(shape) from error


def without_front(payload: bytes, count: int) -> bytes:
    unpacker = msgpack.Unpacker(max_buffer_size=2**32 - 1)
    unpacker.feed(payload)
    for _ in range(count):
        unpacker.skip()
    return payload[unpacker.tell() :]


def _values(payload: bytes, count: int) -> Iterator[bytes]:
    """The bytes of each value of a stream of exactly `count` values. Raises ValueError."""
    unpacker = msgpack.Unpacker(max_buffer_size=2**32 - 1)
    unpacker.feed(payload)
    start = 0
    for _ in range(count):
        unpacker.skip()
        end = unpacker.tell()
        yield payload[start:end]
        start = end
    if start != len(payload):
        raise ValueError(f"{count} values are announced, and the payload has more")


def _not_utf8(error: UnicodeDecodeError, number: int, count: int) -> ValueError:
    text = error.object[max(0, error.start - 20) : error.start + 20]
    return ValueError(
        f"value {number + 1} of {count} has text that is not UTF-8, at byte {error.start} of it: "
        f"{text!r}"
    )
