"""A map as a table of other programs, whose commits name the Parquet files of its snapshot. Each
rewrite that was published is one version of the table; `delta` and `iceberg` write these versions.

Rows of the table are the live entries: if a file has tombstones, the table has a copy of it without
them. Entries that have expired since are still rows; the conditions in `LIVE` leave them out.

    examine   can the files be a table? What is refused changes nothing
    propose   a reader (`imap_wal.manifest.readers`) keeps the files of the new snapshot too
    look      is it still the snapshot of the map?
    commit    the copies, then the next version of the table
    advance   the reader keeps the last snapshots that were published, and copies of them stay
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from imap_wal.clock import Randomness
from imap_wal.errors import InvalidSetting, LostRace
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import Change, Reader, forget_command, readers_of
from imap_wal.manifest.snapshots import Snapshot, SnapshotFile
from imap_wal.names import NAME_BYTES_MAX, encode, map_component
from imap_wal.parquet.columns import DECODED_FIELDS, SNAPSHOT_SCHEMA, are_clears, plain
from imap_wal.parquet.file import demand_rows
from imap_wal.parquet.reader import reading
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.retention.kept import DAY_MS
from imap_wal.security.encryption_keys import NO_KEYS
from storage_backends import AlreadyExists, NotFound
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

KEEP = 3
NO_VERSION = 0
"""The highest version of a table that has none yet: -1 of Delta, 0 of Iceberg."""
COPIES = "published"
_COPY = re.compile(COPIES + r"/([0-9]{8,})-(.+)-[0-9a-f]+\.parquet")
KEY, DELETED, EXPIRES = "key", "deleted", "expires_at_ms"
LIVE: Mapping[str, str] = {
    "Spark": f"{EXPIRES} = 0 OR {EXPIRES} > unix_millis(current_timestamp())",
    "DuckDB": f"{EXPIRES} = 0 OR {EXPIRES} > epoch_ms(now())",
}
"""The condition of rows that have not expired, in SQL of these programs."""
_TYPES = {"string": "string", "binary": "binary", "bool": "boolean", "int64": "long"}
COLUMNS: Mapping[str, str] = {
    column.name: _TYPES[str(column.type)] for column in (*SNAPSHOT_SCHEMA, *DECODED_FIELDS)
}
"""Column → its type, as Delta and Iceberg name it. Those of `DECODED_FIELDS` are NULL in files that
do not have them."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. `path`: in the folder of the map's snapshots. `statistics`: of the columns
    of numbers, as Delta has them; only of a file that is added now."""

    path: str
    size: int
    rows: int
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table has at its newest version; 0 or -1, as the format counts: there is none yet.
    `generation`: of the snapshot that was published last. `files`: by path."""

    version: int = -1
    generation: int = 0
    files: Mapping[str, DataFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NextVersion:
    """What one commit changes. `parameters`: what the commit says about the log."""

    generation: int
    added: Sequence[DataFile]
    gone: Sequence[str]
    parameters: Mapping[str, str]

    def after(self, former: TableState) -> TableState:
        files = {path: file for path, file in former.files.items() if path not in self.gone}
        files |= {file.path: file for file in self.added}
        return TableState(former.version + 1, self.generation, files)


class LakeTable(Protocol):
    """A table in the format of other programs, of one map. `kind` and `name` are its identity.
    `place`: where programs find it, a path, a URL or a name in a catalog."""

    kind: str
    place: str

    @property
    def name(self) -> str: ...

    def make(self) -> bool:
        """Make an empty table, if there was none at the last `read` and its identity needs one.
        True: read again."""
        ...

    def read(self) -> TableState:
        """Raises `InvalidSetting` for a table that is not of this map or that another program has
        changed, and `CorruptLog`."""
        ...

    def commit(self, former: TableState, following: NextVersion, keep: int) -> TableState:
        """Publish the version after `former`, so that the last `keep` ones stay readable. A commit
        whose answer was lost is found. Raises `AlreadyExists` if another process has published."""
        ...

    def expire(self, keep: int) -> None:
        """Remove versions whose files are not kept any more from the table. Raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What a publication did. `version`: of the table. `added`, `removed`, `kept`: files of the
    table; `copied`: how many of the added ones are copies without tombstones. `bytes`: in a dry
    run, copies count as the files that they are of. `place`: see `LakeTable`; names in a path or a
    URL are percent-encoded. `live`: see `LIVE`."""

    map: str
    place: str
    version: int
    generation: int
    added: int
    removed: int
    kept: int
    copied: int
    rows: int
    bytes: int
    until_ms: int
    """Unix time up to which the snapshot has changes; 0: not known."""
    is_new: bool
    """Whether there is a new version: of a new snapshot, or because copies were lost."""
    live: Mapping[str, str]


def folder_of(log: ClusterLog, name: str) -> str:
    """The folder of a map's snapshots."""
    return f"{log.folder}/snapshot/{map_component(name)}"


def publish(
    log: ClusterLog,
    name: str,
    table: LakeTable,
    *,
    keep: int = KEEP,
    dry_run: bool = False,
    again: bool = True,
) -> PublishedTable:
    """Publish the current snapshot of a map. The files of the last `keep` published ones stay, so
    that queries under way find them. Several processes may publish at the same time. `again`: make
    a table anew that was published before and is gone from its catalog.

    Raises `InvalidSetting` if the map has no snapshot that can be a table, `LostRace` if others
    published or rewrote during each attempt, `CorruptLog` and `ShortLog` for a file that is damaged
    or lost, and the errors of `LakeTable.read` and `ClusterLog.state`."""
    folder = folder_of(log, name)
    for _ in range(ATTEMPTS):
        former = table.read()
        manifest = log.manifest()  # after the table: so it is not older than what was published
        snapshot = _demand_snapshot(log, manifest, name)
        if _is_of_a_later_log(folder, snapshot, former):
            same = snapshot.generation == former.generation
            raise InvalidSetting(
                f"map {name!r}: the table was published from a newer copy of the log (generation "
                f"{former.generation}; this one has {snapshot.generation}"
                f"{', with other files' * same}). Drop "
                f"the table {table.place} without its files (of Delta: delete the folder "
                "_delta_log), and publish again"
            )
        base = Base({}, {}, {name: snapshot}, {}, (name,), {})
        lost = _lost_copies(log, folder, former)
        is_new = snapshot.generation > former.generation or bool(lost)
        try:
            present, new = _files(log, folder, name, snapshot, former, lost) if is_new else ([], [])
        except NotFound as error:
            now = log.manifest().snapshots.get(name)
            if now is not None and now.generation == snapshot.generation:
                raise log.lost(error) from error
            continue
        if not dry_run:
            if not again and former.version <= NO_VERSION:
                _demand_first(log, table)
            if table.make():
                continue
            reader = Reader(log.store, log.folder, _reader_name(table), log.clock, log.randomness)
            reader.keep(_proposed(name, base), DAY_MS, files_only=True)
            now = log.manifest().snapshots.get(name)
            if now is None or now.generation != snapshot.generation:
                continue  # the proposal stays: another process may commit it, or has done so
        if not is_new:
            if not dry_run:  # the process that published may have ended before it did this
                table.expire(keep)
                _advance(
                    log,
                    folder,
                    name,
                    reader,
                    _published(name, former.generation - 1, former.generation, keep),
                )
            return _report(name, table.place, snapshot, former, former, 0)
        try:
            added = [file.published(log, folder, dry_run=dry_run) for file in new]
            following = _following(snapshot, former, present, added)
            after = following.after(former) if dry_run else table.commit(former, following, keep)
        except (AlreadyExists, NotFound):
            continue  # another process published, or a prune removed what a newer snapshot has
        if not dry_run:
            table.expire(keep)
            published = _published(name, former.generation, snapshot.generation, keep)
            _advance(log, folder, name, reader, published)
        copied = sum(file.is_copied for file in new)
        return _report(name, table.place, snapshot, former, after, copied)
    raise LostRace(f"map {name!r} was rewritten or published by others at each attempt; try again")


def _demand_first(log: ClusterLog, table: LakeTable) -> None:
    """`InvalidSetting` if a table of this place was published before: a program whose catalog is
    another one, or was lost, must not begin a second table on its own."""
    start = f"{table.kind} {table.place} "
    former = [name for name in readers_of(log.store, log.folder) if name.startswith(start)]
    if former:
        raise InvalidSetting(
            f"table {table.place} was published before ({former[0]!r}), and is not in its catalog "
            "now: check the settings of the catalog; or run `imap-wal publish` by hand, which "
            f"makes it anew, and `{forget_command(*former)}`"
        )


def _is_of_a_later_log(folder: str, snapshot: Snapshot, former: TableState) -> bool:
    """Whether the table was published from a log that had more than this one: a backup of the log
    was restored. Generations alone do not say so, because they are assigned again."""
    if snapshot.generation != former.generation:
        return snapshot.generation < former.generation
    files = {stored.path.removeprefix(f"{folder}/") for stored in snapshot.files}
    return not {_source("", path) for path in former.files} <= files


def _lost_copies(log: ClusterLog, folder: str, former: TableState) -> set[str]:
    """The copies of the table that are not there, because they are in no backup, or were deleted
    with another table of the map."""
    copies = {path for path in former.files if _source("", path) != path}
    if not copies:
        return copies
    there = {file.path.removeprefix(f"{folder}/") for file in log.store.list(f"{folder}/{COPIES}")}
    return copies - there


def _advance(log: ClusterLog, folder: str, name: str, reader: Reader, change: Change) -> None:
    """The reader keeps what `change` leaves, and copies of other files are deleted."""
    # Listed before the readers are asked: so each copy is of a snapshot that was proposed before.
    # Those of other tables of this map are in the same folder.
    copies = [file.path for file in log.store.list(f"{folder}/{COPIES}")]
    reader.keep(change, DAY_MS, files_only=True)
    bases = [base for each in readers_of(log.store, log.folder).values() for base in each.bases]
    kept = [base.snapshots[name] for base in bases if name in base.snapshots]
    wanted = {path for snapshot in kept for path in snapshot.paths}
    log.store.discard_all([path for path in copies if _source(folder, path) not in wanted])


def _reader_name(table: LakeTable) -> str:
    """The reader that keeps the files of a table. Its folder name is bounded, as that of a map."""
    reader = f"{table.kind} {table.name}"
    if len(encode(reader)) <= NAME_BYTES_MAX:
        return reader
    return f"{reader[:12]}~{sha256(table.name.encode()).hexdigest()}"


def _proposed(name: str, new: Base) -> Change:
    """Keeps another snapshot too. Nothing changes if it is kept already: another map's rewrite
    changes its marks, and not its files. Nor if a newer one is kept, because this one is then
    outdated, and would be counted among the published ones."""
    generation = new.snapshots[name].generation

    def change(bases: tuple[Base, ...]) -> tuple[Base, ...]:
        newest = max((base.snapshots[name].generation for base in bases), default=0)
        return (*bases, new) if generation > newest else bases

    return change


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
            f"the snapshot of map {name!r} was written by a repair, and may have several "
            "rows for one key: run `imap-wal rewrite` first"
        )
    if other := next((file.path for file in snapshot.files if _is_no_parquet(file)), ""):
        raise InvalidSetting(
            f"{other} is no Parquet file: run `imap-wal rewrite` where pyarrow is installed"
        )
    return snapshot


def _is_no_parquet(file: SnapshotFile) -> bool:
    return not file.path.endswith(".parquet")


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a snapshot that becomes one of the table. `path`: in the folder. `rows`: without
    `tombstones`; clears are among these."""

    path: str
    size: int
    rows: int
    tombstones: int
    statistics: Mapping[str, Any]

    @property
    def is_copied(self) -> bool:
        return self.tombstones > 0

    def published(self, log: ClusterLog, folder: str, *, dry_run: bool) -> DataFile:
        """The file of the table. One with tombstones is copied without them before, if this is no
        `dry_run`."""
        if not self.is_copied:
            return DataFile(self.path, self.size, self.rows, self.statistics)
        path, size, statistics = _copy_path(self.path, log.randomness), self.size, self.statistics
        if not dry_run:
            size, statistics = _copy(log, f"{folder}/{self.path}", f"{folder}/{path}")
        return DataFile(path, size, self.rows, statistics)


def _files(
    log: ClusterLog,
    folder: str,
    name: str,
    snapshot: Snapshot,
    former: TableState,
    lost: Collection[str],
) -> tuple[list[str], list[_File]]:
    """Splits the files of a snapshot: the paths, in the table, of those that it has already, and
    the other files with live entries. `lost`: see `_lost_copies`."""
    there = {_source("", path): path for path in former.files if path not in lost}
    present, new = list[str](), list[_File]()
    for stored in snapshot.files:
        path = stored.path.removeprefix(f"{folder}/")
        if path in there:
            present.append(there[path])
            continue
        file = _examined(log, name, stored, path, several_nodes=len(snapshot.marks) > 1)
        if file.rows:
            new.append(file)
    return present, new


def _copy_path(path: str, randomness: Randomness) -> str:
    """A new path for a copy. No two publications use the same one, so none deletes a copy at a path
    that another one writes to."""
    stem = path.removesuffix(".parquet").replace("/", "-")
    return f"{COPIES}/{stem}-{randomness.token().hex()}.parquet"


def _source(folder: str, path: str) -> str:
    """The path of the file of which this is a copy; `path` if it is none."""
    start = f"{folder}/" if folder else ""
    matched = _COPY.fullmatch(path.removeprefix(start))
    return path if matched is None else f"{start}{matched[1]}/{matched[2]}.parquet"


def _following(
    snapshot: Snapshot, former: TableState, present: Sequence[str], added: Sequence[DataFile]
) -> NextVersion:
    """What makes the table that of the snapshot."""
    parameters = {
        "generation": str(snapshot.generation),
        **{f"position of {node}": str(mark.position) for node, mark in snapshot.marks.items()},
    }
    gone = sorted(former.files.keys() - set(present))
    return NextVersion(snapshot.generation, added, gone, parameters)


def _examined(
    log: ClusterLog, name: str, stored: SnapshotFile, path: str, *, several_nodes: bool
) -> _File:
    """Reads the footer; if there may be tombstones, their column too; and of several nodes the
    keys, because two of them may claim one. Raises `InvalidSetting` for such a key, `NotFound`,
    and `CorruptLog`."""
    tombstones, former = 0, None  # the last key of the batch before
    with reading(log.context, stored.path, 0, "") as parquet:
        for rows in (stored.rows, parquet.metadata.num_rows):
            demand_rows(parquet, stored.path, rows)
        deletions = any(upper is not False for _, upper in _bounds(parquet.metadata, DELETED))
        columns = [DELETED] * deletions
        if several_nodes:
            columns = [KEY, DELETED, EXPIRES]
        for batch in parquet.iter_batches(columns=columns) if columns else ():
            tombstones += batch[DELETED].true_count
            if several_nodes:
                keys = batch[KEY].filter(pc.invert(are_clears(batch)))  # which have the same key
                twice = pc.any(pc.equal(keys[1:], keys[:-1])).as_py()
                if twice or (former is not None and keys and former == keys[0].as_py()):
                    raise InvalidSetting(
                        f"map {name!r} has keys that two nodes claim, so a key has several rows: "
                        "decide with `imap-wal rewrite --resolve` first"
                    )
                former = keys[-1].as_py() if keys else former
        statistics = _statistics(parquet.metadata)
    return _File(path, stored.size, stored.rows - tombstones, tombstones, statistics)


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


def _copy(log: ClusterLog, path: str, copy: str) -> tuple[int, Mapping[str, Any]]:
    """Write a copy of a file without its tombstones, one row group after the other. Returns its
    size and statistics."""
    with (
        TemporaryDirectory(prefix="imap-wal-") as scratch,
        reading(log.context, path, 0, "") as file,
    ):
        made = f"{scratch}/copy.parquet"
        schema = file.schema.to_arrow_schema().remove_metadata()
        with pq.ParquetWriter(made, schema, compression="zstd") as writer:
            for number in range(file.num_row_groups):
                for batch in file.iter_batches(row_groups=[number]):
                    live = plain(batch.filter(pc.invert(batch[DELETED])))
                    writer.write_batch(pa.record_batch(live.columns, schema=schema))
        statistics = _statistics(pq.read_metadata(made))
        log.store.create_from(copy, made)
    return log.store.size(copy), statistics


def _report(
    name: str,
    place: str,
    snapshot: Snapshot,
    before: TableState,
    after: TableState,
    copied: int,
) -> PublishedTable:
    return PublishedTable(
        map=name,
        place=place,
        version=after.version,
        generation=after.generation,
        added=len(after.files.keys() - before.files.keys()),
        removed=len(before.files.keys() - after.files.keys()),
        kept=len(after.files.keys() & before.files.keys()),
        copied=copied,
        rows=sum(file.rows for file in after.files.values()),
        bytes=sum(file.size for file in after.files.values()),
        until_ms=snapshot.until_ms,
        is_new=after.version != before.version,
        live=LIVE,
    )
