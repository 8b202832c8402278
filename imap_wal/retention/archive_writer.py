"""Writes the Parquet files of an archive run: one for each map, from sealed segments and small
archives."""

from __future__ import annotations

import io
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgpack

from imap_wal import layout
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.entry import DELETED, MAP, Row
from imap_wal.format import Position
from imap_wal.manifest import key_checks
from imap_wal.manifest.cluster import cluster_manifests
from imap_wal.manifest.node import Archive
from imap_wal.parquet.columns import ARCHIVE_SCHEMA, plain, to_batch
from imap_wal.parquet.file import ParquetFile, batches
from imap_wal.read.file_scan import EntryBatch, FileScan
from imap_wal.read.scan import ahead, read_scan
from imap_wal.retention.sealed_segments import Summary
from imap_wal.security.encryption import keys_of, with_fixed_keys
from imap_wal.security.encryption_keys import Keys
from storage_backends import SegmentStore

OPEN_FILES_MAX = 128
"""Maps whose files are written while the segments are read; rows of other maps wait in a scratch
file."""
SCRATCH_BYTES = 32 * 1024 * 1024
"""Bytes of such rows that are kept in memory before they are written to the scratch file."""
ABSORB_BYTES_MIN, ABSORB_BYTES_MAX = 64 * 1024, 64 * 1024 * 1024
ABSORB_MAX = 8
"""This many archives of one map with similar sizes are merged into one, up to the larger size."""
BUFFERED_BYTES_MAX = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """The input of `write_archives`: a plain value that can be sent to another process. `folder`:
    for the local Parquet files; the caller deletes it. `bytes`: the size of what is read."""

    node_folder: str
    node: str
    scans: tuple[FileScan, ...]
    folder: Path
    epoch: int
    archives: tuple[Archive, ...]
    nonce: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """The result of `write_archives`. `archives`: files on the storage that no manifest names yet.
    `absorbed`: older archives whose entries are in them too. `summary`: what the manifest must keep
    of the segments."""

    archives: tuple[Archive, ...]
    absorbed: tuple[Archive, ...]
    summary: Summary


def write_archives(store: SegmentStore, job: ArchiveJob) -> Written:
    """Read the segments, and write and store a Parquet file per map. The files do not count until
    the manifest names them."""
    store = with_fixed_keys(store)
    clusters = cluster_manifests(
        store, "/".join(job.node_folder.split("/")[:2]), SystemClock(), SystemRandomness()
    )
    key_checks.enter(keys_of(store).key_ring, clusters)
    work = _Pass(store, job)
    work.run()
    return Written(tuple(work.archives), tuple(work.absorbed), work.summary)


class _MapFile:
    def __init__(self, folder: Path, first: Position, keys: Keys, log: str) -> None:
        self.file = ParquetFile(folder, ARCHIVE_SCHEMA, keys, log)
        self.first = self.last = first


class _Scratch:
    """Rows of the maps without an open file, in one local file, which is read map by map. Memory:
    `SCRATCH_BYTES` of rows, and 16 bytes for each chunk of a map in the file."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # closed by `close`
        self._pack = msgpack.Packer(use_bin_type=True).pack
        self._waiting: dict[str, bytearray] = {}
        self._bytes = self._size = 0
        self._places: dict[str, array[int]] = {}
        """Map → offset and length of its chunks, as one flat list."""

    def add(self, name: str, rows: Sequence[Row], places: Sequence[Position]) -> None:
        data = b"".join(map(self._pack, zip(places, rows, strict=True)))
        self._waiting.setdefault(name, bytearray()).extend(data)
        self._bytes += len(data)
        if self._bytes >= SCRATCH_BYTES:
            self._flush()

    def maps(self) -> list[str]:
        """The maps with rows, sorted."""
        self._flush()
        return sorted(self._places)

    def read(self, name: str) -> Iterator[tuple[list[Row], list[Position]]]:
        """The rows of a map in the order in which they were added, in batches."""
        places = self._places[name]
        for offset, length in zip(places[::2], places[1::2], strict=True):
            self._file.seek(offset)
            placed = list(
                msgpack.Unpacker(
                    io.BytesIO(self._file.read(length)),
                    use_list=False,
                    raw=False,
                    max_buffer_size=0,
                )
            )
            yield [row for _, row in placed], [Position(*place) for place, _ in placed]

    def close(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        for name, data in self._waiting.items():
            self._file.write(data)
            self._places.setdefault(name, array("Q")).extend((self._size, len(data)))
            self._size += len(data)
        self._waiting.clear()
        self._bytes = 0


class _Pass:
    """One run of `write_archives`. It collects the summary while it writes the Parquet files."""

    def __init__(self, store: SegmentStore, job: ArchiveJob) -> None:
        self._store, self._node_folder, self._node, self._scans, self._folder = (
            store,
            job.node_folder,
            job.node,
            job.scans,
            job.folder,
        )
        self._epoch, self._known, self._nonce = job.epoch, job.archives, job.nonce
        self._log = next((scan.directory for scan in job.scans), "")
        self.absorbed: list[Archive] = []
        """Small archives whose entries are also in `archives`."""
        self.archives: list[Archive] = []
        self.summary = Summary()

    def run(self) -> None:
        with closing(_Scratch(self._folder)) as scratch:
            files: dict[str, _MapFile] = {}
            for scan, store in ahead(self._store, self._scans):
                for changes in read_scan(store, scan, positions=True):
                    self.summary.add(changes)
                    self._split(changes, files, scratch)
                    if sum(file.file.buffered for file in files.values()) > BUFFERED_BYTES_MAX:
                        max(files.values(), key=lambda file: file.file.buffered).file.flush()
            for name, file in sorted(files.items()):
                self._publish(name, file)
            files.clear()
            for name in scratch.maps():
                one: _MapFile | None = None
                for rows, places in scratch.read(name):
                    one = one or self._begin(name, places[0])
                    self._write(one, rows, places)
                if one is not None:
                    self._publish(name, one)

    def _split(self, changes: EntryBatch, files: dict[str, _MapFile], scratch: _Scratch) -> None:
        by_map: dict[str, tuple[list[Row], list[Position]]] = {}
        for row, place in zip(changes.rows, changes.positions or (), strict=True):
            rows, places = by_map.setdefault(row[MAP], ([], []))
            rows.append(row)
            places.append(place)
        for name, (rows, places) in by_map.items():
            file = files.get(name)
            if file is None and len(files) < OPEN_FILES_MAX:
                file = files[name] = self._begin(name, places[0])
            if file is None:
                scratch.add(name, rows, places)
            else:
                self._write(file, rows, places)

    def _write(self, file: _MapFile, rows: list[Row], places: list[Position]) -> None:
        file.last = places[-1]
        file.file.write(to_batch(rows, self._node, places), sum(row[DELETED] for row in rows))

    def _publish(self, name: str, file: _MapFile) -> None:
        path = layout.archive_path(
            self._node_folder,
            name,
            file.first,
            file.last,
            self._epoch,
            f"{self._nonce}{len(self.archives):x}",
        )
        size, crc = file.file.publish(self._store, path)
        self.archives.append(
            Archive(
                name,
                path,
                file.first,
                file.last,
                file.file.records,
                file.file.tombstones,
                size,
                crc,
            )
        )

    def _begin(self, name: str, first: Position) -> _MapFile:
        """The new file of one map. It begins with the entries of the archives that it absorbs."""
        absorbed = to_absorb([archive for archive in self._known if archive.map == name])
        file = _MapFile(
            self._folder, absorbed[0].first if absorbed else first, keys_of(self._store), self._log
        )
        for archive in absorbed:
            tombstones = archive.tombstones
            for batch in batches(self._store, archive.path, log=self._log):
                file.file.write(plain(batch), tombstones)
                tombstones = 0
        self.absorbed += absorbed
        return file


def to_absorb(archives: list[Archive]) -> list[Archive]:
    """The last archives of a map, which the next one absorbs, so that there are never many. Sizes
    are divided into steps, each about eight times the previous one; at most `ABSORB_MAX - 1`
    archives of a step remain. An entry is rewritten once per step."""
    ordered = sorted(archives, key=lambda archive: archive.first)
    taken: list[Archive] = []
    while ordered and ordered[-1].bytes < ABSORB_BYTES_MAX:
        step = _step(ordered[-1])
        alike = []
        while ordered and _step(ordered[-1]) <= step:
            alike.append(ordered.pop())
        if len(alike) < ABSORB_MAX - 1:
            break
        taken += alike
    return taken[::-1]


def absorbable(archives: Iterable[Archive]) -> int:
    """The bytes of all archives that the next run may absorb."""
    by_map: dict[str, list[Archive]] = {}
    for archive in archives:
        by_map.setdefault(archive.map, []).append(archive)
    return sum(archive.bytes for each in by_map.values() for archive in to_absorb(each))


def _step(archive: Archive) -> int:
    return max(0, archive.bytes // ABSORB_BYTES_MIN).bit_length() // 3
