"""Checks files while they are copied.

    segment    its header, the checksum of each frame, and that the next segment continues from its
               last frame
    Parquet    the checksum of the whole file, which a manifest has

Encrypted files are checked without their keys: checksums are of the encrypted bytes. Files that
the log does not read, such as those that were put aside, are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import google_crc32c

from imap_wal import format, layout
from imap_wal.backup.catalogue import DamagedFile
from imap_wal.errors import LogError
from imap_wal.format import SegmentHeader
from imap_wal.segment.verdict import UNSUPPORTED, Place, Verdict, continues, cut_end, judge
from storage_backends import SegmentStore

UNSTEADY = (
    "its checksums are wrong in the copy, but not in the log: check the memory of this machine and "
    "its connection to the storage"
)


class CopyCheck(Protocol):
    """The check of one file. `whole`: after its last byte."""

    @property
    def whole(self) -> bool: ...

    def begin(self) -> None:
        """The file is read from its first byte."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""

    def damage(self) -> DamagedFile | None:
        """What is damaged, if it is not whole; None: nothing that counts."""


class ParquetCheck:
    """`checksum`: the CRC-32C in the manifest."""

    def __init__(self, path: str, checksum: int) -> None:
        self._path, self._wanted, self._found = path, checksum, 0

    @property
    def whole(self) -> bool:
        return self._found == self._wanted

    def begin(self) -> None:
        self._found = 0

    def feed(self, data: bytes) -> None:
        self._found = google_crc32c.extend(self._found, data)

    def damage(self) -> DamagedFile | None:
        damage = "the file does not match the checksum in the manifest"
        return DamagedFile(self._path, 0, damage)


class FrameCheck:
    """The check of one segment, from its first byte to its last one, in any pieces.

    It finds the same damage of frames as `imap_wal.segment.reader`, but holds at most the header,
    or the start of a frame: not a window of the file, nor a whole frame. Payloads stay encrypted.

    `end`: the offset after the last whole frame. `checksum`: of that frame; 0: there is none.
    `header`: None until it is whole.
    """

    __slots__ = (
        *("_crc", "_held", "_left", "_next", "_path", "_seed", "_wanted", "_wrong", "_zeros"),
        *("checksum", "end", "header"),
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._held = b""
        self._left = self._next = self._crc = self._wanted = self._seed = 0
        self._zeros = self._wrong = False
        self.header: SegmentHeader | None = None
        self.end = self.checksum = 0

    @property
    def whole(self) -> bool:
        """Whether all bytes so far are a header, whole frames, and then nothing or zeros."""
        return not (self._wrong or self._left or self.header is None or self._held.strip(b"\0"))

    @property
    def continues_from(self) -> int | None:
        """See `SegmentReader.continues_from`."""
        if self.checksum or self.header is None:
            return self.checksum or None
        return self.header.previous_checksum or (0 if self.header.number == 1 else None)

    def feed(self, data: bytes) -> None:
        """Check the next bytes."""
        if self._wrong:
            return
        data, self._held = self._held + data, b""
        at = 0
        if self.header is None:
            if len(data) < format.header_bytes_needed(data):
                self._held = data
                return
            try:
                self.header, at = format.decode_header(data, self._path)
            except LogError:
                self._wrong = True
                return
            self.end, self._seed = at, self.header.checksum_seed
        while at < len(data) and not self._wrong:
            if self._zeros:
                self._wrong = data.count(0, at) != len(data) - at
                return
            if self._left:
                at = self._body(data, at)
            elif len(data) - at < format.FRAME_HEADER_BYTES:
                self._held = data[at:]
                return
            else:
                at = self._begin(data, at)

    def _begin(self, data: bytes, at: int) -> int:
        """Read the start of a frame, or of the zeros after the last one."""
        length, checksum, type_count = format.FRAME_HEADER.unpack_from(data, at)
        self._zeros = length == checksum == type_count == 0
        if self._zeros:
            return at
        self._wrong = not (
            format.SYNCED_BYTES <= length <= format.BODY_BYTES_MAX
            and type_count & 0xFF in format.TYPES
        )
        self._crc = format.frame_seed(self._seed, self.end, length, type_count)
        self._wanted, self._left = checksum, length
        self._next = self.end + format.FRAME_HEADER_BYTES + length
        return at + format.FRAME_HEADER_BYTES

    def _body(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._left]
        self._crc = google_crc32c.extend(self._crc, piece)
        self._left -= len(piece)
        if not self._left:
            if self._crc == self._wanted:
                self.end, self.checksum = self._next, self._wanted
            else:
                self._wrong = True
        return at + len(piece)


class SegmentCheck:
    """The check of a segment at its place in the log."""

    def __init__(self, store: SegmentStore, place: Place) -> None:
        self._store = store
        self.place = place
        self.frames = FrameCheck(place.path)
        self._bytes = 0

    @property
    def whole(self) -> bool:
        return self.frames.whole and self.at_home and not self._lacks_checkpoint

    @property
    def at_home(self) -> bool:
        header, place = self.frames.header, self.place
        return (
            header is not None
            and layout.original_wal_path(header) == layout.original_path(place.path)
            and place.directory in ("", header.directory)
        )

    @property
    def _lacks_checkpoint(self) -> bool:
        named = self.place.checkpoint
        return (self.place.epoch, self.place.number) == named[:2] and self.frames.end <= named.frame

    def begin(self) -> None:
        self.frames, self._bytes = FrameCheck(self.place.path), 0

    def feed(self, data: bytes) -> None:
        self.frames.feed(data)
        self._bytes += len(data)

    def damage(self) -> DamagedFile | None:
        """The verdict of `imap-wal verify`, from the file itself. A torn tail is not damage."""
        ended_at = -1
        while True:
            verdict, _ = judge(self._store, self.place, lambda _: None, keys=None)
            if not verdict.is_damage or self.place.followed or verdict.end == ended_at:
                break
            # Perhaps a commit is under way: then the segment's end moves, but damage does not.
            ended_at = verdict.end
        if verdict.status == UNSUPPORTED:
            raise verdict.error()
        if verdict.is_damage:
            return _said(verdict)
        if verdict.is_tail or not self._bytes:  # or its writer was at its first commit
            return None
        return DamagedFile(self.place.path, self.frames.end, UNSTEADY)


def cut_segments(segments: Sequence[SegmentCheck]) -> Iterator[DamagedFile]:
    """The segments of one node, in order, whose end is missing: the next one continues from a later
    frame."""
    said = 0
    for segment in reversed(segments):
        frames, header = segment.frames, segment.frames.header
        checksum = frames.continues_from
        if segment.whole and segment.place.followed and not continues(checksum, said):
            yield _said(cut_end(segment.place, frames.end))
        # As in `imap_wal.segment.verdict.said_by`.
        if header is None or not segment.at_home:
            said = 0
        elif header.previous_checksum or frames.checksum:
            said = header.previous_checksum


def _said(verdict: Verdict) -> DamagedFile:
    return DamagedFile(verdict.place.path, verdict.end, verdict.what)
