"""Keys and orders of archives and snapshots, by columns, without values. Which entries of a file
count is decided by the same rules as in `imap_wal.read.parquet_scan`; here they are expressions
over columns."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imap_wal.entry import Row, clear_of
from imap_wal.format import START, Position
from imap_wal.parquet.columns import POSITION_COLUMNS, last_position
from imap_wal.parquet.reader import Expected, group_batches
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.read.selection import void_below
from storage_backends import SegmentStore
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

ORDER_COLUMNS = ["incarnation", "partition_version", "session", "request"]
COLUMNS = ["key", "deleted", "timestamp_ms", "expires_at_ms", "partition", *ORDER_COLUMNS]


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """The rows of a batch that count, without clears: `batch` has `COLUMNS` and `row`, the number
    of each row in its file, and in a snapshot `node`. All are in one row group. `records`: the
    number of rows that count, including clears. `clears`: (row, node or "" in an archive). `last`:
    as in `EntryBatch`."""

    group: int
    batch: Any
    records: int
    last: Position
    clears: tuple[tuple[Row, str], ...] = ()


def read_keys(
    store: SegmentStore, scan: FileScan, groups: Sequence[int] | None = None
) -> Generator[KeyBatch]:
    """The keys of an archive, of a file of a snapshot, or of a sorted run. `groups`: only those of
    some row groups, and the file is not compared with its checksum. Raises `NotFound` and
    `CorruptLog`."""
    columns = [*COLUMNS, *(() if scan.kind == ARCHIVE else ("node",))]
    below, placed = START, False
    if scan.kind == ARCHIVE:
        below = max(scan.since or START, scan.covered.get(scan.map, START))
        if scan.last <= below or (scan.until is not None and scan.first > scan.until):
            return
        placed = (
            below >= scan.first
            or (scan.until is not None and scan.until < scan.last)
            or void_below(scan.cuts, scan.first) != void_below(scan.cuts, scan.last)
        )
    for group, first, batch in group_batches(
        store,
        scan.path,
        [*columns, *(POSITION_COLUMNS if placed else ())],
        groups,
        Expected(scan.checksum if groups is None else 0, scan.records, scan.directory),
    ):
        places = pc.indices_nonzero(pc.is_valid(batch.column("key"))).cast(pa.int64())
        last = scan.last if scan.kind == ARCHIVE else START
        if placed:
            last = last_position(batch)
        table = batch.append_column("row", pc.add(places, first))
        if scan.kind == ARCHIVE:
            table = _counting(table, scan, below, placed)
        records = len(table)
        table, clears = _without_clears(table, scan.map)
        yield KeyBatch(group, table, records, last, clears)


def _counting(batch: Any, scan: FileScan, below: Position, placed: bool) -> Any:
    """The rows of an archive that count."""
    conditions = []
    if placed:
        conditions.append(above(batch, POSITION_COLUMNS, below))
        if scan.until is not None:
            conditions.append(pc.invert(above(batch, POSITION_COLUMNS, scan.until)))
        for incarnation, cut in scan.cuts:
            after = above(batch, POSITION_COLUMNS, cut)
            old = pc.less(batch.column("incarnation"), incarnation)
            conditions.append(pc.invert(pc.and_(after, old)))
    elif void := void_below(scan.cuts, scan.first):
        conditions.append(pc.greater_equal(batch.column("incarnation"), void))
    overtaken = scan.overtaken.get(scan.map)
    if overtaken:
        conditions.append(pc.invert(_overtaken(batch, overtaken)))
    for condition in conditions[1:]:
        conditions[0] = pc.and_(conditions[0], condition)
    return batch.filter(conditions[0]) if conditions else batch


def above(batch: Any, columns: list[str], place: tuple[int, ...]) -> Any:
    """Which rows are greater than `place`, as tuples of these columns."""
    found: Any = None
    for name, value in zip(reversed(columns), reversed(place), strict=True):
        column = batch.column(name)
        greater = pc.greater(column, value)
        if found is not None:
            greater = pc.or_(greater, pc.and_(pc.equal(column, value), found))
        found = greater
    return found


def _overtaken(batch: Any, pairs: Mapping[int, tuple[int, int]]) -> Any:
    """Which rows have a lower pair than their partition's."""
    place = pc.index_in(batch.column("partition"), value_set=pa.array(list(pairs), pa.int64()))
    incarnation, version = (
        pa.array([pair[part] for pair in pairs.values()], pa.int64()).take(place) for part in (0, 1)
    )
    own = batch.column("incarnation")
    lower = pc.and_(pc.equal(own, incarnation), pc.less(batch.column("partition_version"), version))
    return pc.fill_null(pc.or_(pc.less(own, incarnation), lower), False)


def _without_clears(batch: Any, name: str) -> tuple[Any, tuple[tuple[Row, str], ...]]:
    """In a file a clear has an empty key, and its `expires_at_ms` is above 0."""
    empty = pc.equal(pc.binary_length(batch.column("key")), 0)
    are = pc.and_(pc.and_(empty, batch.column("deleted")), _nonzero(batch.column("expires_at_ms")))
    if not are.true_count:
        return batch, ()
    found = tuple(
        (
            clear_of(
                name,
                row["partition"],
                row["expires_at_ms"],
                row["timestamp_ms"],
                tuple(row[column] for column in ORDER_COLUMNS),
            ),
            row.get("node", ""),
        )
        for row in batch.filter(are).to_pylist()
    )
    return batch.filter(pc.invert(are)), found


def expiring(batch: Any) -> Any:
    """Which rows are tombstones, or expire."""
    return pc.or_(batch.column("deleted"), _nonzero(batch.column("expires_at_ms")))


def _nonzero(column: Any) -> Any:
    return pc.not_equal(column, 0)


def pairs_of(batch: Any) -> set[tuple[int, int, int]]:
    """The (partition, incarnation, partition version) that the rows have."""
    columns = ["partition", "incarnation", "partition_version"]
    table = pa.Table.from_batches([batch.select(columns)])
    found = table.group_by(columns, use_threads=False).aggregate([])
    return set(zip(*(found[name].to_pylist() for name in columns), strict=True))
