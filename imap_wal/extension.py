"""Values of Python that msgpack has no type for, as extension types of msgpack (docs/format.md).

    1 tuple       a msgpack array
    2 set         a msgpack array, its items sorted by their bytes
    3 frozenset   the same
    4 datetime    text, ISO 8601: 2026-10-25T02:30:00+01:00[Europe/Paris][fold=1]
    5 date        text, ISO 8601: 2026-10-25
    6 time        text, ISO 8601: 02:30:00
    7 timedelta   text, ISO 8601: P1DT2.5S
    8 Decimal     text: 1.50
    9 UUID        16 bytes

A reader returns a content that is not valid as `ExtType`, like an extension of another code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import msgspec
from msgpack import ExtType

from imap_wal.errors import NotSerializable

LEVELS_MAX: Final = 16
"""How deeply tuples and sets may be nested in each other. Each level is decoded by a call of its
own, which takes 40 KB of the stack."""
_TUPLE, _SET, _FROZENSET = 1, 2, 3
_FOLD: Final = "fold=1"


def extension_of(value: Any, pack: Callable[[Any], bytes]) -> ExtType | None:
    """The extension of a value of exactly one of these types; None: it has another type. `pack`
    packs what is in a tuple or set. Raises `NotSerializable` for a time zone without a name."""
    kind = type(value)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        code, write, _ = scalar
        return ExtType(code, write(value))
    if kind is tuple:
        return ExtType(_TUPLE, pack(list(value)))
    if kind is set or kind is frozenset:
        return set_of(map(pack, value), kind)
    return None


def set_of(items: Iterable[bytes], kind: type = frozenset) -> ExtType:
    """The extension of a set of packed items."""
    ordered = sorted(items)
    header = msgpack.Packer().pack_array_header(len(ordered))
    return ExtType(_SET if kind is set else _FROZENSET, header + b"".join(ordered))


def plain_of(value: Any) -> Any:
    """A value of exactly one of these types that equals one of a derived type; None: there is none.
    The fields of a named tuple would be lost, so it has none."""
    for kind, convert in _PLAIN.items():
        if isinstance(value, kind):
            plain = convert(value)
            return plain if plain == value else None
    return None


def reader(*, use_list: bool, levels: int = LEVELS_MAX) -> Callable[[int, bytes], Any]:
    """The `ext_hook` of msgpack. `use_list`: arrays are lists; False: tuples, as in keys."""
    inner = reader(use_list=use_list, levels=levels - 1) if levels else ExtType
    kinds: dict[int, Callable[[Any], Any]] = {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}

    def read(code: int, data: bytes) -> Any:
        try:
            if code in _READERS:
                return _READERS[code](data)
            if code in kinds and levels:
                items = msgpack.unpackb(
                    data, use_list=use_list, strict_map_key=False, ext_hook=inner
                )
                if type(items) is (list if use_list else tuple):
                    return kinds[code](items)
        # The bytes may be of any program: the rest of the value must still be readable.
        except Exception:  # noqa: BLE001
            return ExtType(code, data)
        return ExtType(code, data)

    return read


def with_any_keys(data: bytes, ext_hook: Callable[[int, bytes], Any]) -> Any:
    """Unpack a value with tuples and sets as keys of a dict that no dict takes: a set is a
    frozenset, and a list in a tuple a tuple. Only an `ExtType` of a program has such keys. Raises
    TypeError for an array or a dict as a key."""

    def to_dict(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        items = {key if isinstance(key, list) else _hashable(key): value for key, value in pairs}
        if len(items) < len(pairs):
            raise ValueError("two keys of a dict are one")
        return items

    return msgpack.unpackb(data, strict_map_key=False, ext_hook=ext_hook, object_pairs_hook=to_dict)


def _hashable(key: Any) -> Any:
    if isinstance(key, list | tuple):
        return key if isinstance(key, ExtType) else tuple(map(_hashable, key))
    return frozenset(key) if isinstance(key, set) else key


def duration_text(value: timedelta) -> str:
    """A time difference as ISO 8601."""
    text: str = msgspec.to_builtins(value)
    return text


# ---- dates and times ----


def _zoned_text(value: datetime | time) -> bytes:
    zone = value.tzinfo
    name = zone.key if isinstance(zone, ZoneInfo) and zone.key else ""
    text = value.isoformat() + f"[{name}]" * bool(name) + f"[{_FOLD}]" * value.fold
    if zone is not None and type(zone) is not timezone:
        same = _zoned(type(value), text)
        is_constant = bool(name) or zone.utcoffset(None) is not None
        if not is_constant or same != value or same.utcoffset() is None:
            raise NotSerializable(
                f"a {type(value).__name__} with the time zone {zone!r}, which another process "
                "could not find; pass a datetime in UTC or with a zoneinfo.ZoneInfo"
            )
    return text.encode()


def _zoned(kind: type[Any], text: str) -> Any:
    text, *tags = text.split("[")
    value = kind.fromisoformat(text)
    names = [tag.removesuffix("]") for tag in tags]
    if _FOLD in names:
        value = value.replace(fold=1)
    for name in names:
        if name != _FOLD:
            value = _in_zone(value, name)
    return value


def _in_zone(value: Any, name: str) -> Any:
    """The same moment in this zone, if it is known here and has that offset; else the value."""
    try:
        local = value.replace(tzinfo=ZoneInfo(name))
        return local if local.utcoffset() == value.utcoffset() is not None else value
    except Exception:  # noqa: BLE001  no such zone, or no valid name: errors of many types
        return value


_SCALARS: dict[type, tuple[int, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    datetime: (4, _zoned_text, lambda data: _zoned(datetime, data.decode())),
    date: (
        5,
        lambda value: value.isoformat().encode(),
        lambda data: date.fromisoformat(data.decode()),
    ),
    time: (6, _zoned_text, lambda data: _zoned(time, data.decode())),
    timedelta: (
        7,
        lambda value: duration_text(value).encode(),
        lambda data: msgspec.convert(data.decode(), timedelta),
    ),
    Decimal: (8, lambda value: str(value).encode(), lambda data: Decimal(data.decode())),
    UUID: (9, lambda value: value.bytes, lambda data: UUID(bytes=data)),
}
"""Type → its code, how to write it, how to read it."""
_READERS: Final = {code: read for code, _, read in _SCALARS.values()}

_PLAIN: dict[type, Callable[[Any], Any]] = {
    datetime: lambda value: datetime.combine(datetime.date(value), datetime.timetz(value)),
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time(
        value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold
    ),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
    set: set,
    frozenset: frozenset,
}
"""Type → its value from one of a derived type. A datetime is a date, so it comes first."""
