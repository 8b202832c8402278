"""Finds manifests that are older than the files and snapshots next to them: an older copy replaced
them, or the newest ones were removed or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from imap_wal import layout
from imap_wal.errors import LogError
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.epochs import Name
from imap_wal.manifest.node import NodeManifest, Seen
from imap_wal.manifest.older import NOT_OPENED, Evidence, of_files, older_epoch
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.segment.reader import SegmentReader
from storage_backends import NotFound, SegmentStore


def of_node(
    node: NodeState,
    manifest: NodeManifest,
    cluster: ClusterManifest,
    opened: Mapping[str, Name],
) -> Evidence:
    """The evidence in the names of a node's files and in the marks of snapshots that they are newer
    than this manifest of the node."""
    evidence = of_files(node.files, manifest, {segment.name for segment in node.wal.segments})
    # On object stores, the manifest records only from time to time which segments were created.
    numbers = [segment.number for segment in node.wal.segments]
    last = max([manifest.newest, manifest.checkpoint.segment, manifest.archived[1], *numbers])
    epoch, _ = opened.get(manifest.directory, NOT_OPENED)
    evidence = replace(
        evidence,
        epoch=max(evidence.epoch, epoch),
        newer=evidence.newer or older_epoch(manifest, opened),
    )
    for name, mark in cluster.marks(node.name, manifest).items():
        evidence = replace(evidence, epoch=max(evidence.epoch, mark.epoch))
        if mark.epoch > manifest.epoch or (manifest.newest and mark.segment > last):
            newer = f"the snapshot of map {name!r} has entries of this node up to {mark}"
            evidence = replace(evidence, newer=evidence.newer or newer)
    return evidence


def of_cluster(view: ClusterState) -> tuple[Seen, str]:
    """The newest state of the cluster's manifest that a node has seen or that the claims show; and
    why the present manifest is older ("" if it is not)."""
    manifest = view.manifest
    seen, newer = Seen(incarnation=view.claims.newest), ""
    if view.claims.newest > manifest.incarnation:
        newer = (
            f"incarnation {view.claims.newest} was claimed, but the last one given here is "
            f"{manifest.incarnation}"
        )
    for node in (*view.all_nodes, *view.forgotten):
        node_seen = node.manifest.cluster
        seen = seen.up_to(node_seen)
        if node_seen.newer_than(manifest.seen(view.number)):
            present = manifest.seen(view.number)
            newer = newer or f"node {node.name!r} has seen {node_seen}, but here is {present}"
    return seen, newer


def of_claims(view: ClusterState) -> str:
    """Why the manifest of claims is older than the cluster's; "" if it is not."""
    if view.begun > view.claims.newest:
        return f"incarnation {view.begun} has begun, but the last claim is {view.claims.newest}"
    if view.manifest.token and not view.claims.names_token:
        return "this cluster has a token, but its claims have none"
    return ""


def other_log(store: SegmentStore, view: ClusterState, node: NodeState) -> tuple[str, str]:
    """Why a node's folder is the copied or renamed folder of another node, and what to do about it.
    Two empty texts if it is not. It is if its log is registered for another node, or if all its
    segments name the other node."""
    directory = node.manifest.directory
    owner = next(
        (
            name
            for name, registered in sorted(view.manifest.nodes.items())
            if registered == directory and directory
        ),
        node.name,
    )
    home = layout.node_folder(view.folder, owner)
    if view.manifest.nodes.get(node.name) == directory or home == node.folder:
        homes = _homes(store, node)
        if len(homes) != 1 or node.folder in homes or len(node.wal.segments) == 1:
            return "", ""
        ((home, owner),) = homes.items()
    problem = (
        f"this folder has the log of node {owner!r}, which belongs in {home}: it was copied here "
        "or renamed"
    )
    is_examined = home.startswith(f"{view.folder}/")  # otherwise of a cluster that is not examined
    there = any(other.folder == home for other in view.all_nodes)
    advice = (
        f"move it back to {home}"
        if is_examined and not there
        else "move this folder away"
        if is_examined
        else f"move it away, or back to {home}"
    )
    if node.name in view.manifest.nodes and is_examined:
        advice += f", and bring the log of node {node.name!r} back"
    return problem, advice


def _homes(store: SegmentStore, node: NodeState) -> dict[str, str]:
    """Node folder → node, from the readable headers of segments, newest first. If the newest is in
    its own folder, the others are not read."""
    homes: dict[str, str] = {}
    for segment in reversed(node.wal.segments):
        try:
            header = SegmentReader(store, segment.path).header
        except (LogError, NotFound):
            continue
        folder = layout.Identity(header.namespace, header.cluster, header.node).node_folder
        homes[folder] = header.node
        if folder == node.folder:
            break
    return homes
