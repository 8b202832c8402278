"""A map as a Delta table: `_delta_log` beside the Parquet files of its snapshot, which stay as they
are. Each rewrite that was published is one version of the table.

Rows of the table are the live entries: if a file has tombstones, the table has a copy of it without
them. Entries that have expired since are still rows; `view` leaves them out.

    propose   a reader (`imap_wal.manifest.readers`) keeps the files of the new snapshot too
    look      is it still the snapshot of the map?
    commit    the next version of the table
    advance   the reader keeps the last snapshots that were published, and copies of them stay
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from imap_wal.errors import CorruptLog, InvalidSetting, LostRace
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import Change, Reader, with_base, without_bases
from imap_wal.manifest.snapshots import Snapshot, SnapshotFile
from imap_wal.names import map_component
from imap_wal.parquet.columns import DECODED_FIELDS, SNAPSHOT_SCHEMA
from imap_wal.publish.delta_log import (
    APP,
    Action,
    DeltaLog,
    TableState,
    commit_info,
    first_actions,
)
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.retention.kept import DAY_MS
from imap_wal.security.encryption_keys import NO_KEYS
from storage_backends import AlreadyExists, NotFound
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

KEEP = 3
COPIES = "published"
KEY, DELETED = "key", "deleted"
_TYPES = {"string": "string", "binary": "binary", "bool": "boolean", "int64": "long"}
COLUMNS: Mapping[str, str] = {
    field.name: _TYPES[str(field.type)] for field in (*SNAPSHOT_SCHEMA, *DECODED_FIELDS)
}
"""Column → type of Delta. Those of `DECODED_FIELDS` are NULL in files that do not have them."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What a publication did. `version`: of the table. `added`, `removed`, `kept`: files of the
    table; `copied`: how many of the added ones are copies without tombstones. `url`: where readers
    find the table. `view`: SQL for its live entries."""

    map: str
    url: str
    version: int
    generation: int
    added: int
    removed: int
    kept: int
    copied: int
    rows: int
    bytes: int
    is_new: bool
    """Whether a version was published: not if the table has this snapshot already."""
    view: str


def publish(
    log: ClusterLog, name: str, *, keep: int = KEEP, dry_run: bool = False
) -> PublishedTable:
    """Publish the current snapshot of a map. The files of the last `keep` published ones stay, so
    that queries under way find them. Several processes may publish at the same time.

    Raises `InvalidSetting` if the map has no snapshot that can be a table, `LostRace` if others
    published or rewrote during each attempt, and the errors of `ClusterLog.state`."""
    folder = f"{log.folder}/snapshot/{map_component(name)}"
    delta = DeltaLog(log.store, folder)
    reader = Reader(log.store, log.folder, f"delta {name}", log.clock, log.randomness)
    for _ in range(ATTEMPTS):
        table = delta.read()
        manifest = log.manifest()  # after the table: so it is not older than what was published
        snapshot = _demand_snapshot(log, manifest, name)
        if snapshot.generation < table.generation:
            raise InvalidSetting(
                f"map {name!r}: the table has generation {table.generation}, but the snapshot is "
                f"of generation {snapshot.generation}: the log is an older copy. Delete the folder "
                "_delta_log, and publish again"
            )
        base = Base({}, {}, {name: snapshot}, {}, (name,), {})
        if not dry_run:
            reader.keep(with_base(base), DAY_MS, files_only=True)
            now = log.manifest().snapshots.get(name)
            if now is None or now.generation != snapshot.generation:
                continue  # it stays: another process may have published it, or may do so now
        if snapshot.generation == table.generation:
            return _report(log, folder, name, snapshot, table, table, 0)
        try:
            actions, copied = _actions(log, folder, name, snapshot, table, dry_run)
            new = table.after(actions) if dry_run else delta.commit(table, actions)
        except (AlreadyExists, NotFound):
            continue  # another process published, or a prune removed what a newer snapshot has
        except InvalidSetting:  # no process can publish it
            if not dry_run:
                reader.keep(without_bases([base]), DAY_MS, files_only=True)
            raise
        if not dry_run:
            delta.finish(new, keep)
            published = _published(name, table.generation, snapshot.generation, keep)
            readable = reader.keep(published, DAY_MS, files_only=True)
            _remove_copies(log, folder, [base.snapshots[name] for base in readable])
        return _report(log, folder, name, snapshot, table, new, copied)
    raise LostRace(f"map {name!r} was rewritten or published by others at each attempt; try again")


def _published(name: str, former: int, generation: int, keep: int) -> Change:
    """What leaves the last `keep` snapshots that were published. `former`, `generation`: of the
    table before and after this commit. Those between them were proposed, and no process can commit
    them any more. Another process may still commit a newer one."""

    def change(bases: tuple[Base, ...]) -> tuple[Base, ...]:
        old = [base for base in bases if base.snapshots[name].generation <= former]
        now = [base for base in bases if base.snapshots[name].generation == generation]
        newer = [base for base in bases if base.snapshots[name].generation > generation]
        return (*[*old, *now][-keep:], *newer)

    return change


def _demand_snapshot(log: ClusterLog, manifest: ClusterManifest, name: str) -> Snapshot:
    if log.context.keys is not NO_KEYS:
        raise InvalidSetting(
            "the log is encrypted, and readers of tables have no keys for its files: it cannot be "
            "published"
        )
    snapshot = manifest.snapshots.get(name)
    if snapshot is None:
        raise InvalidSetting(f"map {name!r} has no snapshot yet: run `imap-wal rewrite` first")
    if snapshot.mixed:
        raise InvalidSetting(
            f"the snapshot of map {name!r} is of a repair, and may have several rows of one key: "
            "run `imap-wal rewrite` first"
        )
    if other := next((file.path for file in snapshot.files if _is_no_parquet(file)), ""):
        raise InvalidSetting(
            f"{other} is no Parquet file: run `imap-wal rewrite` where pyarrow is installed"
        )
    return snapshot


def _is_no_parquet(file: SnapshotFile) -> bool:
    return not file.path.endswith(".parquet")


def _actions(
    log: ClusterLog, folder: str, name: str, snapshot: Snapshot, table: TableState, dry_run: bool
) -> tuple[list[Action], int]:
    """What makes the table that of the snapshot, and how many copies of files were made."""
    now_ms = log.clock.now_ms()
    files: dict[str, Action] = {}
    copied = 0
    for file in snapshot.files:
        path = file.path.removeprefix(f"{folder}/")
        copy = f"{COPIES}/{path}"
        added = table.files.get(path) or table.files.get(copy)
        if added is None:
            content = _examined(log, name, file, several_nodes=len(snapshot.marks) > 1)
            if content.tombstones and content.rows:
                content = _copy(log, file, f"{folder}/{copy}", content.rows, dry_run=dry_run)
                copied, path = copied + 1, copy
            elif content.tombstones:
                continue  # it has nothing else
            added = content.action(path, now_ms)
        files[added["path"]] = added
    parameters = {
        "generation": str(snapshot.generation),
        **{f"position of {node}": str(mark.position) for node, mark in snapshot.marks.items()},
    }
    actions: list[Action] = [commit_info(now_ms, parameters)]
    if table.version < 0:
        actions += first_actions(_schema(), log.randomness.name(), name, now_ms)
    actions.append({"txn": {"appId": APP, "version": snapshot.generation, "lastUpdated": now_ms}})
    actions += [
        {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": True}}
        for path in table.files.keys() - files.keys()
    ]
    actions += [{"add": content} for path, content in files.items() if path not in table.files]
    return actions, copied


@dataclass(frozen=True, slots=True)
class _Content:
    """What the footer of a file says. `rows`: without tombstones."""

    size: int
    rows: int
    tombstones: int
    statistics: Mapping[str, Any]

    def action(self, path: str, now_ms: int) -> Action:
        return {
            "path": path,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": self.rows, **self.statistics}),
        }


def _examined(log: ClusterLog, name: str, file: SnapshotFile, *, several_nodes: bool) -> _Content:
    """Reads the footer; if there may be tombstones, their column too; and of several nodes the
    keys, because two of them may claim one. Raises `InvalidSetting` for such a key."""
    tombstones, former = 0, None  # the last key of the batch before; None: a clear
    with log.store.open_input(file.path) as source:
        parquet = pq.ParquetFile(source)
        if parquet.metadata.num_rows != file.rows:
            raise CorruptLog(
                file.path, 0, f"it has {parquet.metadata.num_rows} rows, not {file.rows}"
            )
        deletions = any(upper is not False for _, upper in _bounds(parquet.metadata, DELETED))
        columns = [*[DELETED] * deletions, *[KEY] * several_nodes]
        for batch in parquet.iter_batches(columns=columns) if columns else ():
            if deletions:
                tombstones += batch[DELETED].true_count
            if several_nodes:
                keys = batch[KEY]
                twice = pc.any(pc.equal(keys[1:], keys[:-1])).as_py()
                if twice or (former is not None and former == keys[0].as_py()):
                    raise InvalidSetting(
                        f"map {name!r} has keys that two nodes claim, so a key has several rows: "
                        "decide with `imap-wal rewrite --resolve` first"
                    )
                former = keys[-1].as_py()
        statistics = _statistics(parquet.metadata)
    return _Content(file.size, file.rows - tombstones, tombstones, statistics)


def _bounds(metadata: Any, column: str) -> Iterator[tuple[Any, Any]]:
    """The lowest and the highest value of a column in each row group; None: unknown."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            chunk = group.column(at)
            if chunk.path_in_schema == column:
                bounds = chunk.statistics
                has = bounds is not None and bounds.has_min_max
                yield (bounds.min, bounds.max) if has else (None, None)


def _statistics(metadata: Any) -> Mapping[str, Any]:
    """Of the columns of numbers, as Delta has them."""
    lows: dict[str, int] = {}
    highs: dict[str, int] = {}
    for column, kind in COLUMNS.items():
        bounds = [*_bounds(metadata, column)] if kind == "long" else []
        if bounds and all(low is not None for low, _ in bounds):
            lows[column] = min(low for low, _ in bounds)
            highs[column] = max(high for _, high in bounds)
    return {"minValues": lows, "maxValues": highs, "nullCount": dict.fromkeys(lows, 0)}


def _copy(log: ClusterLog, file: SnapshotFile, path: str, rows: int, *, dry_run: bool) -> _Content:
    """A copy of a file without its tombstones, one row group after the other."""
    if dry_run:
        return _Content(0, rows, 0, {})
    with TemporaryDirectory(prefix="imap-wal-") as scratch, log.store.open_input(file.path) as data:
        parquet, made = pq.ParquetFile(data), f"{scratch}/copy.parquet"
        with pq.ParquetWriter(made, parquet.schema_arrow, compression="zstd") as writer:
            for number in range(parquet.num_row_groups):
                group = parquet.read_row_group(number)
                writer.write_table(group.filter(pc.invert(group[DELETED])))
        metadata = pq.read_metadata(made)
        with suppress(AlreadyExists):  # of a publication that was killed before its commit
            log.store.create_from(path, made)
    return _Content(log.store.size(path), metadata.num_rows, 0, _statistics(metadata))


def _remove_copies(log: ClusterLog, folder: str, snapshots: Sequence[Snapshot]) -> None:
    """Delete the copies that are of no file of these snapshots."""
    wanted = {
        f"{folder}/{COPIES}/{path.removeprefix(f'{folder}/')}"
        for snapshot in snapshots
        for path in snapshot.paths
    }
    copies = log.store.list(f"{folder}/{COPIES}")
    log.store.discard_all([file.path for file in copies if file.path not in wanted])


def _schema() -> str:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in COLUMNS.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _report(
    log: ClusterLog,
    folder: str,
    name: str,
    snapshot: Snapshot,
    before: TableState,
    after: TableState,
    copied: int,
) -> PublishedTable:
    stats = [json.loads(content["stats"])["numRecords"] for content in after.files.values()]
    return PublishedTable(
        map=name,
        url=f"{log.store.url.rstrip('/')}/{folder}",
        version=after.version,
        generation=snapshot.generation,
        added=len(after.files.keys() - before.files.keys()),
        removed=len(before.files.keys() - after.files.keys()),
        kept=len(after.files.keys() & before.files.keys()),
        copied=copied,
        rows=sum(stats),
        bytes=sum(content["size"] for content in after.files.values()),
        is_new=after.version != before.version,
        view=(
            "SELECT * FROM the_table WHERE expires_at_ms = 0 "
            "OR expires_at_ms > (extract(epoch FROM now()) * 1000)"
        ),
    )
