"""The base of the present, or of a former state of the maps (`imap_wal.manifest.readers`)."""

from __future__ import annotations

from collections.abc import Collection

from imap_wal.format import START, Position
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.read.state import ClusterState


def base_of(
    state: ClusterState, covering: ClusterState, maps: Collection[str] | None, former: Base | None
) -> Base:
    """The base that has the snapshots of `covering`: those of `state`, or former ones. `former`:
    the base until now."""
    manifest = covering.manifest
    snapshots = {
        name: snapshot
        for name, snapshot in manifest.snapshots.items()
        if maps is None or name in maps
    }
    # A map without a snapshot is only known to have no entries up to the mark of all maps.
    absent = maps is None or any(name not in snapshots for name in maps)
    positions = {}
    for node in covering.nodes:
        lowest = [_mark(snapshot, node, covering) for snapshot in snapshots.values()]
        if absent:
            lowest.append(covering.complete(node))
        least = former.positions.get(node, START) if former is not None else START
        positions[node] = max(least, min(lowest, default=START))
    used = {snapshot.versions for snapshot in snapshots.values()}
    return Base(
        positions,
        state.removed(),
        snapshots,
        {number: table for number, table in manifest.versions.items() if number in used},
        None if maps is None else tuple(sorted(maps)),
        dict(manifest.losses),
    )


def _mark(snapshot: Snapshot, node: str, state: ClusterState) -> Position:
    """The position up to which a snapshot covers a node's log."""
    mark = snapshot.marks.get(node)
    is_of_log = mark is not None and mark.directory == state.nodes[node].manifest.directory
    return mark.position if mark is not None and is_of_log else START
