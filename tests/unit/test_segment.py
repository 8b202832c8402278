"""The ends that a segment can have, and how they are read."""

from __future__ import annotations

import struct
from random import Random

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imap_wal import format
from imap_wal.errors import CorruptLog, ShortLog, UnsupportedVersion
from imap_wal.security.encryption_keys import NO_KEYS
from imap_wal.segment.frame_search import FrameSearch, shifted
from imap_wal.segment.reader import SegmentReader, SegmentTail, is_header_torn
from imap_wal.write.node_log import SegmentWriter
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.kit.effort import every
from tests.support import header, overwrite, row

PATH = "default/embedded/nodes/n1/wal/00000001-00000001.wal"


def write(
    store: MemoryStore | LocalStore, frames: int, preallocate: int = 0, *, sync: bool = True
) -> list[int]:
    """A segment of so many frames; returns where each begins, and where the last ends."""
    writer = SegmentWriter(store, PATH, header(), preallocate)
    offsets = []
    for number in range(frames):
        offsets.append(
            writer.append(
                format.ENTRIES,
                2,
                [row(f"k{number}", "v", 2 * number + 1), row(f"l{number}", "w", 2 * number + 2)],
            )
        )
        if sync:
            writer.sync()
    writer.close()
    return [*offsets, writer.size]


def read(store: MemoryStore | LocalStore) -> tuple[list[int], SegmentTail]:
    reader = SegmentReader(store, PATH)
    return [frame.offset for frame in reader.frames(NO_KEYS)], reader.tail()


def test_a_whole_segment_is_clean_also_with_preallocated_zeros(memory: MemoryStore) -> None:
    places = write(memory, 5, preallocate=4096)
    assert read(memory) == (places[:-1], SegmentTail("clean", places[-1], 4096))


def test_segment_cut_in_its_last_frame_is_torn(memory: MemoryStore) -> None:
    """A segment cut at any byte of its last frame has a torn tail."""
    places = write(memory, 3)
    whole = memory.read(PATH)
    for end in range(places[2] + 1, places[3]):
        overwrite(memory, PATH, whole[:end])
        assert read(memory) == (places[:2], SegmentTail("torn-tail", places[2], end)), (
            f"cut at byte {end}"
        )
    overwrite(memory, PATH, whole[: places[2]])
    assert read(memory) == (places[:2], SegmentTail("clean", places[2], places[2]))


def test_partial_last_frame_in_preallocated_space_is_torn(
    memory: MemoryStore,
) -> None:
    """A last frame of which only a beginning reached preallocated space is a torn tail."""
    places = write(memory, 3, preallocate=2048)
    whole = memory.read(PATH)
    for end in range(places[2] + 1, places[3]):
        if whole[end : places[3]].strip(b"\0"):
            overwrite(memory, PATH, whole[:end] + bytes(2048 - end))
            assert read(memory)[1].status == "torn-tail", f"zeros from byte {end}"


def test_a_random_garbage_tail_is_cut_and_never_read(memory: MemoryStore, seed: int) -> None:
    places = write(memory, 3)
    whole = memory.read(PATH)
    chance = Random(seed)
    for _ in range(200):
        garbage = chance.randbytes(chance.randrange(1, 300)) + b"\1"
        overwrite(memory, PATH, whole + garbage)
        found, tail = read(memory)
        assert found == places[:-1]
        assert tail == SegmentTail("torn-tail", places[-1], len(whole) + len(garbage))


@pytest.mark.parametrize("hit", range(4))
def test_damage_in_the_middle_counts_later_whole_frames(memory: MemoryStore, hit: int) -> None:
    """Damage in the middle is corrupt, and the whole frames after it are counted."""
    places = write(memory, 5, preallocate=4096)
    data = bytearray(memory.read(PATH))
    data[places[hit] + 15] ^= 0x10
    overwrite(memory, PATH, bytes(data))
    after = 4 - hit
    assert read(memory) == (
        places[:hit],
        SegmentTail("corrupt", places[hit], 4096, after, 2 * after, places[4]),
    )


def test_unsynced_damage_is_a_tail_with_counted_frames(
    memory: MemoryStore,
) -> None:
    """Damage above the last synced position is a torn tail; its whole frames are counted."""
    places = write(memory, 4, sync=False)
    data = bytearray(memory.read(PATH))
    data[places[1]] ^= 1
    overwrite(memory, PATH, bytes(data))
    assert read(memory)[1] == SegmentTail("torn-tail", places[1], places[-1], 2, 4, places[3])


def test_hole_in_place_of_a_synced_frame_is_corrupt(
    memory: MemoryStore,
) -> None:
    """A hole in place of a synced frame is corrupt, although it looks like unwritten space."""
    places = write(memory, 4, preallocate=4096)
    data = bytearray(memory.read(PATH))
    data[places[1] : places[2]] = bytes(places[2] - places[1])
    overwrite(memory, PATH, bytes(data))
    found, tail = read(memory)
    assert found == places[:1]
    assert tail.status == "corrupt"
    assert tail.frames_after == 2


def test_frame_of_unknown_type_is_an_error(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header())
    writer.append(9, 1, [row("a", "1")])
    writer.append(format.ENTRIES, 1, [row("b", "2")])
    writer.close()
    with pytest.raises(UnsupportedVersion, match="unknown type 9"):
        list(SegmentReader(memory, PATH).frames(NO_KEYS))


_frames = st.lists(
    st.tuples(
        st.sampled_from(sorted(format.TYPES)),
        st.lists(st.binary(max_size=40), min_size=1, max_size=4),
        st.booleans(),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=_frames, preallocate=st.sampled_from([0, 4096]))
def test_records_of_every_type_round_trip_in_order(
    memory: MemoryStore, written: list[tuple[int, list[bytes], bool]], preallocate: int
) -> None:
    """Records of every type are read in order, with their types."""
    memory.delete(PATH)
    writer = SegmentWriter(memory, PATH, header(), preallocate)
    for kind, payload, sync in written:
        writer.append(kind, len(payload), payload)
        if sync:
            writer.sync()
    writer.seal()
    reader = SegmentReader(memory, PATH)
    assert [(frame.kind, frame.count, frame.payload) for frame in reader.frames(NO_KEYS)] == [
        (kind, len(parts), b"".join(parts)) for kind, parts, _ in written
    ]
    assert reader.tail().status == "clean"
    assert writer.records == sum(
        len(parts) for kind, parts, _ in written if kind in format.OF_ENTRIES
    ), "only entries are counted as such"
    assert set(format.TYPES.values()) == {
        "entries",
        "metadata",
        "clean shutdown",
        "low-water mark",
        "entries, including clears",
    }


def test_reading_can_begin_at_and_stop_before_any_frame(memory: MemoryStore) -> None:
    places = write(memory, 5)
    for start in places[:-1]:
        assert [frame.offset for frame in SegmentReader(memory, PATH).frames(NO_KEYS, start)] == [
            place for place in places[:-1] if place >= start
        ]
        assert [
            frame.offset for frame in SegmentReader(memory, PATH).frames(NO_KEYS, None, start)
        ] == [place for place in places[:-1] if place < start]


def test_open_segment_is_read_to_its_last_whole_frame(
    memory: MemoryStore,
) -> None:
    writer = SegmentWriter(memory, PATH, header(), 4096)
    reader = SegmentReader(memory, PATH)
    assert list(reader.frames(NO_KEYS)) == []
    for number in range(3):
        offset = writer.append(format.ENTRIES, 1, [row(f"k{number}", "v")])
        assert [frame.offset for frame in reader.frames(NO_KEYS, reader.end)] == [offset]
        assert reader.tail().status == "clean"


def test_a_frame_larger_than_the_reading_window_is_read_whole(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header())
    giant = row("giant", "x" * 9_000_000)
    for payload in (row("a", "1"), giant, row("b", "2")):
        writer.append(format.ENTRIES, 1, [payload])
    assert [frame.payload for frame in SegmentReader(memory, PATH).frames(NO_KEYS)] == [
        row("a", "1"),
        giant,
        row("b", "2"),
    ]


def test_the_header_is_safe_before_the_first_frame_is_written(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header())
    assert writer.synced == writer.size == len(header().encode())


def test_a_frame_that_ends_in_zeros_is_found_after_damage(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros at the end of a segment are not read again, although they can be the end of a value."""
    monkeypatch.setattr("imap_wal.segment.reader.WINDOW_BYTES", 64)
    writer = SegmentWriter(memory, PATH, header())
    first = writer.append(format.ENTRIES, 1, [b"x" * 40])
    second = writer.append(format.ENTRIES, 1, [b"y" * 10 + bytes(300)])
    writer.close()
    data = bytearray(memory.read(PATH))
    data[first + 20] ^= 1
    for more in (0, 1, 500):
        overwrite(memory, PATH, bytes(data) + bytes(more))
        reader = SegmentReader(memory, PATH)
        assert list(reader.frames(NO_KEYS)) == []
        tail = reader.tail()
        assert (tail.frames_after, tail.last_after) == (1, second)


def test_sealing_frees_preallocated_space(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header(), 4096)
    writer.append(format.ENTRIES, 1, [row("a", "1")])
    writer.seal()
    assert memory.size(PATH) == writer.size < 4096


def test_cut_header_without_frames_is_header_torn(
    memory: MemoryStore,
) -> None:
    """A cut or empty header is torn, but not if frames are after it."""
    write(memory, 1)
    whole = memory.read(PATH)
    head = len(header().encode())
    for end in (0, 5, 8, 12, head - 1):
        for rest in (b"", bytes(4096)):
            overwrite(memory, PATH, whole[:end] + rest)
            assert is_header_torn(memory, PATH), f"{end} bytes of the header"
            with pytest.raises((ShortLog, CorruptLog)):
                SegmentReader(memory, PATH)
    for bit in range(head * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        overwrite(memory, PATH, bytes(data))
        assert not is_header_torn(memory, PATH), f"bit {bit} of the header"


def test_a_foreign_file_is_no_torn_header(memory: MemoryStore) -> None:
    overwrite(memory, PATH, b"notes")
    assert not is_header_torn(memory, PATH)


# ---- whole frames after damage: all are found, in linear time ------------------------------------


class Counted:
    """Counts the bytes that are passed to the CRC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        real = google_crc32c.extend

        def extend(crc: int, data: bytes) -> int:
            self.bytes += len(data)
            return int(real(crc, data))

        monkeypatch.setattr(google_crc32c, "extend", extend)


def frame_like(length: int, size: int, kind: int = 1) -> bytes:
    """Frame headers that a search can distinguish from real ones only by their CRC."""
    return (struct.pack("<IIIQ", length, 1, kind | 1 << 8, 0) * (size // 20 + 1))[:size]


SIZE = 1 << 18
HOSTILE = {
    "0x01": b"\1" * SIZE,
    "zeros": bytes(SIZE),
    "random bytes": Random(3).randbytes(SIZE),
    "headers of half the size": frame_like(SIZE // 2, SIZE),
    "headers of small frames": frame_like(300, SIZE),
    "headers every nine bytes of eighteen": (bytes(8) + b"\1" * 9 + bytes(20)) * (SIZE // 37),
    "the densest pattern": b"".join(
        bytes([0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0]) for _ in range(SIZE // 12)
    ),
    "small numbers": struct.pack("<Q", 70_000) * (SIZE // 8),
    "numbers of four bytes": struct.pack("<I", 1) * (SIZE // 4),
    "64 KiB claimed by every second byte": (b"\1\0" * 10 + bytes(12)) * (SIZE // 32),
}


@every(3)
@pytest.mark.parametrize("name", HOSTILE)
def test_search_after_damage_hashes_bounded_bytes(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The search after damage hashes a bounded number of bytes for each byte, with any content."""
    writer = SegmentWriter(memory, PATH, header())
    writer.append(format.ENTRIES, 1, [row("a", "1")])
    torn = writer.append(format.ENTRIES, 1, [HOSTILE[name]])
    whole = writer.append(format.ENTRIES, 1, [row("b", "2")])
    writer.close()
    data = bytearray(memory.read(PATH))
    data[torn + 4] ^= 1
    overwrite(memory, PATH, bytes(data))
    reader = SegmentReader(memory, PATH)
    assert len(list(reader.frames(NO_KEYS))) == 1
    counted = Counted(monkeypatch)
    tail = reader.tail()
    assert (tail.end, tail.frames_after, tail.last_after) == (torn, 1, whole)
    assert counted.bytes <= 75 * len(data)


hostile_parts = st.one_of(
    st.binary(max_size=200),
    st.builds(bytes, st.integers(0, 300)),
    st.builds(lambda size: b"\1" * size, st.integers(0, 300)),
    st.builds(
        frame_like,
        st.integers(0, 5000),
        st.integers(0, 2000),
        st.sampled_from(sorted(format.TYPES)),
    ),
    st.builds(
        lambda length, synced: struct.pack("<IIIQ", length, 7, 1 | 1 << 8, synced) + b"x" * 30,
        st.integers(8, 2**31 - 1),
        st.integers(0, 2**40),
    ),
    st.just(b"a copy of the segment so far"),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    payloads=st.lists(
        st.tuples(
            st.lists(hostile_parts, max_size=4),
            st.sampled_from(sorted(format.TYPES)),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    damaged=st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True), st.integers(0, 7), st.integers(1, 200), st.booleans()
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_every_whole_frame_after_damage_is_found_for_any_value(
    memory: MemoryStore,
    payloads: list[tuple[list[bytes], int, bool]],
    damaged: list[tuple[float, int, int, bool]],
) -> None:
    memory.delete(PATH)
    writer = SegmentWriter(memory, PATH, header())
    spans = []
    for parts, kind, sync in payloads:
        chunks = [memory.read(PATH) if part.startswith(b"a copy") else part for part in parts]
        offset = writer.append(kind, 1, chunks)
        spans.append((offset, writer.size))
        if sync:
            writer.sync()
    writer.close()
    whole = memory.read(PATH)
    data = bytearray(whole)
    first = spans[0][0]
    for where, bit, size, zero in damaged:
        at = first + int(where * (len(data) - first))
        data[at : at + size] = bytes(len(data[at : at + size])) if zero else data[at : at + size]
        data[at] ^= 0 if zero else 1 << bit
    overwrite(memory, PATH, bytes(data))
    kept = [start for start, end in spans if data[start:end] == whole[start:end]]
    reader = SegmentReader(memory, PATH)
    found = [frame.offset for frame in reader.frames(NO_KEYS)]
    found += [
        frame.offset for frame in FrameSearch(header().checksum_seed, bytes(data)).after(reader.end)
    ]
    assert found == kept
    assert reader.tail().frames_after == len([start for start in kept if start > reader.end])
    preallocated = bytes(data) + bytes(300)
    stripped = preallocated.rstrip(b"\0")
    zeros = len(preallocated) - len(stripped)
    search = FrameSearch(header().checksum_seed, stripped, zeros=zeros)
    assert [frame.offset for frame in search.after(first)] == [
        start for start in kept if start >= first
    ]
    overwrite(memory, PATH, preallocated)
    again = SegmentReader(memory, PATH)
    list(again.frames(NO_KEYS))
    assert again.tail().frames_after == len([start for start in kept if start > again.end])


def test_a_crc_is_shifted_as_bytes_that_follow_would_do(seed: int) -> None:
    chance = Random(seed)
    for _ in range(300):
        data, crc = chance.randbytes(chance.randrange(5000)), chance.getrandbits(32)
        assert google_crc32c.extend(crc, data) == shifted(crc, len(data)) ^ google_crc32c.extend(
            0, data
        )
        assert shifted(shifted(crc, len(data)), -len(data)) == crc
