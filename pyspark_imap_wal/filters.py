"""Spark's filters: which files they rule out, and which rows.

Spark checks every filter again, so a filter that is not understood here only costs time. Only rows
for which the filter is not true may be left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from imap_wal.encoder import keys_of
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, SNAPSHOT, FileScan, KeySpan
from imap_wal.sql.columns import KEY_TEXT
from pyspark_imap_wal.options import Options
from pyspark_imap_wal.tables.schemas import ENTRY_COLUMNS, POSITION_COLUMNS

_KINDS = {name: kind for name, kind in ENTRY_COLUMNS.items() if name != "value"} | POSITION_COLUMNS
_OF_FILES = ("namespace", "cluster")
"""Columns with the same value in every row of a file."""
_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": lambda column, value: column == value,
    "GreaterThan": lambda column, value: column > value,
    "GreaterThanOrEqual": lambda column, value: column >= value,
    "LessThan": lambda column, value: column < value,
    "LessThanOrEqual": lambda column, value: column <= value,
}
LOWEST, HIGHEST = -(2**63), 2**63 - 1


@dataclass
class Range:
    """The numbers that a column may have."""

    low: int = LOWEST
    high: int = HIGHEST

    def narrow(self, kind: str, value: int) -> None:
        """Keep the numbers for which a filter is true."""
        if kind in ("EqualTo", "GreaterThanOrEqual"):
            self.low = max(self.low, value)
        if kind in ("EqualTo", "LessThanOrEqual"):
            self.high = min(self.high, value)
        if kind == "GreaterThan":
            self.low = max(self.low, value + 1)
        if kind == "LessThan":
            self.high = min(self.high, value - 1)

    def meets(self, low: int, high: int) -> bool:
        """Whether a number between two others is in the range."""
        return self.low <= high and low <= self.high


@dataclass
class Filters:
    """What Spark asked for. `values`: column → the only values that it may have; `ranges`: of
    columns of numbers; `condition`: an expression of Arrow over `columns`, or None."""

    values: dict[str, set[Any]] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    condition: Any = None
    columns: set[str] = field(default_factory=set)
    asked: frozenset[bytes] | None = None
    """The only keys that are wanted, whatever Spark asks for; None: all."""
    hidden: Collection[str] = ()
    """Columns of a schema: a filter on one says nothing of the log's column with its name."""

    @classmethod
    def of(cls, options: Options) -> Filters:
        """Those of the options, before Spark asks for others."""
        made = cls(hidden=frozenset(options.types()))
        keys = options.keys()
        if keys is not None:
            made.only_keys(keys)
        return made

    def push(self, filters: Iterable[Any]) -> None:
        """Take filters of `pyspark.sql.datasource`; those that are not understood have no
        effect."""
        for pushed in filters:
            if _attribute(pushed) in self.hidden:
                continue
            self._note(pushed)
            made = _expression(pushed)
            if made is not None:
                name, condition = made
                if name in _OF_FILES:
                    continue
                self._demand(name, condition)

    def only_keys(self, keys: frozenset[bytes]) -> None:
        """Leave out other keys, and clears."""
        self.asked = keys if self.asked is None else keys & self.asked
        self._demand("key", pc.field("key").isin(pa.array(sorted(keys), pa.binary())))

    def _demand(self, name: str, condition: Any) -> None:
        """Leave out rows for which an expression on this column is not true."""
        self.columns.add(name)
        self.condition = condition if self.condition is None else self.condition & condition

    def until(self, time_ms: int) -> None:
        """Leave out what is newer than a moment: Spark does not know of this filter."""
        newer = pc.field("timestamp_ms") <= pa.scalar(time_ms, pa.int64())
        self._demand("timestamp_ms", newer)
        self.ranges.setdefault("timestamp_ms", Range()).narrow("LessThanOrEqual", time_ms)

    def _note(self, pushed: Any) -> None:
        kind, name = _kind(pushed), _column(pushed)
        if _attribute(pushed) == KEY_TEXT and kind in ("EqualTo", "In"):
            texts = pushed.value if kind == "In" else (pushed.value,)
            each = (keys_of(text) for text in texts if type(text) is str)
            self.only_keys(frozenset(chain.from_iterable(each)))
        if name is None or not hasattr(pushed, "value"):
            return
        if kind in ("EqualTo", "In"):
            values = set(map(_plain, pushed.value if kind == "In" else (pushed.value,)))
            self.values[name] = self.values.get(name, values) & values
        if kind in _COMPARE and type(pushed.value) is int:
            self.ranges.setdefault(name, Range()).narrow(kind, pushed.value)

    def only(self, name: str, names: Iterable[str]) -> tuple[str, ...]:
        """The names that an option gives (none: all), without those that a filter rules out. The
        result is empty only if it means all: if no name is left, it is a name that does not
        exist."""
        allowed = tuple(names)
        if name not in self.values:
            return allowed
        left = sorted(
            value
            for value in self.values[name]
            if type(value) is str and (not allowed or value in allowed)
        )
        return tuple(left) or ("",)

    def keys(self) -> set[bytes] | None:
        """The only keys that are wanted; None: all."""
        values = self.values.get("key")
        if values is None:
            return None if self.asked is None else {*self.asked}
        keys = {value for value in values if type(value) is bytes}
        return keys if self.asked is None else keys & self.asked

    def has_keys(self, span: KeySpan) -> bool:
        """Whether a range may have a key that is wanted."""
        keys, (lower, upper) = self.keys(), span
        return keys is None or any(lower <= key and (upper is None or key < upper) for key in keys)

    def narrowed(self, scans: Iterable[FileScan]) -> list[FileScan]:
        """The same files, each read only where it may have a key that is wanted."""
        keys = self.keys()
        frozen = None if keys is None else frozenset(keys)
        return [replace(scan, keys=frozen) for scan in scans]

    @property
    def wants_positions(self) -> bool:
        """Whether a filter is true only for rows that have a position."""
        return any(name in self.ranges for name in POSITION_COLUMNS)

    def wants(self, scan: FileScan) -> bool:
        """Whether a file may have rows that are wanted, by its name alone."""
        if scan.kind == SNAPSHOT:
            return not self.wants_positions
        segment = (scan.epoch, scan.number)
        first = scan.first[:2] if scan.kind == ARCHIVE else segment
        last = scan.last[:2] if scan.kind == ARCHIVE else segment
        assert scan.kind in (ARCHIVE, SEGMENT)
        return all(
            self.ranges.get(name, Range()).meets(low, high)
            for name, low, high in zip(("epoch", "segment"), first, last, strict=True)
        )


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _kind(pushed: Any) -> str:
    return type(pushed).__name__


def _attribute(pushed: Any) -> str | None:
    """The column of a filter, or of the filter that it negates."""
    path = getattr(getattr(pushed, "child", pushed), "attribute", None)
    return path[0] if path and len(path) == 1 else None


def _column(pushed: Any) -> str | None:
    """The column of the log that a filter is on."""
    name = None if _kind(pushed) == "Not" else _attribute(pushed)
    return name if name in _KINDS else None


def _expression(pushed: Any) -> tuple[str, Any] | None:
    """The column and the condition of a filter; None for one that is not understood."""
    kind = _kind(pushed)
    if kind == "Not":
        negated = _expression(pushed.child)
        return None if negated is None else (negated[0], ~negated[1])
    name = _column(pushed)
    if name is None:
        return None
    column = pc.field(name)
    arrow = _ARROW[_KINDS[name]]
    if kind == "IsNull":
        return name, column.is_null()
    if kind == "IsNotNull":
        return name, column.is_valid()
    try:
        if kind in _COMPARE:
            return name, _COMPARE[kind](column, pa.scalar(pushed.value, arrow))
        if kind == "In" and None not in pushed.value:
            # Of SQL: neither `in` nor `not in` holds for NULL.
            unknown = pa.scalar(None, pa.bool_())
            is_in = column.isin(pa.array(pushed.value, arrow))
            return name, pc.if_else(column.is_valid(), is_in, unknown)
        if kind == "StringStartsWith" and arrow == pa.string():
            return name, pc.starts_with(column, pushed.value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # a value of another type than the column's: Spark knows what it means
    return None
