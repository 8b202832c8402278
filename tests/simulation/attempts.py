"""The Spark engine, with its tasks in executors of the simulation.

Each task of the last step runs twice at once, as Spark does with a task that is slow. The result of
the first that ends counts; the other keeps running, or is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from imap_wal.rewrite.plan import RewritePlan
from imap_wal.rewrite.sorted_runs import Sizes
from imap_wal.rewrite.task_engine import RangeTask, TaskAnswer
from pyspark_imap_wal.rewrite_engine import Partition, SparkEngine
from tests.simulation.executors import executor
from tests.simulation.threads import Event


class TwoAttempts(SparkEngine):
    attempts = 2

    def __init__(self, actor: Any, kills: bool, sizes: Sizes | None = None) -> None:
        super().__init__(tasks=1, sizes=sizes)
        self._actor, self._kills = actor, kills
        self._seeds = 0

    def _start(self, plan: RewritePlan) -> None:
        self._seeds = plan.generation * 64

    def _each(
        self, step: str, work: Partition, inputs: Sequence[Any], size: int
    ) -> list[TaskAnswer]:
        """Run all tasks at once."""
        ranges = [isinstance(each, RangeTask) for each in inputs]
        waiting = [
            self._begin(work, number, given, self.attempts if is_range else 1)
            for number, (given, is_range) in enumerate(zip(inputs, ranges, strict=True))
        ]
        return [each.answer(self._kills) for each in waiting]

    def _begin(self, work: Partition, number: int, given: Any, attempts: int) -> _Attempts:
        found = _Attempts(attempts)
        actor = self._actor
        for attempt in range(attempts):
            self._seeds += 1
            process = executor(
                actor,
                f"task {number}, attempt {attempt}",
                seed=self._seeds,
                offset_ms=actor.spec.offset_ms,
            )
            found.processes.append(process)
            actor.world.spawn(process, process.name, partial(found.run, work, (number, given)))
        return found


class _Attempts:
    """The attempts at one task."""

    def __init__(self, count: int) -> None:
        self.processes: list[Any] = []
        self._count = count
        self._done = Event()
        self._answers: list[TaskAnswer] = []

    def run(self, work: Partition, numbered: tuple[int, Any]) -> None:
        (answer,) = work(iter([numbered]))
        self._answers.append(answer)
        failed = sum(bool(each.error) for each in self._answers)
        if not answer.error or failed == self._count:
            self._done.set()

    def answer(self, kills: bool) -> TaskAnswer:
        """The first answer without an error, or the first error."""
        self._done.wait()
        if kills:  # as Spark does with those that are no longer needed
            for each in self.processes:
                if not each.dead:
                    each.world.kill(each)
        return min(self._answers, key=lambda answer: bool(answer.error))
