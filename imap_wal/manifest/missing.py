"""Missing files that a manifest names, and the entries that are missing with them.

A file may be archived or removed after the manifest was read, so its absence alone proves nothing.
The caller reads the manifests again: if they still name the file, it is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from imap_wal.errors import ShortLog
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import MANIFEST_ADVICE as ADVICE
from imap_wal.segment.listing import SegmentFile

SEGMENT_MISSING = "this segment is missing: the log continues after it"


def segment(
    folder: str, manifest: NodeManifest, segments: Sequence[SegmentFile], last: int
) -> ShortLog | None:
    """The error if one of the segments from the first that is not archived to number `last` is
    missing. `segments`: those that count, by number, from the first that is not archived."""
    expected = manifest.archived[1] + 1
    for segment_file in segments:
        if segment_file.number != expected:
            break
        expected += 1
    else:
        if last < expected:
            return None
    return ShortLog(f"{folder}/wal/*-{expected:08d}.wal", 0, SEGMENT_MISSING, ADVICE)


def archive(path: str, node: str, manifest: NodeManifest) -> ShortLog | None:
    """The error if this manifest of a node names the file."""
    for entry in manifest.archives:
        if entry.path == path:
            entries = f"entries of map {entry.map!r} from {entry.first} to {entry.last}"
            return ShortLog(
                path, 0, f"this archive of node {node!r} is missing, and with it {entries}", ADVICE
            )
    return None


def snapshot_file(path: str, manifest: ClusterManifest) -> ShortLog | None:
    """The error if this manifest of a cluster names the file."""
    for name, snapshot in manifest.snapshots.items():
        for file in snapshot.files:
            if file.path != path:
                continue
            marks = sorted(snapshot.marks.items())
            up_to = "".join(f" to {mark.position} of node {node!r}," for node, mark in marks)
            contents = f"{file.rows} keys of map {name!r} as of the entries from the beginning"
            contents += up_to.removesuffix(",")
            return ShortLog(
                path, 0, f"this file of a snapshot is missing, and with it {contents}", ADVICE
            )
    return None
