"""Decides which snapshots the repaired copy has, and which of their entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from imap_wal import names
from imap_wal.contents import checksum
from imap_wal.context import Context
from imap_wal.errors import ShortLog
from imap_wal.layout import is_part
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.snapshots import Snapshot, SnapshotFile
from imap_wal.parquet import salvage
from imap_wal.read.state import ClusterState
from imap_wal.repair.report import COPIED, GIVEN_UP, REWRITTEN, Extent, Item
from storage_backends import NotFound, SegmentStore, StoredFile
from storage_backends.paths import number_in


class SnapshotRepair:
    """The part of `ClusterRepair` for snapshots; `items` are those of the whole repair."""

    def __init__(
        self,
        context: Context,
        view: ClusterState,
        tell: Callable[[str], None],
        items: list[Item],
    ) -> None:
        self._context, self._store, self._view = context, context.store, view
        self._tell, self._items = tell, items
        self.planned: dict[str, Snapshot] = {}
        """The snapshots of the copy, by map."""
        self.rewritten: set[str] = set()
        """Files that are rewritten."""
        self.lists_changed = False
        """Whether files of damaged lists were found again, or given up."""
        self.generation = 0
        """The highest generation that has a folder."""
        self.incomplete: set[str] = set()
        """Maps whose snapshot lost rows: what the logs still have of them counts again."""
        self.taken_in: list[str] = []
        """Files of snapshots that no manifest names but the copy keeps."""

    def find_again(self) -> ClusterState:
        """The cluster without damaged lists: their files are found by their folders, as far as
        possible. The log below a snapshot is removed, so without them its entries are lost."""
        view = self._view
        if not view.damaged_lists:
            return view
        self.lists_changed = True
        snapshots = dict(view.snapshots)
        for name in {bad_list.map: None for bad_list in view.damaged_lists}:
            damaged = [bad_list for bad_list in view.damaged_lists if bad_list.map == name]
            expected = sum(bad_list.list.items for bad_list in damaged)
            again = self._parts_again(name, snapshots[name])
            fits = len(again) == expected and self._sizes_fit(snapshots[name], again)
            if not fits:
                self.incomplete.add(name)
            files = Listed((*snapshots[name].files, *map(_taken_in, again)))
            snapshots[name] = replace(snapshots[name], files=files, mixed=True)
            doubt = "" if fits else "; their sizes are not those of the snapshot"
            if len(again) < expected:
                doubt = "; the others are lost"
            elif len(again) > expected:
                doubt = (
                    "; some are of a former snapshot, so entries that a rewrite removed may be back"
                )
            for bad_list in damaged:
                reason = (
                    f"{bad_list.error.what}; {len(again)} files of {expected} were found by their "
                    f"folders{doubt}"
                )
                given_up = None if fits else Extent()
                status = "missing" if isinstance(bad_list.error, ShortLog) else "corrupt"
                self._items.append(
                    Item(
                        bad_list.error.file,
                        "list",
                        status,
                        GIVEN_UP,
                        given_up=given_up,
                        what=reason,
                    )
                )
        manifest = replace(view.manifest, snapshots=snapshots)
        self._view = replace(view, manifest=manifest)
        return self._view

    def _parts_again(self, name: str, snapshot: Snapshot) -> list[StoredFile]:
        """The files of a map's snapshot that are not named, with those of former snapshots that
        were not removed: the newest change of each key is in one of them."""
        named = set(snapshot.paths)
        files = []
        for file in self._store.list(f"{self._view.folder}/snapshot"):
            *_, component, folder, part = file.path.split("/")
            number = number_in(folder)
            if (
                number is not None
                and is_part(part)
                and number <= snapshot.generation
                and file.path not in named
                and names.map_of(component, self._view.manifest.snapshots) == name
            ):
                files.append(file)
        return files

    def _sizes_fit(self, snapshot: Snapshot, again: Sequence[StoredFile]) -> bool:
        return (
            sum(file.size for file in again) + sum(file.size for file in snapshot.files)
            == snapshot.bytes
        )

    def unnamed(self) -> dict[str, list[StoredFile]]:
        """Map → files that its snapshot does not name, of the same or a newer generation. A lost
        manifest may have named them, and the log below them may have been removed. All of them are
        needed: a rewrite keeps files of earlier generations."""
        by_map: dict[str, list[StoredFile]] = {}
        for file in self._store.list(f"{self._view.folder}/snapshot"):
            *_, name, generation, part = file.path.split("/")
            number = number_in(generation)
            if number is None or not is_part(part):
                continue
            map_name = salvage.map_of(
                self._context, file.path, name, self._view.manifest.snapshots, log=None
            )
            if not map_name:
                continue
            self.generation = max(self.generation, number)
            snapshot = self._view.manifest.snapshots.get(map_name)
            if snapshot is None or (
                number >= snapshot.generation and file.path not in snapshot.paths
            ):
                by_map.setdefault(map_name, []).append(file)
        return by_map

    def adopted(self, name: str, unnamed: list[StoredFile]) -> Snapshot:
        """The snapshot with these files added. Its marks stay as they are: the log above them is
        read, and the newest change of each key wins."""
        snapshot = self._view.manifest.snapshots.get(name)
        if snapshot is None:
            snapshot = Snapshot(0, Listed(), {}, 0, 0, 0, self._context.clock.now_ms())
        if not unnamed:
            return snapshot
        there = {file.path for file in self._store.list(f"{self._view.folder}/snapshot")}
        # A missing file was replaced by the newer ones.
        files = [file for file in snapshot.files if file.path in there]
        files += map(_taken_in, unnamed)
        self.taken_in += [file.path for file in unnamed]
        return replace(
            snapshot,
            generation=max(int(file.path.split("/")[-2]) for file in unnamed),
            files=Listed(files),
            bytes=snapshot.bytes + sum(file.size for file in unnamed),
            mixed=True,
        )

    def decide(self, name: str, snapshot: Snapshot) -> None:
        files: list[SnapshotFile] = []
        records = tombstones = 0
        for named in snapshot.files:
            path = named.path
            self._tell(path)
            try:
                size = self._store.size(path)
                with self._store.open_input(path) as source:
                    crc = checksum(source)
            except NotFound:
                crc = size = 0
            readable = salvage.count_readable(self._context, path, log=None)
            records, tombstones = records + readable.records, tombstones + readable.tombstones
            present = named._replace(checksum=crc, size=size, rows=readable.records)
            if (named.checksum and named.checksum == crc) or (
                not named.checksum and not readable.what
            ):
                files.append(present)
                self._items.append(
                    Item(
                        path,
                        "snapshot",
                        "clean",
                        COPIED,
                        Extent(records=readable.records, bytes=size),
                    )
                )
                continue
            lost = Extent(records=readable.lost) if readable.lost != 0 else None
            reason = readable.what or "its bytes do not match the checksum in the manifest"
            if not readable.records or lost is not None:
                self.incomplete.add(name)
                reason += "; what the logs still have of it counts"
            if not readable.records:
                self._items.append(
                    Item(path, "snapshot", "corrupt", GIVEN_UP, given_up=lost, what=reason)
                )
                continue
            files.append(present)
            self.rewritten.add(path)
            self._items.append(
                Item(
                    path,
                    "snapshot",
                    "corrupt",
                    REWRITTEN,
                    Extent(records=readable.records),
                    lost,
                    reason,
                )
            )
        if self.rewritten.isdisjoint(snapshot.paths) and files == list(snapshot.files):
            self.planned[name] = snapshot
            return
        if files:
            files[0] = files[0]._replace(border="")  # the file before it may be given up
        self.planned[name] = replace(
            snapshot, files=Listed(files), live=records - tombstones, tombstones=tombstones
        )

    def write(self, target: SegmentStore, name: str, snapshot: Snapshot) -> None:
        files: list[SnapshotFile] = []
        for file in snapshot.files:
            self._tell(file.path)
            if file.path in self.rewritten:
                new = salvage.rewrite_file(self._context, file.path, target, file.path, log=None)
                files.append(file._replace(checksum=new.checksum, size=new.bytes))
            else:
                salvage.copy_file(self._store, file.path, target)
                files.append(file)
        if not self.rewritten.isdisjoint(snapshot.paths):
            size = snapshot.bytes + sum(new.size for new in files)
            size -= sum(file.size for file in snapshot.files)
            self.planned[name] = replace(snapshot, files=Listed(files), bytes=max(size, 0))


def _taken_in(file: StoredFile) -> SnapshotFile:
    """A file that no manifest names; `SnapshotRepair.decide` looks at its content."""
    return SnapshotFile(file.path, 0, file.size, 0, "", 0)
