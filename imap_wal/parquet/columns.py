"""The columns of archives and snapshots, and rows of a log as record batches with such columns."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import Any

from imap_wal.entry import (
    DELETED,
    KEY,
    MAP,
    ORDER,
    ORDER_FIELDS,
    PARTITION,
    PARTITION_COUNT,
    TIMESTAMP_MS,
    Row,
    Upserts,
    clear_of,
)
from imap_wal.format import Position
from imap_wal.rules.arrow import pc
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.parquet as pq

_ENTRY_FIELDS = [
    pa.field("map", pa.string(), nullable=False),
    pa.field("key", pa.binary(), nullable=False),
    pa.field("key_class", pa.string(), nullable=False),
    pa.field("value", pa.binary()),
    pa.field("value_class", pa.string(), nullable=False),
    pa.field("deleted", pa.bool_(), nullable=False),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("expires_at_ms", pa.int64(), nullable=False),
    pa.field("partition", pa.int64(), nullable=False),
    *(pa.field(name, pa.int64(), nullable=False) for name in ORDER_FIELDS),
    pa.field("node", pa.string(), nullable=False),
]
POSITION_COLUMNS = list(Position._fields)
_POSITION_FIELDS = [pa.field(name, pa.int64(), nullable=False) for name in POSITION_COLUMNS]

SNAPSHOT_SCHEMA = pa.schema(_ENTRY_FIELDS)
ARCHIVE_SCHEMA = pa.schema([*_ENTRY_FIELDS, *_POSITION_FIELDS])
DECODED_FIELDS = [pa.field("key_text", pa.string()), pa.field("value_json", pa.string())]
"""More columns of some files, at the end: see `imap_wal.parquet.decoded_columns`."""


@cache
def stored_schemas() -> tuple[Any, ...]:
    """Our two schemas in the form in which Parquet stores them, without and with
    `DECODED_FIELDS`."""
    schemas = []
    for fields in (SNAPSHOT_SCHEMA, ARCHIVE_SCHEMA):
        for schema in (fields, pa.schema([*fields, *DECODED_FIELDS])):
            with pa.BufferOutputStream() as sink:
                # Not `schema.empty_table()`: that imports pandas if installed, which takes seconds.
                pq.write_table(pa.Table.from_batches([], schema=schema), sink, store_schema=False)
                schemas.append(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)
    return tuple(schemas)


def to_batch(
    rows: Sequence[Row], nodes: Sequence[str] | str, positions: Sequence[Position] | None = None
) -> Any:
    """A `pyarrow.RecordBatch` of rows; with positions in ARCHIVE_SCHEMA, else in
    SNAPSHOT_SCHEMA."""
    schema = SNAPSHOT_SCHEMA if positions is None else ARCHIVE_SCHEMA
    columns = entry_columns(rows)
    columns["node"] = [nodes] * len(rows) if isinstance(nodes, str) else nodes
    if positions is not None:
        for name, part in zip(POSITION_COLUMNS, _FIELDS, strict=False):
            columns[name] = [*map(part, positions)]
    return to_arrow(columns, schema)


_FIELDS = [*map(itemgetter, range(10))]


def entry_columns(rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    """The columns of rows, without the node, as lists."""
    # Not zip(*rows): it makes an iterator for each row, and so Python's garbage collector examines
    # all rows again and again. That takes longer than all of this function.
    *fields, orders = ([*map(field, rows)] for field in _FIELDS)
    if None in fields[KEY]:
        fields[KEY] = [key or b"" for key in fields[KEY]]
    fields += [[*map(_FIELDS[part], orders)] for part in range(4)]
    return dict(zip(SNAPSHOT_SCHEMA.names, fields, strict=False))


def to_arrow(columns: Mapping[str, Any], schema: Any) -> Any:
    """A `pyarrow.RecordBatch` of columns: lists, or Arrow arrays."""
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def _array(column: Any, kind: Any) -> Any:
    """A column as an Arrow array. `pa.array` would do the same, more slowly: it imports pandas if
    that is installed, and it copies a column of bytes each time it has grown to twice its size."""
    if isinstance(column, pa.Array):
        return column
    count = len(column)
    if count > 1 and column[0] == column[-1] and column.count(column[0]) == count:
        column, repeats = column[:1], count
    else:
        repeats = 1
    if kind == pa.int64():
        return _numbers(kind, array("q", column) * repeats)
    if kind == pa.bool_():
        return _numbers(pa.int8(), array("b", column) * repeats).cast(kind)
    if kind == pa.string():
        column = [*map(str.encode, column)]
    validity = None
    if None in column:
        present = _numbers(pa.int8(), array("b", [value is not None for value in column]) * repeats)
        validity = present.cast(pa.bool_()).buffers()[1]
        column = [value or b"" for value in column]
    sizes = [*map(len, column)] * repeats
    offsets = array("i", accumulate(sizes, initial=0))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(column) * repeats)]
    return pa.Array.from_buffers(kind, count, buffers)


def _numbers(kind: Any, values: array[int]) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def to_rows(batch: Any) -> list[Row]:
    """The rows of a record batch (or struct of one) with the columns of an entry, in any order of
    columns. In a file a clear has an empty key and an `expires_at_ms` above 0; the `expires_at_ms`
    of a tombstone is 0."""
    column = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    names, key_classes, value_classes = (
        strings(column[name]) for name in ("map", "key_class", "value_class")
    )
    keys, values, deleted, times, expiries, partitions, *order = (
        column[name].to_pylist()
        for name in (
            *("key", "value", "deleted", "timestamp_ms", "expires_at_ms", "partition"),
            *ORDER_FIELDS,
        )
    )
    rows = zip(
        *(names, keys, key_classes, values, value_classes),
        *(deleted, times, expiries, partitions, zip(*order, strict=True)),
        strict=True,
    )
    texts = names, key_classes, value_classes
    if not any(deleted) and not any(expiries) and all(map(_is_constant, texts)):
        return Upserts(rows)
    if b"" not in keys:
        return list(rows)
    return [
        _as_clear(row) if not row[KEY] and row[DELETED] and row[PARTITION_COUNT] else row
        for row in rows
    ]


def _is_constant(column: Sequence[Any]) -> bool:
    return column.count(column[0]) == len(column) if column else False


def _as_clear(row: Row) -> Row:
    return clear_of(row[MAP], row[PARTITION], row[PARTITION_COUNT], row[TIMESTAMP_MS], row[ORDER])


def to_positions(batch: Any) -> list[Position]:
    """The positions of a record batch in ARCHIVE_SCHEMA."""
    return list(
        map(
            Position,
            *(
                batch.column(batch.schema.get_field_index(name)).to_pylist()
                for name in POSITION_COLUMNS
            ),
        )
    )


def first_position(batch: Any) -> Position:
    """The lowest position of a record batch or table with the columns of one."""
    return _outermost(batch, "min")


def last_position(batch: Any) -> Position:
    """The highest position of a record batch or table with the columns of one."""
    return _outermost(batch, "max")


def _outermost(batch: Any, which: str) -> Position:
    columns = [batch.column(name) for name in POSITION_COLUMNS]
    numbers: list[int] = []
    while columns:
        outermost = pc.min_max(columns[0])[which]
        numbers.append(outermost.as_py())
        same = pc.equal(columns[0], outermost)  # a number here would import pandas
        columns = [column.filter(same) for column in columns[1:]]
    return Position(*numbers)


def nodes_of(batch: Any) -> list[str]:
    """The node column of a record batch."""
    return strings(batch.column(batch.schema.get_field_index("node")))


def plain(batch: Any) -> Any:
    """A record batch without the dictionaries that reading creates."""
    return pa.record_batch(
        [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in batch.columns
        ],
        names=batch.schema.names,
    )


def are_clears(batch: Any) -> Any:
    """Which rows of a batch are clears: their key is empty, and `expires_at_ms` is above 0."""
    empty = pc.equal(pc.binary_length(batch.column("key")), 0)
    counted = pc.not_equal(batch.column("expires_at_ms"), 0)
    return pc.and_(pc.and_(empty, batch.column("deleted")), counted)


def strings(array: Any) -> list[str]:
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    names = array.dictionary.to_pylist()
    if len(names) == 1 and not array.null_count:
        return [str(names[0])] * len(array)
    return [names[index] for index in array.indices.to_pylist()]
