"""Deletes files that nothing needs: archives, segments and snapshots that are covered or replaced.

The author of a folder may be an attacker: its manifests can name any path, and its folders can be
links to those of another log. So this module deletes only files whose names belong to a log, and
none that is reached through a link. It logs what it does not delete, which costs only space. Files
that must go to shut a writer out are not deleted here.

A link is logged once in the life of a process, with its full path, and again at each open for
writing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from imap_wal import layout
from storage_backends import Linked, SegmentStore
from storage_backends.links import links

EFFECT = (
    "files reached through it are not deleted, so archived or covered ones remain there and use "
    "space"
)
ADVICE = "mount the other disk in its place, or put the segments there with wal_dir"
_log = logging.getLogger("imap_wal")
_logged: set[str] = set()
"""Links, by their full paths."""


def dispose(store: SegmentStore, paths: Iterable[str], folder: str) -> set[str]:
    """Delete files below `folder`, that of a node or of a cluster. Returns those that are deleted.
    `StorageError`, except for links."""
    disposable = []
    for path in paths:
        if path.startswith(f"{folder}/") and layout.is_disposable(path):
            disposable.append(path)
        else:
            _log.warning(
                "%s: %r is to be deleted, and is no file of the log in %s; it stays",
                store.url,
                path,
                folder,
            )
    return discard(store, disposable)


def discard(store: SegmentStore, paths: Iterable[str]) -> set[str]:
    """Delete files, whatever their names, except those reached through a link. Returns those that
    are deleted. `StorageError`, except for links."""
    gone = set()
    for path in reachable(store, paths):
        try:
            store.discard(path)
        except Linked as error:  # made after the check
            _log.warning("%s: %s; it stays: %s", store.url, error, ADVICE)
        else:
            gone.add(path)
    return gone


def reachable(store: SegmentStore, paths: Iterable[str]) -> list[str]:
    """The files that are not reached through a link. The links are logged."""
    paths = list(paths)
    linked = links(store.url, (path.rpartition("/")[0] for path in paths))
    _tell(set(linked.values()) - _logged)
    return [path for path in paths if path.rpartition("/")[0] not in linked]


def tell_links(store: SegmentStore, folders: Iterable[str]) -> None:
    """Log which of these folders, or of the folders above them, are links."""
    _tell(set(links(store.url, folders).values()))


def _tell(found: Iterable[str]) -> None:
    for link in sorted(found):
        _logged.add(link)
        _log.warning("%s is a symbolic link: %s; %s", link, EFFECT, ADVICE)
