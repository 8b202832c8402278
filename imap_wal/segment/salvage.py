"""Reads the readable part of a damaged segment: its whole frames, and the gaps between them.

A frame is valid only with the segment's id and at its own offset, so frames after a gap are found
by trying every place that may be one. If the header is damaged and the bytes of its id are whole,
the first frame that is valid with this id proves that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import google_crc32c

from imap_wal import entry, format
from imap_wal.context import Context
from imap_wal.errors import EncryptionError, Forged, LogError, UnsupportedVersion
from imap_wal.format import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    SYNCED_BYTES,
    Frame,
    Home,
    NoFrame,
    Position,
    SegmentHeader,
)
from imap_wal.security.encryption import SegmentCipher, cipher_of, cipher_that_opens
from imap_wal.security.encryption_keys import Keys
from imap_wal.segment.frame_search import FrameSearch

_ID_AT, _ID_BYTES = 15, 16
"""In a header: after the twelve bytes, the array's mark, and the two bytes that begin the id."""
_ENTRY_BYTES_MIN = 11
_TRIED_FRAMES = 8


class WholeFrame(NamedTuple):
    """A whole frame, without its content."""

    offset: int
    end: int
    kind: int
    entries: int
    """0 unless it has entries."""
    count: int  # type: ignore[assignment]  # the same name as in Frame
    checksum: int


class Gap(NamedTuple):
    """Bytes that are not a whole frame. `frames`, `records`, `last` (offset and index of the last
    entry) are from the damaged frames' own headers; None if those cannot be trusted, because they
    do not lead to the gap's end."""

    start: int
    end: int
    frames: int | None = None
    records: int | None = None
    last: tuple[int, int] | None = None


class Scan(NamedTuple):
    """`header` is None if it is damaged; `seed` is None if nothing can be read without it. `first`
    is the offset of the first frame. `raw` is the header as stored."""

    header: SegmentHeader | None
    raw: bytes
    seed: int | None
    first: int
    frames: list[WholeFrame]
    gaps: list[Gap]
    size: int
    cipher: SegmentCipher | None = None
    """Decrypts the frames; None: they are not encrypted."""

    def payload(self, data: bytes, place: WholeFrame) -> bytes:
        """The msgpack stream of a frame of the segment `data`."""
        start = place.offset + FRAME_HEADER_BYTES + SYNCED_BYTES
        if self.cipher is None:
            return data[start : place.end]
        synced = int.from_bytes(data[start - SYNCED_BYTES : start], "little")
        sealed = Frame(
            place.offset,
            place.end,
            place.kind,
            place.count,
            synced,
            place.checksum,
            data[start : place.end],
        )
        return self.cipher.open(sealed, "").payload

    @property
    def records(self) -> int:
        return sum(place.entries for place in self.frames)


def scan_segment(context: Context, path: str, home: Home) -> Scan:
    """Read all readable frames of a segment. `home`: the segment's place. Reads no frames if the
    header names another place. A forged frame is a gap. Raises `UnsupportedVersion`, including for
    a frame of an unknown type, and `EncryptionError`."""
    data = context.store.read(path)
    header: SegmentHeader | None = None
    seed: int | None = None
    try:
        header, first = format.decode_header(data, path)
        seed = header.checksum_seed
    except UnsupportedVersion:
        raise
    except LogError:
        first = min(format.header_bytes_needed(data), len(data))
        seed_and_end = _find_seed(data, home)
        if seed_and_end is not None:
            seed, first = seed_and_end
    if header is not None and not home.admits(header.home):
        return Scan(
            header, data[:first], None, first, [], [Gap(0, len(data.rstrip(b"\0")))], len(data)
        )
    cipher: SegmentCipher | None = None
    if header is not None and header.key_id:
        cipher = cipher_of(context.keys, header, data[:first], path)
    elif header is None and seed is not None:
        cipher = _find_cipher(context.keys, path, home, data, seed, first)
    elif header is not None:
        context.keys.demand_plain(path)
    frames: list[WholeFrame] = []
    gaps: list[Gap] = []
    written = len(data.rstrip(b"\0"))
    offset = first
    search = FrameSearch(seed or 0, data)
    while seed is not None and offset < len(data):
        frame = format.decode_frame(seed, data, offset, offset)
        if isinstance(frame, Frame) and not _forged(cipher, frame):
            if frame.kind not in format.TYPES:
                raise UnsupportedVersion(
                    path,
                    offset,
                    f"a frame of unknown type {frame.kind}",
                    "upgrade imap-wal: a newer version wrote it",
                )
            entries = frame.count if frame.kind in format.OF_ENTRIES else 0
            frames.append(
                WholeFrame(offset, frame.end, frame.kind, entries, frame.count, frame.checksum)
            )
            offset = frame.end
            continue
        if offset >= written:
            break
        following = next(search.after(offset + 1), None)
        gaps.append(_gap(data, offset, written if following is None else following.offset))
        if following is None:
            break
        offset = following.offset
    if seed is None:  # also for an empty file: it had a header once
        gaps.append(Gap(0, written))
    return Scan(header, data[:first], seed, first, frames, gaps, len(data), cipher)


def _forged(cipher: SegmentCipher | None, frame: Frame) -> bool:
    if cipher is not None:
        try:
            cipher.open(frame, "")
        except Forged:
            return True
    return False


def _find_cipher(
    keys: Keys, path: str, home: Home, data: bytes, seed: int, first: int
) -> SegmentCipher | None:
    """The cipher for the first whole frame of a segment at `home` with a damaged header."""
    frame = format.decode_frame(seed, data, first, first)
    if not isinstance(frame, Frame):
        frame = next(FrameSearch(seed, data).after(first), NoFrame("end"))
    if not isinstance(frame, Frame):
        return None
    cipher = cipher_that_opens(keys, data[_ID_AT : _ID_AT + _ID_BYTES], home, frame, path)
    if cipher is None and format.says_encrypted(data):
        reason = (
            f"its header is damaged and it is encrypted, {keys.known_ids}: its key is "
            "missing, or it is not of this place"
        )
        log = home.directory or "not known, because no manifest of this node is here"
        advice = (
            f"{keys.advice}. If all keys are given, move the file away. The log "
            f"directory of this place is {log}"
        )
        raise EncryptionError(path, "", reason, advice, is_missing=True)
    if cipher is None:
        keys.demand_plain(path)
    return cipher


def last_lost(epoch: int, number: int, gap: Gap) -> Position | None:
    """Position of the last entry in a gap, if known."""
    return None if gap.last is None else Position(epoch, number, *gap.last)


def _gap(data: bytes, start: int, end: int) -> Gap:
    records = 0
    for frames, (offset, kind, count, end_of_frame) in enumerate(_chain(data, start), 1):
        if end_of_frame > end or (
            kind in format.OF_ENTRIES
            and not _believable(
                data[offset + FRAME_HEADER_BYTES + SYNCED_BYTES : end_of_frame], count
            )
        ):
            break
        records += count if kind in format.OF_ENTRIES else 0
        if end_of_frame == end:
            return Gap(start, end, frames, records, (offset, max(count - 1, 0)))
    return Gap(start, end)


def _believable(payload: bytes, count: int) -> bool:
    """Whether a damaged frame's own count may be right: the damage is in the payload, or the
    payload has that many entries."""
    try:
        return len(entry.values(payload)) == count
    except Exception:  # noqa: BLE001  # damaged bytes make a parser fail in any way
        return True


def _chain(data: bytes, offset: int) -> Iterator[tuple[int, int, int, int]]:
    """(offset, type, count, end) of successive frames, from their headers, as far as these are
    plausible."""
    while offset + FRAME_HEADER_BYTES + SYNCED_BYTES <= len(data):
        length, _, type_count = FRAME_HEADER.unpack_from(data, offset)
        kind, count = type_count & 0xFF, type_count >> 8
        least = SYNCED_BYTES + (count * _ENTRY_BYTES_MIN if kind in format.OF_ENTRIES else 0)
        end = offset + FRAME_HEADER_BYTES + length
        if kind not in format.TYPES or length < least or end > len(data):
            return
        yield offset, kind, count, end
        offset = end


# ---- a segment whose header is damaged -----------------------------------------------------------


def _find_seed(data: bytes, home: Home) -> tuple[int, int] | None:
    """(seed, offset of the first frame); None if no frame is valid with the id in the header."""
    names = home[:3]
    longest = len(
        SegmentHeader(
            b"\0" * _ID_BYTES, *names, 2**32 - 1, 2**32 - 1, 2**32 - 1, 2**63, "-" * 36
        ).encode()
    )
    shortest = len(SegmentHeader(b"\0" * _ID_BYTES, *names, 1, 1, 0, 0, "").encode())
    if format.says_encrypted(data):
        # With the bytes that msgpack puts before both.
        longest += format.KEY_ID_MAX + format.KEY_CHECK_BYTES + 4
    said = format.header_bytes_needed(data)
    by_id = int(google_crc32c.value(data[_ID_AT : _ID_AT + _ID_BYTES]))
    for first in dict.fromkeys((said, *range(shortest, longest + 1))):
        for offset, *_ in islice(_chain(data, first), _TRIED_FRAMES):
            if isinstance(format.decode_frame(by_id, data, offset, offset), Frame):
                return by_id, first
    # The first frames may be damaged too.
    if next(FrameSearch(by_id, data).after(shortest), None) is not None:
        return by_id, said if shortest <= said <= longest else shortest
    return None
