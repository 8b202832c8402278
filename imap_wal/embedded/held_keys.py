"""How a map in memory holds its keys: those of the default serializer as the program's own objects,
so a read serialises nothing; others as their bytes.

A key of the default serializer is what a dict would take, and equal keys have the same bytes. So a
dict of the objects has the same keys as one of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import msgpack

from imap_wal.serializer import MsgpackSerializer, PickleSerializer, RawSerializer, Serializer
from imap_wal.typed import TypedSerializer

_LOADS = (MsgpackSerializer.load, PickleSerializer.load, TypedSerializer.load)
CHUNK_KEYS = 10_000
"""How many keys are converted at once."""
SIMPLE = frozenset({str, bytes, int})
"""Types of keys that the default serializer reads as they were."""


class ForeignKey:
    """Bytes that the serializer writes for no key. No read by key finds them."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForeignKey) and other.data == self.data

    def __hash__(self) -> int:
        return hash((ForeignKey, self.data))


class HeldKeys(Protocol):
    """Converts the keys of one map between their bytes and what memory holds."""

    serializer: Serializer[Any, Any]
    direct: ClassVar[bool]
    """Whether a dict of held keys finds a program's key as it is."""

    simple: frozenset[type]
    """Types of a program's keys that are held as they are."""
    keeps_values: bool
    """Whether a value of a simple type may be held as an object, too."""

    def held(self, data: bytes) -> Any:
        """The held key of these bytes."""

    def all_held(self, data: Sequence[bytes]) -> Sequence[Any]:
        """The same for many."""

    def data(self, held: Any) -> bytes:
        """The bytes of a held key."""

    def keys(self, held: Iterable[Any]) -> Iterable[Any]:
        """The program's keys: a list, if they are the held ones. Raises the errors of
        `load_key`."""

    def of_keys(self, keys: Iterable[Any]) -> Iterator[Any]:
        """The reverse, without foreign keys."""


class AsBytes:
    """Held keys are their bytes."""

    direct: ClassVar[bool] = False
    keeps_values = False
    simple: frozenset[type] = frozenset()

    def __init__(self, serializer: Serializer[Any, Any]) -> None:
        self.serializer = serializer

    def held(self, data: bytes) -> Any:
        return data

    def all_held(self, data: Sequence[bytes]) -> Sequence[Any]:
        return data

    def data(self, held: Any) -> bytes:
        data: bytes = held
        return data

    def keys(self, held: Iterable[Any]) -> Iterable[Any]:
        return map(self.serializer.load_key, held)

    def of_keys(self, keys: Iterable[Any]) -> Iterator[Any]:
        return map(self.serializer.dump_key, keys)


class AsRaw(AsBytes):
    """The keys of a raw map are their bytes for the program, too."""

    direct = True

    def keys(self, held: Iterable[Any]) -> Iterable[Any]:
        return [*held]

    def of_keys(self, keys: Iterable[Any]) -> Iterator[Any]:
        return iter(keys)


class AsObjects:
    """Held keys are what the default serializer reads from their bytes."""

    direct: ClassVar[bool] = True

    def __init__(self, serializer: Serializer[Any, Any], simple: frozenset[type] = SIMPLE) -> None:
        self.serializer, self.simple = serializer, simple
        self.keeps_values = getattr(type(serializer), "load", None) in _LOADS

    def held(self, data: bytes) -> Any:
        try:
            key = self.serializer.load_key(data)
            # Other bytes of an equal key are another key in the log.
            return key if self.serializer.dump_key(key) == data else ForeignKey(data)
        except Exception:  # noqa: BLE001  the bytes may be of any program
            return ForeignKey(data)

    def all_held(self, data: Sequence[bytes]) -> Sequence[Any]:
        if len(data) == 1:
            return [self.held(data[0])]
        keys: list[Any] = []
        for start in range(0, len(data), CHUNK_KEYS):
            some = data[start : start + CHUNK_KEYS]
            unpacked = _unpacked(some)
            if unpacked is None or not self.simple.issuperset(map(type, unpacked)):
                unpacked = [*map(self.held, some)]
            keys += unpacked
        return keys

    def data(self, held: Any) -> bytes:
        return held.data if type(held) is ForeignKey else self.serializer.dump_key(held)

    def keys(self, held: Iterable[Any]) -> Iterable[Any]:
        keys = held if isinstance(held, list) else [*held]
        return map(self._key, keys) if ForeignKey in set(map(type, keys)) else keys

    def of_keys(self, keys: Iterable[Any]) -> Iterator[Any]:
        return iter(keys)

    def _key(self, held: Any) -> Any:
        return self.serializer.load_key(held.data) if type(held) is ForeignKey else held


def _unpacked(data: Sequence[bytes]) -> list[Any] | None:
    """The keys of these bytes, in a third of the time that a call for each takes. None: some are
    not as msgpack writes them."""
    unpacker = msgpack.Unpacker(use_list=False, strict_map_key=False, max_buffer_size=0)
    pack = msgpack.Packer(use_bin_type=True).pack
    try:
        unpacker.feed(b"".join(data))
        keys = list(unpacker)
        return keys if [*map(pack, keys)] == [*data] else None
    except Exception:  # noqa: BLE001  the bytes may be of any program
        return None


def held_keys(serializer: Serializer[Any, Any]) -> HeldKeys:
    """How a map with this serializer holds its keys. A class of the user may change the keys of the
    default serializer: then they are held as bytes."""
    kind = type(serializer)
    methods = getattr(kind, "dump_key", None), getattr(kind, "load_key", None)
    if methods == (RawSerializer.dump_key, RawSerializer.load_key):
        return AsRaw(serializer)
    if methods == (MsgpackSerializer.dump_key, MsgpackSerializer.load_key):
        return AsObjects(serializer)
    if methods == (TypedSerializer.dump_key, TypedSerializer.load_key):
        assert isinstance(serializer, TypedSerializer)
        if serializer.simple_key is not None:
            return AsObjects(serializer, frozenset({serializer.simple_key}))
    return AsBytes(serializer)
