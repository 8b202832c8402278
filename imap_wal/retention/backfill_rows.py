"""The rows of a backfill that one process writes, in archives of bounded size. Memory and scratch
are those of an archive run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from imap_wal import layout
from imap_wal.entry import Row
from imap_wal.manifest.list_files import Archive
from imap_wal.parquet.archive_rows import ArchiveRows, write_sorted
from imap_wal.parquet.columns import ARCHIVE_SCHEMA
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.archive_writer import FULL
from imap_wal.retention.backfill import EPOCH, SESSION, Backfill

SEGMENT = 1


class BackfillEntry(NamedTuple):
    """`expires_at_ms`: Unix time in milliseconds; 0: never."""

    key: bytes
    value: bytes
    key_class: str
    value_class: str
    expires_at_ms: int


class BackfillRows:
    """Upserts of a backfill, in the order of `add`: the last one of a key counts. `folder`: local,
    for the rows that wait. No manifest names the archives before `backfill.publish`."""

    def __init__(self, log: ClusterLog, of: Backfill, folder: Path) -> None:
        self._log, self._of, self._folder = log, of, folder
        self._rows = ArchiveRows(folder, FULL)
        self._now_ms = log.clock.now_ms()
        self._count = 0
        self.archives: list[Archive] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def add(self, name: str, entries: Sequence[BackfillEntry]) -> None:
        """Take entries of a map. They are valid (`imap_wal.rules.valid`)."""
        rows: list[Row] = []
        size = 0
        for request, entry in enumerate(entries, self._count + 1):
            key, value, key_class, value_class, expires_at_ms = entry
            order = self._of.incarnation, 0, SESSION, request
            times = self._now_ms, expires_at_ms
            rows.append((name, key, key_class, value, value_class, False, *times, 0, order))
            size += len(key) + len(value)
        # The number of the first row instead of the offset of a frame: positions increase.
        self._rows.add(rows, EPOCH, SEGMENT, [(self._count, len(rows))], size)
        self._count += len(rows)
        for full in self._rows.full():
            self._write(full)

    def end(self) -> list[Archive]:
        """All archives. No rows can be added after this."""
        for name in self._rows.maps():
            self._write(name)
        return self.archives

    def _write(self, name: str) -> None:
        store, node = self._log.store, self._of.folder(self._log)
        rows = self._rows.taken(name)
        size = sum(batch.nbytes for batch in rows)
        file = ParquetFile(self._folder, ARCHIVE_SCHEMA, self._log.context.keys, self._of.directory)
        places = write_sorted(file, rows, name, self._of.node)
        nonce = self._log.randomness.token().hex()[:16]
        path = layout.part_path(node, name, nonce)
        published = file.publish(store, path)
        counts = file.records, file.tombstones
        self.archives.append(Archive(name, path, *places, *counts, *published, max(size, 1)))
