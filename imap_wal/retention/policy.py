"""How long files stay that a snapshot covers: `wal_ttl_seconds` and `wal_size_limit_mb`, with
RocksDB's rules.

    both 0      nothing is removed but by `imap-wal prune`
    ttl only    a covered file goes when it is older
    size only   the oldest covered files go until the rest takes no more
    both        first those that are too old, then the oldest until the rest takes no more

What no snapshot covers is never removed, whatever its age or size. When the node's owner looks,
`imap_wal.write.maintenance` says.
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


def expired(files: Iterable[StoredFile], now_ms: int, ttl_s: int, size_limit_mb: int) -> set[str]:
    """Paths of the covered files that go."""
    gone: set[str] = set()
    kept = 0
    for file in sorted(files, key=lambda file: (file.modified_ms, file.path), reverse=True):
        old = ttl_s > 0 and now_ms - file.modified_ms > ttl_s * 1000
        kept += 0 if old else file.size
        if old or (size_limit_mb > 0 and kept > size_limit_mb * MB):
            gone.add(file.path)
    return gone


def only_expired(
    log: ClusterLog, node: NodeState, removal: Removal, ttl_s: int, size_limit_mb: int
) -> Removal:
    """Of what is covered, what goes by age and size."""
    files = {
        file.path: file
        for part in ("archive", "wal")
        for file in log.store.list(f"{node.folder}/{part}")
    }
    covered = [
        *(archive.path for archive in removal.archives),
        *(segment.path for segment in removal.segments),
    ]
    gone = expired(
        (files[path] for path in covered if path in files), log.clock.now_ms(), ttl_s, size_limit_mb
    )
    # A segment stays if one before it stays.
    count = next(
        (index for index, segment in enumerate(removal.segments) if segment.path not in gone),
        len(removal.segments),
    )
    return Removal(
        tuple(each for each in removal.archives if each.path in gone),
        removal.segments[:count],
        removal.summaries[:count],
    )


def remove_expired(log: ClusterLog, node_name: str, settings: Settings, writing: int) -> Removal:
    """For a node's owner: remove what is covered and has expired, and
    snapshot files that no reader needs any more. `writing`: number of the first segment that is not
    sealed. `CorruptLog` names a file of a snapshot that is not whole: nothing that it covers is
    removed."""
    if not settings.wal_ttl_seconds and not settings.wal_size_limit_mb:
        return Removal()
    state = log.state()
    if not state.manifest.snapshots:
        return Removal()
    removal = _remove_covered(log, state, node_name, settings, writing)
    remove_former(log)
    return removal


def _remove_covered(
    log: ClusterLog, state: ClusterState, node_name: str, settings: Settings, writing: int
) -> Removal:
    node = state.nodes.get(node_name)
    covered = state.covered(node_name) if node is not None else {}
    if node is None or not covered:
        return Removal()
    writing = _first_that_stays(log, node, covered, settings, writing)
    plan = plan_covered(log.store, node, covered, writing)
    removal = only_expired(log, node, plan, settings.wal_ttl_seconds, settings.wal_size_limit_mb)
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
    """Number of the first segment that need not be read to know that it stays: only reading tells
    what a segment holds, and this is asked again and again."""
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
    gone = expired(files, log.clock.now_ms(), settings.wal_ttl_seconds, settings.wal_size_limit_mb)
    if settings.wal_size_limit_mb and gone:
        return writing  # what takes how much is told by what is covered
    return min((number for path, number in sealed.items() if path not in gone), default=writing)
