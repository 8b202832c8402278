"""Turns sealed segments into archives: one Parquet file per map, compressed with zstd. Then the
segments are deleted.

    write   segments ─▶ a local file for each map ─▶ store.create_from ─▶ one node manifest
            (archives, archived, metadata, requests) ─▶ delete segments
    read    row groups ─▶ rows as a segment returns them

A crash before the manifest is published leaves Parquet files that no manifest names. A crash after
it leaves segments at or below `archived`. Neither is ever read, and the next run deletes them.

Columns: map, key, key_class, value, value_class, deleted, timestamp_ms, expires_at_ms, partition;
the order: incarnation, partition_version, session, request; the position: node, epoch, segment,
frame, index. A snapshot's files have no position, and are sorted by key.
"""

from __future__ import annotations

import io
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import msgpack

from imap_wal import layout
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.disposal import dispose
from imap_wal.encryption import keys_of
from imap_wal.encryption_keys import Keys
from imap_wal.entry import DELETED, MAP, ORDER, Row
from imap_wal.errors import Fenced, ImapWalError, LostRace, StorageUnavailable
from imap_wal.format import START, Position
from imap_wal.manifest import key_checks, missing
from imap_wal.manifest.cluster import cluster_manifests
from imap_wal.manifest.node import Archive, NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.parquet.file import ARCHIVE_SCHEMA, ParquetFile, batches, plain, to_batch
from imap_wal.read.file_scan import SEGMENT, EntryBatch, FileScan, Metadata
from imap_wal.read.scan import read_piece
from imap_wal.segment.listing import SegmentFile, sorted_out, wal_folder
from storage_backends import NotFound, SegmentStore, StorageError

OPEN_FILES_MAX = 128
"""Maps whose files are written while the segments are read; rows of other maps wait in a scratch
file."""
SCRATCH_BYTES = 32 * 1024 * 1024
"""Bytes of such rows that are kept in memory before they are written to the scratch file."""
ATTEMPTS = 8
"""How often an archive run is repeated because segments were removed while it read them, or a new
manifest was published."""
ABSORB_BYTES_MIN, ABSORB_BYTES_MAX = 64 * 1024, 64 * 1024 * 1024
ABSORB_MAX = 8
"""This many archives of one map with similar sizes are merged into one, up to the larger size."""
BUFFERED_BYTES_MAX = 128 * 1024 * 1024
MEMBERS_MAX = 1000
"""Metadata records that a manifest keeps, besides schemas; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of an archive run. `bytes_before`: as segments; `bytes_after`: as Parquet."""

    segments: int = 0
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    archives: tuple[Archive, ...] = ()


@dataclass(slots=True)
class Summary:
    """What must be kept of sealed segments when they are deleted. `maps`: map → position of its
    last entry. `requests`: session → its last request. `end`: the last position."""

    maps: dict[str, Position] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)
    metadata: dict[Metadata, None] = field(default_factory=dict)
    end: Position = START
    clears: bool = False

    def add(self, changes: EntryBatch) -> None:
        """Add a batch that was read with positions."""
        self.end = max(self.end, changes.last)
        self.clears |= changes.clears
        for item in changes.metadata:
            self.metadata.setdefault(to_manifest(item))
        maps, requests = self.maps, self.requests
        for row, place in zip(changes.rows, changes.positions or (), strict=True):
            maps[row[MAP]] = place
            _, _, session, request = row[ORDER]
            if request > requests.get(session, 0):
                requests[session] = request


def summarize(store: SegmentStore, piece: FileScan) -> Summary:
    """Read one segment for its summary."""
    summary = Summary()
    for changes in read_piece(store, piece, positions=True):
        summary.add(changes)
    return summary


def carried(
    manifest: NodeManifest, archived: tuple[int, int], summaries: Iterable[Summary]
) -> NodeManifest:
    """The manifest without the segments up to `archived`, with what must be kept of them."""
    requests = dict(manifest.requests)
    metadata = list(manifest.metadata)
    end, clears = manifest.checkpoint, manifest.clears
    for summary in summaries:
        clears |= summary.clears
        for session, request in summary.requests.items():
            requests[session] = max(request, requests.get(session, 0))
        metadata += summary.metadata
        end = max(end, summary.end)
    requests = manifest.known_requests(requests)
    archived = max(manifest.archived, archived)
    return replace(
        manifest,
        archived=archived,
        requests=requests,
        metadata=_carry(metadata),
        checkpoint=end,
        clears=clears,
    )


class _MapFile:
    def __init__(self, folder: Path, first: Position, keys: Keys, log: str) -> None:
        self.file = ParquetFile(folder, ARCHIVE_SCHEMA, keys, log)
        self.first = self.last = first


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """The input of `write_archives`: a plain value that can be sent to another process. `folder`:
    for the local Parquet files; the caller deletes it. `bytes`: the size of what is read."""

    node_folder: str
    node: str
    pieces: tuple[FileScan, ...]
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


Write: TypeAlias = Callable[[SegmentStore, ArchiveJob], Written]


def write_archives(store: SegmentStore, job: ArchiveJob) -> Written:
    """Read the segments, and write and store a Parquet file per map. The files do not count until
    the manifest names them."""
    clusters = cluster_manifests(
        store, "/".join(job.node_folder.split("/")[:2]), SystemClock(), SystemRandomness()
    )
    key_checks.enter(keys_of(store).ring, clusters)
    work = _Pass(store, job)
    work.run()
    return Written(tuple(work.archives), tuple(work.absorbed), work.summary)


class _Scratch:
    """Rows of the maps without an open file, in one local file, which is read map by map. Memory:
    `SCRATCH_BYTES` of rows, and 16 bytes for each piece of a map in the file."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # closed by `close`
        self._pack = msgpack.Packer(use_bin_type=True).pack
        self._waiting: dict[str, bytearray] = {}
        self._bytes = self._size = 0
        self._places: dict[str, array[int]] = {}
        """Map → offset and length of its pieces, as one flat list."""

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
        self._store, self._node_folder, self._node, self._pieces, self._folder = (
            store,
            job.node_folder,
            job.node,
            job.pieces,
            job.folder,
        )
        self._epoch, self._known, self._nonce = job.epoch, job.archives, job.nonce
        self._log = next((piece.directory for piece in job.pieces), "")
        self.absorbed: list[Archive] = []
        """Small archives whose entries are in `archives` too."""
        self.archives: list[Archive] = []
        self.summary = Summary()

    def run(self) -> None:
        with closing(_Scratch(self._folder)) as scratch:
            files: dict[str, _MapFile] = {}
            for piece in self._pieces:
                for changes in read_piece(self._store, piece, positions=True):
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
    """Bytes of all archives that the next run may absorb."""
    by_map: dict[str, list[Archive]] = {}
    for archive in archives:
        by_map.setdefault(archive.map, []).append(archive)
    return sum(archive.bytes for each in by_map.values() for archive in to_absorb(each))


def _step(archive: Archive) -> int:
    return max(0, archive.bytes // ABSORB_BYTES_MIN).bit_length() // 3


def archive_sealed(
    store: SegmentStore,
    node_folder: str,
    node: str,
    manifests: ManifestLog[NodeManifest],
    *,
    epoch: int | None = None,
    writing: int | None = None,
    write: Write = write_archives,
) -> Archived:
    """Turn sealed segments into archives. Only for the writer of the node's log, or the holder of
    its lock.

    `epoch`: of the caller's log; None: the current one. `writing`: the number of the segment being
    written, or of the next one: only segments below it are archived; None: there is no writer, and
    all are archived. `write`: reads the segments and writes the files; the one of
    `imap_wal.retention.archiver` does not slow down this process.

    Raises `Fenced` if the node has another epoch when the archives are published: then none of them
    counts. Raises `CorruptLog` or `ShortLog` for damage in a sealed segment; nothing is changed
    then. Raises `LostRace` if other processes changed the manifest too often, and
    `StorageUnavailable` if the local folder has no room."""
    randomness = SystemRandomness()
    last: Exception | None = None
    for _ in range(ATTEMPTS):
        manifest = manifests.read()[1]
        if manifest.epoch != (manifest.epoch if epoch is None else epoch):
            raise Fenced(
                f"node {node!r} is at epoch {manifest.epoch}, and this archive run belongs to "
                f"{epoch}: another process took over"
            )
        run = _Run(
            store,
            node_folder,
            node,
            manifests,
            manifest,
            writing,
            randomness.token().hex()[:16],
            write,
        )
        try:
            return run.archive()
        except (NotFound, LostRace) as error:
            # Another process removed a covered segment while it was read, or changed the manifest:
            # read the manifest again.
            last = error
    lost = (
        missing.archive(last.path, node, manifests.read()[1])
        if isinstance(last, NotFound)
        else None
    )
    if lost is not None:  # an archive that was to be absorbed
        raise lost from last
    raise LostRace(
        f"archiving node {node!r}: files were removed or manifests published {ATTEMPTS} "
        "times in a row; this is tried again later"
    )


class _Run:
    """One attempt of `archive_sealed`, based on one manifest."""

    def __init__(
        self,
        store: SegmentStore,
        node_folder: str,
        node: str,
        manifests: ManifestLog[NodeManifest],
        manifest: NodeManifest,
        writing: int | None,
        nonce: str,
        write: Write,
    ) -> None:
        self._store, self._folder, self._node, self._manifests, self._nonce = (
            store,
            node_folder,
            node,
            manifests,
            nonce,
        )
        self._write = write
        self._manifest = manifest
        self._wal = wal_folder(store, node_folder, manifest.archived, manifest.begins)
        self._segments = [
            each for each in self._wal.segments if writing is None or each.number < writing
        ]

    def archive(self) -> Archived:
        self._sweep()
        segments = self._segments
        if not segments:
            return Archived()
        following = [*(each.path for each in segments[1:]), ""]
        pieces = [
            FileScan(
                SEGMENT,
                self._node,
                each.path,
                "",
                self._manifest.directory,
                each.epoch,
                each.number,
                next_path=after,
            )
            for each, after in zip(segments, following, strict=True)
        ]
        try:
            with tempfile.TemporaryDirectory(
                prefix="imap-wal-archive-", ignore_cleanup_errors=True
            ) as folder:
                known = tuple(self._manifest.archives)
                total = sum(each.bytes for each in segments) + absorbable(known)
                job = ArchiveJob(
                    self._folder,
                    self._node,
                    tuple(pieces),
                    Path(folder),
                    self._manifest.epoch,
                    known,
                    self._nonce,
                    total,
                )
                work = self._write(self._store, job)
        except BaseException as error:
            self._forget()
            if not isinstance(error, OSError):
                raise
            # An OSError comes from this machine: the store raises StorageErrors.
            raise StorageUnavailable(
                f"archiving the log of node {self._node!r} needs space for Parquet files in "
                f"{tempfile.gettempdir()}: {error}; "
                "nothing is lost, its segments are kept"
            ) from error
        self._publish(work)
        self._delete(self._wal.archived + tuple(segments) + self._wal.copied)
        dispose(self._store, [archive.path for archive in work.absorbed], f"{self._folder}/archive")
        return Archived(
            len(segments),
            sum(archive.records for archive in work.archives)
            - sum(archive.records for archive in work.absorbed),
            sum(each.bytes for each in segments),
            sum(archive.bytes for archive in work.archives),
            work.archives,
        )

    def _publish(self, work: Written) -> None:
        """Name the archives in the manifest. No other run uses their paths. If they are certainly
        not named, they are deleted. After any other failure they are kept; a later epoch deletes
        them if no manifest names them."""
        before, last = self._manifest, self._segments[-1].name

        def change(now: NodeManifest) -> NodeManifest:
            if now.epoch != before.epoch:
                raise Fenced(
                    f"node {self._node!r} is at epoch {now.epoch}, and this archive run began in "
                    f"{before.epoch}: another process took over"
                )
            if (now.directory, now.archived) != (before.directory, before.archived):
                raise LostRace(
                    f"the log of node {self._node!r} was archived or pruned by another "
                    "process during this archive run"
                )
            gone = {archive.path for archive in work.absorbed}
            left = tuple(archive for archive in now.archives if archive.path not in gone)
            if len(left) + len(gone) != len(now.archives):
                raise LostRace(
                    f"archives of node {self._node!r} were removed by another process during "
                    "this archive run"
                )
            newest = max(now.newest, last[1])
            return carried(
                replace(now, archives=(*left, *work.archives), newest=newest), last, [work.summary]
            )

        try:
            self._manifests.update(change)
        except (Fenced, LostRace):
            self._forget()
            raise

    def _forget(self) -> None:
        """Delete the files of this failed run, found by its nonce. Files that the newest manifest
        names are kept: they may have been published although an error was returned."""
        with suppress(StorageError, ImapWalError):  # a later epoch deletes them
            files = self._store.list(f"{self._folder}/archive")
            named = {archive.path for archive in self._manifests.read()[1].archives}
            for file in files:
                if f"-{self._nonce}" in file.path and file.path not in named:
                    dispose(self._store, [file.path], f"{self._folder}/archive")

    def _sweep(self) -> None:
        """Delete what runs of earlier epochs left: archives that the manifest does not name. No
        later manifest will name them. Archives of this epoch are kept, because another run may be
        about to publish them."""
        known = {archive.path for archive in self._manifest.archives}
        for file in self._store.list(f"{self._folder}/archive"):
            name = layout.parse_archive_path(file.path)
            if name is not None and file.path not in known and name.epoch < self._manifest.epoch:
                dispose(self._store, [file.path], f"{self._folder}/archive")
        self._delete(self._wal.archived)

    def _delete(self, files: Iterable[SegmentFile]) -> None:
        delete_segments(
            self._store, self._folder, self._manifest.epoch, [each.path for each in files]
        )


def delete_segments(
    store: SegmentStore, node_folder: str, epoch: int, paths: Iterable[str]
) -> set[str]:
    """Delete segments that are archived or covered. Returns the deleted paths. `epoch`: the node's
    current one.

    On a storage that cannot append, fence segments and the newest segment are kept. Without the
    newest one, a copy of the folder made during the deletion could have no segments and look
    complete. (On other storages, the manifest names the newest segment.)"""
    kept: set[str] = set()
    if not store.capabilities.durable_append:
        listed = store.list(f"{node_folder}/wal")
        kept = layout.fences(listed, epoch) | {sorted_out(listed).newest}
    return dispose(store, [path for path in paths if path not in kept], f"{node_folder}/wal")


def to_manifest(item: Metadata) -> Metadata:
    """Metadata as JSON values. `imap_wal.read.cluster.from_manifest` is the inverse."""
    return tuple(part.hex() if isinstance(part, bytes) else part for part in item)


def _carry(items: Iterable[Metadata]) -> tuple[Metadata, ...]:
    distinct = list(dict.fromkeys(tuple(item) for item in items))
    schemas = [item for item in distinct if item[0] == "schema"]
    others = [item for item in distinct if item[0] != "schema"]
    return (*schemas, *others[-MEMBERS_MAX:])
