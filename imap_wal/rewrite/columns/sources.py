"""Where the changes of a rewrite are.

Archives and files of snapshots are read by columns, twice: keys, and then the rows that won.
Segments and small files are read as rows, once: the rows that may still win are kept as columns in
memory or in a scratch file.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, BinaryIO, cast

from imap_wal.contents import chunks
from imap_wal.context import Context
from imap_wal.entry import Row, subject
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA, to_batch
from imap_wal.parquet.reader import rows_at
from imap_wal.parquet.scratch import Scratch
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.read.newest.index import NewestIndex
from imap_wal.retention.archive_writer import is_absorbable
from imap_wal.rewrite.columns.newest_keys import KEY_SCHEMA, NewestKeys
from imap_wal.rewrite.tally import Subject
from imap_wal.rules.dropped import are_droppable
from storage_backends import SegmentStore
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc


class Sources:
    """All places of changes, by number; what is read from them is added to `keys`."""

    def __init__(
        self,
        context: Context,
        keys: NewestKeys,
        late: AbstractSet[Subject],
        memory_bytes: int,
        folder: Path | None,
    ) -> None:
        """`late`: the subjects of rows that came late (`imap_wal.rewrite.tally.Tally`)."""
        self._late = late
        self._copies = Copies(context.store, folder)
        self.context = context.on(cast(SegmentStore, self._copies))
        self.nodes = keys.nodes
        self._keys = keys
        self._numbers: dict[str, int] = {}
        self._places: list[FileScan | str] = []
        """By number: a Parquet file, or the map whose rows are on scratch."""
        self._rows = Scratch(SNAPSHOT_SCHEMA, memory_bytes, folder)
        self._counts: dict[str, tuple[int, int]] = {}
        """Map → the number of its rows on scratch as a source, and how many there are."""
        self._index = NewestIndex(2 * memory_bytes, spill=False)

    def node(self, name: str) -> int:
        """The number of a node."""
        if name not in self._numbers:
            self._numbers[name] = len(self.nodes)
            self.nodes.append(name)
        return self._numbers[name]

    def file(self, scan: FileScan) -> int:
        """The number of a Parquet file as a source."""
        if scan.kind == ARCHIVE and is_absorbable(scan.bytes, scan.unpacked):
            self._copies.copy(scan.path)  # an archive run may absorb it before its values are read
        self._places.append(scan)
        return len(self._places) - 1

    def add_columns(self, source: int, batch: Any, late: bool) -> None:
        """Add keys of a Parquet file (`imap_wal.rewrite.columns.key_columns.KeyBatch`)."""
        scan = cast(FileScan, self._places[source])
        count = len(batch)
        if scan.kind == ARCHIVE:
            nodes = pa.repeat(pa.scalar(self.node(scan.node), pa.int32()), count)
        else:
            column = batch.column("node")
            numbers = [self.node(name) for name in column.dictionary.to_pylist()]
            nodes = pa.array(numbers, pa.int32()).take(column.indices)
        self._keys.add(scan.map, _keys_of(batch, nodes, late, source, batch.column("row")))

    def add_rows(self, rows: Sequence[Row], node: str, size: int) -> None:
        """Add whole rows, without clears."""
        self._index.add(node, rows, size)
        if self._index.full:
            self.flush()

    def flush(self) -> None:
        """Turn the waiting rows into columns; of each key, keep only the rows that may still
        win."""
        for name in self._index.maps():
            for rows, nodes in self._index.every(name):
                late = [bool(self._late) and subject(row) in self._late for row in rows]
                self._add(name, to_batch(rows, nodes), pa.array(late, pa.bool_()))
        self._index.clear()

    def _add(self, name: str, batch: Any, lates: Any) -> None:
        if name not in self._counts:
            self._places.append(name)
            self._counts[name] = len(self._places) - 1, 0
        source, before = self._counts[name]
        self._counts[name] = source, before + len(batch)
        places = pc.indices_nonzero(pc.is_valid(batch.column("key"))).cast(pa.int64())
        nodes = batch.column("node").dictionary_encode()
        numbers = [self.node(name) for name in nodes.dictionary.to_pylist()]
        nodes = pa.array(numbers, pa.int32()).take(nodes.indices)
        self._rows.add(name, batch)
        self._keys.add(name, _keys_of(batch, nodes, lates, source, pc.add(places, before)))

    def rows(self, source: int, rows: Any) -> Iterator[Any]:
        """The rows of a source with these numbers, which increase: in batches with
        `SNAPSHOT_SCHEMA`. Raises `NotFound` and `CorruptLog`."""
        place = self._places[source]
        if isinstance(place, str):
            yield from self._rows.some(place, rows)
            return
        columns = [name for name in SNAPSHOT_SCHEMA.names if name != "map"]
        if place.kind == ARCHIVE:
            columns.remove("node")
        # An archive's log matters only if it is encrypted.
        for batch in rows_at(self.context, place.path, rows, columns, log=place.directory):
            yield _whole(batch, place)

    def close(self) -> None:
        self._rows.close()
        self._copies.close()
        self._index.close()


def _keys_of(batch: Any, nodes: Any, late: Any, source: int, rows: Any) -> Any:
    """A batch with `KEY_SCHEMA`. `late`: of each row, or of all."""
    count = len(batch)
    if late is False:
        lates = pa.repeat(pa.scalar(False), count)
    else:
        lates = are_droppable(batch) if late is True else pc.and_(late, are_droppable(batch))
    extra = {
        "node": nodes,
        "late": lates,
        "source": pa.repeat(pa.scalar(source, pa.int32()), count),
        "row": rows,
    }
    columns = [extra[name] if name in extra else batch.column(name) for name in KEY_SCHEMA.names]
    return pa.record_batch(columns, schema=KEY_SCHEMA)


def _whole(batch: Any, scan: FileScan) -> Any:
    """A batch with `SNAPSHOT_SCHEMA`, without dictionaries."""
    columns = []
    for field in SNAPSHOT_SCHEMA:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            text = scan.map if field.name == "map" else scan.node
            columns.append(pa.repeat(pa.scalar(text, field.type), len(batch)))
        else:
            columns.append(batch.column(place).cast(field.type))
    return pa.record_batch(columns, schema=SNAPSHOT_SCHEMA)


class Copies:
    """A store with copies on this machine of the files that may disappear between two readings of a
    rewrite. A copy is read from its store once, when it is made."""

    def __init__(self, inner: SegmentStore, folder: Path | None) -> None:
        self.inner, self._folder = inner, folder
        self._file: BinaryIO | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def copy(self, path: str) -> None:
        """Copy a file. Raises the errors of `chunks`."""
        with self.inner.open_input(path) as source:
            data = b"".join(chunks(source, path))
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="imap-wal-", dir=self._folder)
        self._file.seek(self._end)
        self._file.write(data)
        self._file.flush()  # it is read by its descriptor, which threads can share
        self._places[path] = self._end, len(data)
        self._end += len(data)

    def open_input(self, path: str) -> Any:
        if path not in self._places:
            return self.inner.open_input(path)
        assert self._file is not None
        offset, length = self._places[path]
        return io.BytesIO(os.pread(self._file.fileno(), length, offset))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
