"""Reads files of a log as columns: what counts of a `FileScan`, as record batches of Arrow.

Archives and snapshots are read without a Python object for each entry, and only the columns that
are wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from imap_wal.context import Context
from imap_wal.decoder import Decoder
from imap_wal.entry import ORDER, ORDER_FIELDS, Row
from imap_wal.format import START, Position
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA
from imap_wal.parquet.file import open_parquet
from imap_wal.parquet.reader import Expected, batches
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, SNAPSHOT, FileScan, Metadata
from imap_wal.read.scan import read_scan
from imap_wal.rules.counts import counting_columns, may_count, needed_columns
from imap_wal.segment.snapshot import is_segment
from imap_wal.sql.columns import TypedColumns, texts
from pyspark_imap_wal.filters import Filters
from pyspark_imap_wal.tables.schemas import DECODED_COLUMNS, POSITION_COLUMNS
from storage_backends import NotFound

_ENTRY = [field.name for field in SNAPSHOT_SCHEMA]
_OF_LOG = ("namespace", "cluster")


@dataclass(frozen=True)
class EntryQuery:
    """What a reader wants. `schema`: of Arrow, with the columns in their order. `nodes`: only rows
    of these; (): of all. `metadata`: for the columns of text. `in_order`: entries of an archive in
    the order of the log. `typed`: the columns of a schema; they hide those of the log."""

    schema: Any
    maps: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    filters: Filters | None = None
    metadata: tuple[Metadata, ...] = ()
    in_order: bool = False
    typed: TypedColumns | None = None

    @property
    def needed(self) -> set[str]:
        """The columns of a file that are needed."""
        names = set(self.schema.names) - self.typed_names
        names |= self.filters.columns if self.filters else set()
        if self.typed_names.intersection(self.schema.names):
            names.update(self.typed.needed if self.typed else ())
        if names.intersection(DECODED_COLUMNS):
            names.update(_ENTRY)
        return names.difference(_OF_LOG, DECODED_COLUMNS)

    @property
    def typed_names(self) -> set[str]:
        return {field.name for field in self.typed.fields} if self.typed else set()

    @property
    def wants_positions(self) -> bool:
        return bool(self.needed.intersection(POSITION_COLUMNS))


def read_columns(
    log: ClusterLog,
    scan: FileScan,
    query: EntryQuery,
    context: Context | None = None,
    attempts: int = ATTEMPTS,
) -> Iterator[Any]:
    """The entries of a scan that count, as record batches, each exactly once. If the file is
    archived meanwhile, the rest is read from its archives. `context`: one of
    `imap_wal.read.scan.ahead` for this scan. Raises `NotFound` if the entries were removed,
    `MissingNode` if this process cannot read the node's log, and `LogError`."""
    place = scan.since if scan.kind == SEGMENT else None
    begun = False
    try:
        for last, batch in _parts(context or log.context, scan, query):
            begun, attempts = True, ATTEMPTS
            if batch is not None and len(batch):
                yield shaped(log, batch, query)
            if scan.kind == SEGMENT:
                place = last
        return
    except NotFound as error:
        # It is not known which rows of an archive were read.
        if scan.kind == SNAPSHOT or not attempts or (begun and scan.kind == ARCHIVE):
            raise log.lost(error) from error
    for following in log.replaced(scan, place, query.maps or None):
        yield from read_columns(log, following, query, attempts=attempts - 1)


def _parts(
    context: Context, scan: FileScan, query: EntryQuery
) -> Iterator[tuple[Position, Any | None]]:
    """Position of the last entry that was looked at, and a batch of those that count."""
    if scan.kind == SEGMENT:
        yield from _segment(context, scan, query)
    elif scan.kind == ARCHIVE:
        yield from ((scan.last, batch) for batch in _archive(context, scan, query))
    else:
        yield from ((START, batch) for batch in _snapshot(context, scan, query))


def _segment(
    context: Context, scan: FileScan, query: EntryQuery
) -> Iterator[tuple[Position, Any | None]]:
    names = sorted(query.needed)
    for changes in read_scan(context, scan, query.maps or None, positions=query.wants_positions):
        batch = None
        if changes.rows and (not query.nodes or changes.node in query.nodes):
            batch = of_rows(changes.rows, changes.node, names, changes.positions)
        yield changes.last, batch


def of_rows(
    rows: Sequence[Row],
    nodes: Sequence[str] | str,
    names: Sequence[str],
    positions: Sequence[Position] | None = None,
) -> Any:
    """The named columns of rows."""
    fields = list(zip(*rows, strict=True))
    made = []
    for name in names:
        if name == "node":
            made.append(_repeated(nodes, len(rows)) if isinstance(nodes, str) else pa.array(nodes))
        elif name in POSITION_COLUMNS:
            places = None if positions is None else list(zip(*positions, strict=True))
            index = list(POSITION_COLUMNS).index(name)
            made.append(
                pa.nulls(len(rows), pa.int64())
                if places is None
                else pa.array(places[index], pa.int64())
            )
        elif name in ORDER_FIELDS:
            orders = list(zip(*fields[ORDER], strict=True))
            made.append(pa.array(orders[ORDER_FIELDS.index(name)], pa.int64()))
        else:
            values = fields[_ENTRY.index(name)]
            if name == "key" and None in values:
                values = tuple(key or b"" for key in values)
            made.append(pa.array(values, SNAPSHOT_SCHEMA.field(name).type))
    return _batch(made, names, len(rows))


def _archive(context: Context, scan: FileScan, query: EntryQuery) -> Iterator[Any]:
    limits = scan.map, scan.first, scan.last
    if not may_count(scan, *limits) or (query.maps and scan.map not in query.maps):
        return
    needed = (query.needed - {"node"}).union(needed_columns(scan, *limits))
    if query.in_order:
        needed |= POSITION_COLUMNS.keys()
    if not _has_times(context, scan, query):
        return
    for read in _batches(context, scan, needed, query.in_order):
        batch = counting_columns(scan, read, *limits)
        yield batch.append_column("node", _repeated(scan.node, len(batch)))


def _snapshot(context: Context, scan: FileScan, query: EntryQuery) -> Iterator[Any]:
    if not _has_times(context, scan, query):
        return
    needed = query.needed - POSITION_COLUMNS.keys()
    if query.nodes:
        needed.add("node")
    for read in _batches(context, scan, needed):
        batch = read
        if query.nodes:
            batch = batch.filter(pc.is_in(batch["node"].cast(pa.string()), pa.array(query.nodes)))
        for name in POSITION_COLUMNS:
            batch = batch.append_column(name, pa.nulls(len(batch), pa.int64()))
        yield batch


def _batches(
    context: Context, scan: FileScan, needed: Collection[str], in_order: bool = False
) -> Iterator[Any]:
    names = sorted(needed) or ["deleted"]  # without a column, the number of rows would be unknown
    if is_segment(scan.path):
        return (of_rows(changes.rows, changes.node, names) for changes in read_scan(context, scan))
    log = scan.directory if scan.kind == ARCHIVE else ""
    return batches(
        context,
        scan.path,
        names,
        expected=Expected(scan.checksum, scan.records, log),
        by_position=in_order,
        keys=scan.keys,
    )


def _has_times(context: Context, scan: FileScan, query: EntryQuery) -> bool:
    """Whether a Parquet file may have a row in the wanted range of time: its footer says so."""
    limits = query.filters.ranges.get("timestamp_ms") if query.filters else None
    if limits is None or is_segment(scan.path):
        return True
    with context.store.open_input(scan.path) as source:
        try:
            log = scan.directory if scan.kind == ARCHIVE else ""
            footer = open_parquet(source, scan.path, context.keys, log).metadata
            column = SNAPSHOT_SCHEMA.get_field_index("timestamp_ms")
            for group in range(footer.num_row_groups):
                statistics = footer.row_group(group).column(column).statistics
                if (
                    statistics is None
                    or not statistics.has_min_max
                    or limits.meets(statistics.min, statistics.max)
                ):
                    return True
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError):
            return True  # the file is damaged: reading it says how
    return False


def shaped(log: ClusterLog, batch: Any, query: EntryQuery) -> Any:
    """The wanted rows and columns of a batch, as Spark expects them."""
    if query.filters is not None and query.filters.condition is not None:
        batch = pa.RecordBatch.from_arrays(
            [_plain(column) for column in batch.columns], names=batch.schema.names
        ).filter(query.filters.condition)
    made = texts(batch, query.schema.names, Decoder(query.metadata))
    if query.typed is not None and query.typed_names.intersection(query.schema.names):
        names = (field.name for field in query.typed.fields)
        made |= zip(names, query.typed.of_batch(batch), strict=True)
    columns = []
    for field in query.schema:
        if field.name in _OF_LOG and field.name not in made:
            name = log.namespace if field.name == "namespace" else log.cluster
            columns.append(_repeated(name, len(batch)))
        else:
            column = made.get(field.name)
            columns.append(_plain(batch[field.name]) if column is None else column)
    return pa.RecordBatch.from_arrays(columns, schema=query.schema)


def _plain(column: Any) -> Any:
    """The column as plain values: reading keeps dictionaries."""
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _repeated(value: str, count: int) -> Any:
    return pa.array(repeat(value, count), pa.string(), size=count)


def _batch(columns: list[Any], names: Sequence[str], count: int) -> Any:
    if names:
        return pa.RecordBatch.from_arrays(columns, names=list(names))
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["deleted"])
