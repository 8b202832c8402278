"""Two stores as one: segments on one, all other files on the other (`wal_dir`).

    {root}/wal_dir.json                                  where the segments are: `SegmentsPlace`
    {wal_dir}/{namespace}/{cluster}/nodes/{node}/wal/…   segments, permits and log ids
    {root}/…                                             manifests, locks, archives, snapshots

The record in the root lets every process that opens the root find the segments.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from storage_backends.errors import AlreadyExists, Linked, NotFound, StorageError
from storage_backends.interface import Appender, Held, Lock, SegmentStore, StoredFile
from storage_backends.location import located
from storage_backends.paths import is_wal

RECORD = "wal_dir.json"
_FORMAT, _FORMAT_OWN_DISKS = 1, 2


class SplitStore:
    """A `SegmentStore`; see the module's docstring."""

    def __init__(self, root: SegmentStore, wal: SegmentStore, wal_dir: str = "") -> None:
        """`wal_dir`: the place of `wal` as the root's record names it, so that all processes that
        open `url` name it alike; "": its own URL."""
        self._root, self._wal = root, wal
        self.parts = (root, wal)
        self.url: str = located(root.url).with_wal_dir(wal_dir or wal.url)
        mine, theirs = root.capabilities, wal.capabilities
        self.capabilities = replace(
            theirs,
            exclusive_create=mine.exclusive_create and theirs.exclusive_create,
            atomic_replace=mine.atomic_replace and theirs.atomic_replace,
            locks=mine.locks,
            stale_listings=mine.stale_listings or theirs.stale_listings,
        )

    def _of(self, path: str) -> SegmentStore:
        return self._wal if is_wal(path) else self._root

    def list(self, folder: str) -> builtins.list[StoredFile]:
        if is_wal(folder):
            return self._wal.list(folder)
        if not above_wal(folder):
            return self._root.list(folder)
        found = [file for file in self._root.list(folder) if not is_wal(file.path)]
        found += [file for file in self._wal.list(folder) if is_wal(file.path)]
        return sorted(found, key=lambda file: file.path)

    def folders(self, folder: str) -> builtins.list[str]:
        if is_wal(folder):
            return self._wal.folders(folder)
        if not above_wal(folder):
            return self._root.folders(folder)
        return sorted({*self._root.folders(folder), *self._wal.folders(folder)})

    def exists(self, path: str) -> bool:
        return self._of(path).exists(path)

    def hold(self, path: str) -> Held:
        return self._of(path).hold(path)

    def size(self, path: str) -> int:
        return self._of(path).size(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._of(path).read(path, offset, length)

    def open_input(self, path: str) -> BinaryIO:
        return self._of(path).open_input(path)

    def create(self, path: str, data: bytes) -> None:
        self._of(path).create(path, data)

    def create_from(self, path: str, local_file: str) -> None:
        self._of(path).create_from(path, local_file)

    def replace(self, path: str, data: bytes) -> None:
        self._of(path).replace(path, data)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        return self._of(path).open_append(path, preallocate_bytes)

    def truncate(self, path: str, size: int) -> None:
        self._of(path).truncate(path, size)

    def delete(self, path: str) -> None:
        self._of(path).delete(path)

    def discard(self, path: str) -> None:
        self._of(path).discard(path)

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        of_wal = [path for path in paths if is_wal(path)]
        others = [path for path in paths if not is_wal(path)]
        return self._wal.discard_all(of_wal) + self._root.discard_all(others)

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        return self._of(path).lock(path, holder, take=take)

    def close(self) -> None:
        try:
            self._wal.close()
        finally:
            self._root.close()


@dataclass(frozen=True, slots=True)
class SegmentsPlace:
    """Where the segments of a root are. `own_disks`: each node's on its own disk
    (`storage_backends.own_disk`); otherwise all at `url`, which has no options."""

    url: str = ""
    own_disks: bool = False

    def __str__(self) -> str:
        return "the own disk of each node" if self.own_disks else str(located(self.url))

    def encoded(self) -> bytes:
        place = {"format": _FORMAT, "wal_dir": self.url}
        own = {"format": _FORMAT_OWN_DISKS, "own_disks": True}
        return json.dumps(own if self.own_disks else place).encode()


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
        case {"format": version, "own_disks": True} if version == _FORMAT_OWN_DISKS:
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


def above_wal(folder: str) -> bool:
    """Whether a folder of segments can be below this one."""
    parts = folder.rstrip("/").split("/", 5)
    return len(parts) < 3 or (len(parts) < 5 and parts[2] == "nodes")
