"""Reads archives and snapshots as `EntryBatch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from imap_wal.entry import KEY, ORDER, Row
from imap_wal.format import START
from imap_wal.parquet.file import (
    ARCHIVE_SCHEMA,
    SNAPSHOT_SCHEMA,
    batches,
    nodes_of,
    stored_schemas,
    to_positions,
    to_rows,
)
from imap_wal.read.file_scan import EntryBatch, FileScan
from imap_wal.read.selection import void_below, without_overtaken
from storage_backends import SegmentStore


def read_archive(
    store: SegmentStore, piece: FileScan, *, positions: bool = False
) -> Iterator[EntryBatch]:
    """The entries of an archive that count, in log order. `first` and `last` of the batches are
    those of the archive, unless positions are read."""
    below = max(piece.since or START, piece.covered.get(piece.map, START))
    if piece.last <= below or (piece.until is not None and piece.first > piece.until):
        return
    void = void_below(piece.cuts, piece.first), void_below(piece.cuts, piece.last)
    placed = (
        positions
        or below >= piece.first
        or (piece.until is not None and piece.until < piece.last)
        or void[0] != void[1]
    )
    columns = [
        field.name
        for field in (ARCHIVE_SCHEMA if placed else SNAPSHOT_SCHEMA)
        if field.name != "node"
    ]
    for batch in batches(
        store,
        piece.path,
        columns,
        checksum=piece.checksum,
        records=piece.records,
        log=piece.directory,
    ):
        rows = to_rows(batch)
        clears = _has_clears(rows)
        places = to_positions(batch) if placed else None
        first, last = piece.first, piece.last
        if places is not None:
            first, last = places[0], places[-1]
            kept = [
                (row, place)
                for row, place in zip(rows, places, strict=True)
                if place > below
                and (piece.until is None or place <= piece.until)
                and row[ORDER][0] >= void_below(piece.cuts, place)
            ]
            rows, places = [row for row, _ in kept], [place for _, place in kept]
        elif void[0]:
            rows = [row for row in rows if row[ORDER][0] >= void[0]]
        rows, places = without_overtaken(rows, places, piece.overtaken)
        yield EntryBatch(
            piece.node,
            rows,
            first,
            last,
            batch.nbytes,
            places if positions else None,
            clears=clears,
        )


def read_snapshot(store: SegmentStore, piece: FileScan) -> Iterator[EntryBatch]:
    """The rows of a snapshot's file, separated by the node that wrote them."""
    for batch in batches(store, piece.path, checksum=piece.checksum, records=piece.records):
        rows, nodes = to_rows(batch), nodes_of(batch)
        clears = _has_clears(rows)
        found: dict[str, list[Row]] = {}
        for row, node in zip(rows, nodes, strict=True):
            found.setdefault(node, []).append(row)
        for node, own in found.items():
            yield EntryBatch(
                node, own, START, START, batch.nbytes * len(own) // len(rows), clears=clears
            )


def _has_clears(rows: Sequence[Row]) -> bool:
    return None in map(itemgetter(KEY), rows)


def prepare() -> None:
    """Load the rest of the Parquet library now instead of at the first file."""
    import pyarrow.compute  # noqa: F401

    stored_schemas()
