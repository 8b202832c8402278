"""Jobs that run in other threads while this one prepares the next. pyarrow sorts, compresses and
writes without Python's interpreter lock, so the jobs use other processors."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Generic, Self, TypeVar

THREADS = 2
"""How many jobs run at the same time. 0: each runs at once in the calling thread."""

WAITING = 4
"""How many items of `beside` may wait to be taken."""

T = TypeVar("T")


class Overlap(Generic[T]):
    """Runs jobs, at most `THREADS` at the same time. At the end of the `with` block, all have
    ended."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "imap-wal-archive") if THREADS else None
        self._started: list[Future[T]] = []
        self._running: list[Future[T]] = []
        """The last ones, whose errors were not raised yet."""

    def run(self, job: Callable[[], T]) -> None:
        """Start a job. Waits while others occupy all threads. Raises the error of a former job."""
        if self._pool is None:
            ended: Future[T] = Future()
            ended.set_result(job())
            self._started.append(ended)
            return
        if len(self._running) >= THREADS:
            wait(self._running, return_when=FIRST_COMPLETED)
        for future in self._running:
            if future.done():
                future.result()
        self._running = [running for running in self._running if not running.done()]
        self._running.append(self._pool.submit(job))
        self._started.append(self._running[-1])

    def results(self) -> list[T]:
        """Wait for all jobs, and return their results in the order in which they were started.
        Raises the error of a job."""
        return [future.result() for future in self._started]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=error is not None)


class Background:
    """Another thread, which runs one job at a time, in the order in which they are given."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "imap-wal-merge") if THREADS else None
        self._job: Future[None] | None = None

    def run(self, job: Callable[[], None]) -> None:
        """Start a job, when the former one has ended. Raises the error of the former one."""
        self.wait()
        if self._pool is None:
            job()
        else:
            self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Wait until no job runs. Raises the error of the last one, once."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Wait until no job runs. Its error is dropped."""
        if self._pool is not None:
            self._pool.shutdown()


def beside(works: Iterable[Iterator[T]]) -> Generator[T]:
    """The items of several iterators, in any order. Up to `THREADS` other threads run one iterator
    each; only one at a time asks `works` for the next. Raises their errors."""
    if not THREADS:
        for work in works:
            yield from work
        return
    reading = _Beside(works)
    try:
        reading.start()
        yield from reading.items()
    finally:
        reading.stop()


class _Beside(Generic[T]):
    """The threads of `beside`. Each ends with an empty list in the queue."""

    def __init__(self, works: Iterable[Iterator[T]]) -> None:
        self._works = iter(works)
        self._next = threading.Lock()
        self._found: queue.SimpleQueue[list[T]] = queue.SimpleQueue()
        self._free = threading.Semaphore(WAITING)
        """How many more items may wait in the queue."""
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, "imap-wal-read")
        self._threads: list[Future[None]] = []

    def start(self) -> None:
        for _ in range(THREADS):
            self._threads.append(self._pool.submit(self._run))

    def items(self) -> Iterator[T]:
        running = len(self._threads)
        while running:
            if items := self._found.get():
                self._free.release()
                yield from items
            else:
                running -= 1
        for thread in self._threads:
            thread.result()

    def stop(self) -> None:
        """End the threads, also if they have more items, and if an interrupt came at any point of
        `start` or `items`."""
        self._stopped.set()
        self._free.release(THREADS)  # each may wait once more
        self._pool.shutdown()

    def _run(self) -> None:
        try:
            while (work := self._take()) is not None:
                for item in work:
                    self._free.acquire()
                    if self._stopped.is_set():
                        return
                    self._found.put([item])
        except BaseException:
            self._stopped.set()
            raise
        finally:
            self._found.put([])

    def _take(self) -> Iterator[T] | None:
        with self._next:
            return None if self._stopped.is_set() else next(self._works, None)
