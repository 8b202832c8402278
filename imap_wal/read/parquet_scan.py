"""Reads archives and snapshots as `EntryBatch`."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from imap_wal.context import Context
from imap_wal.entry import KEY
from imap_wal.manifest.epochs import all_marked
from imap_wal.parquet.columns import (
    ARCHIVE_SCHEMA,
    SNAPSHOT_SCHEMA,
    nodes_of,
    stored_schemas,
    to_positions,
    to_rows,
)
from imap_wal.parquet.reader import Expected, batches
from imap_wal.read.file_scan import EntryBatch, FileScan, by_node
from imap_wal.rules.counts import counting_rows, is_uniform, may_count


def read_archive(
    context: Context, scan: FileScan, *, positions: bool = False
) -> Iterator[EntryBatch]:
    """The entries of an archive that count; with positions in log order, otherwise in the order of
    the file, which is that of the log for each key. `first` and `last` of the batches are those of
    the archive, unless positions are read. Raises the errors of
    `imap_wal.parquet.reader.batches`."""
    first, last = scan.first, scan.last
    if not may_count(scan, scan.map, first, last):
        return
    alike = is_uniform(scan, scan.map, first, last)
    placed = positions or not alike
    columns = [
        field.name
        for field in (ARCHIVE_SCHEMA if placed else SNAPSHOT_SCHEMA)
        if field.name != "node"
    ]
    for batch in batches(
        context,
        scan.path,
        columns,
        expected=Expected(scan.checksum, scan.records, scan.directory),
        by_position=positions,
        keys=scan.keys,
        span=scan.span,
    ):
        rows = to_rows(batch)
        clears = None in map(itemgetter(KEY), rows)
        places = to_positions(batch) if placed else None
        if places is not None:
            first, last = min(places), max(places)
        rows, places = counting_rows(scan, rows, places, scan.last, alike=alike)
        yield EntryBatch(
            scan.node,
            rows,
            first,
            last,
            batch.nbytes,
            all_marked(scan.epochs, places) if positions and places is not None else None,
            clears=clears,
        )


def read_snapshot(context: Context, scan: FileScan) -> Iterator[EntryBatch]:
    """The rows of a snapshot's file, separated by the node that wrote them. Raises the errors of
    `imap_wal.parquet.reader.batches`."""
    for batch in batches(
        context,
        scan.path,
        expected=Expected(scan.checksum, scan.records),
        keys=scan.keys,
        span=scan.span,
    ):
        yield from by_node(to_rows(batch), nodes_of(batch), batch.nbytes)


def row_counts(context: Context, scan: FileScan, columns: list[str] | None = None) -> Iterator[int]:
    """As `imap_wal.read.scan.row_counts`."""
    expected = Expected(scan.checksum, scan.records, scan.directory)
    for batch in batches(context, scan.path, columns, expected=expected):
        yield len(batch)


def prepare() -> None:
    """Load the rest of the Parquet library now instead of at the first file."""
    import pyarrow.compute  # noqa: F401

    stored_schemas()
