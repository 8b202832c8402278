"""Decides which segments of one node's log the repaired copy has, and which of their frames."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from imap_wal import format, layout
from imap_wal.errors import EncryptionError, LogError, NotRepairable
from imap_wal.format import START, Position
from imap_wal.manifest.epochs import ids
from imap_wal.manifest.missing import SEGMENT_MISSING
from imap_wal.repair.node_plan import NodePlan, Write
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
    find_missing_ends,
    look_at,
    renamed,
    text,
)
from imap_wal.repair.strangers import MISSING_MAX, is_foreign
from imap_wal.security.encryption import SEAL_BYTES, resealed
from imap_wal.segment.listing import SegmentFile, WalFolder
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.salvage import Scan, WholeFrame
from storage_backends import NotFound

_CHANGED = -1
"""Instead of the checksum of a segment's last frame: that frame is different in the copy."""


class SegmentPlanner:
    """Fills the segments of a node's plan, from the oldest to the newest."""

    def __init__(self, plan: NodePlan) -> None:
        self._plan = plan

    def decide(self, *, given_up: bool) -> None:
        """Decide for each segment. `given_up`: nothing of them is kept. Raises `NotRepairable` if
        too many segments are missing."""
        manifest, folder = self._plan.manifest, self._plan.node.folder
        segments = self._found()
        epochs = self._known_epochs()
        last_number = self._last_number(segments)
        # A missing segment keeps its name if that is known: then no low-water mark in it is above
        # the end of the log. Otherwise it gets the epoch of the last known segment before it, or
        # else of the first one after it: epochs never decrease.
        all_epochs = {**epochs, **{number: segment.epoch for number, segment in segments.items()}}
        epoch = manifest.archived[0] or (all_epochs[min(all_epochs)] if all_epochs else 0)
        before: int | None = None
        for number in range(manifest.archived[1] + 1, last_number + 1):
            planned = segments.get(number)
            if planned is None:
                epoch = epochs.get(number, epoch)
                path = layout.wal_path(folder, epoch, number)
                planned = Segment(
                    path,
                    epoch,
                    number,
                    status="missing",
                    what=SEGMENT_MISSING,
                )
            if planned.torn and planned.scan is not None and planned.scan.header is None:
                reason = "a crash before its first commit: it never had an entry"
                self._plan.items.append(
                    Item(planned.path, "segment", "torn-tail", LEFT_OUT, what=reason)
                )
                continue
            epoch = planned.epoch
            self._plan.newest = number
            before = self._decide(planned, before, given_up=given_up)
            given_up = given_up or (
                self._plan.mode == POINT_IN_TIME and planned.damaged and planned.lost
            )
        if not segments and manifest.checkpoint[:2] <= manifest.archived:
            self._plan.end = manifest.checkpoint

    def _found(self) -> dict[int, Segment]:
        """The segments that count, by number, and items for the others."""
        plan = self._plan
        wal = plan.wal()
        misplaced = plan.node.misplaced
        if misplaced:
            plan.changed = True
            path = f"{plan.node.folder}/wal"
            plan.items.append(
                Item(path, "node", "missing", GIVEN_UP, given_up=Extent(), what=misplaced)
            )
            wal = WalFolder(())
        plan.items += [self._left_out(segment, reason) for segment, reason in wal.left_out]
        living = wal.segments
        by_number: dict[int, Segment] = {}
        for index, segment in enumerate(living):
            plan.tell(segment.path)
            by_number[segment.number] = self._look_at(segment, newest=index == len(living) - 1)
        find_missing_ends(by_number)
        return by_number

    def _left_out(self, segment: SegmentFile, reason: str) -> Item:
        """The item of a segment that does not count because of its name. If its epoch has another
        id here, it is of another copy of this log, which was written too: it is put aside."""
        plan = self._plan
        epoch_ids = ids(plan.manifest.epochs, segment.epoch)
        with suppress(LogError, NotFound):
            header = SegmentReader(plan.store, segment.path).header
            if epoch_ids and header.epoch_id not in epoch_ids:
                reason = (
                    "it is of another copy of this log, and what only it has is not in this one; "
                    f"its bytes are kept in {plan.put_aside(segment)}"
                )
                lost = Extent(bytes=segment.bytes)
                return Item(
                    segment.path, "segment", "corrupt", GIVEN_UP, given_up=lost, what=reason
                )
        return Item(segment.path, "segment", "clean", LEFT_OUT, what=reason)

    def _known_epochs(self) -> dict[int, int]:
        """Segment number → its epoch, from the manifests."""
        places = (*self._plan.marks(), self._plan.manifest.checkpoint)
        return {place.segment: place.epoch for place in places if place.epoch}

    def _last_number(self, segments: Mapping[int, Segment]) -> int:
        """The highest number, including that of missing segments: if this folder was restored from
        an older copy, the marks are in later segments. Raises `NotRepairable` if too many are
        missing."""
        manifest = self._plan.manifest
        last = max(
            [
                *segments,
                manifest.checkpoint.segment,
                manifest.newest,
                *(mark.segment for mark in self._plan.marks()),
            ]
        )
        if last - manifest.archived[1] - len(segments) > MISSING_MAX:
            raise NotRepairable(
                f"{self._plan.node.folder}/wal: according to the manifests there are {last} "
                f"segments, but {len(segments)} are here: mount their disk, or bring them back "
                "from a copy; if the newest manifest is wrong, move it away"
            )
        return last

    def _look_at(self, segment: SegmentFile, *, newest: bool) -> Segment:
        """Read all of a segment. One that no key opens, or that is not encrypted, is put aside if
        `is_foreign`; otherwise raises `EncryptionError`."""
        plan = self._plan
        try:
            return look_at(
                plan.context,
                segment,
                plan.view.home(plan.node, segment),
                replace(
                    plan.view.place(plan.node, plan.manifest, segment, followed=not newest),
                    epoch_ids=(),
                ),
            )
        except EncryptionError as error:
            if not is_foreign(plan.context, plan.view, plan.node, error):
                raise
            if error.key_id or error.is_missing:
                reason = (
                    f"it is not of this log: {error.what}, although all keys with which this log "
                    "was written are given"
                )
            else:
                reason = f"{error.what}; {error.advice}, and repair again"
            reason += f"; its bytes are kept in {plan.put_aside(segment)}"
            return Segment(
                segment.path, segment.epoch, segment.number, segment.bytes, "corrupt", reason
            )

    def _decide(self, segment: Segment, before: int | None, *, given_up: bool) -> int | None:
        """Decide for one segment. `before`, and the result: the checksum of the last frame, which
        the header of the next segment names."""
        all_frames = Extent(
            text(segment.first), text(segment.last), segment.frames, segment.records, segment.bytes
        )
        if given_up:
            self._plan.changed = True
            self._note_empty(
                segment, segment.everything(), segment.what or "it is after the first damage"
            )
            return before if segment.checksum == 0 else _CHANGED
        if segment.status == "clean" or (
            segment.header is not None and segment.end_missing is not None
        ):
            return self._copy_all(segment, before, all_frames)
        if segment.torn and segment.scan is not None:
            self._copy(segment, before, segment.end)
            self._plan.items.append(
                Item(
                    segment.path, "segment", segment.status, TRIMMED, all_frames, what=segment.what
                )
            )
            self._plan.end = max(self._plan.end, segment.last or START)
            return segment.checksum or before
        self._plan.changed = True
        scan = segment.scan
        frames = scan.frames if scan is not None else []
        if scan is not None and self._plan.mode == POINT_IN_TIME and scan.gaps:
            frames = [frame for frame in frames if frame.offset < scan.gaps[0].start]
        if scan is None or not frames:
            self._note_empty(segment, segment.everything(), segment.what)
            return _CHANGED
        self._rewrite(segment, scan, frames, before)
        return _CHANGED

    def _copy_all(self, segment: Segment, before: int | None, all_frames: Extent) -> int | None:
        """Copy a segment of which at most the end is missing. Returns the same as `_decide`."""
        place = segment.epoch, segment.number
        self._copy(segment, before, None)
        lost = None
        if segment.end_missing is not None:
            self._plan.changed = True
            self._plan.cut[place] = segment.last or Position(*place, 0, 0)
            self._plan.differs(self._plan.cut[place])
            lost = Extent(
                str(Position(*place, segment.end, 0)),
                text(segment.end_missing if segment.end_missing > START else None),
            )
        self._plan.items.append(
            Item(segment.path, "segment", segment.status, COPIED, all_frames, lost, segment.what)
        )
        self._plan.end = max(self._plan.end, segment.last or START)
        if segment.end_missing is not None and before is None:
            return segment.checksum or _CHANGED  # the next header refers to a lost frame
        return segment.checksum or before

    def _copy(self, segment: Segment, before: int | None, until: int | None) -> None:
        assert segment.header is not None
        self._plan.keeps(segment.header)
        said = segment.header.previous_checksum
        head = b""
        if said and before is not None and said != before:
            head = resealed(
                self._plan.context.keys,
                cleared(self._plan.store.read(segment.path, 0, 4096)),
                segment.path,
            )
        self._plan.writes.append(Write(segment.path, head, segment.path, until))

    def _rewrite(
        self,
        segment: Segment,
        scan: Scan,
        frames: list[WholeFrame],
        before: int | None,
    ) -> None:
        place = segment.epoch, segment.number
        if scan.header is None:
            head = self._plan.header(segment)
        else:
            said = scan.header.previous_checksum
            # It has the same length, so the frames before the damage keep their positions.
            head = renamed(scan.raw, self._plan.segment_id(segment.epoch))
            if said and before is not None and said != before:
                head = cleared(head)
            head = resealed(self._plan.context.keys, head, segment.path)
        moved: list[tuple[Position, Position]] = []
        offset = len(head)
        more = SEAL_BYTES * (format.says_encrypted(head) - (scan.cipher is not None))
        for frame in frames:
            index = max(frame.count - 1, 0)
            moved.append((Position(*place, frame.offset, index), Position(*place, offset, index)))
            offset += frame.end - frame.offset + more
        self._plan.moved[place] = moved
        self._plan.differs(Position(*place, 0, 0))
        self._plan.end = max(self._plan.end, moved[-1][1])
        self._plan.writes.append(Write(segment.path, head, segment.path, 0, tuple(frames), scan))
        retained = Extent(
            str(moved[0][0]._replace(index=0)),
            str(moved[-1][0]),
            len(frames),
            sum(frame.entries for frame in frames),
            sum(frame.end - frame.offset for frame in frames),
        )
        lost = None
        if scan.gaps and self._plan.mode == POINT_IN_TIME:
            lost = segment.everything(frames)
        elif scan.gaps:
            lost = segment.gaps()
        self._plan.items.append(
            Item(segment.path, "segment", segment.status, REWRITTEN, retained, lost, segment.what)
        )

    def _note_empty(self, segment: Segment, lost: Extent | None, reason: str) -> None:
        self._plan.writes.append(Write(segment.path, self._plan.header(segment)))
        self._plan.moved[segment.epoch, segment.number] = []
        self._plan.differs(Position(segment.epoch, segment.number, 0, 0))
        self._plan.items.append(
            Item(segment.path, "segment", segment.status, EMPTIED, given_up=lost, what=reason)
        )
