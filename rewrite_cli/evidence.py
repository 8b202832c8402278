"""What files and snapshots say that the manifests beside them do not know: then the manifests are
older. They were put back from an older copy, or the newest ones were removed or are damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from imap_wal.evidence import Evidence, of_files
from imap_wal.manifest import ClusterManifest, NodeManifest, Seen, foreign_wal, older_epoch
from rewrite_cli.survey import ClusterView, NodeView


def of_node(node: NodeView, manifest: NodeManifest, cluster: ClusterManifest, opened: Mapping[str, int] | None = None) -> Evidence:
    """What the names of a node's files say, and the marks of snapshots, beside this manifest of the
    node."""
    found = of_files(node.files, manifest, {each.name for each in node.wal.segments})
    # Of objects, the manifest learns only now and then which were made since it was opened.
    there = [each.number for each in node.wal.segments]
    last = max([manifest.newest, manifest.checkpoint.segment, manifest.archived[1], *there])
    opened = opened or {}
    found = replace(found, epoch=max(found.epoch, opened.get(manifest.directory, 0)), newer=found.newer or older_epoch(manifest, opened))
    for name, snapshot in cluster.snapshots.items():
        mark = snapshot.marks.get(node.name)
        if mark is not None and mark.directory == manifest.directory:
            found = replace(found, epoch=max(found.epoch, mark.position.epoch))
            if mark.position.epoch > manifest.epoch or (manifest.newest and mark.position.segment > last):
                newer = f"the snapshot of map {name!r} holds entries of this node up to {mark.position}"
                found = replace(found, newer=found.newer or newer)
    return found


def of_cluster(view: ClusterView) -> tuple[Seen, str]:
    """The most that a node has seen of its cluster's manifest, or that the claims show of it; and
    why the one that is here is older, or ""."""
    manifest = view.manifest
    seen, newer = Seen(incarnation=view.claims.newest), ""
    if view.claims.newest > manifest.incarnation:
        newer = f"incarnation {view.claims.newest} was claimed, the last one given here is {manifest.incarnation}"
    for node in (*view.nodes, *view.forgotten):
        known = node.manifest.cluster
        seen = seen.up_to(known)
        if known.newer_than(manifest.seen(view.manifest_number)):
            newer = newer or f"node {node.name!r} has seen {known}, here is {manifest.seen(view.manifest_number)}"
    return seen, newer


def of_claims(view: ClusterView) -> str:
    """Why the manifest of claims is older than the cluster's, or ""."""
    if view.begun > view.claims.newest:
        return f"incarnation {view.begun} has begun, the last one claimed is {view.claims.newest}"
    return ""


def misplaced_wal(node: NodeView) -> str:
    """Why the segments beside a node's manifest are not its own, or ""."""
    manifest = node.manifest
    if manifest.lives_in(node.wal.logs):
        return ""
    return foreign_wal(node.folder, manifest, node.wal.logs)
