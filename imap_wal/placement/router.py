"""Several stores as one: segments at one place, all other files at another (`wal_dir`).

    {wal_dir}/{namespace}/{cluster}/nodes/{node}/wal/…   segments, permits and log ids
    {root}/…                                             manifests, locks, archives, snapshots

`imap_wal.placement.record` says which two; `imap_wal.layout` says which files belong to segments.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from imap_wal.layout import above_wal, is_wal
from storage_backends import Capabilities, Linked, SegmentStore, StoredFile
from storage_backends.gated import ForwardingStore


class PlacementRouter(ForwardingStore):
    """A `SegmentStore` of several others: `there` says which of them has a file. All processes see
    what is in `root`."""

    parts: tuple[SegmentStore, ...]
    """The stores, the root first, that with the segments of this process last."""

    def __init__(self, root: SegmentStore) -> None:
        self.root = root

    def close(self) -> None:
        with ExitStack() as closing:
            for part in self.parts:
                closing.callback(part.close)


def common(root: SegmentStore, wal: SegmentStore) -> Capabilities:
    """What a root and a place of segments promise together."""
    mine, theirs = root.capabilities, wal.capabilities
    return replace(
        theirs,
        exclusive_create=mine.exclusive_create and theirs.exclusive_create,
        atomic_replace=mine.atomic_replace and theirs.atomic_replace,
        locks=mine.locks,
        stale_listings=mine.stale_listings or theirs.stale_listings,
    )


class SplitStore(PlacementRouter):
    """The segments of all nodes at another place than the rest."""

    def __init__(self, root: SegmentStore, wal: SegmentStore) -> None:
        super().__init__(root)
        self._wal = wal
        self.parts = (root, wal)
        self.url = root.url
        self.capabilities = common(root, wal)

    def there(self, path: str = "") -> SegmentStore:
        return self._wal if is_wal(path) else self.root

    def list(self, folder: str) -> builtins.list[StoredFile]:
        if is_wal(folder):
            return self._wal.list(folder)
        if not above_wal(folder):
            return self.root.list(folder)
        files = [file for file in self.root.list(folder) if not is_wal(file.path)]
        files += [file for file in self._wal.list(folder) if is_wal(file.path)]
        return sorted(files, key=lambda file: file.path)

    def folders(self, folder: str) -> builtins.list[str]:
        if is_wal(folder):
            return self._wal.folders(folder)
        if not above_wal(folder):
            return self.root.folders(folder)
        return sorted({*self.root.folders(folder), *self._wal.folders(folder)})

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        of_wal = [path for path in paths if is_wal(path)]
        others = [path for path in paths if not is_wal(path)]
        return self._wal.discard_all(of_wal) + self.root.discard_all(others)
