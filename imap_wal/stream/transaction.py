"""Transactions of a stream: what an author builds, what a reader gets, and the entries of a log
between the two.

    map            key                      value
    transactions   [partition, id]          header, data, locks, request
    locks          [partition, lock]        the id of the newest transaction that has written it
    requests       [partition, request]     the id of its transaction; expires after a day

All of them are msgpack, so every tool shows them. The keys of a partition sort by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgpack
import msgspec

from imap_wal.entry import MSGPACK, DataEntry, is_msgpack
from imap_wal.errors import InvalidSetting, NotReadable, NotSerializable
from imap_wal.format import Position
from imap_wal.names import STREAM_MAPS
from imap_wal.partitions import partition_number
from imap_wal.serializer import Serializer, known_serializers
from storage_backends.extras import needs

TRANSACTIONS, LOCKS, REQUESTS = STREAM_MAPS
Header: TypeAlias = str | int
"""What decides the partition of a transaction, such as the number of an account."""
NAME_BYTES_MAX = 1024
"""Of a lock, a header and a request."""
ANY_LOCK = ""
"""A transaction without locks writes a row with this name: the highest id in `locks` is always that
of the newest transaction."""


class Mark(NamedTuple):
    """The last transaction in a view, of one partition. `id` 0: there is none. `position`: where it
    is in the log, as text with the id of its history; "" if that is not known."""

    partition: int
    id: int = 0
    position: str = ""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What an author appends. `data`: what the stream's serializer takes. `read`, `write`,
    `append`: names of locks. The transaction is refused if a newer one than its author has seen
    wrote a lock of `read` or `write`. It writes the locks of `write` and `append`; a lock of
    `append` is never a reason to refuse it. Locks belong to the partition of the header."""

    data: Any
    read: Sequence[str] = ()
    write: Sequence[str] = ()
    append: Sequence[str] = ()

    def __post_init__(self) -> None:
        for mode in ("read", "write", "append"):
            names = getattr(self, mode)
            if isinstance(names, str):
                raise NotSerializable(f"{mode} takes a list of locks, not the text {names!r}")
            plain = [check_name(name, f"a lock of {mode}") for name in names]
            object.__setattr__(self, mode, tuple(dict.fromkeys(plain)))


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A transaction of the log. `time_ms`: when it was appended, Unix time in milliseconds.
    `request`: "" if its author gave none. `place`: where it is in the log."""

    partition: int
    id: int
    header: Header
    data: Any
    read: tuple[str, ...]
    write: tuple[str, ...]
    append: tuple[str, ...]
    time_ms: int
    request: str
    place: Position

    @property
    def position(self) -> str:
        """`place` as text, with the id of its history."""
        return str(self.place)  # few readers need it, and making it takes a fifth of the read

    @property
    def mark(self) -> Mark:
        """The mark of a view that has applied this transaction."""
        return Mark(self.partition, self.id, self.position)


class Logged(NamedTuple):
    """A transaction as the log has it, not decoded."""

    partition: int
    id: int
    value: bytes
    time_ms: int
    place: Position

    @property
    def mark(self) -> Mark:
        return Mark(self.partition, self.id, str(self.place))


class StoredTransaction(msgspec.Struct, omit_defaults=True, frozen=True):
    """The value of a transaction."""

    header: str | int
    data: msgspec.Raw
    """As the serializer wrote it."""
    kind: str = ""
    """The name of a serializer that does not write msgpack; `data` is then its bytes."""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    request: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredTransaction).decode
_unpack_key = msgspec.msgpack.Decoder(tuple[int, int | str]).decode


def check_name(name: Any, what: str) -> str:
    """The name, without a class of its own. Raises `NotSerializable` unless it is text of 1 to 1024
    bytes."""
    if not isinstance(name, str):
        raise NotSerializable(f"{what} is a str, not a {type(name).__name__}")
    try:
        plain = str.__str__(name)
        size = len(plain.encode())
    except UnicodeEncodeError as error:
        raise NotSerializable(f"{what} is not text: {error.reason}") from error
    if not 1 <= size <= NAME_BYTES_MAX:
        raise NotSerializable(f"{what} has {size} bytes; it takes 1 to {NAME_BYTES_MAX}")
    return plain


def check_header(header: Any) -> Header:
    """The header, without a class of its own. Raises `NotSerializable`."""
    if isinstance(header, int):
        number = int(header)
        if not -(2**63) <= number < 2**63:
            raise NotSerializable("a header has at most 64 bits")
        return number
    return check_name(header, "a header that is no int")


def partition_of(header: Header, count: int) -> int:
    """The partition of a checked header, of `count`: that of the same Long or String as a key of a
    map in Hazelcast. It is the MurmurHash3 of 8 bytes, or of the length and the bytes of the
    text."""
    if isinstance(header, int):
        data = header.to_bytes(8, "big", signed=True)
    else:
        text = header.encode()
        data = len(text).to_bytes(4, "big") + text
    if count == 1:
        return 0
    with needs("stream"):
        import mmh3  # noqa: F401  # `partition_number` uses it
    return partition_number(bytes(8) + data) % count


def key_of(partition: int, name: int | str) -> bytes:
    """The key of a transaction, a lock or a request."""
    data: bytes = msgpack.packb((partition, name))
    return data


def name_in(key: bytes) -> int | str:
    """The id, the lock or the request of a key. Raises `NotReadable`."""
    try:
        return _unpack_key(key)[1]
    except (msgspec.MsgspecError, ValueError) as error:
        raise NotReadable(f"this is not the key of a stream: {error}", key) from error


def id_of(key: bytes) -> int:
    """The id in the key of a transaction. Raises `NotReadable`."""
    id = name_in(key)
    if type(id) is not int:
        raise NotReadable("this is not the key of a transaction", key)
    return id


def keys_of(partition: int) -> tuple[bytes, bytes]:
    """All keys of a partition are from the first to before the second."""
    begin = key_of(partition, ANY_LOCK)[:-1]
    return begin, begin + b"\xff"


def id_in(value: bytes) -> int:
    """The id in a row of `locks` or `requests`. Raises `NotReadable`."""
    try:
        id = msgpack.unpackb(value)
    except (ValueError, msgpack.UnpackException) as error:
        raise NotReadable(f"this is not the id of a transaction: {error}", value) from error
    if type(id) is not int:
        raise NotReadable("this is not the id of a transaction", value)
    return id


def ids_in(values: Sequence[bytes]) -> list[int]:
    """`id_in` of many rows."""
    try:
        ids = [*map(msgpack.unpackb, values)]
    except (ValueError, msgpack.UnpackException):
        return [*map(id_in, values)]  # its error names the row
    if {*map(type, ids)} - {int}:
        return [*map(id_in, values)]
    return ids


def packed(
    header: Header,
    transaction: Transaction,
    request: str,
    serializer: Serializer[Any, Any],
) -> bytes:
    """The value of a transaction. Raises `NotSerializable`."""
    data = serializer.dump(transaction.data)
    is_embedded = is_msgpack(serializer.name)
    return _encode(
        StoredTransaction(
            header,
            msgspec.Raw(data if is_embedded else msgpack.packb(data)),
            "" if is_embedded else serializer.name,
            tuple(transaction.read),
            tuple(transaction.write),
            tuple(transaction.append),
            request,
        )
    )


def _decoded(value: bytes) -> StoredTransaction:
    try:
        return _decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _not_a_transaction(error, value) from error


def _not_a_transaction(error: Exception, value: bytes) -> NotReadable:
    return NotReadable(f"this is not a transaction of a stream: {error}", value)


def stored_of(value: bytes) -> StoredTransaction:
    """What `packed` has packed. Raises `NotReadable`, and `NotSerializable` for a name that cannot
    be one."""
    stored = _decoded(value)
    check_header(stored.header)
    for lock in (*stored.read, *stored.write, *stored.append):
        check_name(lock, "a lock")
    if stored.request:
        check_name(stored.request, "a request")
    return stored


def entry_of(name: str, key: bytes, value: bytes, now_ms: int, expires_at_ms: int = 0) -> DataEntry:
    """An entry whose order the log sets."""
    return DataEntry(
        name, key, MSGPACK, value, MSGPACK, False, now_ms, expires_at_ms, 0, (0, 0, 0, 0)
    )


def record_of(logged: Logged, serializer: Serializer[Any, Any]) -> StreamRecord:
    """Raises `NotReadable`: another program wrote it, or another serializer."""
    partition, id, value, time_ms, place = logged
    stored = _decoded(value)
    data = bytes(stored.data)
    if stored.kind:
        try:
            data = msgpack.unpackb(data)
        except ValueError as error:
            raise _not_a_transaction(error, value) from error
    loads = serializer
    if stored.kind != ("" if is_msgpack(serializer.name) else serializer.name):
        loads = known_serializers(serializer).get(stored.kind or MSGPACK, serializer)
        if loads is serializer:
            raise InvalidSetting(
                f"transaction {id} of partition {partition} was written with serializer "
                f"{stored.kind!r}; open the stream with that serializer"
            )
    try:
        value_of_data = loads.load(data)
    except NotReadable as error:
        raise error.at(f"transaction {id} of partition {partition}") from error
    return StreamRecord(
        partition,
        id,
        stored.header,
        value_of_data,
        stored.read,
        stored.write,
        stored.append,
        time_ms,
        stored.request,
        place,
    )
