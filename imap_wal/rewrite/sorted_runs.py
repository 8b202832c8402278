"""A rewrite in tasks that may run on other machines, without moving values between them.

    files of the logs ─▶ `sort_files`, a task for each group of files ─▶ sorted runs on the storage
    runs, snapshots   ─▶ `plan_map`: ranges of keys, from the first keys of row groups
                      ─▶ `merge_range`, a task for each range ─▶ part files

A run is a Parquet file with the rows of one map that may still win, in key order. A task writes it
under a name that no other attempt has, and nothing names it in a manifest: after the rewrite it is
deleted, or a later `prune` deletes it. A range reads only the row groups, and the files of the
former snapshot, that overlap it. So each value of a log is read once, and each value of a winner is
written once to a run and once to a part. See docs/decisions/0049-spark-without-a-shuffle.md.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imap_wal.clock import Randomness
from imap_wal.entry import KEY, is_clear
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA
from imap_wal.parquet.file import ParquetFile
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SNAPSHOT, FileScan
from imap_wal.read.newest.clears import Cleared
from imap_wal.read.newest.rivals import Claim
from imap_wal.read.scan import ahead, read_scan
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.rewrite.columns.merge import ColumnMerge, Span, scratch_errors
from imap_wal.rewrite.part_writer import PART_BYTES, PARTS_OF_A_SIZE, PartWriter
from imap_wal.rewrite.plan import Part, RewritePlan, Subject, Totals
from imap_wal.rewrite.publish import read_again
from imap_wal.rewrite.ranges import KeptPart, borders_of, kept_parts, parts_of
from imap_wal.security.encryption import keys_of
from imap_wal.settings import Settings
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow.compute as pc

Pairs = tuple[tuple[int, tuple[int, int]], ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a task does."""

    sort_bytes: int = 512 * 1024 * 1024
    """About how many bytes of files of the logs a task sorts."""
    range_bytes: int = 128 * 1024 * 1024
    """About how many bytes a range has: of rows in memory, and of former files as stored."""
    group_bytes: int = 4 * 1024 * 1024
    group_rows: int = 8192
    """A row group of a run ends when it has so many rows, or `group_bytes` in memory."""


@dataclass(frozen=True, slots=True)
class SortedRun:
    """A run: `firsts` and `sizes` are the first key and the bytes of each row group, `last` is the
    last key. `late`: all of its rows came late (`imap_wal.rewrite.plan.Tally`), or none."""

    scan: FileScan
    late: bool
    firsts: tuple[bytes, ...]
    sizes: tuple[int, ...]
    last: bytes

    def groups(self, span: Span) -> tuple[int, ...]:
        """The row groups that may have keys of a span."""
        ends = (*self.firsts[1:], self.last)
        return tuple(
            number
            for number, (first, end) in enumerate(zip(self.firsts, ends, strict=True))
            if end >= span.lower and (span.upper is None or first < span.upper)
        )


@dataclass(frozen=True, slots=True)
class SortedFiles:
    """The result of sorting a group of files. `clears` and `late_clears`: see `ColumnMerge`.
    `touched`: map → numbers of the files of its former snapshot whose ranges have a new entry."""

    runs: tuple[SortedRun, ...] = ()
    totals: Mapping[str, Totals] = field(default_factory=dict)
    pairs: Pairs = ()
    clears: tuple[Claim, ...] = ()
    late_clears: frozenset[Subject] = frozenset()
    touched: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RangeTask:
    """What a task merges: row groups of runs, and files of the former snapshot. `growth`: see
    `PartWriter`."""

    map: str
    span: Span
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


# ---- first step: sort ----------------------------------------------------------------------------


def grouped(scans: Sequence[FileScan], count: int, sizes: Sizes) -> list[list[FileScan]]:
    """The scans in at least `count` groups of about the same size in bytes, if there are as many
    scans."""
    total = sum(scan.bytes for scan in scans)
    count = max(1, min(max(count, -(-total // sizes.sort_bytes)), len(scans)))
    groups: list[list[FileScan]] = [[] for _ in range(count)]
    filled = [0] * count
    for scan in sorted(scans, key=lambda scan: scan.bytes, reverse=True):
        smallest = filled.index(min(filled))
        groups[smallest].append(scan)
        filled[smallest] += scan.bytes + 1
    return [group for group in groups if group]


def sort_files(
    job: RewritePlan,
    log: ClusterLog,
    scans: Iterable[FileScan],
    settings: Settings,
    sizes: Sizes,
    randomness: Randomness,
) -> SortedFiles:
    """Read files of logs, and write what may still win of each map as a run. Raises `NotFound`,
    `LogError`, `StorageUnavailable`."""
    everything = replace(job.rule, complete=False)  # a tombstone may hide an entry of another task
    runs: list[SortedRun] = []
    touched: dict[str, frozenset[int]] = {}
    with (
        scratch_errors(settings),
        closing(ColumnMerge(job, log, settings)) as merge,
        tempfile.TemporaryDirectory(
            prefix="imap-wal-rewrite-", dir=settings.scratch, ignore_cleanup_errors=True
        ) as folder,
    ):
        for scan, store in ahead(log.store, scans):
            merge.read_log(scan, store)
        merge.sources.flush()
        for name in merge.keys.maps():
            snapshot = job.state.manifest.snapshots.get(name)
            lowers = (borders_of(snapshot) if snapshot is not None else None) or [b""]
            found: set[int] = set()
            files = [_RunFile(job, log, name, late, Path(folder), sizes) for late in (False, True)]
            for batch in merge.sorted_rows(name, everything):
                found |= touched_by(lowers, batch.column("key"))
                for file in files:
                    file.add(batch)
            runs += [run for file in files for run in file.close(randomness)]
            touched[name] = frozenset(found)
        clears = tuple(
            claim for name in merge.cleared.maps() for claim in merge.cleared.claims(name)
        )
        late = frozenset(each for each in merge.tally.late if isinstance(each[1], tuple))
        return SortedFiles(
            tuple(runs), merge.tally.maps, tuple(merge.tally.pairs.items()), clears, late, touched
        )


class _RunFile:
    """Writes the run of those rows that came late, or of the others."""

    def __init__(
        self,
        job: RewritePlan,
        log: ClusterLog,
        name: str,
        late: bool,
        folder: Path,
        sizes: Sizes,
    ) -> None:
        self._job, self._log, self._name, self._late = job, log, name, late
        self._folder, self._sizes = folder, sizes
        self._file: ParquetFile | None = None
        self._rows = self._bytes = 0
        self._firsts: list[bytes] = []
        self._groups: list[int] = []
        self._last = b""

    def add(self, batch: Any) -> None:
        """Rows in key order, with `RANKED_SCHEMA`."""
        late = batch.column("late")
        batch = batch.filter(late if self._late else pc.invert(late))
        batch = batch.select(SNAPSHOT_SCHEMA.names)
        start = 0
        while start < len(batch):
            fitting = (self._sizes.group_bytes - self._bytes) * len(batch) // max(1, batch.nbytes)
            count = max(1, min(self._sizes.group_rows - self._rows, fitting))
            self._append(batch.slice(start, count))
            start += count

    def close(self, randomness: Randomness) -> list[SortedRun]:
        """Store the file. Returns its run; nothing if it has no rows."""
        if self._file is None:
            return []
        path = self._job.run_path(self._name, randomness.name())
        published = self._file.publish(self._log.store, path)
        scan = FileScan(
            SNAPSHOT,
            "",
            path,
            self._name,
            bytes=published.bytes,
            records=self._file.records,
            checksum=published.checksum,
        )
        firsts, sizes = tuple(self._firsts), tuple(self._groups)
        return [SortedRun(scan, self._late, firsts, sizes, self._last)]

    def _append(self, batch: Any) -> None:
        if self._file is None:
            self._file = ParquetFile(self._folder, SNAPSHOT_SCHEMA, keys_of(self._log.store))
        if not self._rows:
            self._firsts.append(batch.column("key")[0].as_py())
            self._groups.append(0)
        self._file.write(batch, batch.column("deleted").true_count)
        self._last = batch.column("key")[-1].as_py()
        self._groups[-1] += batch.nbytes
        self._rows += len(batch)
        self._bytes += batch.nbytes
        if self._rows >= self._sizes.group_rows or self._bytes >= self._sizes.group_bytes:
            self._file.flush()
            self._rows = self._bytes = 0


def touched_by(lowers: Sequence[bytes], keys: Any) -> set[int]:
    """The numbers of the ranges with these lower borders that have one of `keys`, an Arrow array in
    order."""
    found = set()
    start = 0
    while start < len(keys):
        number = max(0, bisect_right(lowers, keys[start].as_py()) - 1)
        found.add(number)
        if number + 1 == len(lowers):
            break
        start = bisect_left(keys, lowers[number + 1], start, key=_bytes)
    return found


# ---- between the steps: ranges -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MapPlan:
    """The new snapshot of a map, in key order: files that are kept, and ranges to merge."""

    map: str
    order: tuple[KeptPart | RangeTask, ...]

    @property
    def tasks(self) -> list[RangeTask]:
        return [each for each in self.order if isinstance(each, RangeTask)]

    def joined(self, done: Sequence[RangeParts]) -> tuple[Part, ...]:
        """All parts in key order. `done`: of each task, in order."""
        left = iter(done)
        return tuple(
            part
            for each in self.order
            for part in ((each.part,) if isinstance(each, KeptPart) else next(left).parts)
        )


def plan_map(
    job: RewritePlan,
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
    snapshot = job.state.manifest.snapshots.get(name)
    former = snapshot_scans(name, snapshot) if snapshot is not None else []
    lowers = borders_of(snapshot) if snapshot is not None else None
    kept: dict[str, KeptPart] = {}
    if snapshot is not None and not cleared:
        parts = parts_of(snapshot)
        pages = [[lowers[number] for number in sorted(touched)]] if lowers else []
        kept = {each.part.path: each for each in kept_parts(job, parts, pages, log.store)}
    growth = _growth(
        sum(size for run in runs for size in run.sizes)
        + sum(scan.bytes for scan in former if scan.path not in kept)
    )
    order: list[KeptPart | RangeTask] = []
    for span, files in _intervals(former, lowers, kept):
        if isinstance(files, KeptPart):
            order.append(files)
            continue
        for each in _cut(span, runs, files, sizes):
            inside = [scan for scan, own in files if _overlap(each, own)]
            some = [(run, groups) for run in runs if (groups := run.groups(each))]
            if some or inside:
                order.append(RangeTask(name, each, tuple(some), tuple(inside), growth))
    return MapPlan(name, tuple(order))


_Files = Sequence[tuple[FileScan, Span]]


def _intervals(
    former: Sequence[FileScan], lowers: Sequence[bytes] | None, kept: Mapping[str, KeptPart]
) -> Iterator[tuple[Span, _Files | KeptPart]]:
    """All keys in order, as spans: each of a kept file, or of files between two kept ones."""
    if lowers is None:
        yield Span(), [(scan, Span()) for scan in former]
        return
    waiting: list[tuple[FileScan, Span]] = []
    for scan, lower, upper in zip(former, lowers, [*lowers[1:], None], strict=True):
        if scan.path not in kept:
            waiting.append((scan, Span(lower, upper)))
            continue
        if waiting:
            yield Span(waiting[0][1].lower, lower), waiting
            waiting = []
        yield Span(lower, upper), kept[scan.path]
    if waiting:
        yield Span(waiting[0][1].lower), waiting


def _cut(span: Span, runs: Sequence[SortedRun], files: _Files, sizes: Sizes) -> Iterator[Span]:
    """A span in ranges of about `range_bytes`."""
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
            yield Span(lower, key)
            lower, size = key, 0
        size += more
    yield Span(lower, span.upper)


def _overlap(one: Span, other: Span) -> bool:
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


def former_clears(log: ClusterLog, job: RewritePlan, name: str) -> list[Claim]:
    """The clears of a map's former snapshot. They are at its start, since they have no key."""
    snapshot = job.state.manifest.snapshots.get(name)
    found: list[Claim] = []
    if snapshot is None or not snapshot.tombstones or not job.state.manifest.clears:
        return found
    for scan in snapshot_scans(name, snapshot):
        for changes in read_scan(log.store, scan):
            found += [(row, changes.node) for row in changes.rows if is_clear(row)]
            if any(row[KEY] for row in changes.rows):
                return found
    return found


# ---- last step: merge ----------------------------------------------------------------------------


def merge_range(
    job: RewritePlan,
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
        closing(ColumnMerge(job, log, settings, span=task.span, cleared=cleared)) as merge,
        tempfile.TemporaryDirectory(
            prefix="imap-wal-rewrite-", dir=settings.scratch, ignore_cleanup_errors=True
        ) as folder,
    ):
        for run, groups in task.runs:
            merge.read_run(run.scan, groups, late=run.late)
        for scan in task.former:
            merge.read_snapshot(scan)
        merge.sources.flush()
        writer = PartWriter(
            log.store,
            job,
            task.map,
            Path(folder),
            partition,
            randomness,
            lower=task.span.lower,
            growth=task.growth,
        )
        merge.write(task.map, writer)
        parts = writer.close()
        for part in parts:
            read_again(log.store, part)
        pairs = tuple(merge.tally.pairs.items())
        return RangeParts(task.map, parts, pairs, merge.records, merge.run_records)


def _bytes(scalar: Any) -> bytes:
    return bytes(scalar.as_py())
