"""Drops a map, by publishing an empty snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from imap_wal.entry import ORDER, Row
from imap_wal.errors import InvalidSetting, LogError, LostRace
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.snapshots import NO_VERSIONS, LowWaterMark, PartitionVersions, Snapshot
from imap_wal.names import STREAM_MAPS, partition_count
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.plan import ATTEMPTS, first_unfinished, is_of_members, known_versions
from imap_wal.rewrite.publish import with_table
from imap_wal.rewrite.report import DropReport
from imap_wal.rewrite.tally import raise_versions
from imap_wal.rules.dropped import may_have_later_copies
from imap_wal.settings import RecoveryPolicy
from storage_backends import NotFound


def drop_map(
    log: ClusterLog,
    name: str,
    *,
    policy: RecoveryPolicy = RecoveryPolicy.FULL,
    dry_run: bool = False,
) -> DropReport:
    """Drop all current entries of a map. Later changes count, unless their member had lost the
    partition before. `prune` frees the space. `dry_run`: only check that it can be dropped; the
    report has generation 0 then.

    Raises `MissingNode` if a log is missing, unless `policy` is `PARTIAL`; `InvalidSetting` if
    copies of its changes may still be appended; and `LostRace`."""
    for attempt in range(ATTEMPTS):
        before = log.manifest()
        ends = log.ends()
        state = log.state()
        state.demand_all(policy)
        if any(map(partition_count, state.nodes)) and name in STREAM_MAPS:
            raise InvalidSetting(
                f"map {name!r} is a part of the stream {log.cluster!r}: without it, ids would be "
                "given again"
            )
        try:
            table = _versions_of(log, state, name, ends, before)
            generation = 0 if dry_run else _publish(log, state, name, ends, table)
            return DropReport(name, generation, ends)
        except (NotFound, LostRace):  # a prune has deleted a file, or the map was rewritten
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def _publish(
    log: ClusterLog,
    state: ClusterState,
    name: str,
    ends: Mapping[str, Position],
    table: PartitionVersions,
) -> int:
    """Publish the empty snapshot; returns its generation. Raises `LostRace` if another snapshot of
    the map may cover entries above `ends`, which were not checked."""
    generation = 0

    def change(manifest: ClusterManifest) -> ClusterManifest:
        nonlocal generation
        former = manifest.snapshots.get(name)
        if is_of_members(manifest) and former != state.manifest.snapshots.get(name):
            raise LostRace(f"map {name!r} was rewritten while it was dropped; drop it again")
        covered = dict(former.marks) if former is not None else {}
        for node, node_state in state.nodes.items():
            reached = manifest.reach_in(node_state.manifest)(covered.get(node))
            covered[node] = LowWaterMark(
                node_state.manifest.directory, max(ends.get(node, START), reached)
            )
        generation = manifest.generation + 1
        now_ms = log.clock.now_ms()
        number, versions = with_table(
            manifest, generation, table.raised(manifest.versions_of(name).pairs.items())
        )
        snapshot = Snapshot(
            generation,
            Listed(),
            covered,
            0,
            0,
            0,
            now_ms,
            dropped=generation,
            until_ms=now_ms,
            versions=number,
        )
        dropped = replace(manifest.with_snapshot(name, snapshot), versions=versions)
        logs = [node_state.manifest for node_state in state.nodes.values()]
        return dropped.without_unused_tables().with_epochs(logs)

    log.manifests.update(change)
    return generation


def _versions_of(
    log: ClusterLog,
    state: ClusterState,
    name: str,
    ends: Mapping[str, Position],
    before: ClusterManifest,
) -> PartitionVersions:
    """The partition versions that apply above `ends`. `before`: the manifest that was read before
    `ends`. A damaged file is skipped, because it may be the reason for the drop.

    Raises `InvalidSetting` if the map has a change of a shared session that a further agent may
    still append: that copy would be above `ends` and have an equal pair, so it would count."""
    if not is_of_members(state.manifest):
        return NO_VERSIONS
    pairs: dict[int, tuple[int, int]] = {}
    unfinished = first_unfinished(before.lifetimes, state.manifest.nodes)
    for scan, context in ahead(log.context, cluster_scans(state, until=ends, maps=(name,))):
        with suppress(LogError):
            for changes in log.read_on(scan, (name,), context=context):
                _demand_finished(name, changes.rows, unfinished)
                raise_versions(pairs, changes.rows)
    if state.missing:
        return NO_VERSIONS
    return known_versions(before).raised(pairs.items())


def _demand_finished(name: str, rows: Iterable[Row], unfinished: int) -> None:
    """Raises `InvalidSetting` if one of these changes has a shared session of incarnation
    `unfinished` or of a later one."""
    if any(may_have_later_copies(row[ORDER], unfinished) for row in rows):
        raise InvalidSetting(
            f"map {name!r} has changes with copies, and an agent that was stopped may still "
            "append such copies: they would come back after the drop. Nothing was dropped. In "
            "a running cluster, use destroy(). If no cluster has the map in memory, drop it "
            "after a new view has begun while the logs of all nodes can be read; if the cluster "
            "is stopped, `imap-wal claim --force` begins one"
        )
