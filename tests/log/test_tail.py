"""A tail sees every entry that was appended, once, and ends with an error where it cannot."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from imap_wal import log
from imap_wal.clock import SeededRandomness
from imap_wal.errors import (
    MissingNode,
    StorageUnavailable,
)
from imap_wal.log import START, LogReader, Position, Record
from imap_wal.read.log_reader import Bound
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.standalone import SMALL, create, fill, reading, texts_of
from tests.log.log_processes import child, tail_until, write_until_killed
from tests.support import Threads, eventually


def collect(tail: Any) -> tuple[list[Record], Callable[[], None]]:
    """The entries that a thread has read from `tail`, and a function that waits for its end."""
    found: list[Record] = []

    def work() -> None:
        for record in tail:
            found.append(record)  # noqa: PERF402  # one by one: other threads read the list

    return found, Threads(work).join


def test_tail_sees_an_entry_once_its_append_returned(memory: MemoryStore) -> None:
    """It sees the entry at once, and only once."""
    opened = create(memory)
    found, join = collect(opened.tail(poll_s=60))  # only a commit can wake it
    slow, stop = reading(memory), threading.Event()
    other, join_other = collect(slow.tail(poll_s=0.001, stop=stop))
    for number in range(60):
        place = opened.append("m", (b"k", b"%d" % number))
        assert next(opened.read(place)).position == place
        assert next(slow.read(place)).position == place
        eventually(
            lambda place=place: found and found[-1].position == place, "the entry in the tail"
        )
        if number % 20 == 7:
            opened.archive()
        if number % 20 == 13:  # only after the other tail has read it
            eventually(
                lambda number=number: len(other) == number + 1, "the entry in the other tail"
            )
            opened.shrink(place, uncovered=True)
    opened.close()
    join()
    eventually(lambda: len(other) == 60, "all in the other tail")
    stop.set()
    join_other()
    assert (
        [record.position for record in found]
        == [record.position for record in other]
        == sorted(record.position for record in found)
    )


def test_tail_ends_with_its_closed_log(
    memory: MemoryStore,
) -> None:
    """It has read all that was acknowledged."""
    opened = create(memory)
    found, join = collect(opened.tail(poll_s=60))
    fill(opened, *range(50))
    opened.close()
    join()
    assert len(found) == 50


def test_a_tail_stops_when_its_event_is_set(memory: MemoryStore) -> None:
    with create(memory) as opened:
        fill(opened, *range(5))
        stop = threading.Event()
        tail = reading(memory).tail(stop=stop)
        next(tail)
        stop.set()
        assert list(tail) == []
        assert list(reading(memory).tail(stop=stop)) == []


def test_a_tail_waits_at_its_start_position(memory: MemoryStore) -> None:
    with create(memory) as opened:
        last = fill(opened, *range(5))[-1]
        found, join = collect(opened.tail(last.after(), poll_s=0.01))
        fill(opened, "new")
    join()
    assert texts_of(found) == ["new"]


def test_tail_in_another_process_sees_everything(url: str) -> None:
    """The log is rotated and archived meanwhile."""
    with log.create(url, **SMALL) as opened:
        start = fill(opened, "begin")[0]
        with child(tail_until, url, str(start), b"end") as (_, pipe):
            assert pipe.recv() == (str(start), b"begin")
            sent = []
            for number in range(200):
                value = b"end" if number == 199 else b"%d" % number
                sent.append((str(opened.append("m", (b"k", value))), value))
                if number % 37 == 0:
                    opened.archive()
            assert [pipe.recv() for _ in sent] == sent


def test_killed_writer_leaves_acknowledged_entries_to_readers(url: str) -> None:
    """The tail has read them, or reads them after the kill."""
    log.create(url).close()
    stop = threading.Event()
    found, join = collect(LogReader(url).tail(poll_s=0.002, stop=stop))
    acknowledged: list[str] = []
    for _ in range(3):
        with child(write_until_killed, url) as (process, pipe):
            acknowledged += [pipe.recv() for _ in range(50)]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            with_rest: list[str] = []
            try:
                while True:
                    with_rest.append(pipe.recv())
            except EOFError:
                acknowledged += with_rest
    log.open(url).close()
    eventually(
        lambda: {str(record.position) for record in found} >= set(acknowledged),
        "all acknowledged entries",
        10,
    )
    time.sleep(0.05)
    stop.set()
    join()
    seen = [str(record.position) for record in found]
    assert seen == sorted(set(seen))
    assert seen == [str(record.position) for record in LogReader(url).read()]


def test_a_failed_tail_continues_from_its_last_position(memory: MemoryStore) -> None:
    faulty = FaultyStore(memory)
    with create(memory) as opened:
        places = fill(opened, *range(9))
        seen: list[Position] = []
        for at in range(1, 60):
            faulty.plan, faulty._seen = Plan((Fault("error", at=at),)), [0]
            with pytest.raises(StorageUnavailable):
                for record in reading(faulty).tail(seen[-1].after() if seen else START, poll_s=0):
                    seen.append(record.position)  # noqa: PERF401
        assert seen == places


def test_limited_reader_continues_in_the_same_segment(
    memory: MemoryStore,
) -> None:
    """Its limit advances, and it continues where it stopped."""

    class Limited(Bound):
        position: Position | None = None

        def limit(self) -> Position | None:
            return self.position

    with create(memory) as opened:
        places = fill(opened, *range(9))
    assert places[1].segment == places[0].segment < places[-1].segment
    bound = Limited()
    tail = reading(memory, bound=bound).tail(poll_s=0)
    seen = []
    for place in places:
        bound.position = place
        seen.append(next(tail).position)
    assert seen == places


def test_a_tail_does_not_read_again_what_it_has_read(memory: MemoryStore) -> None:
    class Counting(FaultyStore):
        count = 0

        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            data = super().read(path, offset, length)
            self.count += len(data)
            return data

    counting = Counting(memory)
    with create(memory, segment_bytes=1024 * 1024) as opened:
        tail = reading(counting).tail(poll_s=0.001)
        for _ in range(300):
            fill(opened, "x" * 200)
            next(tail)
        assert counting.count < 300 * 6000, (
            "the segment's front and a frame each time, not all 80 KiB"
        )


def test_tail_reports_another_disk_under_its_log(memory: MemoryStore) -> None:
    """The log was replaced by another one with the same name."""
    opened = create(memory)
    fill(opened, 1)
    tail = reading(memory).tail(poll_s=0.001)
    next(tail)
    opened.close()
    for file in memory.list(""):
        if "/nodes/" in file.path:
            memory.delete(file.path)
    with create(memory, recovery_policy="partial", randomness=SeededRandomness(2)) as other:
        fill(other, 2)
        other.archive()
        with pytest.raises(MissingNode, match="its log was replaced"):
            next(tail)
