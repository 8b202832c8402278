"""How long covered files are kept: `wal_ttl_seconds` and `wal_size_limit_mb`, with RocksDB's rules.

    both 0      only a compaction or `imap-wal prune` removes files
    ttl only    covered files that are older are removed
    size only   the oldest covered files are removed until the rest fits
    both        first the files that are too old, then the oldest until the rest fits

A file that no snapshot covers is never removed, whatever its age or size.
`imap_wal.write.maintenance` decides when this is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from imap_wal.format import START, Position
from imap_wal.manifest.node import node_manifests
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.retention.removal import Removal, plan_covered, remove
from imap_wal.retention.snapshots import demand_whole, remove_former
from imap_wal.settings import Settings
from storage_backends import StoredFile

MB = 1024 * 1024


def paths_to_remove(
    files: Iterable[StoredFile], now_ms: int, ttl_s: int, size_limit_mb: int
) -> set[str]:
    """Paths of the covered files to remove."""
    gone: set[str] = set()
    kept_bytes = 0
    for file in sorted(files, key=lambda file: (file.modified_ms, file.path), reverse=True):
        old = ttl_s > 0 and now_ms - file.modified_ms > ttl_s * 1000
        kept_bytes += 0 if old else file.size
        if old or (size_limit_mb > 0 and kept_bytes > size_limit_mb * MB):
            gone.add(file.path)
    return gone


def part_to_remove(
    log: ClusterLog, node: NodeState, removal: Removal, ttl_s: int, size_limit_mb: int
) -> Removal:
    """The part of `removal` that is to be removed by age and size."""
    files = {
        file.path: file
        for part in ("archive", "wal")
        for file in log.store.list(f"{node.folder}/{part}")
    }
    covered = [
        *(archive.path for archive in removal.archives),
        *(segment.path for segment in removal.segments),
    ]
    gone = paths_to_remove(
        (files[path] for path in covered if path in files), log.clock.now_ms(), ttl_s, size_limit_mb
    )
    # Segments are removed only in order: after a segment that is kept, all are kept.
    count = next(
        (index for index, segment in enumerate(removal.segments) if segment.path not in gone),
        len(removal.segments),
    )
    return Removal(
        tuple(archive for archive in removal.archives if archive.path in gone),
        removal.segments[:count],
        removal.summaries[:count],
    )


def remove_covered(log: ClusterLog, node_name: str, settings: Settings, writing: int) -> Removal:
    """For the writer of a node's log: remove covered files by age and size, and snapshot files that
    no reader needs any more. `writing`: number of the first segment that is not sealed. Raises
    `CorruptLog` for a damaged or missing file of a snapshot; nothing that it covers is removed
    then."""
    if not settings.wal_ttl_seconds and not settings.wal_size_limit_mb:
        return Removal()
    state = log.state()
    if not state.manifest.snapshots:
        return Removal()
    removal = _remove_files(log, state, node_name, settings, writing)
    remove_former(log)
    return removal


def _remove_files(
    log: ClusterLog, state: ClusterState, node_name: str, settings: Settings, writing: int
) -> Removal:
    node = state.nodes.get(node_name)
    covered = state.covered(node_name) if node is not None else {}
    if node is None or not covered:
        return Removal()
    writing = _first_that_stays(log, node, covered, settings, writing)
    plan = plan_covered(log.context, state, node_name, writing)
    removal = part_to_remove(log, node, plan, settings.wal_ttl_seconds, settings.wal_size_limit_mb)
    demand_whole(log, state.manifest, removal.maps)
    remove(
        log.store,
        node,
        node_manifests(log.store, node.folder, log.clock, log.randomness),
        removal,
        state.seen,
    )
    return removal


def _first_that_stays(
    log: ClusterLog,
    node: NodeState,
    covered: Mapping[str, Position],
    settings: Settings,
    writing: int,
) -> int:
    """The number of the first segment that is certainly kept. So that segment and the later ones
    are not read: only reading shows what a segment contains, and this function is called
    repeatedly."""
    last = max(covered.values())
    sealed = {
        segment.path: segment.number
        for segment in node.segments
        if segment.number < writing and (segment.epoch, segment.number) <= last[:2]
    }
    archives = {
        archive.path
        for archive in node.manifest.archives
        if archive.last <= covered.get(archive.map, START)
    }
    files = [
        file
        for part in ("archive", "wal")
        for file in log.store.list(f"{node.folder}/{part}")
        if file.path in archives or file.path in sealed
    ]
    gone = paths_to_remove(
        files, log.clock.now_ms(), settings.wal_ttl_seconds, settings.wal_size_limit_mb
    )
    if settings.wal_size_limit_mb and gone:
        return writing  # the sizes of all covered segments matter
    return min((number for path, number in sealed.items() if path not in gone), default=writing)
