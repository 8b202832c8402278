"""Removes what snapshots cover: archives, sealed segments, former snapshots; and what ended
backfills left. Writers and readers may run at the same time.

First the snapshot is read (`imap_wal.retention.snapshots`), then the manifest is changed, then the
files are deleted. A reader that finds a file missing reads the manifests again, and finds the
entries in the snapshot. A crash in between leaves files that no manifest names; the writer's next
archive run, or the next prune, deletes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from imap_wal.clock import SKEW_MS_MAX, demand_clock
from imap_wal.format import END, START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.retention.backfill import ended_backfills, remove_ended
from imap_wal.retention.kept import kept_for_readers
from imap_wal.retention.removal import Removal, part_to_remove, plan_covered, remove
from imap_wal.retention.snapshots import ORPHAN_MS, demand_whole, remove_former, unfinished
from imap_wal.rewrite.report import PruneReport
from storage_backends import NotFound

NOT_KNOWN: Mapping[str, int] = MappingProxyType({})


def prune(
    log: ClusterLog,
    *,
    dry_run: bool = False,
    check: bool = True,
    ttl_s: int = 0,
    size_limit_mb: int = 0,
    skew_ms_max: int = SKEW_MS_MAX,
    unsealed: Mapping[str, int] = NOT_KNOWN,
    forgotten: Collection[str] = (),
    orphan_ms: int = ORPHAN_MS,
    nodes: Collection[str] = (),
) -> PruneReport:
    """Remove covered files; with `ttl_s` (seconds) or `size_limit_mb` (MiB), only those beyond
    these limits (`imap_wal.retention.removal`). A node whose log is missing, or cannot be read
    is skipped (`skipped` says why), and so are files reached through a symbolic link. `check`: a
    dry run also reads the files of the snapshots. `unsealed`: node → the number of its first
    segment that is not sealed, if its writer passes it; otherwise the newest segment is kept,
    because it may be in use. `skew_ms_max`: in milliseconds. `forgotten`: readers for
    which nothing is kept, as if they were forgotten before. `orphan_ms`: the files of an unfinished
    rewrite are removed if it has written nothing for this long. `nodes`: files of these only; none:
    of all.

    Raises `CorruptLog` for a damaged or missing file of a snapshot; nothing that it covers is
    removed then. With `ttl_s`, raises `InvalidSetting` if this machine's clock differs from the
    storage's by more than `skew_ms_max`. Raises the errors of `ClusterLog.state`, too."""
    if ttl_s and not dry_run:
        demand_clock(log.store, log.folder, log.clock, log.randomness, skew_ms_max)
    state = log.state()
    segments: list[str] = []
    archives: list[str] = []
    total = 0
    for name in sorted(nodes or state.nodes):
        if name not in state.nodes:
            continue  # it was forgotten, or its disk is away, since `state` was first read
        state, removal = _planned(
            log, state, name, unsealed.get(name), ttl_s, size_limit_mb, forgotten
        )
        node = state.nodes[name]
        if check or not dry_run:
            demand_whole(log, state.manifest, removal.maps)
        sizes = {archive.path: archive.bytes for archive in removal.archives}
        sizes |= {segment.path: segment.bytes for segment in removal.segments}
        gone = set(sizes)
        if not dry_run:
            manifests = NodeManifestLog(log.context, node.folder)
            gone = remove(log.store, node, manifests, removal, state.seen)
        archives += [archive.path for archive in removal.archives if archive.path in gone]
        segments += [scan.path for scan in removal.segments if scan.path in gone]
        total += sum(sizes[path] for path in gone)
    if not dry_run:
        _drop_lifetimes(log)
    orphans = remove_former(
        log, dry_run=dry_run, check=check, forgotten=forgotten, orphan_ms=orphan_ms
    )
    left = list(ended_backfills(log, dry_run=dry_run))
    of_backfills = {file.path: file.size for backfill in left for file in backfill.files}
    if not dry_run:
        gone = {path for backfill in left for path in remove_ended(log, backfill)}
        of_backfills = {path: size for path, size in of_backfills.items() if path in gone}
    return PruneReport(
        namespace=log.namespace,
        cluster=log.cluster,
        segments=tuple(segments),
        archives=tuple(archives),
        snapshot_files=tuple(file.path for file in orphans),
        backfill_files=tuple(of_backfills),
        bytes=total + sum(file.size for file in orphans) + sum(of_backfills.values()),
        skipped=state.missing,
        dry_run=dry_run,
        kept=kept_for_readers(log, forgotten),
        unfinished=unfinished(log, [file.path for file in orphans], forgotten),
    )


def _planned(
    log: ClusterLog,
    state: ClusterState,
    name: str,
    unsealed: int | None,
    ttl_s: int,
    size_limit_mb: int,
    forgotten: Collection[str],
) -> tuple[ClusterState, Removal]:
    """What to remove of a node, and the state by which it was planned: a newer one, if the node's
    manifest has named other list files for longer than those of `state` are kept."""
    for attempt in range(ATTEMPTS):
        node = state.nodes[name]
        newest = node.segments[-1].number if node.segments else 0
        try:
            removal = plan_covered(
                log.context,
                state,
                name,
                writing=newest if unsealed is None else unsealed,
                forgotten=forgotten,
            )
            if ttl_s or size_limit_mb:
                removal = part_to_remove(log, node, removal, ttl_s, size_limit_mb)
        except NotFound:
            if attempt == ATTEMPTS - 1:
                raise
            again = log.state()
            if name not in again.nodes:  # it was forgotten, or its disk is away
                raise
            state = again
        else:
            return state, removal
    raise AssertionError


def _drop_lifetimes(log: ClusterLog) -> None:
    """Remove lifetimes of Hazelcast clusters from the cluster's manifest if no entry depends on
    them any more: on each node, everything up to the next lifetime's cutoff was removed."""
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
                    lifetime for lifetime in manifest.lifetimes if lifetime.incarnation not in gone
                ),
            )

        log.manifests.update(change)


def _oldest(node: NodeState) -> Position:
    """A position at or before the oldest remaining entry of a node's log."""
    firsts = [archive.first for archive in node.manifest.archives]
    firsts += [Position(segment.epoch, segment.number, 0, 0) for segment in node.segments[:1]]
    return min(firsts, default=END)
