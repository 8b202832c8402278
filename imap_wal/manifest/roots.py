"""Whether a place is the root of logs. The folder of one log looks like a root without logs: a
reader would find nothing there, and a writer would begin another log inside."""

from __future__ import annotations

from collections.abc import Collection

from imap_wal.errors import InvalidSetting
from storage_backends import SegmentStore


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
    elif any({"nodes", "manifest"} <= set(store.folders(name)) for name in top):
        kind, up = "namespace", "one level"
    else:
        return ""
    return (
        f"is the folder of one {kind}; pass the root, {up} up, which has {{namespace}}/{{cluster}}"
    )


def demand_root(store: SegmentStore) -> None:
    """Raises `InvalidSetting` if this is a folder of a log. For a log that begins."""
    why = why_no_root(store)
    if why:
        raise InvalidSetting(f"{store.url} {why}")
