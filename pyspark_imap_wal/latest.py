"""`mode=latest`: the newest entry of each key, by tasks that share the keys.

a map whose snapshot has several files   a task for each range of keys: its files of the
                                         snapshot, and files of the logs that may have them
another map with large Parquet files     a task for each range of keys: the row groups that
                                         may have them, and what is not archived
the other maps                           a task for each bucket of keys (the option `buckets`)
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from imap_wal.context import Context
from imap_wal.entry import KEY, MAP, TIMESTAMP_MS, Row, is_clear
from imap_wal.errors import EncryptionError, LogError
from imap_wal.format import Position
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.parquet.reader import group_keys
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SNAPSHOT, FileScan, KeySpan, Metadata
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Noted
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans, snapshot_scans
from imap_wal.read.state import ClusterState
from imap_wal.read.view import live
from imap_wal.rewrite.columns.live_entries import live_entries
from imap_wal.rewrite.columns.merge import MergeSpan
from imap_wal.rewrite.ranges import borders_of
from imap_wal.security.encryption_keys import Keys
from imap_wal.segment.snapshot import is_segment
from imap_wal.settings import Settings
from pyspark_imap_wal.columns import EntryQuery, of_rows, shaped
from pyspark_imap_wal.filters import Filters
from pyspark_imap_wal.options import Options
from pyspark_imap_wal.tables.schemas import POSITION_COLUMNS
from storage_backends.location import Location

ROW_BYTES = 128
"""A row counts as at least so many bytes: small rows need time, too."""
FOOTERS = 64
"""How many Parquet files of a map the driver reads the footers of, to find ranges of keys."""
TASK_MEMORY_BYTES = 512 * 1024 * 1024
"""Memory limit of a task's index, in bytes. At the limit, a rewrite emits its rows, and a `latest`
read spills to the worker's temporary folder."""


@dataclass
class LatestPartition(InputPartition):
    """Some keys of one cluster. `place`: the root with the options that the driver has. `maps`:
    only these; (): all but those of `without`. `span`: only keys of it."""

    namespace: str
    cluster: str
    scans: list[FileScan]
    now_ms: int
    metadata: tuple[Metadata, ...]
    place: Location
    bucket: int = 0
    maps: tuple[str, ...] = ()
    without: frozenset[str] = field(default_factory=frozenset)
    span: KeySpan | None = None

    def has(self, row: Row, buckets: int) -> bool:
        """Whether the task has the key of a row; each has all clears of its maps."""
        if self.without and row[MAP] in self.without:
            return False
        key = row[KEY]
        if is_clear(row):
            return True
        if self.span is not None:
            lower, upper = self.span
            return lower <= key and (upper is None or key < upper)
        return buckets == 1 or zlib.crc32(key) % buckets == self.bucket


def tasks(
    log: ClusterLog,
    state: ClusterState,
    options: Options,
    filters: Filters,
    until: Mapping[str, Position] | None,
    metadata: tuple[Metadata, ...],
) -> Iterator[LatestPartition]:
    """The tasks of one cluster."""
    maps = filters.only("map", options.maps)
    now_ms = log.clock.now_ms()

    def task(scans: Iterable[FileScan], **more: Any) -> LatestPartition:
        names = log.namespace, log.cluster
        return LatestPartition(*names, list(scans), now_ms, metadata, log.context.place, **more)

    cut: set[str] = set()
    for name, snapshot in sorted(state.manifest.snapshots.items()):
        spans = _spans(snapshot, log.context.keys, options.task_bytes)
        if len(spans) < 2 or (maps and name not in maps):
            continue
        cut.add(name)
        logs = cluster_scans(state, maps=(name,), snapshots=False, until=until)
        files = snapshot_scans(name, snapshot)
        for span, numbers in spans:
            if filters.has_keys(span):
                own = filters.narrowed([files[number] for number in numbers])
                if snapshot.tombstones and state.manifest.clears and 0 not in numbers:
                    own.append(replace(files[0], keys=frozenset()))  # the clears
                own += [replace(scan, span=span) for scan in filters.narrowed(logs)]
                yield task(own, maps=(name,), span=span)
    if maps and cut.issuperset(maps):
        return
    rest = filters.narrowed(cluster_scans(state, maps=maps or None, until=until))
    rest = [scan for scan in rest if scan.map not in cut]
    # EntryQuery keys are found by the row groups that have them: footers need not be read to cut.
    large = {scan.map for scan in rest} - {""} if filters.keys() is None else set()
    for name in sorted(large):
        own = [scan for scan in rest if scan.map in (name, "")]
        borders = _borders(log.context, own, options.task_bytes)
        if not borders:
            continue
        cut.add(name)
        for lower, upper in pairwise([b"", *borders, None]):
            span = lower or b"", upper
            yield task((replace(scan, span=span) for scan in own), maps=(name,), span=span)
    rest = [scan for scan in rest if scan.map not in cut]
    if maps and cut.issuperset(maps):
        return
    for bucket in range(options.buckets):
        yield task(rest, maps=maps, bucket=bucket, without=frozenset(cut))


def _spans(snapshot: Snapshot, keys: Keys, size: int) -> list[tuple[KeySpan, list[int]]]:
    """Ranges of keys, each of about `size` bytes of a snapshot, with the numbers of its files."""
    lowers = borders_of(snapshot, keys)
    if lowers is None:
        return []
    groups: list[list[int]] = []
    held = 0
    for number, file in enumerate(snapshot.files):
        more = _weight(file.size, file.rows)
        if not groups or held + more > size:
            groups.append([])
            held = 0
        groups[-1].append(number)
        held += more
    # The first and the last range have no border: a log may have lower and higher keys.
    borders = [b"", *(lowers[group[0]] for group in groups[1:]), None]
    return [
        ((lower or b"", upper), group)
        for (lower, upper), group in zip(pairwise(borders), groups, strict=True)
    ]


def _weight(size: int, rows: int) -> int:
    return max(size, rows * ROW_BYTES)


def _borders(context: Context, scans: Sequence[FileScan], size: int) -> list[bytes]:
    """Where the keys of a map are cut, so that tasks have about `size` bytes of its files that are
    sorted by key. Each task reads all other files: so it gets at least as many sorted bytes. Empty:
    one task reads everything. `scans`: all files that may have entries of the map."""
    weights = [(_weight(scan.bytes, scan.records), scan) for scan in scans]
    ordered = [
        (weight, scan)
        for weight, scan in weights
        if scan.unpacked or (scan.kind == SNAPSHOT and not is_segment(scan.path))
    ]
    total = sum(weight for weight, _ in ordered)
    size = max(size, sum(weight for weight, _ in weights) - total)
    if total < 2 * size:
        return []
    ordered.sort(key=itemgetter(0), reverse=True)
    some = ordered[:FOOTERS]  # the largest ones: only the sizes of tasks depend on the choice
    scale = total / sum(weight for weight, _ in some)
    groups: list[tuple[bytes, float]] = []
    for weight, scan in some:
        # The driver need not have the keys, and a task that reads damage reports it.
        with suppress(LogError, EncryptionError):
            firsts = group_keys(context, scan.path, scan.directory)
            groups += [(first, weight * fraction * scale) for first, fraction in firsts]
    borders: list[bytes] = []
    held = 0.0
    for first, more in sorted(groups):
        if held >= size and first > (borders[-1] if borders else b""):
            borders.append(first)
            held = 0
        held += more
    return borders


def read_latest(
    log: ClusterLog,
    task: LatestPartition,
    query: EntryQuery,
    buckets: int,
    time_ms: int | None,
) -> Iterator[Any]:
    """The rows of a task, as record batches. `time_ms`: as of this moment. Raises `NotFound` if the
    entries were removed, `ShortLog` if a file is missing, `MissingNode`, and `LogError`."""
    keys = query.filters.keys() if query.filters is not None else None
    if keys is None and (task.span is not None or buckets == 1):
        yield from _by_columns(log, task, query, time_ms)
    else:
        yield from _by_rows(log, task, query, buckets, time_ms, keys)


def _by_columns(
    log: ClusterLog, task: LatestPartition, query: EntryQuery, time_ms: int | None
) -> Iterator[Any]:
    for batch in live_entries(
        log,
        task.scans,
        task.now_ms if time_ms is None else time_ms,
        Settings(restore_memory_bytes=TASK_MEMORY_BYTES),
        maps=task.maps,
        without=task.without,
        span=MergeSpan(*task.span or ()),
        newest_ms=time_ms,
    ):
        alive = batch
        for column in query.needed.intersection(POSITION_COLUMNS):
            alive = alive.append_column(column, pa.nulls(len(alive), pa.int64()))
        yield shaped(log, alive, query)


def _by_rows(
    log: ClusterLog,
    task: LatestPartition,
    query: EntryQuery,
    buckets: int,
    time_ms: int | None,
    keys: Collection[bytes] | None,
) -> Iterator[Any]:
    """For few keys, or the buckets of small maps."""
    names, noted = sorted(query.needed), Noted()
    moment = task.now_ms if time_ms is None else time_ms
    with closing(NewestIndex(TASK_MEMORY_BYTES)) as index:
        for scan, source in ahead(log.context, task.scans):
            for changes in log.read_on(scan, task.maps or None, context=source):
                rows = [row for row in changes.rows if task.has(row, buckets)]
                if keys is not None:
                    rows = [row for row in rows if row[KEY] in keys or is_clear(row)]
                if time_ms is not None:
                    rows = [row for row in rows if row[TIMESTAMP_MS] <= time_ms]
                index.add(changes.node, rows, clears=changes.clears)
        for name in index.maps():
            for rows, nodes in index.batches_with_nodes(name):
                noted.note(index.conflicts())
                alive = {id(row) for row in live(rows, moment)}
                alive_rows = [
                    (row, node) for row, node in zip(rows, nodes, strict=True) if id(row) in alive
                ]
                if alive_rows:
                    batch = of_rows(
                        [row for row, _ in alive_rows], [node for _, node in alive_rows], names
                    )
                    yield shaped(log, batch, query)
