"""A restore reports damage and missing files with their positions, and reads a torn tail as an
end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imap_wal import format
from imap_wal.errors import CorruptLog, MissingNode, ShortLog
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import RecoveryPolicy
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.hooked import Hooked
from tests.kit.logs import append, cluster, node, values, view
from tests.support import copy_files, node_log, overwrite, segments


def test_a_torn_tail_of_the_newest_segment_is_dropped(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    append(log, put("a", "2", (1, 1, 1, 2)))
    log.close(clean=False)
    (path,) = segments(memory)
    overwrite(memory, path, memory.read(path)[:-3])
    assert values(view(memory)) == {"a": "1"}


def test_damage_in_a_sealed_segment_is_located(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 2)))
    path = segments(memory)[0]
    data = bytearray(memory.read(path))
    data[-1] ^= 1
    overwrite(memory, path, bytes(data))
    with pytest.raises(CorruptLog) as caught:
        view(memory)
    assert caught.value.file == path and caught.value.offset > 0


def test_damage_before_synced_frames_is_no_torn_tail(
    memory: MemoryStore,
) -> None:
    """The frames after the damage were synced, so it is corruption."""
    log = node(memory)
    for number in range(3):
        append(log, put("a", number, (1, 1, 1, number)))
    (path,) = segments(memory)
    first = next(iter(cluster(memory).changes())).first.frame
    data = bytearray(memory.read(path))
    data[first + 20] ^= 1
    overwrite(memory, path, bytes(data))
    with pytest.raises(CorruptLog) as caught:
        view(memory)
    assert caught.value.offset >= format.FRAME_HEADER_BYTES and caught.value.file == path


def test_a_missing_segment_is_named(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(3):
        append(log, put("a", number, (1, 1, 1, number)))
        log.rotate()
    memory.delete(segments(memory)[1])
    with pytest.raises(ShortLog, match=r"n1/wal/\*-00000002.wal"):
        view(memory)


def test_a_missing_last_segment_of_a_closed_log_is_found(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.close()
    memory.delete(segments(memory)[-1])
    with pytest.raises(ShortLog):
        view(memory)


def test_sealed_segment_cut_between_frames_is_short(memory: MemoryStore) -> None:
    """The next segment names a frame that is missing."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    end = log.end.frame
    append(log, put("a", "2", (1, 1, 1, 2)))
    cut = log.end.frame
    log.rotate()
    append(log, put("b", "1", (1, 1, 1, 3)))
    path = segments(memory)[0]
    overwrite(memory, path, memory.read(path)[:cut])
    assert end < cut
    with pytest.raises(ShortLog) as caught:
        view(memory)
    assert caught.value.file == path


@pytest.mark.parametrize("which", [0, 1])
def test_sealed_segment_without_its_frames_is_short(memory: MemoryStore, which: int) -> None:
    """It does not count as an empty one."""
    log = node(memory)
    for request in range(1, 4):
        append(log, put("a", str(request), (1, 1, 1, request)))
        log.rotate()
    path = segments(memory)[which]
    overwrite(memory, path, memory.read(path)[: SegmentReader(memory, path).first])
    with pytest.raises(ShortLog) as caught:
        view(memory)
    assert caught.value.file == path


def test_never_written_sealed_segment_is_no_damage(
    memory: MemoryStore,
) -> None:
    """A commit failed and was undone before the rotation."""
    log = node(memory)
    for request in range(1, 4):
        mark = log.mark()
        append(log, put("a", "taken back", (1, 1, 1, request)))
        assert log.rewind(mark)
        log.rotate()
        if request > 1:
            append(log, put("a", str(request), (1, 1, 1, request)))
            log.rotate()
    read = [list(SegmentReader(memory, path).whole_frames()) for path in segments(memory)]
    assert [len(frames) for frames in read] == [0, 0, 1, 0, 1]
    said = [SegmentReader(memory, path).header.previous_checksum for path in segments(memory)]
    assert said == [0, 1, 1, read[2][0].checksum, read[2][0].checksum], (
        "carried on over a segment without frames"
    )
    view(memory)
    for mode in ("absolute", "torn-tail", "point-in-time"):
        assert node_log(copy_files(memory), recovery_mode=mode).recovery.lost is None


def test_a_peer_that_is_writing_is_not_damaged(memory: MemoryStore) -> None:
    """A frame was incomplete when it was read; a moment later it is whole, with others after it."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    (path,) = segments(memory)
    half = len(memory.read(path)) + 20
    append(log, put("a", "2", (1, 1, 1, 2)))
    append(log, put("a", "3", (1, 1, 1, 3)))
    store = Hooked(memory)
    reads = 0

    def cut(name: str, data: bytes, offset: int) -> bytes:
        nonlocal reads
        reads += name == path
        return data[: max(0, half - offset)] if name == path and reads <= 3 else data

    store.on_read = cut
    assert values(view(store)) == {"a": "3"}


def test_a_segment_that_was_only_begun_is_empty(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    for rest in (b"", b"\0" * 100_000, b"IMAP"):
        path = segments(memory)[0].replace("-00000001.wal", "-00000002.wal")
        overwrite(memory, path, rest)
        assert values(view(memory)) == {"a": "1"}


def test_a_missing_node_is_a_decision(memory: MemoryStore) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    append(node(memory, "n2"), put("b", "1", (1, 1, 1, 1)))
    for file in memory.list("ns/c/nodes/n2"):
        memory.delete(file.path)
    with pytest.raises(MissingNode, match="'n2'"):
        view(memory)
    made = view(memory, recovery_policy=RecoveryPolicy.PARTIAL)
    assert values(made) == {"a": "1"} and list(made.missing) == ["n2"]


def test_another_disk_under_an_old_name_is_missing_node(memory: MemoryStore) -> None:
    """Its log id is not the registered one."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    made = cluster(memory)
    made.manifests.update(lambda manifest: replace(manifest, nodes={"n1": "another"}))
    with pytest.raises(MissingNode, match="but another is registered"):
        view(memory)
