"""Files of rows in memory, which replace Parquet files in simulations.

Writing and reading Parquet takes longer than everything else in a rewrite. All the rest is the real
code: names, publishing, checksums, row counts, the merge. `tests/faults` damages real Parquet
files.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import google_crc32c
import pyarrow as pa

from imap_wal import archive
from imap_wal.contents import demand_checksum
from imap_wal.errors import CorruptLog

_MAGIC = {True: b"simulated archive\0", False: b"simulated snapshot\0"}
_numbers = itertools.count(1)
_local: dict[str, bytes] = {}
"""Path → content of a file that was written on this machine and is not published yet."""
_decoded: dict[bytes, Any] = {}
REMEMBERED = 5000


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


class File(archive.ParquetFile):
    """Replaces `ParquetFile`."""

    def __init__(self, folder: Path, schema: Any) -> None:
        self._schema = schema
        self.local = folder / f"{next(_numbers)}.parquet"
        self._batches: list[Any] = []
        self._done: list[Any] = []
        self._rows = self.buffered = self.records = self.tombstones = 0

    def flush(self) -> None:
        self._done += self._batches
        self._batches, self._rows, self.buffered = [], 0, 0

    def discard(self) -> archive.Published:
        self._close()
        data = _local.pop(str(self.local))
        return archive.Published(len(data), google_crc32c.value(data))

    def _close(self) -> None:
        self.flush()
        if str(self.local) not in _local:
            table = pa.Table.from_batches(self._done, self._schema).combine_chunks()
            parts = [batch.serialize().to_pybytes() for batch in table.to_batches()]
            placed = self._schema is archive.ARCHIVE_SCHEMA
            _local[str(self.local)] = b"".join((_MAGIC[placed], *parts))


def batches(
    store: Any,
    path: str,
    columns: list[str] | None = None,
    rows_max: int = 8192,
    *,
    checksum: int = 0,
    records: int = 0,
) -> Iterator[Any]:
    """Replaces `imap_wal.archive.batches`: one call to the store, as there."""
    with store.open_input(path) as source:
        data = source.read()
    if checksum:
        demand_checksum(path, google_crc32c.value(data), checksum)
    batch = _decoded.get(data)
    if batch is None:
        batch = _decode(data, path)
        if len(_decoded) >= REMEMBERED:
            _decoded.clear()
        _decoded[data] = batch
    found = len(batch) if batch else 0
    if records and found != records:
        raise CorruptLog(path, 0, f"this file holds {found} rows, the manifest says {records}")
    if batch:
        yield batch


def _decode(data: bytes, path: str) -> Any:
    for placed, magic in _MAGIC.items():
        if data.startswith(magic):
            schema = archive.ARCHIVE_SCHEMA if placed else archive.SNAPSHOT_SCHEMA
            body = data[len(magic) :]
            return pa.ipc.read_record_batch(pa.py_buffer(body), schema) if body else ()
    raise CorruptLog(path, 0, "this is no file of rows")


def remembered(convert: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """`to_rows` and the like, once for each batch that was read."""
    known: dict[int, tuple[Any, list[Any]]] = {}

    def converted(batch: Any) -> list[Any]:
        found = known.get(id(batch))
        if found is None or found[0] is not batch:
            if len(known) >= REMEMBERED:
                known.clear()
            found = known[id(batch)] = batch, convert(batch)
        return found[1].copy()

    return converted


def patches() -> list[tuple[Any, str, Any]]:
    """Replacements for the modules that write or read such files."""
    from rewrite_cli import conflicts, local, rewriter, spark

    return [
        (archive, "ParquetFile", File),
        (local, "ParquetFile", File),
        (conflicts, "ParquetFile", File),
        (archive, "batches", batches),
        (rewriter, "batches", batches),
        (archive, "to_rows", remembered(archive.to_rows)),
        (archive, "to_positions", remembered(archive.to_positions)),
        (archive, "nodes_of", remembered(archive.nodes_of)),
        (archive, "tempfile", _Tempfile),
        (local, "tempfile", _Tempfile),
        (spark, "tempfile", _Tempfile),
        (conflicts, "tempfile", _Tempfile),
    ]


class _Tempfile:
    """Replaces the module `tempfile`."""

    TemporaryDirectory = Folder

    @staticmethod
    def TemporaryFile(**_: Any) -> io.BytesIO:  # noqa: N802
        return io.BytesIO()

    @staticmethod
    def gettempdir() -> str:
        return "/nowhere"
