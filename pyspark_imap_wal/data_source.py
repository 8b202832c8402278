"""The log as a Spark data source.

spark.read.format("imap_wal").load(url)      raw: every entry that counts; a task per file
…option("mode", "latest")                    the live view: a task per bucket of keys
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from imap_wal.checks import location
from imap_wal.entry import KEY, VALUE, Row, is_clear
from imap_wal.errors import InvalidSetting
from imap_wal.format import Position
from imap_wal.parquet import file as parquet_file
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT, FileScan
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Noted
from imap_wal.read.scan import ahead, read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.view import live
from imap_wal.security.credentials import Credentials
from imap_wal.security.encryption import open_store
from imap_wal.settings import RecoveryPolicy
from storage_backends import SegmentStore
from storage_backends.location import Location

TASK_MEMORY_BYTES = 512 * 1024 * 1024
"""Memory limit of a task's index, in bytes. At the limit, a rewrite emits its rows, and a `latest`
read spills to the worker's temporary folder."""


LOG_FIELDS = (
    "namespace string, cluster string, map string, key binary, key_class string, value "
    "binary, value_class string, deleted boolean, timestamp_ms bigint, "
    "expires_at_ms bigint, partition bigint, incarnation bigint, partition_version bigint, "
    "session bigint, request bigint, node string"
)
_POSITION_FIELDS = "epoch bigint, segment bigint, frame bigint, index bigint"
_DECODED_FIELDS = "key_text string, value_text string"

RAW, LATEST = "raw", "latest"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the data source. `path` is the root's URL; `namespace`, `cluster`, `map`, `node`
    limit what is read (comma-separated); `mode` is raw or latest; `partial` continues without
    missing nodes; `decode` adds key_text and value_text; `buckets` is how many tasks share a
    `latest` read. `encryption_keys` is the source from which each worker reads the keys of an
    encrypted log (default: IMAP_WAL_ENCRYPTION_KEYS there); it is stored in `path`."""

    path: str
    namespaces: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    mode: str = RAW
    partial: bool = False
    decode: bool = False
    buckets: int = 1

    KNOWN = (
        "path",
        "namespace",
        "cluster",
        "map",
        "node",
        "mode",
        "partial",
        "decode",
        "buckets",
        "encryption_keys",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises `InvalidSetting`; the text names the mistake."""
        unknown = sorted(set(given) - set(cls.KNOWN))
        if unknown:
            raise InvalidSetting(
                f"imap_wal takes no option {', '.join(unknown)}; it takes {', '.join(cls.KNOWN)}"
            )
        if not given.get("path"):
            raise InvalidSetting("imap_wal needs the root of the logs: .load(url)")
        mode = given.get("mode", RAW)
        if mode not in (RAW, LATEST):
            raise InvalidSetting(f"mode is {mode!r}; it takes raw or latest")
        if mode == LATEST and given.get("node"):
            raise InvalidSetting(
                "mode latest is over all nodes; leave out the option node, or read mode raw"
            )
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
        fields = [LOG_FIELDS]
        if chosen.mode == RAW:
            fields.append(_POSITION_FIELDS)
        if chosen.decode:
            fields.append(_DECODED_FIELDS)
        return ", ".join(fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ImapWalReader(self._chosen())


@dataclass
class FilePartition(InputPartition):
    """For raw: files of one cluster. `place`: the root with the options that the driver has."""

    namespace: str
    cluster: str
    scans: list[FileScan]
    metadata: list[tuple[Any, ...]]
    place: str


@dataclass
class BucketPartition(InputPartition):
    """For latest: the keys of one cluster whose hash is in a bucket."""

    namespace: str
    cluster: str
    scans: list[FileScan]
    bucket: int
    now_ms: int
    metadata: list[tuple[Any, ...]]
    place: str


class ImapWalReader(DataSourceReader):
    """Plans on the driver, and reads in the workers."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        store = open_store(known(options.path))
        found: list[InputPartition] = []
        try:
            for namespace, cluster in clusters_of(store, options.namespaces, options.clusters):
                log = ClusterLog(store, namespace, cluster)
                state = log.state()
                state.demand(RecoveryPolicy.PARTIAL if options.partial else RecoveryPolicy.FULL)
                scans = cluster_scans(state, maps=options.maps or None, nodes=options.nodes or None)
                metadata = _metadata(log, state, options)
                if options.mode == RAW:
                    found += [
                        FilePartition(namespace, cluster, [scan], metadata, store.url)
                        for scan in scans
                    ]
                else:
                    now_ms = log.clock.now_ms()
                    found += [
                        BucketPartition(
                            namespace, cluster, scans, bucket, now_ms, metadata, store.url
                        )
                        for bucket in range(options.buckets)
                    ]
        finally:
            store.close()
        if not found:
            found.append(FilePartition("", "", [], [], options.path))  # Spark requires at least one
        return found

    def read(self, partition: Any) -> Iterator[Any]:
        store = open_store(known(partition.place))
        try:
            batches = (
                self._raw(store, partition)
                if isinstance(partition, FilePartition)
                else self._latest(store, partition)
            )
            yield from batches
        finally:
            store.close()

    def _raw(self, store: SegmentStore, partition: FilePartition) -> Iterator[Any]:
        options = self._options
        for scan, source in ahead(store, partition.scans):
            for changes in read_scan(source, scan, options.maps or None, positions=True):
                if changes.rows and (not options.nodes or changes.node in options.nodes):
                    yield self._batch(
                        partition,
                        changes.rows,
                        [changes.node] * len(changes.rows),
                        changes.positions,
                    )

    def _latest(self, store: SegmentStore, partition: Any) -> Iterator[Any]:
        options = self._options
        index = NewestIndex(TASK_MEMORY_BYTES)
        try:
            for scan, source in ahead(store, partition.scans):
                for changes in read_scan(source, scan, options.maps or None):
                    rows = changes.rows
                    if options.buckets > 1:
                        rows = [
                            row
                            for row in rows
                            if is_clear(row)
                            or zlib.crc32(row[KEY]) % options.buckets == partition.bucket
                        ]
                    index.add(changes.node, rows, clears=changes.clears)
            noted = Noted()
            for name in index.maps():
                for rows, nodes in index.batches_with_nodes(name):
                    noted.note(index.conflicts())
                    alive = {id(row) for row in live(rows, partition.now_ms)}
                    kept = [
                        (row, node)
                        for row, node in zip(rows, nodes, strict=True)
                        if id(row) in alive
                    ]
                    if kept:
                        yield self._batch(
                            partition,
                            [row for row, _ in kept],
                            [node for _, node in kept],
                            None,
                            latest=True,
                        )
        finally:
            index.close()

    def _batch(
        self,
        partition: Any,
        rows: list[Row],
        nodes: list[str],
        positions: list[Position] | None,
        *,
        latest: bool = False,
    ) -> Any:
        batch = parquet_file.to_batch(rows, nodes)
        names = list(batch.schema.names)
        columns = list(batch.columns)
        count = len(rows)
        names[:0] = ["namespace", "cluster"]
        columns[:0] = [
            pa.array([partition.namespace] * count, pa.string()),
            pa.array([partition.cluster] * count, pa.string()),
        ]
        if not latest:
            places = list(zip(*positions, strict=True)) if positions else [[None] * count] * 4
            names += ["epoch", "segment", "frame", "index"]
            columns += [pa.array(place, pa.int64()) for place in places]
        if self._options.decode:
            keys, values = _decode(rows, partition.metadata)
            names += ["key_text", "value_text"]
            columns += [pa.array(keys, pa.string()), pa.array(values, pa.string())]
        return pa.RecordBatch.from_arrays(columns, names=names)


def clusters_of(
    store: SegmentStore, namespaces: Iterable[str] = (), clusters: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """(namespace, cluster) of all logs under a root, or of those with the given names."""
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
    """Schemas, if keys and values are wanted as text."""
    if not options.decode:
        return []
    from imap_wal.read.cluster import from_manifest

    found = [
        from_manifest(item) for node in state.nodes.values() for item in node.manifest.metadata
    ]
    for scan in cluster_scans(state, snapshots=False, covered=True):
        if scan.kind == SEGMENT:
            found += [
                item for changes in read_scan(log.store, scan, ()) for item in changes.metadata
            ]
    return [item for item in dict.fromkeys(found) if item[0] == "schema"]


def _decode(
    rows: list[Row], metadata: list[tuple[Any, ...]]
) -> tuple[list[str | None], list[str | None]]:
    from imap_wal.inspect.decode import Decoder, text

    decoder = Decoder(metadata)
    return [text(decoder.key(row)) for row in rows], [
        None if row[VALUE] is None else text(decoder.value(row)) for row in rows
    ]


def known(url: str) -> Location:
    """The root with its options, and those from the file that IMAP_WAL_CREDENTIALS names on this
    machine. Options that the driver has come with the task, and override the file of a worker. Of
    the keys of an encrypted log, Spark sends only the name of their source."""
    file = os.environ.get("IMAP_WAL_CREDENTIALS")
    place = location(url)
    place = place.with_keys(place.encryption_keys or os.environ.get("IMAP_WAL_ENCRYPTION_KEYS", ""))
    return Credentials.read(file).given_to(place) if file else place
