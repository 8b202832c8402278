"""Files of rows in memory, which replace Parquet files in simulations.

Writing and reading Parquet takes longer than everything else in a rewrite. All the rest is the real
code: names, publishing, checksums, row counts, the merge. `tests/faults` damages real Parquet
files.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any

import google_crc32c
import msgpack

from imap_wal.contents import Published, demand_checksum
from imap_wal.entry import DELETED, KEY, MAP
from imap_wal.errors import CorruptLog
from imap_wal.format import Position
from imap_wal.parquet import archive_rows
from imap_wal.parquet import columns as parquet_columns
from imap_wal.parquet import file as parquet_file
from imap_wal.parquet import reader as parquet_reader
from imap_wal.parquet import writer as parquet_writer

_MAGIC = b"simulated rows\0"
_numbers = itertools.count(1)
_local: dict[str, bytes] = {}
"""Path → content of a file that was written on this machine and is not published yet."""
_decoded: dict[bytes, Any] = {}
REMEMBERED = 300


def taken(path: str) -> bytes | None:
    """The content of a local file that was written here."""
    return _local.get(path)


class Folder:
    """Replaces `tempfile.TemporaryDirectory`: only a name."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.name = f"/nowhere/{next(_numbers)}"

    def __enter__(self) -> str:
        return self.name

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        for path in [path for path in _local if path.startswith(f"{self.name}/")]:
            del _local[path]


class Batch:
    """Replaces a record batch: rows, the node that wrote each, and in an archive the position of
    each."""

    __slots__ = ("nodes", "places", "rows")

    def __init__(self, rows: list[Any], nodes: list[str], places: Any = None) -> None:
        self.rows, self.nodes, self.places = rows, nodes, places

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return 100 * len(self.rows)


to_record_batch = parquet_columns.to_batch
"""The real one, for tasks of Spark."""


def to_batch(rows: Any, nodes: Any, positions: Any = None) -> Batch:
    """Replaces `imap_wal.parquet.columns.to_batch`."""
    named = [nodes] * len(rows) if isinstance(nodes, str) else list(nodes)
    assert len(named) == len(rows) and (positions is None or len(positions) == len(rows))
    return Batch(list(rows), named, None if positions is None else list(positions))


def _of_batch(attribute: str, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`to_rows` and the like."""

    def found(batch: Any) -> Any:
        if type(batch) is Batch:
            return list(getattr(batch, attribute))
        return real(batch)

    return found


_rows_of = _of_batch("rows", parquet_columns.to_rows)
_nodes_of = _of_batch("nodes", parquet_columns.nodes_of)


class File(parquet_writer.ParquetFile):
    """Replaces `ParquetFile`."""

    def __init__(
        self,
        folder: Path,
        schema: Any,
        keys: Any,
        log: str = "",
        *,
        group_rows: int = parquet_file.GROUP_ROWS_MAX,
        group_bytes: int = parquet_file.GROUP_BYTES_MAX,
        decoded: None = None,
    ) -> None:
        assert decoded is None, "no schedule has decoded columns"
        self._group_rows, self._group_bytes = group_rows, group_bytes
        self._encrypted = False  # segments are: see `imap_wal.security.encryption`
        self._placed = schema is parquet_columns.ARCHIVE_SCHEMA
        self.local = folder / f"{next(_numbers)}.parquet"
        self._batches: list[Any] = []
        self._done: list[Any] = []
        self._rows = self.buffered = self.groups = self.records = self.tombstones = 0

    def flush(self) -> None:
        self.groups += bool(self._batches)
        self._done += self._batches
        self._batches, self._rows, self.buffered = [], 0, 0

    def discard(self) -> Published:
        self._close()
        data = _local.pop(str(self.local))
        return Published(len(data), google_crc32c.value(data))

    def _close(self) -> None:
        self.flush()
        name = str(self.local)
        if name not in _local:
            rows = [row for batch in self._done for row in _rows_of(batch)]
            nodes = [node for batch in self._done for node in _nodes_of(batch)]
            places = None
            if self._placed:
                places = [place for batch in self._done for place in batch.places]
            _local[name] = _MAGIC + msgpack.packb((rows, nodes, places))


class ArchiveRows:
    """Replaces `imap_wal.parquet.archive_rows.ArchiveRows`."""

    def __init__(self, _: Path, full_bytes: int) -> None:
        self._full_bytes = full_bytes
        self._waiting: dict[str, list[tuple[Any, Position]]] = {}

    def add(
        self, rows: Any, epoch: int, segment: int, frames: Sequence[tuple[int, int]], _: int
    ) -> None:
        places = [
            Position(epoch, segment, offset, index)
            for offset, count in frames
            for index in range(count)
        ]
        for row, place in zip(rows, places, strict=True):
            self._waiting.setdefault(row[MAP], []).append((row, place))

    def full(self) -> list[str]:
        return [
            name
            for name, waiting in self._waiting.items()
            if 100 * len(waiting) >= self._full_bytes
        ]

    def maps(self) -> list[str]:
        return sorted(self._waiting)

    def taken(self, name: str) -> list[Batch]:
        rows, places = zip(*self._waiting.pop(name, []), strict=True)
        return [Batch(list(rows), [""] * len(rows), list(places))]

    def close(self) -> None:
        pass


def write_sorted(
    file: File, batches: Sequence[Batch], _: str, node: str
) -> tuple[Position, Position]:
    """Replaces `imap_wal.parquet.archive_rows.write_sorted`."""
    placed = [pair for batch in batches for pair in zip(batch.rows, batch.places, strict=True)]
    placed.sort(key=lambda pair: (pair[0][KEY] or b"", pair[1]))
    rows, places = [row for row, _ in placed], [place for _, place in placed]
    file.write(Batch(rows, [node] * len(rows), places), sum(row[DELETED] for row in rows))
    return min(places), max(places)


def batches(
    context: Any,
    path: str,
    columns: list[str] | None = None,
    rows_max: int = 8192,
    *,
    expected: parquet_reader.Expected = parquet_reader.UNKNOWN,
    by_position: bool = False,
    keys: Any = None,
    span: Any = None,
) -> Iterator[Any]:
    """Replaces `imap_wal.parquet.reader.batches`: one call to the store, as there."""
    with context.store.open_input(path) as source:
        data = source.read()
    if expected.checksum:
        demand_checksum(path, google_crc32c.value(data), expected.checksum)
    batch = _decoded.get(data)
    if batch is None:
        batch = _decode(data, path)
        if len(_decoded) >= REMEMBERED:
            _decoded.clear()
        _decoded[data] = batch
    if expected.records and len(batch) != expected.records:
        what = f"this file has {len(batch)} rows, but the manifest says {expected.records}"
        raise CorruptLog(path, 0, what)
    if by_position:
        placed = sorted(zip(batch.places, batch.rows, batch.nodes, strict=True), key=itemgetter(0))
        places, rows, nodes = (list(each) for each in zip(*placed, strict=True))
        batch = Batch(rows, nodes, places)
    if len(batch):
        yield batch


def _decode(data: bytes, path: str) -> Batch:
    if not data.startswith(_MAGIC):
        raise CorruptLog(path, 0, "this is no file of rows")
    rows, nodes, places = msgpack.unpackb(data[len(_MAGIC) :], use_list=False)
    return Batch(
        list(rows),
        list(nodes),
        None if places is None else [Position(*each) for each in places],
    )


def patches() -> list[tuple[Any, str, Any]]:
    """Replacements in all modules that write or read such files."""
    from imap_wal.read import parquet_scan
    from imap_wal.retention import archive, archive_writer
    from imap_wal.rewrite import (
        conflicts,
        local_engine,
        part_writer,
        plan,
        publish,
        sorted_runs,
        task_engine,
    )

    fakes = {
        "ParquetFile": File,
        "batches": batches,
        "to_batch": to_batch,
        "ArchiveRows": ArchiveRows,
        "to_waiting": lambda batch: batch,
        "write_sorted": write_sorted,
        "written_otherwise": lambda *_: False,
        "to_rows": _rows_of,
        "to_positions": _of_batch("places", parquet_columns.to_positions),
        "nodes_of": _nodes_of,
        "tempfile": _Tempfile,
    }
    users = (
        parquet_scan,
        archive,
        archive_writer,
        conflicts,
        local_engine,
        part_writer,
        plan,
        publish,
        sorted_runs,
        task_engine,
    )
    modules = parquet_columns, parquet_file, parquet_reader, parquet_writer, archive_rows
    real = {name: value for module in modules for name, value in vars(module).items()}
    found = [
        (module, name, fake)
        for module in users
        for name, fake in fakes.items()
        if getattr(module, name, None) is real[name]
        and (module, name) != (part_writer, "to_batch")  # it works with columns
    ]
    assert {name for _, name, _ in found} == fakes.keys(), "a name has moved"
    return found


class _Tempfile:
    """Replaces the module `tempfile`."""

    TemporaryDirectory = Folder

    @staticmethod
    def TemporaryFile(**_: Any) -> io.BytesIO:  # noqa: N802
        return io.BytesIO()

    @staticmethod
    def gettempdir() -> str:
        return "/nowhere"
