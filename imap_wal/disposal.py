"""Deletes files that nothing needs: archives, segments and snapshots that are covered or replaced.

A folder may come from anybody. Its manifests can name any path, and its folders can be links to those
of another log. So only names of ours are deleted here, and nothing behind a link; what is left alone
is said, and takes room only. What shuts a writer out is not deleted here: that must happen.

A link is said once in the life of a process, with its full path, and again at each open for writing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from imap_wal import layout
from storage_backends import Linked, SegmentStore
from storage_backends.links import links

EFFECT = "nothing behind it is deleted, so what is archived or covered stays there and takes room"
ADVICE = "mount the other disk in its place, or put the segments there with wal_dir"
_log = logging.getLogger("imap_wal")
_said: set[str] = set()
"""Links, by their full paths."""


def dispose(store: SegmentStore, paths: Iterable[str], folder: str) -> set[str]:
    """Delete files below `folder`, the one of a node or of a cluster, and return those that are
    gone. A `StorageError` for any other reason than a link."""
    ours = []
    for path in paths:
        if path.startswith(f"{folder}/") and layout.is_disposable(path):
            ours.append(path)
        else:
            _log.warning("%s: %r is to be deleted, and is no file of the log in %s; it stays", store.url, path, folder)
    return discard(store, ours)


def discard(store: SegmentStore, paths: Iterable[str]) -> set[str]:
    """Delete files, whatever their names, but none behind a link. Those that are gone. A
    `StorageError` for any other reason."""
    gone = set()
    for path in reachable(store, paths):
        try:
            store.discard(path)
        except Linked as error:  # made since it was looked
            _log.warning("%s: %s; it stays: %s", store.url, error, ADVICE)
        else:
            gone.add(path)
    return gone


def reachable(store: SegmentStore, paths: Iterable[str]) -> list[str]:
    """Those of the files that are not behind a link. The links are said."""
    paths = list(paths)
    behind = links(store.url, (path.rpartition("/")[0] for path in paths))
    _tell(set(behind.values()) - _said)
    return [path for path in paths if path.rpartition("/")[0] not in behind]


def tell_links(store: SegmentStore, folders: Iterable[str]) -> None:
    """Say which links stand in the place of these folders, or above them."""
    _tell(set(links(store.url, folders).values()))


def _tell(found: Iterable[str]) -> None:
    for link in sorted(found):
        _said.add(link)
        _log.warning("%s is a symbolic link: %s; %s", link, EFFECT, ADVICE)
