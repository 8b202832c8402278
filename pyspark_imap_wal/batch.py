"""`spark.read.format("imap_wal")`: planned on the driver, read in the workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from imap_wal.clock import demand_past, utc
from imap_wal.context import Context
from imap_wal.decoder import Decoder
from imap_wal.errors import EncryptionError, InvalidSetting, LogError, MissingNode
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import FileScan, Metadata
from imap_wal.read.map_names import began_after, some_names, why_no_map
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.schemas import schemas_of
from imap_wal.read.state import ClusterState
from imap_wal.retention.history import at_positions, at_time
from imap_wal.sql.columns import TypedColumns
from imap_wal.sql.types import Schema, parsed
from pyspark_imap_wal.columns import EntryQuery, read_columns
from pyspark_imap_wal.filters import Filters
from pyspark_imap_wal.latest import read_latest
from pyspark_imap_wal.latest import tasks as latest_tasks
from pyspark_imap_wal.options import (
    LATEST,
    AsOf,
    Options,
    clusters_of,
    opened,
    opened_log,
    why_none,
)
from pyspark_imap_wal.tables.schemas import DECODED_COLUMNS
from storage_backends import NotFound
from storage_backends.location import Location

T = TypeVar("T")
_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


@dataclass
class FilePartition(InputPartition):
    """For raw: files of one cluster. `place`: the root with the options that the driver has."""

    namespace: str
    cluster: str
    scans: list[FileScan]
    metadata: tuple[Metadata, ...]
    place: Location


class Pushes:
    """A reader's `pushFilters`. Spark refuses a reader with a method of this name if filters are
    not pushed down, which is Spark's default (spark.sql.python.filterPushdown.enabled). It finds
    such a method by its function. With this object in its place, a reader works with both
    settings."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        self._filters.push(filters)
        return filters  # Spark checks them again


class ClusterReader(DataSourceReader):
    """Plans the tasks of each cluster on the driver, and reads in the workers. `kinds`: column →
    type of Spark."""

    def __init__(self, options: Options, kinds: Mapping[str, str]) -> None:
        self._options, self._kinds = options, dict(kinds)
        self._filters = Filters.of(options)

    @property
    def pushFilters(self) -> Callable[[list[Any]], Iterable[Any]]:  # noqa: N802
        """Called by Spark with the filters of a query."""
        return Pushes(self._filters)

    def partitions(self) -> list[InputPartition]:
        """The tasks of a query. Raises `InvalidSetting` if the options do not fit the clusters, and
        if they name a log, map, node or moment that does not exist: no rows would look like an
        empty map."""
        options, filters = self._options, self._filters
        with opened(options.path) as context:
            every = logs_of(context, options)
            demand_known(options, every)
            namespaces, clusters = filters.only("namespace", ()), filters.only("cluster", ())
            logs = [
                log
                for log in every
                if (not namespaces or log.namespace in namespaces)
                and (not clusters or log.cluster in clusters)
            ]
            self._check([(log.namespace, log.cluster) for log in logs])
            made = [task for log in logs for task in self._planned(log)]
            # Whatever the filters: Spark may keep them for itself.
            self._demand_begun([*logs, *(log for log in every if log not in logs)])
        return made or [self._nothing()]  # Spark requires at least one

    def _check(self, clusters: Sequence[tuple[str, str]]) -> None:
        """Refuse clusters that do not fit the options."""

    def _demand_begun(self, logs: Sequence[ClusterLog]) -> None:
        """Refuse a moment before the first entry of all logs."""

    def _planned(self, log: ClusterLog) -> list[InputPartition]:
        return planned_again(lambda: list(self._of_cluster(log)))

    def _of_cluster(self, log: ClusterLog) -> Iterable[InputPartition]:
        raise NotImplementedError

    def _nothing(self) -> InputPartition:
        """A task without rows."""
        raise NotImplementedError


class ImapWalReader(ClusterReader):
    """Raw entries, or the latest of each key. `kinds`: default: see `Options.kinds`."""

    def __init__(self, options: Options, kinds: dict[str, str] | None = None) -> None:
        super().__init__(options, kinds or options.kinds())

    def _nothing(self) -> InputPartition:
        return FilePartition("", "", [], (), self._options.path)

    def _demand_begun(self, logs: Sequence[ClusterLog]) -> None:
        as_of = self._options.as_of
        if as_of is None or as_of.time_ms is None:
            return
        maps, time_ms = self._options.maps or None, as_of.time_ms
        demand_past(time_ms, logs[0].clock.now_ms())

        def began(log: ClusterLog) -> int | None:
            state = log.state().demand(self._options.recovery_policy)
            return began_after(log, at_time(log, state, time_ms, maps).state, maps, time_ms)

        first: list[int] = []
        for log in logs:
            with suppress(LogError, EncryptionError, MissingNode):  # tasks that read it report it
                time = planned_again(partial(began, log))
                if time is None:
                    return
                first.append(time)
        if first:
            raise InvalidSetting(
                f"there is no entry of {utc(time_ms)} or before; the first one is of "
                f"{utc(min(first))}; ask for a later as_of"
            )

    def _of_cluster(self, log: ClusterLog) -> Iterator[InputPartition]:
        options, filters = self._options, self._filters
        maps = filters.only("map", options.maps) or None
        state = log.state().demand(options.recovery_policy)
        until = None
        if options.as_of is not None:
            state = known_then(log, state, options.as_of, maps)
            until = options.as_of.positions
        metadata = metadata_for(options, self._kinds, log, state)
        if options.mode == LATEST:
            yield from latest_tasks(log, state, options, filters, until, metadata)
            return
        nodes = filters.only("node", options.nodes) or None
        scans = filters.narrowed(cluster_scans(state, maps=maps, nodes=nodes, until=until))
        matching = [scan for scan in scans if filters.wants(scan)]
        for part in by_bytes(matching, options.task_bytes):
            yield FilePartition(log.namespace, log.cluster, part, metadata, log.context.place)

    def read(self, partition: Any) -> Iterator[Any]:
        """The rows of a task, as record batches. Raises the errors of `read_columns` and
        `read_latest`."""
        if not partition.scans:
            return
        with opened_log(partition.place, partition.namespace, partition.cluster) as log:
            if isinstance(partition, FilePartition):
                query = self._wanted(partition.metadata)
                for scan, source in ahead(log.context, partition.scans):
                    yield from read_columns(log, scan, query, source)
            else:
                as_of = self._options.as_of
                time_ms = as_of.time_ms if as_of is not None else None
                query = self._wanted(partition.metadata)
                yield from read_latest(log, partition, query, self._options.buckets, time_ms)

    def _wanted(self, metadata: tuple[Metadata, ...]) -> EntryQuery:
        options, filters = self._options, self._filters
        as_of = options.as_of.time_ms if options.as_of is not None else None
        if as_of is not None and options.mode != LATEST:
            filters.until(as_of)
        return query_of(
            options,
            self._kinds,
            metadata,
            maps=filters.only("map", options.maps),
            nodes=filters.only("node", options.nodes),
            filters=filters,
        )


def logs_of(context: Context, options: Options) -> list[ClusterLog]:
    """The logs that the options name. Raises `InvalidSetting` if there is none."""
    clusters = clusters_of(context.store, options.namespaces, options.clusters)
    if not clusters:
        raise InvalidSetting(why_none(context.store, options))
    return [ClusterLog(context, *names) for names in clusters]


def demand_known(options: Options, logs: Sequence[ClusterLog]) -> None:
    """Raises `InvalidSetting` if none of the logs has a map or a node that the options name."""
    positions = options.as_of.positions if options.as_of is not None else None
    named = {*options.nodes, *(positions or ())}
    if named:
        manifests = [log.manifest() for log in logs]
        nodes = {name for manifest in manifests for name in manifest.nodes}
        absent = sorted(named - nodes)
        # Snapshots still have entries of forgotten nodes.
        if absent and not any(manifest.forgotten for manifest in manifests):
            raise InvalidSetting(
                f"there is no node {', '.join(map(repr, absent))} under {options.path}; found: "
                f"{some_names(sorted(nodes))}"
            )
    why = ""
    with suppress(EncryptionError):  # the driver need not have the keys
        why = why_no_map(logs, options.maps, may_be_new=True)
    if why:
        raise InvalidSetting(f"{options.path}: {why}")


def schema_of(kinds: Mapping[str, str], typed: Schema | None = None) -> Any:
    """Columns as a schema of Arrow."""
    typed = typed or {}
    return pa.schema(
        [
            (name, typed[name].arrow if name in typed else _ARROW[kind])
            for name, kind in kinds.items()
        ]
    )


def query_of(
    options: Options, kinds: Mapping[str, str], metadata: tuple[Metadata, ...], **more: Any
) -> EntryQuery:
    """What a task reads: `EntryQuery`, whose other fields are `more`."""
    schema = schema_of(kinds, options.types())
    typed = None
    if options.schema:
        typed = TypedColumns(parsed(options.schema), Decoder(metadata), options.misfits)
    return EntryQuery(schema, metadata=metadata, typed=typed, **more)


def metadata_for(
    options: Options, kinds: Mapping[str, str], log: ClusterLog, state: ClusterState
) -> tuple[Metadata, ...]:
    """The schemas of the log's Compact values, if a query decodes values."""
    return schemas_of(log, state) if options.schema or DECODED_COLUMNS.keys() & kinds else ()


def planned_again(plan: Callable[[], T]) -> T:
    """A plan, made again if a file that it reads is archived meanwhile."""
    for _ in range(ATTEMPTS - 1):
        with suppress(NotFound):
            return plan()
    return plan()


def by_bytes(scans: Iterable[FileScan], size: int) -> Iterator[list[FileScan]]:
    """Files of about `size` bytes in total; a larger file by itself."""
    part: list[FileScan] = []
    held = 0
    for scan in scans:
        if part and held + scan.bytes > size:
            yield part
            part, held = [], 0
        part.append(scan)
        held += scan.bytes
    if part:
        yield part


def known_then(
    log: ClusterLog, state: ClusterState, as_of: AsOf, maps: Collection[str] | None
) -> ClusterState:
    """The logs with the snapshots of a former moment. `InvalidSetting` if the log no longer has the
    state of one of the maps: a snapshot keeps only the newest entry of every key."""
    if as_of.positions is not None:
        past = at_positions(log, state, state.plain(as_of.positions), maps)
    else:
        past = at_time(log, state, as_of.time_ms or 0, maps)
    if past.unknown:
        snapshots = state.manifest.snapshots
        name = max(past.unknown, key=lambda name: (snapshots[name].until_ms, name))
        then = "this as_of" if as_of.time_ms is None else utc(as_of.time_ms)
        raise InvalidSetting(
            f"{log.namespace}/{log.cluster}: the state of map {name!r} at {then} is no longer "
            "known: a rewrite kept only the newest entry of every key at "
            f"{utc(snapshots[name].until_ms)}; ask for a later as_of"
        )
    return past.state
