"""Checks the bytes of a segment while they are copied, in any pieces.

It finds the same damage of frames as `imap_wal.segment.reader`, but holds at most the header, or
the start of a frame: not a window of the file, nor a whole frame. Payloads stay encrypted.
"""

from __future__ import annotations

import google_crc32c

from imap_wal import format
from imap_wal.errors import LogError
from imap_wal.format import SegmentHeader


class FrameCheck:
    """The check of one segment, from its first byte to its last one.

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
