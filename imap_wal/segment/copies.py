"""Compares a segment on a node's own disk with its uploaded copy in the root.

A segment is uploaded when it is sealed, and a sealed segment never changes. So if the two differ,
one of them is damaged, or the disk was restored from an older copy. Their frames decide:

| the disk's                | the root's                       | which to keep |
|---------------------------|----------------------------------|---------------|
| whole                     | damaged, and not longer          | the disk's    |
| whole                     | whole, the front of the disk's   | the disk's    |
| whole, the root's front   | whole and longer                 | the root's    |
| damaged                   | whole                            | the root's    |
| any other case            |                                  | both          |

imap-wal never deletes the root's copy unless the disk's is the one to keep.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c

from imap_wal import layout
from imap_wal.errors import CorruptLog
from imap_wal.placement.router import OwnDiskStore
from imap_wal.segment.listing import SegmentFile
from imap_wal.segment.verdict import CLEAN, Place, Verdict, judge
from storage_backends import NotFound, SegmentStore

CHUNK_BYTES = 1024 * 1024
ADVICE = (
    "the uploaded copy was kept. If the disk was restored from an older copy, bring the right disk "
    "back, or replace it by an empty one and open with recovery_policy='partial'. If the file on "
    "the disk is damaged, stop the agent and move that file away: the uploaded copy is read then"
)
BOTH_ADVICE = (
    "the uploaded copy was kept. Run `imap-wal verify`, and keep copies of both files. Then stop "
    "the agent, and move the damaged one away"
)


def checksum(store: SegmentStore, path: str, size: int | None = None) -> int:
    """CRC-32C of a whole file, or of its first `size` bytes."""
    crc = offset = 0
    while size is None or offset < size:
        length = CHUNK_BYTES if size is None else min(CHUNK_BYTES, size - offset)
        chunk = store.read(path, offset, length)
        if not chunk:
            break
        crc = google_crc32c.extend(crc, chunk)
        offset += len(chunk)
    return crc


def demand_disk_is_right(store: OwnDiskStore, path: str, directory: str) -> None:
    """Return if the segment on the disk is the one to keep; raise `CorruptLog` if it is not. For
    two files that differ. `directory`: the log's. Raises `NotFound`."""
    assert store.disk is not None
    on_disk, there = _verdict(store.disk, path, directory), _verdict(store.root, path, directory)
    advice = ADVICE
    if on_disk.status == there.status == CLEAN:
        both = min(on_disk.end, there.end)
        if checksum(store.disk, path, both) != checksum(store.root, path, both):
            difference, advice = "both are whole, but have different entries", BOTH_ADVICE
        elif on_disk.end >= there.end:
            return
        else:
            difference = f"it ends at byte {on_disk.end}, and the uploaded copy at byte {there.end}"
    elif on_disk.status == CLEAN:
        if on_disk.end >= there.size:
            return
        difference = (
            f"it ends at byte {on_disk.end}, and the uploaded copy, {there.size} bytes, is damaged"
        )
        advice = BOTH_ADVICE
    elif there.status == CLEAN:
        difference = f"it is damaged ({on_disk.what}), and the uploaded copy is whole"
    else:
        difference, advice = f"both are damaged ({on_disk.what}; {there.what})", BOTH_ADVICE
    files = (
        f"the segment {store.disk.url}/{path} differs from its uploaded copy "
        f"{store.root.url}/{path}"
    )
    raise CorruptLog(path, min(on_disk.end, there.end), f"{files}: {difference}", advice)


def demand_same(
    own: OwnDiskStore | None,
    folder: str,
    segments: Sequence[SegmentFile],
    directory: str,
    read: int,
) -> None:
    """Raise `CorruptLog` if an uploaded copy of a node's segments is better than the one on its own
    disk. All sizes are compared, and the content of the last `read` segments: those that a recovery
    reads to their end, and may replace. Does nothing without an own disk."""
    if own is None or own.disk is None or own.own != folder:
        return
    uploaded = {file.path: file.size for file in own.root.list(f"{folder}/wal")}
    on_disk = {file.path: file.size for file in own.disk.list(f"{folder}/wal")}
    for index, path in enumerate(segment.path for segment in segments):
        if path not in uploaded or path not in on_disk:
            continue
        if uploaded[path] != on_disk[path] or (
            index >= len(segments) - read and checksum(own.disk, path) != checksum(own.root, path)
        ):
            demand_disk_is_right(own, path, directory)


def demand_no_better_copy(own: OwnDiskStore | None, path: str, directory: str) -> None:
    """Raise `CorruptLog` if a segment that is to be deleted has a better copy in the root than on
    the own disk, which would be deleted too."""
    if own is None or own.disk is None:
        return
    try:
        if checksum(own.root, path) != checksum(own.disk, path):
            demand_disk_is_right(own, path, directory)
    except NotFound:
        pass  # only one of them is there: it is the one that was read


def _verdict(store: SegmentStore, path: str, directory: str) -> Verdict:
    name = layout.parse_wal_path(path)
    assert name is not None
    place = Place(path, directory, *name, followed=True)
    # Encrypted frames stay so: no keys are needed.
    return judge(store, place, lambda frame: None, keys=None)[0]
