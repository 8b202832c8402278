"""The progress of the tasks of a step, as Spark counts them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark import SparkContext

from imap_wal.clock import SystemRandomness
from imap_wal.progress import size as size_text
from imap_wal.rewrite.report import StepReport

EVERY_S = 0.5
"""Seconds between two questions to Spark."""
OF_A_JOB = ("spark.jobGroup.id", "spark.job.description")
"""The properties of Spark that name the jobs of a thread."""


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


@dataclass(frozen=True, slots=True)
class Step:
    """A step that begins. `name`: what its tasks do. `bytes`: about how many they have to read."""

    name: str
    tasks: int
    bytes: int

    def description(self, before: Sequence[StepReport]) -> str:
        """What Spark's page shows for the jobs and stages of the step, with the results of the
        steps before it: there is no other place for numbers of Python tasks."""
        summary = f"imap-wal: {self.name}, {self.tasks} tasks, {size_text(self.bytes)}"
        done = [
            f"{report.step} read {report.records_read:,} records, {size_text(report.bytes_read)}, "
            f"and wrote {report.records_written:,}, {size_text(report.bytes_written)}"
            for report in before
        ]
        return "; ".join([summary, *done])


@contextmanager
def watched(
    context: SparkContext, step: Step, before: Sequence[StepReport], tell: Tell | None
) -> Iterator[None]:
    """Describe the jobs that this thread starts in the `with` block, and meanwhile call `tell` from
    another thread. `before`: the steps that are done."""
    group = SystemRandomness().name()
    former = {name: context.getLocalProperty(name) for name in OF_A_JOB}
    context.setJobGroup(group, step.description(before))
    try:
        if tell is None:
            yield
        else:
            with _reporting(context, group, step, tell):
                yield
    finally:
        for name, value in former.items():  # the session may be the user's
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None: unset


@contextmanager
def _reporting(context: SparkContext, group: str, step: Step, tell: Tell) -> Iterator[None]:
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
            ended = min(done(), step.tasks)
            reached = step.bytes * ended // max(step.tasks, 1)
            tell(StepProgress(step.name, ended, step.tasks, reached, step.bytes))

    tell(StepProgress(step.name, 0, step.tasks, 0, step.bytes))
    thread = threading.Thread(target=watch, name="imap-wal-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    tell(StepProgress(step.name, step.tasks, step.tasks, step.bytes, step.bytes))
