"""Proposes a schema from values: of each field, the narrowest type that all of them fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Final, TypeAlias

from msgpack import ExtType, Timestamp

from imap_wal.decoder import Opaque, Pairs
from imap_wal.encoder import plain
from imap_wal.sql.types import RESCUED, WHOLE, quoted, written

NAMES_MAX: Final = 1000
"""A dict with more names is a map: its names are data."""
_LEVELS_MAX = 20
_DIGITS_MAX = 38

_Kind: TypeAlias = tuple[Any, ...]
"""A name, and for some: the digits of a decimal before and after its point; the kind of items; the
kinds of fields."""
_NULL, _JSON, _STRING = ("null",), ("json",), ("string",)
_BIGINT, _DOUBLE = ("bigint",), ("double",)
_MOMENTS = {"date", "timestamp"}
_WITHOUT_TEXT = ("timestamp", "without text")
"""A moment that is no text in JSON: finer than a microsecond, or outside of the years 1 to 9999."""
_SIMPLE: Final[Mapping[type, _Kind]] = {
    type(None): _NULL,
    bool: ("boolean",),
    float: _DOUBLE,
    bytes: ("binary",),
    datetime: ("timestamp",),
    date: ("date",),
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """`types`: column → the name of its type; without any if no value can be decoded. `left_out`:
    fields whose names SQL cannot have beside others."""

    types: Mapping[str, str]
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        return written(self.types)


def proposed(values: Iterable[Any]) -> Proposal:
    """The schema for decoded values. Those that are no dict only count if there is no dict."""
    of_dicts: _Kind = _NULL
    of_others: _Kind = _NULL
    for value in values:
        if isinstance(value, dict | Pairs):
            of_dicts = _merged(of_dicts, _kind(value))
        elif not isinstance(value, Opaque):
            of_others = _merged(of_others, _kind(value))
    if of_dicts[0] != "struct":
        whole = of_others if of_dicts == _NULL else of_dicts
        return Proposal({} if whole == _NULL else {WHOLE: _name(whole)})
    fields, left_out = _distinct(of_dicts[1])
    if not fields:
        return Proposal({WHOLE: "json"}, tuple(left_out))
    return Proposal({field: _name(kind) for field, kind in fields.items()}, tuple(left_out))


def _distinct(fields: Mapping[str, _Kind]) -> tuple[dict[str, _Kind], list[str]]:
    """The fields that can be columns beside each other, and the names of the others."""
    folded: dict[str, str] = {RESCUED: ""}
    for field in fields:
        if field.isprintable():
            folded.setdefault(field.lower(), field)
    chosen = {*folded.values()}
    return (
        {field: kind for field, kind in fields.items() if field in chosen},
        [field for field in fields if field not in chosen],
    )


def _kind(value: Any, level: int = 0) -> _Kind:
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple
    if level > _LEVELS_MAX or isinstance(value, ExtType):
        return _JSON
    match value:
        case Timestamp():
            return ("timestamp",) if isinstance(plain(value), str) else _WITHOUT_TEXT
        case int():
            if -(2**63) <= value < 2**63:
                return _BIGINT
            return "decimal", len(str(abs(value))) if value.bit_length() < 256 else 99, 0
        case str():
            return _kind_of_text(value)
        case Decimal() if value.is_finite():
            exponent = int(value.as_tuple().exponent)
            return "decimal", max(value.adjusted() + 1, 1), max(-exponent, 0)
        case Decimal():
            return _JSON
        case dict() | Pairs():
            items = dict(value.pairs) if isinstance(value, Pairs) else value
            fields = {
                name: _kind(item, level + 1) for name, item in items.items() if type(name) is str
            }
            return _of_fields(fields) if fields or not items else _JSON
        case list() | tuple() | set() | frozenset():
            return "array", reduce(_merged, (_kind(item, level + 1) for item in value), _NULL)
        case _:
            # A time, a time difference, a UUID: their JSON is text.
            return _STRING


def _kind_of_text(text: str) -> _Kind:
    """A date or a moment in the form of RFC 3339, or text."""
    if text[4:5] != "-":  # common
        return _STRING
    try:
        if len(text) == len("2026-01-02"):
            date.fromisoformat(text)
            return ("date",)
        datetime.fromisoformat(text)
    except ValueError:
        return _STRING
    return ("timestamp",)


def _merged(one: _Kind, other: _Kind) -> _Kind:
    if one == other or other == _NULL:
        return one
    if one == _NULL:
        return other
    kinds = {one[0], other[0]}
    if kinds == {"array"}:
        return "array", _merged(one[1], other[1])
    if kinds == {"struct"}:
        fields = dict(one[1])
        for name, kind in other[1].items():
            fields[name] = _merged(fields.get(name, _NULL), kind)
        return _of_fields(fields)
    if "map" in kinds and kinds <= {"map", "struct"}:
        return "map", _merged(_as_map(one)[1], _as_map(other)[1])
    if kinds == {"bigint", "double"}:
        return _DOUBLE
    if kinds <= {"bigint", "decimal"}:
        digits = [kind[1:] if kind[0] == "decimal" else (19, 0) for kind in (one, other)]
        return "decimal", *map(max, *digits)
    if kinds <= _MOMENTS:
        return _WITHOUT_TEXT if _WITHOUT_TEXT in (one, other) else ("timestamp",)
    if kinds <= {*_MOMENTS, "string"} and _WITHOUT_TEXT not in (one, other):
        return _STRING
    return _JSON


def _of_fields(fields: Mapping[str, _Kind]) -> _Kind:
    kind = "struct", fields
    return kind if len(fields) <= NAMES_MAX else _as_map(kind)


def _as_map(kind: _Kind) -> _Kind:
    return kind if kind[0] == "map" else ("map", reduce(_merged, kind[1].values(), _NULL))


def _name(kind: _Kind) -> str:
    match kind:
        case ("null",):
            return "json"
        case ("decimal", before, after):
            fits = before + after <= _DIGITS_MAX
            return f"decimal({_DIGITS_MAX},{after})" if fits else "json"
        case ("array", item):
            return f"array<{_name(item)}>"
        case ("map", item):
            return f"map<string,{_name(item)}>"
        case ("struct", fields):
            chosen, left_out = _distinct(fields)
            if not chosen or left_out:
                return "json"
            inner = ",".join(f"{quoted(field)}:{_name(each)}" for field, each in chosen.items())
            return f"struct<{inner}>"
        case _:
            return str(kind[0])
