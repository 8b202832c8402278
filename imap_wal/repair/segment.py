"""A node's segments as a repair finds them, and changes of headers in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import google_crc32c
import msgpack

from imap_wal import format
from imap_wal.context import Context
from imap_wal.format import START, Frame, Home, Position, SegmentHeader
from imap_wal.repair.report import Extent
from imap_wal.segment import verdict
from imap_wal.segment.listing import SegmentFile
from imap_wal.segment.salvage import Scan, WholeFrame, last_lost, scan_segment
from imap_wal.segment.verdict import continues


@dataclass(slots=True)
class Segment:
    """One segment of the log: totals of its whole frames, and its damage."""

    path: str
    epoch: int
    number: int
    size: int = 0
    status: str = "clean"
    what: str = ""
    header: SegmentHeader | None = None
    end: int = 0
    checksum: int = 0
    """The checksum of the last frame; 0: there is none."""
    continues_from: int | None = None
    """See `SegmentReader.continues_from`."""
    frames: int = 0
    records: int = 0
    bytes: int = 0
    first: Position | None = None
    last: Position | None = None
    scan: Scan | None = None
    end_missing: Position | None = None
    """The file ends at the end of a frame, but the log continued: up to here, or (START) to an
    unknown position."""
    torn: bool = False
    """Damaged after the last synced byte, without whole frames after it: a tail."""

    @property
    def damaged(self) -> bool:
        return self.status != "clean" and not self.torn

    @property
    def lost(self) -> bool:
        """Whether any of its entries cannot be read."""
        scan = self.scan
        return (
            self.status == "missing"
            or self.end_missing is not None
            or scan is None
            or bool(scan.gaps)
            or scan.seed is None
        )

    def count(self, frames: Iterable[WholeFrame]) -> None:
        """Add whole frames, in order."""
        for place in frames:
            self.frames += 1
            self.records += place.entries
            self.bytes += place.end - place.offset
            self.first = self.first or Position(self.epoch, self.number, place.offset, 0)
            self.last = Position(self.epoch, self.number, place.offset, max(place.count - 1, 0))
            self.checksum, self.end = place.checksum, place.end

    def gaps(self) -> Extent | None:
        """The known facts about the damaged frames."""
        gaps = self.scan.gaps if self.scan is not None else []
        if not gaps:
            return None
        counted = all(gap.records is not None for gap in gaps)
        return Extent(
            str(Position(self.epoch, self.number, gaps[0].start, 0)),
            text(last_lost(self.epoch, self.number, gaps[-1])),
            sum(gap.frames or 0 for gap in gaps) if counted else None,
            sum(gap.records or 0 for gap in gaps) if counted else None,
            sum(gap.end - gap.start for gap in gaps),
        )

    def everything(self, whole: list[WholeFrame] | None = None) -> Extent | None:
        """What the copy loses of a segment: its gaps, as far as known, and the whole frames that
        are not kept."""
        whole = whole or []
        scan, start = self.scan, str(Position(self.epoch, self.number, 0, 0))
        if self.status == "missing":
            return Extent(start)
        gaps = self.gaps()
        frames: int | None = self.frames - len(whole)
        records: int | None = self.records - sum(frame.entries for frame in whole)
        size = self.bytes - sum(frame.end - frame.offset for frame in whole)
        # The file under this name is another segment.
        if scan is None and self.status == "corrupt" and self.end_missing is None:
            return Extent(start, None, None, None, self.size)
        if gaps is None and not frames:
            return None
        first, last = self.first, self.last
        if gaps is not None:
            frames = None if frames is None or gaps.frames is None else frames + gaps.frames
            records = None if records is None or gaps.records is None else records + gaps.records
            size += gaps.bytes or 0
            first = (
                Position.parse(gaps.first)
                if gaps.first and (whole or first is None or gaps.first < str(first))
                else first
            )
            if gaps.last:
                last = max(last or START, Position.parse(gaps.last))
            elif last is not None and scan is not None and last.frame < scan.gaps[-1].start:
                last = None  # the last one is in a gap whose positions are unknown
        return Extent(text(first), text(last), frames, records, size)


def look_at(context: Context, segment: SegmentFile, home: Home, place: verdict.Place) -> Segment:
    """Read all of a segment. `home`: what its header must say. Raises `UnsupportedVersion`."""
    looked_at = Segment(segment.path, segment.epoch, segment.number, segment.bytes)
    places: list[WholeFrame] = []

    def visit(frame: Frame) -> None:
        entries = frame.count if frame.kind in format.OF_ENTRIES else 0
        places.append(
            WholeFrame(frame.offset, frame.end, frame.kind, entries, frame.count, frame.checksum)
        )

    said, reader = verdict.judge(context.store, place, visit, keys=context.keys)
    if said.status == verdict.UNSUPPORTED:
        raise said.error()
    looked_at.what = said.what
    looked_at.status = (
        "clean" if said.status == verdict.CLEAN else "torn-tail" if said.is_tail else "corrupt"
    )
    looked_at.torn = said.is_tail and not said.frames_after
    if said.status == verdict.FOREIGN:
        return looked_at
    if reader is not None:
        looked_at.header, looked_at.end, looked_at.continues_from = (
            reader.header,
            reader.first,
            reader.continues_from,
        )
    if said.status == verdict.SHORT and said.end:
        looked_at.end_missing = place.checkpoint
    elif said.status != verdict.CLEAN:
        looked_at.scan = scan_segment(context, segment.path, home)
        places = looked_at.scan.frames
    looked_at.count(places)
    return looked_at


def find_missing_ends(segments: Mapping[int, Segment]) -> None:
    """A file that ends at the end of a frame looks whole. Only the header of the next
    segment, or a manifest that names a later frame, shows that its end is missing. If that header
    is damaged, this is unknown."""
    before: Segment | None = None
    for number in sorted(segments):
        segment = segments[number]
        said = segment.header.previous_checksum if segment.header is not None else 0
        if number - 1 not in segments:
            before = None
        if (
            before is not None
            and before.status == "clean"
            and not continues(before.continues_from, said)
        ):
            before.end_missing = START
            before.status, before.what = (
                "corrupt",
                "the end of this segment is missing: the next segment continues from a later frame",
            )
        if (
            before is not None
            and before.status == "clean"
            and before.continues_from is not None
            and segment.damaged
            and segment.header is None
        ):
            before.what = (
                "it is unknown whether frames followed: the header of the next segment, which "
                "would show it, is damaged"
            )
        if segment.continues_from is not None or segment.status != "clean":
            before = segment


def text(position: Position | None) -> str | None:
    """The position as text for a report; None: unknown."""
    return None if position is None else str(position)


# ---- headers, changed in place -------------------------------------------------------------------


def renamed(head: bytes, segment_id: bytes) -> bytes:
    """The header with another segment id."""
    return _sealed(head[:15] + segment_id + head[31:])


def cleared(head: bytes) -> bytes:
    """The header without the checksum of the preceding segment. It has the same length, so frames
    keep their offsets."""
    end = format.header_bytes_needed(head)
    unpacker = msgpack.Unpacker()
    unpacker.feed(head[12 : end - 4])
    fields = unpacker.read_array_header()
    assert fields > 6
    for _ in range(6):
        unpacker.skip()
    start = 12 + unpacker.tell()
    unpacker.skip()
    stop = 12 + unpacker.tell()
    mark = {1: b"\0", 2: b"\xcc\0", 3: b"\xcd\0\0", 5: b"\xce\0\0\0\0"}[stop - start]
    return _sealed(head[:start] + mark + head[stop:end])


def _sealed(head: bytes) -> bytes:
    return head[:-4] + int(google_crc32c.value(head[:-4])).to_bytes(4, "little")
