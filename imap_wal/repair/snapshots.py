"""Decides which snapshots the repaired copy has, and which of their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from imap_wal import names
from imap_wal.clock import utc
from imap_wal.contents import checksum
from imap_wal.context import Context
from imap_wal.errors import ShortLog
from imap_wal.layout import snapshot_place
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.snapshots import Snapshot, SnapshotFile
from imap_wal.parquet import salvage
from imap_wal.read.state import ClusterState
from imap_wal.repair.former import Former, Source, former_with, sources
from imap_wal.repair.report import COPIED, GIVEN_UP, REWRITTEN, Extent, Item
from storage_backends import NotFound, SegmentStore, StoredFile


class SnapshotRepair:
    """The part of `ClusterRepair` for snapshots; `items` are those of the whole repair."""

    def __init__(
        self,
        context: Context,
        view: ClusterState,
        wants_node: Callable[[str], bool],
        tell: Callable[[str], None],
        items: list[Item],
    ) -> None:
        self._context, self._store, self._view = context, context.store, view
        self._wants_node, self._tell, self._items = wants_node, tell, items
        self.planned: dict[str, Snapshot] = {}
        """The snapshots of the copy, by map."""
        self.rewritten: set[str] = set()
        """Files that are rewritten."""
        self.lists_changed = False
        """Whether files of damaged lists were found again, or given up."""
        self.generation = 0
        """The highest generation that has a folder."""
        self.incomplete: dict[str, Former | None] = {}
        """Maps whose snapshot lost rows, and the former snapshot that has their keys: what the logs
        still have of them since then counts again."""
        self._spans: dict[str, salvage.Spans] = {}
        """Path of a file of a former snapshot → the keys that are taken of it."""
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
                self.incomplete[name] = None
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
            component, number = snapshot_place(file.path)
            if (
                0 < number <= snapshot.generation
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
            name, number = snapshot_place(file.path)
            if not number:
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
            generation=max(snapshot_place(file.path)[1] for file in unnamed),
            files=Listed(files),
            bytes=snapshot.bytes + sum(file.size for file in unnamed),
            mixed=True,
        )

    def decide(self, name: str, snapshot: Snapshot) -> None:
        looks = [self._look_at(file) for file in snapshot.files]
        lost = [look.file.path for look in looks if look.loses]
        former = None
        if lost:
            former = former_with(self._context, self._sources, name, snapshot, lost)
            self.incomplete[name] = former
        reason, gap = self._instead(name, snapshot, former)
        files = [look.file for look in looks if look.is_whole or look.readable.records]
        for look in looks:
            self._items.append(look.item(reason, gap, is_counted=former is None))
        self.rewritten |= {
            look.file.path for look in looks if not look.is_whole and look.readable.records
        }
        if self.rewritten.isdisjoint(snapshot.paths) and files == list(snapshot.files):
            self.planned[name] = snapshot
            return
        records = sum(look.readable.records for look in looks)
        tombstones = sum(look.readable.tombstones for look in looks)
        if files:
            files[0] = files[0]._replace(border="")  # the file before it may be given up
        size = snapshot.bytes
        for file, readable in self._take_in_former(former):
            records, tombstones = records + readable.records, tombstones + readable.tombstones
            files.append(file._replace(rows=readable.records, border=""))
            size += file.size
        self.planned[name] = replace(
            snapshot,
            files=Listed(files),
            live=records - tombstones,
            tombstones=tombstones,
            bytes=size,
        )

    @cached_property
    def _sources(self) -> list[Source]:
        return sources(self._context, self._view)

    def _look_at(self, named: SnapshotFile) -> _Look:
        self._tell(named.path)
        try:
            size = self._store.size(named.path)
            with self._store.open_input(named.path) as source:
                crc = checksum(source)
        except NotFound:
            crc = size = 0
        readable = salvage.count_readable(self._context, named.path, log=None)
        present = named._replace(checksum=crc, size=size, rows=readable.records)
        is_same = bool(named.checksum) and named.checksum == crc
        return _Look(present, readable, is_same or (not named.checksum and not readable.what))

    def _instead(
        self, name: str, snapshot: Snapshot, former: Former | None
    ) -> tuple[str, Extent | None]:
        """What a damaged file's report says about its lost rows, and the changes that are nowhere
        else; None: there are none."""
        if former is None:
            return "what the logs still have of it counts", Extent()
        then = f"generation {former.snapshot.generation}, of {utc(former.snapshot.created_ms)}"
        reason = f"its keys are those of the former snapshot of map {name!r} ({then})"
        gaps = former.gaps(self._view, snapshot, self._wants_node)
        if not gaps:
            return f"{reason}; no change since then was removed from the log", None
        places = ", ".join(
            f"after {start} up to {end} of node {node!r}"
            for node, (start, end) in sorted(gaps.items())
        )
        first, last = next(iter(gaps.values())) if len(gaps) == 1 else (None, None)
        return (
            f"{reason} and of the logs since then. Changes of them {places} are lost: changed keys "
            "have the value before, and deleted ones may be back"
        ), Extent(first and str(first), last and str(last))

    def _take_in_former(
        self, former: Former | None
    ) -> Iterator[tuple[SnapshotFile, salvage.Salvaged]]:
        """The files of a former snapshot that the copy has, with the lost keys alone."""
        for file in former.files if former is not None else ():
            assert former is not None
            readable = salvage.count_readable(
                self._context, file.path, log=None, spans=former.spans
            )
            if not readable.records:
                continue
            action, what = COPIED, "of a former snapshot"
            size: int | None = file.size
            if readable.records != file.rows:
                self.rewritten.add(file.path)
                self._spans[file.path] = former.spans
                action, size, what = REWRITTEN, None, f"{what}: the keys that are lost"
            extent = Extent(records=readable.records, bytes=size)
            self._items.append(Item(file.path, "snapshot", "clean", action, extent, what=what))
            yield file, readable

    def write(self, target: SegmentStore, name: str, snapshot: Snapshot) -> None:
        files: list[SnapshotFile] = []
        for file in snapshot.files:
            self._tell(file.path)
            if file.path in self.rewritten:
                spans = self._spans.get(file.path)
                new = salvage.rewrite_file(
                    self._context, file.path, target, file.path, log=None, spans=spans
                )
                files.append(file._replace(checksum=new.checksum, size=new.bytes))
            else:
                salvage.copy_file(self._store, file.path, target)
                files.append(file)
        if not self.rewritten.isdisjoint(snapshot.paths):
            size = snapshot.bytes + sum(new.size for new in files)
            size -= sum(file.size for file in snapshot.files)
            self.planned[name] = replace(snapshot, files=Listed(files), bytes=max(size, 0))


@dataclass(frozen=True, slots=True)
class _Look:
    """A file of a snapshot as it is now."""

    file: SnapshotFile
    readable: salvage.Salvaged
    is_whole: bool

    @property
    def loses(self) -> bool:
        """Whether rows of it are lost."""
        return not self.is_whole and (not self.readable.records or self.readable.lost != 0)

    def item(self, instead: str, gap: Extent | None, *, is_counted: bool) -> Item:
        """`instead`, `gap`: what the copy has in place of the lost rows, and what it lacks.
        `is_counted`: all lost rows."""
        path, readable, size = self.file.path, self.readable, self.file.size
        extent = Extent(records=readable.records, bytes=size if self.is_whole else None)
        if self.is_whole:
            return Item(path, "snapshot", "clean", COPIED, extent)
        reason = readable.what or "its bytes do not match the checksum in the manifest"
        if not self.loses:
            return Item(path, "snapshot", "corrupt", REWRITTEN, extent, None, reason)
        if gap is not None and is_counted:
            gap = replace(gap, records=readable.lost) if readable.lost != 0 else None
        reason += f"; {instead}"
        if not readable.records:
            return Item(path, "snapshot", "corrupt", GIVEN_UP, given_up=gap, what=reason)
        return Item(path, "snapshot", "corrupt", REWRITTEN, extent, gap, reason)


def _taken_in(file: StoredFile) -> SnapshotFile:
    """A file that no manifest names; `SnapshotRepair.decide` looks at its content."""
    return SnapshotFile(file.path, 0, file.size, 0, "", 0)
