"""Frames that a test changes."""

from __future__ import annotations

import struct

import google_crc32c

from imap_wal import format


def with_right_crc(data: bytes, seed: int, offset: int) -> bytes:
    """The segment with the checksum of the frame at `offset` computed again, as a forger would."""
    length, _, type_count = format.FRAME_HEADER.unpack_from(data, offset)
    body = offset + format.FRAME_HEADER_BYTES
    crc = google_crc32c.extend(
        format.frame_seed(seed, offset, length, type_count), data[body : body + length]
    )
    return data[: offset + 4] + struct.pack("<I", crc) + data[offset + 8 :]
