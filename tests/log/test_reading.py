"""A log is read from any position, also while another process writes it."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest

from imap_wal import log
from imap_wal.context import Context
from imap_wal.entry import VALUE
from imap_wal.errors import (
    CorruptLog,
    NoSuchLog,
    OutcomeUnknown,
)
from imap_wal.log import START, LogReader
from imap_wal.read import log_reader
from imap_wal.read.cluster import ClusterLog
from storage_backends import SegmentStore
from storage_backends.faults import FaultyStore
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.kit.effort import every, thorough
from tests.kit.standalone import create, everywhere, fill, reading, texts_of
from tests.log.log_processes import append_one, child
from tests.support import overwrite, segments


def test_a_reader_follows_while_another_process_takes_the_log_over(url: str) -> None:
    opened = log.create(url)
    fill(opened, "one")
    stop = threading.Event()
    tail = LogReader(url).tail(poll_s=0.002, stop=stop)
    own = opened.tail(poll_s=0.002, stop=stop)
    assert texts_of([next(tail), next(own)]) == ["one", "one"]
    with child(append_one, url, b"two") as (_, pipe):
        place = pipe.recv()
        assert str(next(tail).position) == place
        assert str(next(own).position) == place, "though the old writer has not noticed yet"
    with pytest.raises(OutcomeUnknown):
        fill(opened, "void")
    stop.set()
    assert list(tail) == [] and list(own) == []
    opened.close()


@every(2)
@pytest.mark.parametrize("kind", ["memory", "objects"])
def test_reading_starts_anywhere_in_segments_and_archives(
    kind: str, memory: MemoryStore, tmp_path: Path
) -> None:
    from storage_backends import open_store

    storage: SegmentStore = memory if kind == "memory" else open_store(f"objects+file://{tmp_path}")
    with create(storage) as opened:
        places = fill(opened, *range(12))
        everywhere(opened, storage, places)
        assert opened.archive() == 12
        everywhere(opened, storage, places)
        places += fill(opened, *range(8))
        assert opened.archive() == 8
        places += fill(opened, *range(8))
        opened.rotate()
        everywhere(opened, storage, places)


def test_archives_of_several_maps_are_read_in_position_order(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "MERGE_FILES_MAX", 3)
    with create(memory, segment_bytes=5000) as opened:
        for _ in range(3):
            for number in range(40):
                opened.append(f"map {number % 11}", (b"k%d" % number, b"%d" % number), (b"x", None))
            before = list(opened.read())
            opened.archive()
            assert not segments(memory)
            assert list(opened.read()) == before
            assert list(opened.read(before[33].position)) == before[33:]


@thorough
def test_memory_of_a_reader_does_not_grow_with_the_log(url: str) -> None:
    import tracemalloc

    with log.create(url, durability="os", segment_bytes=1024 * 1024) as opened:
        for _ in range(128):
            opened.append("m", *((b"k%d" % number, os.urandom(1024)) for number in range(512)))
        for source in ("segments", "archives"):
            list(itertools.islice(LogReader(url).read(), 10))
            tracemalloc.start()
            count = sum(1 for _ in LogReader(url).read())
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert count == 128 * 512
            assert peak < 32 * 1024 * 1024, f"{source}: {peak} bytes to read 64 MiB"
            opened.archive()


def test_damaged_frame_is_an_error_with_its_place(
    memory: MemoryStore,
) -> None:
    """The error names file and position; entries before the damage are read."""
    with create(memory) as opened:
        fill(opened, *range(9))
    path = segments(memory)[1]
    data = bytearray(memory.read(path))
    data[-3] ^= 1
    overwrite(memory, path, bytes(data))
    seen = []
    with pytest.raises(CorruptLog) as raised:
        for record in reading(memory).read():
            seen.append(record)  # noqa: PERF402
    assert raised.value.file == path
    assert texts_of(seen) == [str(number) for number in range(len(seen))] and 0 < len(seen) < 9


def test_a_reader_of_nothing_says_what_is_missing(memory: MemoryStore) -> None:
    for use in (reading(memory).read, reading(memory).tail):
        with pytest.raises(NoSuchLog, match="node 'log' in cluster 'log'"):
            next(use())
    with pytest.raises(NoSuchLog):
        reading(memory).oldest()
    with create(memory):
        with pytest.raises(NoSuchLog):
            list(reading(memory, node="other").read())
        assert list(reading(memory).read()) == [] and reading(memory).oldest() == START


def test_a_segment_whose_header_appears_between_two_reads_is_read(memory: MemoryStore) -> None:
    with create(memory) as opened:
        places = fill(opened, 1)
    (path,) = segments(memory)

    class Late(FaultyStore):
        """The first read of the segment is before its writer's first write."""

        def read(self, path_: str, offset: int = 0, length: int | None = None) -> bytes:
            data = super().read(path_, offset, length)
            if (
                path_ == path
                and sum(
                    operation.kind == "read" and operation.path == path
                    for operation in self.operations
                )
                == 1
            ):
                return bytes(len(data))
            return data

    assert [record.position for record in reading(Late(memory)).read()] == places


def test_log_in_a_folder_is_readable_by_map_tools(url: str, tmp_path: Path) -> None:
    """`ClusterLog`, which the commands for maps use, reads it."""
    with log.create(url) as opened:
        fill(opened, 1, 2)
    store = LocalStore(f"{tmp_path}/log")
    rows = [
        row
        for changes in ClusterLog(Context(store), "default", "log").changes()
        for row in changes.rows
    ]
    assert [row[VALUE] for row in rows] == [b"1", b"2"]
