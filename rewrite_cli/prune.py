"""Removing what a snapshot covers: archives, sealed segments, former snapshots. Safe beside a running service and beside readers.

The manifest first, then the files: who reads meanwhile finds a file gone, reads the manifests again, and finds all of it in the snapshot. A crash in between leaves files that
no manifest names; the owner's next archive run, or the next prune, deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from imap_wal import layout
from imap_wal.archive import summarize
from imap_wal.errors import LostRace
from imap_wal.format import START, Position
from imap_wal.manifest import Archive, NodeManifest, node_manifests
from imap_wal.pieces import SEGMENT, Piece
from imap_wal.removal import without
from imap_wal.restore import ClusterLog, ClusterState, NodeState
from imap_wal.retention import oldest_segments, outlived, stored
from rewrite_cli.report import PruneReport
from storage_backends import NotFound, StoredFile

ORPHAN_MS = 24 * 3_600_000
"""Files of an unpublished generation are taken for a rewrite under way until they are this old."""


def prune(log: ClusterLog, *, dry_run: bool = False, ttl_s: int = 0, size_limit_mb: int = 0) -> PruneReport:
    """Remove what every reader finds in a snapshot; with `ttl_s` or `size_limit_mb` only what outlived them (`imap_wal.retention`). A node whose log is missing, or stands on another disk, is left alone (`skipped` says why)."""
    state = log.state()
    segments: list[str] = []
    archives: list[Archive] = []
    total = 0
    for node in state.nodes.values():
        covered = state.covered(node.name)
        gone = [archive for archive in node.manifest.archives if archive.last <= covered.get(archive.map, START)]
        sealed = _covered_segments(log, node, covered)
        if ttl_s or size_limit_mb:
            files = stored(log.store, node.folder)
            candidates = [files[path] for path in [*(each.path for each in gone), *(each.path for each in sealed)] if path in files]
            go = outlived(candidates, log.clock.now_ms(), ttl_s, size_limit_mb)
            gone, sealed = [archive for archive in gone if archive.path in go], sealed[: oldest_segments(sealed, go)]
        if not dry_run and (gone or sealed):
            _remove(log, node, gone, sealed)
        archives += gone
        segments += [piece.path for piece in sealed]
        total += sum(archive.bytes for archive in gone) + sum(piece.bytes for piece in sealed)
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


def _covered_segments(log: ClusterLog, node: NodeState, covered: Mapping[str, Position]) -> list[Piece]:
    """The oldest sealed segments in which every entry is covered; the newest segment may be being written, and stays."""
    found: list[Piece] = []
    if not covered:
        return found
    highest = max(covered.values())
    for segment, following in zip(node.segments, node.segments[1:], strict=False):
        if highest[:2] < (segment.epoch, segment.number):
            break
        piece = Piece(
            SEGMENT, node.name, segment.path, epoch=segment.epoch, number=segment.number, next_path=following.path, bytes=segment.bytes
        )  # fmt: skip
        try:
            summary = summarize(log.store, piece)
        except NotFound:
            break  # its owner archived it this moment
        if any(last > covered.get(name, START) for name, last in summary.maps.items()):
            break
        found.append(piece)
    return found


def _remove(log: ClusterLog, node: NodeState, archives: list[Archive], segments: list[Piece]) -> None:
    gone = {archive.path for archive in archives}
    try:
        summaries = [summarize(log.store, piece) for piece in segments]
    except NotFound as error:
        raise LostRace(f"the owner of node {node.name!r}, or another prune, removed {error.path} at this moment; run prune again") from error

    def change(manifest: NodeManifest) -> NodeManifest:
        if manifest.directory != node.manifest.directory:
            raise LostRace(f"another log directory appeared under node {node.name!r}; run prune again")
        return without(manifest, archives, segments, summaries)

    node_manifests(log.store, node.folder, log.clock, log.randomness).update(change)
    for path in [*gone, *(piece.path for piece in segments)]:
        log.store.delete(path)


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
