"""The types of SQL that typed columns have, and which values fit each of them.

    boolean                                   bool
    tinyint, smallint, int, bigint            int of 8, 16, 32, 64 bits
    float, double                             float, int
    decimal(p, s)                             Decimal, int; text or float with these digits
    string                                    text; what JSON shows as text: dates, Decimal, UUID
    binary                                    bytes
    date                                      date, or its text (ISO 8601)
    timestamp                                 datetime, date, or their text; without a zone: UTC
    timestamp_ntz                             the same, without a zone only
    json                                      anything, as its JSON
    array<t>, map<k, v>, struct<a t, b t>     list, tuple or set; dict; dict with these names

A schema is the text of columns: `id bigint, "when" timestamp, tags array<string>`. The names of
types that DuckDB and PostgreSQL have are known too: `varchar`, `blob`, `int8`, `text[]`,
`struct(a int)`. None fits every type, and a name that a dict does not have is NULL.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Annotated, Any, Final

import msgspec
from msgpack import ExtType, Timestamp

from imap_wal.decoder import Pairs
from imap_wal.encoder import json_of, plain
from imap_wal.errors import InvalidSetting
from imap_wal.serializer import shown
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa

RESCUED: Final = "_rescued"
"""The column for values that do not fit, as JSON."""
WHOLE: Final = "value"
"""A schema with this column alone has the whole value in it, which need not be a dict."""
_LEVELS_MAX = 32


class Misfit(Exception):
    """A value does not fit its type; the text says why."""


@dataclass(frozen=True, slots=True)
class SqlType:
    """`name`: for Spark. `duckdb`: its name in DuckDB. `fit`: makes of a decoded value, which is
    not None, what `pyarrow.array` takes; it raises `Misfit`. `hint`: a type of msgspec that accepts
    only values that fit, as they are; Any: there is none."""

    name: str
    duckdb: str
    arrow: Any
    fit: Callable[[Any], Any]
    hint: Any = Any


Schema = Mapping[str, SqlType]
"""Column → type."""


def fitted(kind: SqlType, value: Any) -> Any:
    """The same as `SqlType.fit`, also for None."""
    return None if value is None else kind.fit(value)


def parsed(text: str, *, zone: str | None = "UTC") -> Schema:
    """The columns of a schema. `zone`: the zone of timestamps in Arrow; None: they have none, as in
    DuckDB's TIMESTAMP. Raises `InvalidSetting`."""
    return _Parser(text, zone).schema()


def written(schema: Mapping[str, str]) -> str:
    """Column → the name of its type, as the text of a schema."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in schema.items())


def quoted(name: str) -> str:
    """A name as a schema has it."""
    return name if _WORD.fullmatch(name) else '"' + name.replace('"', '""') + '"'


# ---- which values fit ----


def _misfit(value: Any, name: str) -> Misfit:
    return Misfit(f"{shown(value)} is no {name}")


def _of_class(name: str, *classes: type) -> Callable[[Any], Any]:
    def fit(value: Any) -> Any:
        if type(value) not in classes:
            raise _misfit(value, name)
        return value

    return fit


def _integer(name: str, bits: int) -> SqlType:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def fit(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _misfit(value, name)
        return value

    hint = Annotated[int, msgspec.Meta(ge=low, le=high)]
    return SqlType(name, name.upper(), getattr(pa, f"int{bits}")(), fit, hint)


def _double(value: Any) -> float:
    if type(value) in (float, int):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _misfit(value, "double")


def _float(value: Any) -> float:
    try:
        struct.pack("<f", _double(value))
    except OverflowError:
        raise _misfit(value, "float") from None
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, dict | list):
        lost: set[str] = set()
        text = plain(value, lost)
        if type(text) is str and not lost:
            return text
    raise _misfit(value, "string")


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _misfit(value, "binary")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def _timestamp(name: str, *, zoned: bool) -> Callable[[Any], int]:
    def fit(value: Any) -> int:
        """Microseconds since 1970."""
        try:
            if isinstance(value, Timestamp):
                value = _EPOCH + timedelta(seconds=value.seconds) + timedelta(
                    microseconds=value.nanoseconds // 1000
                )  # fmt: skip
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            if isinstance(moment, date) and not isinstance(moment, datetime):
                moment = datetime(moment.year, moment.month, moment.day)  # noqa: DTZ001
            if isinstance(moment, datetime) and (zoned or moment.tzinfo is None):
                aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                number = (aware - _EPOCH) // _MICROSECOND
                if _FIRST <= number <= _LAST:
                    return number
        except (ValueError, OverflowError):
            pass
        raise _misfit(value, name)

    return fit


def _date(value: Any) -> int:
    """Days since 1970."""
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(day, date) and not isinstance(day, datetime):
            return day.toordinal() - _EPOCH.toordinal()
    except ValueError:
        pass
    raise _misfit(value, "date")


_FLOAT_DIGITS = 15
"""A double has these digits of a decimal number exactly."""


def _decimal(precision: int, scale: int) -> SqlType:
    name = f"decimal({precision},{scale})"
    context = Context(precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def fit(value: Any) -> Decimal:
        try:
            if type(value) is float:
                number = Decimal(repr(value))
                exact = len(number.normalize().as_tuple().digits) <= _FLOAT_DIGITS
            else:
                exact = type(value) in (int, Decimal) or (type(value) is str and "_" not in value)
                number = Decimal(value) if exact else Decimal()
            if exact and number.is_finite():
                return number.quantize(unit, context=context)
        except (DecimalException, ValueError):
            pass
        raise _misfit(value, name)

    return SqlType(name, name.upper(), pa.decimal128(precision, scale), fit)


def _array(item: SqlType) -> SqlType:
    name = f"array<{item.name}>"

    def fit(value: Any) -> list[Any]:
        if isinstance(value, set | frozenset):
            value = sorted(value, key=json_of)
        if not isinstance(value, list | tuple) or isinstance(value, ExtType):
            raise _misfit(value, name)
        return [fitted(item, each) for each in value]

    return SqlType(name, f"{item.duckdb}[]", pa.list_(pa.field("element", item.arrow)), fit)


def _dict(value: Any, name: str) -> dict[Any, Any]:
    """A dict; of two equal names in JSON, the last counts."""
    if isinstance(value, Pairs):
        return dict(value.pairs)
    if not isinstance(value, dict):
        raise _misfit(value, name)
    return value


def _map(key: SqlType, item: SqlType) -> SqlType:
    name = f"map<{key.name},{item.name}>"

    def fit(value: Any) -> list[tuple[Any, Any]]:
        pairs = [(fitted(key, k), fitted(item, v)) for k, v in _dict(value, name).items()]
        keys = [k for k, _ in pairs]
        if None in keys or len({*map(repr, keys)}) < len(keys):
            raise _misfit(value, name)
        return pairs

    return SqlType(name, f"MAP({key.duckdb}, {item.duckdb})", pa.map_(key.arrow, item.arrow), fit)


def _struct(fields: Schema) -> SqlType:
    name = "struct<" + ",".join(f"{field}:{kind.name}" for field, kind in fields.items()) + ">"
    duckdb = ", ".join(
        '"' + field.replace('"', '""') + f'" {kind.duckdb}' for field, kind in fields.items()
    )

    def fit(value: Any) -> dict[str, Any]:
        found = _dict(value, "struct")
        return {field: fitted(kind, found.get(field)) for field, kind in fields.items()}

    arrow = pa.struct([(field, kind.arrow) for field, kind in fields.items()])
    return SqlType(name, f"STRUCT({duckdb})", arrow, fit)


# ---- their names ----

_BOOLEAN = SqlType("boolean", "BOOLEAN", pa.bool_(), _of_class("boolean", bool), bool)
_INTS = (_integer("tinyint", 8), _integer("smallint", 16), _integer("int", 32))
_BIGINT = _integer("bigint", 64)
SIMPLE: Final[Mapping[str, SqlType]] = {
    **dict.fromkeys(("boolean", "bool"), _BOOLEAN),
    **dict.fromkeys(("tinyint", "byte", "int1"), _INTS[0]),
    **dict.fromkeys(("smallint", "short", "int2"), _INTS[1]),
    **dict.fromkeys(("int", "integer", "int4"), _INTS[2]),
    **dict.fromkeys(("bigint", "long", "int8"), _BIGINT),
    **dict.fromkeys(("float", "real", "float4"), SqlType("float", "FLOAT", pa.float32(), _float)),
    **dict.fromkeys(
        ("double", "float8"), SqlType("double", "DOUBLE", pa.float64(), _double, float)
    ),
    **dict.fromkeys(
        ("string", "varchar", "text", "uuid"),
        SqlType("string", "VARCHAR", pa.string(), _text, str),
    ),
    **dict.fromkeys(
        ("binary", "blob", "bytea", "varbinary"), SqlType("binary", "BLOB", pa.binary(), _binary)
    ),
    "date": SqlType("date", "DATE", pa.date32(), _date),
    "json": SqlType("string", "JSON", pa.string(), json_of),
    "timestamp_ntz": SqlType(
        "timestamp_ntz",
        "TIMESTAMP",
        pa.timestamp("us"),
        _timestamp("timestamp_ntz", zoned=False),
    ),
}
TYPES: Final = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p, s), string, binary, date, "
    "timestamp, timestamp_ntz, json, array<…>, map<…, …> and struct<…>"
)
_WORD = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(
    r"""\s*(?:(?P<word>\w+)|(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)|(?P<sign>\[\]|[<>(),:]))"""
)
_CLOSING = {"<": ">", "(": ")"}


class _Parser:
    def __init__(self, text: str, zone: str | None) -> None:
        self._text, self._zone, self._level = text, zone, 0
        self._tokens = [*self._split(text), ("end", "")]
        self._at = 0

    def _split(self, text: str) -> Iterator[tuple[str, str]]:
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(f"{text[at:].split(maxsplit=1)[0]!r} is not understood")
            at = found.end()
            kind = found.lastgroup or ""
            token = found[kind]
            if kind == "quoted":
                token = token[1:-1].replace(token[0] * 2, token[0])
            yield kind, token

    def _wrong(self, why: str) -> InvalidSetting:
        return InvalidSetting(
            f"the schema {shown(self._text)} cannot be used: {why}; a schema is columns with their "
            'types, as in "id bigint, amount double, at timestamp"'
        )

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, sign: str) -> bool:
        """Whether the next token is this sign, which is taken then."""
        if self._tokens[self._at] != ("sign", sign):
            return False
        self._at += 1
        return True

    def _demand(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._wrong(f"{sign!r} is missing before {self._tokens[self._at][1]!r}")

    def schema(self) -> Schema:
        fields = self._fields()
        if self._tokens[self._at][0] != "end":
            raise self._wrong(f"{self._tokens[self._at][1]!r} is not expected")
        if RESCUED in map(str.lower, fields):
            raise self._wrong(f"{RESCUED} is the column for values that do not fit")
        return fields

    def _fields(self) -> Schema:
        fields: dict[str, SqlType] = {}
        folded: set[str] = set()
        while True:
            form, name = self._next()
            if form not in ("word", "quoted"):
                raise self._wrong(f"a name is missing before {name!r}" if name else "it ends early")
            if name.lower() in folded:
                raise self._wrong(f"SQL cannot tell two columns {name!r} apart")
            folded.add(name.lower())
            self._takes(":")
            fields[name] = self._type()
            if not self._takes(","):
                return fields

    def _type(self) -> SqlType:
        self._level += 1
        if self._level > _LEVELS_MAX:
            raise self._wrong(f"it has more than {_LEVELS_MAX} levels")
        form, word = self._next()
        kind = self._named(word.lower()) if form == "word" else None
        if kind is None:
            raise self._wrong(
                f"{word!r} is no type; there are {TYPES}" if word else "it ends early"
            )
        while self._takes("[]"):
            kind = _array(kind)
        self._level -= 1
        return kind

    def _named(self, name: str) -> SqlType | None:
        if name in ("timestamp", "timestamptz"):
            arrow = pa.timestamp("us", self._zone)
            return SqlType("timestamp", "TIMESTAMP", arrow, _timestamp("timestamp", zoned=True))
        if name in ("decimal", "numeric"):
            return self._decimal()
        if name not in ("array", "map", "struct"):
            if name in ("varchar", "char") and self._takes("("):
                self._number(2**31)
                self._demand(")")
                name = "varchar"
            return SIMPLE.get(name)
        opening = "(" if self._tokens[self._at] == ("sign", "(") else "<"
        self._demand(opening)
        if name == "struct":
            kind = _struct(self._fields())
        elif name == "array":
            kind = _array(self._type())
        else:
            key = self._type()
            self._demand(",")
            kind = _map(key, self._type())
        self._demand(_CLOSING[opening])
        return kind

    def _decimal(self) -> SqlType:
        precision, scale = 10, 0
        if self._takes("("):
            precision = self._number(38)
            if self._takes(","):
                scale = self._number(precision)
            self._demand(")")
        if not precision:
            raise self._wrong("a decimal has at least one digit")
        return _decimal(precision, scale)

    def _number(self, most: int) -> int:
        _, word = self._next()
        if not word.isdecimal() or int(word) > most:
            raise self._wrong(f"{word!r} is no number up to {most}")
        return int(word)
