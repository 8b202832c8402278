"""How a segment may end, and what is made of it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imap_wal import format
from imap_wal.errors import CorruptLog, ShortLog
from imap_wal.segment import SegmentReader, SegmentWriter, Tail, unborn
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.support import header, overwrite, row

PATH = "default/embedded/nodes/n1/wal/00000001-00000001.wal"


def write(store: MemoryStore | LocalStore, frames: int, preallocate: int = 0, *, sync: bool = True) -> list[int]:
    """A segment of so many frames; returns where each begins, and where the last ends."""
    writer = SegmentWriter(store, PATH, header(), preallocate)
    offsets = []
    for number in range(frames):
        offsets.append(writer.append(format.ENTRIES, 2, [row(f"k{number}", "v", 2 * number + 1), row(f"l{number}", "w", 2 * number + 2)]))
        if sync:
            writer.sync()
    writer.close()
    return [*offsets, writer.size]


def read(store: MemoryStore | LocalStore) -> tuple[list[int], Tail]:
    reader = SegmentReader(store, PATH)
    return [frame.offset for frame in reader.frames()], reader.tail()


def test_a_whole_segment_is_clean_also_with_preallocated_zeros(memory: MemoryStore) -> None:
    places = write(memory, 5, preallocate=4096)
    assert read(memory) == (places[:-1], Tail("clean", places[-1], 4096))


def test_a_segment_cut_at_any_byte_of_its_last_frame_has_a_torn_tail(memory: MemoryStore) -> None:
    places = write(memory, 3)
    whole = memory.read(PATH)
    for end in range(places[2] + 1, places[3]):
        overwrite(memory, PATH, whole[:end])
        assert read(memory) == (places[:2], Tail("torn-tail", places[2], end)), f"cut at byte {end}"
    overwrite(memory, PATH, whole[: places[2]])
    assert read(memory) == (places[:2], Tail("clean", places[2], places[2]))


def test_a_last_frame_of_which_only_a_beginning_reached_preallocated_space_is_a_torn_tail(memory: MemoryStore) -> None:
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
        assert tail == Tail("torn-tail", places[-1], len(whole) + len(garbage))


@pytest.mark.parametrize("hit", range(4))
def test_damage_in_the_middle_is_corrupt_and_counts_the_whole_frames_after_it(memory: MemoryStore, hit: int) -> None:
    places = write(memory, 5, preallocate=4096)
    data = bytearray(memory.read(PATH))
    data[places[hit] + 15] ^= 0x10
    overwrite(memory, PATH, bytes(data))
    after = 4 - hit
    assert read(memory) == (places[:hit], Tail("corrupt", places[hit], 4096, after, 2 * after, places[4]))


def test_damage_above_the_last_synced_position_is_a_tail_whose_whole_frames_are_counted(memory: MemoryStore) -> None:
    places = write(memory, 4, sync=False)
    data = bytearray(memory.read(PATH))
    data[places[1]] ^= 1
    overwrite(memory, PATH, bytes(data))
    assert read(memory)[1] == Tail("torn-tail", places[1], places[-1], 2, 4, places[3])


def test_a_hole_where_a_synced_frame_stood_is_corrupt_although_it_looks_like_unwritten_space(memory: MemoryStore) -> None:
    places = write(memory, 4, preallocate=4096)
    data = bytearray(memory.read(PATH))
    data[places[1] : places[2]] = bytes(places[2] - places[1])
    overwrite(memory, PATH, bytes(data))
    found, tail = read(memory)
    assert found == places[:1]
    assert tail.status == "corrupt"
    assert tail.frames_after == 2


def test_a_frame_of_an_unknown_type_is_an_error_and_not_skipped(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header())
    writer.append(9, 1, [row("a", "1")])
    writer.append(format.ENTRIES, 1, [row("b", "2")])
    writer.close()
    with pytest.raises(CorruptLog, match="unknown type 9"):
        list(SegmentReader(memory, PATH).frames())


_frames = st.lists(
    st.tuples(st.sampled_from(sorted(format.TYPES)), st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.booleans()), max_size=12
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=_frames, preallocate=st.sampled_from([0, 4096]))
def test_records_of_every_type_come_back_in_order_as_what_they_are(
    memory: MemoryStore, written: list[tuple[int, list[bytes], bool]], preallocate: int
) -> None:
    memory.delete(PATH)
    writer = SegmentWriter(memory, PATH, header(), preallocate)
    for kind, payload, sync in written:
        writer.append(kind, len(payload), payload)
        if sync:
            writer.sync()
    writer.seal()
    reader = SegmentReader(memory, PATH)
    assert [(frame.kind, frame.count, frame.payload) for frame in reader.frames()] == [
        (kind, len(parts), b"".join(parts)) for kind, parts, _ in written
    ]
    assert reader.tail().status == "clean"
    assert writer.records == sum(len(parts) for kind, parts, _ in written if kind == format.ENTRIES), "only entries are counted as such"
    assert set(format.TYPES.values()) == {"entries", "metadata", "clean shutdown", "low-water mark"}


def test_reading_goes_on_at_any_frame_and_stops_before_any(memory: MemoryStore) -> None:
    places = write(memory, 5)
    for start in places[:-1]:
        assert [frame.offset for frame in SegmentReader(memory, PATH).frames(start)] == [place for place in places[:-1] if place >= start]
        assert [frame.offset for frame in SegmentReader(memory, PATH).frames(None, start)] == [place for place in places[:-1] if place < start]


def test_a_segment_that_is_being_written_is_read_to_its_last_whole_frame(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header(), 4096)
    reader = SegmentReader(memory, PATH)
    assert list(reader.frames()) == []
    for number in range(3):
        offset = writer.append(format.ENTRIES, 1, [row(f"k{number}", "v")])
        assert [frame.offset for frame in reader.frames(reader.end)] == [offset]
        assert reader.tail().status == "clean"


def test_a_frame_larger_than_the_reading_window_is_read_whole(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header())
    giant = row("giant", "x" * 9_000_000)
    for payload in (row("a", "1"), giant, row("b", "2")):
        writer.append(format.ENTRIES, 1, [payload])
    assert [frame.payload for frame in SegmentReader(memory, PATH).frames()] == [row("a", "1"), giant, row("b", "2")]


def test_the_header_is_safe_before_the_first_frame_is_written(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header())
    assert writer.synced == writer.size == len(header().encode())


def test_sealing_gives_preallocated_space_back(memory: MemoryStore) -> None:
    writer = SegmentWriter(memory, PATH, header(), 4096)
    writer.append(format.ENTRIES, 1, [row("a", "1")])
    writer.seal()
    assert memory.size(PATH) == writer.size < 4096


def test_a_cut_or_empty_header_is_unborn_but_not_one_that_has_frames_behind_it(memory: MemoryStore) -> None:
    write(memory, 1)
    whole = memory.read(PATH)
    head = len(header().encode())
    for end in (0, 5, 8, 12, head - 1):
        for rest in (b"", bytes(4096)):
            overwrite(memory, PATH, whole[:end] + rest)
            assert unborn(memory, PATH), f"{end} bytes of the header"
            with pytest.raises((ShortLog, CorruptLog)):
                SegmentReader(memory, PATH)
    for bit in range(head * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        overwrite(memory, PATH, bytes(data))
        assert not unborn(memory, PATH), f"bit {bit} of the header"


def test_a_foreign_file_is_not_unborn(memory: MemoryStore) -> None:
    overwrite(memory, PATH, b"notes")
    assert not unborn(memory, PATH)


def test_looking_for_frames_in_megabytes_of_random_bytes_checks_hardly_any(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    places = write(memory, 3)
    overwrite(memory, PATH, memory.read(PATH)[: places[1]] + Random(3).randbytes(4 << 20))
    checked: list[int] = []
    real = format.decode_frame
    monkeypatch.setattr(format, "decode_frame", lambda *arguments: (checked.append(1), real(*arguments))[1])
    _, tail = read(memory)
    assert tail.status == "torn-tail"
    assert len(checked) < 20
