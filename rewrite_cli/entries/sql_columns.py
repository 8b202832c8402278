"""Entries as columns for SQL: keys and values in readable form, beside their bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imap_wal.decoder import Decoder
from imap_wal.encoder import json_of_plain
from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    KEY_CLASS,
    MAP,
    ORDER,
    ORDER_FIELDS,
    PARTITION,
    TIMESTAMP_MS,
    VALUE,
    VALUE_CLASS,
    Row,
    is_clear,
)
from imap_wal.format import Position
from rewrite_cli.entries.losses import Losses
from storage_backends.extras import needs

if TYPE_CHECKING:  # it needs pyarrow
    from imap_wal.sql.columns import Cell
    from imap_wal.sql.types import Schema

RESCUED = "_rescued"
_YEAR_1_MS, _YEAR_9999_MS = -62_135_596_800_000, 253_402_300_799_999
"""The times that both DuckDB and Python can represent."""


_UNCOUNTED = Losses()


class FoundEntry(NamedTuple):
    """One entry, and where it was read."""

    row: Row
    decoder: Decoder
    namespace: str
    cluster: str
    node: str = ""
    position: Position | None = None
    losses: Losses = _UNCOUNTED


class Column(NamedTuple):
    """One column of a view."""

    name: str
    type: str
    """In SQL."""
    what: str
    of: Callable[[FoundEntry], Any] | None
    """None: of a schema."""


def _key_text(change: FoundEntry) -> str | None:
    if is_clear(change.row):
        return None
    return json_of_plain(change.losses.key(change.row, change.decoder))


def _value_json(change: FoundEntry) -> str | None:
    if change.row[DELETED]:
        return None
    return json_of_plain(change.losses.value(change.row, change.decoder))


def _expires_at_ms(change: FoundEntry) -> int:
    return 0 if is_clear(change.row) else change.row[EXPIRES_AT_MS]


def _position(change: FoundEntry) -> str | None:
    return None if change.position is None else str(change.position)


_READABLE = (
    Column("key_text", "JSON", "the key", _key_text),
    Column("value_json", "JSON", "the value", _value_json),
    Column(
        "written",
        "TIMESTAMP",
        "time of the change, UTC",
        lambda change: _microseconds(change.row[TIMESTAMP_MS]),
    ),
    Column(
        "expires",
        "TIMESTAMP",
        "when it expires, UTC; NULL: never",
        lambda change: _microseconds(_expires_at_ms(change) or None),
    ),
)
_PLACE = (
    Column("deleted", "BOOLEAN", "a tombstone or a clear", lambda change: change.row[DELETED]),
    Column("clear", "BOOLEAN", "deletes a whole partition", lambda change: is_clear(change.row)),
    Column("node", "VARCHAR", "the node whose log has it", lambda change: change.node),
    Column("position", "VARCHAR", "place in the log; NULL: only in a snapshot", _position),
)
_STORED = (
    Column("key", "BLOB", "the bytes in the log", lambda change: change.row[KEY]),
    Column("value", "BLOB", "the bytes in the log", lambda change: change.row[VALUE]),
    Column("key_class", "VARCHAR", "its class", lambda change: change.row[KEY_CLASS]),
    Column("value_class", "VARCHAR", "its class", lambda change: change.row[VALUE_CLASS]),
    Column("timestamp_ms", "BIGINT", "as in the log", lambda change: change.row[TIMESTAMP_MS]),
    Column("expires_at_ms", "BIGINT", "as in the log; 0: never", _expires_at_ms),
    Column("partition", "BIGINT", "Hazelcast's partition", lambda change: change.row[PARTITION]),
    *(
        Column(
            name,
            "BIGINT",
            f"part {part + 1} of the order",
            lambda change, part=part: change.row[ORDER][part],  # type: ignore[misc]
        )
        for part, name in enumerate(ORDER_FIELDS)
    ),
    Column("namespace", "VARCHAR", "of the log", lambda change: change.namespace),
    Column("cluster", "VARCHAR", "of the log", lambda change: change.cluster),
)
LATEST: Sequence[Column] = (*_READABLE, *_STORED)
RAW: Sequence[Column] = (*_READABLE, *_PLACE, *_STORED)


def with_schema(columns: Sequence[Column], schema: Schema) -> Sequence[Column]:
    """The columns of a schema, and `_rescued`, in place of `value_json`. They hide others with
    their names."""
    if not schema:
        return columns
    typed = [
        Column(name, kind.duckdb.upper(), "in the value", None) for name, kind in schema.items()
    ]
    typed.append(Column(RESCUED, "JSON", "a value that does not fit", None))
    hidden = {column.name.lower() for column in typed} | {"value_json"}
    first, *others = (column for column in columns if column.name not in hidden)
    return (first, *typed, *others)


def batch(
    columns: Sequence[Column], changes: Sequence[FoundEntry], schema: Schema | None = None
) -> Any:
    """The changes as Arrow columns.

    Args:
        columns: `LATEST` or `RAW`, or those of `with_schema`.
        changes: The entries, with their places; with a schema, all of one cluster.
        schema: That of the columns without a function.

    Returns:
        A `pyarrow.Table`.

    Raises:
        MissingExtra: pyarrow is not installed, or hazelcast-python-client for entries of members.
    """
    with needs("archive"):
        import pyarrow as pa

    types = {
        "VARCHAR": pa.string(),
        "JSON": pa.string(),
        "BLOB": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "BIGINT": pa.int64(),
        "TIMESTAMP": pa.timestamp("us"),
    }
    typed = _typed(schema, changes) if schema else {}
    return pa.table(
        {
            column.name: typed[column.name]
            if column.of is None
            else pa.array(map(column.of, changes), types[column.type], size=len(changes))
            for column in columns
        }
    )


def _typed(schema: Schema, changes: Sequence[FoundEntry]) -> Mapping[str, Any]:
    from imap_wal.sql.columns import TypedColumns, cells_of

    def note(cell: Cell, why: str) -> None:
        changes[0].losses.misfit(changes[0].row[MAP], cell[0], why)

    columns = TypedColumns(schema, changes[0].decoder if changes else Decoder(), note=note)
    found = columns.of(cells_of([change.row for change in changes]))
    return dict(zip((field.name for field in columns.fields), found, strict=True))


def _microseconds(milliseconds: int | None) -> int | None:
    """None for a time that is not a date: an entry may have any number."""
    if milliseconds is None or not _YEAR_1_MS <= milliseconds <= _YEAR_9999_MS:
        return None
    return milliseconds * 1000
