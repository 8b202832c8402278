"""Deletes files that are no longer needed: archives, segments and snapshots that are covered or
replaced.

An attacker may have written a folder: its manifests can name any path, and its subfolders can be
links to another log. So this module deletes only files whose names belong to a log, and no file
that is reached through a link. It logs each file that it keeps; such a file only uses space. Files
that must be deleted to fence a writer are deleted elsewhere.

A link is logged once per process, with its full path, and again at each open for writing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from imap_wal import layout
from storage_backends import SegmentStore, StoredFile
from storage_backends.gated import parts_of
from storage_backends.paths import links, local_folder, sweep_below

EFFECT = (
    "files reached through it are not deleted, so archived or covered ones remain there and use "
    "space"
)
ADVICE = "mount the other disk in its place, or put the segments there with wal_dir"
_log = logging.getLogger("imap_wal")
_logged: set[str] = set()
"""Links, by their full paths."""


def dispose(store: SegmentStore, paths: Iterable[str], folder: str) -> set[str]:
    """Delete files below `folder`, the folder of a node or a cluster. Returns the deleted paths.
    Raises `StorageError`, except for links."""
    disposable = []
    for path in paths:
        if path.startswith(f"{folder}/") and layout.is_disposable(path):
            disposable.append(path)
        else:
            _log.warning(
                "%s: %r is to be deleted, but it is not a file of the log in %s; it is kept",
                store.url,
                path,
                folder,
            )
    return discard(store, disposable)


def discard(store: SegmentStore, paths: Iterable[str]) -> set[str]:
    """Delete files of any name, except those reached through a link. Returns the deleted paths.
    Raises `StorageError`, except for links."""
    deleted = reachable(store, paths)
    linked = store.discard_all(deleted)
    for error in linked:  # the link was created after the check
        _log.warning("%s: %s; it is kept: %s", store.url, error, ADVICE)
    return set(deleted) - {error.path for error in linked}


def sweep(store: SegmentStore, folder: str, *, dry_run: bool = False) -> list[StoredFile]:
    """Delete what killed processes left below a folder: their unfinished files, which no listing
    shows, and empty folders. It is for folders whose names are not used again. It does nothing
    unless the store is a local directory or HDFS. Files that cannot be deleted are left. Returns
    the unfinished files, of a local directory."""
    root = parts_of(store)[0]
    if local := local_folder(root.url):
        sizes = sweep_below(local, folder, remove=not dry_run)
        return [StoredFile(path, size) for path, size in sizes.items()]
    if not dry_run and (sweep_store := getattr(root, "sweep_below", None)) is not None:
        sweep_store(folder)
    return []


def reachable(store: SegmentStore, paths: Iterable[str]) -> list[str]:
    """The files that are not reached through a link. Logs the links."""
    paths = list(paths)
    linked = _links(store, (path.rpartition("/")[0] for path in paths))
    _log_each(set(linked.values()) - _logged)
    return [path for path in paths if path.rpartition("/")[0] not in linked]


def log_links(store: SegmentStore, folders: Iterable[str]) -> None:
    """Log which of these folders, or of the folders above them, are links."""
    _log_each(set(_links(store, folders).values()))


def _links(store: SegmentStore, folders: Iterable[str]) -> dict[str, str]:
    """The folders that are reached through a link: those of segments may be at another place."""
    parts, folders = parts_of(store), set(folders)
    of_wal = {folder for folder in folders if layout.is_wal(folder)}
    return links(parts[0].url, folders - of_wal) | links(parts[-1].url, of_wal)


def _log_each(paths: Iterable[str]) -> None:
    for link in sorted(paths):
        _logged.add(link)
        _log.warning("%s is a symbolic link: %s; %s", link, EFFECT, ADVICE)
