"""Compact schemas in the log. Only bytes as a Hazelcast member writes them are accepted.

    partition hash 0 · type -2 · 1 · factory -42 · class 1 · type name · number of fields · (field
    name · kind) …

Numbers have four bytes (the 1 after the type has one), big-endian; a name is its length and its
UTF-8 bytes. Fields are sorted by name. The id of a schema is a Rabin fingerprint of its content, so
content that does not fit its id is detected. It is not a secure hash: two schemas with the same id
can be constructed. So the schema of a known id is never replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

SCHEMA_BYTES_MAX = 256 * 1024
READ_BYTES_MAX = 2 * 1024 * 1024
"""The limit of the cache of parsed schemas. A schema of 10,000 fields is smaller; the plug-in has
the same limit."""

_HEADER = struct.Struct(">iib")
_CLASS = {order: struct.pack(f"{order}ii", -42, 1) for order in "><"}
"""Factory and class. A member can be configured to write little-endian numbers."""
_FIELD_BYTES_MIN = 8
_KINDS = frozenset(range(1, 47)) - {5, 6, 31, 32}
"""Hazelcast's numbers of field kinds, except those that Compact does not use: CHAR, PORTABLE, and
arrays of these."""

_EMPTY = 0xC15D213AA4D7A795


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))
        table.append(value)
    return tuple(table)


_TABLE = _table()


class BadSchema(ValueError):
    """The bytes are not a schema, or not the one with this id. The text gives the reason and the
    byte."""


@dataclass(frozen=True, slots=True)
class Schema:
    """`fields`: (name, kind), sorted by name; kinds as Hazelcast numbers them."""

    type_name: str
    fields: tuple[tuple[str, int], ...]

    @property
    def id(self) -> int:
        """A signed 64-bit integer."""
        content = [_packed(self.type_name, "<"), struct.pack("<i", len(self.fields))]
        content += [_packed(name, "<") + struct.pack("<i", kind) for name, kind in self.fields]
        crc = _EMPTY
        for byte in b"".join(content):
            crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
        return crc - (1 << 64) if crc >> 63 else crc

    def to_bytes(self) -> bytes:
        """The bytes for the log."""
        content = [
            _HEADER.pack(0, -2, 1),
            _CLASS[">"],
            _packed(self.type_name, ">"),
            struct.pack(">i", len(self.fields)),
        ]
        content += [_packed(name, ">") + struct.pack(">i", kind) for name, kind in self.fields]
        return b"".join(content)


def _packed(name: str, order: str) -> bytes:
    data = name.encode()
    return struct.pack(f"{order}i", len(data)) + data


class _Source:
    """Reads numbers and names. Raises `BadSchema` if the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.order = data, 0, ">"

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise BadSchema(
                f"{size} bytes are announced at byte {self.at}, but only {self.left} are left"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self) -> int:
        return int(struct.unpack(f"{self.order}i", self.take(4))[0])

    def name(self) -> str:
        data = self.take(self.integer())
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BadSchema(f"the name before byte {self.at} is not UTF-8") from error


class _Read:
    """The schemas that were read last, by id and bytes, up to READ_BYTES_MAX bytes. A parsed schema
    with many short fields takes several times its bytes in memory."""

    def __init__(self) -> None:
        self.bytes = 0
        self._found: dict[tuple[int, bytes], Schema] = {}
        self._lock = Lock()

    def get(self, key: tuple[int, bytes]) -> Schema | None:
        with self._lock:
            schema = self._found.pop(key, None)
            if schema is not None:
                self._found[key] = schema  # now the last to be evicted
            return schema

    def put(self, key: tuple[int, bytes], schema: Schema) -> None:
        with self._lock:
            if self._found.setdefault(key, schema) is schema:
                self.bytes += len(key[1])
            while self.bytes > READ_BYTES_MAX:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self.bytes -= len(oldest[1])


_read = _Read()


def read_schema(schema_id: int, data: bytes) -> Schema:
    """The schema with this id, from the bytes in the log. Raises `BadSchema`."""
    key = schema_id, data
    schema = _read.get(key)
    if schema is None:
        schema = _parsed(schema_id, data)
        _read.put(key, schema)
    return schema


def _parsed(schema_id: int, data: bytes) -> Schema:
    if len(data) > SCHEMA_BYTES_MAX:
        raise BadSchema(f"it has {len(data)} bytes, and may have at most {SCHEMA_BYTES_MAX}")
    source = _Source(data)
    header = _HEADER.unpack(source.take(_HEADER.size))
    if header != (0, -2, 1):
        raise BadSchema(
            f"it begins with partition hash, type and flags {header}; those of a schema are "
            "(0, -2, 1)"
        )
    named = source.take(8)
    source.order = "<" if named == _CLASS["<"] else ">"
    if named != _CLASS[source.order]:
        raise BadSchema(
            f"factory and class at byte {_HEADER.size} are {struct.unpack('>ii', named)}; "
            "those of a schema are (-42, 1)"
        )
    type_name = source.name()
    count = source.integer()
    if not 0 <= count <= source.left // _FIELD_BYTES_MIN:
        raise BadSchema(
            f"{count} fields are announced in the {source.left} bytes after byte {source.at}"
        )
    fields: list[tuple[str, int]] = []
    last: bytes | None = None
    for number in range(1, count + 1):
        name = source.name()
        place = name.encode("utf-16-be")  # the order of Java's strings
        if last is not None and place <= last:
            raise BadSchema(f"field {number} is not in the order of names, before byte {source.at}")
        last, kind = place, source.integer()
        if kind not in _KINDS:
            raise BadSchema(f"no field has kind {kind}, before byte {source.at}")
        fields.append((name, kind))
    if source.left:
        raise BadSchema(f"{source.left} bytes follow its end at byte {source.at}")
    schema = Schema(type_name, tuple(fields))
    if schema.id != schema_id:
        raise BadSchema(f"its type name and fields have the id {schema.id}")
    return schema


def check_known(schema_id: int, schema: Schema, schemas: Mapping[int, Schema]) -> None:
    """Raises `BadSchema` if another schema has this id."""
    before = schemas.get(schema_id, schema)
    if before != schema:
        fields = ", ".join(name for name, _ in before.fields)
        raise BadSchema(
            f"another schema has that id: type {before.type_name!r} with fields {fields!r:.200}"
        )


def sound_schemas(metadata: Iterable[tuple[Any, ...]]) -> tuple[dict[int, Schema], list[str]]:
    """The valid schemas of a log's metadata by their ids, and a text for each of the others: its id
    and what is wrong. If two schemas have the same id, neither is valid, because it is not known
    which of them the values were written with."""
    sound: dict[int, Schema] = {}
    ambiguous: set[int] = set()
    bad: list[str] = []
    for item in metadata:
        if not item or item[0] != "schema":
            continue
        if len(item) != 3 or type(item[1]) is not int or not isinstance(item[2], bytes):
            bad.append(f"{repr(item)[:200]} is not [schema, id, bytes]")
            continue
        _, schema_id, data = item
        try:
            schema = read_schema(schema_id, data)
        except BadSchema as error:
            bad.append(f"Compact schema {schema_id}: {error}")
            continue
        try:
            check_known(schema_id, schema, sound)
        except BadSchema as error:
            bad.append(f"Compact schema {schema_id}: {error}")
            ambiguous.add(schema_id)
        sound.setdefault(schema_id, schema)
    return {
        schema_id: schema for schema_id, schema in sound.items() if schema_id not in ambiguous
    }, bad
