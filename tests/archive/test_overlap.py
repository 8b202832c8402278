"""Archives are written by other threads while the next rows are read."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imap_wal.entry import DataEntry
from imap_wal.parquet import archive_rows
from imap_wal.parquet.archive_rows import ArchiveRows
from imap_wal.parquet.scratch import Scratch
from imap_wal.retention import overlap
from imap_wal.retention.overlap import WAITING, Background, Overlap, beside
from tests.kit.reading_threads import reading_threads
from tests.support import eventually


def test_results_are_in_order_and_two_jobs_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "THREADS", 2)
    meeting = threading.Barrier(2, timeout=60)

    def job(number: int) -> int:
        meeting.wait()
        return number

    with Overlap[int]() as jobs:
        for number in range(8):
            jobs.run(partial(job, number))
        assert jobs.results() == [*range(8)]


def test_a_job_waits_for_a_free_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "THREADS", 3)
    mutex, running, most = threading.Lock(), 0, 0

    def job() -> None:
        nonlocal running, most
        with mutex:
            running += 1
            most = max(most, running)
        with mutex:
            running -= 1

    with Overlap[None]() as jobs:
        for _ in range(200):
            started = len([each for each in jobs._started if not each.done()])
            assert started <= 3, "its rows are in memory"
            jobs.run(job)
    assert 1 <= most <= 3


def failing() -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("threads", [0, 2])
def test_the_error_of_a_job_is_raised(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(overlap, "THREADS", threads)
    before = set(threading.enumerate())

    def some(count: int) -> Callable[[], None]:
        def run() -> None:
            with Overlap[None]() as jobs:
                for _ in range(count):
                    jobs.run(failing)
                jobs.results()

        return run

    for count in (1, 10):
        with pytest.raises(OSError, match="No space left"):
            some(count)()
    assert set(threading.enumerate()) <= before


def test_iterators_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "THREADS", 2)
    meeting = threading.Barrier(2, timeout=60)

    def work(first: int) -> Iterator[int]:
        meeting.wait()
        yield from range(first, first + 100)

    assert sorted(beside(work(100 * number) for number in range(8))) == [*range(800)]


@pytest.mark.parametrize("threads", [0, 2])
def test_the_error_of_an_iterator_is_raised(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(overlap, "THREADS", threads)

    def work(number: int) -> Iterator[int]:
        yield number
        if number == 3:
            failing()

    with pytest.raises(OSError, match="No space left"):
        [*beside(work(number) for number in range(100))]
    assert not reading_threads()


def test_iterators_that_are_not_needed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller failed, for example. Few items wait for it, because they take memory."""
    monkeypatch.setattr(overlap, "THREADS", 2)
    made = 0

    def work() -> Iterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    found = beside(work() for _ in range(8))
    next(found)
    eventually(lambda: made >= WAITING, "full queue")
    found.close()
    assert made <= 2 * (WAITING + 5)
    assert not reading_threads()


@pytest.mark.parametrize("started", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_threads_end_if_not_all_were_started(
    monkeypatch: pytest.MonkeyPatch, started: int, error: type[BaseException]
) -> None:
    """Ctrl-C while they start, or the system has no more threads. A thread that waits for space
    would keep the process from ending."""
    monkeypatch.setattr(overlap, "THREADS", 2)
    submit, submitted = ThreadPoolExecutor.submit, 0

    def interrupted(pool: ThreadPoolExecutor, *job: Any) -> Any:
        nonlocal submitted
        submitted += 1
        found = submit(pool, *job)
        if submitted == started:
            raise error
        return found

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(error):
        [*beside([itertools.count()] * 3)]
    eventually(lambda: not reading_threads(), "no threads")


def test_an_interrupt_after_the_end_of_a_thread_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes when something was removed from the queue and not counted yet."""
    monkeypatch.setattr(overlap, "THREADS", 2)

    class Interrupted(queue.SimpleQueue[Any]):
        def get(self) -> Any:  # type: ignore[override]
            found = super().get(timeout=60)
            if not found:
                raise KeyboardInterrupt
            return found

    monkeypatch.setattr(overlap, "queue", SimpleNamespace(SimpleQueue=Interrupted))
    with pytest.raises(KeyboardInterrupt):
        [*beside([iter(range(3))])]
    assert not reading_threads()


@pytest.mark.parametrize("free", [10_000, 0])
def test_few_maps_never_wait_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int
) -> None:
    """When memory is full, the largest map is written, although its file is not full."""
    monkeypatch.setattr(archive_rows, "WAITING_BYTES", 60_000)
    monkeypatch.setattr(archive_rows, "FREE_BYTES", free)
    monkeypatch.setattr(archive_rows, "BATCH_BYTES", 5_000)
    monkeypatch.setattr(archive_rows, "KEPT_BYTES", 0)
    on_disk = 0
    add = Scratch.add

    def counted(scratch: Any, *rest: Any, **options: Any) -> None:
        nonlocal on_disk
        add(scratch, *rest, **options)
        on_disk += scratch._end > 0

    monkeypatch.setattr(Scratch, "add", counted)
    waiting, taken = ArchiveRows(tmp_path, 35_000), dict.fromkeys("abc", 0)
    for number in range(300):
        name = "abc"[number % 3]
        order = (1, 1, 1, number)
        row = tuple(DataEntry(name, b"k", "", bytes(1000), "", False, 0, 0, 0, order))
        waiting.add([row], 1, 1, [(number, 1)], 1050)  # type: ignore[list-item]
        for full in waiting.full():
            taken[full] += sum(map(len, waiting.taken(full)))
    for name in waiting.maps():
        taken[name] += sum(map(len, waiting.taken(name)))
    waiting.close()
    assert taken == dict.fromkeys("abc", 100)
    assert bool(on_disk) == (not free)


@pytest.mark.parametrize("threads", [0, 2])
def test_background_jobs_run_one_at_a_time(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(overlap, "THREADS", threads)
    running, found = threading.Lock(), list[int]()

    def job(number: int) -> None:
        assert running.acquire(blocking=False)
        found.append(number)
        running.release()

    jobs = Background()
    for number in range(100):
        jobs.run(partial(job, number))
    jobs.wait()
    assert found == [*range(100)]
    jobs.close()


def test_a_background_job_runs_while_its_caller_works() -> None:
    jobs, started, ended = Background(), threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        assert ended.wait(60)

    jobs.run(job)
    assert started.wait(60)
    ended.set()
    jobs.close()


@pytest.mark.parametrize("then", [Background.wait, lambda jobs: jobs.run(lambda: None)])
def test_the_error_of_a_background_job_is_raised_once(then: Callable[[Background], None]) -> None:
    jobs = Background()
    jobs.run(failing)
    with pytest.raises(OSError, match="No space left"):
        then(jobs)
    jobs.wait()
    jobs.run(failing)
    jobs.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("imap-wal-merge")]
