"""Converts keys and values of embedded maps to bytes and back. `imap_wal.typed` does it for maps
with types."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable
from uuid import UUID

import msgpack
from msgpack import Timestamp

from imap_wal import extension
from imap_wal.errors import InvalidSetting, NotReadable, NotSerializable, not_text

K = TypeVar("K")
V = TypeVar("V")


@runtime_checkable
class Serializer(Protocol[K, V]):
    """Converts keys and values to bytes and back. `dump_key` must always return the same bytes for
    the same key, because the bytes identify the key. A `dump` function should raise
    `NotSerializable` for an object that it cannot convert."""

    name: str
    """Stored as the class of keys and values. A map can only be read with a serializer of the same
    name."""

    def dump_key(self, key: K) -> bytes:
        """The bytes of a key. Raises `NotSerializable`."""
        ...

    def load_key(self, data: bytes) -> K:
        """The key of these bytes. The method of the map that reads the key raises its errors."""
        ...

    def dump(self, value: V) -> bytes:
        """The bytes of a value. Raises `NotSerializable`."""
        ...

    def load(self, data: bytes) -> V:
        """The value of these bytes. The method of the map that reads the value raises its
        errors."""
        ...


class _Thread(threading.local):
    """Packers of one thread: one for values, and one for each level of values in them for which
    `_default` is called. They are reused, because creating one takes longer than packing a small
    value."""

    def __init__(self) -> None:
        self.level = 0
        self.keys_are_checked = False
        """Whether a value is packed whose keys were found to be those of plain values."""
        self.renew()

    def renew(self) -> None:
        """After a failure, the buffer may be half filled."""
        self.packers = [_new_packer()]
        self.pack = self.packers[0] if not self.level else _pack_apart


def _new_packer() -> Callable[[Any], bytes]:
    pack: Callable[[Any], bytes] = msgpack.Packer(
        use_bin_type=True, strict_types=True, default=_default
    ).pack
    return pack


def _default(value: Any) -> Any:
    """What is packed instead of a value that msgpack does not know. This calls methods of the
    value. If one of them, or the handler of a signal, uses a map, that must not use the packer that
    has the first half of a value."""
    level = _thread.level
    if level == extension.LEVELS_MAX:
        raise NotSerializable(f"more than {extension.LEVELS_MAX} levels of tuples and sets")
    before = _thread.pack
    _thread.level, _thread.pack = level + 1, _packer_of(level + 1)
    try:
        return _plain(value)
    finally:
        _thread.level, _thread.pack = level, before


def _packer_of(level: int) -> Callable[[Any], bytes]:
    packers = _thread.packers
    while len(packers) <= level:
        packers.append(_new_packer())
    return packers[level]


def _pack_apart(value: Any) -> bytes:
    return _new_packer()(value)


def _plain(value: Any) -> Any:
    """The extension of a value, or the plain value that equals a value of a derived class. Raises
    TypeError if there is none: the value would be read as something else."""
    same = extension.extension_of(value, _thread.pack)
    if same is None:
        plain = derived(value)
        if not (_is_same_key(value, plain) or _thread.keys_are_checked):
            raise _PerhapsKey
        same = extension.extension_of(plain, _thread.pack)
        return plain if same is None else same
    return same


class _PerhapsKey(Exception):  # never shown
    """The plain value cannot replace this one if it is a key of a dict, or an item of a set."""


def _is_same_key(value: Any, plain: Any) -> bool:
    """Whether a dict that takes the value as a key takes the plain value as the same key."""
    if type(value).__hash__ is None:
        return True
    try:
        return hash(value) == hash(plain)
    except Exception:  # noqa: BLE001  of a method of the value
        return False


def derived(value: Any) -> Any:
    """The value that equals one of a derived class, of the class above that can be stored. Raises
    TypeError if there is none."""
    for kind, convert in _PLAIN.items():
        if isinstance(value, kind):
            plain = convert(value)
            if plain == value:
                return plain
    plain = extension.plain_of(value)
    if plain is None:
        raise TypeError
    return plain


_REFUSALS = (TypeError, ValueError, ArithmeticError, BufferError, RecursionError)
"""What packing raises for an object that cannot be packed."""
_PLAIN: dict[type, Callable[[Any], Any]] = {
    # Not `int` and `str`, which a class can replace: `str` of an enum may be its name.
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: bytes,
    dict: dict,
    list: list,
}
_PLAIN_KEYS: tuple[type[Any], ...] = (int, str, bytes)
_ADVICE = (
    "the default serializer keeps None, bool, int, float, str, bytes, dates and times, Decimal, "
    "UUID, and lists, tuples, sets and dicts of these; pass these, give the map types, as in "
    "map('orders', key=str, value=Order), or open the map with a custom serializer"
)
_KEY_ADVICE = (
    "a key is None, bool, int, float, str, bytes, a date or time, Decimal, UUID, or a tuple or "
    "frozenset of these; pass one of them, or open the map with a custom serializer"
)
_thread = _Thread()
_SMALLEST_INT, _LARGEST_INT = -(2**63), 2**64 - 1
_LEVELS_MAX = 500
"""msgpack writes no values that are nested more deeply."""
_SHOWN_MAX = 60


def serializer_of(given: object) -> Serializer[Any, Any] | None:
    """The serializer that this object is or names; None for None. Raises `InvalidSetting`: a class
    would fail only when entries are read."""
    if given is None:
        return None
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]()
    if isinstance(given, type) or not isinstance(given, Serializer):
        raise InvalidSetting(
            f"serializer is {given!r}; it takes an object, such as imap_wal.RawSerializer(), or "
            f"one of {', '.join(map(repr, _NAMED))}"
        )
    name = given.name
    if not (type(name) is str and name and name.isprintable()):
        raise InvalidSetting(f"the name of the serializer is {name!r}; it takes printable text")
    return given


def known_serializers(own: Serializer[Any, Any]) -> dict[str, Serializer[Any, Any]]:
    """The serializers that a program has without naming them, by name: the default ones, which run
    no code of others, and its own."""
    return {kind.name: kind for kind in (MsgpackSerializer(), RawSerializer(), own)}


class MsgpackSerializer:
    """The default: for None, bool, int, float, str, bytes, datetime, date, time, timedelta,
    Decimal, UUID, and lists, tuples, sets, frozensets and dicts of these. It accepts only values
    that are equal after a read, and raises `NotSerializable` for all others: ints beyond 64 bits,
    text with a lone surrogate, named tuples, other types. A value of a derived class is read as
    one of the class above that equals it. NaN is read as NaN, a memoryview as bytes. A datetime
    keeps its offset, `fold`, and the name of its `ZoneInfo`.

    A key of the map, or of a dict in a value, is None, bool, int, float, str, bytes, datetime,
    date, time, timedelta, Decimal, UUID, or a tuple or frozenset of these. Equal keys of the map
    are one key, as in a dict: 1, 1.0, True and Decimal("1.0") are the int, and so is a number of
    another class that equals it; a datetime with a zone is the same moment in UTC. So NaN, which
    equals nothing, cannot be a key."""

    name = "msgpack"

    def dump(self, value: Any) -> bytes:
        try:
            data = _thread.pack(value)
        except (*_REFUSALS, _PerhapsKey) as error:
            _thread.renew()
            return self._dump_checked(value, error)
        return data

    def _dump_checked(self, value: Any, error: Exception) -> bytes:
        """A value that could not be packed: the error, with the place. After `_PerhapsKey` it is
        packed if there is no problem with its keys."""
        before, _thread.keys_are_checked = _thread.keys_are_checked, True
        try:
            place, problem = self._problem(value)
            if problem or not isinstance(error, _PerhapsKey):
                text = f"{problem or error}; {_ADVICE}"
                raise NotSerializable(text, shortened(place)) from error
            return self.dump(value)
        finally:
            _thread.keys_are_checked = before

    def dump_key(self, key: Any) -> bytes:
        kind, plain = type(key), key
        try:
            if kind is not str and kind is not bytes and (kind is not int or _is_long(key)):
                plain = plain_key(key)
                hash(key)
            # A tuple is a list of msgpack, and `load_key` makes it a tuple again.
            data = _thread.pack(plain)
        except _REFUSALS as error:
            _thread.renew()
            if isinstance(error, NotSerializable):
                problem = str(error)
            elif isinstance(error, RecursionError):
                problem = "it has too many levels"
            elif str(error).startswith("unhashable type: "):
                problem = "a " + str(error).split("'")[1]
            else:
                problem = self._problem(plain)[1]
            raise NotSerializable(f"{problem or error}; {_KEY_ADVICE}") from error
        return data

    def demand_key(self, key: bytes, *, typed: bool = False) -> None:
        """Raise ValueError unless these are bytes that `dump_key` returns; `typed`: that of a
        `TypedSerializer`, whose keys may be objects."""
        loaded = self.load_key(key)
        if (parts_bytes(loaded) if typed else self.dump_key(loaded)) != key:
            raise ValueError(
                f"the key {shown(key)} is not the bytes that the default serializer writes for "
                f"{shown(loaded)}"
            )

    def load(self, data: bytes) -> Any:
        try:
            return msgpack.unpackb(data, strict_map_key=False, ext_hook=_of_value)
        except Exception as error:
            if isinstance(error, TypeError):
                with suppress(Exception):
                    return extension.with_any_keys(data, _of_value)
            raise _no_msgpack("value", data, error) from error

    def load_key(self, data: bytes) -> Any:
        try:
            return msgpack.unpackb(data, use_list=False, strict_map_key=False, ext_hook=_of_key)
        except Exception as error:
            raise _no_msgpack("key", data, error) from error

    def _problem(self, value: Any, level: int = 0) -> tuple[str, str]:
        """Where in a refused value the problem is, and what it is; ("", ""): nowhere."""
        if level > _LEVELS_MAX:
            return "", f"it has more than {_LEVELS_MAX} levels"
        if isinstance(value, dict):
            for key, each in value.items():
                problem = self._problem(key)[1] or self._key_problem(key)
                if problem:
                    return "", f"{problem} is a key of a dict"
                place, problem = self._problem(each, level + 1)
                if problem:
                    return f"{step(key)}{place}", problem
        elif isinstance(value, list) or type(value) is tuple:
            for number, each in enumerate(value):
                place, problem = self._problem(each, level + 1)
                if problem:
                    return f"[{number}]{place}", problem
        elif isinstance(value, set | frozenset):
            problems = (
                self._problem(item, level + 1)[1] or self._key_problem(item) for item in value
            )
            return "", next((f"{problem} in a set" for problem in problems if problem), "")
        return "", "" if isinstance(value, list | dict) else self._leaf_problem(value)

    def _key_problem(self, key: Any) -> str:
        """What is wrong with a key of a dict, or an item of a set, that can be a value."""
        try:
            read = MsgpackSerializer.load(self, _pack_apart(key))
            return "" if key != key or (hash(read) == hash(key) and read == key) else _named(key)
        except Exception:  # noqa: BLE001  of its own methods too
            return _named(key)

    def _leaf_problem(self, value: Any) -> str:
        try:
            _pack_apart(value)
        except NotSerializable as error:
            return str(error)
        except OverflowError:
            return "an int beyond 64 bits"
        except UnicodeEncodeError as error:
            return not_text(error)
        except _REFUSALS:
            return _named(value)
        return ""


def _named(value: object) -> str:
    return f"a {type(value).__name__}"


def _no_msgpack(what: str, data: bytes, error: Exception) -> NotReadable:
    # Some errors of msgpack have no text.
    why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return NotReadable(
        f"the {what} {shown(data)} is not msgpack ({why}): another program wrote it", data
    )


def step(key: Any) -> str:
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


def key_bytes(key: Any) -> bytes:
    """The bytes of a key in a log, as the column `key` of files, scan and Spark has them. For maps
    with the default serializer, with pickled values, and with types. For a key that is an object of
    a class, such as a dataclass, use `TypedSerializer.dump_key`. Raises `NotSerializable`."""
    return MsgpackSerializer().dump_key(key)


def parts_bytes(plain: Any) -> bytes:
    """The bytes of a key that may be a dict. Raises the errors of packing."""
    try:
        return _thread.pack(plain_key(plain))
    except _REFUSALS:
        _thread.renew()
        raise


def plain_key(key: Any, levels: int = extension.LEVELS_MAX) -> Any:
    """The plain value of a key: the same one for all keys that are equal. `levels`: of sets. Raises
    `NotSerializable`."""
    if key is None or isinstance(key, Timestamp):
        return key
    if isinstance(key, memoryview) and _equals(key, key.tobytes()):
        return key.tobytes()
    if type(key) is tuple or (isinstance(key, tuple) and _equals(key, tuple(key))):
        return [plain_key(item, levels) for item in key]
    if isinstance(key, frozenset) and _equals(key, frozenset(key)):
        if not levels:
            raise NotSerializable(f"more than {extension.LEVELS_MAX} levels of sets")
        return extension.set_of(_pack_apart(plain_key(item, levels - 1)) for item in key)
    if type(key) is dict:  # an object as a key of a typed map; `dump_key` refuses it for others
        return {name: plain_key(each, levels) for name, each in key.items()}
    if isinstance(key, Decimal) and _equals(key, Decimal(key)):
        key = _plain_decimal(key)
    if type(key) is float or (isinstance(key, float) and _equals(key, float(key))):
        if key != key:
            raise NotSerializable("NaN equals no key")
        if key.is_integer() and _SMALLEST_INT <= key <= _LARGEST_INT:
            return int(key)
        return float(key)
    for kind in _PLAIN_KEYS:
        if isinstance(key, kind):
            plain = _PLAIN[kind](key)
            if type(key) is kind or _equals(key, plain):
                return _float_of(plain) if kind is int and _is_long(plain) else plain
    if isinstance(key, datetime | time):
        key = _plain_time(key)
    plain = extension.plain_of(key)
    if isinstance(plain, date | time | timedelta | Decimal | UUID) and _equals(key, plain):
        return extension.extension_of(plain, _pack_apart)
    number = equal_number(key)
    if number is None:
        raise NotSerializable(_named(key))
    return plain_key(number)


def equal_number(key: Any) -> int | float | None:
    """The int or float that equals a number of another class, as of numpy; None: there is none."""
    for kind in (int, float):
        with suppress(Exception):  # it is no number, or none of this kind
            number = kind(key.real)
            if _equals(key, number):
                return number
    return None


def _equals(key: Any, plain: Any) -> bool:
    """Whether a dict takes both as one key."""
    return type(key) is type(plain) or (plain == key and _is_same_key(key, plain))


def _plain_decimal(key: Decimal) -> int | float | Decimal:
    """The int or float that equals it; else it has no zeros at its end."""
    if key.is_nan():
        raise NotSerializable("NaN equals no key")
    if key.is_infinite():
        return float(key)
    digits = len(key.as_tuple().digits)
    short = Context(digits, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[]).normalize(key)
    if int(short.as_tuple().exponent) >= 0:
        if short.adjusted() > sys.float_info.max_10_exp:
            raise NotSerializable("a whole number beyond 64 bits")
        return int(short)
    near = float(short)
    return near if near == short else short


def _plain_time(key: Any) -> Any:
    """The time in UTC, without `fold`, which does not count when times are compared."""
    if key.tzinfo is None:
        return key.replace(fold=0)
    if not isinstance(key, datetime):
        raise NotSerializable("a time with a time zone")
    utc = key.astimezone(UTC)
    if utc != key:
        raise NotSerializable(
            "a datetime that is ambiguous or does not exist in its time zone, so it equals no "
            "other; pass it in UTC"
        )
    return utc


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
        if type(key) is bytes:
            return key
        if isinstance(key, bytearray):
            raise NotSerializable("a bytearray cannot be a key, as in a dict; pass bytes")
        return self.dump(key)

    def load(self, data: bytes) -> Any:
        return data

    load_key = load


class PickleSerializer(MsgpackSerializer):
    """Values by `pickle`, keys as in other maps. **Only for logs that no one else can write:
    whoever can write into the log, its folder or its bucket can run any code in each process that
    reads the map.** A pickle also depends on the module and the fields of its class: a value may
    not be readable after they are renamed. `imap-wal` and Spark show only the bytes. Prefer types:
    `store.map("orders", key=str, value=Order)`."""

    name = "pickle"

    def dump(self, value: Any) -> bytes:
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # of the value's own methods
            raise NotSerializable(f"it cannot be pickled: {error}") from error

    def load(self, data: bytes) -> Any:
        try:
            return pickle.loads(data)  # noqa: S301  it was asked for
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise NotReadable(
                f"the value {shown(data)} cannot be unpickled ({why})", data
            ) from error


SerializerName: TypeAlias = Literal["msgpack", "raw", "pickle"]
_NAMED: dict[str, type[Serializer[Any, Any]]] = {
    kind.name: kind for kind in (MsgpackSerializer, RawSerializer, PickleSerializer)
}
_of_value, _of_key = extension.reader(use_list=True), extension.reader(use_list=False)
