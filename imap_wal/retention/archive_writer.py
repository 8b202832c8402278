"""Writes the Parquet files of an archive run, sorted by key: one for each map, or several of
bounded size, from sealed segments and small archives. See
docs/decisions/rewrites.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.manifest import key_checks
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.list_files import Archive
from imap_wal.parquet.archive_rows import ArchiveRows, to_waiting, write_sorted
from imap_wal.parquet.columns import ARCHIVE_SCHEMA
from imap_wal.parquet.decoded_columns import DecodedColumns
from imap_wal.parquet.reader import Expected, batches
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read.file_scan import FileScan, Metadata
from imap_wal.read.scan import ahead, read_scan
from imap_wal.retention.overlap import Overlap
from imap_wal.retention.sealed_segments import Summary

FULL = 64 * 1024 * 1024
"""A file of a map is written when this many bytes of its rows wait, measured in memory. A reader
that needs the order of the log sorts the file in memory."""
COLUMN_BYTES_MAX = 1024 * 1024 * 1024
"""The limit of a file with more than one batch of rows: a column must be smaller than 2 GiB."""
BATCH_ROWS = 1024
"""How many rows are decoded and turned into columns at a time, while they are in the processor's
cache."""
ABSORB_BYTES_MIN, ABSORB_BYTES_MAX = 64 * 1024, 64 * 1024 * 1024
ABSORB_MAX = 8
"""This many archives of one map with similar sizes are merged into one, up to the larger size."""


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """The input of `write_archives`: a plain value that can be sent to another process. `folder`:
    for the local Parquet files; the caller deletes it. `bytes`: the size of what is read.
    `archives`: those that the new ones of their maps absorb. `decoded`: names of maps, see
    `ClusterManifest.decoded`; `schemas`: those in the manifest of the node."""

    node_folder: str
    node: str
    scans: tuple[FileScan, ...]
    folder: Path
    epoch: int
    archives: tuple[Archive, ...]
    nonce: str
    bytes: int
    decoded: tuple[str, ...] = ()
    schemas: tuple[Metadata, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenArchives:
    """The result of `write_archives`. `archives`: files on the storage that no manifest names yet.
    `absorbed`: older archives whose entries are in them too. `summary`: what the manifest must keep
    of the segments."""

    archives: tuple[Archive, ...]
    absorbed: tuple[Archive, ...]
    summary: Summary


Write: TypeAlias = Callable[[Context, ArchiveJob], WrittenArchives]


def write_archives(context: Context, job: ArchiveJob) -> WrittenArchives:
    """Read the segments, and write and store a Parquet file per map. The files do not count until
    the manifest names them."""
    context = context.with_fixed_keys()
    clusters = ClusterManifestLog(context, layout.cluster_of(job.node_folder))
    key_checks.enter(context.keys.key_ring, clusters)
    return _Pass(context, job).run()


class _Pile:
    """The rows of the next file of one map. They are later than those of its former files."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.bytes = 0

    def add(self, batch: Any) -> None:
        self.batches.append(batch)
        self.bytes += batch.nbytes


class _Pass:
    """One run of `write_archives`: this thread reads, and others write (`Overlap`)."""

    def __init__(self, context: Context, job: ArchiveJob) -> None:
        self._context, self._job = context, job
        self._decoded = DecodedColumns(job.decoded, job.schemas)
        self._log = next((scan.directory for scan in job.scans), "")
        self._known: dict[str, list[Archive]] = {}
        """Map → the archives that its first file absorbs, until that is written."""
        for archive in job.archives:
            self._known.setdefault(archive.map, []).append(archive)
        self._numbers = count()

    def run(self) -> WrittenArchives:
        summary, absorbed = Summary(), list[Archive]()
        with (
            closing(ArchiveRows(self._job.folder, FULL)) as waiting,
            Overlap[list[Archive]]() as writers,
        ):

            def write(name: str) -> None:
                former = self._known.pop(name, [])
                absorbed.extend(former)
                writers.run(partial(self._write, name, former, waiting.taken(name)))

            for scan, context in ahead(self._context, self._job.scans):
                for changes in read_scan(context, scan, rows_max=BATCH_ROWS):
                    summary.add_requests(changes)
                    if changes.metadata:
                        self._decoded.learn(changes.metadata)
                    if changes.rows:
                        waiting.add(
                            changes.rows, scan.epoch, scan.number, changes.frames, changes.bytes
                        )
                    for name in waiting.full():
                        write(name)
            for name in waiting.maps():
                write(name)
            archives = [archive for result in writers.results() for archive in result]
        return WrittenArchives(tuple(archives), tuple(absorbed), summary)

    def _write(self, name: str, former: list[Archive], rows: list[Any]) -> list[Archive]:
        """Write rows of a map that are later than those of the archives in `former`. The first new
        file begins with the entries of these archives, which it absorbs. Empties `rows`."""
        pile, written = _Pile(), list[Archive]()
        for archive in former:
            for batch in batches(self._context, archive.path, expected=Expected(log=self._log)):
                pile.add(to_waiting(batch))
            # Not within a file: it is sorted by key, so positions of the two would overlap.
            if pile.bytes >= FULL:
                written.append(self._publish(name, pile))
        rows.reverse()
        while rows:
            batch = rows.pop()
            if pile.bytes and pile.bytes + batch.nbytes > COLUMN_BYTES_MAX:
                written.append(self._publish(name, pile))
            pile.add(batch)
        written.append(self._publish(name, pile))
        return written

    def _publish(self, name: str, pile: _Pile) -> Archive:
        rows, size = pile.batches, pile.bytes
        pile.batches, pile.bytes = [], 0
        file = ParquetFile(
            self._job.folder,
            ARCHIVE_SCHEMA,
            self._context.keys,
            self._log,
            decoded=self._decoded.of(name),
        )
        first, last = write_sorted(file, rows, name, self._job.node)
        nonce = f"{self._job.nonce}{next(self._numbers):x}"
        path = layout.archive_path(self._job.node_folder, name, first, last, self._job.epoch, nonce)
        published = file.publish(self._context.store, path)
        counts = file.records, file.tombstones
        return Archive(name, path, first, last, *counts, *published, max(size, 1))


def to_absorb(archives: list[Archive]) -> list[Archive]:
    """The last archives of a map, which the next one absorbs, so that there are never many. Sizes
    are divided into steps, each about eight times the previous one; at most `ABSORB_MAX - 1`
    archives of a step remain. An entry is rewritten once per step."""
    ordered = sorted(archives, key=lambda archive: archive.first)
    taken: list[Archive] = []
    while ordered and is_absorbable(ordered[-1].bytes, ordered[-1].unpacked):
        step = _step(ordered[-1])
        alike = []
        while ordered and _step(ordered[-1]) <= step:
            alike.append(ordered.pop())
        if len(alike) < ABSORB_MAX - 1:
            break
        taken += alike
    return taken[::-1]


def is_absorbable(size: int, unpacked: int) -> bool:
    """Whether a later run may absorb an archive of `size` bytes. `unpacked`: as in `Archive`."""
    return unpacked < FULL // 2 if unpacked else size < ABSORB_BYTES_MAX


def absorbable(archives: Iterable[Archive]) -> tuple[Archive, ...]:
    """All archives that the next run absorbs if their maps have entries in it; archives of the same
    map are in the order of the log."""
    by_map: dict[str, list[Archive]] = {}
    for archive in archives:
        by_map.setdefault(archive.map, []).append(archive)
    return tuple(archive for of_map in by_map.values() for archive in to_absorb(of_map))


def _step(archive: Archive) -> int:
    return max(0, archive.bytes // ABSORB_BYTES_MIN).bit_length() // 3
