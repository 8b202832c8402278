"""A rewrite in tasks that may run on other machines, without moving values between them.

    files of the logs ─▶ `sort_files`, a task for each group of files ─▶ sorted runs
    runs, snapshots   ─▶ `plan_map`: ranges of keys, from the first keys of row groups
                      ─▶ `merge_range`, a task for each range ─▶ part files   `range_tasks`

A run is a Parquet file with rows of one map in key order. An archive that is sorted by key is
already a run: the first step reads only its keys and orders. From other files, a task writes the
rows that may still win to a run on the storage, under a name that no other attempt has. No manifest
names it: after the rewrite it is deleted, or a later `prune` deletes it. A range reads only the row
groups, and the files of the former snapshot, that overlap it. See
docs/decisions/rewrites.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imap_wal.clock import Randomness
from imap_wal.errors import CorruptLog
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SNAPSHOT, FileScan
from imap_wal.read.scan import ahead
from imap_wal.retention.archive_writer import is_absorbable
from imap_wal.rewrite.columns.key_columns import KeyBatch
from imap_wal.rewrite.columns.merge import ColumnMerge, MergeSpan, by_columns, scratch_errors
from imap_wal.rewrite.plan import RewritePlan, rewrite_folder
from imap_wal.rewrite.ranges import borders_of
from imap_wal.rewrite.tally import Subject, Totals
from imap_wal.rules.newer import Claim
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
    range_bytes_min: int = 128 * 1024 * 1024
    range_bytes: int = 4 * 1024 * 1024 * 1024
    """The approximate limits of a range's size in bytes, lowest and highest: of rows in memory,
    plus former files as stored. Between these, each processor gets `ranges_each` of them. A range
    is merged in bounded memory, whatever its size; its winners are sorted in scratch."""
    ranges_each: int = 4
    ranges_max: int = 16
    """Archives of a map that would be cut into more ranges are sorted into larger runs first: a
    range reads whole row groups, and an archive has about 12, so more ranges read more bytes
    twice."""
    group_bytes: int = 4 * 1024 * 1024
    group_rows: int = 8192
    """A row group of a run ends when it has this many rows, or `group_bytes` in memory."""

    def for_ranges(self, size: int, parallel: int) -> Sizes:
        """With `range_bytes` for runs of `size` bytes, if `parallel` tasks run at once."""
        size_each = size // (self.ranges_each * max(parallel, 1))
        return replace(
            self, range_bytes=min(max(size_each, self.range_bytes_min), self.range_bytes)
        )


@dataclass(frozen=True, slots=True)
class SortedRun:
    """A run: `firsts` and `sizes` are the first key and the bytes of each row group, `last` is the
    last key. `late`: whether all of its rows came late (`imap_wal.rewrite.tally.Tally`). The
    batches of an archive are judged one by one."""

    scan: FileScan
    late: bool
    firsts: tuple[bytes, ...]
    sizes: tuple[int, ...]
    last: bytes

    def groups(self, span: MergeSpan) -> tuple[int, ...]:
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

    @property
    def written(self) -> tuple[SortedRun, ...]:
        """The runs that are not archives: they are deleted after the rewrite."""
        return tuple(run for run in self.runs if run.scan.kind != ARCHIVE)


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


def read_directly(scans: Iterable[FileScan], sizes: Sizes) -> frozenset[str]:
    """The paths of archives that are runs as they are. Archives that an archive run may absorb, and
    therefore delete, are not among them."""
    by_map: dict[str, list[FileScan]] = {}
    for scan in scans:
        is_sorted = scan.kind == ARCHIVE and scan.unpacked > 0 and by_columns(scan)
        if is_sorted and not is_absorbable(scan.bytes, scan.unpacked):
            by_map.setdefault(scan.map, []).append(scan)
    return frozenset(
        scan.path
        for of_map in by_map.values()
        if sum(scan.unpacked for scan in of_map) <= sizes.ranges_max * sizes.range_bytes
        for scan in of_map
    )


def sort_files(
    plan: RewritePlan,
    log: ClusterLog,
    scans: Iterable[FileScan],
    direct: Collection[str],
    settings: Settings,
    sizes: Sizes,
    randomness: Randomness,
) -> SortedFiles:
    """Read files of logs, and write what may still win of each map as a run. Of the files with the
    paths `direct` (`read_directly`), only the keys are read. Raises `NotFound`, `LogError`,
    `StorageUnavailable`."""
    everything = replace(plan.rule, complete=False)  # a tombstone may hide an entry of another task
    runs: list[SortedRun] = []
    touched: dict[str, set[int]] = {}
    with (
        scratch_errors(settings),
        closing(ColumnMerge(plan, log, settings)) as merge,
        rewrite_folder(settings.scratch) as folder,
    ):
        borders: dict[str, list[bytes]] = {}

        def touch(name: str, keys: Any) -> None:
            if name not in borders:
                snapshot = plan.state.manifest.snapshots.get(name)
                own_borders = (
                    borders_of(snapshot, log.context.keys) if snapshot is not None else None
                )
                borders[name] = own_borders or [b""]
            touched.setdefault(name, set()).update(touched_by(borders[name], keys))

        for scan, context in ahead(log.context, scans):
            if scan.path in direct:
                with closing(merge.counted(scan)) as key_batches:
                    runs += archive_run(scan, _touching(key_batches, scan.map, touch))
            else:
                merge.read_log(scan, context)
        merge.sources.flush()
        for name in merge.keys.maps():
            files = [_RunFile(plan, log, name, late, Path(folder), sizes) for late in (False, True)]
            for batch in merge.sorted_rows(name, everything):
                touch(name, batch.column("key"))
                for file in files:
                    file.add(batch)
            runs += [run for file in files for run in file.close(randomness)]
        clears = tuple(
            claim for name in merge.cleared.maps() for claim in merge.cleared.claims(name)
        )
        late = frozenset(clear for clear in merge.tally.late if isinstance(clear[1], tuple))
        return SortedFiles(
            tuple(runs),
            merge.tally.maps,
            tuple(merge.tally.pairs.items()),
            clears,
            late,
            {name: frozenset(numbers) for name, numbers in touched.items()},
        )


def _touching(
    key_batches: Iterable[KeyBatch], name: str, touch: Callable[[str, Any], None]
) -> Iterator[KeyBatch]:
    for key_batch in key_batches:
        touch(name, key_batch.batch.column("key"))
        yield key_batch


def archive_run(scan: FileScan, key_batches: Iterable[KeyBatch]) -> list[SortedRun]:
    """An archive that is sorted by key, as a run; nothing if none of its rows counts.
    `key_batches`: its keys. Raises `CorruptLog` if it is not sorted: a range would not find all of
    its rows."""
    firsts: list[bytes] = []
    rows: list[int] = []
    last = b""
    for key_batch in key_batches:
        keys = key_batch.batch.column("key")
        while len(firsts) <= key_batch.group:
            firsts.append(last)  # lower than its first key, if none of its rows counts
            rows.append(0)
        if not len(keys):
            continue
        if keys[0].as_py() < last or _decrease(keys):
            reason = "this archive is not sorted by key, but its manifest says that it is"
            raise CorruptLog(scan.path, 0, reason, "rewrite with --engine local --processes 1")
        if not rows[key_batch.group]:
            firsts[key_batch.group] = keys[0].as_py()
        rows[key_batch.group] += len(keys)
        last = keys[-1].as_py()
    if not any(rows):
        return []
    sizes = tuple(scan.unpacked * count // scan.records for count in rows)
    return [SortedRun(scan, False, tuple(firsts), sizes, last)]


def _decrease(keys: Any) -> bool:
    """Whether a key is lower than the one before it."""
    count = len(keys)
    return count > 1 and bool(pc.any(pc.less(keys.slice(1), keys.slice(0, count - 1))).as_py())


class _RunFile:
    """Writes the run of those rows that came late, or of the others."""

    def __init__(
        self,
        plan: RewritePlan,
        log: ClusterLog,
        name: str,
        late: bool,
        folder: Path,
        sizes: Sizes,
    ) -> None:
        self._plan, self._log, self._name, self._late = plan, log, name, late
        self._folder, self._sizes = folder, sizes
        self._file: ParquetFile | None = None
        self._firsts: list[bytes] = []
        self._groups: list[int] = []
        self._last = b""

    def add(self, batch: Any) -> None:
        """Rows in key order, with `RANKED_SCHEMA`."""
        late = batch.column("late")
        batch = batch.filter(late if self._late else pc.invert(late))
        batch = batch.select(SNAPSHOT_SCHEMA.names)
        while len(batch):
            if self._file is None:
                self._file = ParquetFile(
                    self._folder,
                    SNAPSHOT_SCHEMA,
                    self._log.context.keys,
                    group_rows=self._sizes.group_rows,
                    group_bytes=self._sizes.group_bytes,
                )
            count = self._file.fitting(batch)
            self._append(self._file, batch.slice(0, count))
            batch = batch.slice(count)

    def close(self, randomness: Randomness) -> list[SortedRun]:
        """Store the file. Returns its run; nothing if it has no rows."""
        if self._file is None:
            return []
        path = self._plan.run_path(self._name, randomness.name())
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

    def _append(self, file: ParquetFile, batch: Any) -> None:
        if file.groups == len(self._firsts):
            self._firsts.append(batch.column("key")[0].as_py())
            self._groups.append(0)
        self._groups[-1] += batch.nbytes
        self._last = batch.column("key")[-1].as_py()
        file.write(batch, batch.column("deleted").true_count)


def touched_by(lowers: Sequence[bytes], keys: Any) -> set[int]:
    """The numbers of the ranges with these lower borders that have one of `keys`, an Arrow array in
    order."""
    numbers = set()
    start = 0
    while start < len(keys):
        number = max(0, bisect_right(lowers, keys[start].as_py()) - 1)
        numbers.add(number)
        if number + 1 == len(lowers):
            break
        start = bisect_left(keys, lowers[number + 1], start, key=_bytes)
    return numbers


def _bytes(scalar: Any) -> bytes:
    return bytes(scalar.as_py())
