"""The rows of an archive run, until they are written, sorted by key.

decoded rows, by map ─▶ record batches ─▶ in memory, or in a scratch file ─▶ one file, sorted
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from imap_wal.entry import MAP, Row
from imap_wal.format import Position
from imap_wal.parquet.columns import (
    ARCHIVE_SCHEMA,
    POSITION_COLUMNS,
    entry_columns,
    first_position,
    last_position,
    plain,
    to_arrow,
)
from imap_wal.parquet.log_order import order_by
from imap_wal.parquet.scratch import Scratch
from imap_wal.parquet.writer import ParquetFile
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa

WAITING_SCHEMA = pa.schema([field for field in ARCHIVE_SCHEMA if field.name not in ("map", "node")])
BATCH_ROWS, BATCH_BYTES = 1024, 1024 * 1024
"""This many rows of a map, or bytes, become a record batch while they are still in the processor's
cache."""
DECODED_BYTES = 32 * 1024 * 1024
"""The most memory that rows outside batches may take: there can be many maps."""
ROW_BYTES = 400
"""How many bytes more a decoded row takes than in a segment."""
KEPT_BYTES = 64 * 1024
"""Smaller batches wait on disk: in memory they take more than their rows."""
WAITING_BYTES = 96 * 1024 * 1024
"""At most this many bytes of batches are in memory; the rest is in a scratch file."""
FREE_BYTES = 8 * 1024 * 1024
"""Memory is full if less than this is free."""
GROUP_ROWS, GROUP_BYTES = 8192, 4 * 1024 * 1024
"""A row group of a file that is sorted by key ends at either limit."""

_map = itemgetter(MAP)


class ArchiveRows:
    """The rows that wait to be written to archives of one node, by map. Memory: about
    `WAITING_BYTES` and `DECODED_BYTES`. Raises OSError if `folder` has no space."""

    def __init__(self, folder: Path, full_bytes: int) -> None:
        """`full_bytes`: see `full`."""
        self._scratch = Scratch(WAITING_SCHEMA, WAITING_BYTES, folder)
        self._full_bytes = full_bytes
        self._full: set[str] = set()
        self._decoded: dict[str, _Rows] = {}
        self._decoded_bytes = 0
        self._sizes: dict[str, int] = {}

    def add(
        self,
        rows: Sequence[Row],
        epoch: int,
        segment: int,
        frames: Sequence[tuple[int, int]],
        size: int,
    ) -> None:
        """Rows of a segment. `frames`: the offset and the number of rows of each of its frames.
        `size`: the bytes of these frames."""
        count = len(rows)
        offsets, indexes = array("q"), array("q")
        for offset, number in frames:
            offsets += array("q", [offset]) * number
            indexes += array("q", range(number))
        places = [array("q", [epoch]) * count, array("q", [segment]) * count, offsets, indexes]
        names = [*map(_map, rows)]
        if names.count(names[0]) == count:
            self._add(names[0], rows, places, size)
        else:
            numbers: dict[str, list[int]] = {name: [] for name in names}
            for number, name in enumerate(names):
                numbers[name].append(number)
            for name, own in numbers.items():
                some = [array("q", map(column.__getitem__, own)) for column in places]
                self._add(name, [*map(rows.__getitem__, own)], some, size * len(own) // count)
        if self._decoded_bytes > DECODED_BYTES:
            self._settle()

    def full(self) -> list[str]:
        """The maps with `full_bytes` or more of waiting rows. If memory is full, the largest map
        too, if it has half of that; so if there are few maps, their rows never wait on disk."""
        if not self._full and self._scratch.room < FREE_BYTES:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            if 2 * self._sizes[largest] >= self._full_bytes:
                return [largest]
        return sorted(self._full)

    def maps(self) -> list[str]:
        """All maps that have rows."""
        self._settle()
        return sorted(self._sizes)

    def taken(self, name: str) -> list[Any]:
        """The rows of a map, with `WAITING_SCHEMA`, once."""
        self._to_batch(name)
        self._sizes.pop(name, None)
        self._full.discard(name)
        return list(self._scratch.taken(name))

    def close(self) -> None:
        self._decoded.clear()
        self._scratch.close()

    def _add(self, name: str, rows: Sequence[Row], places: Sequence[array[int]], size: int) -> None:
        size += ROW_BYTES * len(rows)
        held = self._decoded.get(name)
        if held is not None and held.bytes + size > BATCH_BYTES:
            self._to_batch(name)  # before: a column of a batch must be smaller than 2 GiB
            held = None
        if held is None:
            held = self._decoded[name] = _Rows()
        held.add(rows, places, size)
        self._decoded_bytes += size
        if len(held.rows) >= BATCH_ROWS or held.bytes >= BATCH_BYTES:
            self._to_batch(name)

    def _settle(self) -> None:
        for name in [*self._decoded]:
            self._to_batch(name)

    def _to_batch(self, name: str) -> None:
        held = self._decoded.pop(name, None)
        if held is None:
            return
        self._decoded_bytes -= held.bytes
        batch = held.batch()
        self._scratch.add(name, batch, keep=batch.nbytes >= KEPT_BYTES)
        self._sizes[name] = self._sizes.get(name, 0) + batch.nbytes
        if self._sizes[name] >= self._full_bytes:
            self._full.add(name)


class _Rows:
    """Decoded rows of one map, and the four parts of their positions."""

    __slots__ = ("bytes", "places", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.places = [array("q") for _ in POSITION_COLUMNS]
        self.bytes = 0

    def add(self, rows: Iterable[Row], places: Sequence[array[int]], size: int) -> None:
        self.rows += rows
        for own, column in zip(self.places, places, strict=True):
            own.extend(column)
        self.bytes += size

    def batch(self) -> Any:
        """A record batch with `WAITING_SCHEMA`."""
        columns: dict[str, Any] = {**entry_columns(self.rows)}
        for name, column in zip(POSITION_COLUMNS, self.places, strict=True):
            buffers = [None, pa.py_buffer(column)]
            columns[name] = pa.Array.from_buffers(pa.int64(), len(column), buffers)
        return to_arrow(columns, WAITING_SCHEMA)


def to_waiting(batch: Any) -> Any:
    """A batch that was read from an archive, in the form of waiting rows (`WAITING_SCHEMA`)."""
    batch = plain(batch.select(WAITING_SCHEMA.names))
    return pa.record_batch(batch.columns, schema=WAITING_SCHEMA)


def write_sorted(
    file: ParquetFile, batches: list[Any], name: str, node: str
) -> tuple[Position, Position]:
    """Write all rows of a map, with `WAITING_SCHEMA`, sorted by key and position. Returns the first
    and the last position. It empties `batches`, to free their memory."""
    (rows,) = pa.Table.from_batches(batches, WAITING_SCHEMA).combine_chunks().to_batches()
    batches.clear()
    order = order_by(rows, ["key", *POSITION_COLUMNS])
    group = min(GROUP_ROWS, max(1, len(rows) * GROUP_BYTES // max(1, rows.nbytes)))
    for start in range(0, len(rows), group):
        some = rows.take(order.slice(start, group))
        columns = dict(zip(WAITING_SCHEMA.names, some.columns, strict=True))
        columns |= {"map": [name] * len(some), "node": [node] * len(some)}
        file.write_groups(to_arrow(columns, ARCHIVE_SCHEMA), group)
    return first_position(rows), last_position(rows)
