"""Several stores as one: segments at one place, all other files at another (`wal_dir`).

    {wal_dir}/{namespace}/{cluster}/nodes/{node}/wal/…   segments, permits and log ids
    {root}/…                                             manifests, locks, archives, snapshots

`imap_wal.placement.opening` says which two; `imap_wal.layout` says which files belong to segments.
"""

from __future__ import annotations

import builtins
import io
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import BinaryIO, Protocol, cast

from imap_wal.layout import above_wal, is_on_disk, is_wal, node_of_wal
from storage_backends import (
    Capabilities,
    Held,
    Linked,
    NotFound,
    SegmentStore,
    StorageError,
    StoredFile,
    Unavailable,
    Unsupported,
)
from storage_backends.gated import ForwardingStore
from storage_backends.ranged_input import RangedInput


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


# The segments of each node on the node's own disk, all other files in a root that all machines see
# (`wal_dir` of an agent, with `wal_dir_is_local`).
#
#   disk of node n1   {wal_dir}/{namespace}/{cluster}/nodes/n1/wal/   its segments, and the log id
#   root              {root}/…/nodes/n1/wal/                          permits, uploaded segments
#                     {root}/…                                        the rest, as without `wal_dir`
#
#   own segments          the disk, or if they are not there: the uploaded ones
#   those of other nodes  the uploaded ones, and what the node's agent reads from its disk (`Tails`)
#
# A process without a disk reads all nodes in the second way. The log id is on the disk only: if a
# node's disk cannot be read, its log id is missing, so the log never looks empty. Permits are in
# the root, because a process that fences a writer must see and delete its permit.

NOT_ASKED = "this process does not ask agents for the segments on their disks"


class Tails(Protocol):
    """Reads the disks of other nodes. Methods raise `Unavailable` if a disk cannot be read now."""

    def files(self, node: str) -> list[StoredFile]:
        """The files in the `wal` of a node, by the node's folder, as on its own disk."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """As `SegmentStore.read`. Raises `NotFound`."""

    def close(self) -> None:
        """Close connections. Safe to call twice."""


class Unasked:
    """`Tails` of a process that asks no agents. `files` and `read` raise `Unavailable`. `why`: the
    reason, for errors."""

    def __init__(self, root: SegmentStore, why: str = NOT_ASKED) -> None:
        self._why = why

    def files(self, node: str) -> list[StoredFile]:
        raise Unavailable(self._why, node)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        raise Unavailable(self._why, path)

    def close(self) -> None:
        pass


class OwnDiskStore(PlacementRouter):
    """A `SegmentStore`, as drawn above. `disk`: of the node with the folder `own`;
    None: this process has none. Methods raise the errors that `SegmentStore` names. `Unsupported`:
    a write to another node's disk."""

    def __init__(
        self, root: SegmentStore, disk: SegmentStore | None, own: str, tails: Tails
    ) -> None:
        super().__init__(root)
        self.disk, self.own, self._tails, self.url = disk, own, tails, root.url
        if disk is None:
            self.parts = (root,)
            self.capabilities = replace(root.capabilities, durable_append=True, durable_sync=True)
        else:
            self.parts = (root, disk)
            self.capabilities = common(root, disk)
        self._away: dict[str, str] = {}
        self._served: dict[str, dict[str, int]] = {}
        """Node → path → size of the files that its agent listed last."""

    def why_away(self, node: str) -> str:
        """Why the disk of a node could not be read when its files were last listed; "" if it
        was."""
        return self._away.get(node, "")

    @property
    def waits(self) -> bool:
        """Whether a disk could not be read when its files were last listed: it may return."""
        return bool(self._away)

    # ---- where a file is ----

    def _own_disk(self, path: str) -> SegmentStore | None:
        """This node's disk, if the file is one of its files."""
        return self.disk if is_on_disk(path) and node_of_wal(path) == self.own else None

    def there(self, path: str = "") -> SegmentStore:
        """To write a file."""
        disk = self._own_disk(path)
        if disk is None and is_on_disk(path):
            raise Unsupported(f"only the agent of {node_of_wal(path)} writes to its disk", path)
        return disk or self.root

    def _serves(self, path: str) -> bool:
        return path in self._served.get(node_of_wal(path), ())

    def _nodes_in(self, folder: str, paths: Sequence[str]) -> set[str]:
        """The nodes that can have files below this folder on their disks."""
        if is_wal(folder):
            return {node_of_wal(folder)}
        if not above_wal(folder):
            return set()
        parts = [path.split("/", 5) for path in paths]
        nodes = {"/".join(part[:4]) for part in parts if len(part) > 4 and part[2] == "nodes"}
        return {node for node in {*nodes, self.own} if f"{node}/".startswith(_prefix(folder))}

    def _on_disk(self, node: str) -> builtins.list[StoredFile]:
        if node == self.own and self.disk is not None:
            return [file for file in self.disk.list(f"{node}/wal") if is_on_disk(file.path)]
        try:
            files = [file for file in self._tails.files(node) if is_on_disk(file.path)]
        except Unavailable as error:
            self._away[node] = str(error)
            self._served.pop(node, None)
            return []
        self._away.pop(node, None)
        self._served[node] = {file.path: file.size for file in files}
        return files

    # ---- reading ----

    def list(self, folder: str) -> builtins.list[StoredFile]:
        files = {file.path: file for file in self.root.list(folder)}
        for node in sorted(self._nodes_in(folder, list(files))):
            for file in self._on_disk(node) if node else ():
                if file.path.startswith(_prefix(folder)):
                    files[file.path] = file
        return [files[path] for path in sorted(files)]

    def folders(self, folder: str) -> builtins.list[str]:
        names = set(self.root.folders(folder))
        if self.disk is not None and (above_wal(folder) or node_of_wal(folder) == self.own):
            names |= set(self.disk.folders(folder))
        return sorted(names)

    def exists(self, path: str) -> bool:
        disk = self._own_disk(path)
        return (
            (disk is not None and disk.exists(path)) or self._serves(path) or self.root.exists(path)
        )

    def hold(self, path: str) -> Held:
        return (self._own_disk(path) or self.root).hold(path)

    def size(self, path: str) -> int:
        if (disk := self._own_disk(path)) is not None:
            with suppress(NotFound):
                return disk.size(path)
        size = self._served.get(node_of_wal(path), {}).get(path)
        return self.root.size(path) if size is None else size

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if (disk := self._own_disk(path)) is not None:
            with suppress(NotFound):
                return disk.read(path, offset, length)
        elif self._serves(path):
            with suppress(NotFound):  # it was archived since; or recovered, under another name
                return self._tails.read(path, offset, length)
        return self.root.read(path, offset, length)

    def open_input(self, path: str) -> BinaryIO:
        if (disk := self._own_disk(path)) is not None:
            with suppress(NotFound):
                return disk.open_input(path)
        elif self._serves(path):
            return cast(BinaryIO, io.BufferedReader(RangedInput(self, path)))
        return self.root.open_input(path)

    # ---- writing ----

    def delete(self, path: str) -> None:
        """From the root, and if it is this node's, from its disk. The agent of another node deletes
        the copy on its disk later (`imap_wal.agent.own_disk.uploads`)."""
        self.root.delete(path)
        if (disk := self._own_disk(path)) is not None:
            disk.delete(path)

    def discard(self, path: str) -> None:
        self.root.discard(path)
        if (disk := self._own_disk(path)) is not None:
            disk.discard(path)

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        linked = self.root.discard_all(paths)
        own = [path for path in paths if self._own_disk(path) is not None]
        return linked + (self.disk.discard_all(own) if self.disk is not None and own else [])

    def close(self) -> None:
        try:
            self._tails.close()
        finally:
            super().close()


def demand_own(own_disk: OwnDiskStore | None, node: str) -> None:
    """Raises `StorageError` if a node's segments are on a disk that this process does not have.
    `node`: its folder."""
    if own_disk is not None and (own_disk.disk is None or own_disk.own != node):
        raise StorageError(
            f"the segments of {node} are on the own disk of that node: only its agent can open "
            "this log (wal_dir_is_local)",
            node,
        )


def _prefix(folder: str) -> str:
    return f"{folder.rstrip('/')}/" if folder else ""
