"""Missing files that a manifest names, and the entries that are missing with them.

A file may be archived or removed after the manifest was read, so its absence alone proves nothing.
The caller reads the manifests again: if they still name the file, it is lost.
"""

from __future__ import annotations

from imap_wal.errors import ShortLog
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest

ADVICE = "bring it back from a copy, or write a repaired copy of the log with `imap-wal repair`"


def archive(path: str, node: str, manifest: NodeManifest) -> ShortLog | None:
    """The error if this manifest of a node names the file."""
    for each in manifest.archives:
        if each.path == path:
            what = f"entries of map {each.map!r} from {each.first} to {each.last}"
            return ShortLog(
                path, 0, f"this archive of node {node!r} is missing, and with it {what}", ADVICE
            )
    return None


def snapshot_file(path: str, manifest: ClusterManifest) -> ShortLog | None:
    """The error if this manifest of a cluster names the file."""
    for name, snapshot in manifest.snapshots.items():
        if path in snapshot.files:
            index = snapshot.files.index(path)
            rows = f"{snapshot.rows[index]} keys" if index < len(snapshot.rows) else "keys"
            marks = sorted(snapshot.marks.items())
            up_to = ", ".join(f"to {mark.position} of node {node!r}" for node, mark in marks)
            what = f"{rows} of map {name!r} as of the entries from the beginning {up_to}".rstrip()
            return ShortLog(
                path, 0, f"this file of a snapshot is missing, and with it {what}", ADVICE
            )
    return None
