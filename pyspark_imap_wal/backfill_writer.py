"""`df.write.format("imap_wal")`: a backfill of a closed log (`imap_wal.retention.backfill`)."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from imap_wal import layout
from imap_wal.entry import KEY_CLASS, RAW, VALUE_CLASS
from imap_wal.errors import InvalidSetting, LostRace
from imap_wal.manifest.list_files import Archive
from imap_wal.names import check_map_name
from imap_wal.parquet.archive_rows import WAITING_SCHEMA, write_sorted
from imap_wal.parquet.columns import ARCHIVE_SCHEMA
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.view import MaterializedView
from imap_wal.retention import backfill
from imap_wal.retention.archive_writer import COLUMN_BYTES_MAX, FULL
from imap_wal.retention.backfill import EPOCH, SESSION, Backfill
from imap_wal.rules.valid import demand_known_class, demand_valid_rows
from imap_wal.settings import Settings
from pyspark_imap_wal.columns import EntryQuery, read_columns
from pyspark_imap_wal.options import opened_log
from storage_backends.location import Location

BYTES_MAX = Settings().max_value_bytes
"""Of key and value of a row, as of every program that does not raise it."""
BATCH_BYTES = 8 * 1024
"""About how much memory a batch needs besides its rows."""
WAITING_BYTES = 2 * FULL
"""The rows of all maps that a task keeps in memory. Above it, the largest map gets a file."""
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
    classes: dict[str, str]
    """The class of each map."""


@dataclass(frozen=True)
class Target:
    """The destination of a backfill. `map`: of rows without a column map. `place`: the root with
    the options that the driver has."""

    place: Location
    namespace: str
    cluster: str
    map: str = ""


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
                    + ", ".join(f"{column_} {of}" for column_, of in TAKEN.items())
                )
        if not {"key", "value"} <= kinds.keys() or ("map" in kinds) == bool(target.map):
            raise InvalidSetting(
                "a backfill needs the columns key and value, and the name of the map: the "
                "option map, or a column map"
            )
        if target.map:
            check_map_name(target.map)
        layout.Identity(target.namespace, target.cluster, "backfill").check()
        with opened_log(target.place, target.namespace, target.cluster) as log:
            self._target = Target(log.context.place, target.namespace, target.cluster, target.map)
            self._backfill: Backfill = backfill.begin(log)
            self._classes = classes_of(log, [target.map]) if target.map else {}
            self._now_ms = log.clock.now_ms()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """The rows of a task, as archives that no manifest names yet."""
        context = TaskContext.get()
        assert context is not None
        return self.of_partition(context.partitionId(), iterator)

    def of_partition(self, partition: int, batches: Iterator[Any]) -> Written:
        """`write` of one partition. Raises `InvalidSetting` if a row has no map or no key."""
        target = self._target
        with (
            opened_log(target.place, target.namespace, target.cluster) as log,
            tempfile.TemporaryDirectory(prefix="imap-wal-backfill-") as folder,
        ):
            task = _Task(log, self._backfill, partition, Path(folder), self._classes)
            for batch in batches:
                for name, rows in self._by_map(batch):
                    task.add(name, rows, self._now_ms)
            return Written(partition, task.end(), task.classes)

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
        written = [message for message in messages if message is not None]
        partitions = [message.partition for message in written]
        if len({*partitions}) != len(partitions):
            raise LostRace("two attempts of a task report that they wrote; nothing was published")
        target = self._target
        with opened_log(target.place, target.namespace, target.cluster) as log:
            self._demand_one_class(log, [message.classes for message in written])
            archives = [archive for message in written for archive in message.archives]
            backfill.publish(log, self._backfill, archives)

    def _demand_one_class(self, log: ClusterLog, of_tasks: Sequence[Mapping[str, str]]) -> None:
        """Raise `InvalidSetting` unless each map has one class in all tasks, and that of its
        entries in the log."""
        labels: dict[str, str] = {}
        for classes in of_tasks:
            for name, label in classes.items():
                demand_known_class(name, label, {labels.setdefault(name, label)})
        in_logs = classes_of(log, sorted(labels.keys() - self._classes.keys()))
        for name, in_log in in_logs.items():
            demand_class_of_map(log, name, labels[name], in_log)

    def abort(self, messages: list[Any]) -> None:
        """Does nothing: nothing was published, and no manifest names what was written."""


class _Task:
    """The files of one task: sorted runs, as an archive run writes them."""

    def __init__(
        self,
        log: ClusterLog,
        of: Backfill,
        partition: int,
        folder: Path,
        known_classes: Mapping[str, Collection[str]],
    ) -> None:
        """`known_classes`: the classes of maps in the log, as far as the driver knows them."""
        self._log, self._of, self._partition, self._folder = log, of, partition, folder
        self._known = known_classes
        self.classes: dict[str, str] = {}
        self._rows = 0
        self._waiting: dict[str, list[Any]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        """All of them together."""
        self._done: list[Archive] = []

    def add(self, name: str, batch: Any, now_ms: int) -> None:
        """Take rows of a map."""
        if not len(batch):
            return
        if batch["key"].null_count:
            raise InvalidSetting(f"a row of map {name!r} has no key")
        rows = self._columns(name, batch, pc.is_null(batch["value"]), now_ms)
        label = self.classes.get(name)
        demand_valid_rows(name, rows, BYTES_MAX, () if label is None else (label,))
        if label is None:
            label = self.classes[name] = rows["key_class"][0].as_py()
            demand_class_of_map(self._log, name, label, self._known.get(name, ()))
        size = rows.nbytes + BATCH_BYTES
        if name in self._sizes and self._sizes[name] + size > COLUMN_BYTES_MAX:
            self._publish(name)
        self._waiting.setdefault(name, []).append(rows)
        self._sizes[name] = self._sizes.get(name, 0) + size
        self._size += size
        self._rows += len(batch)
        if self._sizes[name] >= FULL:
            self._publish(name)
        while self._size >= WAITING_BYTES:
            self._publish(max(self._sizes, key=self._sizes.__getitem__))

    def end(self) -> tuple[Archive, ...]:
        """Publish all files under their names."""
        for name in list(self._waiting):
            self._publish(name)
        return tuple(self._done)

    def _publish(self, name: str) -> None:
        rows, size = self._waiting.pop(name), self._sizes.pop(name)
        self._size -= size
        store, node = self._log.store, self._of.folder(self._log)
        file = ParquetFile(self._folder, ARCHIVE_SCHEMA, self._log.context.keys, self._of.directory)
        with ExitStack() as stack:
            stack.callback(file.local.unlink, missing_ok=True)
            places = write_sorted(file, rows, name, self._of.node)
            nonce = self._log.randomness.token().hex()[:16]
            path = layout.part_path(node, name, nonce)
            published = file.publish(store, path)
        counts = file.records, file.tombstones
        self._done.append(Archive(name, path, *places, *counts, *published, max(size, 1)))

    def _columns(self, name: str, batch: Any, deleted: Any, now_ms: int) -> Any:
        count, start = len(batch), self._partition * ROWS_A_TASK + self._rows
        there = {name: batch[name] for name in batch.schema.names}

        def given(column: str, default: Any) -> Any:
            values = there.get(column)
            return pa.repeat(default, count) if values is None else pc.fill_null(values, default)

        expires = pc.if_else(deleted, 0, given("expires_at_ms", 0))
        numbers = pa.array(range(self._rows, self._rows + count), pa.int64())
        columns = {
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
            "epoch": pa.repeat(EPOCH, count),
            "segment": pa.repeat(self._partition + 1, count),
            "frame": pa.repeat(0, count),
            "index": numbers,
        }
        return pa.record_batch(
            [columns[field.name].cast(field.type) for field in WAITING_SCHEMA],
            schema=WAITING_SCHEMA,
        )


# Which classes the entries of a map have: a backfill must not mix classes in a map.

_COLUMNS = pa.schema(
    [
        ("map", pa.string()),
        ("key_class", pa.string()),
        ("value_class", pa.string()),
        ("deleted", pa.bool_()),
    ]
)


def classes_of(log: ClusterLog, names: Iterable[str]) -> dict[str, set[str]]:
    """Map → all classes that its entries in the log have or had. Reads no keys and no values of
    archives and snapshots."""
    classes: dict[str, set[str]] = {name: set() for name in names}
    if not classes:
        return classes
    query = EntryQuery(_COLUMNS, maps=tuple(classes))
    for scan, source in ahead(log.context, cluster_scans(log.state(), maps=tuple(classes))):
        for batch in read_columns(log, scan, query, source):
            rows = pa.Table.from_batches([batch.filter(pc.invert(batch["deleted"]))])
            groups = rows.group_by(["map", "key_class", "value_class"]).aggregate([])
            for group in groups.to_pylist():
                classes[group["map"]] |= {group["key_class"], group["value_class"]}
    return classes


def demand_class_of_map(
    log: ClusterLog, name: str, class_label: str, known_classes: Collection[str]
) -> None:
    """Raise `InvalidSetting` unless the live entries of a map have this class. `known_classes`:
    from `classes_of`. A map that was emptied may get another class, so its live entries are read if
    `known_classes` does not decide."""
    if {*known_classes} <= {class_label}:
        return
    with closing(MaterializedView(log, Settings())) as view:
        view.catch_up()
        live = {
            label
            for rows in view.rows(name)
            for row in rows
            for label in (row[KEY_CLASS], row[VALUE_CLASS])
        }
    try:
        demand_known_class(name, class_label, live)
        if len(live) > 1:
            demand_known_class(name, class_label, live - {class_label})
    except InvalidSetting as error:
        raise InvalidSetting(
            f"{error}; a backfill has the class raw unless it passes the columns key_class and "
            "value_class"
        ) from error
