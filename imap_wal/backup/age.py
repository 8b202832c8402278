"""When the last whole backup of a log ended: a file in the log itself, because an agent does not
know the place of the backups."""

from __future__ import annotations

from contextlib import suppress

from imap_wal import layout
from imap_wal.read.cluster import ClusterLog
from storage_backends import AlreadyExists, NotFound, StorageError


def note(log: ClusterLog, ended_ms: int) -> None:
    """Record it. Without the right to write to the log, a backup succeeds too."""
    with suppress(StorageError):
        former = log.store.list(layout.backed_up_folder(log.folder))
        with suppress(AlreadyExists):
            log.store.create(layout.backed_up_path(log.folder, ended_ms), b"")
        for file in former:
            if layout.parse_backed_up_path(file.path) < ended_ms:
                with suppress(NotFound):
                    log.store.delete(file.path)


def ended_ms(log: ClusterLog) -> int:
    """In Unix time; 0: there was no backup, or it was not recorded. Raises StorageError."""
    files = log.store.list(layout.backed_up_folder(log.folder))
    return max((layout.parse_backed_up_path(file.path) for file in files), default=0)
