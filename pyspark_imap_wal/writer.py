"""`df.write.format("imap_wal")`: a backfill of a closed log (`imap_wal.retention.backfill`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from imap_wal import layout
from imap_wal.entry import RAW
from imap_wal.errors import InvalidSetting, LostRace
from imap_wal.format import Position
from imap_wal.manifest.archives import Archive
from imap_wal.names import check_map_name
from imap_wal.parquet.columns import ARCHIVE_SCHEMA
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention import backfill
from imap_wal.retention.backfill import EPOCH, SESSION, Backfill
from imap_wal.security.encryption import keys_of, open_store
from pyspark_imap_wal.options import known
from storage_backends import SegmentStore

FILE_BYTES = 256 * 1024 * 1024
"""A task begins another file after about this many bytes of one map."""
ROWS_A_TASK = 2**40
"""More rows than a task has: the requests of two tasks do not overlap."""
TAKEN = {
    "map": "string",
    "key": "binary",
    "value": "binary",
    "key_class": "string",
    "value_class": "string",
    "expires_at_ms": "bigint",
}
"""The columns that a DataFrame may have; it must have `key` and `value`."""


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote, for the archives in the manifest."""

    partition: int
    archives: tuple[Archive, ...]


@dataclass(frozen=True)
class Target:
    """The destination of a backfill. `map`: of rows without a column map. `place`: the root with
    the options that the driver has."""

    place: str
    namespace: str
    cluster: str
    map: str = ""

    def open(self) -> tuple[SegmentStore, ClusterLog]:
        store = open_store(known(self.place))
        return store, ClusterLog(store, self.namespace, self.cluster)


class ImapWalWriter(DataSourceArrowWriter):
    """Made on the driver; `write` runs in the workers."""

    def __init__(self, target: Target, kinds: Mapping[str, str], *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidSetting(
                "a backfill adds entries: write with mode append; `imap-wal drop` drops a map"
            )
        for name, kind in kinds.items():
            if TAKEN.get(name) != kind:
                raise InvalidSetting(
                    f"a backfill takes no column {name} {kind}; it takes "
                    + ", ".join(f"{each} {of}" for each, of in TAKEN.items())
                )
        if not {"key", "value"} <= kinds.keys() or ("map" in kinds) == bool(target.map):
            raise InvalidSetting(
                "a backfill needs the columns key and value, and the name of the map: the "
                "option map, or a column map"
            )
        if target.map:
            check_map_name(target.map)
        layout.Identity(target.namespace, target.cluster, "backfill").check()
        store, log = target.open()
        try:
            self._target = Target(store.url, target.namespace, target.cluster, target.map)
            self._backfill: Backfill = backfill.begin(log)
            self._now_ms = log.clock.now_ms()
        finally:
            store.close()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """The rows of a task, as archives that no manifest names yet."""
        context = TaskContext.get()
        assert context is not None
        return self.of_partition(context.partitionId(), iterator)

    def of_partition(self, partition: int, batches: Iterator[Any]) -> Written:
        """`write` of one partition. Raises `InvalidSetting` if a row has no map or no key."""
        store, log = self._target.open()
        try:
            with tempfile.TemporaryDirectory(prefix="imap-wal-backfill-") as folder:
                task = _Task(log, self._backfill, partition, Path(folder))
                for batch in batches:
                    for name, rows in self._by_map(batch):
                        task.add(name, rows, self._now_ms)
                return Written(partition, task.end())
        finally:
            store.close()

    def _by_map(self, batch: Any) -> Iterator[tuple[str, Any]]:
        if self._target.map:
            yield self._target.map, batch
            return
        for name in pc.unique(batch["map"]).to_pylist():
            if name is None:
                raise InvalidSetting("a row has no map")
            check_map_name(name)
            yield name, batch.filter(pc.equal(batch["map"], name))

    def commit(self, messages: list[Any]) -> None:
        """Make all rows a part of the log, at once. Raises `LostRace` if two attempts of a task
        report that they wrote, and the errors of `backfill.publish`."""
        written = [each for each in messages if each is not None]
        partitions = [each.partition for each in written]
        if len({*partitions}) != len(partitions):
            raise LostRace("two attempts of a task report that they wrote; nothing was published")
        store, log = self._target.open()
        try:
            archives = [archive for each in written for archive in each.archives]
            backfill.publish(log, self._backfill, archives)
        finally:
            store.close()

    def abort(self, messages: list[Any]) -> None:
        """Does nothing: nothing was published, and no manifest names what was written."""


class _Task:
    """The files of one task, one for each map at a time."""

    def __init__(self, log: ClusterLog, of: Backfill, partition: int, folder: Path) -> None:
        self._log, self._of, self._partition, self._folder = log, of, partition, folder
        self._rows = 0
        self._files: dict[str, tuple[ParquetFile, int]] = {}
        self._lasts: dict[str, int] = {}
        self._done: list[Archive] = []

    def add(self, name: str, batch: Any, now_ms: int) -> None:
        """Append rows to the file of their map."""
        if not len(batch):
            return
        if batch["key"].null_count:
            raise InvalidSetting(f"a row of map {name!r} has no key")
        if name not in self._files:
            keys = keys_of(self._log.store)
            made = ParquetFile(self._folder, ARCHIVE_SCHEMA, keys, self._of.directory)
            self._files[name] = made, self._rows
        file, _ = self._files[name]
        deleted = pc.is_null(batch["value"])
        file.write(self._columns(name, batch, deleted, now_ms), pc.sum(deleted).as_py())
        self._rows += len(batch)
        self._lasts[name] = self._rows - 1
        if file.local.stat().st_size + file.buffered >= FILE_BYTES:
            self._publish(name)

    def end(self) -> tuple[Archive, ...]:
        """Publish all files under their names."""
        for name in list(self._files):
            self._publish(name)
        return tuple(self._done)

    def _publish(self, name: str) -> None:
        (file, first), last = self._files.pop(name), self._lasts.pop(name)
        store, node = self._log.store, self._of.folder(self._log)
        places = self._position(first), self._position(last)
        with ExitStack() as stack:
            stack.callback(file.local.unlink, missing_ok=True)
            nonce = self._log.randomness.token().hex()[:16]
            path = layout.part_path(node, name, nonce)
            published = file.publish(store, path)
        self._done.append(Archive(name, path, *places, file.records, file.tombstones, *published))

    def _position(self, row: int) -> Position:
        return Position(EPOCH, self._partition + 1, 0, row)

    def _columns(self, name: str, batch: Any, deleted: Any, now_ms: int) -> Any:
        count, start = len(batch), self._partition * ROWS_A_TASK + self._rows
        there = {each: batch[each] for each in batch.schema.names}

        def given(column: str, default: Any) -> Any:
            found = there.get(column)
            return pa.repeat(default, count) if found is None else pc.fill_null(found, default)

        expires = pc.if_else(deleted, 0, given("expires_at_ms", 0))
        numbers = pa.array(range(self._rows, self._rows + count), pa.int64())
        columns = {
            "map": pa.repeat(name, count),
            "key": there["key"],
            "key_class": given("key_class", RAW),
            "value": there["value"],
            "value_class": pc.if_else(deleted, "", given("value_class", RAW)),
            "deleted": deleted,
            "timestamp_ms": pa.repeat(now_ms, count),
            "expires_at_ms": expires,
            "partition": pa.repeat(0, count),
            "incarnation": pa.repeat(self._of.incarnation, count),
            "partition_version": pa.repeat(0, count),
            "session": pa.repeat(SESSION, count),
            "request": pc.add(numbers, start - self._rows + 1),
            "node": pa.repeat(self._of.node, count),
            "epoch": pa.repeat(EPOCH, count),
            "segment": pa.repeat(self._partition + 1, count),
            "frame": pa.repeat(0, count),
            "index": numbers,
        }
        return pa.record_batch(
            [columns[field.name].cast(field.type) for field in ARCHIVE_SCHEMA],
            schema=ARCHIVE_SCHEMA,
        )
