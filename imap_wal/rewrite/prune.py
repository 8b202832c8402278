"""Removing what a snapshot covers: archives, sealed segments, former snapshots. Safe beside a
running service and beside readers.

The snapshot is read first (`imap_wal.retention.snapshots`). Then the manifest, then the files: a
reader that finds a file missing reads the manifests again, and finds its entries in the snapshot. A
crash in between leaves files that no manifest names; the owner's next archive run, or the next
prune, deletes them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import node_manifests
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import END
from imap_wal.read.state import NodeState
from imap_wal.retention.policy import only_expired
from imap_wal.retention.removal import plan_covered, remove
from imap_wal.retention.snapshots import demand_whole, remove_former
from imap_wal.rewrite.report import PruneReport
from imap_wal.storage_clock import SKEW_MS_MAX, demand_clock


def prune(
    log: ClusterLog,
    *,
    dry_run: bool = False,
    check: bool = True,
    ttl_s: int = 0,
    size_limit_mb: int = 0,
    skew_ms_max: int = SKEW_MS_MAX,
) -> PruneReport:
    """Remove what every reader finds in a snapshot; with `ttl_s` or `size_limit_mb` only what
    outlived them (`imap_wal.retention.policy`). A node whose log is missing, or is on another disk,
    is left alone (`skipped` says why), and so is what is behind a symbolic link. `CorruptLog` names
    a file of a snapshot that is not whole: nothing that it covers is removed; without `check`, a
    dry run does not read these files. With `ttl_s`, `InvalidSetting` when this machine's clock
    differs from the storage's by more than `skew_ms_max`."""
    if ttl_s and not dry_run:
        demand_clock(log.store, log.folder, log.clock, log.randomness, skew_ms_max)
    state = log.state()
    segments: list[str] = []
    archives: list[str] = []
    total = 0
    for node in state.nodes.values():
        covered = state.covered(node.name)
        # The newest segment may be being written, and stays.
        removal = plan_covered(
            log.store, node, covered, writing=node.segments[-1].number if node.segments else 0
        )
        if ttl_s or size_limit_mb:
            removal = only_expired(log, node, removal, ttl_s, size_limit_mb)
        if check or not dry_run:
            demand_whole(log, state.manifest, removal.maps)
        sizes = {archive.path: archive.bytes for archive in removal.archives} | {
            segment.path: segment.bytes for segment in removal.segments
        }
        gone = set(sizes)
        if not dry_run:
            gone = remove(
                log.store,
                node,
                node_manifests(log.store, node.folder, log.clock, log.randomness),
                removal,
                state.seen,
            )
        archives += [archive.path for archive in removal.archives if archive.path in gone]
        segments += [piece.path for piece in removal.segments if piece.path in gone]
        total += sum(sizes[path] for path in gone)
    if not dry_run:
        _drop_lifetimes(log)
    orphans = remove_former(log, dry_run=dry_run, check=check)
    return PruneReport(
        namespace=log.namespace,
        cluster=log.cluster,
        segments=tuple(segments),
        archives=tuple(archives),
        snapshot_files=tuple(file.path for file in orphans),
        bytes=total + sum(file.size for file in orphans),
        skipped=state.missing,
        dry_run=dry_run,
    )


def _drop_lifetimes(log: ClusterLog) -> None:
    """Take out of the cluster's manifest those lifetimes of Hazelcast clusters that no entry is
    judged by any more: of each node, everything up to the next lifetime's cut was removed."""
    state = log.state()
    lifetimes = state.manifest.lifetimes
    if state.missing or len(lifetimes) < 2:
        return
    oldest = {node.name: _oldest(node) for node in state.nodes.values()}
    gone = {
        lifetime.incarnation
        for lifetime, following in pairwise(lifetimes)
        if all(oldest[node] > following.cuts.get(node, START) for node in state.nodes)
    }
    if gone:

        def change(manifest: ClusterManifest) -> ClusterManifest:
            return replace(
                manifest,
                lifetimes=tuple(
                    each for each in manifest.lifetimes if each.incarnation not in gone
                ),
            )

        log.manifests.update(change)


def _oldest(node: NodeState) -> Position:
    """Where the oldest entry may be that is left of a node's log."""
    firsts = [archive.first for archive in node.manifest.archives]
    firsts += [Position(each.epoch, each.number, 0, 0) for each in node.segments[:1]]
    return min(firsts, default=END)
