"""How far the tasks of a step are, as Spark counts them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark import SparkContext

EVERY_S = 0.5
"""How often Spark is asked."""
OF_A_JOB = ("spark.jobGroup.id", "spark.job.description")
"""What names the jobs of a thread."""


@dataclass(frozen=True, slots=True)
class StepProgress:
    """`step`: what the tasks do. `bytes`: about how much of `bytes_total` is done."""

    step: str
    tasks: int
    tasks_total: int
    bytes: int
    bytes_total: int

    def __str__(self) -> str:
        return f"{self.step}, {self.tasks} of {self.tasks_total} tasks"


Tell: TypeAlias = Callable[[StepProgress], None]


@contextmanager
def watched(
    context: SparkContext, group: str, step: str, tasks: int, size: int, tell: Tell | None
) -> Iterator[None]:
    """Call `tell` from another thread, while jobs run that this thread starts in the `with` block.
    `group`: a name for them that no other jobs have. `size`: the bytes of all tasks together."""
    if tell is None:
        yield
        return
    stopping = threading.Event()

    def done() -> int:
        tracker = context.statusTracker()
        stages: list[Any] = [
            tracker.getStageInfo(stage)
            for job in tracker.getJobIdsForGroup(group)
            if (info := tracker.getJobInfo(job)) is not None
            for stage in info.stageIds
        ]
        return sum(int(stage.numCompletedTasks) for stage in stages if stage is not None)

    def watch() -> None:
        while not stopping.wait(EVERY_S):
            found = min(done(), tasks)
            tell(StepProgress(step, found, tasks, size * found // max(tasks, 1), size))

    former = {name: context.getLocalProperty(name) for name in OF_A_JOB}
    context.setJobGroup(group, f"imap-wal: {step}")
    thread = threading.Thread(target=watch, name="imap-wal-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        for name, value in former.items():  # the session may be the user's
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None: unset
    tell(StepProgress(step, tasks, tasks, size, size))
