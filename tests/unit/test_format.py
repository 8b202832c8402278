"""The bytes of a segment: any change of them is detected, and three kinds of damage are three
different errors."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imap_wal import format
from imap_wal.errors import CorruptLog, LogError, ShortLog, TooLarge, UnsupportedVersion
from imap_wal.format import Frame, NoFrame, Position
from imap_wal.security.encryption_keys import NO_KEYS
from imap_wal.segment.reader import SegmentReader
from storage_backends.memory import MemoryStore
from tests.support import header, overwrite, row

PATH = "default/embedded/nodes/n1/wal/00000001-00000001.wal"


def small_segment() -> bytes:
    """A header, three frames, each written after the one before was synced, and preallocated
    zeros."""
    head = header()
    data = head.encode()
    for payload in ([row("a", "1"), row("b", "2", 2)], [row("a", None, 3)], [row("c", "3", 4)]):
        chunks, _, _ = format.encode_frame(
            head.checksum_seed, len(data), format.ENTRIES, len(payload), len(data), payload
        )
        data += b"".join(chunks)
    return data + bytes(24)


def frames(store: MemoryStore, data: bytes) -> tuple[list[Frame], str]:
    overwrite(store, PATH, data)
    reader = SegmentReader(store, PATH)
    return list(reader.frames(NO_KEYS)), reader.tail().status


def test_every_single_flipped_bit_of_a_segment_is_seen(memory: MemoryStore) -> None:
    whole = small_segment()
    expected, status = frames(memory, whole)
    assert len(expected) == 3
    assert status == "clean"
    for at in range(len(whole) * 8):
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        try:
            found, status = frames(memory, bytes(data))
        except LogError:
            continue
        assert found == expected[: len(found)], f"bit {at}: a frame was read changed"
        assert status != "clean", f"bit {at}: unseen"


def test_flipped_bit_in_synced_frames_is_corruption(
    memory: MemoryStore,
) -> None:
    """Every single flipped bit below the last synced place is corruption, not a torn tail."""
    whole = small_segment()
    expected, _ = frames(memory, whole)
    for at in range(expected[0].offset * 8, expected[2].offset * 8):
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        assert frames(memory, bytes(data))[1] == "corrupt", f"bit {at}"


def test_frame_copied_within_its_segment_does_not_verify() -> None:
    head = header()
    chunks, length, _ = format.encode_frame(
        head.checksum_seed, 200, format.ENTRIES, 1, 0, [row("a", "1")]
    )
    data = b"".join(chunks)
    assert isinstance(format.decode_frame(head.checksum_seed, data, 0, 200), Frame)
    assert format.decode_frame(head.checksum_seed, data, 0, 200 + length) == NoFrame("bad")


def test_a_stale_frame_of_a_recycled_segment_does_not_verify() -> None:
    chunks, _, _ = format.encode_frame(
        header().checksum_seed, 200, format.ENTRIES, 1, 0, [row("a", "1")]
    )
    other = header(segment_id=b"\xff" * 16)
    assert format.decode_frame(other.checksum_seed, b"".join(chunks), 0, 200) == NoFrame("bad")


@given(
    ours=st.binary(min_size=16, max_size=16),
    theirs=st.binary(min_size=16, max_size=16),
    offset=st.integers(0, 2**40),
    elsewhere=st.integers(0, 2**40),
    kind=st.sampled_from(sorted(format.TYPES)),
    payload=st.binary(max_size=200),
)
def test_frame_is_accepted_only_at_its_own_place(
    ours: bytes, theirs: bytes, offset: int, elsewhere: int, kind: int, payload: bytes
) -> None:
    """A whole frame is accepted only in its segment and at its place. A segment that was recycled,
    copied, or moved by some bytes may have older frames there."""
    seed, foreign = header(segment_id=ours).checksum_seed, header(segment_id=theirs).checksum_seed
    data = b"".join(format.encode_frame(seed, offset, kind, 1, 0, [payload])[0])
    for its_seed, place in (
        (seed, offset),
        (seed, elsewhere),
        (foreign, offset),
        (foreign, elsewhere),
    ):
        found = format.decode_frame(its_seed, data, 0, place)
        if (its_seed, place) == (seed, offset):
            assert isinstance(found, Frame)
            assert (found.kind, found.payload) == (kind, payload)
        else:
            assert found == NoFrame("bad")


@pytest.mark.parametrize(
    ("data", "reason", "needed"),
    [
        (b"", "end", 0),
        (bytes(12), "zeros", 0),
        (bytes(3), "short", 12),
        (format.FRAME_HEADER.pack(100, 1, 1), "short", 112),
        (format.FRAME_HEADER.pack(7, 1, 1) + bytes(100), "bad", 0),
        (format.FRAME_HEADER.pack(2**31, 1, 1) + bytes(100), "bad", 0),
        (format.FRAME_HEADER.pack(8, 1, 1) + bytes(8), "bad", 0),
    ],
)
def test_bytes_that_are_no_frame_have_a_reason(data: bytes, reason: str, needed: int) -> None:
    assert format.decode_frame(7, data, 0, 0) == NoFrame(reason, needed)


def test_frame_counts_entries_and_records_last_sync() -> None:
    """A frame has the number of its entries, and the offset that was synced before it."""
    chunks, length, checksum = format.encode_frame(
        7, 500, format.METADATA, format.COUNT_MAX, 480, [b"abc", b"de"]
    )
    data = b"x" * 9 + b"".join(chunks)
    assert format.decode_frame(7, data, 9, 500) == Frame(
        500, 500 + length, format.METADATA, format.COUNT_MAX, 480, checksum, b"abcde"
    )


def test_a_header_is_decoded_as_it_was_encoded() -> None:
    head = header(namespace="ns/ä", node="a b", previous_checksum=2**32 - 1, epoch=2**31)
    assert format.decode_header(head.encode() + b"rest", "f") == (head, len(head.encode()))


@pytest.mark.parametrize("length", [*range(1, len(header().encode()), 7), 11, 12, 13])
def test_a_file_that_ends_inside_its_header_is_short(length: int) -> None:
    with pytest.raises(ShortLog, match="ends inside the segment header"):
        format.decode_header(header().encode()[:length], "f")


def test_a_header_that_was_never_written_is_short() -> None:
    with pytest.raises(ShortLog, match="never written"):
        format.decode_header(bytes(4096), "f")


def test_a_foreign_file_is_reported_as_corrupt() -> None:
    with pytest.raises(CorruptLog, match="not a segment of imap-wal"):
        format.decode_header(b"PAR1" + bytes(range(1, 200)), "f")


def test_newer_version_and_flipped_version_are_distinct() -> None:
    """A newer version is not damage, and a damaged version number is not a newer version."""
    data = bytearray(header().encode())
    data[8:10] = struct.pack("<H", 3)
    with pytest.raises(CorruptLog, match="checksum"):
        format.decode_header(bytes(data), "f")
    data[-4:] = struct.pack("<I", google_crc32c.value(bytes(data[:-4])))
    with pytest.raises(
        UnsupportedVersion, match=r"version 3; this imap-wal reads versions 1 and 2.*upgrade"
    ) as raised:
        format.decode_header(bytes(data), "f")
    assert raised.value.file == "f"


# Numbers with every count of digits, also beyond what one letter can say; and neighbours where the
# count of digits grows.
_number = st.integers(0, 45).flatmap(
    lambda digits: (
        st.integers(0, 10**digits) | st.integers(-2, 2).map(lambda near: max(10**digits + near, 0))
    )
)
_position = st.builds(Position, _number, _number, _number, _number)


@given(_position, _position)
def test_positions_order_alike_as_tuples_and_as_text(first: Position, second: Position) -> None:
    assert (first < second) == (str(first) < str(second))
    assert (first == second) == (str(first) == str(second))


@given(_position, st.integers(0, 3), _number)
def test_positions_order_alike_as_tuples_and_text(first: Position, field: int, other: int) -> None:
    """Positions that differ in one field order alike as tuples and as text."""
    second = Position._make((*first[:field], other, *first[field + 1 :]))
    assert (first < second, first == second) == (
        str(first) < str(second),
        str(first) == str(second),
    )


def test_positions_sort_as_text_after_a_hundred_million_segments() -> None:
    assert (
        str(Position(1, 99_999_999, 0, 0))
        < str(Position(1, 100_000_000, 0, 0))
        < str(Position(1, 1_000_000_000, 0, 0))
        < str(Position(2, 1, 0, 0))
    )


@given(_position)
def test_a_position_is_parsed_from_its_text(position: Position) -> None:
    assert Position.parse(str(position)) == position
    assert Position.parse(".".join(map(str, position))) == position, (
        "without zeros in front, and without letters"
    )


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (Position(2, 7, 4096, 3), "00000002.00000007.000000004096.00000003"),
        (
            Position(99_999_999, 99_999_999, 999_999_999_999, 99_999_999),
            "99999999.99999999.999999999999.99999999",
        ),
        (Position(1, 100_000_000, 0, 0), "00000001.a100000000.000000000000.00000000"),
        (Position(1, 9_999_999_999, 10**12, 0), "00000001.b9999999999.a1000000000000.00000000"),
        (Position(10**33, 10**34, 10**38, 10**60), f"z{10**33}.za{10**34}.za{10**38}.zza{10**60}"),
    ],
)
def test_the_text_of_a_position(position: Position, text: str) -> None:
    assert str(position) == text and Position.parse(text) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.2.3",
        "1.2.3.4.5",
        "a.b.c.d",
        "1.2..4",
        "1.a.3.4",
        "1.a2.3.4",
        "1.a00000002.3.4",
        "1.b100000000.3.4",
        "1.A100000000.3.4",
        "1.100000000a.3.4",
        "1.2.a100000000.4",
        "a100000000.2.3",
    ],
)
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Position.parse(text)


@given(st.binary(max_size=200))
def test_random_bytes_are_never_a_frame(data: bytes) -> None:
    if data:
        assert isinstance(format.decode_frame(header().checksum_seed, data, 0, 77), NoFrame)


class _Claims(bytes):
    """Bytes that report a length of 1 GiB."""

    def __len__(self) -> int:
        return 2**30


def test_unreadable_frame_is_refused_before_it_is_written() -> None:
    """A frame that no reader would accept is refused before any byte of it is written."""
    with pytest.raises(TooLarge, match="commit less at once"):
        format.encode_frame(1, 0, format.ENTRIES, 1, 0, [_Claims(), _Claims()])
    with pytest.raises(TooLarge):
        format.encode_frame(1, 0, format.ENTRIES, format.COUNT_MAX + 1, 0, [b""])
