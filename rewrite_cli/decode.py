"""Keys and values as people want to read them: msgpack and raw bytes of embedded maps, Hazelcast's Data bytes through hazelcast-python-client.

Compact values come back as dicts: their schemas are in the log. What nobody here can read (a Java class of the user's) comes back as `Opaque`, with its
class and bytes.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import msgpack

from imap_wal.entry import KEY, KEY_CLASS, ORDER, VALUE, VALUE_CLASS, Row, is_clear

_HASH_BYTES = 4
_SCHEMA_HEADER_BYTES = 8 + 1 + 4 + 4
"""Of a schema's Data: partition hash and type, then "is identified", factory, class."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """Bytes that cannot be read here, and what the log says they are."""

    label: str
    data: bytes

    def __str__(self) -> str:
        return f"<{self.label or 'bytes'}, {len(self.data)} bytes>"


class Decoder:
    """`metadata` is what the log holds of it (schemas); see `ClusterLog` and `LiveView.metadata`."""

    def __init__(self, metadata: Iterable[tuple[Any, ...]] = ()) -> None:
        self._data: Callable[[bytes], Any] | None = None
        self._schemas = {item[1]: item[2] for item in metadata if item and item[0] == "schema"}

    def add_metadata(self, metadata: Iterable[tuple[Any, ...]]) -> None:
        """Schemas that came up while reading."""
        new = {item[1]: item[2] for item in metadata if item and item[0] == "schema" and item[1] not in self._schemas}
        if new:
            self._schemas.update(new)
            self._data = None

    def key(self, row: Row) -> Any:
        """None for a clear."""
        return None if is_clear(row) else self._decode(row[KEY], row[KEY_CLASS], row[ORDER][1])

    def value(self, row: Row) -> Any:
        """None for a tombstone."""
        data = row[VALUE]
        return None if data is None else self._decode(data, row[VALUE_CLASS], row[ORDER][1])

    def _decode(self, data: bytes, label: str, partition_version: int) -> Any:
        try:
            if partition_version:  # only a member has partitions
                return self._of_member(data)
            if label == "msgpack":
                return msgpack.unpackb(data, strict_map_key=False)
        except ModuleNotFoundError:
            raise  # hazelcast-python-client: the command line says which extra brings it
        except Exception:  # noqa: BLE001  # a value of any kind may be broken in any way; the reader still gets the others
            return Opaque(label, data)
        return bytes(data) if label == "raw" else Opaque(label, data)

    def _of_member(self, data: bytes) -> Any:
        if self._data is None:
            self._data = _data_reader(self._schemas)
        return self._data(data)


def _data_reader(schemas: Mapping[int, bytes]) -> Callable[[bytes], Any]:
    from hazelcast.config import Config
    from hazelcast.core import HazelcastJsonValue
    from hazelcast.serialization.data import Data
    from hazelcast.serialization.input import _ObjectDataInput
    from hazelcast.serialization.serialization_const import PYTHON_TYPE_PICKLE
    from hazelcast.serialization.service import SerializationServiceV1

    service = SerializationServiceV1(Config())
    service._registry._id_dict[PYTHON_TYPE_PICKLE] = _Pickle
    compact = service.compact_stream_serializer
    for data in schemas.values():
        schema = _schema(_ObjectDataInput(bytes(data), _SCHEMA_HEADER_BYTES, service, True))
        compact.register_schema_to_id(schema)
        compact._type_name_to_serializer[schema.type_name] = _AsDict()

    def read(data: bytes) -> Any:
        value = service.to_object(Data(bytes(data)))
        return value.loads() if isinstance(value, HazelcastJsonValue) else value

    return read


class _AsDict:
    """Reads any Compact value field by field."""

    def read(self, reader: Any) -> dict[str, Any]:
        return {field.name: getattr(reader, f"read_{field.kind.name.lower()}")(field.name) for field in reader._schema.fields}


class _Pickle(pickle.Unpickler):
    """What a Python client pickled: dict, tuple, set, bytes. Objects of other classes stay `Opaque`: making one runs code, which whoever could write
    to the map has chosen."""

    HARMLESS: ClassVar = {("__builtin__", "set"), ("__builtin__", "frozenset"), ("__builtin__", "complex"), ("_codecs", "encode")}

    def __init__(self, source: Any) -> None:
        super().__init__(io.BytesIO(source.read_string().encode()))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.HARMLESS:
            raise pickle.UnpicklingError(f"an object of {module}.{name}")
        return super().find_class(module, name)

    @staticmethod
    def read(source: Any) -> Any:
        return _Pickle(source).load()


def _schema(source: Any) -> Any:
    from hazelcast.serialization.api import FieldKind
    from hazelcast.serialization.compact import FieldDescriptor, Schema

    name = source.read_string()
    return Schema(name, [FieldDescriptor(source.read_string(), FieldKind(source.read_int())) for _ in range(source.read_int())])


def plain(value: Any) -> Any:
    """What JSON can carry: dates as ISO text, decimals as text, bytes as {"hex"}, opaque ones as {"class", "hex"}; keys of dicts as text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Opaque():
            return {"class": value.label, "hex": bytes(value.data).hex()}
        case bytes() | bytearray() | memoryview():
            return {"hex": bytes(value).hex()}
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case dict():
            return {key if isinstance(key, str) else json.dumps(plain(key), ensure_ascii=False): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _:
            return repr(value)


def text(value: Any) -> str:
    """On one line of a table."""
    match value:
        case str():
            return value
        case Opaque():
            return str(value)
        case _:
            return json.dumps(plain(value), ensure_ascii=False)
