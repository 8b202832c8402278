"""How long files stay that a snapshot covers: `wal_ttl_seconds` and `wal_size_limit_mb`, with RocksDB's rules.

    both 0      nothing is removed but by `imap-wal prune`
    ttl only    a covered file goes when it is older
    size only   the oldest covered files go until the rest takes no more
    both        first those that are too old, then the oldest until the rest takes no more

What no snapshot covers is never removed, whatever its age or size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from imap_wal.manifest import node_manifests
from imap_wal.pieces import Piece
from imap_wal.removal import Removal, plan_removal, remove
from imap_wal.restore import ClusterLog
from imap_wal.settings import Settings
from storage_backends import SegmentStore, StoredFile

MB = 1024 * 1024


def outlived(files: Iterable[StoredFile], now_ms: int, ttl_s: int, size_limit_mb: int) -> set[str]:
    """Paths of the covered files that go."""
    gone: set[str] = set()
    kept = 0
    for file in sorted(files, key=lambda file: (file.modified_ms, file.path), reverse=True):
        old = ttl_s > 0 and now_ms - file.modified_ms > ttl_s * 1000
        kept += 0 if old else file.size
        if old or (size_limit_mb > 0 and kept > size_limit_mb * MB):
            gone.add(file.path)
    return gone


def stored(store: SegmentStore, node_folder: str) -> dict[str, StoredFile]:
    """A node's archives and segments as they stand on storage, by path."""
    return {file.path: file for part in ("archive", "wal") for file in store.list(f"{node_folder}/{part}")}


def oldest_segments(segments: Sequence[Piece], gone: set[str]) -> int:
    """How many of a node's oldest segments go: a segment stays if one before it stays."""
    for count, segment in enumerate(segments):
        if segment.path not in gone:
            return count
    return len(segments)


def remove_outlived(log: ClusterLog, node_name: str, settings: Settings, writing: int) -> Removal:
    """For a node's owner: remove what is covered and has outlived its time or its room. `writing`: number of the first segment that is not sealed."""
    if not settings.wal_ttl_seconds and not settings.wal_size_limit_mb:
        return Removal()
    state = log.state()
    node = state.nodes.get(node_name)
    covered = state.covered(node_name) if node is not None else {}
    if node is None or not covered:
        return Removal()
    plan = plan_removal(log.store, node, covered=covered, writing=writing)
    files = stored(log.store, node.folder)
    candidates = [files[path] for path in [*(each.path for each in plan.archives), *(each.path for each in plan.segments)] if path in files]
    gone = outlived(candidates, log.clock.now_ms(), settings.wal_ttl_seconds, settings.wal_size_limit_mb)
    count = oldest_segments(plan.segments, gone)
    removal = Removal(tuple(each for each in plan.archives if each.path in gone), plan.segments[:count], plan.summaries[:count])
    remove(log.store, node, node_manifests(log.store, node.folder, log.clock, log.randomness), removal)
    return removal
