"""Several other processes, for the tasks of one command."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from imap_wal.retention.other_process import OtherProcess, ProcessDied, Task
from storage_backends.location import Place

WAIT_S = 600.0
"""How long a process waits for its next task, for example while another process works on the last
task of a step."""

MakeTask: TypeAlias = Callable[[Path], Task]
"""Makes a task from the folder of the process that runs it."""


class Processes:
    """Other processes, each of which runs one task at a time. Each has a folder for all temporary
    files of its tasks, which it removes if this process is killed (`begin`)."""

    def __init__(self, all_: Sequence[tuple[OtherProcess, Path]], pool: ThreadPoolExecutor) -> None:
        """Each thread of `pool` has one of the processes while it waits for the answer."""
        self._pool = pool
        self._free: queue.SimpleQueue[tuple[OtherProcess, Path]] = queue.SimpleQueue()
        for process in all_:
            self._free.put(process)

    def run(self, tasks: Sequence[MakeTask]) -> Iterator[tuple[int, Any]]:
        """The number and the result of each task, in the order in which they end. A task whose
        process is killed runs once more. Raises the first error of a task, and `ProcessDied` if its
        process is killed at the second attempt too."""
        waiting = {
            self._pool.submit(self._answer, make): number for number, make in enumerate(tasks)
        }
        for future in as_completed(waiting):
            yield waiting[future], future.result()

    def _answer(self, make: MakeTask) -> Any:
        process, folder = self._free.get()
        try:
            try:
                return process.run(make(folder))
            except ProcessDied:  # perhaps memory ran out; its names are not used again
                pass
            try:
                return process.run(make(folder))
            except ProcessDied as error:
                raise ProcessDied(
                    f"{error}, and its files are not used. This was the second attempt at a task: "
                    "if memory ran out, run the command with fewer --processes"
                ) from error
        finally:
            self._free.put((process, folder))


@contextmanager
def processes(place: Place, count: int, folder: Path) -> Iterator[Processes]:
    """Processes that work on the storage at `place`, with folders in `folder`. They end with the
    block, even if it raises."""
    folders = [folder / str(number) for number in range(count)]
    for own in folders:
        own.mkdir()
    all_ = [(OtherProcess(place, keep_s=WAIT_S, niceness=0), own) for own in folders]
    pool = ThreadPoolExecutor(count, "imap-wal-tasks")
    try:
        yield Processes(all_, pool)
    finally:
        for process, _ in all_:
            process.stop()
        pool.shutdown(cancel_futures=True)


def begin(folder: Path) -> None:
    """Called first by a task in the other process: all of its temporary files are in this
    folder."""
    # A process that was killed may have left files there, and one that waited too long for a task
    # may have removed the folder.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tempfile.tempdir = str(folder)  # no other work is done in that process


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
