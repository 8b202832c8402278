"""`spark.read` with images: planned on the driver, read in the workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from imap_wal.errors import InvalidSetting
from imap_wal.format import START, Position
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan, Metadata
from imap_wal.read.state import ClusterState
from pyspark_imap_wal.batch import ClusterReader, metadata_for, query_of
from pyspark_imap_wal.changes.images import ChangesPartition, read_images
from pyspark_imap_wal.changes.known import planned
from pyspark_imap_wal.filters import Filters
from pyspark_imap_wal.offsets import demand_unpruned
from pyspark_imap_wal.options import LATEST, Options, opened_log


def tasks(
    log: ClusterLog,
    options: Options,
    scans: tuple[list[FileScan], list[FileScan]],
    metadata: tuple[Metadata, ...],
) -> list[ChangesPartition]:
    """A task for each bucket of keys. `scans`: of `pyspark_imap_wal.changes.known.planned`."""
    before, changes = scans
    return [
        ChangesPartition(
            log.namespace,
            log.cluster,
            before,
            changes,
            bucket,
            options.buckets,
            metadata,
            log.context.place,
        )
        for bucket in range(options.buckets if changes else 0)
    ]


def read_task(
    task: ChangesPartition, options: Options, kinds: Mapping[str, str], filters: Filters
) -> Iterator[Any]:
    """The rows of a task, as record batches."""
    if not task.changes:
        return
    with opened_log(task.place, task.namespace, task.cluster) as log:
        maps = filters.only("map", options.maps)
        query = query_of(options, kinds, task.metadata, maps=maps, filters=filters)
        yield from read_images(log, task, query)


class ImagesReader(ClusterReader):
    """The images of a batch."""

    def __init__(self, options: Options, kinds: Mapping[str, str]) -> None:
        if options.starting == LATEST:
            raise InvalidSetting("starting is latest; a batch takes earliest or positions")
        if options.as_of is not None and options.as_of.positions is None:
            raise InvalidSetting(
                "as_of is a time; with images, it takes the last position of every node"
            )
        super().__init__(options, kinds)

    def _check(self, clusters: Sequence[tuple[str, str]]) -> None:
        if self._options.starts() is not None and len(clusters) > 1:
            raise InvalidSetting(
                "positions are those of one cluster: name it with the options namespace and cluster"
            )

    def _nothing(self) -> InputPartition:
        return ChangesPartition("", "", [], [], 0, 1, (), self._options.path)

    def _of_cluster(self, log: ClusterLog) -> list[ChangesPartition]:
        options = self._options
        state = log.state().demand(options.recovery_policy)
        start = options.starts()
        end = _end(log, state, options)
        for places in (start or {}, end):
            state.plain(places)
        for node, place in (start or {}).items():
            demand_unpruned(state, node, place, end.get(node, START))
        maps = self._filters.only("map", options.maps) or None
        metadata = metadata_for(options, self._kinds, log, state)
        return tasks(log, options, planned(log, state, start, end, maps), metadata)

    def read(self, partition: Any) -> Iterator[Any]:
        """The rows of a task, as record batches."""
        return read_task(partition, self._options, self._kinds, self._filters)


def _end(log: ClusterLog, state: ClusterState, options: Options) -> Mapping[str, Position]:
    if options.as_of is not None and options.as_of.positions is not None:
        return options.as_of.positions
    return log.ends(state=state)
