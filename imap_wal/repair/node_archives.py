"""Decides which archives of one node's log the repaired copy has, and which of their entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from imap_wal import layout
from imap_wal.contents import checksum
from imap_wal.entry import ORDER
from imap_wal.errors import LogError, ShortLog
from imap_wal.format import Position
from imap_wal.manifest.archives import Archive
from imap_wal.manifest.list_files import Listed, ListFile
from imap_wal.parquet import salvage
from imap_wal.repair.node_plan import NodePlan
from imap_wal.repair.report import COPIED, GIVEN_UP, POINT_IN_TIME, REWRITTEN, Extent, Item
from imap_wal.segment.listing import SegmentFile, WalFolder
from storage_backends import NotFound, StoredFile


class ArchivePlanner:
    """Fills the archives of a node's plan."""

    def __init__(self, plan: NodePlan) -> None:
        self._plan = plan

    def decide(self) -> Position | None:
        """Decide for each archive. Returns the position at which a point-in-time repair ends
        because an archive is damaged: only entries below it are kept. None: no such position."""
        looks = [(archive, *self._look_at(archive)) for archive in self._plan.manifest.archives]
        below: Position | None = None
        if self._plan.mode == POINT_IN_TIME:
            ends = [
                readable.end or archive.first._replace(index=0)
                for archive, _, readable in looks
                if readable is not None and readable.lost != 0
            ]
            below = min(ends, default=None)
        for archive, status, damaged in looks:
            late = below is not None and archive.last >= below
            if damaged is None and not late:
                self._plan.archives.append((archive, None, False))
                whole = Extent(
                    str(archive.first), str(archive.last), None, archive.records, archive.bytes
                )
                self._plan.items.append(Item(archive.path, "archive", status, COPIED, whole))
                continue
            self._plan.changed = True
            readable = damaged
            if late or readable is None:
                readable = salvage.count_readable(
                    self._plan.context, archive.path, log=self._plan.manifest.directory, below=below
                )
            self._rewrite(
                archive, readable, status, damaged.what if damaged is not None else "", below
            )
        return below

    def _look_at(self, archive: Archive) -> tuple[str, salvage.Salvaged | None]:
        """The status of an archive, and its readable entries; None: it is whole."""
        self._plan.tell(archive.path)
        try:
            with self._plan.store.open_input(archive.path) as file:
                whole = archive.checksum != 0 and checksum(file) == archive.checksum
        except NotFound:
            whole = False
        if whole:
            return "clean", None
        readable = salvage.count_readable(
            self._plan.context, archive.path, log=self._plan.manifest.directory
        )
        if not archive.checksum and not readable.what and readable.records == archive.records:
            return "clean", None
        return "corrupt", readable._replace(lost=archive.records - readable.records)

    def _rewrite(
        self,
        archive: Archive,
        readable: salvage.Salvaged,
        status: str,
        damage: str,
        below: Position | None,
    ) -> None:
        lost = archive.records - readable.records
        if lost:
            self._plan.differs(archive.first._replace(frame=0, index=0))
        reason = damage or (
            "its bytes do not match the checksum in the manifest"
            if status == "corrupt"
            else f"it has entries after {below}"
        )
        given_up = None
        if lost:
            begins = [
                place
                for place in (readable.end if readable.what else below, below)
                if place is not None
            ]
            first = str(max(archive.first, min(begins, default=archive.first)))
            given_up = Extent(first, str(archive.last), None, lost, None)
        if readable.first is None or readable.last is None:
            self._plan.items.append(
                Item(archive.path, "archive", status, GIVEN_UP, given_up=given_up, what=reason)
            )
            return
        path = layout.archive_path(
            self._plan.node.folder,
            archive.map,
            readable.first,
            readable.last,
            self._plan.manifest.epoch,
            "0",
        )
        copy = replace(
            archive,
            path=path,
            first=readable.first,
            last=readable.last,
            records=readable.records,
            tombstones=readable.tombstones,
        )
        self._plan.sources[path] = archive.path
        self._plan.archives.append((copy, below, True))
        extent = Extent(str(readable.first), str(readable.last), None, readable.records, None)
        to = path if path != archive.path else ""
        self._plan.items.append(
            Item(archive.path, "archive", status, REWRITTEN, extent, given_up, reason, to)
        )

    def find_again(self) -> None:
        """For each damaged list: add the archives that it must have named. Their file names have
        their positions, and the manifest says between which ends the list is."""
        plan = self._plan
        for damaged_list, error in plan.node.damaged_lists:
            named = plan.manifest.archives
            again = [
                archive
                for file, name in self._unknown(named)
                if damaged_list.lowest <= name.last <= damaged_list.highest
                and name.last[:2] <= plan.manifest.archived
                and not _is_void(name.last, plan.manifest.begins)
                and (archive := self._read_unknown(file, name)) is not None
            ]
            again = _without_absorbed(again, named)
            plan.manifest = replace(plan.manifest, archives=Listed((*named, *again)))
            plan.items.append(self._list_item(damaged_list, error, len(again)))

    def _list_item(self, file: ListFile, error: LogError, count: int) -> Item:
        reason = f"{error.what}; {count} archives of {file.items} were found by their names"
        given_up = None if count >= file.items else Extent(str(file.lowest), str(file.highest))
        status = "missing" if isinstance(error, ShortLog) else "corrupt"
        return Item(error.file, "list", status, GIVEN_UP, given_up=given_up, what=reason)

    def _unknown(self, named: Iterable[Archive]) -> Iterator[tuple[StoredFile, layout.ArchiveName]]:
        """The files of archives that are not named."""
        paths = {archive.path for archive in named}
        for file in self._plan.node.files:
            name = layout.parse_archive_path(file.path)
            if name is not None and file.path not in paths:
                yield file, name

    def adopt(self) -> None:
        """For an older manifest: add archives that it does not name, if their segments are deleted.
        Segments are deleted only after their archives were published. Entries that are still in
        segments are read from the segments, even if such an archive has them too."""
        manifest, wal = self._plan.manifest, self._plan.wal()
        unknown = [
            (file, name)
            for file, name in self._unknown(manifest.archives)
            if name.last[:2] > manifest.archived
        ]
        first = self._first_left(wal, [name for _, name in unknown])
        if first is not None and first.number == manifest.archived[1] + 1:
            return  # no segment is deleted
        requests = dict(manifest.requests)
        adopted = []
        for file, name in unknown:
            if first is not None and name.first.segment >= first.number:
                continue
            archive = self._read_unknown(file, name)
            if archive is None:
                continue
            adopted.append(archive)
            log = manifest.directory
            for row in salvage.rows_of(self._plan.context, file.path, log=log):
                _, _, session, request = row[ORDER]
                requests[session] = max(request, requests.get(session, 0))
        if not adopted:
            return
        last = max(archive.last for archive in adopted)
        archived = (last.epoch, last.segment) if first is None else (first.epoch, first.number - 1)
        self._plan.manifest = replace(
            manifest,
            archives=Listed((*manifest.archives, *adopted)),
            archived=archived,
            requests=requests,
        )

    def _read_unknown(self, file: StoredFile, name: layout.ArchiveName) -> Archive | None:
        """An archive that no manifest names, from its file; None if its map is not readable."""
        context, log = self._plan.context, self._plan.manifest.directory
        map_name = salvage.map_of(context, file.path, file.path.split("/")[-2], [], log=log)
        if not map_name:
            return None
        rows = salvage.count_readable(context, file.path, log=log)
        return Archive(
            map_name, file.path, name.first, name.last, rows.records, rows.tombstones, file.size
        )

    def _first_left(self, wal: WalFolder, unknown: list[layout.ArchiveName]) -> SegmentFile | None:
        """The first segment that is not archived. On a storage that cannot append, the last small
        object of each epoch is kept, archived or not (`layout.fences`). If segments after it were
        deleted, and an archive has their entries, it was archived too."""
        segments = wal.segments
        first = segments[0] if segments else None
        if self._plan.store.capabilities.durable_append:
            return first
        in_wal = [
            file
            for file in self._plan.node.files
            if file.path.startswith(f"{self._plan.node.folder}/wal/")
        ]
        fences = layout.fences(in_wal, segments[-1].epoch + 1) if segments else set()
        for segment, following in pairwise(segments):
            if segment.path not in fences:
                break
            gone = segment.number + 1, following.number - 1
            if gone[0] <= gone[1] and any(
                name.first.segment <= gone[1] and name.last.segment >= gone[0] for name in unknown
            ):
                first = following
        return first


def _without_absorbed(archives: Iterable[Archive], named: Iterable[Archive]) -> list[Archive]:
    """Without the archives whose positions are all within another one of their map: a later run
    absorbed them, and was interrupted before it deleted them. Others of a map do not overlap."""
    whole: dict[str, list[Archive]] = {}
    for archive in named:
        whole.setdefault(archive.map, []).append(archive)
    apart = []
    for archive in sorted(archives, key=lambda archive: archive.last, reverse=True):
        others = whole.setdefault(archive.map, [])
        if not any(wider.first <= archive.first and archive.last <= wider.last for wider in others):
            others.append(archive)
            apart.append(archive)
    return apart


def _is_void(last: Position, begins: tuple[int, int]) -> bool:
    """Whether a replaced writer wrote it after the takeover: it was never named."""
    epoch, segment = begins
    return last.epoch < epoch and last.segment >= segment
