"""Publishes the snapshots of a rewrite, after checking that no conflicting change was published
meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.disposal import dispose
from imap_wal.errors import CorruptLog, LostRace, ShortLog
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.snapshots import (
    NO_VERSIONS,
    LowWaterMark,
    PartitionVersions,
    Snapshot,
    SnapshotFile,
)
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SNAPSHOT, FileScan
from imap_wal.read.scan import check_snapshot
from imap_wal.rewrite.plan import Merged, Part, Result, RewritePlan
from imap_wal.rewrite.report import MapRewrite
from imap_wal.security.encryption import sealed_border
from storage_backends import NotFound, StorageError


def confirm(log: ClusterLog, plan: RewritePlan, result: Result) -> None:
    """Check that every new file exists with the bytes and rows that were written: by reading it
    again, or by its size if a task has read it. Raises `CorruptLog`, `ShortLog`, and `LostRace` if
    a prune treated this rewrite as dead, or another rewrite published first."""
    for item in result.maps:
        for part in item.parts:
            try:
                if part.is_kept or result.confirmed:
                    _confirm_size(log, part)
                else:
                    read_again(log.context, part)
            except NotFound as error:
                manifest = log.manifest()
                demand_floor(manifest, plan)
                demand_former(manifest, plan, [item.map])
                kind = "kept file of the former" if part.is_kept else "new file of the"
                reason = f"this {kind} snapshot disappeared before it was published"
                raise ShortLog(part.path, 0, reason, _advice(part)) from error


def _advice(part: Part) -> str:
    mend = "bring the file back from a copy" if part.is_kept else "run the rewrite again"
    return f"nothing was published; {mend}"


def read_again(context: Context, part: Part) -> None:
    """Read a new file. Raises `NotFound`, and `CorruptLog` if it differs from what was written."""
    check_snapshot(
        context, FileScan(SNAPSHOT, "", part.path, records=part.rows, checksum=part.checksum)
    )


def _confirm_size(log: ClusterLog, part: Part) -> None:
    """Check a file by its size: its content was read when it was new. Raises `NotFound` and
    `CorruptLog`."""
    size = log.store.size(part.path)
    if size != part.bytes:
        raise CorruptLog(
            part.path,
            0,
            f"this file of the snapshot has {size} bytes, but was written with {part.bytes}",
            _advice(part),
        )


def demand_floor(manifest: ClusterManifest, plan: RewritePlan) -> None:
    """Raises `LostRace` if files of this generation may have been deleted."""
    if plan.generation < manifest.orphan_floor:
        raise LostRace(
            f"a prune treated this rewrite (generation {plan.generation}) as dead, and may have "
            "deleted its files; nothing was published; run it again"
        )


def demand_former(manifest: ClusterManifest, plan: RewritePlan, maps: Iterable[str]) -> None:
    """Raises `LostRace` if a map has another snapshot than when this rewrite began."""
    for name in maps:
        if manifest.snapshots.get(name) != plan.state.manifest.snapshots.get(name):
            raise LostRace(
                f"map {name!r} was rewritten or dropped by another process while this "
                "rewrite read; run it again"
            )


def publish(log: ClusterLog, plan: RewritePlan, result: Result) -> ClusterManifest:
    """Publish the new snapshots, all or none. Raises `LostRace`."""
    before = plan.state.manifest
    made = {item.map: _snapshot(log, plan, item) for item in result.maps}
    table = plan.versions.raised(result.pairs) if plan.versions is not None else NO_VERSIONS

    def change(manifest: ClusterManifest) -> ClusterManifest:
        number, versions = with_table(manifest, plan.generation, table)
        snapshots = {
            name: replace(snapshot, versions=number)
            if snapshot.generation == plan.generation and table.pairs
            else snapshot
            for name, snapshot in made.items()
        }
        if all(manifest.snapshots.get(name) == snapshot for name, snapshot in snapshots.items()):
            return manifest  # it was published, only the response was lost
        demand_floor(manifest, plan)
        if any(
            lifetime not in before.lifetimes for lifetime in manifest.lifetimes
        ):  # a prune may remove older ones
            raise LostRace("a new cluster lifetime began while this rewrite read; run it again")
        if manifest.nodes != before.nodes:
            raise LostRace("nodes joined or left the log while this rewrite read; run it again")
        demand_former(manifest, plan, snapshots)
        left = {**manifest.snapshots, **snapshots}
        clears = manifest.clears or any(part.clears for item in result.maps for part in item.parts)
        all_maps = manifest.all_maps
        if plan.maps is None:
            raised = _raised(all_maps, plan)
            all_maps = {node: raised[node] for node in raised if node in manifest.nodes}
        covered = [plan.state.nodes[node].manifest for node in plan.until]
        return (
            replace(manifest, snapshots=left, versions=versions, clears=clears, all_maps=all_maps)
            .without_unused_tables()
            .with_epochs(covered)
        )

    return log.manifests.update(change)


def with_table(
    manifest: ClusterManifest, generation: int, table: PartitionVersions
) -> tuple[int, dict[int, PartitionVersions]]:
    """The number of a table (0 if it is empty), and all tables. Equal tables are stored once."""
    versions = dict(manifest.versions)
    if not table.pairs:
        return 0, versions
    for number, stored in versions.items():
        if stored == table:
            return number, versions
    return generation, {**versions, generation: table}


def discard(log: ClusterLog, plan: RewritePlan) -> None:
    """Delete the files of a rewrite that was certainly not published. A later prune deletes those
    that cannot be deleted now."""
    if plan.generation:
        with suppress(StorageError):
            named = {
                path for snapshot in log.manifest().snapshots.values() for path in snapshot.paths
            }
            for file in log.store.list(f"{plan.folder}/snapshot"):
                number = layout.snapshot_place(file.path)[1]
                if number == plan.generation and file.path not in named:
                    dispose(log.store, [file.path], f"{plan.folder}/snapshot")
            for file in log.store.list(layout.set_aside_folder(plan.folder)):
                if file.path.split("/")[-1].startswith(f"{plan.generation:08d}-"):
                    log.store.delete(file.path)


def marks(plan: RewritePlan, name: str) -> dict[str, LowWaterMark]:
    """The low-water marks of a map's new snapshot. A node that was not read keeps the mark of the
    former snapshot."""
    former = plan.state.manifest.snapshots.get(name)
    return _raised(former.marks if former is not None else {}, plan)


def _raised(former: Mapping[str, LowWaterMark], plan: RewritePlan) -> dict[str, LowWaterMark]:
    """Marks up to which this rewrite has read, where they are higher."""
    raised = dict(former)
    for node, position in plan.until.items():
        directory = plan.state.nodes[node].manifest.directory
        mark = raised.get(node)
        if mark is None or mark.directory != directory or mark.position < position:
            raised[node] = LowWaterMark(directory, position)
    return raised


def _snapshot(log: ClusterLog, plan: RewritePlan, item: Merged) -> Snapshot:
    former = plan.state.manifest.snapshots.get(item.map)
    if item.unchanged and former is not None:
        return replace(former, marks=marks(plan, item.map))
    keys = log.context.keys
    return Snapshot(
        generation=plan.generation,
        files=Listed(
            SnapshotFile(
                part.path,
                part.checksum,
                part.bytes,
                part.rows,
                sealed_border(keys, part.lower) if part.lower and number else "",
                part.first_expiry_ms,
            )
            for number, part in enumerate(item.parts)
        ),
        marks=marks(plan, item.map),
        live=sum(part.live for part in item.parts),
        tombstones=sum(part.tombstones for part in item.parts),
        bytes=sum(part.bytes for part in item.parts),
        created_ms=log.clock.now_ms(),
        dropped=former.dropped if former is not None else 0,
        until_ms=plan.rule.now_ms,
        versions=former.versions if former is not None else 0,
        last_expiry_ms=latest_expiry(part.last_expiry_ms for part in item.parts),
    )


def latest_expiry(expiries: Iterable[int]) -> int:
    """The latest expiry; 0: one of them never expires, or the list is empty."""
    times = list(expiries)
    return max(times) if times and all(times) else 0


def archived_bytes(plan: RewritePlan) -> Mapping[str, int]:
    """Map → the size of the archives that its new snapshot covers. Raises `NotFound` if a list of
    archives was deleted, which may happen long after the plan."""
    covered: dict[str, Mapping[str, LowWaterMark]] = {}
    sizes: Counter[str] = Counter()
    for node in plan.state.nodes.values():
        for archive in node.manifest.archives:
            if archive.map not in covered:
                covered[archive.map] = marks(plan, archive.map)
            mark = covered[archive.map].get(node.name)
            if mark is not None and archive.last <= mark.position:
                sizes[archive.map] += archive.bytes
    return sizes


def report_of(plan: RewritePlan, item: Merged, archived: int) -> MapRewrite:
    """`archived`: of `archived_bytes`."""
    former = plan.state.manifest.snapshots.get(item.map)
    before = item.read_bytes + archived + (former.bytes if former is not None else 0)
    if item.unchanged and former is not None:
        return MapRewrite(
            item.map,
            former.live + former.tombstones,
            former.live,
            former.tombstones,
            before,
            former.bytes,
            former.generation,
            former.paths,
            True,
        )
    return MapRewrite(
        item.map,
        item.records,
        sum(part.live for part in item.parts),
        sum(part.tombstones for part in item.parts),
        before,
        sum(part.bytes for part in item.parts),
        plan.generation,
        tuple(part.path for part in item.parts),
        records_kept=sum(part.rows for part in item.parts if part.is_kept),
        bytes_written=sum(part.bytes for part in item.parts if not part.is_kept),
    )
