"""Spark: the data source `imap_wal`, and the rewrite engine for logs that one machine does not want to merge. The only module that imports pyspark.

    spark.read.format("imap_wal").load(url)                       raw: every entry that counts; a task per file
    …option("mode", "latest")                                     the live view: a task per bucket of keys

    SparkEngine   files ─▶ a task each: NewestIndex, newest of its own ─▶ shuffle by ranges of (map, key), sorted ─▶ newest of all ─▶ part files

Workers run the interpreter of this process, whatever PATH says.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from imap_wal import archive
from imap_wal.clears import Cleared
from imap_wal.clock import SystemRandomness
from imap_wal.credentials import Credentials
from imap_wal.encryption import open_store
from imap_wal.entry import Row, is_clear, subject
from imap_wal.errors import ImapWalError, InvalidSetting, LostRace
from imap_wal.format import Position
from imap_wal.index import NewestIndex, Table
from imap_wal.manifest import NO_VERSIONS, PartitionVersions
from imap_wal.pieces import SEGMENT, SNAPSHOT, Piece, read_piece
from imap_wal.restore import ClusterLog, live, no_garbage_collection, snapshot_pieces
from imap_wal.rivals import Claim, Conflict, Noted
from imap_wal.settings import RecoveryPolicy, location
from rewrite_cli.local import PartWriter
from rewrite_cli.rewriter import Job, Merged, Part, Result, Subject, Tally, Totals, worth_reading
from storage_backends import SegmentStore, StorageError
from storage_backends.location import Location

TASK_MEMORY_BYTES = 512 * 1024 * 1024
"""What a task's index may hold. Then a rewrite hands on what it has; a `latest` read goes to the worker's temporary folder."""
ROWS_A_RANGE = 1_000_000
"""Newest rows that one task of the last step writes, about."""
_KEYS_A_BATCH = 10_000


def session(**options: str) -> SparkSession:
    """The running Spark session, or one on this machine; `options` are Spark's, for a new one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    builder = SparkSession.builder.appName("imap-wal")
    defaults = {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    for name, value in {**defaults, **options}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# ---- the data source -----------------------------------------------------------------------------------------------

_FIELDS = (
    "namespace string, cluster string, map string, key binary, key_class string, value binary, value_class string, deleted boolean, timestamp_ms bigint, "
    "expires_at_ms bigint, partition bigint, incarnation bigint, partition_version bigint, session bigint, request bigint, node string"
)
_POSITION_FIELDS = "epoch bigint, segment bigint, frame bigint, index bigint"
_DECODED_FIELDS = "key_text string, value_text string"

RAW, LATEST = "raw", "latest"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the data source. `path` is the root's URL; `namespace`, `cluster`, `map`, `node` narrow what is read (comma-separated); `mode` is raw or
    latest; `partial` goes on without missing nodes; `decode` adds key_text and value_text; `buckets` is how many tasks share a `latest` read.
    `encryption_keys` says where each worker gets the keys of an encrypted log (else IMAP_WAL_ENCRYPTION_KEYS there); it is kept in `path`."""

    path: str
    namespaces: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    mode: str = RAW
    partial: bool = False
    decode: bool = False
    buckets: int = 1

    KNOWN = ("path", "namespace", "cluster", "map", "node", "mode", "partial", "decode", "buckets", "encryption_keys")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """`InvalidSetting` names what is wrong."""
        unknown = sorted(set(given) - set(cls.KNOWN))
        if unknown:
            raise InvalidSetting(f"imap_wal takes no option {', '.join(unknown)}; it takes {', '.join(cls.KNOWN)}")
        if not given.get("path"):
            raise InvalidSetting("imap_wal needs the root of the logs: .load(url)")
        mode = given.get("mode", RAW)
        if mode not in (RAW, LATEST):
            raise InvalidSetting(f"mode is {mode!r}; it takes raw or latest")
        if mode == LATEST and given.get("node"):
            raise InvalidSetting("mode latest is over all nodes; take the option node away, or read mode raw")
        buckets = given.get("buckets", "1")
        if not buckets.isdigit() or int(buckets) < 1:
            raise InvalidSetting(f"buckets is {buckets!r}; it takes a number, 1 or more")
        return cls(
            path=location(given["path"]).with_keys(given.get("encryption_keys", "")),
            namespaces=_names(given.get("namespace")),
            clusters=_names(given.get("cluster")),
            maps=_names(given.get("map")),
            nodes=_names(given.get("node")),
            mode=mode,
            partial=_flag("partial", given.get("partial")),
            decode=_flag("decode", given.get("decode")),
            buckets=int(buckets),
        )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _flag(name: str, text: str | None) -> bool:
    if (text or "false").lower() not in ("true", "false"):
        raise InvalidSetting(f"{name} is {text!r}; it takes true or false")
    return (text or "false").lower() == "true"


class ImapWalDataSource(DataSource):
    """`spark.read.format("imap_wal")`; options as in `Options`."""

    @classmethod
    def name(cls) -> str:
        return "imap_wal"

    def _chosen(self) -> Options:
        return Options.parse(dict(self.options))

    def schema(self) -> str:
        chosen = self._chosen()
        fields = [_FIELDS]
        if chosen.mode == RAW:
            fields.append(_POSITION_FIELDS)
        if chosen.decode:
            fields.append(_DECODED_FIELDS)
        return ", ".join(fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ImapWalReader(self._chosen())


@dataclass
class FilePartition(InputPartition):
    """Raw: files of one cluster."""

    namespace: str
    cluster: str
    pieces: list[Piece]
    metadata: list[tuple[Any, ...]]


@dataclass
class BucketPartition(InputPartition):
    """Latest: the keys of one cluster whose hash falls into a bucket."""

    namespace: str
    cluster: str
    pieces: list[Piece]
    bucket: int
    now_ms: int
    metadata: list[tuple[Any, ...]]


class ImapWalReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        store = open_store(_known(options.path))
        found: list[InputPartition] = []
        try:
            for namespace, cluster in clusters_of(store, options.namespaces, options.clusters):
                log = ClusterLog(store, namespace, cluster)
                state = log.state()
                state.demand(RecoveryPolicy.PARTIAL if options.partial else RecoveryPolicy.FULL)
                pieces = log.pieces(state, maps=options.maps or None, nodes=options.nodes or None)
                metadata = _metadata(log, state, options)
                if options.mode == RAW:
                    found += [FilePartition(namespace, cluster, [piece], metadata) for piece in pieces]
                else:
                    now_ms = log.clock.now_ms()
                    found += [BucketPartition(namespace, cluster, pieces, bucket, now_ms, metadata) for bucket in range(options.buckets)]
        finally:
            store.close()
        if not found:
            found.append(FilePartition("", "", [], []))  # Spark asks for one at least
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        store = open_store(_known(self._options.path))
        try:
            batches = self._raw(store, partition) if isinstance(partition, FilePartition) else self._latest(store, partition)
            yield from batches
        finally:
            store.close()

    def _raw(self, store: SegmentStore, partition: FilePartition) -> Iterator[Any]:
        options = self._options
        for piece in partition.pieces:
            for changes in read_piece(store, piece, options.maps or None, positions=True):
                if changes.rows and (not options.nodes or changes.node in options.nodes):
                    yield self._batch(partition, changes.rows, [changes.node] * len(changes.rows), changes.positions)

    def _latest(self, store: SegmentStore, partition: Any) -> Iterator[Any]:
        options = self._options
        index = NewestIndex(TASK_MEMORY_BYTES)
        try:
            with no_garbage_collection():
                for piece in partition.pieces:
                    for changes in read_piece(store, piece, options.maps or None):
                        rows = changes.rows
                        if options.buckets > 1:
                            rows = [row for row in rows if is_clear(row) or zlib.crc32(row[1]) % options.buckets == partition.bucket]
                        index.add(changes.node, rows, clears=changes.clears)
            noted = Noted()
            for name in index.maps():
                for rows, nodes in index.batches_with_nodes(name):
                    noted.note(index.conflicts())
                    alive = {id(row) for row in live(rows, partition.now_ms)}
                    kept = [(row, node) for row, node in zip(rows, nodes, strict=True) if id(row) in alive]
                    if kept:
                        yield self._batch(partition, [row for row, _ in kept], [node for _, node in kept], None, latest=True)
        finally:
            index.close()

    def _batch(self, partition: Any, rows: list[Row], nodes: list[str], positions: list[Position] | None, *, latest: bool = False) -> Any:
        batch = archive.to_batch(rows, nodes)
        names = list(batch.schema.names)
        columns = list(batch.columns)
        count = len(rows)
        names[:0] = ["namespace", "cluster"]
        columns[:0] = [pa.array([partition.namespace] * count, pa.string()), pa.array([partition.cluster] * count, pa.string())]
        if not latest:
            places = list(zip(*positions, strict=True)) if positions else [[None] * count] * 4
            names += ["epoch", "segment", "frame", "index"]
            columns += [pa.array(place, pa.int64()) for place in places]
        if self._options.decode:
            keys, values = _decode(rows, partition.metadata)
            names += ["key_text", "value_text"]
            columns += [pa.array(keys, pa.string()), pa.array(values, pa.string())]
        return pa.RecordBatch.from_arrays(columns, names=names)


def clusters_of(store: SegmentStore, namespaces: Iterable[str] = (), clusters: Iterable[str] = ()) -> list[tuple[str, str]]:
    """(namespace, cluster) of all logs under a root, or of the given names."""
    from imap_wal import layout

    wanted_namespaces, wanted_clusters = set(namespaces), set(clusters)
    return [
        (layout.decode(namespace), layout.decode(cluster))
        for namespace in store.folders("")
        if not wanted_namespaces or layout.decode(namespace) in wanted_namespaces
        for cluster in store.folders(namespace)
        if not wanted_clusters or layout.decode(cluster) in wanted_clusters
        if "manifest" in store.folders(f"{namespace}/{cluster}")
    ]


def _metadata(log: ClusterLog, state: Any, options: Options) -> list[tuple[Any, ...]]:
    """Schemas, for those who want keys and values as text."""
    if not options.decode:
        return []
    from imap_wal.restore import from_manifest

    found = [from_manifest(item) for node in state.nodes.values() for item in node.manifest.metadata]
    for piece in log.pieces(state, snapshots=False, covered=True):
        if piece.kind == SEGMENT:
            found += [item for changes in read_piece(log.store, piece, ()) for item in changes.metadata]
    return [item for item in dict.fromkeys(found) if item[0] == "schema"]


def _decode(rows: list[Row], metadata: list[tuple[Any, ...]]) -> tuple[list[str | None], list[str | None]]:
    from rewrite_cli.decode import Decoder, text

    decoder = Decoder(metadata)
    return [text(decoder.key(row)) for row in rows], [None if row[3] is None else text(decoder.value(row)) for row in rows]


# ---- the rewrite engine --------------------------------------------------------------------------------------------

_EXTRA = [
    ("late", pa.bool_()),
    ("read_records", pa.int64()),
    ("read_bytes", pa.int64()),
    ("error", pa.string()),
    ("pairs", pa.string()),
]
_ENTRY_FIELDS = _FIELDS.removeprefix("namespace string, cluster string, ")
_COMBINED_FIELDS = f"{_ENTRY_FIELDS}, late boolean, read_records bigint, read_bytes bigint, error string, pairs string"
_A_CLEAR = "length(key) = 0 and deleted and expires_at_ms > 0"
_PART_TEXTS = ("map", "path", "attempt", "error")
_PART_NUMBERS = (
    "live", "tombstones", "bytes", "checksum", "partition", "number", "last_expiry_ms", "conflicts",
)  # fmt: skip
_PART_FIELDS = ", ".join([*(f"{name} string" for name in _PART_TEXTS), *(f"{name} bigint" for name in _PART_NUMBERS)])
_PART_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in _PART_TEXTS),
        *(pa.field(name, pa.int64()) for name in _PART_NUMBERS),
    ]
)

ArrowMap = Callable[[Iterator[Any]], Iterator[Any]]


class SparkEngine:
    """See the module. Storage must be one that the workers see: a shared directory or an object store. `tasks`: at most so many at a time read."""

    name = "spark"

    def __init__(self, spark: SparkSession | None = None, tasks: int | None = None) -> None:
        self._spark = spark
        self._tasks = tasks

    def run(self, job: Job, log: ClusterLog) -> Result:
        if job.url.startswith("memory:"):
            raise InvalidSetting("Spark's workers cannot see memory:// of this process; use --engine local")
        spark = self._spark or session()
        tasks = self._tasks or spark.sparkContext.defaultParallelism
        combined = self._combine(spark, job, log.pieces(job.state, until=job.until, maps=job.maps, snapshots=False), tasks)
        held = [combined]
        try:
            read, versions = _read(combined)
            merged: list[Merged] = []
            former: list[Piece] = []
            for name, snapshot in sorted(job.state.manifest.snapshots.items()):
                if not job.wants(name):
                    continue
                if name not in read and not worth_reading(job, snapshot, log.store):
                    merged.append(Merged(name, 0, 0, (), unchanged=True))
                    continue
                former += snapshot_pieces(name, snapshot)
                known, count = read.get(name, _Read()), snapshot.live + snapshot.tombstones
                read[name] = _Read(known.records + count, known.bytes, known.keys + count)
            if not read:
                return Result(tuple(merged), tuple(versions.pairs.items()))
            everything = combined
            if former:
                snapshots = self._combine(spark, job, former, tasks)
                held.append(snapshots)
                # `_read` raises the errors that the tasks found.
                versions = versions.raised(_read(snapshots)[1].pairs.items())
                everything = combined.unionAll(snapshots)
            pairs = tuple(versions.pairs.items())
            cleared, late = _cleared(held)
            ranges = max(1, -(-sum(each.keys for each in read.values()) // ROWS_A_RANGE))
            # By ranges, not by hash: part files are then in key order, as the local engine writes them.
            rows = everything.where(f"not ({_A_CLEAR})")
            ordered = rows.repartitionByRange(ranges, "map", "key").sortWithinPartitions("map", "key")
            found = ordered.mapInArrow(_write(job, cleared), _PART_FIELDS).collect()
        finally:
            for frame in held:
                frame.unpersist()
        parts = taken(found)
        for name, each in sorted(read.items()):
            clears = clears_part(log, job, name, cleared.claims(name), late, ranges)
            merged.append(Merged(name, each.records, each.bytes, (*clears, *parts.get(name, ()))))
        return Result(tuple(merged), pairs)

    def _combine(self, spark: SparkSession, job: Job, pieces: list[Piece], tasks: int) -> DataFrame:
        """The newest rows of each task's pieces: one a map, key and node."""
        groups = balanced(pieces, max(1, min(tasks * 2, len(pieces))))
        rows = [(base64.b64encode(pickle.dumps(group)).decode(),) for group in groups] or [("",)]
        described = spark.createDataFrame(rows, "pieces string").repartitionByRange(len(rows), "pieces")
        return described.mapInArrow(_combine(job), _COMBINED_FIELDS).persist()


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of a map: records, bytes of segments, and how many (key, node) are left of it."""

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


def clears_part(log: ClusterLog, job: Job, name: str, claims: Sequence[Claim], late: set[Subject], number: int) -> tuple[Part, ...]:
    """The clears of a map that are kept: few rows, which the tasks of all ranges of keys needed. So
    the driver writes them. `number`: one that no range has."""
    with tempfile.TemporaryDirectory(prefix="imap-wal-rewrite-", ignore_cleanup_errors=True) as folder:
        writer = PartWriter(log.store, job, name, Path(folder), number, log.randomness)
        writer.add_clears(claims, late)
        return writer.close()


def _cleared(frames: Iterable[DataFrame]) -> tuple[Cleared, set[Subject]]:
    """All clears that the tasks read, and the partitions of which one came late."""
    cleared, late = Cleared(), set[Subject]()
    for frame in frames:
        for batch in frame.where(_A_CLEAR).toArrow().to_batches():
            rows, lates = archive.to_rows(batch), batch.column(batch.schema.get_field_index("late")).to_pylist()
            late.update(subject(row) for row, is_late in zip(rows, lates, strict=True) if is_late)
            for row, node in zip(rows, archive.nodes_of(batch), strict=True):
                cleared.take(node, [row])
    return cleared, late


def taken(found: Iterable[Any]) -> dict[str, tuple[Part, ...]]:
    """Map → parts in key order, from the answers of the last step: exactly one attempt of every
    range of keys counts, whatever others wrote. `LostRace` when an answer is missing."""
    attempts: dict[int, str] = {}
    parts: dict[str, list[Part]] = {}
    for row in found:
        if row["error"]:
            raise _thaw(row["error"])
        if attempts.setdefault(row["partition"], row["attempt"]) != row["attempt"]:
            raise LostRace(f"Spark answered twice for range {row['partition']}; nothing was published, run the rewrite again")
        if row["path"]:
            part = Part(row["path"], *(row[name] for name in _PART_NUMBERS))
            parts.setdefault(row["map"], []).append(part)
    if sorted(attempts) != list(range(len(attempts))):
        raise LostRace(f"Spark answered for ranges {sorted(attempts)} only; nothing was published, run the rewrite again")
    order = attrgetter("partition", "number")
    return {name: tuple(sorted(each, key=order)) for name, each in parts.items()}


def _known(url: str) -> Location:
    """The root with its options from the file that IMAP_WAL_CREDENTIALS names. Each worker reads
    its own file, so Spark neither shows nor sends secrets. So are the keys of an encrypted log:
    what is sent says only where they come from."""
    file = os.environ.get("IMAP_WAL_CREDENTIALS")
    place = location(url)
    place = place.with_keys(place.encryption_keys or os.environ.get("IMAP_WAL_ENCRYPTION_KEYS", ""))
    return Credentials.read(file).given_to(place) if file else place


def _combine(job: Job) -> ArrowMap:
    def combine(batches: Iterator[Any]) -> Iterator[Any]:
        store = open_store(_known(job.url))
        index = NewestIndex(TASK_MEMORY_BYTES, spill=False)
        tally = Tally(job)
        log = ClusterLog(store, job.namespace, job.cluster)
        try:
            with no_garbage_collection():
                for batch in batches:
                    for text in batch.column(0).to_pylist():
                        for piece in pickle.loads(base64.b64decode(text)) if text else []:  # noqa: S301  # from our own driver
                            for changes in log.read_on(piece, job.maps):
                                if changes.rows:
                                    tally.add(changes, count_bytes=piece.kind == SEGMENT, settled=piece.kind == SNAPSHOT)
                                    counting = job.decisions.counting(changes.node, changes.rows)
                                    index.add(changes.node, counting, changes.bytes, clears=changes.clears)
                                if index.full:
                                    yield from _newest_so_far(index, tally)
                yield from _newest_so_far(index, tally)
        except (ImapWalError, StorageError) as error:
            yield _failure_row(error)
        finally:
            index.close()
            store.close()

    return combine


def _newest_so_far(index: NewestIndex, tally: Tally) -> Iterator[Any]:
    """All rows of the index, which is then empty; what was read of each map stands in the first of them."""
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
            yield _with_extra(archive.to_batch(rows, nodes), extra)
    index.clear()


def _write(job: Job, cleared: Cleared) -> ArrowMap:
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        randomness = SystemRandomness()  # the same work may be done twice, at the same time
        attempt = randomness.name()
        store = open_store(_known(job.url))
        found: dict[str, tuple[Part, ...]] = {}
        error = ""
        try:
            with tempfile.TemporaryDirectory(prefix="imap-wal-rewrite-") as folder:
                writer: PartWriter | None = None
                current = ""
                for name, rows, nodes, late, conflicts in newest_of_sorted(batches, cleared):
                    if writer is None or name != current:
                        if writer is not None:
                            found[current] = writer.close()
                        current = name
                        writer = PartWriter(store, job, name, Path(folder), partition, randomness)
                    writer.add(rows, nodes, late, conflicts)
                if writer is not None:
                    found[current] = writer.close()
        except (ImapWalError, StorageError) as raised:
            error, found = _freeze(raised), {}
        finally:
            store.close()
        # The first line answers for the range, also where nothing is in it.
        lines: list[dict[str, Any]] = [{"attempt": attempt, "partition": partition, "error": error}]
        for name, parts in found.items():
            lines += [{**asdict(part), "map": name, "attempt": attempt} for part in parts]
        yield pa.RecordBatch.from_pylist(lines, schema=_PART_SCHEMA)

    return write


Page = tuple[str, list[Row], list[str], set[Subject], dict[bytes, Conflict]]
"""(map, newest rows, their nodes, keys that came late, keys in conflict)."""


class _Held:
    """Rows of some keys of a map, until all rows of these keys are there."""

    def __init__(self, name: str) -> None:
        self.name, self._table, self.late = name, Table(), set[Subject]()
        self._size = 0

    def add(self, row: Row, node: str, late: bool) -> None:
        self._size += len(row[1]) + len(row[3] or b"")
        self._table.offer(row[1], (*row, node))
        if late:
            self.late.add((self.name, row[1]))

    @property
    def full(self) -> bool:
        return len(self._table.rows) >= _KEYS_A_BATCH or self._size >= archive.GROUP_BYTES_MAX

    def page(self) -> Page:
        table, name = self._table, self.name
        claims = [table.claim(row) for row in table.rows.values()]
        conflicts = {key: found for key in table.rivals if (found := table.conflict(name, key)) is not None}
        return name, [row for row, _ in claims], [node for _, node in claims], self.late, conflicts


def newest_of_sorted(batches: Iterator[Any], cleared: Cleared | None = None) -> Iterator[Page]:
    """From record batches sorted by map and key, every key once that was not cleared."""
    held: _Held | None = None
    last = b""
    for batch in batches:
        nodes = archive.nodes_of(batch)
        lates = batch.column(batch.schema.get_field_index("late")).to_pylist()
        placed = list(zip(archive.to_rows(batch), nodes, lates, strict=True))
        for row, node, late in placed if cleared is None else _left(placed, cleared):
            if held is None or held.name != row[0] or (held.full and row[1] != last):
                if held is not None:
                    yield held.page()
                held = _Held(row[0])
            held.add(row, node, late)
            last = row[1]
    if held is not None:
        yield held.page()


def _left(placed: list[tuple[Row, str, bool]], cleared: Cleared) -> Iterator[tuple[Row, str, bool]]:
    """Those that were not cleared."""
    for name, group in groupby(placed, key=lambda each: each[0][0]):
        some = list(group)
        hidden = cleared.hidden(name, [row[1] for row, _, _ in some], [row[9] for row, _, _ in some])
        yield from (each for index, each in enumerate(some) if index not in hidden)


def balanced(pieces: list[Piece], count: int) -> list[list[Piece]]:
    """The pieces in `count` groups of about the same bytes."""
    groups: list[list[Piece]] = [[] for _ in range(count)]
    sizes = [0] * count
    for piece in sorted(pieces, key=lambda piece: piece.bytes, reverse=True):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(piece)
        sizes[smallest] += piece.bytes + 1
    return [group for group in groups if group]


def _with_extra(batch: Any, extra: list[list[Any]]) -> Any:
    columns = [*batch.columns, *(pa.array(column, kind) for column, (_, kind) in zip(extra, _EXTRA, strict=True))]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *(name for name, _ in _EXTRA)])


def _failure_row(error: Exception) -> Any:
    row: Row = ("", b"", "", None, "", True, 0, 0, 0, (0, 0, 0, 0))
    return _with_extra(archive.to_batch([row], ""), [[False], [0], [0], [_freeze(error)], [None]])


# An error of a worker comes back as what it is, not as text in Spark's own exception. Our errors' constructors do not take their own `args`.


def _freeze(error: Exception) -> str:
    return base64.b64encode(pickle.dumps((type(error), error.args, error.__dict__))).decode()


def _thaw(text: str) -> Exception:
    kind, args, state = pickle.loads(base64.b64decode(text))  # noqa: S301  # from our own worker, a moment ago
    error: Exception = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error
