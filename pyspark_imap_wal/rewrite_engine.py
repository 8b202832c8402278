"""The rewrite engine on Spark, for logs too large to merge on one machine.

    files of the logs ─▶ a task for each group of files: a sorted run on the storage
    ranges of keys    ─▶ a task for each range: its part files
    (driver)          clears, ranges, and which answers count; it deletes the runs

The tasks are those of `imap_wal.rewrite.sorted_runs`. Spark starts them, tries them again and
chooses where they run; no row passes through the JVM.
"""

from __future__ import annotations

import base64
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from pyspark.sql import SparkSession

from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.disposal import dispose
from imap_wal.errors import ImapWalError, InvalidSetting, LostRace
from imap_wal.manifest.snapshots import NO_VERSIONS
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.newest.clears import Cleared
from imap_wal.read.newest.rivals import Claim
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.part_writer import PartWriter
from imap_wal.rewrite.plan import (
    Merged,
    Part,
    Result,
    RewritePlan,
    Subject,
    Totals,
    worth_reading,
)
from imap_wal.rewrite.publish import read_again
from imap_wal.rewrite.report import StepReport, memory_max_bytes
from imap_wal.rewrite.sorted_runs import (
    MapPlan,
    RangeParts,
    RangeTask,
    Sizes,
    SortedFiles,
    SortedRun,
    former_clears,
    grouped,
    merge_range,
    plan_map,
    sort_files,
)
from imap_wal.settings import Settings
from imap_wal.version import VERSION
from pyspark_imap_wal.data_source import TASK_MEMORY_BYTES
from pyspark_imap_wal.progress import Step, Tell, watched
from pyspark_imap_wal.session import refuse_connect, session, spark_errors
from pyspark_imap_wal.worker import worker_log
from storage_backends import StorageError
from storage_backends.metered import Meter

SETTINGS = Settings(restore_memory_bytes=TASK_MEMORY_BYTES)
"""Of a task."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one attempt at a task: its result, or an error (`_freeze`), and what it has
    read and written, in bytes. `memory_max_bytes`: of its process, so far."""

    task: int
    attempt: str
    result: Any = None
    error: str = ""
    bytes_read: int = 0
    bytes_written: int = 0
    memory_max_bytes: int = 0


Numbered: TypeAlias = tuple[int, Any]
"""The number of a task, and its input."""
Work: TypeAlias = Callable[[Iterable[Numbered]], Iterable[Answer]]
Records: TypeAlias = Callable[[Any], tuple[int, int]]
"""How many records a task has read and written, from its result."""


class SparkEngine:
    """Executes a plan with Spark. The workers must reach the storage: a shared directory or an
    object store. They get the options of the storages, with secrets, inside the tasks, which
    Spark does not show (`docs/decisions/0038-spark-of-the-user.md`). A dry run writes nothing on
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
        tasks: The number of tasks that Spark runs at the same time; None: Spark says it.
        properties: Spark's properties for a new session.
        sizes: How much a task does.
        progress: Called from another thread with how far the tasks of a step are.
        """
        self._spark = spark
        self._tasks = tasks
        self._properties = dict(properties or {})
        self._sizes = sizes or Sizes()
        self._progress = progress
        self._steps: list[StepReport] = []

    def run(self, job: RewritePlan, log: ClusterLog) -> Result:
        self._steps = []
        with spark_errors():
            self._start(job)
            if job.dry_run:
                (measured,) = self._step("measuring", _measure(job), [None], 0, _of_measured)
                return replace(cast(Result, measured), steps=tuple(self._steps))
            sorted_files = self._sort(job)
            try:
                merged = self._merge(job, log, sorted_files)
                return replace(merged, steps=tuple(self._steps))
            finally:
                runs = [run.scan.path for each in sorted_files for run in each.runs]
                with suppress(StorageError):  # otherwise a later prune deletes them
                    dispose(log.store, runs, f"{log.folder}/snapshot")

    def _start(self, job: RewritePlan) -> None:
        if job.url.startswith("memory:"):
            raise InvalidSetting(
                "Spark's workers cannot see memory:// of this process; use --engine local"
            )
        refuse_connect()
        if self._spark is None:
            self._spark = session(**self._properties)

    def _step(
        self, step: str, work: Work, inputs: Sequence[Any], size: int, records: Records
    ) -> list[Any]:
        """Run a task for each input. Returns their results, and adds the report of the step.
        `size`: the bytes of all inputs."""
        if not inputs:
            return []
        clock = SystemClock()
        start = clock.monotonic()
        answers = self._each(step, work, inputs, size)
        found = taken(answers, len(inputs))
        counts = [records(each) for each in found]
        self._steps.append(report_of(step, answers, counts, clock.monotonic() - start))
        return found

    def _each(self, step: str, work: Work, inputs: Sequence[Any], size: int) -> list[Answer]:
        """Run a task for each input. Returns the answers that Spark took."""
        assert self._spark is not None
        context = self._spark.sparkContext
        tasks = context.parallelize(list(enumerate(inputs)), len(inputs)).mapPartitions(work)
        with watched(context, Step(step, len(inputs), size), self._steps, self._progress):
            found: list[Answer] = tasks.collect()
        return found

    def _parallel(self) -> int:
        if self._tasks is not None:
            return self._tasks
        assert self._spark is not None
        return self._spark.sparkContext.defaultParallelism

    def _sort(self, job: RewritePlan) -> list[SortedFiles]:
        scans = job.log_scans()
        groups = grouped(scans, self._parallel(), self._sizes) if scans else []
        size = sum(scan.bytes for scan in scans)
        return self._step("sorting", _sort(job, self._sizes), groups, size, _of_sorted)

    def _merge(self, job: RewritePlan, log: ClusterLog, found: Sequence[SortedFiles]) -> Result:
        totals, versions = _totals(found), NO_VERSIONS
        runs: dict[str, list[SortedRun]] = {}
        touched: dict[str, set[int]] = {}
        cleared = Cleared()
        for each in found:
            versions = versions.raised(each.pairs)
            for run in each.runs:
                runs.setdefault(run.scan.map, []).append(run)
            for name, numbers in each.touched.items():
                touched.setdefault(name, set()).update(numbers)
            for row, node in each.clears:
                cleared.take(node, [row])
        late = {subject for each in found for subject in each.late_clears}
        merged: list[Merged] = []
        wanted = set(totals)
        for name, snapshot in sorted(job.state.manifest.snapshots.items()):
            if not job.wants(name):
                continue
            if name not in wanted and not worth_reading(job, snapshot, log.store):
                merged.append(Merged(name, 0, 0, (), unchanged=True))
                continue
            wanted.add(name)
            for row, node in former_clears(log, job, name):
                cleared.take(node, [row])
        plans = [
            plan_map(
                job,
                log,
                name,
                runs.get(name, ()),
                touched.get(name, ()),
                self._sizes,
                cleared=name in cleared,
            )
            for name in sorted(wanted)
        ]
        done = self._ranges(job, plans, cleared)
        for plan in plans:
            own = [done.pop(0) for _ in plan.tasks]
            for part in own:
                versions = versions.raised(part.pairs)
            clears = clears_part(log, job, plan.map, cleared.claims(plan.map), late)
            read = totals.get(plan.map, Totals())
            records = read.records + sum(each.records for each in own)
            merged.append(Merged(plan.map, records, read.bytes, (*clears, *plan.joined(own))))
        return Result(tuple(merged), tuple(versions.pairs.items()), confirmed=True)

    def _ranges(
        self, job: RewritePlan, plans: Sequence[MapPlan], cleared: Cleared
    ) -> list[RangeParts]:
        tasks = [task for plan in plans for task in plan.tasks]
        size = sum(task.bytes for task in tasks)
        return self._step("merging", _write(job, cleared), tasks, size, _of_merged)


def _of_measured(result: Result) -> tuple[int, int]:
    return sum(each.records for each in result.maps), 0


def _of_sorted(result: SortedFiles) -> tuple[int, int]:
    read = sum(each.records for each in result.totals.values())
    return read, sum(run.scan.records for run in result.runs)


def _of_merged(result: RangeParts) -> tuple[int, int]:
    return result.records + result.run_records, sum(part.rows for part in result.parts)


def report_of(
    step: str, answers: Iterable[Answer], records: Iterable[tuple[int, int]], seconds: float
) -> StepReport:
    """What the tasks of a step did, each counted once. `answers`: as `taken` accepts them.
    `records`: read and written by each task."""
    attempts = {answer.task: answer for answer in answers}.values()
    read, written = map(sum, zip(*records, strict=True))
    return StepReport(
        step,
        len(attempts),
        seconds,
        records_read=read,
        bytes_read=sum(each.bytes_read for each in attempts),
        records_written=written,
        bytes_written=sum(each.bytes_written for each in attempts),
        memory_max_bytes=max(each.memory_max_bytes for each in attempts),
    )


def _totals(found: Sequence[SortedFiles]) -> dict[str, Totals]:
    """Map → what was read of it in the logs."""
    totals: dict[str, Totals] = {}
    for each in found:
        for name, read in each.totals.items():
            own = totals.setdefault(name, Totals())
            own.records += read.records
            own.bytes += read.bytes
    return totals


def clears_part(
    log: ClusterLog,
    job: RewritePlan,
    name: str,
    claims: Sequence[Claim],
    late: set[Subject],
) -> tuple[Part, ...]:
    """The clears of a map that are kept. They are few, and the tasks of all ranges of keys needed
    them, so the driver writes them."""
    if not claims:
        return ()
    with tempfile.TemporaryDirectory(
        prefix="imap-wal-rewrite-", ignore_cleanup_errors=True
    ) as folder:
        writer = PartWriter(log.store, job, name, Path(folder), 0, log.randomness)
        writer.add_clears(claims, late)
        parts = writer.close()
    for part in parts:
        read_again(log.store, part)
    return parts


def taken(answers: Sequence[Answer], count: int) -> list[Any]:
    """The results of `count` tasks in order: exactly one attempt at every task counts, whatever
    others wrote. Raises the error of an answer, and `LostRace` if an answer is missing."""
    found: dict[int, Answer] = {}
    for answer in answers:
        if answer.error:
            raise _thaw(answer.error)
        if found.setdefault(answer.task, answer).attempt != answer.attempt:
            raise LostRace(
                f"Spark answered twice for task {answer.task}; nothing was published, run the "
                "rewrite again"
            )
    if sorted(found) != list(range(count)):
        raise LostRace(
            f"Spark answered for tasks {sorted(found)} of {count} only; nothing was published, "
            "run the rewrite again"
        )
    return [found[number].result for number in range(count)]


# ---- in the workers ------------------------------------------------------------------------------


def _sort(job: RewritePlan, sizes: Sizes) -> Work:
    """The first step: a group of files becomes sorted runs."""

    def work(log: ClusterLog, scans: list[FileScan], _: int, own: SystemRandomness) -> SortedFiles:
        return sort_files(job, log, scans, SETTINGS, sizes, own)

    return _answering(job, work)


def _write(job: RewritePlan, cleared: Cleared) -> Work:
    """The last step: a range of keys becomes part files."""

    def work(log: ClusterLog, task: RangeTask, number: int, own: SystemRandomness) -> RangeParts:
        return merge_range(job, log, task, cleared, SETTINGS, number, own)

    return _answering(job, work)


def _measure(job: RewritePlan) -> Work:
    """A dry run."""

    def work(log: ClusterLog, _: None, number: int, own: SystemRandomness) -> Result:
        return LocalEngine(SETTINGS).run(job, log)

    return _answering(job, work)


def _answering(job: RewritePlan, work: Callable[..., Any]) -> Work:
    """A function for Spark. An attempt has names of its own for all that it writes, since two
    attempts may do the same work at the same time. It answers also if there is nothing to do."""
    version = VERSION

    def answer(inputs: Iterable[Numbered]) -> Iterator[Answer]:
        randomness = SystemRandomness()
        attempt = randomness.name()
        for number, given in inputs:
            meter = Meter()
            try:
                with worker_log(job, version, meter) as log:
                    result = work(log, given, number, randomness)
            except (ImapWalError, StorageError) as error:
                yield Answer(number, attempt, error=_freeze(error))
                return
            yield Answer(
                number,
                attempt,
                result,
                bytes_read=meter.read_bytes,
                bytes_written=meter.written_bytes,
                memory_max_bytes=memory_max_bytes(),
            )

    return answer


# An error of a worker keeps its type instead of becoming text in Spark's own exception. Our errors'
# constructors do not accept their own `args`.


def _freeze(error: Exception) -> str:
    return base64.b64encode(pickle.dumps((type(error), error.args, error.__dict__))).decode()


def _thaw(text: str) -> Exception:
    kind, args, state = pickle.loads(base64.b64decode(text))  # noqa: S301  # from our own worker
    error: Exception = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error
