"""The rewrite engine on Spark, for logs too large to merge on one machine.

files ─▶ a task each: NewestIndex, its newest rows ─▶ shuffle by ranges of (map, key), sorted
─▶ newest of all ─▶ part files
"""

from __future__ import annotations

import base64
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions

from imap_wal.clock import SystemRandomness
from imap_wal.entry import KEY, MAP, ORDER, VALUE, Row, subject
from imap_wal.errors import ImapWalError, InvalidSetting, LostRace
from imap_wal.manifest.snapshots import NO_VERSIONS, PartitionVersions
from imap_wal.parquet import file as parquet_file
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT, SNAPSHOT, FileScan
from imap_wal.read.newest.clears import Cleared
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Claim, Conflict
from imap_wal.read.newest.table import Table
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans, snapshot_scans
from imap_wal.rewrite.part_writer import PartWriter
from imap_wal.rewrite.plan import (
    Merged,
    Part,
    Result,
    RewritePlan,
    Subject,
    Tally,
    Totals,
    worth_reading,
)
from imap_wal.version import VERSION
from pyspark_imap_wal.data_source import LOG_FIELDS, TASK_MEMORY_BYTES
from pyspark_imap_wal.session import session, spark_errors
from pyspark_imap_wal.worker import worker_log
from storage_backends import StorageError

ROWS_A_RANGE = 1_000_000
"""Approximate number of newest rows that one task of the last step writes."""
_KEYS_A_BATCH = 10_000


_EXTRA = [
    ("late", pa.bool_()),
    ("read_records", pa.int64()),
    ("read_bytes", pa.int64()),
    ("error", pa.string()),
    ("pairs", pa.string()),
]
_ENTRY_FIELDS = LOG_FIELDS.removeprefix("namespace string, cluster string, ")
_COMBINED_FIELDS = (
    f"{_ENTRY_FIELDS}, late boolean, read_records bigint, read_bytes bigint, error string, pairs "
    "string"
)
_A_CLEAR = "length(key) = 0 and deleted and expires_at_ms > 0"
_PART_TEXTS = ("map", "path", "attempt", "error")
_PART_NUMBERS = (
    "live", "tombstones", "bytes", "checksum", "partition", "number", "last_expiry_ms", "conflicts",
)  # fmt: skip
_PART_FIELDS = ", ".join(
    [*(f"{name} string" for name in _PART_TEXTS), *(f"{name} bigint" for name in _PART_NUMBERS)]
)
_PART_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in _PART_TEXTS),
        *(pa.field(name, pa.int64()) for name in _PART_NUMBERS),
    ]
)

ArrowMap = Callable[[Iterator[Any]], Iterator[Any]]


class SparkEngine:
    """Executes a plan with Spark. The workers must reach the storage: a shared directory or an
    object store. The options of the storages, with secrets, go to them inside the tasks, which
    Spark does not show (`docs/decisions/0038-spark-of-the-user.md`)."""

    name = "spark"

    def __init__(
        self,
        spark: SparkSession | None = None,
        tasks: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        spark: The session; None: the running one, or a new one.
        tasks: The maximum number of tasks that read at the same time.
        properties: Spark's properties for a new session.
        """
        self._spark = spark
        self._tasks = tasks
        self._properties = dict(properties or {})

    def run(self, job: RewritePlan, log: ClusterLog) -> Result:
        if job.url.startswith("memory:"):
            raise InvalidSetting(
                "Spark's workers cannot see memory:// of this process; use --engine local"
            )
        spark = self._spark or session(**self._properties)
        with spark_errors():
            return self._merge(spark, job, log)

    def _merge(self, spark: SparkSession, job: RewritePlan, log: ClusterLog) -> Result:
        tasks = self._tasks or spark.sparkContext.defaultParallelism
        combined = self._combine(
            spark,
            job,
            cluster_scans(job.state, until=job.until, maps=job.maps, snapshots=False),
            tasks,
        )
        held = [combined]
        try:
            read, versions = _read(combined)
            merged: list[Merged] = []
            former: list[FileScan] = []
            for name, snapshot in sorted(job.state.manifest.snapshots.items()):
                if not job.wants(name):
                    continue
                if name not in read and not worth_reading(job, snapshot, log.store):
                    merged.append(Merged(name, 0, 0, (), unchanged=True))
                    continue
                former += snapshot_scans(name, snapshot)
                known, count = read.get(name, _Read()), snapshot.live + snapshot.tombstones
                read[name] = _Read(known.records + count, known.bytes, known.keys + count)
            if not read:
                return Result(tuple(merged), tuple(versions.pairs.items()))
            everything = combined
            if former:
                snapshots = self._combine(spark, job, former, tasks)
                held.append(snapshots)
                # Here, `_read` raises the errors of the tasks.
                versions = versions.raised(_read(snapshots)[1].pairs.items())
                everything = combined.unionAll(snapshots)
            pairs = tuple(versions.pairs.items())
            cleared, late = _cleared(held)
            ranges = max(1, -(-sum(each.keys for each in read.values()) // ROWS_A_RANGE))
            # By ranges, not by hash: then part files are in key order, like those of the local
            # engine.
            rows = everything.where(f"not ({_A_CLEAR})")
            ordered = rows.repartitionByRange(ranges, "map", "key").sortWithinPartitions(
                "map", "key"
            )
            found = ordered.mapInArrow(_write(job, cleared), _PART_FIELDS).collect()
        finally:
            for frame in held:
                frame.unpersist()
        parts = taken(found)
        for name, each in sorted(read.items()):
            clears = clears_part(log, job, name, cleared.claims(name), late, ranges)
            merged.append(Merged(name, each.records, each.bytes, (*clears, *parts.get(name, ()))))
        return Result(tuple(merged), pairs)

    def _combine(
        self, spark: SparkSession, job: RewritePlan, scans: list[FileScan], tasks: int
    ) -> DataFrame:
        """The newest rows of each task's scans: one for each map, key and node."""
        groups = balanced(scans, max(1, min(tasks * 2, len(scans))))
        rows = [(base64.b64encode(pickle.dumps(group)).decode(),) for group in groups] or [("",)]
        described = spark.createDataFrame(rows, "scans string").repartitionByRange(
            len(rows), "scans"
        )
        return described.mapInArrow(_combine(job), _COMBINED_FIELDS).persist()


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of a map: records, bytes of segments, and how many (key, node) remain."""

    records: int = 0
    bytes: int = 0
    keys: int = 0


def _read(combined: DataFrame) -> tuple[dict[str, _Read], PartitionVersions]:
    totals = combined.groupBy("map").agg(
        functions.sum("read_records").alias("records"),
        functions.sum("read_bytes").alias("bytes"),
        functions.count("key").alias("keys"),
        functions.max("error").alias("error"),
        functions.collect_set("pairs").alias("pairs"),
    )
    found = {}
    versions = NO_VERSIONS
    for row in totals.collect():
        if row["error"]:
            raise _thaw(row["error"])
        for text in row["pairs"]:
            versions = versions.raised(PartitionVersions.decode(text).pairs.items())
        found[row["map"]] = _Read(row["records"], row["bytes"], row["keys"])
    return found, versions


def clears_part(
    log: ClusterLog,
    job: RewritePlan,
    name: str,
    claims: Sequence[Claim],
    late: set[Subject],
    number: int,
) -> tuple[Part, ...]:
    """The clears of a map that are kept. They are few, and the tasks of all ranges of keys needed
    them, so the driver writes them. `number`: one that no range has."""
    with tempfile.TemporaryDirectory(
        prefix="imap-wal-rewrite-", ignore_cleanup_errors=True
    ) as folder:
        writer = PartWriter(log.store, job, name, Path(folder), number, log.randomness)
        writer.add_clears(claims, late)
        return writer.close()


def _cleared(frames: Iterable[DataFrame]) -> tuple[Cleared, set[Subject]]:
    """All clears that the tasks read, and the partitions of those that came late."""
    cleared, late = Cleared(), set[Subject]()
    for frame in frames:
        for batch in frame.where(_A_CLEAR).toArrow().to_batches():
            rows, lates = (
                parquet_file.to_rows(batch),
                batch.column(batch.schema.get_field_index("late")).to_pylist(),
            )
            late.update(subject(row) for row, is_late in zip(rows, lates, strict=True) if is_late)
            for row, node in zip(rows, parquet_file.nodes_of(batch), strict=True):
                cleared.take(node, [row])
    return cleared, late


def taken(found: Iterable[Any]) -> dict[str, tuple[Part, ...]]:
    """Map → parts in key order, from the results of the last step: exactly one attempt of every
    range of keys counts, whatever others wrote. Raises `LostRace` if a result is missing."""
    attempts: dict[int, str] = {}
    parts: dict[str, list[Part]] = {}
    for row in found:
        if row["error"]:
            raise _thaw(row["error"])
        if attempts.setdefault(row["partition"], row["attempt"]) != row["attempt"]:
            raise LostRace(
                f"Spark answered twice for range {row['partition']}; nothing was published, "
                "run the rewrite again"
            )
        if row["path"]:
            part = Part(row["path"], *(row[name] for name in _PART_NUMBERS))
            parts.setdefault(row["map"], []).append(part)
    if sorted(attempts) != list(range(len(attempts))):
        raise LostRace(
            f"Spark answered for ranges {sorted(attempts)} only; nothing was published, run "
            "the rewrite again"
        )
    order = attrgetter("partition", "number")
    return {name: tuple(sorted(each, key=order)) for name, each in parts.items()}


def _combine(job: RewritePlan) -> ArrowMap:
    version = VERSION

    def combine(batches: Iterator[Any]) -> Iterator[Any]:
        index = NewestIndex(TASK_MEMORY_BYTES, spill=False)
        tally = Tally(job)
        try:
            with worker_log(job, version) as log:
                for scan, store in ahead(log.store, _described(batches)):
                    for changes in log.read_on(scan, job.maps, store=store):
                        if changes.rows:
                            tally.add(
                                changes,
                                count_bytes=scan.kind == SEGMENT,
                                settled=scan.kind == SNAPSHOT,
                            )
                            counting = job.decisions.counting(changes.node, changes.rows)
                            index.add(changes.node, counting, changes.bytes, clears=changes.clears)
                        if index.full:
                            yield from _newest_so_far(index, tally)
                yield from _newest_so_far(index, tally)
        except (ImapWalError, StorageError) as error:
            yield _failure_row(error)
        finally:
            index.close()

    return combine


def _described(batches: Iterator[Any]) -> Iterator[FileScan]:
    """The scans that the driver put into rows."""
    for batch in batches:
        for text in batch.column(0).to_pylist():
            if text:
                yield from pickle.loads(base64.b64decode(text))  # noqa: S301  # from our own driver


def _newest_so_far(index: NewestIndex, tally: Tally) -> Iterator[Any]:
    """Yield all rows of the index and empty it. The first row of each map has the totals read of
    that map."""
    for name in index.maps():
        claims = index.clears(name)
        clears = [([row for row, _ in claims], [node for _, node in claims])] if claims else []
        for rows, nodes in chain(clears, index.every(name)):
            totals = tally.maps.pop(name, Totals())
            late: list[Any] = [bool(tally.late) and subject(row) in tally.late for row in rows]
            zeros: list[Any] = [0] * (len(rows) - 1)
            nothing: list[Any] = [None] * len(rows)
            pairs = [PartitionVersions(tally.pairs).encode() if tally.pairs else None, *nothing[1:]]
            tally.pairs = {}
            extra = [late, [totals.records, *zeros], [totals.bytes, *zeros], nothing, pairs]
            yield _with_extra(parquet_file.to_batch(rows, nodes), extra)
    index.clear()


def _write(job: RewritePlan, cleared: Cleared) -> ArrowMap:
    version = VERSION

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        randomness = SystemRandomness()  # two attempts may do the same work at the same time
        attempt = randomness.name()
        found: dict[str, tuple[Part, ...]] = {}
        error = ""
        try:
            with (
                worker_log(job, version) as log,
                tempfile.TemporaryDirectory(prefix="imap-wal-rewrite-") as folder,
            ):
                writer: PartWriter | None = None
                current = ""
                for name, rows, nodes, late, conflicts in newest_of_sorted(batches, cleared):
                    if writer is None or name != current:
                        if writer is not None:
                            found[current] = writer.close()
                        current = name
                        writer = PartWriter(
                            log.store, job, name, Path(folder), partition, randomness
                        )
                    writer.add(rows, nodes, late, conflicts)
                if writer is not None:
                    found[current] = writer.close()
        except (ImapWalError, StorageError) as raised:
            error, found = _freeze(raised), {}
        # The first line is the result for the range, even if the range is empty.
        lines: list[dict[str, Any]] = [{"attempt": attempt, "partition": partition, "error": error}]
        for name, parts in found.items():
            lines += [{**asdict(part), "map": name, "attempt": attempt} for part in parts]
        yield pa.RecordBatch.from_pylist(lines, schema=_PART_SCHEMA)

    return write


Page = tuple[str, list[Row], list[str], set[Subject], dict[bytes, Conflict]]
"""(map, newest rows, their nodes, keys that came late, keys in conflict)."""


class _Held:
    """Rows of some keys of a map, collected until all rows of these keys have been read."""

    def __init__(self, name: str) -> None:
        self.name, self._table, self.late = name, Table(), set[Subject]()
        self._size = 0

    def add(self, row: Row, node: str, late: bool) -> None:
        self._size += len(row[KEY]) + len(row[VALUE] or b"")
        self._table.offer(row[KEY], (*row, node))
        if late:
            self.late.add((self.name, row[KEY]))

    @property
    def full(self) -> bool:
        return len(self._table.rows) >= _KEYS_A_BATCH or self._size >= parquet_file.GROUP_BYTES_MAX

    def page(self) -> Page:
        table, name = self._table, self.name
        claims = [table.claim(row) for row in table.rows.values()]
        conflicts = {
            key: found for key in table.rivals if (found := table.conflict(name, key)) is not None
        }
        return name, [row for row, _ in claims], [node for _, node in claims], self.late, conflicts


def newest_of_sorted(batches: Iterator[Any], cleared: Cleared | None = None) -> Iterator[Page]:
    """From record batches sorted by map and key: every key that was not cleared, once."""
    held: _Held | None = None
    last = b""
    for batch in batches:
        nodes = parquet_file.nodes_of(batch)
        lates = batch.column(batch.schema.get_field_index("late")).to_pylist()
        placed = list(zip(parquet_file.to_rows(batch), nodes, lates, strict=True))
        for row, node, late in placed if cleared is None else _left(placed, cleared):
            if held is None or held.name != row[MAP] or (held.full and row[KEY] != last):
                if held is not None:
                    yield held.page()
                held = _Held(row[MAP])
            held.add(row, node, late)
            last = row[KEY]
    if held is not None:
        yield held.page()


def _left(placed: list[tuple[Row, str, bool]], cleared: Cleared) -> Iterator[tuple[Row, str, bool]]:
    """The rows that were not cleared."""
    for name, group in groupby(placed, key=lambda each: each[0][0]):
        some = list(group)
        hidden = cleared.hidden(
            name, [row[KEY] for row, _, _ in some], [row[ORDER] for row, _, _ in some]
        )
        yield from (each for index, each in enumerate(some) if index not in hidden)


def balanced(scans: list[FileScan], count: int) -> list[list[FileScan]]:
    """The scans in `count` groups of about the same size in bytes."""
    groups: list[list[FileScan]] = [[] for _ in range(count)]
    sizes = [0] * count
    for scan in sorted(scans, key=lambda scan: scan.bytes, reverse=True):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(scan)
        sizes[smallest] += scan.bytes + 1
    return [group for group in groups if group]


def _with_extra(batch: Any, extra: list[list[Any]]) -> Any:
    columns = [
        *batch.columns,
        *(pa.array(column, kind) for column, (_, kind) in zip(extra, _EXTRA, strict=True)),
    ]
    return pa.RecordBatch.from_arrays(
        columns, names=[*batch.schema.names, *(name for name, _ in _EXTRA)]
    )


def _failure_row(error: Exception) -> Any:
    row: Row = ("", b"", "", None, "", True, 0, 0, 0, (0, 0, 0, 0))
    return _with_extra(
        parquet_file.to_batch([row], ""), [[False], [0], [0], [_freeze(error)], [None]]
    )


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
