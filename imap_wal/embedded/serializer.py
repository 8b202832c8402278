"""How the embedded map turns keys and values into bytes and back. Never pickle, unless the user
passes a serializer that does."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import msgpack

from imap_wal.errors import NotSerializable, not_text


class Serializer(Protocol):
    """Two pairs of functions. `dump_key` must give the same bytes for the same key, always: they
    are its identity."""

    name: str
    """Written beside keys and values as their class, for people who read the log."""

    def dump_key(self, key: Any) -> bytes: ...
    def load_key(self, data: bytes) -> Any: ...
    def dump(self, value: Any) -> bytes: ...
    def load(self, data: bytes) -> Any: ...


class _Packer(threading.local):
    """A packer is not for two threads; making one costs more than packing a small value."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


class MsgpackSerializer:
    """The default: None, bool, int, float, str, bytes, lists and dicts of these. A key that is a
    tuple comes back as a tuple, a value as a list."""

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
            self._packer = _Packer()  # a failed pack may leave a half-filled buffer behind
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
    """Keys and values are bytes already, and stay as they are."""

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
