"""Jobs that run in other threads while this one prepares the next. pyarrow sorts, compresses and
writes without Python's interpreter lock, so the jobs use other processors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Generic, Self, TypeVar

THREADS = 2
"""How many jobs run at the same time. 0: each runs at once in the calling thread."""

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
        for each in self._running:
            if each.done():
                each.result()
        self._running = [each for each in self._running if not each.done()]
        self._running.append(self._pool.submit(job))
        self._started.append(self._running[-1])

    def results(self) -> list[T]:
        """Wait for all jobs, and return their results in the order in which they were started.
        Raises the error of a job."""
        return [each.result() for each in self._started]

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
