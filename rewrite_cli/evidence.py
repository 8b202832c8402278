"""What files say that the manifests beside them do not know: then the manifests are older than the
files. They were put back from an older copy, or the newest ones were removed or are damaged."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imap_wal import layout
from imap_wal.manifest import NOTHING_SEEN, ClusterManifest, NodeManifest, Seen, foreign_wal
from rewrite_cli.survey import ClusterView, NodeView

_LOST = re.compile(r"/lost/(\d{8,})/")


@dataclass(frozen=True, slots=True)
class Evidence:
    """`epoch`: the highest that a file of the node names. `newer`: the first file that a manifest
    of this age cannot know, with why; "" where there is none."""

    epoch: int
    newer: str = ""


def of_node(node: NodeView, manifest: NodeManifest, cluster: ClusterManifest) -> Evidence:
    """What the names of a node's files say, and the marks of snapshots, beside this manifest of the
    node."""
    there = {each.name for each in node.wal.segments}
    named = {archive.path for archive in manifest.archives}
    epoch, newer = 0, ""
    for file in node.files:
        found = _epoch(file.path)
        epoch = max(epoch, found)
        archive = layout.parse_archive_path(file.path)
        why = ""
        # A writer's permit is there before its epoch is published, and nothing else is.
        if found > manifest.epoch + (layout.parse_writer_path(file.path) is not None):
            why = f"{file.path} is of epoch {found}, the manifest knows {manifest.epoch}"
        elif archive is not None and file.path not in named and manifest.archived < archive.last[:2] not in there:
            what = f"{file.path} holds entries up to {archive.last} that the manifest does not know"
            why = f"{what}; their segments are gone"
        newer = newer or why
    last = max(manifest.newest, manifest.checkpoint.segment, manifest.archived[1])
    for name, snapshot in cluster.snapshots.items():
        mark = snapshot.marks.get(node.name)
        if mark is not None and mark.directory == manifest.directory:
            epoch = max(epoch, mark.position.epoch)
            if mark.position.epoch > manifest.epoch or (manifest.newest and mark.position.segment > last):
                newer = newer or f"the snapshot of map {name!r} holds entries of this node up to {mark.position}"
    return Evidence(epoch, newer)


def of_cluster(view: ClusterView) -> tuple[Seen, str]:
    """The most that a node has seen of its cluster's manifest; and why the one that is here is
    older, or ""."""
    seen, newer = NOTHING_SEEN, ""
    manifest = view.manifest
    for node in view.nodes:
        known = node.manifest.cluster
        seen = seen.up_to(known)
        if known.newer_than(manifest.seen(view.manifest_number)):
            newer = newer or f"node {node.name!r} has seen {known}, here is {manifest.seen(view.manifest_number)}"
    return seen, newer


def misplaced_wal(node: NodeView) -> str:
    """Why the segments beside a node's manifest are not its own, or ""."""
    manifest = node.manifest
    if not manifest.wal_id or manifest.wal_id in node.wal.logs:
        return ""
    return foreign_wal(node.folder, manifest, node.wal.logs)


def _epoch(path: str) -> int:
    """The highest epoch in a file's name; 0 where there is none."""
    name, archive, lost = layout.parse_wal_path(path), layout.parse_archive_path(path), _LOST.search(path)
    if lost is not None:
        return int(lost[1])
    if name is not None:
        return max(name[0], layout.recovered_by(path))
    if archive is not None:
        return max(archive.epoch, archive.last.epoch)
    return layout.parse_writer_path(path) or 0
