"""The repair of one node's log: `plan` reads all of it and decides about each file, `write` writes
the copy.

Archives come before segments in a node's log. After damage in an archive, a point-in-time repair
keeps only older entries of the other archives, and no segment. Segments keep their numbers. A
segment of which nothing is kept is empty in the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from imap_wal import entry, format, layout
from imap_wal.contents import checksum
from imap_wal.entry import ORDER, Row, is_shared
from imap_wal.errors import EncryptionError, LogError, ShortLog, UnsupportedVersion
from imap_wal.format import END, START, Position
from imap_wal.inspect import older_manifests
from imap_wal.manifest.list_files import Archive, Listed, ListFile
from imap_wal.manifest.node import NOTHING_SEEN, NodeManifest
from imap_wal.manifest.older import Evidence, other_copy
from imap_wal.manifest.snapshots import LowWaterMark
from imap_wal.parquet import salvage
from imap_wal.read.state import NodeState
from imap_wal.repair.node_plan import NodePlan, Write
from imap_wal.repair.node_segments import SegmentPlanner
from imap_wal.repair.report import COPIED, GIVEN_UP, POINT_IN_TIME, REWRITTEN, Extent, Item
from imap_wal.repair.strangers import without_strangers
from imap_wal.security.encryption import cipher_of
from imap_wal.segment.listing import SegmentFile, WalFolder
from imap_wal.segment.salvage import scan_segment
from storage_backends import NotFound, SegmentStore, StoredFile


class Highest(NamedTuple):
    """The highest incarnation, and the highest session that its node has numbered, in the orders of
    entries."""

    incarnation: int = 0
    session: int = 0

    def with_row(self, row: Row) -> Highest:
        incarnation, _, session, _ = row[ORDER]
        return self.up_to(Highest(incarnation, 0 if is_shared(row[ORDER]) else session))

    def up_to(self, other: Highest) -> Highest:
        """The higher values of both, field by field."""
        return Highest(max(self.incarnation, other.incarnation), max(self.session, other.session))


class NodeRepair:
    """See the module's docstring. `lost_manifests`: how many newer manifests cannot be read."""

    def __init__(self, plan: NodePlan, lost_manifests: int = 0) -> None:
        self._plan, self._lost_manifests = plan, lost_manifests
        self._evidence = Evidence(0)
        self.highest = Highest()
        """The highest numbers in entries; filled if an older manifest is used."""

    @property
    def node(self) -> NodeState:
        return self._plan.node

    @property
    def items(self) -> list[Item]:
        """The decision for each file."""
        return self._plan.items

    def plan(self, *, look_at_entries: bool = False) -> None:
        """Read everything, and fill `items`. `look_at_entries`: fill `highest` in any case. Raises
        `UnsupportedVersion` if a newer version wrote the log; then nothing is damaged."""
        archives = ArchivePlanner(self._plan)
        plan = self._plan
        plan.manifest = replace(plan.node.manifest, archives=Listed(plan.node.archives))
        self._put_strangers_aside()
        self._evidence = older_manifests.of_node(
            plan.node, plan.manifest, plan.view.manifest, plan.view.opened
        )
        plan.changed = self.older or bool(plan.node.damaged_lists)
        archives.find_again()
        if self.older:
            # Both refer to the segments of another history of this log, not to these files.
            self._plan.manifest = replace(self._plan.manifest, begins=(0, 0), epochs=())
            archives.adopt()
        below = archives.decide()
        SegmentPlanner(self._plan).decide(given_up=below is not None)
        if self.older or look_at_entries:
            self._look_at_entries()
        self._plan_manifest()
        if self.other_copy:
            reason = (
                f"{self.other_copy}. The copy has the entries of this folder and those of the "
                "snapshots; what else the other copy had is lost, and entries that a rewrite "
                "removed may be back"
            )
            plan.items.append(
                Item(self.node.folder, "node", "corrupt", COPIED, given_up=Extent(), what=reason)
            )

    def _put_strangers_aside(self) -> None:
        plan, manifest = self._plan, self._plan.manifest
        numbers = manifest.archived[1], manifest.newest, manifest.checkpoint.segment
        newest = max(*numbers, *(mark.segment for mark in plan.marks()))
        plan.node, strangers = without_strangers(plan.context, plan.view, plan.node, newest)
        for segment, why in strangers.items():
            reason = f"{why}; its bytes are kept in {plan.put_aside(segment)}"
            lost = Extent(bytes=segment.bytes)
            plan.items.append(
                Item(segment.path, "segment", "corrupt", GIVEN_UP, given_up=lost, what=reason)
            )

    @property
    def older(self) -> bool:
        """Whether the manifest in use is older than the files: the newer manifests are lost."""
        return self._lost_manifests > 0 or bool(self._evidence.newer)

    @property
    def number(self) -> int:
        """The number of the node's manifest in the copy."""
        return self._plan.node.number + self._lost_manifests + self._plan.changed

    @property
    def wal_id(self) -> str:
        """The id of the log, for the copy's folder of segments; "" if the manifest has none."""
        return self._plan.manifest.wal_id

    @property
    def manifest(self) -> NodeManifest | None:
        """The copy's manifest; None: the log's manifest is copied. Complete after `write`."""
        return self._plan.manifest if self._plan.changed else None

    @property
    def removed(self) -> Position:
        """The position in the copy above which it has all entries that are not given up."""
        return self._plan.manifest.removed

    @property
    def lists(self) -> tuple[ListFile, ...]:
        """The list files that the copy has: those of a manifest that is copied."""
        return () if self._plan.changed else self._plan.node.manifest.archives.lists

    @property
    def other_copy(self) -> str:
        """Why this is another copy of the log than the one that was opened, or that snapshots
        cover; "" if it is not."""
        view = self._plan.view
        return other_copy(self.node.name, self.node.manifest, view.manifest, view.opened)

    def position(self, place: Position) -> Position:
        """The position in the copy for a position of this log."""
        return self._plan.position(place)

    def mark(self, mark: LowWaterMark) -> LowWaterMark:
        """The mark in the copy for one of this node."""
        if mark.directory != self.node.manifest.directory:
            return mark
        reach = self._plan.view.manifest.reach_in(self.node.manifest)
        return replace(mark, position=self.position(reach(mark)))

    def cut(self, place: Position) -> Position:
        """The end in the copy for one before a lifetime. What another copy had then is not known:
        nothing of this log becomes void."""
        return END if self.other_copy else self.position(place)

    def write(self, target: SegmentStore) -> None:
        """Write archives, their lists and segments; the caller writes the manifests later."""
        _write_files(self._plan, target)
        for file in self.lists:
            path = layout.list_path(self.node.folder, file.name)
            target.create(path, self._plan.store.read(path))

    # ---- the manifest ----

    def _plan_manifest(self) -> None:
        name = f"{self._plan.node.folder}/manifest/{self._plan.node.number:010d}.json"
        if not self._plan.changed:
            self._plan.items.append(Item(name, "manifest", "clean", COPIED))
            self._plan.items += [
                Item(layout.list_path(self.node.folder, file.name), "list", "clean", COPIED)
                for file in self.lists
            ]
            return
        manifest = self._plan.manifest
        # That of an older manifest may be of another history, and name no frame of this one.
        checkpoint = (
            START if self.older else min(self._plan.position(manifest.checkpoint), self._plan.end)
        )
        if checkpoint == START or checkpoint.segment <= manifest.archived[1]:
            checkpoint = max(
                checkpoint, min(manifest.checkpoint, Position(*manifest.archived, 0, 0))
            )
        # Each lost manifest may have assigned an epoch and a session that are in no file name.
        self._plan.manifest = replace(
            manifest.with_sessions_ended(),
            archives=Listed(archive for archive, *_ in self._plan.archives),
            checkpoint=checkpoint,
            removed=self._plan.position(manifest.removed),
            clean=False,
            epoch=max(manifest.epoch + self._lost_manifests, self._evidence.epoch),
            session=max(manifest.session + self._lost_manifests, self.highest.session),
            newest=self._plan.newest,
            epochs=self._plan.epochs(),
            begins=(0, 0),  # the copy has only what counts, and no replaced writer writes there
            cluster=NOTHING_SEEN,
        )
        status, lost, reason = self._about_manifest()
        to = f"{self._plan.node.folder}/manifest/{self.number:010d}.json"
        self._plan.items.append(
            Item(name, "manifest", status, REWRITTEN, given_up=lost, what=reason, to=to)
        )

    def _about_manifest(self) -> tuple[str, Extent | None, str]:
        """For the report: the state of the manifest, what is lost with it, and a text."""
        if self._lost_manifests:
            reason = (
                f"the newest manifest cannot be read; number {self._plan.node.number} is "
                "used in its place, with the files beside it"
            )
            return "corrupt", Extent(), reason
        if self._evidence.newer:
            reason = (
                f"this manifest is older than the files beside it ({self._evidence.newer}); the "
                "copy has the entries of these files"
            )
            return "corrupt", Extent(), reason
        reason = (
            "changed to fit the files that are kept; the next open reads the log from the "
            "checkpoint on"
        )
        return "clean", None, reason

    def _look_at_entries(self) -> None:
        """Fill `highest` from all entries that can be read."""
        highest = self.highest
        for archive, *_ in self._plan.archives:
            for row in salvage.rows_of(
                self._plan.context,
                self._plan.sources.get(archive.path, archive.path),
                log=self._plan.manifest.directory,
            ):
                highest = highest.with_row(row)
        for segment in self._plan.wal().segments:
            with suppress(UnsupportedVersion, EncryptionError):  # the latter was put aside
                scan = scan_segment(
                    self._plan.context, segment.path, self._plan.view.home(self._plan.node, segment)
                )
                data = self._plan.store.read(segment.path)
                for place in scan.frames:
                    if place.kind in format.OF_ENTRIES:
                        for row in _readable(scan.payload(data, place), place.count):
                            highest = highest.with_row(row)
        self.highest = highest


def _readable(payload: bytes, count: int) -> list[Row]:
    """The entries of a frame that a reader accepts; a repair does not report another frame."""
    try:
        return entry.decoded(payload, count)
    except ValueError:
        return []


# ---- the files of the copy ----


def _write_files(plan: NodePlan, target: SegmentStore) -> None:
    """Write all files but the manifest, and complete the manifest in the plan."""
    archives = []
    for archive, below, rewritten in plan.archives:
        plan.tell(archive.path)
        if rewritten:
            source = plan.sources.get(archive.path, archive.path)
            size, crc = salvage.rewrite_file(
                plan.context,
                source,
                target,
                archive.path,
                log=plan.manifest.directory,
                below=below,
            )
            archives.append(replace(archive, bytes=size, checksum=crc))
        else:
            salvage.copy_file(plan.store, archive.path, target)
            archives.append(archive)
    plan.manifest = replace(plan.manifest, archives=Listed(archives))
    for write in plan.writes:
        plan.tell(write.path)
        target.create(write.path, _content(plan, write))


def _content(plan: NodePlan, write: Write) -> bytes:
    if not write.source:
        return write.head
    data = plan.store.read(write.source)
    scan = write.scan
    if scan is None:
        return write.head + data[len(write.head) : write.until]
    chunks, offset = [write.head], len(write.head)
    for frame in write.places:
        payload = [scan.payload(data, frame)]
        encoded, length = _frame_of(
            plan, write.head, write.path, offset, frame.kind, frame.count, payload
        )
        chunks += encoded
        offset += length
    return b"".join(chunks)


def _frame_of(
    plan: NodePlan, head: bytes, path: str, offset: int, kind: int, count: int, payload: list[bytes]
) -> tuple[list[bytes], int]:
    """The chunks of a frame in a segment with that header, and their length. Raises the errors of
    `decode_header`, `EncryptionError` if its key is missing, and `TooLarge`."""
    header, _ = format.decode_header(head, path)
    keys = plan.context.keys
    cipher = cipher_of(keys, header, head, path, plan.randomness) if header.key_id else None
    if cipher is not None:
        payload = cipher.seal(offset, kind, count, offset, payload)
    # All bytes before the frame are durable when the file appears: damage there is corruption.
    chunks, length, _ = format.encode_frame(
        header.checksum_seed, offset, kind, count, offset, payload
    )
    return chunks, length


# Decides which archives of one node's log the repaired copy has, and which of their entries.


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
