"""The repair of one node's log: `plan` reads all of it and says what becomes of every file, `write`
does it.

Archives come before segments in a node's log. Damage in one of them ends a point-in-time repair
there: of the other archives only what is older is kept, and of the segments nothing. Segments keep
their numbers, empty where nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import msgpack

from imap_wal import entry, format, layout
from imap_wal.clock import Clock, Randomness
from imap_wal.encryption import SEAL_BYTES, cipher_of, keys_of, resealed, sealed
from imap_wal.entry import ORDER, Row
from imap_wal.errors import NotRepairable, UnsupportedVersion
from imap_wal.format import START, Home, Position, SegmentHeader
from imap_wal.inspect import older_manifests
from imap_wal.inspect.inventory import ClusterView, NodeView
from imap_wal.manifest.evidence import Evidence
from imap_wal.manifest.node import NOTHING_SEEN, Archive, NodeManifest
from imap_wal.parquet import salvage
from imap_wal.parquet.file import checksum
from imap_wal.repair.report import (
    COPIED,
    EMPTIED,
    GIVEN_UP,
    LEFT_OUT,
    POINT_IN_TIME,
    REWRITTEN,
    TRIMMED,
    Extent,
    Item,
)
from imap_wal.repair.segment import (
    Segment,
    cleared,
    dropped,
    find_missing_ends,
    look_at,
    pieces_of,
    renamed,
    text,
)
from imap_wal.segment.listing import SegmentFile, WalFolder, sorted_out
from imap_wal.segment.salvage import Place, Scan, scan_segment
from storage_backends import NotFound, SegmentStore

MISSING_MAX = 10_000
"""More missing segments are no damage: a foreign file has a name like a segment's."""
_CHANGED = -1
"""In place of the checksum of a segment's last frame: in the copy it is not what it was."""


class Highest(NamedTuple):
    """The highest numbers in the orders of entries."""

    incarnation: int = 0
    session: int = 0

    def with_row(self, row: Row) -> Highest:
        incarnation, _, session, _ = row[ORDER]
        return Highest(max(self.incarnation, incarnation), max(self.session, session))


@dataclass(frozen=True, slots=True)
class _Write:
    """How a segment comes into the copy. `places` (of a rewritten one): the frames, each at its new
    offset."""

    path: str
    head: bytes
    """Stands for the first so many bytes of the original; b"" for the original's own."""
    source: str = ""
    until: int | None = 0
    """The original from behind `head` to here, byte for byte; None: all of it."""
    places: tuple[Place, ...] = ()
    drops: frozenset[Position] = frozenset()
    """Entries that are not written."""
    scan: Scan | None = None
    """Of a rewritten one."""


@dataclass
class NodeRepair:
    """See the module."""

    store: SegmentStore
    view: ClusterView
    node: NodeView
    mode: str
    clock: Clock
    randomness: Randomness
    tell: Callable[[str], None]
    lost_manifests: int = 0
    """So many newer manifests cannot be read."""
    drops: frozenset[Position] = frozenset()
    """Entries to set aside."""
    items: list[Item] = field(default_factory=list)
    _aside: dict[str, bytes] = field(default_factory=dict)
    """Path in the copy → bytes of an entry that was set aside."""
    _archives: list[tuple[Archive, Position | None, bool]] = field(default_factory=list)
    """Archives of the copy, with what of them is kept (None: all), and whether the file is written
    anew."""
    _sources: dict[str, str] = field(default_factory=dict)
    """Path of a rewritten archive in the copy → in the log."""
    _writes: list[_Write] = field(default_factory=list)
    _moved: dict[tuple[int, int], list[tuple[Position, Position]]] = field(default_factory=dict)
    """Of a rewritten segment: the old and the new places of its kept frames."""
    _cut: dict[tuple[int, int], Position] = field(default_factory=dict)
    """Of a segment whose end is missing: its last frame."""
    _end: Position = START
    _newest: int = 0
    """Number of the copy's last segment."""
    _evidence: Evidence = field(default_factory=lambda: Evidence(0))
    highest: Highest = field(default_factory=Highest)
    """Where an older manifest is used: the highest numbers in the entries."""
    _changed: bool = False
    _manifest: NodeManifest = field(default_factory=NodeManifest)

    def plan(self, *, look_at_entries: bool = False) -> None:
        """Read everything; `items` then tells. `look_at_entries`: fill `highest` in any case.
        `UnsupportedVersion`: a newer version wrote it, nothing is damaged."""
        self._manifest = self.node.manifest
        self._evidence = older_manifests.of_node(
            self.node, self._manifest, self.view.manifest, self.view.opened
        )
        self._changed = self.older
        if self.older:
            # Where an epoch of another history of this log began says nothing about these files.
            self._manifest = replace(self._manifest, begins=(0, 0))
            self._adopt_archives()
            if self.made:
                self._begin_where_segments_do()
        below = self._plan_archives()
        self._plan_segments(given_up=below is not None)
        if self.older or look_at_entries:
            self._look_at_entries()
        self._plan_manifest()

    @property
    def older(self) -> bool:
        """The manifest that is used is older than the files: newer manifests are lost, or all."""
        return self.lost_manifests > 0 or bool(self._evidence.newer) or self.made

    @property
    def made(self) -> bool:
        """No manifest is left: the one that is used was made from the files, see
        `imap_wal.repair.manifest`."""
        return not self.node.manifest_number

    @property
    def number(self) -> int:
        """Of the node's manifest in the copy."""
        return self.node.manifest_number + self.lost_manifests + self._changed

    @property
    def wal_id(self) -> str:
        """Of the copy's folder of segments; "" where its manifest does not say."""
        return self._manifest.wal_id

    @property
    def manifest(self) -> NodeManifest | None:
        """Of the copy; None: as it is. Whole after `write`."""
        return self._manifest if self._changed else None

    def position(self, place: Position) -> Position:
        """What a position of this log is in the copy: that of the last kept entry at or below it in
        the same segment."""
        frames = self._moved.get(place[:2])
        if frames is None:
            return min(place, self._cut.get(place[:2], place))
        below = [pair for pair in frames if pair[0].frame <= place.frame]
        if not below:
            return place._replace(frame=0, index=0)
        old, new = below[-1]
        return new._replace(index=place.index) if old.frame == place.frame else new

    def write(self, target: SegmentStore) -> None:
        """Archives and segments; the manifests are the caller's, later."""
        archives = []
        for archive, below, anew in self._archives:
            self.tell(archive.path)
            if anew:
                source = self._sources.get(archive.path, archive.path)
                size, crc = salvage.rewrite_file(
                    self.store,
                    source,
                    target,
                    archive.path,
                    log=self._manifest.directory,
                    below=below,
                )
                archives.append(replace(archive, bytes=size, checksum=crc))
            else:
                salvage.copy_file(self.store, archive.path, target)
                archives.append(archive)
        self._manifest = replace(self._manifest, archives=tuple(archives))
        for write in self._writes:
            self.tell(write.path)
            target.create(write.path, self._content(write))
        for path, content in self._aside.items():
            target.create(path, content)

    # ---- archives ----

    def _plan_archives(self) -> Position | None:
        """Returns where a point-in-time repair ends because of them: only entries below are
        kept."""
        found = [(archive, *self._look_at_archive(archive)) for archive in self._manifest.archives]
        below: Position | None = None
        if self.mode == POINT_IN_TIME:
            ends = [
                kept.end or archive.first._replace(index=0)
                for archive, _, kept in found
                if kept is not None and kept.lost != 0
            ]
            below = min(ends, default=None)
        for archive, status, damaged in found:
            late = below is not None and archive.last >= below
            if damaged is None and not late:
                self._archives.append((archive, None, False))
                whole = Extent(
                    str(archive.first), str(archive.last), None, archive.records, archive.bytes
                )
                self.items.append(Item(archive.path, "archive", status, COPIED, whole))
                continue
            self._changed = True
            kept = damaged
            if late or kept is None:
                kept = salvage.survey_file(
                    self.store, archive.path, log=self._manifest.directory, below=below
                )
            self._rewrite_archive(
                archive, kept, status, damaged.what if damaged is not None else "", below
            )
        return below

    def _look_at_archive(self, archive: Archive) -> tuple[str, salvage.Salvaged | None]:
        """None: it is whole."""
        self.tell(archive.path)
        try:
            with self.store.open_input(archive.path) as file:
                whole = archive.checksum != 0 and checksum(file) == archive.checksum
        except NotFound:
            whole = False
        if whole:
            return "clean", None
        kept = salvage.survey_file(self.store, archive.path, log=self._manifest.directory)
        if not archive.checksum and not kept.what and kept.records == archive.records:
            return "clean", None
        return "corrupt", kept._replace(lost=archive.records - kept.records)

    def _rewrite_archive(
        self,
        archive: Archive,
        kept: salvage.Salvaged,
        status: str,
        damage: str,
        below: Position | None,
    ) -> None:
        lost = archive.records - kept.records
        what = damage or (
            "its bytes do not match the checksum that the manifest has of them"
            if status == "corrupt"
            else f"it goes on behind {below}"
        )
        given_up = None
        if lost:
            begins = [
                place for place in (kept.end if kept.what else below, below) if place is not None
            ]
            first = str(max(archive.first, min(begins, default=archive.first)))
            given_up = Extent(first, str(archive.last), None, lost, None)
        if kept.first is None or kept.last is None:
            self.items.append(
                Item(archive.path, "archive", status, GIVEN_UP, given_up=given_up, what=what)
            )
            return
        path = layout.archive_path(
            self.node.folder, archive.map, kept.first, kept.last, self._manifest.epoch, "0"
        )
        copy = replace(
            archive,
            path=path,
            first=kept.first,
            last=kept.last,
            records=kept.records,
            tombstones=kept.tombstones,
        )
        self._sources[path] = archive.path
        self._archives.append((copy, below, True))
        extent = Extent(str(kept.first), str(kept.last), None, kept.records, None)
        to = path if path != archive.path else ""
        self.items.append(
            Item(archive.path, "archive", status, REWRITTEN, extent, given_up, what, to)
        )

    def _adopt_archives(self) -> None:
        """For an older manifest. Archives that it does not know, and whose segments are gone, were
        published: segments are deleted only after that. What segments still hold is read from them,
        even if such an archive has it too."""
        manifest, wal = self._manifest, self._wal()
        known = {archive.path for archive in manifest.archives}
        unknown = []
        for file in self.node.files:
            name = layout.parse_archive_path(file.path)
            if name is not None and file.path not in known and name.last[:2] > manifest.archived:
                unknown.append((file, name))
        first = self._first_left(wal, [name for _, name in unknown])
        if first is not None and first.number == manifest.archived[1] + 1:
            return  # no segment is gone
        requests = dict(manifest.requests)
        found = []
        for file, name in unknown:
            if first is not None and name.first.segment >= first.number:
                continue
            map_name = salvage.map_of(
                self.store, file.path, file.path.split("/")[-2], [], log=self._manifest.directory
            )
            if not map_name:
                continue
            rows = salvage.survey_file(self.store, file.path, log=self._manifest.directory)
            found.append(
                Archive(
                    map_name,
                    file.path,
                    name.first,
                    name.last,
                    rows.records,
                    rows.tombstones,
                    file.size,
                )
            )
            for row in salvage.rows_of(self.store, file.path, log=self._manifest.directory):
                _, _, session, request = row[ORDER]
                requests[session] = max(request, requests.get(session, 0))
        if not found:
            return
        last = max(archive.last for archive in found)
        archived = (last.epoch, last.segment) if first is None else (first.epoch, first.number - 1)
        self._manifest = replace(
            manifest, archives=(*manifest.archives, *found), archived=archived, requests=requests
        )

    def _first_left(self, wal: WalFolder, unknown: list[layout.ArchiveName]) -> SegmentFile | None:
        """The first segment that is not archived. A storage that cannot append keeps the last small
        object of each epoch, archived or not (`layout.fences`): where segments after it are gone,
        and an archive has what they held, it was archived too."""
        segments = wal.segments
        first = segments[0] if segments else None
        if self.store.capabilities.durable_append:
            return first
        in_wal = [
            file for file in self.node.files if file.path.startswith(f"{self.node.folder}/wal/")
        ]
        kept = layout.fences(in_wal, segments[-1].epoch + 1) if segments else set()
        for segment, following in pairwise(segments):
            if segment.path not in kept:
                break
            gone = segment.number + 1, following.number - 1
            if gone[0] <= gone[1] and any(
                name.first.segment <= gone[1] and name.last.segment >= gone[0] for name in unknown
            ):
                first = following
        return first

    def _begin_where_segments_do(self) -> None:
        """For a manifest that was made: segments before the first one that is here were archived,
        or removed because a snapshot covers them; that none was lost, no file says. Reading in
        order is whole only after them."""
        wal = self._wal()
        if wal.segments and wal.segments[0].number > self._manifest.archived[1] + 1:
            first = wal.segments[0]
            self._manifest = replace(self._manifest, archived=(first.epoch, first.number - 1))
        if self._manifest.archived[1]:
            self._manifest = replace(
                self._manifest, removed=Position(*self._manifest.archived, 0, 0)
            )

    def _wal(self) -> WalFolder:
        return sorted_out(
            (file for file in self.node.files if file.path.startswith(f"{self.node.folder}/wal/")),
            self._manifest.archived,
            self._manifest.begins,
        )

    # ---- segments ----

    def _plan_segments(self, *, given_up: bool) -> None:
        manifest, folder = self._manifest, self.node.folder
        wal = self._wal()
        misplaced = older_manifests.misplaced_wal(self.node)
        if misplaced:
            self._changed = True
            self.items.append(
                Item(
                    f"{folder}/wal", "node", "missing", GIVEN_UP, given_up=Extent(), what=misplaced
                )
            )
            wal = WalFolder(())
        for segments, what in (
            (wal.void, "begun by a writer that had been replaced: nothing in it counts"),
            (wal.copied, "a recovery made a copy of it, which counts instead"),
        ):
            self.items += [
                Item(each.path, "segment", "clean", LEFT_OUT, what=what) for each in segments
            ]
        living = wal.segments
        found: dict[int, Segment] = {}
        for index, segment in enumerate(living):
            self.tell(segment.path)
            found[segment.number] = look_at(
                self.store,
                segment,
                self.view.home(self.node, segment),
                manifest,
                newest=index == len(living) - 1,
            )
        find_missing_ends(found)
        before: int | None = None
        # A missing segment keeps its name where one is known: a mark in it is then not above the
        # log's end. Another one gets the epoch of what is known before it, or else after it: epochs
        # never fall.
        marks = self._marks()
        epochs = {
            place.segment: place.epoch for place in (*marks, manifest.checkpoint) if place.epoch
        }
        known = {**epochs, **{number: segment.epoch for number, segment in found.items()}}
        epoch = manifest.archived[0] or (known[min(known)] if known else 0)
        # If this folder was put back from an older copy, the marks name later segments.
        last_number = max(
            [
                *found,
                manifest.checkpoint.segment,
                manifest.newest,
                *(mark.segment for mark in marks),
            ]
        )
        if last_number - manifest.archived[1] - len(found) > MISSING_MAX:
            raise NotRepairable(
                f"{folder}/wal: of {last_number} segments there are {len(found)}; if one "
                "with a strange number is not of this log, move it away"
            )
        for number in range(manifest.archived[1] + 1, last_number + 1):
            planned = found.get(number)
            if planned is None:
                epoch = epochs.get(number, epoch)
                path = layout.wal_path(folder, epoch, number)
                planned = Segment(
                    path,
                    epoch,
                    number,
                    status="missing",
                    what="this segment is missing: the log goes on after it",
                )
            if planned.torn and planned.scan is not None and planned.scan.header is None:
                what = "a crash before its first commit: nothing was ever in it"
                self.items.append(Item(planned.path, "segment", "torn-tail", LEFT_OUT, what=what))
                continue
            epoch = planned.epoch
            self._newest = number
            before = self._plan_segment(planned, before, given_up=given_up)
            given_up = given_up or (self.mode == POINT_IN_TIME and planned.damaged and planned.lost)
        if not found and manifest.checkpoint[:2] <= manifest.archived:
            self._end = manifest.checkpoint

    def _marks(self) -> list[Position]:
        """The positions up to which snapshots cover this log."""
        marks = (
            snapshot.marks.get(self.node.name) for snapshot in self.view.manifest.snapshots.values()
        )
        return [
            mark.position
            for mark in marks
            if mark is not None and mark.directory == self._manifest.directory
        ]

    def _plan_segment(self, segment: Segment, before: int | None, *, given_up: bool) -> int | None:
        """Decide, note, and return what the next header may say of this one's last frame."""
        place = segment.epoch, segment.number
        all_frames = Extent(
            text(segment.first), text(segment.last), segment.frames, segment.records, segment.bytes
        )
        if given_up:
            self._changed = True
            self._note_empty(
                segment, segment.everything(), segment.what or "it stands behind the first damage"
            )
            return before if segment.checksum == 0 else _CHANGED
        drops = frozenset(each for each in self.drops if each[:2] == place)
        if drops and segment.status == "clean":
            self._changed = True
            self._plan_drops(segment, drops, before)
            return _CHANGED
        if drops:
            raise NotRepairable(
                f"{segment.path} is damaged ({segment.what}): repair it first, then drop "
                "entries from the copy"
            )
        if segment.status == "clean" or (
            segment.header is not None and segment.end_missing is not None
        ):
            self._plan_copy(segment, before, None)
            lost = None
            if segment.end_missing is not None:
                self._changed = True
                self._cut[place] = segment.last or Position(*place, 0, 0)
                lost = Extent(
                    str(Position(*place, segment.end, 0)),
                    text(segment.end_missing if segment.end_missing > START else None),
                )
            self.items.append(
                Item(
                    segment.path, "segment", segment.status, COPIED, all_frames, lost, segment.what
                )
            )
            self._end = max(self._end, segment.last or START)
            if segment.end_missing is not None and before is None:
                return segment.checksum or _CHANGED  # the next header names a frame that is lost
            return segment.checksum or before
        if segment.torn and segment.scan is not None:
            self._plan_copy(segment, before, segment.end)
            self.items.append(
                Item(
                    segment.path, "segment", segment.status, TRIMMED, all_frames, what=segment.what
                )
            )
            self._end = max(self._end, segment.last or START)
            return segment.checksum or before
        self._changed = True
        scan = segment.scan
        frames = scan.frames if scan is not None else []
        if scan is not None and self.mode == POINT_IN_TIME and scan.gaps:
            frames = [frame for frame in frames if frame.offset < scan.gaps[0].start]
        if scan is None or not frames:
            self._note_empty(segment, segment.everything(), segment.what)
            return _CHANGED
        self._plan_rewrite(segment, scan, frames, before)
        return _CHANGED

    def _plan_drops(self, segment: Segment, drops: frozenset[Position], before: int | None) -> None:
        """An undamaged segment without some entries. The bytes of each go to a separate file.
        `NotRepairable` if there is no such entry."""
        scan = scan_segment(
            self.store,
            segment.path,
            Home(
                *self.view.names(self.node), self._manifest.directory, segment.epoch, segment.number
            ),
        )
        data = self.store.read(segment.path)
        for drop in sorted(drops):
            frame = next(
                (
                    each
                    for each in scan.frames
                    if each.offset == drop.frame and drop.index < each.entries
                ),
                None,
            )
            if frame is None:
                raise NotRepairable(
                    f"{segment.path} has no entry at {drop}; `imap-wal verify` and `imap-wal "
                    "dump` name positions"
                )
            piece = pieces_of(scan.payload(data, frame), frame, segment.path)[drop.index]
            path = f"{self.node.folder}/lost/dropped-{drop}.{'wal' if scan.cipher else 'msgpack'}"
            self._aside[path] = self._alone(segment, frame, piece) if scan.cipher else piece
            self.items.append(
                Item(
                    path,
                    "lost",
                    "clean",
                    REWRITTEN,
                    Extent(records=1),
                    what=f"the entry at {drop} of {segment.path}, set aside",
                )
            )
        self._plan_rewrite(segment, scan, scan.frames, before, drops)

    def _plan_copy(self, segment: Segment, before: int | None, until: int | None) -> None:
        assert segment.header is not None
        said = segment.header.previous_checksum
        head = b""
        if said and before is not None and said != before:
            head = resealed(
                self.store, cleared(self.store.read(segment.path, 0, 4096)), segment.path
            )
        self._writes.append(_Write(segment.path, head, segment.path, until))

    def _plan_rewrite(
        self,
        segment: Segment,
        scan: Scan,
        frames: list[Place],
        before: int | None,
        drops: frozenset[Position] = frozenset(),
    ) -> None:
        place = segment.epoch, segment.number
        if scan.header is None:
            head = self._header(segment)
        else:
            said = scan.header.previous_checksum
            head = renamed(
                scan.raw, self.randomness.token()
            )  # of the same length: what stands before the damage keeps its place
            if said and before is not None and said != before:
                head = cleared(head)
            head = resealed(self.store, head, segment.path)
        moved: list[tuple[Position, Position]] = []
        data = self.store.read(segment.path) if drops else b""
        offset = len(head)
        more = SEAL_BYTES * (format.says_encrypted(head) - (scan.cipher is not None))
        for frame in frames:
            index = max(frame.count - 1, 0)
            moved.append((Position(*place, frame.offset, index), Position(*place, offset, index)))
            size = frame.end - frame.offset
            offset += (
                size
                + more
                - sum(map(len, dropped(scan, data, frame, drops, segment.path).values()))
            )
        self._moved[place] = moved
        self._end = max(self._end, moved[-1][1])
        self._writes.append(_Write(segment.path, head, segment.path, 0, tuple(frames), drops, scan))
        kept = Extent(
            str(moved[0][0]._replace(index=0)),
            str(moved[-1][0]),
            len(frames),
            sum(frame.entries for frame in frames),
            sum(frame.end - frame.offset for frame in frames),
        )
        lost = None
        if scan.gaps and self.mode == POINT_IN_TIME:
            lost = segment.everything(frames)
        elif scan.gaps:
            lost = segment.gaps()
        what = segment.what
        if drops:
            kept = replace(kept, records=(kept.records or 0) - len(drops))
            lost = Extent(str(min(drops)), str(max(drops)), 0, len(drops), None)
            what = f"without {len(drops)} dropped entries; each is kept in {self.node.folder}/lost"
        self.items.append(
            Item(segment.path, "segment", segment.status, REWRITTEN, kept, lost, what)
        )

    def _note_empty(self, segment: Segment, lost: Extent | None, what: str) -> None:
        self._writes.append(_Write(segment.path, self._header(segment)))
        self._moved[segment.epoch, segment.number] = []
        self.items.append(
            Item(segment.path, "segment", segment.status, EMPTIED, given_up=lost, what=what)
        )

    def _header(self, segment: Segment) -> bytes:
        view, manifest = self.view, self._manifest
        created_ms = (
            segment.header.created_ms if segment.header is not None else self.clock.now_ms()
        )
        header = SegmentHeader(
            self.randomness.token(),
            view.namespace,
            view.cluster,
            self.node.name,
            segment.epoch,
            segment.number,
            0,
            created_ms,
            manifest.directory,
        )
        return sealed(keys_of(self.store).ring, header, self.randomness)[0].encode()

    def _alone(self, segment: Segment, frame: Place, piece: bytes) -> bytes:
        """One entry of an encrypted segment, as a segment of its own."""
        head = self._header(segment)
        chunks, _ = self._frame(head, segment.path, len(head), frame.kind, 1, [piece])
        return b"".join([head, *chunks])

    def _frame(
        self, head: bytes, path: str, offset: int, kind: int, count: int, payload: list[bytes]
    ) -> tuple[list[bytes], int]:
        """The chunks of a frame in a segment with that header, and their length."""
        header, _ = format.decode_header(head, path)
        cipher = (
            cipher_of(self.store, header, head, path, self.randomness) if header.key_id else None
        )
        if cipher is not None:
            payload = cipher.seal(offset, kind, count, offset, payload)
        # All before it is safe when the file appears: damage below it is corruption from then on.
        chunks, length, _ = format.encode_frame(
            header.checksum_seed, offset, kind, count, offset, payload
        )
        return chunks, length

    def _content(self, write: _Write) -> bytes:
        if not write.source:
            return write.head
        data = self.store.read(write.source)
        scan = write.scan
        if scan is None:
            return write.head + data[len(write.head) : write.until]
        chunks, offset = [write.head], len(write.head)
        for frame in write.places:
            gone = dropped(scan, data, frame, write.drops, write.path)
            payload = [scan.payload(data, frame)]
            if gone:
                payload = [
                    each
                    for index, each in enumerate(pieces_of(payload[0], frame, write.path))
                    if index not in gone
                ]
            encoded, length = self._frame(
                write.head, write.path, offset, frame.kind, frame.count - len(gone), payload
            )
            chunks += encoded
            offset += length
        return b"".join(chunks)

    # ---- the manifest ----

    def _plan_manifest(self) -> None:
        name = f"{self.node.folder}/manifest" + (
            "" if self.made else f"/{self.node.manifest_number:010d}.json"
        )
        if not self._changed:
            self.items.append(Item(name, "manifest", "clean", COPIED))
            return
        manifest = self._manifest
        checkpoint = min(self.position(manifest.checkpoint), self._end)
        if checkpoint == START or checkpoint.segment <= manifest.archived[1]:
            checkpoint = max(
                checkpoint, min(manifest.checkpoint, Position(*manifest.archived, 0, 0))
            )
        # Of each lost manifest, it may have given an epoch and a session that no file names.
        self._manifest = replace(
            manifest,
            archives=tuple(archive for archive, *_ in self._archives),
            checkpoint=checkpoint,
            removed=self.position(manifest.removed),
            clean=False,
            epoch=max(manifest.epoch + self.lost_manifests, self._evidence.epoch),
            session=max(manifest.session + self.lost_manifests, self.highest.session),
            newest=self._newest,
            begins=(0, 0),  # the copy holds what counts, and no replaced writer knows of it
            cluster=NOTHING_SEEN,
        )
        what = "made to fit what is kept; the next open reads the log from the checkpoint on"
        status, lost = "clean", None
        if self.made:
            status, lost = "missing", Extent()
            what = (
                "no manifest of this node can be read: this one is made from the names and "
                "headers of its files; they do not say "
            )
            what += (
                f"whether segments after number {self._newest} are missing, nor the schemas of "
                "Compact values in archived segments"
            )
            if manifest.archived[1]:
                what += (
                    f"; segments 1 to {manifest.archived[1]} are not here: what no archive and "
                    "no snapshot has of them is lost"
                )
        elif self.lost_manifests:
            status, lost = "corrupt", Extent()
            what = (
                f"the newest manifest cannot be read; number {self.node.manifest_number} is used "
                "in its place, with the files beside it"
            )
        elif self._evidence.newer:
            status, lost = "corrupt", Extent()
            what = (
                f"this manifest is older than the files beside it ({self._evidence.newer}); the "
                "copy has what they hold"
            )
        to = f"{self.node.folder}/manifest/{self.number:010d}.json"
        self.items.append(
            Item(name, "manifest", status, REWRITTEN, given_up=lost, what=what, to=to)
        )

    def _look_at_entries(self) -> None:
        """Fill `highest`, from all that can be read."""
        found = self.highest
        for archive, *_ in self._archives:
            for row in salvage.rows_of(
                self.store,
                self._sources.get(archive.path, archive.path),
                log=self._manifest.directory,
            ):
                found = found.with_row(row)
        for segment in self._wal().segments:
            with suppress(UnsupportedVersion):
                scan = scan_segment(self.store, segment.path, self.view.home(self.node, segment))
                data = self.store.read(segment.path)
                for place in scan.frames:
                    if place.kind in format.OF_ENTRIES:
                        for row in _readable(scan.payload(data, place), place.count):
                            found = found.with_row(row)
        self.highest = found


def _readable(payload: bytes, count: int) -> list[Row]:
    """The entries that a reader takes; a repair does not report the others."""
    try:
        return entry.decoded(payload, count)
    except ValueError:
        found = []
        with suppress(ValueError, TypeError, msgpack.UnpackException):
            for row in entry.rows(payload):
                with suppress(ValueError):
                    found.append(entry.mended(row)[0])
        return found
