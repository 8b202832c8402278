"""Decodes keys and values, so that people can read them: msgpack and raw bytes of embedded maps,
Hazelcast's Data bytes with hazelcast-python-client, and numbers and text of SeaTunnel's engine.

Compact values become dicts: their schemas are in the log. Values that cannot be decoded here (of
the user's Java classes) become `Opaque`, with their class and bytes.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from imap_wal import seatunnel
from imap_wal.entry import (
    KEY,
    KEY_CLASS,
    ORDER,
    PICKLE,
    RAW,
    VALUE,
    VALUE_CLASS,
    Row,
    is_clear,
    is_msgpack,
)
from imap_wal.schemas import Schema, sound_schemas
from imap_wal.serializer import MsgpackSerializer
from storage_backends.extras import needs

_log = logging.getLogger("imap_wal.inspect")
_msgpack = MsgpackSerializer()


@dataclass(frozen=True, slots=True)
class Opaque:
    """Bytes that cannot be read here, with their class in the log."""

    label: str
    data: bytes

    def __str__(self) -> str:
        return f"<{self.label or 'bytes'}, {len(self.data)} bytes>"


@dataclass(frozen=True, slots=True)
class Pairs:
    """A JSON object in which a name occurs twice: a dict would lose one."""

    pairs: tuple[tuple[str, Any], ...]


class Decoder:
    """`metadata`: the log's metadata (schemas), see `ClusterLog` and `MaterializedView.metadata`;
    or a function that finds it, which is called at the first value of a member. `note` is called
    with a sentence about each schema that is not used."""

    def __init__(
        self,
        metadata: Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]] = (),
        note: Callable[[str], None] = _log.warning,
    ) -> None:
        self._note = note
        self._data: Callable[[bytes], Any] | None = None
        self._metadata: dict[tuple[Any, ...], None] = {}
        self._named: set[str] = set()
        self._find: Callable[[], Iterable[tuple[Any, ...]]] = tuple
        if callable(metadata):
            self._find = metadata
        else:
            self.add_metadata(metadata)

    def add_metadata(self, metadata: Iterable[tuple[Any, ...]]) -> None:
        """Add schemas that were found while reading."""
        before = len(self._metadata)
        self._metadata.update((item, None) for item in metadata if item and item[0] == "schema")
        if len(self._metadata) > before:
            self._data = None

    def key(self, row: Row) -> Any:
        """The decoded key; None for a clear."""
        if is_clear(row):
            return None
        label = row[KEY_CLASS]
        is_ours = is_msgpack(label) or label == PICKLE
        return self._decode(row[KEY], label, row[ORDER][1], _msgpack.load_key if is_ours else None)

    def value(self, row: Row) -> Any:
        """The decoded value; None for a tombstone."""
        data, label = row[VALUE], row[VALUE_CLASS]
        if data is None:
            return None
        return self._decode(
            data, label, row[ORDER][1], _msgpack.load if is_msgpack(label) else None
        )

    def _decode(
        self,
        data: bytes,
        label: str,
        partition_version: int,
        load: Callable[[bytes], Any] | None,
    ) -> Any:
        try:
            value: Any = None
            if seatunnel.is_simple(data, label):
                return seatunnel.load(data, label)
            if partition_version:  # only members have partitions
                value = self._of_member(data)
            elif load is not None:
                value = load(data)
            if partition_version or load is not None:
                return value if _is_small(value, len(data)) else Opaque(label, data)
        except ModuleNotFoundError:
            raise  # from hazelcast-python-client: the text names the extra that installs it
        # Any value may be broken in any way; the others must still be shown.
        except Exception:  # noqa: BLE001
            return Opaque(label, data)
        return bytes(data) if label == RAW else Opaque(label, data)

    def _of_member(self, data: bytes) -> Any:
        if self._data is None:
            find, self._find = self._find, tuple
            self.add_metadata(find())
            self._data = _data_reader(self._schemas())
        return self._data(data)

    def _schemas(self) -> Iterable[Schema]:
        """The valid schemas. Each invalid one is reported once."""
        sound, bad = sound_schemas(self._metadata)
        for reason in bad:
            if reason not in self._named:
                self._named.add(reason)
                self._note(
                    "a schema in the log is not used, so values that need it are shown as "
                    f"bytes: {reason}"
                )
        return sound.values()


def _data_reader(schemas: Iterable[Schema]) -> Callable[[bytes], Any]:
    with needs("hazelcast"):
        from hazelcast.config import Config
        from hazelcast.core import HazelcastJsonValue
        from hazelcast.serialization.api import FieldKind
        from hazelcast.serialization.compact import FieldDescriptor
        from hazelcast.serialization.compact import Schema as ClientSchema
        from hazelcast.serialization.data import Data
        from hazelcast.serialization.serialization_const import PYTHON_TYPE_PICKLE
        from hazelcast.serialization.service import SerializationServiceV1

    service = SerializationServiceV1(Config())
    service._registry._id_dict[PYTHON_TYPE_PICKLE] = _Pickle
    compact = service.compact_stream_serializer
    for schema in schemas:
        compact.register_schema_to_id(
            ClientSchema(
                schema.type_name,
                [FieldDescriptor(name, FieldKind(kind)) for name, kind in schema.fields],
            )
        )
        compact._type_name_to_serializer[schema.type_name] = _AsDict()

    def read(data: bytes) -> Any:
        value = service.to_object(Data(bytes(data)))
        if isinstance(value, HazelcastJsonValue):
            return json.loads(value.to_string(), object_pairs_hook=_object)
        return value

    return read


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Pairs:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else Pairs(tuple(pairs))


_LEVELS_MAX = 100
_SHOWN_BYTES_MIN = 1024 * 1024
_SHOWN_FACTOR = 16


def _is_small(value: Any, data_bytes: int) -> bool:
    """Whether the text of a value is about as long as its data. A pickle can contain one list many
    times, or a list that contains itself; its text would be huge."""
    left = _SHOWN_BYTES_MIN + _SHOWN_FACTOR * data_bytes
    waiting = [(value, 1)]
    while waiting:
        part, level = waiting.pop()
        inner: Iterable[Any] = ()
        if isinstance(part, str | bytes | bytearray):
            left -= len(part)
        elif isinstance(part, int):
            left -= part.bit_length() // 8
        elif isinstance(part, dict):
            inner = chain(part.keys(), part.values())
        elif isinstance(part, Pairs):
            inner = chain.from_iterable(part.pairs)
        elif isinstance(part, list | tuple | set | frozenset):
            inner = part
        left -= 8
        if left < 0 or level > _LEVELS_MAX:
            return False
        waiting += [(one, level + 1) for one in inner]
    return True


class _AsDict:
    """Reads any Compact value field by field."""

    def read(self, reader: Any) -> dict[str, Any]:
        return {
            field.name: getattr(reader, f"read_{field.kind.name.lower()}")(field.name)
            for field in reader._schema.fields
        }


class _Pickle(pickle.Unpickler):
    """Reads what a Python client pickled: dict, tuple, set, bytes. Objects of other classes stay
    `Opaque`: creating one runs code that any writer of the map may have chosen."""

    HARMLESS: ClassVar = {
        ("__builtin__", "set"),
        ("__builtin__", "frozenset"),
        ("__builtin__", "complex"),
        ("_codecs", "encode"),
    }

    def __init__(self, source: Any) -> None:
        data = source.read_string().encode()
        _refuse_shared_keys(data)
        super().__init__(io.BytesIO(data))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.HARMLESS:
            raise pickle.UnpicklingError(f"an object of {module}.{name}")
        return super().find_class(module, name)

    @staticmethod
    def read(source: Any) -> Any:
        return _Pickle(source).load()


_HASHABLE = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "REDUCE"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}


def _refuse_shared_keys(data: bytes) -> None:
    """UnpicklingError if a tuple or the like is used twice. If each of many levels contains the
    next one twice, hashing or comparing takes exponential time. Keys and sets are hashed while the
    value is unpickled, before it can be checked."""
    hashable: set[int] = set()
    before, puts = "", 0
    for operation, argument, _ in pickletools.genops(data):
        name = operation.name
        if name in _PUTS:
            number = puts if argument is None else int(argument)
            puts += 1
            if before in _HASHABLE:
                hashable.add(number)
            else:
                hashable.discard(number)
        elif name == "DUP" or (name in _GETS and int(argument or 0) in hashable):
            raise pickle.UnpicklingError("a tuple or a set is used twice")
        else:
            before = name
