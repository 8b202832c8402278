"""After a clean stop, an open reads only the last frame; otherwise it scans from the checkpoint."""

from __future__ import annotations

import itertools

import pytest

from imap_wal import format, layout
from imap_wal.errors import LogError, ShortLog
from storage_backends.memory import MemoryStore
from tests.kit.damages import entries, flip, history, offsets
from tests.support import copy_files, node_log, overwrite, row, segments

_numbers = itertools.count()


class Counting(MemoryStore):
    """Counts the bytes that are read of segments."""

    def __init__(self, source: MemoryStore) -> None:
        super().__init__(f"counting-{next(_numbers)}")
        for file in source.list(""):
            self.create(file.path, source.read(file.path))
        self.bytes = 0

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(path, offset, length)
        self.bytes += len(data) if path.endswith(".wal") else 0
        return data


@pytest.mark.parametrize("frames", [10, 2000])
def test_clean_start_reads_only_the_last_frame(memory: MemoryStore, frames: int) -> None:
    """The length of the log does not matter."""
    log = node_log(memory, segment_bytes=1 << 30)
    for number in range(frames):
        log.write(format.ENTRIES, 1, [row(str(number), "v" * 100, number + 1)])
    log.sync()
    log.close()
    store = Counting(memory)
    again = node_log(store)
    assert again.recovery.clean
    assert store.bytes < 5000
    assert again.requests == log.requests


def test_an_unclean_start_scans_from_the_last_checkpoint(memory: MemoryStore) -> None:
    log = node_log(memory, segment_bytes=1 << 30)
    for number in range(2000):
        log.write(format.ENTRIES, 1, [row(str(number), "v" * 100, number + 1)])
    log.close()
    second = node_log(memory)
    second.write(format.ENTRIES, 1, [row("after", "v", 2001)])
    second.sync()
    store = Counting(copy_files(memory))
    third = node_log(store)
    assert (third.recovery.frames, third.recovery.clean) == (
        2,
        False,
    )  # the clean-shutdown frame, and all after it
    assert store.bytes < 10_000


def test_clean_log_without_its_last_frame_is_damaged(memory: MemoryStore) -> None:
    """It does not count as a clean one."""
    log = node_log(memory)
    for number in range(3):
        log.write(format.ENTRIES, 1, [row(str(number), "v", number + 1)])
    log.close()
    path = segments(memory)[0]
    whole, ends = memory.read(path), offsets(memory, path)
    for end in (ends[3], ends[3] + 3, ends[4] - 1, ends[2]):
        left = copy_files(memory)
        overwrite(left, path, whole[:end])
        with pytest.raises(LogError):
            node_log(left)
        if end >= ends[3]:
            node_log(left, recovery_mode="point-in-time")
            assert entries(left) == [0, 1, 2]
    left = copy_files(memory)
    left.delete(path)
    with pytest.raises(ShortLog, match="missing"):
        node_log(left)
    node_log(left, recovery_mode="point-in-time")
    assert entries(left) == []


def test_requests_of_dropped_entries_are_not_duplicates(memory: MemoryStore) -> None:
    """The last request of a session is that of its last entry that was kept."""
    history(memory)
    left = copy_files(memory)
    flip(left, 1, 2)
    assert node_log(left, recovery_mode="point-in-time").requests == {1: 6}
    assert layout.parse_wal_path(segments(left)[-1]) == (1, 3)
