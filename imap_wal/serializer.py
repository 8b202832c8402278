"""Converts keys and values of embedded maps to bytes and back. None of these serializers uses
pickle."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgpack
from msgpack import Timestamp

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
        """The key of these bytes. The method of the map that reads the key raises its errors."""
        ...

    def dump(self, value: Any) -> bytes:
        """The bytes of a value. Raises `NotSerializable`."""
        ...

    def load(self, data: bytes) -> Any:
        """The value of these bytes. The method of the map that reads the value raises its
        errors."""
        ...


class _Thread(threading.local):
    """One packer per thread. It is reused, because creating one takes longer than packing a small
    value."""

    def __init__(self) -> None:
        self.pack = _new_packer()


def _new_packer() -> Callable[[Any], bytes]:
    pack: Callable[[Any], bytes] = msgpack.Packer(
        use_bin_type=True, strict_types=True, default=_default
    ).pack
    return pack


def _default(value: Any) -> Any:
    """`_plain`, which calls methods of the value. If one of them, or the handler of a signal, uses
    a map, that must not use the packer of this thread, which has the first half of a value."""
    before, _thread.pack = _thread.pack, _pack_apart
    try:
        return _plain(value)
    finally:
        _thread.pack = before


def _pack_apart(value: Any) -> bytes:
    return _new_packer()(value)


def _plain(value: Any) -> Any:
    """The plain value that equals a value of a derived class. Raises TypeError if there is none:
    the value would be read as something else, such as a tuple as a list."""
    for kind in _PLAIN:
        if isinstance(value, kind):
            plain = kind(value)
            if plain == value:
                return plain
    raise TypeError


_REFUSALS = (TypeError, ValueError, OverflowError, BufferError, RecursionError)
"""What packing raises for an object that cannot be packed."""
_PLAIN: tuple[type[Any], ...] = (int, float, str, bytes, dict, list)
_PLAIN_KEYS: tuple[type[Any], ...] = (int, str, bytes)
_ADVICE = (
    "the default serializer keeps None, bool, int, float, str, bytes, lists and dicts; "
    "pass these, or open the map with a custom serializer"
)
_KEY_ADVICE = (
    "a key is None, bool, int, float, str, bytes, or a tuple of these; "
    "pass one of them, or open the map with a custom serializer"
)
_thread = _Thread()
_SMALLEST_INT, _LARGEST_INT = -(2**63), 2**64 - 1
_LEVELS_MAX = 500
"""msgpack writes no values that are nested more deeply."""
_SHOWN_MAX = 60


def demand_serializer(serializer: object) -> None:
    """Raise `InvalidSetting` unless it is None or a serializer: a name or a class would fail only
    when entries are read."""
    if serializer is not None and (
        isinstance(serializer, type) or not isinstance(serializer, Serializer)
    ):
        raise InvalidSetting(
            f"serializer is {serializer!r}; it takes an object, such as imap_wal.RawSerializer()"
        )
    name = None if serializer is None else serializer.name
    if serializer is not None and not (type(name) is str and name and name.isprintable()):
        raise InvalidSetting(f"the name of the serializer is {name!r}; it takes printable text")


class MsgpackSerializer:
    """The default: for None, bool, int, float, str, bytes, and lists and dicts of these. It accepts
    only values that are equal after a read, and raises `NotSerializable` for all others: a tuple in
    a value, ints beyond 64 bits, text with a lone surrogate, other types. The keys of a dict are
    None, bool, int, float, str or bytes. A memoryview is read as bytes, and NaN as NaN.

    A key of the map may also be a tuple of these. Equal keys, such as 1, 1.0 and True, have the
    same bytes, those of the int, or of the float if the int has more than 64 bits. So NaN, which
    equals nothing, cannot be a key."""

    name = "msgpack"

    def dump(self, value: Any) -> bytes:
        try:
            data = _thread.pack(value)
        except _REFUSALS as error:
            _thread.pack = _new_packer()  # after a failure, the buffer may be half filled
            place, problem = self._problem(value)
            raise NotSerializable(f"{problem or error}; {_ADVICE}", shortened(place)) from error
        return data

    def dump_key(self, key: Any) -> bytes:
        kind, plain = type(key), key
        try:
            if kind is not str and kind is not bytes and (kind is not int or _is_long(key)):
                plain = _plain_key(key)
            # A tuple is a list of msgpack, and `load_key` makes it a tuple again.
            data = _thread.pack(plain)
        except _REFUSALS as error:
            _thread.pack = _new_packer()
            if isinstance(error, NotSerializable):
                problem = str(error)
            elif isinstance(error, RecursionError):
                problem = "it has too many levels"
            else:
                problem = self._problem(plain)[1]
            raise NotSerializable(f"{problem or error}; {_KEY_ADVICE}") from error
        return data

    def demand_key(self, key: bytes) -> None:
        """Raise ValueError unless these are bytes that `dump_key` returns."""
        loaded = self.load_key(key)
        if self.dump_key(loaded) != key:
            raise ValueError(
                f"the key {shown(key)} is not the bytes that the default serializer writes for "
                f"{shown(loaded)}"
            )

    def load(self, data: bytes) -> Any:
        try:
            return msgpack.unpackb(data, strict_map_key=False)
        except Exception as error:
            raise _no_msgpack("value", data, error) from error

    def load_key(self, data: bytes) -> Any:
        try:
            return msgpack.unpackb(data, use_list=False, strict_map_key=False)
        except Exception as error:
            raise _no_msgpack("key", data, error) from error

    def _problem(self, value: Any, level: int = 0) -> tuple[str, str]:
        """Where in a refused value the problem is, and what it is; ("", ""): nowhere."""
        if level > _LEVELS_MAX:
            return "", f"it has more than {_LEVELS_MAX} levels"
        if isinstance(value, dict):
            for key, item in value.items():
                if isinstance(key, tuple) or self._leaf_problem(key):
                    refused = self._leaf_problem(key) or f"a {type(key).__name__}"
                    return "", f"{refused} is a key of a dict"
                place, problem = self._problem(item, level + 1)
                if problem:
                    return f"{_step(key)}{place}", problem
        if isinstance(value, list):
            for number, item in enumerate(value):
                place, problem = self._problem(item, level + 1)
                if problem:
                    return f"[{number}]{place}", problem
        return "", "" if isinstance(value, list | dict) else self._leaf_problem(value)

    def _leaf_problem(self, value: Any) -> str:
        try:
            _pack_apart(value)
        except OverflowError:
            return "an int beyond 64 bits"
        except UnicodeEncodeError as error:
            return not_text(error)
        except _REFUSALS:
            return f"a {type(value).__name__}"
        return ""


def _no_msgpack(noun: str, data: bytes, error: Exception) -> ValueError:
    # Some errors of msgpack have no text.
    why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ValueError(f"the {noun} {shown(data)} is not msgpack ({why}): another program wrote it")


def _step(key: Any) -> str:
    """A key of a dict in the place of an error."""
    if isinstance(key, str) and key.isidentifier() and len(key) < _SHOWN_MAX:
        return f".{key}"
    return f"[{shown(key)}]"


def shown(key: object) -> str:
    """A key in an error."""
    try:
        return shortened(repr(key))
    except Exception:  # noqa: BLE001  of thousands of digits or levels, or with a `repr` that fails
        return f"<{type(key).__name__}>"


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _plain_key(key: Any) -> Any:
    """The plain value of a key: the same one for all keys that are equal. Raises
    `NotSerializable`."""
    if key is None or isinstance(key, Timestamp):
        return key
    if isinstance(key, memoryview):
        hash(key)
        return key.tobytes()
    if isinstance(key, tuple):
        return [_plain_key(part) for part in key]
    if isinstance(key, float):
        if key != key:
            raise NotSerializable("NaN equals no key")
        if key.is_integer() and _SMALLEST_INT <= key <= _LARGEST_INT:
            return int(key)
        return float(key)
    for kind in _PLAIN_KEYS:
        if isinstance(key, kind) and kind(key) == key:
            plain = kind(key)
            return _float_of(plain) if kind is int and _is_long(plain) else plain
    raise NotSerializable(f"a {type(key).__name__}")


def _is_long(key: int) -> bool:
    """Whether an int may have more than the 64 bits of msgpack."""
    return key.bit_length() > 63


def _float_of(key: int) -> int | float:
    """The float that equals this key, if only that can be packed."""
    if _SMALLEST_INT <= key <= _LARGEST_INT or key.bit_length() > sys.float_info.max_exp:
        return key
    near = float(key)
    return near if near == key else key


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

    def dump_key(self, key: Any) -> bytes:
        if isinstance(key, bytearray):
            raise NotSerializable("a bytearray cannot be a key, as in a dict; pass bytes")
        return self.dump(key)

    def load(self, data: bytes) -> Any:
        return data

    load_key = load
