"""The table `history`: every version of each key that the log still has.

Snapshots, archives and segments are read, including what a snapshot covers. A version that is in a
snapshot and in the log appears once, with its position.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from imap_wal.entry import KEY, VALUE, DataEntry, Order, Row, is_clear
from imap_wal.format import START, Position
from imap_wal.manifest.epochs import Epoch, marked
from imap_wal.parquet.columns import nodes_of, to_positions, to_rows
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SNAPSHOT, FileScan, Metadata
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from pyspark_imap_wal.batch import ClusterReader, metadata_for, query_of, schema_of
from pyspark_imap_wal.changes.images import BATCH_BYTES, BATCH_ROWS, MEMORY_BYTES
from pyspark_imap_wal.changes.sorter import Clears, EntrySorter, Placed, place_of, subject_of
from pyspark_imap_wal.columns import EntryQuery, of_rows, read_columns, shaped
from pyspark_imap_wal.options import opened_log
from pyspark_imap_wal.tables.schemas import (
    ENTRY_COLUMNS,
    POSITION_COLUMNS,
    VERSION_COLUMNS,
)
from storage_backends.location import Location

_WHOLE = EntryQuery(schema_of(ENTRY_COLUMNS | POSITION_COLUMNS))


@dataclass
class HistoryPartition(InputPartition):
    """The keys of one cluster whose hash is in a bucket. `known_from`: node → the position from
    which on nothing was removed. `epochs`: of each node. `place`: the root with the options that
    the driver has."""

    namespace: str
    cluster: str
    scans: list[FileScan]
    bucket: int
    metadata: tuple[Metadata, ...]
    known_from: dict[str, str]
    epochs: dict[str, tuple[Epoch, ...]]
    place: Location


@dataclass(frozen=True, slots=True)
class Version:
    """A change of a key, or a clear that deleted it. `position` None: it is in a snapshot only."""

    key: bytes
    row: Row
    node: str
    position: Position | None


class HistoryReader(ClusterReader):
    """A task for each bucket of keys."""

    def _nothing(self) -> InputPartition:
        return HistoryPartition("", "", [], 0, (), {}, {}, self._options.path)

    def _of_cluster(self, log: ClusterLog) -> Iterator[InputPartition]:
        options, filters = self._options, self._filters
        state = log.state().demand(options.recovery_policy)
        maps = filters.only("map", options.maps) or None
        scans = filters.narrowed(cluster_scans(state, maps=maps, covered=True))
        metadata = metadata_for(options, self._kinds, log, state)
        known_from = {
            name: str(state.marked(name, node.manifest.removed).after())
            for name, node in state.nodes.items()
            if node.manifest.removed > START
        }
        epochs = {name: node.manifest.epochs for name, node in state.nodes.items()}
        for bucket in range(options.buckets):
            yield HistoryPartition(
                log.namespace,
                log.cluster,
                scans,
                bucket,
                metadata,
                known_from,
                epochs,
                log.context.place,
            )

    def read(self, partition: Any) -> Iterator[Any]:
        """The rows of a task, as record batches."""
        if not partition.scans:
            return
        with opened_log(partition.place, partition.namespace, partition.cluster) as log:
            query = query_of(self._options, self._kinds, partition.metadata, filters=self._filters)
            with closing(EntrySorter(MEMORY_BYTES)) as sorter:
                clears = self._read(log, partition, sorter)
                for part in _parts(_versions(sorter, clears)):
                    yield shaped(log, _batch(part, partition, query), query)

    def _read(self, log: ClusterLog, task: HistoryPartition, sorter: EntrySorter) -> Clears:
        """Put the versions of a task's keys into `sorter`; returns the clears."""
        keys, buckets = self._filters.keys(), self._options.buckets
        maps = self._filters.only("map", self._options.maps)
        clears = Clears()
        whole = EntryQuery(_WHOLE.schema, maps)
        for scan, source in ahead(log.context, task.scans):
            for batch in read_columns(log, scan, whole, source):
                places = _places(scan, batch)
                for row, node, place in zip(to_rows(batch), nodes_of(batch), places, strict=True):
                    if is_clear(row):
                        clears.add(row, node, place)
                    elif (keys is None or row[KEY] in keys) and (
                        buckets == 1 or zlib.crc32(row[KEY]) % buckets == task.bucket
                    ):
                        sorter.add(row, node, position=place)
        return clears


def _places(scan: FileScan, batch: Any) -> list[Position | None]:
    if scan.kind == SNAPSHOT:
        return [None] * len(batch)
    return list(to_positions(batch))


def _versions(sorter: EntrySorter, clears: Clears) -> Iterator[Version]:
    """Each version once, key by key, the oldest first."""
    for (name, key), group in groupby(sorter.sorted(), key=subject_of):
        every = heapq.merge(group, clears.of(name, key), key=place_of)
        for (_, node, _), same in groupby(every, key=_identity):
            copies = list(same)
            _, row, position = next((copy for copy in copies if copy[2] is not None), copies[0])
            yield Version(key, row, node, position)


def _identity(placed: Placed) -> tuple[Order, str, bool]:
    """What identifies a version: it is the same in a snapshot and in the log."""
    (*_, order, node), row, _ = placed
    return order, node, is_clear(row)


def _parts(versions: Iterator[Version]) -> Iterator[list[Version]]:
    held: list[Version] = []
    size = 0
    for version in versions:
        held.append(version)
        size += len(version.row[VALUE] or b"")
        if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _of_key(version: Version) -> Row:
    """The row of a version. A clear gets the key that it deleted, and no number of partitions."""
    row = DataEntry(*version.row)
    return row._replace(key=version.key, expires_at_ms=0) if is_clear(row) else version.row


def _position(version: Version, task: HistoryPartition) -> str | None:
    if version.position is None:
        return None
    return str(marked(task.epochs.get(version.node, ()), Position(*version.position)))


def _batch(versions: list[Version], task: HistoryPartition, query: EntryQuery) -> Any:
    nodes = [version.node for version in versions]
    batch = of_rows(
        [_of_key(version) for version in versions],
        nodes,
        sorted(query.needed - VERSION_COLUMNS.keys()),
    )
    columns = {
        "position": [_position(version, task) for version in versions],
        "known_from": [task.known_from.get(node) for node in nodes],
    }
    for name, column in columns.items():
        batch = batch.append_column(name, pa.array(column, pa.string()))
    cleared = [is_clear(version.row) for version in versions]
    return batch.append_column("cleared", pa.array(cleared, pa.bool_()))
