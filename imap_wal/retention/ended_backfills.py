"""Removes the nodes of backfills (`imap_wal.retention.backfill`) that have ended.

    unfinished  not registered, and without a new file for a day. First the cluster's incarnation is
                made higher than that of the backfill, so that it can no longer be registered
    covered     registered, and a prune has removed its last archive: its entries are in snapshots.
                It has no writer, so the node is no longer needed

The names of these nodes are never used again, so all of their files are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from imap_wal import layout
from imap_wal.disposal import discard, sweep
from imap_wal.errors import LogError
from imap_wal.format import START
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest, node_manifests
from imap_wal.names import decode
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.snapshots import ORPHAN_MS
from imap_wal.storage_clock import storage_now
from storage_backends import StoredFile


@dataclass(frozen=True, slots=True)
class EndedBackfill:
    """The node of a backfill that has ended, its incarnation (0: not needed), and its files.
    `directory`: the log directory under which it is registered; "": it is unfinished."""

    node: str
    incarnation: int
    files: tuple[StoredFile, ...]
    directory: str = ""


def ended_backfills(log: ClusterLog, *, dry_run: bool = False) -> Iterator[EndedBackfill]:
    """The backfills that have ended. It changes nothing; but without `dry_run`, the time is that of
    the storage, for which a file is created for a moment. On a storage without modification times,
    no backfill counts as unfinished. A node whose manifest is damaged is left out."""
    now_ms = 0
    registered = log.manifest().nodes
    for component in log.store.folders(f"{log.folder}/nodes"):
        node = decode(component)
        if not layout.is_backfill(node):
            continue
        with suppress(LogError):
            manifest, files = _of(log, node)
            if node in registered:
                if manifest.removed > START and not manifest.archives:
                    yield EndedBackfill(node, 0, files, registered[node])
                continue
            if not files or not all(file.modified_ms for file in files):
                continue
            now_ms = now_ms or (
                log.clock.now_ms()
                if dry_run
                else storage_now(log.store, log.folder, log.randomness)
            )
            if now_ms - max(file.modified_ms for file in files) > ORPHAN_MS:
                yield EndedBackfill(node, manifest.cluster.incarnation, files)


def remove_ended(log: ClusterLog, backfill: EndedBackfill) -> set[str]:
    """Remove the node and its files. Returns the deleted paths: none if the node was registered or
    removed meanwhile."""
    node, is_ours = backfill.node, True

    def change(manifest: ClusterManifest) -> ClusterManifest | None:
        nonlocal is_ours
        is_ours = manifest.nodes.get(node, "") == backfill.directory
        if not is_ours:
            return None
        others = {name: directory for name, directory in manifest.nodes.items() if name != node}
        ended = max(manifest.incarnation, backfill.incarnation + 1)
        return replace(manifest, nodes=others, incarnation=ended)

    log.manifests.update(change)
    if not is_ours:
        return set()
    folder = log.node_folder(node)
    # The manifest last: it shows what a removal that was interrupted has left.
    paths = sorted(
        (file.path for file in backfill.files),
        key=lambda path: path.startswith(f"{folder}/manifest/"),
    )
    gone = discard(log.store, paths)
    sweep(log.store, folder)
    return gone


def _of(log: ClusterLog, node: str) -> tuple[NodeManifest, tuple[StoredFile, ...]]:
    folder = log.node_folder(node)
    files = tuple(log.store.list(folder))
    return node_manifests(log.store, folder, log.clock, log.randomness).read()[1], files
