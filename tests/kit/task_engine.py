"""The Spark engine with its tasks in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.plan import Result, RewritePlan
from imap_wal.rewrite.sorted_runs import Sizes
from imap_wal.rewrite.task_engine import TaskAnswer
from imap_wal.settings import Settings
from pyspark_imap_wal.rewrite_engine import Partition, SparkEngine
from tests.kit.row_engine import RowEngine, compare

TINY = Sizes(sort_bytes=200, range_bytes=120, ranges_max=200, group_bytes=200, group_rows=2)
"""Several tasks in each step, even for a few entries."""


class TaskEngine(SparkEngine):
    def __init__(self, sizes: Sizes = TINY) -> None:
        super().__init__(tasks=2, sizes=sizes)

    def _start(self, plan: RewritePlan) -> None:
        """Does nothing: there is no Spark."""

    def _each(
        self, step: str, work: Partition, inputs: Sequence[Any], size: int
    ) -> list[TaskAnswer]:
        assert size or not inputs or step == "measuring"
        return [
            answer
            for number, given in enumerate(inputs)
            for answer in work(iter([(number, given)]))
        ]


class ComparedTasks(TaskEngine):
    """Its result must be that of `RowEngine`."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self._settings = settings

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        # Without other writers each reading of a log is the same.
        reference = replace(plan, generation=plan.generation + 1_000_000)
        expected = RowEngine(self._settings).run(reference, log)
        result = super().run(plan, log)
        compare(result, expected, log)
        assert not [file for file in log.store.list("") if "/run-" in file.path]
        return result
