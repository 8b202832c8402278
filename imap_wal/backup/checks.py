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

from imap_wal import layout
from imap_wal.backup.catalogue import DamagedFile
from imap_wal.segment.frame_check import FrameCheck
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
        what = "the file does not match the checksum in the manifest"
        return DamagedFile(self._path, 0, what)


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
            verdict, _ = judge(self._store, self.place, lambda _: None, opened=False)
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
    for each in reversed(segments):
        frames, header = each.frames, each.frames.header
        known = frames.continues_from
        if each.whole and each.place.followed and not continues(known, said):
            yield _said(cut_end(each.place, frames.end))
        # As in `imap_wal.segment.verdict.said_by`.
        if header is None or not each.at_home:
            said = 0
        elif header.previous_checksum or frames.checksum:
            said = header.previous_checksum


def _said(verdict: Verdict) -> DamagedFile:
    return DamagedFile(verdict.place.path, verdict.end, verdict.what)
