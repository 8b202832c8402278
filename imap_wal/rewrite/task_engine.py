"""A rewrite in tasks, for any engine that runs tasks: on Spark, or in processes of one machine.

    files of the logs ─▶ a task for each group of files: sorted runs
    ranges of keys    ─▶ a task for each range: its part files
    (here)            clears, ranges, and which answers count; the runs are deleted

The tasks are those of `imap_wal.rewrite.sorted_runs` and `range_tasks`.
"""

from __future__ import annotations

import base64
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from imap_wal.clock import Randomness, SystemClock
from imap_wal.disposal import dispose
from imap_wal.entry import KEY, is_clear
from imap_wal.errors import LostRace
from imap_wal.manifest.snapshots import NO_VERSIONS
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.rewrite.columns.merge import ColumnMerge, MergeSpan, scratch_errors
from imap_wal.rewrite.part_writer import PART_BYTES, PARTS_OF_A_SIZE, KeyRange, PartWriter
from imap_wal.rewrite.plan import Merged, Part, Result, RewritePlan, former_to_read, rewrite_folder
from imap_wal.rewrite.publish import read_again
from imap_wal.rewrite.ranges import KeptPart, borders_of, kept_parts, parts_of
from imap_wal.rewrite.report import StepReport
from imap_wal.rewrite.sorted_runs import (
    Pairs,
    Sizes,
    SortedFiles,
    SortedRun,
    grouped,
    read_directly,
    sort_files,
)
from imap_wal.rewrite.tally import Subject, Totals
from imap_wal.rules.cleared import Cleared
from imap_wal.rules.newer import Claim
from imap_wal.settings import Settings
from storage_backends import StorageError

Records: TypeAlias = Callable[[Any], tuple[int, int]]
"""How many records a task has read and written, from its result."""


class TaskWork(Protocol):
    """What each task of a step does. It can be pickled, and so can `given` and the result."""

    def __call__(
        self, log: ClusterLog, task_input: Any, number: int, randomness: Randomness
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """The answer of one attempt at a task: its result, or an error (`freeze`), and what it has
    read and written, in bytes. `memory_max_bytes`: of its process, so far."""

    task: int
    attempt: str
    result: Any = None
    error: str = ""
    bytes_read: int = 0
    bytes_written: int = 0
    memory_max_bytes: int = 0


class TaskEngine(ABC):
    """Executes a plan in two steps of tasks. `sizes`: how much a task does."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        self._sizes = sizes or Sizes()
        self._steps: list[StepReport] = []

    @abstractmethod
    def _answers(
        self, plan: RewritePlan, step: str, work: TaskWork, inputs: Sequence[Any], size: int
    ) -> list[TaskAnswer]:
        """Run a task for each input. Returns the answers that count. `size`: the bytes of all
        inputs."""

    @abstractmethod
    def _parallel(self) -> int:
        """How many tasks run at the same time."""

    @abstractmethod
    def _task_settings(self) -> Settings:
        """Those of a task."""

    def _in_tasks(self, plan: RewritePlan, log: ClusterLog) -> Result:
        """Sort, merge, delete the runs. Raises `LostRace` if the answer of a task is missing, and
        the errors of tasks."""
        self._steps = []
        sorted_files = self._sort(plan)
        try:
            merged = self._merge(plan, log, sorted_files)
            return replace(merged, steps=tuple(self._steps))
        finally:
            runs = [run.scan.path for sorted_file in sorted_files for run in sorted_file.written]
            with suppress(StorageError):  # otherwise a later prune deletes them
                dispose(log.store, runs, f"{log.folder}/snapshot")

    def _step(
        self,
        plan: RewritePlan,
        step: str,
        work: TaskWork,
        inputs: Sequence[Any],
        size: int,
        records: Records,
    ) -> list[Any]:
        """Run a task for each input. Returns their results, and adds the report of the step.
        `size`: the bytes of all inputs."""
        if not inputs:
            return []
        clock = SystemClock()
        start = clock.monotonic()
        answers = self._answers(plan, step, work, inputs, size)
        results = taken(answers, len(inputs))
        counts = [records(result) for result in results]
        self._steps.append(report_of(step, answers, counts, clock.monotonic() - start))
        return results

    def _sort(self, plan: RewritePlan) -> list[SortedFiles]:
        scans = plan.log_scans()
        groups = grouped(scans, self._parallel(), self._sizes) if scans else []
        size = sum(scan.bytes for scan in scans)
        direct = read_directly(scans, self._sizes)
        work = Sorting(plan, direct, self._task_settings(), self._sizes)
        return self._step(plan, "sorting", work, groups, size, _of_sorted)

    def _merge(self, plan: RewritePlan, log: ClusterLog, results: Sequence[SortedFiles]) -> Result:
        totals, versions = _totals(results), NO_VERSIONS
        runs: dict[str, list[SortedRun]] = {}
        touched: dict[str, set[int]] = {}
        cleared = Cleared()
        for sorted_files in results:
            versions = versions.raised(sorted_files.pairs)
            for run in sorted_files.runs:
                runs.setdefault(run.scan.map, []).append(run)
            for name, numbers in sorted_files.touched.items():
                touched.setdefault(name, set()).update(numbers)
            for row, node in sorted_files.clears:
                cleared.take(node, [row])
        late = {subject for sorted_files in results for subject in sorted_files.late_clears}
        map_names = set(totals)
        former, merged = former_to_read(plan, map_names, log.context)
        for name, _ in former:
            map_names.add(name)
            for row, node in former_clears(log, plan, name):
                cleared.take(node, [row])
        size = sum(sum(run.sizes) for map_runs in runs.values() for run in map_runs)
        sizes = self._sizes.for_ranges(size, self._parallel())
        map_plans = [
            plan_map(
                plan,
                log,
                name,
                runs.get(name, ()),
                touched.get(name, ()),
                sizes,
                cleared=name in cleared,
            )
            for name in sorted(map_names)
        ]
        done = self._ranges(plan, map_plans, cleared)
        for map_plan in map_plans:
            own = [done.pop(0) for _ in map_plan.tasks]
            for part in own:
                versions = versions.raised(part.pairs)
            clears = clears_part(log, plan, map_plan.map, cleared.claims(map_plan.map), late)
            read = totals.get(map_plan.map, Totals())
            records = read.records + sum(range_parts.records for range_parts in own)
            merged.append(
                Merged(map_plan.map, records, read.bytes, (*clears, *map_plan.joined(own)))
            )
        return Result(tuple(merged), tuple(versions.pairs.items()), confirmed=True)

    def _ranges(
        self, plan: RewritePlan, map_plans: Sequence[MapPlan], cleared: Cleared
    ) -> list[RangeParts]:
        """The results of all ranges, in order. The largest one begins first: one that began last
        would run alone at the end."""
        tasks = [task for map_plan in map_plans for task in map_plan.tasks]
        order = sorted(range(len(tasks)), key=lambda number: tasks[number].bytes, reverse=True)
        inputs = [tasks[number] for number in order]
        size = sum(task.bytes for task in tasks)
        work = Merging(plan, cleared, self._task_settings())
        done = self._step(plan, "merging", work, inputs, size, _of_merged)
        by_number = dict(zip(order, done, strict=True))
        return [by_number[number] for number in range(len(tasks))]


@dataclass(frozen=True, slots=True)
class Sorting:
    """The first step: a group of files becomes sorted runs."""

    plan: RewritePlan
    direct: Collection[str]
    settings: Settings
    sizes: Sizes

    def __call__(
        self, log: ClusterLog, task_input: list[FileScan], number: int, randomness: Randomness
    ) -> SortedFiles:
        return sort_files(
            self.plan, log, task_input, self.direct, self.settings, self.sizes, randomness
        )


@dataclass(frozen=True, slots=True)
class Merging:
    """The last step: a range of keys becomes part files."""

    plan: RewritePlan
    cleared: Cleared
    settings: Settings

    def __call__(
        self, log: ClusterLog, task_input: RangeTask, number: int, randomness: Randomness
    ) -> RangeParts:
        return merge_range(
            self.plan, log, task_input, self.cleared, self.settings, number, randomness
        )


def _of_sorted(result: SortedFiles) -> tuple[int, int]:
    read = sum(total.records for total in result.totals.values())
    return read, sum(run.scan.records for run in result.written)


def _of_merged(result: RangeParts) -> tuple[int, int]:
    return result.records + result.run_records, sum(part.rows for part in result.parts)


def report_of(
    step: str, answers: Iterable[TaskAnswer], records: Iterable[tuple[int, int]], seconds: float
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
        bytes_read=sum(attempt.bytes_read for attempt in attempts),
        records_written=written,
        bytes_written=sum(attempt.bytes_written for attempt in attempts),
        memory_max_bytes=max(attempt.memory_max_bytes for attempt in attempts),
    )


def _totals(all_files: Sequence[SortedFiles]) -> dict[str, Totals]:
    """Map → what was read of it in the logs."""
    totals: dict[str, Totals] = {}
    for sorted_files in all_files:
        for name, read in sorted_files.totals.items():
            own = totals.setdefault(name, Totals())
            own.records += read.records
            own.bytes += read.bytes
    return totals


def clears_part(
    log: ClusterLog,
    plan: RewritePlan,
    name: str,
    claims: Sequence[Claim],
    late: set[Subject],
) -> tuple[Part, ...]:
    """The clears of a map that are kept. They are few, and the tasks of all ranges of keys needed
    them, so the driver writes them."""
    if not claims:
        return ()
    with rewrite_folder(None) as folder:
        writer = PartWriter(log.context, plan, name, Path(folder), randomness=log.randomness)
        writer.add_clears(claims, late)
        writer.end()
        parts = writer.parts()
    for part in parts:
        read_again(log.context, part)
    return parts


def taken(answers: Sequence[TaskAnswer], count: int) -> list[Any]:
    """The results of `count` tasks in order: exactly one attempt at every task counts, whatever
    others wrote. Raises the error of an answer, and `LostRace` if an answer is missing."""
    by_task: dict[int, TaskAnswer] = {}
    for answer in answers:
        if answer.error:
            raise _thaw(answer.error)
        if by_task.setdefault(answer.task, answer).attempt != answer.attempt:
            raise LostRace(
                f"two attempts at task {answer.task} returned an answer; nothing was published; "
                "run the rewrite again"
            )
    if sorted(by_task) != list(range(count)):
        raise LostRace(
            f"only tasks {sorted(by_task)} of {count} returned an answer; nothing was published; "
            "run the rewrite again"
        )
    return [by_task[number].result for number in range(count)]


# An error of a worker keeps its type. Our errors' constructors do not accept their own `args`.


def freeze(error: Exception) -> str:
    """An error as text, for `TaskAnswer.error`."""
    return base64.b64encode(pickle.dumps((type(error), error.args, error.__dict__))).decode()


def _thaw(text: str) -> Exception:
    kind, args, state = pickle.loads(base64.b64decode(text))  # noqa: S301  # from our own worker
    error: Exception = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


# The last step of a rewrite in tasks: ranges of keys, and what merges one.
#
#   runs, former snapshot ─▶ `plan_map`: files that are kept, and a `RangeTask` for each range
#   a range               ─▶ `merge_range` ─▶ `RangeParts`: its part files
#
# The runs come from `imap_wal.rewrite.sorted_runs`.


@dataclass(frozen=True, slots=True)
class RangeTask:
    """What a task merges: row groups of runs, and files of the former snapshot. `growth`: see
    `KeyRange`."""

    map: str
    span: MergeSpan
    runs: tuple[tuple[SortedRun, tuple[int, ...]], ...]
    former: tuple[FileScan, ...]
    growth: int = 0

    @property
    def bytes(self) -> int:
        """About how much it reads."""
        groups = sum(run.sizes[number] for run, numbers in self.runs for number in numbers)
        return groups + sum(scan.bytes for scan in self.former)


@dataclass(frozen=True, slots=True)
class RangeParts:
    """The result of a task. `pairs`: as in `imap_wal.rewrite.plan.Result`."""

    map: str
    parts: tuple[Part, ...]
    pairs: Pairs = ()
    records: int = 0
    """Entries of the former snapshot that were read."""
    run_records: int = 0
    """Entries of sorted runs that were read."""


@dataclass(frozen=True, slots=True)
class MapPlan:
    """The new snapshot of a map, in key order: files that are kept, and ranges to merge."""

    map: str
    order: tuple[KeptPart | RangeTask, ...]

    @property
    def tasks(self) -> list[RangeTask]:
        return [item for item in self.order if isinstance(item, RangeTask)]

    def joined(self, done: Sequence[RangeParts]) -> tuple[Part, ...]:
        """All parts in key order. `done`: of each task, in order."""
        left = iter(done)
        return tuple(
            part
            for item in self.order
            for part in ((item.part,) if isinstance(item, KeptPart) else next(left).parts)
        )


def plan_map(
    plan: RewritePlan,
    log: ClusterLog,
    name: str,
    runs: Sequence[SortedRun],
    touched: Collection[int],
    sizes: Sizes,
    *,
    cleared: bool,
) -> MapPlan:
    """Decide which files of the former snapshot are kept, and cut the rest into ranges. `cleared`:
    the map has clears, so each of its ranges may have something to drop."""
    snapshot = plan.state.manifest.snapshots.get(name)
    former = snapshot_scans(name, snapshot) if snapshot is not None else []
    lowers = borders_of(snapshot, log.context.keys) if snapshot is not None else None
    unchanged: dict[str, KeptPart] = {}
    if snapshot is not None and not cleared:
        parts = parts_of(snapshot, log.context.keys)
        pages = [[lowers[number] for number in sorted(touched)]] if lowers else []
        unchanged = {
            kept_part.part.path: kept_part
            for kept_part in kept_parts(plan, parts, pages, log.context)
        }
    growth = _growth(
        sum(size for run in runs for size in run.sizes)
        + sum(scan.bytes for scan in former if scan.path not in unchanged)
    )
    order: list[KeptPart | RangeTask] = []
    for span, files in _intervals(former, lowers, unchanged):
        if isinstance(files, KeptPart):
            order.append(files)
            continue
        for keys in _cut(span, runs, files, sizes):
            inside = [scan for scan, own in files if _overlap(keys, own)]
            some = [(run, groups) for run in runs if (groups := run.groups(keys))]
            if some or inside:
                order.append(RangeTask(name, keys, tuple(some), tuple(inside), growth))
    return MapPlan(name, tuple(order))


_Files = Sequence[tuple[FileScan, MergeSpan]]


def _intervals(
    former: Sequence[FileScan], lowers: Sequence[bytes] | None, unchanged: Mapping[str, KeptPart]
) -> Iterator[tuple[MergeSpan, _Files | KeptPart]]:
    """All keys in order, as spans: each is the span of a kept file, or of the files between two
    kept ones."""
    if lowers is None:
        yield MergeSpan(), [(scan, MergeSpan()) for scan in former]
        return
    waiting: list[tuple[FileScan, MergeSpan]] = []
    for scan, lower, upper in zip(former, lowers, [*lowers[1:], None], strict=True):
        if scan.path not in unchanged:
            waiting.append((scan, MergeSpan(lower, upper)))
            continue
        if waiting:
            yield MergeSpan(waiting[0][1].lower, lower), waiting
            waiting = []
        yield MergeSpan(lower, upper), unchanged[scan.path]
    if waiting:
        yield MergeSpan(waiting[0][1].lower), waiting


def _cut(
    span: MergeSpan, runs: Sequence[SortedRun], files: _Files, sizes: Sizes
) -> Iterator[MergeSpan]:
    """Cut a span into ranges of about `range_bytes`."""
    weights = [
        (max(first, span.lower), size)
        for run in runs
        for number in run.groups(span)
        for first, size in ((run.firsts[number], run.sizes[number]),)
    ]
    weights += [(own.lower, scan.bytes) for scan, own in files]
    lower, size = span.lower, 0
    for key, more in sorted(weights):
        if size >= sizes.range_bytes and key > lower:
            yield MergeSpan(lower, key)
            lower, size = key, 0
        size += more
    yield MergeSpan(lower, span.upper)


def _overlap(one: MergeSpan, other: MergeSpan) -> bool:
    return (one.upper is None or other.lower < one.upper) and (
        other.upper is None or one.lower < other.upper
    )


def _growth(size: int) -> int:
    """How often the size of a part doubles until `PARTS_OF_A_SIZE` parts of each size have `size`
    bytes."""
    growth, room = 0, PARTS_OF_A_SIZE * PART_BYTES
    while room < size:
        growth += 1
        room += PARTS_OF_A_SIZE * PART_BYTES * 2**growth
    return growth


def former_clears(log: ClusterLog, plan: RewritePlan, name: str) -> list[Claim]:
    """The clears of a map's former snapshot. They are at its start, since they have no key."""
    snapshot = plan.state.manifest.snapshots.get(name)
    clears: list[Claim] = []
    if snapshot is None or not snapshot.tombstones or not plan.state.manifest.clears:
        return clears
    for scan in snapshot_scans(name, snapshot):
        for changes in read_scan(log.context, scan):
            clears += [(row, changes.node) for row in changes.rows if is_clear(row)]
            if any(row[KEY] for row in changes.rows):
                return clears
    return clears


def merge_range(
    plan: RewritePlan,
    log: ClusterLog,
    task: RangeTask,
    cleared: Cleared,
    settings: Settings,
    partition: int,
    randomness: Randomness,
) -> RangeParts:
    """Merge one range, and write its parts. `partition`: its number. Raises as `sort_files`
    does."""
    with (
        scratch_errors(settings),
        closing(ColumnMerge(plan, log, settings, span=task.span, cleared=cleared)) as merge,
        rewrite_folder(settings.scratch) as folder,
    ):
        merge.read_runs((run.scan, groups, run.late) for run, groups in task.runs)
        for scan in task.former:
            merge.read_snapshot(scan)
        merge.sources.flush()
        writer = PartWriter(
            log.context,
            plan,
            task.map,
            Path(folder),
            KeyRange(partition, task.span.lower, growth=task.growth),
            randomness,
        )
        merge.write(task.map, writer)
        writer.end()
        parts = writer.parts()
        for part in parts:
            read_again(log.context, part)
        pairs = tuple(merge.tally.pairs.items())
        return RangeParts(task.map, parts, pairs, merge.records, merge.run_records)
