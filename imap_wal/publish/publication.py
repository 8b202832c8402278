"""A map as a table of other programs, whose commits name the Parquet files of its snapshot. Each
rewrite that was published is one version of the table; `delta` and `iceberg` write these versions.

Rows of the table are the live entries: if a file has tombstones, the table has a copy of it without
them. Expired entries can still be rows; the conditions in `LIVE` leave them out.

    examine   can the files be a table? What is refused changes nothing
    propose   a reader (`imap_wal.manifest.readers`) keeps the files of the new snapshot too
    look      is it still the snapshot of the map?
    commit    the copies, then the next version of the table
    advance   the reader keeps the last snapshots that were published, and copies of them stay
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from imap_wal.errors import InvalidSetting, LostRace
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import Change, Reader, forget_command, readers_of
from imap_wal.manifest.snapshots import Snapshot, SnapshotFile
from imap_wal.names import NAME_BYTES_MAX, encode
from imap_wal.publish.lake_table import (
    LIVE,
    DataFile,
    LakeTable,
    NextVersion,
    TableState,
    folder_of,
)
from imap_wal.publish.snapshot_files import COPIES, examined_files, lost_copies, source_of
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.retention.kept import DAY_MS
from imap_wal.security.encryption_keys import NO_KEYS
from storage_backends import AlreadyExists, NotFound

KEEP = 3
ID_BYTES = len("%20") + 8
"""Of a space and an id in the name of a reader's folder."""


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
        lost = lost_copies(log, folder, former)
        is_new = snapshot.generation > former.generation or bool(lost)
        try:
            present, new = (
                examined_files(log, folder, name, snapshot, former, lost) if is_new else ([], [])
            )
        except NotFound as error:
            now = log.manifest().snapshots.get(name)
            if now is not None and now.generation == snapshot.generation:
                raise log.lost(error) from error
            continue
        if not dry_run:
            if table.is_missing:
                if not again:
                    _demand_first(log, table)
                table.make()
                continue
            reader = Reader(log.context, log.folder, _reader_name(table))
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
    start = f"{_known_as(table)} "
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
    return not {source_of("", path) for path in former.files} <= files


def _advance(log: ClusterLog, folder: str, name: str, reader: Reader, change: Change) -> None:
    """The reader keeps what `change` leaves, and copies of other files are deleted."""
    # Listed before the readers are asked: so each copy is of a snapshot that was proposed before.
    # Those of other tables of this map are in the same folder.
    copies = [file.path for file in log.store.list(f"{folder}/{COPIES}")]
    reader.keep(change, DAY_MS, files_only=True)
    wanted = {
        path
        for manifest in readers_of(log.store, log.folder).values()
        for base in manifest.bases
        if name in base.snapshots
        for path in base.snapshots[name].paths
    }
    log.store.discard_all([path for path in copies if source_of(folder, path) not in wanted])


def _reader_name(table: LakeTable) -> str:
    """The reader that keeps the files of a table."""
    return " ".join(filter(None, (_known_as(table), table.id)))


def _known_as(table: LakeTable) -> str:
    """What the readers of all tables of this kind and name begin with. It is bounded, as the folder
    of a map, and leaves room for an id."""
    called = f"{table.kind} {table.name}"
    if len(encode(called)) <= NAME_BYTES_MAX - ID_BYTES:
        return called
    return f"{called[:12]}~{sha256(table.name.encode()).hexdigest()}"


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
