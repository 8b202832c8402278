"""Converts keys and values of embedded maps to bytes and back. None of these serializers uses
pickle."""

from __future__ import annotations

import threading
from typing import Any, Protocol, runtime_checkable

import msgpack

from imap_wal.errors import InvalidSetting, NotSerializable, not_text


@runtime_checkable
class Serializer(Protocol):
    """Converts keys and values to bytes and back. `dump_key` must always return the same bytes for
    the same key, because the bytes identify the key. A `dump` function should raise
    `NotSerializable` for an object that it cannot convert."""

    name: str
    """Stored as the class of keys and values. A map can only be read with a serializer of the same
    name."""

    def dump_key(self, key: Any) -> bytes:
        """The bytes of a key. Raises `NotSerializable`."""
        ...

    def load_key(self, data: bytes) -> Any:
        """The key of these bytes. Its errors are raised by the method of the map that reads it."""
        ...

    def dump(self, value: Any) -> bytes:
        """The bytes of a value. Raises `NotSerializable`."""
        ...

    def load(self, data: bytes) -> Any:
        """The value of these bytes. Its errors are raised by the method of the map that reads
        it."""
        ...


class _Packer(threading.local):
    """One packer per thread. It is reused, because creating one takes longer than packing a small
    value."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


def demand_serializer(given: object) -> None:
    """Raise `InvalidSetting` unless it is None or a serializer: a name or a class would fail only
    when entries are read."""
    if given is not None and (isinstance(given, type) or not isinstance(given, Serializer)):
        raise InvalidSetting(
            f"serializer is {given!r}; it takes an object, such as imap_wal.RawSerializer()"
        )


class MsgpackSerializer:
    """The default: for None, bool, int, float, str, bytes, and lists and dicts of these. A tuple in
    a key is read as a tuple, a tuple in a value as a list. `dump` raises `NotSerializable` for
    what msgpack cannot write: other types, ints beyond 64 bits, text with a lone surrogate."""

    name = "msgpack"

    def __init__(self) -> None:
        self._packer = _Packer()

    def dump(self, value: Any) -> bytes:
        try:
            data: bytes = self._packer.pack(value)
        except UnicodeEncodeError as error:
            self._packer = _Packer()
            raise NotSerializable(
                f"cannot write {type(value).__name__} as msgpack: {not_text(error)}; pass "
                "bytes, or a serializer"
            ) from error
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            self._packer = _Packer()  # after a failure, the buffer may be half filled
            raise NotSerializable(
                f"cannot write {type(value).__name__} as msgpack: {error}; pass another type "
                "or a serializer"
            ) from error
        return data

    dump_key = dump

    def load(self, data: bytes) -> Any:
        return msgpack.unpackb(data, strict_map_key=False)

    def load_key(self, data: bytes) -> Any:
        return msgpack.unpackb(data, use_list=False, strict_map_key=False)


class RawSerializer:
    """For keys and values that are bytes; they are stored unchanged. `dump` raises
    `NotSerializable` unless it gets bytes, a bytearray or a memoryview."""

    name = "raw"

    def dump(self, value: Any) -> bytes:
        if type(value) is bytes:
            return value
        if not isinstance(value, bytes | bytearray | memoryview):
            raise NotSerializable(f"a raw map takes bytes, not {type(value).__name__}")
        return bytes(value)

    dump_key = dump

    def load(self, data: bytes) -> Any:
        return data

    load_key = load
