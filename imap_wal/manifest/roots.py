"""Whether a place is the root of logs. The folder of one log looks like a root without logs: a
reader would find nothing there, and a writer would begin another log inside."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from imap_wal.errors import InvalidSetting
from storage_backends import SegmentStore, StorageError

FOLDERS = 64
"""How many folders are looked into: in that of a namespace, each is a cluster."""


def is_cluster(store: SegmentStore, top: Collection[str]) -> bool:
    """Whether this is the folder of one cluster, and not a root. `top`: its folders. The nodes of a
    cluster would look like clusters of a namespace `nodes`."""
    return {"nodes", "manifest"} <= set(top) and not store.folders("manifest")


def why_no_root(store: SegmentStore) -> str:
    """Which folder of a log this is, as text for an error; "" if it is none. A namespace or cluster
    may have any name, so several signs are needed."""
    top = set(store.folders(""))
    if is_cluster(store, top):
        kind, up = "cluster", "two levels"
    elif "manifest" in top and {"wal", "archive"} & top and not store.folders("manifest"):
        kind, up = "node", "four levels"
    elif any(_has_cluster(store, name) for name in islice(sorted(top), FOLDERS)):
        kind, up = "namespace", "one level"
    else:
        return ""
    return (
        f"is the folder of one {kind}; pass the root, {up} up, which has {{namespace}}/{{cluster}}"
    )


def _has_cluster(store: SegmentStore, folder: str) -> bool:
    """Whether a folder is that of one cluster. A foreign folder costs one request: it may have many
    files, and this process may be unable to read it."""
    manifest = f"{folder}/manifest"
    try:
        # Two clusters with these names have folders in them.
        return (
            bool(store.folders(f"{folder}/nodes"))
            and not store.folders(manifest)
            and bool(store.list(manifest))
        )
    except StorageError:
        return False


def demand_root(store: SegmentStore) -> None:
    """Raises `InvalidSetting` if this is a folder of a log. For a log that begins. A place that
    this process cannot list is taken for a root: an agent may be allowed to list its own folder
    only."""
    try:
        why = why_no_root(store)
    except StorageError:
        return
    if why:
        raise InvalidSetting(f"{store.url} {why}")
