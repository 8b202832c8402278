"""Values of a map as typed columns of Arrow, by a schema (`imap_wal.sql.types`).

    msgpack, JSON of a member ─▶ msgspec, straight into the fields ─┐
    all others, and misfits   ─▶ `Decoder`, then `SqlType.fit`     ─┴▶ columns, and `_rescued`

A value that does not fit is JSON in `_rescued`, and its other columns are NULL: no value ends a
query. msgspec only takes what fits (`SqlType.hint`), so both ways have the same result.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from imap_wal import extension
from imap_wal.decoder import Decoder, Opaque, Pairs
from imap_wal.encoder import json_of, key_json
from imap_wal.entry import KEY, KEY_CLASS, ORDER, VALUE, VALUE_CLASS, Row, is_msgpack
from imap_wal.errors import InvalidSetting, NotReadable
from imap_wal.parquet.columns import strings, to_rows
from imap_wal.sql.types import RESCUED, WHOLE, Misfit, Schema, fitted
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa

_log = logging.getLogger("imap_wal")

RESCUE, FAIL = "rescue", "fail"
KEY_TEXT, VALUE_TEXTS = "key_text", ("value_text", "value_json")
"""Columns with a key or a value as JSON; that of the value has two names."""
Cell: TypeAlias = tuple[bytes | None, str, bytes | None, str, int]
"""Key and its class, value and its class, and the partition version."""
CELL_COLUMNS: Final = ("key", "key_class", "value", "value_class", "partition_version")
_JSON_TYPE = (-130).to_bytes(4, "big", signed=True)
_HEADER = 12
"""Partition hash, type and length come before the text of a member's JSON, 4 bytes each."""


def demand_misfits(misfits: str) -> None:
    """Raises `InvalidSetting` for another text than `rescue` or `fail`."""
    if misfits not in (RESCUE, FAIL):
        raise InvalidSetting(f"misfits is {misfits!r}; it takes {RESCUE} or {FAIL}")


class TypedColumns:
    """The columns of a schema, then `_rescued`.

    Args:
        schema: see `parsed`.
        misfits: `rescue`, or `fail`: a value that does not fit raises `NotReadable`.
        decoder: for values that msgspec does not decode.
        note: called with each cell that does not fit, and why.
    """

    def __init__(
        self,
        schema: Schema,
        decoder: Decoder,
        misfits: str = RESCUE,
        note: Callable[[Cell, str], None] | None = None,
    ) -> None:
        demand_misfits(misfits)
        self._decoder, self._fails, self._note = decoder, misfits == FAIL, note
        self._types = [*schema.values()]
        self._names = [*schema]
        self.fields = [pa.field(name, kind.arrow) for name, kind in schema.items()]
        self.fields.append(pa.field(RESCUED, pa.string()))
        self._whole = self._names == [WHOLE]
        places = [f"f{number}" for number in range(len(self._types))]
        self._is_quick = all(map(_is_name_of_msgspec, self._names))
        self._line: Any = msgspec.defstruct(
            "Line",
            [
                (place, kind.hint | None if kind.hint is not Any else Any, None)
                for place, kind in zip(places, self._types, strict=True)
            ],
            rename=dict(zip(places, self._names, strict=True)) if self._is_quick else None,
            gc=False,
        )
        """A value's fields, in the order of the schema."""
        self._parts = [*map(attrgetter, places)]
        self._later = [
            (place, kind.fit)
            for place, kind in zip(places, self._types, strict=True)
            if kind.hint is Any
        ]
        """Fields that msgspec does not check."""
        read = self._types[0].hint if self._whole else self._line
        self._msgpack = msgspec.msgpack.Decoder(
            read if read is Any else read | None, ext_hook=_extension
        ).decode
        self._json = msgspec.json.Decoder(read if read is Any else read | None).decode

    def of(self, cells: Iterable[Cell]) -> list[Any]:
        """The columns for some entries. Raises `NotReadable` if misfits fail."""
        lines: list[Any] = []
        rescued: list[str | None] = []
        for cell in cells:
            text = None
            try:
                line = self._quickly(cell)
            except Exception:  # noqa: BLE001  of any bytes; `_slowly` says what is wrong
                line, text = self._slowly(cell)
            lines.append(line)
            rescued.append(text)
        columns = [
            pa.array([*map(part, lines)], kind.arrow)
            for part, kind in zip(self._parts, self._types, strict=True)
        ]
        return [*columns, pa.array(rescued, pa.string())]

    def of_batch(self, batch: Any) -> list[Any]:
        """The same for a record batch with `CELL_COLUMNS`; the first two are optional."""
        names = batch.schema.names
        cells = zip(
            batch["key"].to_pylist() if "key" in names else [None] * len(batch),
            strings(batch["key_class"]) if "key_class" in names else [""] * len(batch),
            batch["value"].to_pylist(),
            strings(batch["value_class"]),
            batch["partition_version"].to_pylist(),
            strict=True,
        )
        return self.of(cells)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that `of_batch` uses."""
        return CELL_COLUMNS if self._fails else CELL_COLUMNS[2:]

    def _quickly(self, cell: Cell) -> Any:
        """The fields of a value, by msgspec. Raises any error if it cannot, or does not fit."""
        _, _, data, label, version = cell
        if data is None:
            return self._line()
        if not self._is_quick:
            raise ValueError
        if not version and is_msgpack(label):
            if self._later and _has_nanoseconds(data):
                raise ValueError  # msgspec cuts them
            value = self._msgpack(data)
        elif version and data[4:8] == _JSON_TYPE:
            if int.from_bytes(data[8:_HEADER], "big") != len(data) - _HEADER:
                raise ValueError
            value = self._json(memoryview(data)[_HEADER:])
        else:
            raise ValueError
        if value is None:
            return self._line()
        if self._whole:
            return self._line(self._types[0].fit(value))
        for place, fit in self._later:
            part = getattr(value, place)
            if part is not None:
                setattr(value, place, fit(part))
        return value

    def _slowly(self, cell: Cell) -> tuple[Any, str | None]:
        """The fields of a value, or those of none and its JSON."""
        row = _row(cell)
        value = self._decoder.value(row)
        try:
            return self._fields(value), None
        except Misfit as error:
            if self._fails:
                assert row[VALUE] is not None
                raise NotReadable(
                    f"the value of key {key_json(row, self._decoder)} does not fit the schema: "
                    f"{error}; correct the schema, or take misfits={RESCUE}",
                    row[VALUE],
                ) from error
            if self._note is not None:
                self._note(cell, str(error))
            return self._line(), json_of(value)

    def _fields(self, value: Any) -> Any:
        if isinstance(value, Opaque):
            raise Misfit(f"{value} cannot be decoded here")
        if value is None:
            return self._line()
        if self._whole:
            fields: Any = {WHOLE: value}
        else:
            fields = dict(value.pairs) if isinstance(value, Pairs) else value
        if not isinstance(fields, dict):
            raise Misfit(
                f"a {type(value).__name__} has no fields; the schema "
                f'"{WHOLE} TYPE" takes whole values'
            )
        parts = []
        for name, kind in zip(self._names, self._types, strict=True):
            try:
                parts.append(fitted(kind, fields.get(name)))
            except Misfit as error:
                raise Misfit(f"column {name}: {error}") from None
        return self._line(*parts)


def texts(batch: Any, names: Collection[str], decoder: Decoder) -> dict[str, Any]:
    """Those of these columns that are text: of the key, and of the value. `batch`: of whole
    entries, if any are wanted."""
    wanted = [name for name in (KEY_TEXT, *VALUE_TEXTS) if name in names]
    if not wanted:
        return {}
    rows = to_rows(batch)
    losses: list[set[str]] = [set() for _ in rows]
    made = {
        name: pa.array(
            [
                key_json(row, decoder, lost)
                if name == KEY_TEXT
                else None
                if row[VALUE] is None
                else json_of(decoder.value(row), lost)
                for row, lost in zip(rows, losses, strict=True)
            ],
            pa.string(),
        )
        for name in wanted
    }
    for loss, count in sorted(Counter(chain.from_iterable(losses)).items()):
        _log.warning("lossy conversion in %d of %d rows: %s", count, len(rows), loss)
    return made


def cell_of(row: Row) -> Cell:
    return row[KEY], row[KEY_CLASS], row[VALUE], row[VALUE_CLASS], row[ORDER][1]


def cells_of(rows: Sequence[Row]) -> list[Cell]:
    return [*map(cell_of, rows)]


def _row(cell: Cell) -> Row:
    key, key_class, value, value_class, version = cell
    order = 0, version, 0, 0
    return "", key or b"", key_class, value, value_class, value is None, 0, 0, 0, order


_of_value = extension.reader(use_list=True)


def _is_name_of_msgspec(name: str) -> bool:
    return name.isprintable() and not {*name} & {'"', "\\"}


_TIMESTAMP = re.compile(rb"(?:\xd7\xff|\xc7\x0c\xff)(.{4})", re.DOTALL)
"""The two extensions of msgpack for a time with nanoseconds, and the bytes with them. The one of 8
bytes has them in 30 bits."""


def _has_nanoseconds(data: bytes) -> bool:
    """Whether a time in the data may be no whole number of microseconds."""
    return any(
        (int.from_bytes(time[1], "big") >> (2 if time[0][0] == 0xD7 else 0)) % 1000
        for time in _TIMESTAMP.finditer(data)
    )


def _extension(code: int, data: memoryview) -> Any:
    return _of_value(code, bytes(data))
