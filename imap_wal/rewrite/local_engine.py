"""The local rewrite engine: one machine, by columns, with bounded memory.

    logs, then touched ranges of snapshots ─▶ `ColumnMerge` ─▶ part files   `PartWriter`

The logs are read before the snapshots. So the snapshot of an unchanged map is not read, and of a
changed map only the files whose key ranges have new entries (`imap_wal.rewrite.ranges`). This is
done in one process. If several processes are allowed and useful, they do the tasks of ranges
instead (`ProcessEngine`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from imap_wal.clock import SystemRandomness
from imap_wal.context import Context
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.merge import MergeProgress
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.retention.other_process import Report, is_reachable
from imap_wal.retention.overlap import Overlap
from imap_wal.retention.processes import Processes, begin, processes
from imap_wal.rewrite.columns.merge import ColumnMerge, scratch_errors
from imap_wal.rewrite.part_writer import KeyRange, PartWriter
from imap_wal.rewrite.plan import Merged, Result, RewritePlan, former_to_read, rewrite_folder
from imap_wal.rewrite.ranges import KeptPart, kept_parts, parts_of
from imap_wal.rewrite.report import memory_max_bytes
from imap_wal.rewrite.sorted_runs import Sizes, read_directly
from imap_wal.rewrite.tally import Totals
from imap_wal.rewrite.task_engine import TaskAnswer, TaskEngine, TaskWork
from imap_wal.settings import Settings
from storage_backends.metered import Meter


class LocalEngine:
    """See the module. Memory: about `settings.restore_memory_bytes`, and about 100 MB more for each
    process; the rest is written to `settings.scratch`. `run` raises `StorageUnavailable` if that
    folder is full or fails, and the errors of reading the log and of `ProcessEngine`."""

    name = "local"

    def __init__(
        self,
        settings: Settings | None = None,
        progress: Callable[[MergeProgress], None] | None = None,
        processes: int = 1,
    ) -> None:
        """`processes`: how many may work at the same time, at most."""
        self._settings = settings or Settings()
        self._progress = progress
        self._processes = processes

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        count = useful_processes(plan, self._settings, self._processes)
        if count > 1:
            return ProcessEngine(self._settings, count, self._progress).run(plan, log)
        with (
            scratch_errors(self._settings),
            closing(ColumnMerge(plan, log, self._settings)) as merge,
        ):
            return self._run(merge, plan, log)

    def _run(self, merge: ColumnMerge, plan: RewritePlan, log: ClusterLog) -> Result:
        scans = plan.log_scans()
        total, done = sum(scan.bytes for scan in scans), 0
        for count, (scan, context) in enumerate(ahead(log.context, scans)):
            merge.read_log(scan, context)
            done += scan.bytes
            if self._progress is not None:
                self._progress(MergeProgress(count + 1, len(scans), done, total, merge.records))
        merge.sources.flush()
        tally = merge.tally
        touched = set(tally.maps)
        former, merged = former_to_read(plan, touched, log.context)
        kept_by_map: dict[str, tuple[KeptPart, ...]] = {}
        for name, snapshot in former:
            if name not in merge.cleared:
                parts = parts_of(snapshot, log.context.keys)
                kept_by_map[name] = kept_parts(plan, parts, merge.keys.keys(name), log.context)
            paths = {kept_part.part.path for kept_part in kept_by_map.get(name, ())}
            for scan in snapshot_scans(name, snapshot):
                if scan.path not in paths:
                    merge.read_snapshot(scan)
            touched.add(name)
        merge.sources.flush()
        writers: dict[str, PartWriter] = {}
        with (
            rewrite_folder(self._settings.scratch) as folder,
            Overlap[None]() as publishing,
        ):
            for name in sorted(touched):
                writers[name] = writer = PartWriter(
                    log.context,
                    plan,
                    name,
                    Path(folder),
                    KeyRange(kept=kept_by_map.get(name, ())),
                    log.randomness,
                    publishing.run,
                )
                writer.add_clears(merge.cleared.claims(name), merge.tally.late)
                merge.write(name, writer)
                writer.end()
            publishing.results()
        for name, writer in writers.items():
            totals = tally.maps.get(name, Totals())
            merged.append(Merged(name, totals.records, totals.bytes, writer.parts()))
        return Result(tuple(merged), tuple(tally.pairs.items()))


# The tasks of a rewrite in processes of this machine.
#
#   LocalEngine ─▶ little to do, one processor, segments: one process
#               └▶ `ProcessEngine` ─▶ `count` processes, each runs a task at a time
#
# On two processors, one process with its threads is faster; more were not measured. See
# docs/decisions/rewrites.md.

MEMORY_BYTES_MIN = 256 * 1024 * 1024
"""The memory of a process. If there is less for each, fewer processes are used."""
ARCHIVES_BYTES_MIN = 512 * 1024 * 1024
"""Rows that take less memory than this are merged sooner than other processes would start."""
OTHERS = 8
"""Several processes are used only if the runs have at least this many times the bytes of all other
files, because one process merges those without writing them twice."""


def useful_processes(plan: RewritePlan, settings: Settings, count: int) -> int:
    """How many processes make a rewrite faster, at most `count`. 1: this process does the rewrite
    alone."""
    count = min(count, settings.restore_memory_bytes // MEMORY_BYTES_MIN)
    if count < 2 or plan.dry_run or not is_reachable(plan.place):
        return 1
    scans = plan.log_scans()
    direct = read_directly(scans, sizes_of(settings, count))
    sorted_bytes = sum(scan.unpacked for scan in scans if scan.path in direct)
    others = sum(max(scan.unpacked, scan.bytes) for scan in scans if scan.path not in direct)
    is_worth = sorted_bytes >= ARCHIVES_BYTES_MIN and others * OTHERS <= sorted_bytes
    return count if is_worth else 1


def sizes_of(settings: Settings, count: int) -> Sizes:
    """Ranges of half of the memory of a process."""
    memory = settings.restore_memory_bytes // count
    usual = Sizes()
    largest = min(usual.range_bytes, memory // 2)
    return replace(usual, range_bytes=largest, range_bytes_min=min(usual.range_bytes_min, largest))


class ProcessEngine(TaskEngine):
    """Executes a plan in `count` other processes. Together they take about
    `settings.restore_memory_bytes`, plus about 100 MB each. They end with this process, even if it
    is killed. A task whose process is killed runs once more. `run` raises `ProcessDied` if the
    second process is killed too, `StorageUnavailable` if `settings.scratch` is full or fails, and
    the errors of tasks. `sizes`: how much a task does."""

    def __init__(
        self,
        settings: Settings,
        count: int,
        progress: Callable[[MergeProgress], None] | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        super().__init__(sizes or sizes_of(settings, count))
        self._settings, self._count, self._progress = settings, count, progress
        self._processes: Processes | None = None

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        with (
            scratch_errors(self._settings),
            rewrite_folder(self._settings.scratch) as folder,
            processes(plan.place, self._count, Path(folder)) as self._processes,
        ):
            return self._in_tasks(plan, log)

    def _parallel(self) -> int:
        return self._count

    def _task_settings(self) -> Settings:
        memory = self._settings.restore_memory_bytes // self._count
        return replace(self._settings, restore_memory_bytes=memory, scratch=None)  # see `_Task`

    def _answers(
        self, plan: RewritePlan, step: str, work: TaskWork, inputs: Sequence[Any], size: int
    ) -> list[TaskAnswer]:
        assert self._processes is not None
        packed = pickle.dumps(work)
        tasks = [
            partial(_Task, plan.namespace, plan.cluster, packed, number, task_input)
            for number, task_input in enumerate(inputs)
        ]
        answers: list[TaskAnswer] = []
        for _, answer in self._processes.run(tasks):
            answers.append(answer)
            if self._progress is not None:
                done = size * len(answers) // len(inputs)
                self._progress(MergeProgress(len(answers), len(inputs), done, size, 0, step))
        return answers


@dataclass(frozen=True, slots=True)
class _Task:
    """One task, for `Processes`. `work`: pickled once for all tasks of a step. It has the plan,
    which grows with the number of maps and archives; so does the number of tasks."""

    namespace: str
    cluster: str
    work: bytes
    number: int
    task_input: Any
    folder: Path

    def run(self, context: Context, report: Report) -> TaskAnswer:
        begin(self.folder)
        randomness, meter = SystemRandomness(), Meter()
        log = ClusterLog(context.on(meter.on(context.store)), self.namespace, self.cluster)
        result = _work(self.work)(log, self.task_input, self.number, randomness)
        return TaskAnswer(
            self.number,
            randomness.name(),
            result,
            bytes_read=meter.read_bytes,
            bytes_written=meter.written_bytes,
            memory_max_bytes=memory_max_bytes(),
        )


@lru_cache(maxsize=1)
def _work(packed: bytes) -> TaskWork:
    """The work of the tasks of a step."""
    return cast(TaskWork, pickle.loads(packed))  # noqa: S301  # our own parent wrote it
