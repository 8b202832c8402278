"""The last step of a rewrite in tasks: ranges of keys, and what merges one.

    runs, former snapshot ─▶ `plan_map`: files that are kept, and a `RangeTask` for each range
    a range               ─▶ `merge_range` ─▶ `RangeParts`: its part files

The runs come from `imap_wal.rewrite.sorted_runs`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from imap_wal.clock import Randomness
from imap_wal.entry import KEY, is_clear
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.rewrite.columns.merge import ColumnMerge, MergeSpan, scratch_errors
from imap_wal.rewrite.part_writer import PART_BYTES, PARTS_OF_A_SIZE, KeyRange, PartWriter
from imap_wal.rewrite.plan import Part, RewritePlan
from imap_wal.rewrite.publish import read_again
from imap_wal.rewrite.ranges import KeptPart, borders_of, kept_parts, parts_of
from imap_wal.rewrite.sorted_runs import Pairs, Sizes, SortedRun
from imap_wal.rules.cleared import Cleared
from imap_wal.rules.newer import Claim
from imap_wal.settings import Settings


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
        tempfile.TemporaryDirectory(
            prefix="imap-wal-rewrite-", dir=settings.scratch, ignore_cleanup_errors=True
        ) as folder,
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
