"""Writes the files of a backup into an empty place; they are a log again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from imap_wal import layout
from imap_wal.backup import catalogue
from imap_wal.backup.catalogue import Backup, BackupFile
from imap_wal.backup.run import BackupProgress
from imap_wal.context import Context
from imap_wal.errors import CorruptLog
from imap_wal.format import END, Position
from imap_wal.manifest.epochs import closed
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from storage_backends import AlreadyExists, NotFound, SegmentStore

MARKER = layout.RESTORE_MARKER
"""Exists while a place is being filled, and names the backup."""
OF_CLUSTER = 2
"""The rank of a cluster's manifest."""


def check(
    source: SegmentStore, backup: Backup, progress: Callable[[BackupProgress], None]
) -> list[tuple[str, str]]:
    """Read every chunk of a backup.

    Args:
        source: The place of the backups.
        backup: The backup.
        progress: Gets the progress.

    Returns:
        The paths of damaged files, and what is wrong with each.
    """
    damaged = []
    done = 0
    sound: set[str] = set()
    for file in backup.files:
        try:
            for name in file.chunks:
                if name not in sound:
                    catalogue.read_chunk(source, name)
                    sound.add(name)
        except CorruptLog as error:
            damaged.append((file.path, str(error)))
        done += file.size
        progress(BackupProgress(done, backup.bytes, 0))
    return damaged


def unfinished(target: SegmentStore, backup: Backup) -> bool:
    """Whether an earlier restore of this backup into the target did not end."""
    try:
        return target.read(MARKER) == _mark(backup)
    except NotFound:
        return False


def begun(target: SegmentStore) -> int:
    """The number of the backup whose restore into the target did not end; 0: there is none."""
    try:
        number = target.read(MARKER).partition(b" ")[0]
    except NotFound:
        return 0
    return int(number) if number.isdigit() else 0


def restore_backup(
    source: SegmentStore,
    backup: Backup,
    target: SegmentStore,
    progress: Callable[[BackupProgress], None] = lambda _: None,
) -> None:
    """Write all files. The manifests of a cluster are last: until then, no agent and no program
    uses its files as a log.

    Args:
        source: The place of the backups.
        backup: The backup.
        target: An empty place, or one where a restore of this backup did not end.
        progress: Gets the progress.

    Raises:
        CorruptLog: A part of the backup is damaged.
        StorageError: One of the two storages failed.
    """
    if not unfinished(target, backup):
        target.create(MARKER, _mark(backup))
    done = 0
    for rank in range(OF_CLUSTER + 1):
        if rank == OF_CLUSTER:
            _close_all(target, backup)
        for file in sorted(backup.files, key=lambda file: file.path):
            if _rank(file) == rank:
                _write(source, file, target)
                done += file.size
                progress(BackupProgress(done, backup.bytes, done))
    target.delete(MARKER)


def _close_all(target: SegmentStore, backup: Backup) -> None:
    """Close the logs of all nodes, while no program can open them: a program that has opened one
    has begun an epoch, which does not end here."""
    for folder in sorted({file.path.partition("/manifest/")[0] for file in backup.files}):
        parts = folder.split("/")
        if parts[2:3] == ["nodes"] and not target.list(f"{parts[0]}/{parts[1]}/manifest"):
            _close(target, folder)


def _close(target: SegmentStore, folder: str) -> None:
    """Note where a node's log ends in the backup: what was written later is not in this copy, and a
    reader that has read more must not continue here."""
    names = [
        Position(*name, file.size - 1, 0)  # no frame begins after that
        for file in target.list(f"{folder}/wal")
        if (name := layout.parse_wal_path(file.path)) is not None
    ]

    def close(manifest: NodeManifest) -> NodeManifest | None:
        archived = Position(*manifest.archived, END.epoch, 0)  # all of that segment
        end = max([manifest.checkpoint, archived, *names])
        epochs = closed(manifest.epochs, end)
        return None if epochs == manifest.epochs else replace(manifest, epochs=epochs)

    NodeManifestLog(Context(target), folder).update(close)


def _rank(file: BackupFile) -> int:
    """Data, then manifests of nodes, then those of clusters."""
    return ("manifest" in file.path.split("/")) + layout.is_cluster_manifest(file.path)


def _write(source: SegmentStore, file: BackupFile, target: SegmentStore) -> None:
    if target.exists(file.path):  # of an earlier attempt: a file appears whole
        return
    try:
        if len(file.chunks) <= 1:
            target.create(
                file.path, b"".join(catalogue.read_chunk(source, name) for name in file.chunks)
            )
            return
        with tempfile.TemporaryDirectory(prefix="imap-wal-restore-") as folder:
            local = Path(folder, "file")
            with local.open("wb") as whole:
                for name in file.chunks:
                    whole.write(catalogue.read_chunk(source, name))
            target.create_from(file.path, str(local))
    except AlreadyExists:
        return


def _mark(backup: Backup) -> bytes:
    names = "\n".join(f"{file.path} {' '.join(file.chunks)}" for file in backup.files)
    return f"{backup.number} {sha256(names.encode()).hexdigest()}\n".encode()
