"""Where the segments of a root are, as a file in the root says: every process that opens the root
finds them.

    {root}/wal_dir.json
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from imap_wal.layout import is_wal
from storage_backends import AlreadyExists, NotFound, SegmentStore, StorageError
from storage_backends.location import located

RECORD = "wal_dir.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SegmentsPlace:
    """Where the segments of a root are. `own_disks`: each node's on its own disk
    (`imap_wal.placement.own_disk`); otherwise all at `url`, which has no options."""

    url: str = ""
    own_disks: bool = False

    def __str__(self) -> str:
        return "the own disk of each node" if self.own_disks else str(located(self.url))

    def encoded(self) -> bytes:
        wal_dir = None if self.own_disks else self.url
        return json.dumps({"format": _FORMAT, "wal_dir": wal_dir}).encode()


def recorded(root: SegmentStore) -> SegmentsPlace | None:
    """The content of the root's record; None: there is no record. Raises `StorageError` for an
    unreadable one."""
    try:
        data = json.loads(root.read(RECORD))
    except NotFound:
        return None
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"not JSON ({error}); this file says where the segments are: bring it back from a copy",
            RECORD,
        ) from error
    match data:
        case {"format": version, "wal_dir": str(url)} if version == _FORMAT:
            return SegmentsPlace(url)
        case {"format": version, "wal_dir": None} if version == _FORMAT:
            return SegmentsPlace(own_disks=True)
    raise StorageError(
        "not a record that this version reads; upgrade, or bring it back from a copy", RECORD
    )


def record(root: SegmentStore, place: SegmentsPlace) -> None:
    """Record in a root without segments where they are. Raises `StorageError` if the segments are
    already somewhere else."""
    former = recorded(root)
    if former is None and any(is_wal(file.path) for file in root.list("")):
        # Another node may have recorded the place meanwhile, and uploaded.
        former = recorded(root)
        if former is None:
            raise StorageError(
                f"wal_dir is {place}, but this log already has segments under its root",
                root.url,
            )
    if former is None:
        try:
            root.create(RECORD, place.encoded())
        except AlreadyExists:
            former = recorded(root)  # another writer was first
        else:
            return
    if former is None or (former.own_disks, str(former)) != (place.own_disks, str(place)):
        raise StorageError(
            f"wal_dir is {place}, but the segments of this log are in {former}", root.url
        )
