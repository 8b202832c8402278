"""The log of one node after a crash, and how the next open continues."""

from __future__ import annotations

import pytest

from imap_wal import format, layout
from imap_wal.errors import CorruptLog, MissingNode, ShortLog
from imap_wal.segment.reader import SegmentReader
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from tests.kit.effort import every
from tests.kit.writers import manifest, write
from tests.support import IDENTITY, copy_files, embedded, header, node_log, overwrite, row, segments


def kinds(store: SegmentStore) -> list[list[str]]:
    """The kinds of frames in each segment."""
    return [
        [format.TYPES[frame.kind] for frame in SegmentReader(store, path).whole_frames()]
        for path in segments(store)
    ]


def test_clean_shutdown_is_recorded_in_log_and_manifest(memory: MemoryStore) -> None:
    """Both the last frame and the manifest show it."""
    log = node_log(memory)
    log.requests[1] = 2
    write(log, 1, 2)
    log.close()
    assert kinds(memory) == [["entries", "entries", "clean shutdown"]]
    assert manifest(memory).clean
    assert manifest(memory).requests == {1: 2}
    again = node_log(memory)
    assert again.recovery.clean
    assert again.requests == {1: 2}
    assert not manifest(memory).clean


def test_highest_request_per_session_survives_a_kill(
    memory: MemoryStore,
) -> None:
    """The next open finds it."""
    log = node_log(memory, segment_bytes=300)
    for request in range(1, 20):
        log.write(
            format.ENTRIES,
            2,
            [row("a", "v", request, session=1), row("b", "v", request * 2, session=2)],
        )
        log.sync()
        if log.full:
            log.rotate()
    left = copy_files(memory)
    again = node_log(left)
    assert len(segments(left)) > 3
    assert again.requests == {1: 19, 2: 38}
    assert (again.recovery.frames, again.recovery.records, again.recovery.clean) == (19, 38, False)


@every(2)
@pytest.mark.parametrize("preallocate", [False, True])
def test_log_cut_in_its_last_frame_opens_with_new_epoch(
    memory: MemoryStore, preallocate: bool
) -> None:
    """The log is cut at each byte of the frame."""
    log = node_log(memory, preallocate=preallocate, segment_bytes=1000)
    write(log, 1, 2)
    start = log.end.frame
    size = SegmentReader(memory, segments(memory)[0])
    list(size.whole_frames())
    whole = memory.read(segments(memory)[0])
    for cut in range(start, size.end):
        left = copy_files(memory)
        overwrite(
            left, segments(left)[0], whole[:cut] + (bytes(len(whole) - cut) if preallocate else b"")
        )
        again = node_log(left)
        assert again.requests == {1: 1}, f"cut at byte {cut}"
        assert again.epoch == 2
        assert bool(again.recovery.torn_bytes) == bool(whole[start:cut].strip(b"\0"))
        write(again, 3)
        third = node_log(copy_files(left))
        assert third.requests == {1: 3}
        assert [len(frames) for frames in kinds(left)] == [1, 1]


@every(2)
@pytest.mark.parametrize("rest", [0, 4096])
def test_crash_before_first_commit_leaves_no_damage(memory: MemoryStore, rest: int) -> None:
    """The segment has a header, or a part of one."""
    log = node_log(memory)
    write(log, 1)
    log.rotate()
    path = layout.wal_path(IDENTITY.node_folder, 1, 2)
    head = header(number=2).encode()
    for end in range(len(head)):
        left = copy_files(memory)
        left.create(path, head[:end] + bytes(rest))
        again = node_log(left)
        assert again.requests == {1: 1}, f"{end} bytes of the header"
        write(again, 2)
        assert segments(left)[-1].endswith("00000002-00000002.wal"), "its number is used again"
        assert node_log(copy_files(left)).requests == {1: 2}
        assert contents_of_m(left) == {b"k1": b"v", b"k2": b"v"}


def contents_of_m(store: SegmentStore) -> dict[bytes, bytes]:
    with embedded(copy_files(store)) as opened:
        return dict(opened.map("m", raw=True).items())


def test_flipped_header_bit_never_hides_the_newest_segment(
    memory: MemoryStore,
) -> None:
    """Any flipped bit of the header makes the open fail."""
    log = node_log(memory)
    write(log, 1, 2)
    path = segments(memory)[0]
    whole = memory.read(path)
    for bit in range(len(header().encode()) * 8):
        left = copy_files(memory)
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        overwrite(left, path, bytes(data))
        with pytest.raises((CorruptLog, ShortLog)) as raised:
            node_log(left)
        assert raised.value.file == path, f"bit {bit}"
        assert left.read(path) == bytes(data), "the file was not changed"
        assert not left._medium.locks, "the lock was released"


def test_damaged_synced_frame_stops_the_open(
    memory: MemoryStore,
) -> None:
    """The error names file and position."""
    log = node_log(memory)
    write(log, 1)
    place = log.end.frame
    write(log, 2, 3)
    path = segments(memory)[0]
    data = bytearray(memory.read(path))
    data[place + 14] ^= 4
    left = copy_files(memory)
    overwrite(left, path, bytes(data))
    with pytest.raises(CorruptLog, match=r"2 whole frames after it") as raised:
        node_log(left)
    assert (raised.value.file, raised.value.offset) == (path, place)
    assert left.read(path) == bytes(data)


def test_torn_tail_before_the_last_segment_is_corruption(memory: MemoryStore) -> None:
    """Only the newest segment can have a torn tail."""
    log = node_log(memory)
    write(log, 1, 2)
    log.rotate()
    write(log, 3)
    left = copy_files(memory)
    first = segments(left)[0]
    overwrite(left, first, left.read(first)[:-3])
    with pytest.raises(CorruptLog) as raised:
        node_log(left)
    assert raised.value.file == first


def test_empty_older_segment_is_short_and_empty_newest_harmless(
    memory: MemoryStore,
) -> None:
    """An older segment had frames; in the newest one nothing was acknowledged."""
    log = node_log(memory)
    write(log, 1)
    log.rotate()
    write(log, 2)
    older, newest = segments(memory)
    left = copy_files(memory)
    overwrite(left, older, b"")
    with pytest.raises(ShortLog) as raised:
        node_log(left)
    assert raised.value.file == older
    left = copy_files(memory)
    left.create(newest.replace("00000002.wal", "00000003.wal"), b"")
    assert node_log(left).requests == {1: 2}


def test_foreign_files_in_the_log_directory_are_left_alone(memory: MemoryStore) -> None:
    log = node_log(memory)
    write(log, 1)
    folder = f"{IDENTITY.node_folder}/wal"
    for name in ("notes.txt", "00000001-00000001.wal.bak", "1-2.wal", ".hidden"):
        memory.create(f"{folder}/{name}", b"mine")
    left = copy_files(memory)
    again = node_log(left)
    assert again.requests == {1: 1}
    write(again, 2)
    again.close()
    assert contents_of_m(left) == {b"k1": b"v", b"k2": b"v"}
    assert left.read(f"{folder}/notes.txt") == b"mine"


def test_foreign_file_with_a_segment_name_is_not_deleted(memory: MemoryStore) -> None:
    """The open is refused."""
    write(node_log(memory), 1)
    left = copy_files(memory)
    path = layout.wal_path(IDENTITY.node_folder, 1, 2)
    left.create(path, b"my notes")
    with pytest.raises((CorruptLog, ShortLog)):
        node_log(left)
    assert left.read(path) == b"my notes"


def test_new_disk_under_known_node_name_is_refused(
    memory: MemoryStore,
) -> None:
    """It does not count as an empty log."""
    log = node_log(memory)
    write(log, 1)
    log.close()
    for file in memory.list(IDENTITY.node_folder):
        memory.delete(file.path)
    with pytest.raises(MissingNode, match="lost or replaced"):
        node_log(memory, seed=2)
    assert node_log(memory, seed=2, recovery_policy="partial").requests == {}


def test_reopening_many_times_without_writing_leaves_no_segments(memory: MemoryStore) -> None:
    for _ in range(5):
        node_log(memory).close()
    assert segments(memory) == []
    assert manifest(memory).epoch == 5


def test_session_is_kept_only_for_a_plug_in(memory: MemoryStore) -> None:
    """A writer without the id of a plug-in gets a new one each time."""
    log = node_log(memory)
    assert [
        log.new_session("p"),
        log.new_session("q"),
        log.new_session("p"),
        log.new_session(),
        log.new_session(),
    ] == [1, 2, 1, 3, 4]
    log.close()
    assert node_log(memory).new_session("q") == 2
