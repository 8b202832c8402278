"""The bytes of a segment. Only this module reads and writes them. Integers are little-endian.

A segment is a header followed by frames, without gaps:

    segment header                                   frame
    0        8 magic "IMAPWAL\\0"                     0   4 body length, bytes
    8        2 format version (1)                    4   4 CRC-32C
    10       2 n, length of the next part            8   1 type
    12       n msgpack array, see SegmentHeader      9   3 count of entries in the body
    12 + n   4 CRC-32C of all before it              12  8 last synced offset        ┐ body
                                                     20    msgpack stream            ┘

The CRC of a frame covers, in this order: the segment's random id, the frame's offset in the segment
(8 bytes), its length, its type and count (4 bytes, as written), its body. So a frame from another
segment, or from another place in this one, has a wrong CRC, and a CRC covers every byte of a
segment. The preallocated rest of a segment is zeros: a frame header of twelve zeros ends the
frames.

`last synced offset` is the offset up to which the segment was known to be durable when the frame
was written. Damage below it is corruption. Damage above it, with no valid frame after it, is the
torn tail of a crash. A frame that is written directly after a sync has its own offset there. So it
is recognised also at another offset, and then shows that bytes before it were cut out.

An encrypted segment has format version 2. Its header's array also has the key id and, last, a check
value of 16 bytes. In its frames, the msgpack stream is replaced:

    20 12 nonce
    32    ciphertext of the msgpack stream
       16 tag

The CRC covers the encrypted bytes, so damage is found without a key.
`imap_wal.security.encryption` defines key, nonce, tag and check value.

The first twelve bytes of the header and the place of its CRC are the same in every version, so that
a flipped bit can be distinguished from a newer version.
"""

from __future__ import annotations

import struct
from string import ascii_lowercase
from typing import NamedTuple, Self

import google_crc32c
import msgpack
from msgspec import MsgspecError
from msgspec.msgpack import Decoder

from imap_wal.errors import CorruptLog, ShortLog, TooLarge, UnsupportedVersion

MAGIC = b"IMAPWAL\0"
VERSION = 1
ENCRYPTED_VERSION = 2
KEY_CHECK_BYTES = 16
KEY_ID_MAX = 64
_PLAIN_FIELDS = 9

ENTRIES, METADATA, CLEAN_SHUTDOWN, LOW_WATER_MARK, CLEARS = 1, 2, 3, 4, 5
TYPES = {
    ENTRIES: "entries",
    METADATA: "metadata",
    CLEAN_SHUTDOWN: "clean shutdown",
    LOW_WATER_MARK: "low-water mark",
    CLEARS: "entries, including clears",
}
OF_ENTRIES = frozenset((ENTRIES, CLEARS))
"""Frames of entries."""
SNAPSHOT = 6
OF_SNAPSHOTS = {SNAPSHOT: "entries of a snapshot"}
"""The only type in a segment snapshot (`imap_wal.segment.snapshot`); no log has it."""

FRAME_HEADER = struct.Struct("<III")
FRAME_HEADER_BYTES = 12
COUNT_MAX = 2**24 - 1
BODY_BYTES_MAX = 2**31 - 1
FRAME_OVERHEAD_BYTES = 1024 * 1024
"""A payload this much below the maximum fits in a frame."""
PAYLOAD_BYTES_MAX = BODY_BYTES_MAX - FRAME_OVERHEAD_BYTES
"""The largest payload of one frame, in bytes."""
_SEED = struct.Struct("<QII")
SEED_BYTES = _SEED.size
"""Number of bytes that the CRC of a frame covers before the body."""
_SYNCED = struct.Struct("<Q")
SYNCED_BYTES = 8
_PREFIX = struct.Struct("<8sHH")
PREFIX_BYTES = _PREFIX.size


_WIDTHS = (8, 8, 12, 8)
"""Digits of a position's fields."""


def _field(value: int, width: int) -> str:
    """A number as text that sorts like the number. If it has more digits than `width`, a letter
    comes first: `a` for one more digit, `b` for two (a letter sorts after every digit), with one
    more `z` before it for every 26 more."""
    digits = f"{value:0{width}d}"
    more = len(digits) - width
    return (
        digits
        if not more
        else f"{'z' * ((more - 1) // 26)}{chr(ord('a') + (more - 1) % 26)}{digits}"
    )


def _value(part: str, width: int) -> int:
    """The number of such a text, or of digits alone without leading zeros, as users type them."""
    value = int(part.lstrip(ascii_lowercase))
    if not part[0].isalpha() or _field(value, width) == part:
        return value
    raise ValueError(part)


EPOCH_ID_BYTES = 6
"""The first bytes of a segment's random id, which all segments of its epoch have in common."""


def epoch_id(token: bytes) -> str:
    """The id of the epoch of the segments whose random ids begin as `token` does."""
    return token[:EPOCH_ID_BYTES].hex()


class Position(NamedTuple):
    """The place of an entry in a node's log. A later entry has the greater position, as a tuple and
    as text. `frame` is the byte offset of the frame in its segment; `index` counts the entries of
    the frame from 0. A copy of a log has the same positions: `MarkedPosition` tells them apart."""

    epoch: int
    segment: int
    frame: int
    index: int  # type: ignore[assignment]  # the field's name; no caller uses tuple.index

    def __str__(self) -> str:
        return ".".join(map(_field, self, _WIDTHS))

    @staticmethod
    def parse(text: str) -> Position:
        """The position that a text names. Raises ValueError if it names none."""
        place, at, epoch_id = text.partition("@")
        try:
            position = Position(
                *(
                    _value(part, width)
                    for part, width in zip(place.split("."), _WIDTHS, strict=True)
                )
            )
            if at and bytes.fromhex(epoch_id).hex() != epoch_id:
                raise ValueError(epoch_id)
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not a position: expected epoch.segment.frame.index, or "
                "epoch.segment.frame.index@id"
            ) from error
        return MarkedPosition.of(position, epoch_id) if at else position

    def after(self) -> Position:
        """The position directly after this entry: continue reading there after processing the
        entry."""
        epoch, segment, frame, index = self
        return Position(epoch, segment, frame, index + 1)


class MarkedPosition(Position):
    """A position with the id of its epoch (`imap_wal.manifest.epochs`), which is `@` and 12 hex
    digits in its text. It equals the position without the id."""

    epoch_id = ""

    @classmethod
    def of(cls, position: tuple[int, int, int, int], epoch_id: str) -> Self:
        self = tuple.__new__(cls, position)
        self.epoch_id = epoch_id
        return self

    def __str__(self) -> str:
        return f"{super().__str__()}@{self.epoch_id}"

    def after(self) -> Self:
        return self.of(super().after(), self.epoch_id)

    def _replace(self, **fields: int) -> Self:
        return self.of(super()._replace(**fields), self.epoch_id)


START = Position(0, 0, 0, 0)
"""Before all entries."""
END = Position(2**62, 0, 0, 0)
"""After all entries."""


NOTHING_BEFORE = 1
"""In a header, instead of the CRC of the previous frame: there was none, because all were archived
or removed."""


class Home(NamedTuple):
    """The place of a segment: its log, and its epoch and number there. `directory`: the UUID of the
    log directory; "": not known."""

    namespace: str
    cluster: str
    node: str
    directory: str
    epoch: int
    number: int

    def admits(self, named: Home) -> bool:
        """Whether a segment whose header has the place `named` belongs here; an unknown directory
        fits any."""
        return self == (named if self.directory else named._replace(directory=""))


class SegmentHeader(NamedTuple):
    """The fields of a segment's header. `previous_checksum`: the CRC of the last frame of the
    previous segment, 0 (not known) or `NOTHING_BEFORE`. `directory`: the UUID of the node's log
    directory. `key_id`: of the key that encrypts the frames; "": they are not encrypted.
    `key_check`: shows that a key is the right one, and that the header was not changed."""

    segment_id: bytes
    namespace: str
    cluster: str
    node: str
    epoch: int
    number: int
    previous_checksum: int
    created_ms: int
    directory: str
    key_id: str = ""
    key_check: bytes = b""

    @property
    def epoch_id(self) -> str:
        return epoch_id(self.segment_id)

    @property
    def version(self) -> int:
        return ENCRYPTED_VERSION if self.key_id else VERSION

    @property
    def home(self) -> Home:
        return Home(
            self.namespace, self.cluster, self.node, self.directory, self.epoch, self.number
        )

    def encode(self) -> bytes:
        fields: bytes = msgpack.packb(
            tuple(self) if self.key_id else self[:_PLAIN_FIELDS], use_bin_type=True
        )
        return with_crc(_PREFIX.pack(MAGIC, self.version, len(fields)) + fields)

    @property
    def checksum_seed(self) -> int:
        """The start value of the CRC of every frame in this segment."""
        return int(google_crc32c.value(self.segment_id))


def with_crc(start: bytes) -> bytes:
    """`start` with its CRC appended."""
    return start + struct.pack("<I", google_crc32c.value(start))


def decode_header(data: bytes, file: str) -> tuple[SegmentHeader, int]:
    """The header at the start of `data` and its length in bytes. Raises `ShortLog`, `CorruptLog` or
    `UnsupportedVersion`."""
    if len(data) < _PREFIX.size:
        raise ShortLog(
            file, len(data), f"the file ends inside the segment header ({len(data)} bytes)"
        )
    magic, version, length = _PREFIX.unpack_from(data)
    if not data[: _PREFIX.size].strip(b"\0"):
        raise ShortLog(file, 0, "the segment header was never written")
    if magic != MAGIC:
        raise CorruptLog(
            file,
            0,
            "this is not a segment of imap-wal (wrong magic)",
            "if it is a foreign file, move it away; if it was a segment, restore it from a copy",
        )
    end = _PREFIX.size + length
    if len(data) < end + 4:
        raise ShortLog(file, len(data), "the file ends inside the segment header")
    if struct.unpack_from("<I", data, end)[0] != google_crc32c.value(data[:end]):
        raise CorruptLog(file, 0, "the segment header does not match its checksum")
    if version not in (VERSION, ENCRYPTED_VERSION):
        raise UnsupportedVersion(
            file,
            8,
            f"format version {version}; this imap-wal reads versions {VERSION} and "
            f"{ENCRYPTED_VERSION}",
            "upgrade imap-wal; the file was not changed",
        )
    try:
        header = _decode_header(data[_PREFIX.size : end])
        checked = KEY_CHECK_BYTES if header.key_id else 0
        if (
            header.version != version
            or len(header.key_check) != checked
            or len(header.key_id) > KEY_ID_MAX
        ):
            raise MsgspecError("key id and check value are not those of its version")
        return header, end + 4
    except (MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptLog(
            file,
            _PREFIX.size,
            f"the segment header matches its checksum, but its fields are not valid: {error}",
        ) from error


_decode_header = Decoder(SegmentHeader).decode


def says_encrypted(data: bytes) -> bool:
    """Whether the start of a header has the version of encrypted segments."""
    return len(data) >= PREFIX_BYTES and int(_PREFIX.unpack_from(data)[1]) == ENCRYPTED_VERSION


def header_bytes_needed(data: bytes) -> int:
    """The length of a file's header in bytes, computed from its first twelve bytes."""
    return (
        _PREFIX.size + int(_PREFIX.unpack_from(data)[2]) + 4
        if len(data) >= _PREFIX.size
        else _PREFIX.size
    )


def encode_frame(
    seed: int, offset: int, kind: int, count: int, synced: int, payload: list[bytes]
) -> tuple[list[bytes], int, int]:
    """The chunks of a frame at `offset`, their total length in bytes, and the frame's CRC.
    `payload`: the msgpack stream in chunks. Raises `TooLarge`: a reader would treat a larger frame
    as damage."""
    body_length = SYNCED_BYTES + sum(map(len, payload))
    if body_length > BODY_BYTES_MAX or not 0 <= count <= COUNT_MAX:
        raise TooLarge(
            f"one frame has {count} entries in {body_length} bytes, and may have at most "
            f"{COUNT_MAX} in {BODY_BYTES_MAX}; commit less at once"
        )
    type_count = kind | count << 8
    start = _SYNCED.pack(synced)
    extend = google_crc32c.extend
    checksum = extend(seed, _SEED.pack(offset, body_length, type_count) + start)
    for piece in payload:
        checksum = extend(checksum, piece)
    return (
        [FRAME_HEADER.pack(body_length, checksum, type_count), start, *payload],
        FRAME_HEADER_BYTES + body_length,
        checksum,
    )


class Frame(NamedTuple):
    """One group commit; it counts as a whole or not at all. `end`: the offset after it."""

    offset: int
    end: int
    kind: int
    count: int  # type: ignore[assignment]  # as above: not tuple.count
    synced: int
    checksum: int
    payload: bytes


class NoFrame(NamedTuple):
    """Why there is no frame at an offset. `reason`: "end" (no more bytes), "zeros" (never written),
    "short" (a frame needs `needed` bytes) or "bad"."""

    reason: str
    needed: int = 0


def frame_seed(seed: int, offset: int, length: int, type_count: int) -> int:
    """The CRC over what precedes a frame's body. `seed`: `SegmentHeader.checksum_seed`."""
    return int(google_crc32c.extend(seed, _SEED.pack(offset, length, type_count)))


def decode_frame(seed: int, data: bytes, at: int, offset: int) -> Frame | NoFrame:
    """The frame that starts at `data[at]`; `offset`: its place in the segment."""
    if len(data) == at:
        return NoFrame("end")
    if len(data) - at < FRAME_HEADER_BYTES:
        return NoFrame("short", FRAME_HEADER_BYTES)
    length, checksum, type_count = FRAME_HEADER.unpack_from(data, at)
    if length == checksum == type_count == 0:
        return NoFrame("zeros")
    if not SYNCED_BYTES <= length <= BODY_BYTES_MAX:
        return NoFrame("bad")
    body = at + FRAME_HEADER_BYTES
    end = body + length
    if len(data) < end:
        return NoFrame("short", FRAME_HEADER_BYTES + length)
    start = body + SYNCED_BYTES
    head, payload = data[body:start], data[start:end]
    extend = google_crc32c.extend
    if extend(extend(seed, _SEED.pack(offset, length, type_count) + head), payload) != checksum:
        return NoFrame("bad")
    return Frame(
        offset,
        offset + FRAME_HEADER_BYTES + length,
        type_count & 0xFF,
        type_count >> 8,
        _SYNCED.unpack(head)[0],
        checksum,
        payload,
    )
