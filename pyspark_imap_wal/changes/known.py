"""Which files have the state of the maps at given positions.

    at or above the marks of a map's snapshot   the snapshot, and the log from its marks to there
    below them                                  a former snapshot, as long as its files, and the log
                                                above its marks, are still there

A prune deletes both, unless a registered reader has them as its base (`imap_wal.manifest.readers`).
Without them the state is no longer known: a snapshot has only the newest entry of each key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from imap_wal.errors import InvalidSetting, LogError
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.snapshots import PartitionVersions, Snapshot
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState

Places = Mapping[str, Position]


def planned(
    log: ClusterLog,
    state: ClusterState,
    start: Places | None,
    end: Places,
    maps: Collection[str] | None,
    base: Base | None = None,
) -> tuple[list[FileScan], list[FileScan]]:
    """The files with the state of the maps at `start`, and those with the entries from there to
    `end`. `start` None: the maps were empty. `base`: what is kept for the reader. Raises
    `InvalidSetting`."""
    if start is None:
        return [], cluster_scans(state, until=end, maps=maps)
    known_state = None
    if base is not None and is_below(base, state, start):
        # Even if there are newer snapshots: a batch that is read again must have the same rows.
        known_state = with_base(log, state, base, maps)
    known_state = known_state or known_at(log, state, start, maps)
    return (
        cluster_scans(known_state, until=start, maps=maps),
        cluster_scans(known_state, since=start, until=end, maps=maps, snapshots=False),
    )


def known_at(
    log: ClusterLog, state: ClusterState, places: Places, maps: Collection[str] | None
) -> ClusterState:
    """The logs with snapshots that cover nothing above `places`. Raises `InvalidSetting` if there
    is no such snapshot of a map."""
    snapshots: dict[str, Snapshot] = dict(state.manifest.snapshots)
    late = {
        name
        for name, snapshot in snapshots.items()
        if (maps is None or name in maps) and not _is_within(state, snapshot, places)
    }
    if not late:
        return state
    versions: dict[int, PartitionVersions] = dict(state.manifest.versions)
    for former in log.manifests.former():
        for name in sorted(late):
            snapshot = former.snapshots.get(name)
            if snapshot is not None and not _is_within(state, snapshot, places):
                continue
            if not _is_there(log, state, name, snapshot):
                raise _unknown(state.manifest, name, places)
            late.discard(name)
            del snapshots[name]
            if snapshot is not None:
                snapshots[name] = snapshot
                versions = {**former.versions, **versions}
        if not late:
            manifest = replace(state.manifest, snapshots=snapshots, versions=versions, all_maps={})
            return replace(state, manifest=manifest)
    raise _unknown(state.manifest, min(late), places)


def with_base(
    log: ClusterLog, state: ClusterState, base: Base, maps: Collection[str] | None
) -> ClusterState | None:
    """The logs with the snapshots of a base. None if the base lacks one of these maps, because the
    query followed fewer when the base was made, or if a part of the base was removed."""
    if not base.has(maps):
        return None
    now = state.manifest.snapshots
    for name, snapshot in base.snapshots.items():
        current = now.get(name)
        if current is not None and current.dropped != snapshot.dropped:
            return None
        there = set(current.paths) if current is not None else set()
        try:
            whole = all(path in there or log.store.exists(path) for path in snapshot.paths)
        except LogError:
            whole = False  # a list of its files is damaged
        if not whole:
            return None
    for node, removed in state.removed().items():
        held = base.positions.get(node, START), base.removed.get(node, START)
        if removed > max(held):
            return None
    manifest = replace(
        state.manifest,
        snapshots=base.snapshots,
        versions={**state.manifest.versions, **base.versions},
        all_maps={},
    )
    return replace(state, manifest=manifest)


def is_below(base: Base, state: ClusterState, places: Places) -> bool:
    """Whether the snapshots of a base cover nothing above these positions."""
    return all(_is_within(state, snapshot, places) for snapshot in base.snapshots.values())


def _is_within(state: ClusterState, snapshot: Snapshot, places: Places) -> bool:
    """Whether a snapshot covers nothing above these positions."""
    return all(
        mark.position <= places.get(node, START)
        for node, mark in snapshot.marks.items()
        if (node in state.nodes and state.nodes[node].manifest.directory == mark.directory)
        or (node not in state.nodes and node in places)
    )


def _is_there(log: ClusterLog, state: ClusterState, name: str, snapshot: Snapshot | None) -> bool:
    """Whether a map's former snapshot and the log above it are complete: no file was removed, and
    no drop removed the entries."""
    marks = {} if snapshot is None else snapshot.marks
    dropped = 0 if snapshot is None else snapshot.dropped
    return (
        state.manifest.snapshots[name].dropped == dropped
        and all(
            removed <= (marks[node].position if node in marks else START)
            for node, removed in state.removed().items()
        )
        and all(log.store.exists(path) for path in (() if snapshot is None else snapshot.paths))
    )


def demand_undropped(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> None:
    """Raises `InvalidSetting` if a map was dropped between two offsets: a drop has no
    entry, so there would be no image. None: not known."""
    if before is None or after is None:
        return
    for name, generation in sorted(after.items()):
        if generation != before.get(name, 0):
            raise InvalidSetting(
                f"map {name!r} was dropped (generation {generation}) since the images before its "
                "changes were read, and a drop has no images. Start the query again; a stream, "
                "without its checkpoint"
            )


def _unknown(manifest: ClusterManifest, name: str, places: Places) -> InvalidSetting:
    snapshot = manifest.snapshots[name]
    marks = snapshot.marks
    node = next(mark for mark in sorted(marks) if marks[mark].position > places.get(mark, START))
    cause = "a drop" if snapshot.dropped == snapshot.generation else "a rewrite"
    return InvalidSetting(
        f"the images before the changes of map {name!r} are no longer known from position "
        f"{places.get(node, START)} of node {node!r} on: {cause} covered the log up to "
        f"{marks[node].position}, and what came before was removed. Start the query again; a "
        "stream, without its checkpoint. With the option `reader`, a stream that has begun keeps "
        "what it needs"
    )
