"""Removing what a snapshot covers: archives, sealed segments, former snapshots. Safe beside a running service and beside readers.

The manifest first, then the files: who reads meanwhile finds a file gone, reads the manifests again, and finds all of it in the snapshot. A crash in between leaves files that
no manifest names; the owner's next archive run, or the next prune, deletes them.
"""

from __future__ import annotations

from imap_wal import layout
from imap_wal.manifest import Archive, node_manifests
from imap_wal.removal import plan_covered, remove
from imap_wal.restore import ClusterLog, ClusterState
from imap_wal.retention import only_outlived
from rewrite_cli.report import PruneReport
from storage_backends import StoredFile

ORPHAN_MS = 24 * 3_600_000
"""Files of an unpublished generation are taken for a rewrite under way until they are this old."""


def prune(log: ClusterLog, *, dry_run: bool = False, ttl_s: int = 0, size_limit_mb: int = 0) -> PruneReport:
    """Remove what every reader finds in a snapshot; with `ttl_s` or `size_limit_mb` only what outlived them (`imap_wal.retention`). A node whose
    log is missing, or stands on another disk, is left alone (`skipped` says why)."""
    state = log.state()
    segments: list[str] = []
    archives: list[Archive] = []
    total = 0
    for node in state.nodes.values():
        covered = state.covered(node.name)
        # The newest segment may be being written, and stays.
        removal = plan_covered(log.store, node, covered, writing=node.segments[-1].number if node.segments else 0)
        if ttl_s or size_limit_mb:
            removal = only_outlived(log, node, removal, ttl_s, size_limit_mb)
        if not dry_run:
            remove(log.store, node, node_manifests(log.store, node.folder, log.clock, log.randomness), removal, state.seen)
        archives += removal.archives
        segments += [piece.path for piece in removal.segments]
        total += removal.bytes
    orphans = _former_snapshots(log, state)
    if not dry_run:
        for file in orphans:
            log.store.delete(file.path)
    return PruneReport(
        namespace=log.namespace,
        cluster=log.cluster,
        segments=tuple(segments),
        archives=tuple(archive.path for archive in archives),
        snapshot_files=tuple(file.path for file in orphans),
        bytes=total + sum(file.size for file in orphans),
        skipped=state.missing,
        dry_run=dry_run,
    )


def _former_snapshots(log: ClusterLog, state: ClusterState) -> list[StoredFile]:
    """Files of generations that were replaced, and of rewrites that died."""
    found = []
    current = {path for snapshot in state.manifest.snapshots.values() for path in snapshot.files}
    newest = {name: snapshot.generation for name, snapshot in state.manifest.snapshots.items()}
    now_ms = log.clock.now_ms()
    for file in log.store.list(f"{log.folder}/snapshot"):
        *_, name, generation, _ = file.path.split("/")
        if file.path in current or not generation.isdigit():
            continue
        former = int(generation) < newest.get(layout.decode(name), 0)  # whoever still writes to it has lost the race
        if former or (file.modified_ms and file.modified_ms < now_ms - ORPHAN_MS):
            found.append(file)
    return found
