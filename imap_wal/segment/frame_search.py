"""Finds whole frames after damage. The time grows only with the number of bytes, whatever they are.

The rule. A place p may begin a frame if all of this is true, as it is for every whole frame:

    length   at least 8, and the frame ends inside the data
    type     known
    synced   at most p: no frame says that something after its own start was synced

A frame that was written directly after a sync says that all bytes before its own offset were
synced. If bytes before it were cut out, the frame is at a lower offset: `displaced` finds it there.

Every such place is tried, in order. The first with a correct checksum is a frame, and the search
continues at its end. So every whole frame is found, except one inside another place whose checksum
is correct by chance (one in four thousand million for each place).

The work. A place may claim megabytes, and values can have such a place every few bytes: to hash
them all would be quadratic. But a CRC is linear. From the CRCs of the bytes before each 64th byte,
the CRC of any range follows with `extend` over fewer than 128 bytes at its ends. No two places are
9 bytes apart (the type of the second would be a byte of the first one's synced offset, and that one
is zero). So at most half of the bytes begin one, and fewer than 75 bytes are hashed for each
searched byte.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from functools import cache

import google_crc32c

from imap_wal.format import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    OF_SNAPSHOTS,
    SYNCED_BYTES,
    TYPES,
    Frame,
    frame_seed,
)

STEP = 64
"""How many bytes there are between two stored running CRCs."""
_DIRECT_BYTES_MAX = 2 * STEP
_TYPE_AT = 8

# A known type, then three bytes of count and five of a last synced offset below 2**40.
_PLAUSIBLE = re.compile(rb"(?s)[%s](?=.{8}\x00{3})" % re.escape(bytes((*TYPES, *OF_SNAPSHOTS))))
_AFTER_TYPE = 11
"""How many bytes after the type that pattern needs."""


class FrameSearch:
    """`data`: the bytes from offset `base` of a segment. `seed`: the start of its frames' CRCs.
    `zeros`: how many zeros follow `data` in the segment. No frame begins there, but one can end
    there."""

    def __init__(self, seed: int, data: bytes, base: int = 0, zeros: int = 0) -> None:
        self._seed, self._base, self._size = seed, base, len(data) + zeros
        self._data = data + bytes(min(zeros, _AFTER_TYPE))
        self._marks = array("I", [0])
        self.hashed = 0
        """Bytes hashed so far: the cost of the search."""

    def after(self, offset: int) -> Iterator[Frame]:
        """Whole frames that begin at or after `offset`, in order."""
        data, base = self._data, self._base
        at = offset - base
        while (match := _PLAUSIBLE.search(data, at + _TYPE_AT)) is not None:
            at = match.start() - _TYPE_AT
            frame = self._frame(at, base + at)
            if frame is not None:
                yield frame
                at = frame.end - base
            else:
                at += 1

    def displaced(self, offset: int) -> tuple[int, Frame] | None:
        """The offset and the content of the first whole frame at or after `offset` that was written
        after a sync, and at a greater offset. A crash moves no frame, so bytes before it were cut
        out. Earlier frames of the segment inside of a value do not match: they were written at
        lower offsets."""
        data, base = self._data, self._base
        at = offset - base
        while (match := _PLAUSIBLE.search(data, at + _TYPE_AT)) is not None:
            at = match.start() - _TYPE_AT
            body = at + FRAME_HEADER_BYTES
            synced = int.from_bytes(data[body : body + SYNCED_BYTES], "little")
            if synced > base + at and (frame := self._frame(at, synced)) is not None:
                return base + at, frame
            at += 1
        return None

    def _frame(self, at: int, offset: int) -> Frame | None:
        """The frame at `data[at]`, if it was written at this offset of the segment."""
        data = self._data
        length, checksum, type_count = FRAME_HEADER.unpack_from(data, at)
        body = at + FRAME_HEADER_BYTES
        end = body + length
        if length < SYNCED_BYTES or end > self._size:
            return None
        if end > len(data):
            data = self._data = data + bytes(self._size - len(data))
        synced = int.from_bytes(data[body : body + SYNCED_BYTES], "little")
        if synced > offset:
            return None
        if self._crc(frame_seed(self._seed, offset, length, type_count), body, end) != checksum:
            return None
        kind, count = type_count & 0xFF, type_count >> 8
        return Frame(
            offset,
            offset + FRAME_HEADER_BYTES + length,
            kind,
            count,
            synced,
            checksum,
            data[body + SYNCED_BYTES : end],
        )

    def _crc(self, crc: int, start: int, end: int) -> int:
        """`google_crc32c.extend(crc, data[start:end])`."""
        if end - start <= _DIRECT_BYTES_MAX:
            return self._extend(crc, start, end)
        first, last = -(-start // STEP), end // STEP
        marks = self._marks
        while len(marks) <= last:
            marks.append(self._extend(marks[-1], (len(marks) - 1) * STEP, len(marks) * STEP))
        crc = self._extend(crc, start, first * STEP)
        crc = marks[last] ^ shifted(crc ^ marks[first], (last - first) * STEP)
        return self._extend(crc, last * STEP, end)

    def _extend(self, crc: int, start: int, end: int) -> int:
        self.hashed += end - start
        return int(google_crc32c.extend(crc, self._data[start:end]))


# ---- the algebra of CRC-32C: extend(crc, data) == shifted(crc, len(data)) ^ extend(0, data) ------


_ORDER = 2**31 - 1
"""A CRC is unchanged after this many zero bytes."""

_Tables = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def shifted(crc: int, count: int) -> int:
    """A CRC after `count` more bytes, of any value: the part that the CRC before them contributes.
    A negative `count` is the inverse."""
    count %= _ORDER
    power = 0
    while count:
        if count & 1:
            a, b, c, d = _tables(power)
            crc = a[crc & 0xFF] ^ b[crc >> 8 & 0xFF] ^ c[crc >> 16 & 0xFF] ^ d[crc >> 24]
        count >>= 1
        power += 1
    return crc


@cache
def _tables(power: int) -> _Tables:
    """For each byte of a CRC, its contribution after 2**power more bytes."""
    if power == 0:
        zero = google_crc32c.extend(0, b"\0")
        columns = [int(google_crc32c.extend(1 << bit, b"\0")) ^ zero for bit in range(32)]
    else:
        a, b, c, d = _tables(power - 1)
        half = [(a, b, c, d)[bit // 8][1 << bit % 8] for bit in range(32)]
        columns = [
            a[crc & 0xFF] ^ b[crc >> 8 & 0xFF] ^ c[crc >> 16 & 0xFF] ^ d[crc >> 24] for crc in half
        ]
    return _table(columns[:8]), _table(columns[8:16]), _table(columns[16:24]), _table(columns[24:])


def _table(columns: list[int]) -> tuple[int, ...]:
    table = [0]
    for column in columns:
        table += [column ^ row for row in table]
    return tuple(table)
