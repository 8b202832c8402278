"""Who writes the log of a node."""

from __future__ import annotations

from imap_wal import layout
from storage_backends import Locked, SegmentStore


def writer_of(store: SegmentStore, folder: str, asker: str) -> str | None:
    """The name of the process that writes the log in a node's folder, or None if there is none. The
    lock is taken for a moment, under the name `asker`, and not created. Raises `StorageError`."""
    path = layout.lock_path(folder)
    if not store.exists(path) and not store.list(path):  # a lease is a folder
        return None
    try:
        store.lock(path, asker).release()
    except Locked as error:
        return error.holder
    return None
