"""Drops a map, by publishing an empty snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from imap_wal.errors import LogError
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.snapshots import NO_VERSIONS, LowWaterMark, PartitionVersions, Snapshot
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.plan import ATTEMPTS, is_of_members, known_versions, raise_versions
from imap_wal.rewrite.publish import with_table
from imap_wal.rewrite.report import DropReport
from imap_wal.settings import RecoveryPolicy
from storage_backends import NotFound


def drop_map(
    log: ClusterLog, name: str, *, policy: RecoveryPolicy = RecoveryPolicy.FULL
) -> DropReport:
    """Drop all current entries of a map. Later changes count, unless their member had lost the
    partition before. `prune` frees the space. Raises `MissingNode` if a log is missing, unless
    `policy` is `PARTIAL`."""
    for attempt in range(ATTEMPTS):
        before = log.manifest()
        ends = log.ends()
        state = log.state()
        state.demand(policy)
        try:
            table = _versions_of(log, state, name, ends, before)
            break
        except NotFound:  # a prune has deleted a file
            if attempt == ATTEMPTS - 1:
                raise
    generation = 0

    def change(manifest: ClusterManifest) -> ClusterManifest:
        nonlocal generation
        former = manifest.snapshots.get(name)
        covered = dict(former.marks) if former is not None else {}
        for node, found in state.nodes.items():
            covered[node] = LowWaterMark(
                found.manifest.directory,
                max(ends.get(node, START), covered[node].position if node in covered else START),
            )
        generation = manifest.generation + 1
        now_ms = log.clock.now_ms()
        number, versions = with_table(
            manifest, generation, table.raised(manifest.versions_of(name).pairs.items())
        )
        snapshot = Snapshot(
            generation,
            (),
            covered,
            0,
            0,
            0,
            now_ms,
            dropped=generation,
            until_ms=now_ms,
            versions=number,
        )
        return replace(
            manifest.with_snapshot(name, snapshot), versions=versions
        ).without_unused_tables()

    log.manifests.update(change)
    return DropReport(name, generation, ends)


def _versions_of(
    log: ClusterLog,
    state: ClusterState,
    name: str,
    ends: Mapping[str, Position],
    before: ClusterManifest,
) -> PartitionVersions:
    """The partition versions that apply above `ends`. `before`: the manifest that was read before
    `ends`. A damaged file is skipped, because it may be the reason for the drop."""
    if state.missing or not is_of_members(state.manifest):
        return NO_VERSIONS
    pairs: dict[int, tuple[int, int]] = {}
    for scan, store in ahead(log.store, cluster_scans(state, until=ends, maps=(name,))):
        with suppress(LogError):
            for changes in log.read_on(scan, (name,), store=store):
                raise_versions(pairs, changes.rows)
    return known_versions(before).raised(pairs.items())
