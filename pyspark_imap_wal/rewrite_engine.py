"""The rewrite engine on Spark, for logs too large to merge on one machine.

The steps and tasks are those of `imap_wal.rewrite.task_engine`. Spark starts the tasks, tries them
again and chooses where they run; no row passes through the JVM.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from pyspark.sql import SparkSession

from imap_wal.clock import Randomness, SystemRandomness
from imap_wal.collector import collecting_rarely
from imap_wal.context import open_context
from imap_wal.errors import ImapWalError, InvalidSetting, MissingNode
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Result, RewritePlan
from imap_wal.rewrite.report import memory_max_bytes
from imap_wal.rewrite.sorted_runs import Sizes
from imap_wal.rewrite.task_engine import TaskAnswer, TaskEngine, TaskWork, freeze
from imap_wal.settings import Settings
from imap_wal.version import VERSION
from pyspark_imap_wal.data_source import TASK_MEMORY_BYTES, known
from pyspark_imap_wal.progress import Step, Tell, watched
from pyspark_imap_wal.session import refuse_connect, session, spark_errors
from storage_backends import StorageError
from storage_backends.metered import Meter

SETTINGS = Settings(restore_memory_bytes=TASK_MEMORY_BYTES)
"""The settings of a task."""


Numbered: TypeAlias = tuple[int, Any]
"""The number of a task, and its input."""
Partition: TypeAlias = Callable[[Iterable[Numbered]], Iterable[TaskAnswer]]
"""The function that Spark runs for a part of the tasks."""


class SparkEngine(TaskEngine):
    """Executes a plan with Spark. The workers must reach the storage: a shared directory or an
    object store. They get the options of the storages, with secrets, inside the tasks, which
    Spark does not show (`docs/decisions/spark.md`). A dry run writes nothing on
    the storage, not even runs, and so it is one task. `run` raises `EngineFailed` if Spark cannot
    start or finish, `InvalidSetting` for a log in memory, `LostRace` if the answer of a task is
    missing, and the errors of tasks."""

    name = "spark"

    def __init__(
        self,
        spark: SparkSession | None = None,
        tasks: int | None = None,
        properties: Mapping[str, str] | None = None,
        sizes: Sizes | None = None,
        progress: Tell | None = None,
    ) -> None:
        """Args:
        spark: The session; None: the running one, or a new one.
        tasks: The number of tasks that Spark runs at the same time; None: Spark's own number.
        properties: Spark's properties for a new session.
        sizes: How much a task does.
        progress: Called from another thread with the progress of a step's tasks.
        """
        super().__init__(sizes)
        self._spark = spark
        self._tasks = tasks
        self._properties = dict(properties or {})
        self._progress = progress

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        with spark_errors():
            self._start(plan)
            if not plan.dry_run:
                return self._in_tasks(plan, log)
            self._steps = []
            work = _Measuring(plan, SETTINGS)
            (measured,) = self._step(plan, "measuring", work, [None], 0, _of_measured)
            return replace(cast(Result, measured), steps=tuple(self._steps))

    def _start(self, plan: RewritePlan) -> None:
        if plan.place.scheme == "memory":
            raise InvalidSetting(
                "Spark's workers cannot see memory:// of this process; use --engine local"
            )
        refuse_connect()
        if self._spark is None:
            self._spark = session(**self._properties)

    def _answers(
        self, plan: RewritePlan, step: str, work: TaskWork, inputs: Sequence[Any], size: int
    ) -> list[TaskAnswer]:
        return self._each(step, _answering(plan, work), inputs, size)

    def _each(
        self, step: str, work: Partition, inputs: Sequence[Any], size: int
    ) -> list[TaskAnswer]:
        """Run a task for each input. Returns the answers that Spark took."""
        assert self._spark is not None
        context = self._spark.sparkContext
        tasks = context.parallelize(list(enumerate(inputs)), len(inputs)).mapPartitions(work)
        with watched(context, Step(step, len(inputs), size), self._steps, self._progress):
            answers: list[TaskAnswer] = tasks.collect()
        return answers

    def _parallel(self) -> int:
        if self._tasks is not None:
            return self._tasks
        assert self._spark is not None
        return self._spark.sparkContext.defaultParallelism

    def _task_settings(self) -> Settings:
        return SETTINGS


def _of_measured(result: Result) -> tuple[int, int]:
    return sum(of_map.records for of_map in result.maps), 0


# ---- in the workers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measuring:
    """A dry run."""

    plan: RewritePlan
    settings: Settings

    def __call__(
        self, log: ClusterLog, task_input: None, number: int, randomness: Randomness
    ) -> Result:
        return LocalEngine(self.settings).run(self.plan, log)


def _answering(plan: RewritePlan, work: TaskWork) -> Partition:
    """A function for Spark. An attempt has its own names for everything that it writes, since two
    attempts may do the same work at the same time. It also answers if there is nothing to do."""
    version = VERSION

    def answer(inputs: Iterable[Numbered]) -> Iterator[TaskAnswer]:
        randomness = SystemRandomness()
        attempt = randomness.name()
        for number, task_input in inputs:
            meter = Meter()
            try:
                with collecting_rarely(), worker_log(plan, version, meter) as log:
                    result = work(log, task_input, number, randomness)
            except (ImapWalError, StorageError) as error:
                yield TaskAnswer(number, attempt, error=freeze(error))
                return
            yield TaskAnswer(
                number,
                attempt,
                result,
                bytes_read=meter.read_bytes,
                bytes_written=meter.written_bytes,
                memory_max_bytes=memory_max_bytes(),
            )

    return answer


# The first steps of a task of a rewrite: it opens the log in its worker, and checks that the worker
# can do the task.


@contextmanager
def worker_log(plan: RewritePlan, version: str, meter: Meter | None = None) -> Iterator[ClusterLog]:
    """The log of a plan, opened with the driver's options and this worker's own credentials.

    Args:
        plan: The plan; its `place` has the options of the storages.
        version: The version of imap-wal in the driver.
        meter: Counts the bytes that are read and written.

    Raises:
        InvalidSetting: This worker has another version.
        MissingNode: This worker does not see the root, or the segments of a node.
        StorageError: The storage cannot be opened.
    """
    if version != VERSION:
        raise InvalidSetting(
            f"worker {socket.gethostname()} has imap-wal {VERSION}, the driver has {version}; "
            "install the same version, or make a new `imap-wal spark package`"
        )
    try:
        context = open_context(known(plan.place))
        context = context.on((meter or Meter()).on(context.store))
    except StorageError as error:
        if type(error) is not StorageError:  # the driver handles the subclasses
            raise
        raise StorageError(f"on worker {socket.gethostname()}: {error}") from error
    try:
        log = ClusterLog(context, plan.namespace, plan.cluster)
        if plan.state.number and not log.manifests.read()[0]:
            # Otherwise a task would write its part files into an empty folder of this machine.
            raise MissingNode(f"there is no {log.folder}/manifest in {plan.place}")
        yield log
    except MissingNode as error:
        raise MissingNode(
            f"on worker {socket.gethostname()}: {error.without_advice}",
            "root and wal_dir must be on a storage that every worker reaches, such as a shared "
            "folder that is mounted there; or use --engine local",
        ) from error
    finally:
        context.store.close()
