"""Turns sealed segments into archives: Parquet files of one map each, sorted by key, compressed
with zstd. Then the segments are deleted.

    write   segments ─▶ local files of each map ─▶ store.create_from ─▶ one node manifest
            (archives, archived, metadata, requests) ─▶ delete segments

`imap_wal.retention.archive_writer` reads the segments and writes the files, and
`imap_wal.read.parquet_scan` reads archives.

A crash before the manifest is published leaves Parquet files that no manifest names. A crash after
it leaves segments at or below `archived`. Neither is ever read, and the next run deletes them.

Columns: map, key, key_class, value, value_class, deleted, timestamp_ms, expires_at_ms, partition;
the order: incarnation, partition_version, session, request; the position: node, epoch, segment,
frame, index. Archives are sorted by key and position
(docs/decisions/rewrites.md). A snapshot's files have no position, and are
sorted by key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.disposal import dispose
from imap_wal.errors import Fenced, ImapWalError, LostRace, StorageUnavailable, WriterLocked
from imap_wal.layout import Identity
from imap_wal.manifest import missing
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.list_files import Archive
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT, FileScan, from_manifest
from imap_wal.read.proof import prove_keys
from imap_wal.retention.archive_writer import (
    ArchiveJob,
    Write,
    WrittenArchives,
    absorbable,
    write_archives,
)
from imap_wal.retention.sealed_segments import carried, delete_segments
from imap_wal.segment.listing import SegmentFile, wal_folder
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from storage_backends import NotFound, StorageError

ATTEMPTS = 8
"""How many times an archive run is attempted, if segments are removed while it reads them or a new
manifest is published."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of an archive run. `bytes_before`: as segments; `bytes_after`: as Parquet."""

    segments: int = 0
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    archives: tuple[Archive, ...] = ()


def archive_sealed(
    context: Context,
    node_folder: str,
    node: str,
    manifests: ManifestLog[NodeManifest],
    *,
    epoch: int | None = None,
    writing: int | None = None,
    write: Write = write_archives,
) -> Archived:
    """Turn sealed segments into archives. Only the writer of the node's log, or the holder of its
    lock, may call this.

    `epoch`: of the caller's log; None: the current one. `writing`: the number of the segment being
    written, or of the next one: only segments below it are archived; None: there is no writer, and
    all are archived. `write`: reads the segments and writes the files; the one of
    `imap_wal.retention.archiver` does not slow down this process.

    Raises `Fenced` if the node has another epoch when the archives are published: then none of them
    counts. Raises `CorruptLog` or `ShortLog` for damage in a sealed segment; nothing is changed
    then. Raises `LostRace` if other processes changed the manifest too often, and
    `StorageUnavailable` if the local folder has no room."""
    last: Exception | None = None
    for _ in range(ATTEMPTS):
        manifest = manifests.read()[1]
        if manifest.epoch != (manifest.epoch if epoch is None else epoch):
            raise Fenced(
                f"node {node!r} is at epoch {manifest.epoch}, but this archive run belongs to "
                f"epoch {epoch}: another process took over"
            )
        run = _Run(
            context,
            node_folder,
            node,
            manifests,
            manifest,
            writing,
            context.randomness.token().hex()[:16],
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
        "times in a row; the archive run is repeated later"
    )


class _Run:
    """One attempt of `archive_sealed`, based on one manifest."""

    def __init__(
        self,
        context: Context,
        node_folder: str,
        node: str,
        manifests: ManifestLog[NodeManifest],
        manifest: NodeManifest,
        writing: int | None,
        nonce: str,
        write: Write,
    ) -> None:
        self._context, self._store, self._folder = context, context.store, node_folder
        self._node, self._manifests, self._nonce = node, manifests, nonce
        self._write = write
        self._manifest = manifest
        self._wal = wal_folder(context.store, node_folder, manifest.archived, manifest.begins)
        self._segments = [
            segment for segment in self._wal.segments if writing is None or segment.number < writing
        ]
        self._gap = missing.segment(node_folder, manifest, self._segments, 0)

    def archive(self) -> Archived:
        if self._gap is not None:
            # An archive would hide it: `archived` would be above it. It may have been removed after
            # the manifest was read.
            if self._manifests.read()[1] == self._manifest:
                raise self._gap
            raise LostRace(f"segments of node {self._node!r} were removed meanwhile")
        self._sweep()
        segments = self._segments
        if not segments:
            return Archived()
        work = self._written()
        self._publish(work)
        self._delete(self._wal.archived + tuple(segments) + self._wal.copied)
        dispose(self._store, [archive.path for archive in work.absorbed], f"{self._folder}/archive")
        return Archived(
            len(segments),
            sum(archive.records for archive in work.archives)
            - sum(archive.records for archive in work.absorbed),
            sum(segment.bytes for segment in segments),
            sum(archive.bytes for archive in work.archives),
            work.archives,
        )

    def _written(self) -> WrittenArchives:
        """The archives of the segments, which no manifest names yet. Raises `StorageUnavailable` if
        the local folder has no room."""
        absorbed = absorbable(self._manifest.archives)
        total = sum(segment.bytes for segment in self._segments)
        total += sum(archive.bytes for archive in absorbed)
        try:
            with tempfile.TemporaryDirectory(
                prefix="imap-wal-archive-", ignore_cleanup_errors=True
            ) as folder:
                job = ArchiveJob(
                    self._folder,
                    self._node,
                    tuple(self._scans()),
                    Path(folder),
                    self._manifest.epoch,
                    absorbed,
                    self._nonce,
                    total,
                    self._decoded_maps(),
                    tuple(map(from_manifest, self._manifest.metadata)),
                )
                return self._write(self._context, job)
        except BaseException as error:
            self._forget()
            if not isinstance(error, OSError):
                raise
            # An OSError comes from this machine: the store raises StorageErrors.
            raise StorageUnavailable(
                f"archiving the log of node {self._node!r} needs space for Parquet files in "
                f"{tempfile.gettempdir()}: {error}; free space there. "
                "Nothing is lost: the segments are kept"
            ) from error

    def _scans(self) -> Iterator[FileScan]:
        following = [*(segment.path for segment in self._segments[1:]), ""]
        for segment, after in zip(self._segments, following, strict=True):
            yield FileScan(
                SEGMENT,
                self._node,
                segment.path,
                "",
                self._manifest.directory,
                segment.epoch,
                segment.number,
                next_path=after,
                bytes=segment.bytes,
            )

    def _decoded_maps(self) -> tuple[str, ...]:
        """Which maps have decoded columns."""
        clusters = ClusterManifestLog(Context(self._store), layout.cluster_of(self._folder))
        return clusters.read()[1].decoded

    def _publish(self, work: WrittenArchives) -> None:
        """Name the archives in the manifest. No other run uses their paths. If they are certainly
        not named, they are deleted. After any other failure they are kept; a later epoch deletes
        them if no manifest names them."""
        before, last = self._manifest, self._segments[-1].name

        def change(now: NodeManifest) -> NodeManifest:
            if now.epoch != before.epoch:
                raise Fenced(
                    f"node {self._node!r} is at epoch {now.epoch}, but this archive run began in "
                    f"epoch {before.epoch}: another process took over"
                )
            if (now.directory, now.archived) != (before.directory, before.archived):
                raise LostRace(
                    f"the log of node {self._node!r} was archived or pruned by another "
                    "process during this archive run"
                )
            changed = now.with_archives(work.archives, work.absorbed)
            more = len(work.archives) - len(work.absorbed)
            if len(changed.archives) != len(now.archives) + more:
                raise LostRace(
                    f"archives of node {self._node!r} were removed by another process during "
                    "this archive run"
                )
            newest = max(now.newest, last[1])
            return carried(
                replace(changed, newest=newest),
                last,
                [work.summary],
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
        named = {archive.path for archive in self._manifest.archives}
        for file in self._store.list(f"{self._folder}/archive"):
            name = layout.parse_archive_path(file.path)
            if name is not None and file.path not in named and name.epoch < self._manifest.epoch:
                dispose(self._store, [file.path], f"{self._folder}/archive")
        self._delete(self._wal.archived)

    def _delete(self, files: Iterable[SegmentFile]) -> None:
        delete_segments(
            self._store, self._folder, self._manifest.epoch, [file.path for file in files]
        )


ARCHIVES_BY_ITSELF = (
    "an agent or embedded store archives automatically if archive_interval_s, max_total_wal_size "
    "or archive_objects is set; to archive now, stop that process and run the command again"
)


def archive_offline(
    context: Context, identity: Identity, node_folder: str, *, write: Write = write_archives
) -> Archived:
    """Turn all segments of a node's log into archives. `write`: as for `archive_sealed`. Raises
    `WriterLocked` if another process is writing it, and the errors of `open_node_log` and
    `archive_sealed`."""
    # Opening the log cuts off a torn tail, and locks the log while the segments are removed.
    logs = ClusterLog(context, identity.namespace, identity.cluster)
    try:
        log = open_node_log(
            LogContext(context, identity, Settings()),
            holder="imap-wal archive",
            also=partial(prove_keys, logs, identity.node),
        )
    except WriterLocked as error:
        raise WriterLocked(error.node, error.holder, ARCHIVES_BY_ITSELF) from error
    try:
        return archive_sealed(
            context, node_folder, identity.node, log.manifests, epoch=log.epoch, write=write
        )
    finally:
        log.close()
