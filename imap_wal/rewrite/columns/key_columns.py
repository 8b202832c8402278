"""Keys and orders of archives and snapshots, by columns, without values."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from imap_wal.context import Context
from imap_wal.entry import ORDER_FIELDS, Row, clear_of
from imap_wal.format import START, Position
from imap_wal.parquet.columns import POSITION_COLUMNS, are_clears, last_position
from imap_wal.parquet.reader import Expected, group_batches
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.rules.counts import counting_columns, is_uniform, may_count
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

COLUMNS = ["key", "deleted", "timestamp_ms", "expires_at_ms", "partition", *ORDER_FIELDS]


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
    context: Context, scan: FileScan, groups: Sequence[int] | None = None
) -> Generator[KeyBatch]:
    """The keys of an archive, of a file of a snapshot, or of a sorted run. `groups`: only those of
    some row groups, and the file is not compared with its checksum. Raises `NotFound` and
    `CorruptLog`."""
    limits = scan.map, scan.first, scan.last
    columns = [*COLUMNS, *(() if scan.kind == ARCHIVE else ("node",))]
    placed = False
    if scan.kind == ARCHIVE:
        if not may_count(scan, *limits):
            return
        placed = not is_uniform(scan, *limits)
    for group, first, batch in group_batches(
        context,
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
            table = counting_columns(scan, table, *limits)
        records = len(table)
        table, clears = _without_clears(table, scan.map)
        yield KeyBatch(group, table, records, last, clears)


def _without_clears(batch: Any, name: str) -> tuple[Any, tuple[tuple[Row, str], ...]]:
    are = are_clears(batch)
    if not are.true_count:
        return batch, ()
    clears = tuple(
        (
            clear_of(
                name,
                row["partition"],
                row["expires_at_ms"],
                row["timestamp_ms"],
                tuple(row[column] for column in ORDER_FIELDS),
            ),
            row.get("node", ""),
        )
        for row in batch.filter(are).to_pylist()
    )
    return batch.filter(pc.invert(are)), clears


def pairs_of(batch: Any) -> set[tuple[int, int, int]]:
    """The (partition, incarnation, partition version) that the rows have."""
    columns = ["partition", "incarnation", "partition_version"]
    table = pa.Table.from_batches([batch.select(columns)])
    pairs = table.group_by(columns, use_threads=False).aggregate([])
    return set(zip(*(pairs[name].to_pylist() for name in columns), strict=True))
