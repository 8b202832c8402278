"""The rows of an archive run as columns, until they are written, sorted by key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imap_wal.entry import MAP, Row
from imap_wal.format import Position
from imap_wal.parquet.columns import (
    ARCHIVE_SCHEMA,
    POSITION_COLUMNS,
    first_position,
    last_position,
    plain,
    to_batch,
)
from imap_wal.parquet.file import ParquetFile
from imap_wal.parquet.log_order import order_by
from imap_wal.parquet.scratch import Scratch
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

WAITING_SCHEMA = pa.schema([field for field in ARCHIVE_SCHEMA if field.name not in ("map", "node")])
_CHUNK_SCHEMA = pa.schema([field for field in ARCHIVE_SCHEMA if field.name != "node"])
CHUNK_BYTES = 4 * 1024 * 1024
"""Collected rows are divided by map at this size."""
CHUNK_BYTES_MAX, MAP_BYTES = 32 * 1024 * 1024, 16 * 1024
"""With many maps: at about `MAP_BYTES` for each map, and at the latest at `CHUNK_BYTES_MAX`."""
KEPT_BYTES = 256 * 1024
"""Fewer bytes of a map wait on disk: small batches take more memory than their rows."""
WAITING_BYTES = 96 * 1024 * 1024
"""At most this many bytes of waiting rows are in memory; the rest is in a scratch file."""
GROUP_ROWS, GROUP_BYTES = 8192, 4 * 1024 * 1024
"""A row group of a file that is sorted by key ends at either."""


class ArchiveRows:
    """The rows that wait to be written to archives of one node, by map. Memory: about
    `WAITING_BYTES`. Raises OSError if `folder` has no space."""

    def __init__(self, folder: Path, full_bytes: int) -> None:
        """`full_bytes`: see `full`."""
        self._scratch = Scratch(WAITING_SCHEMA, WAITING_BYTES, folder)
        self._full_bytes = full_bytes
        self._full: set[str] = set()
        self._chunk: list[Any] = []
        self._names: set[str] = set()
        self._size = 0
        self._sizes: dict[str, int] = {}

    def add(
        self, rows: Sequence[Row], epoch: int, segment: int, frames: Sequence[tuple[int, int]]
    ) -> None:
        """Rows of a segment. `frames`: the offset and the number of rows of each of its frames."""
        batch = _with_positions(rows, epoch, segment, frames)
        if self._chunk and self._size + batch.nbytes > CHUNK_BYTES_MAX:
            self._divide()  # before: a column of a chunk must be smaller than 2 GiB
        self._chunk.append(batch)
        self._names.update([row[MAP] for row in rows])
        self._size += batch.nbytes
        if self._size >= min(max(CHUNK_BYTES, MAP_BYTES * len(self._names)), CHUNK_BYTES_MAX):
            self._divide()

    def full(self) -> list[str]:
        """The maps of which `full_bytes` or more wait."""
        return sorted(self._full)

    def maps(self) -> list[str]:
        """All maps that have rows."""
        self._divide()
        return sorted(self._sizes)

    def taken(self, name: str) -> list[Any]:
        """The rows of a map, with `WAITING_SCHEMA`, once."""
        self._sizes.pop(name, None)
        self._full.discard(name)
        return list(self._scratch.taken(name))

    def close(self) -> None:
        self._chunk.clear()
        self._scratch.close()

    def _divide(self) -> None:
        if not self._chunk:
            return
        table = pa.Table.from_batches(self._chunk).combine_chunks()
        self._chunk, self._size = [], 0
        self._names.clear()
        maps = table["map"].combine_chunks().dictionary_encode()
        table = table.select(WAITING_SCHEMA.names)
        order = pc.sort_indices(maps.indices)
        counts = {
            each["values"].as_py(): each["counts"].as_py() for each in pc.value_counts(maps.indices)
        }
        by_map = table.take(order) if len(counts) > 1 else table
        start = 0
        for number, name in enumerate(maps.dictionary.to_pylist()):
            own = by_map.slice(start, counts[number])
            keep = own.nbytes >= KEPT_BYTES
            if keep and len(counts) > 1:
                # Copied: a slice of the table would keep all of it in memory.
                own = table.take(order.slice(start, counts[number]))
            start += counts[number]
            for batch in own.to_batches():
                self._scratch.add(name, batch, keep=keep)
                self._sizes[name] = self._sizes.get(name, 0) + batch.nbytes
            if self._sizes[name] >= self._full_bytes:
                self._full.add(name)


def _with_positions(
    rows: Sequence[Row], epoch: int, segment: int, frames: Sequence[tuple[int, int]]
) -> Any:
    """A batch with the map, and all columns of `WAITING_SCHEMA`."""
    batch = to_batch(rows, "")
    count = len(rows)
    columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    columns["epoch"] = pa.repeat(pa.scalar(epoch, pa.int64()), count)
    columns["segment"] = pa.repeat(pa.scalar(segment, pa.int64()), count)
    offsets: list[int] = []
    indexes: list[int] = []
    for offset, records in frames:
        offsets += [offset] * records
        indexes += range(records)
    columns["frame"] = pa.array(offsets, pa.int64())
    columns["index"] = pa.array(indexes, pa.int64())
    return pa.record_batch([columns[name] for name in _CHUNK_SCHEMA.names], schema=_CHUNK_SCHEMA)


def to_waiting(batch: Any) -> Any:
    """A batch that was read from an archive, as rows of its map that wait."""
    batch = plain(batch.select(WAITING_SCHEMA.names))
    return pa.record_batch(batch.columns, schema=WAITING_SCHEMA)


def write_sorted(
    file: ParquetFile, batches: Sequence[Any], name: str, node: str, *, by_key: bool
) -> tuple[Position, Position]:
    """Write all rows of a map, with `WAITING_SCHEMA`, sorted by key and position, or by position
    only. Returns the first and the last position."""
    table = pa.Table.from_batches(batches, WAITING_SCHEMA).combine_chunks()
    order = order_by(table, [*(["key"] if by_key else []), *POSITION_COLUMNS])
    count = min(GROUP_ROWS, max(1, table.num_rows * GROUP_BYTES // max(1, table.nbytes)))
    for start in range(0, table.num_rows, count):
        group = table.take(order.slice(start, count))
        own = {"map": name, "node": node}
        columns = [
            pa.repeat(pa.scalar(own[field.name], field.type), group.num_rows)
            if field.name in own
            else group[field.name]
            for field in ARCHIVE_SCHEMA
        ]
        for batch in pa.table(columns, schema=ARCHIVE_SCHEMA).combine_chunks().to_batches():
            file.write(batch, batch.column("deleted").true_count)
        file.flush()
    return first_position(table), last_position(table)
