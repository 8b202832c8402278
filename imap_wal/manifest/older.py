"""Finds manifests that belong to an older copy, and not to the files next to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.errors import CorruptLog
from imap_wal.format import START
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.epochs import Name, ids
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.manifest.store import ManifestLog
from imap_wal.segment.listing import SegmentFile, WalFolder
from storage_backends import SegmentStore, StoredFile

MISSING_ADVICE = (
    "bring the log back, or continue without the entries that only it has: "
    "recovery_policy='partial'; if the node will not return: `imap-wal forget-node`"
)

NO_MANIFEST_ADVICE = "bring a manifest back from a copy, or restore a backup"
OLDER_ADVICE = (
    "bring the newer manifests back from a copy, or write a repaired copy of the log with "
    "`imap-wal repair`"
)
OTHER_COPY_ADVICE = (
    "bring this node's own folder back from a copy, or write a repaired copy of the log with "
    "`imap-wal repair`: it has the entries of this folder and those of the snapshots"
)
NOT_OPENED: Name = 0, ""

RESTORE_UNFINISHED = "a restore into this place has not ended"
RESTORE_ADVICE = (
    "run the same `imap-wal backup-restore` again, or remove this folder and restore again"
)


def foreign_wal(folder: str, manifest: NodeManifest, wal_ids: Collection[str]) -> str:
    """The error text if the segments next to a node's manifest are not the ones that it names."""
    there = (
        f"those of {', '.join(sorted(wal_ids))}" if wal_ids else f"no file {manifest.wal_id}.log"
    )
    return (
        f"{folder}/wal should have the segments of log {manifest.wal_id}, but has {there}: "
        "its disk is not mounted here or was "
        "replaced, or wal_dir is on another machine"
    )


def unseen_segments(manifest: NodeManifest, wal: WalFolder, why: str) -> str:
    """The error text if a node's own disk cannot be read, and has segments that it did not upload.
    `why`: why it cannot be read."""
    return (
        f"{unseen_text(manifest, wal)} are only on the own disk of this node, which cannot be read "
        f"({why or 'its agent was not asked'})"
    )


def unseen_text(manifest: NodeManifest, wal: WalFolder) -> str:
    """The missing segments at a log's end, and the last position before them, as text."""
    unseen, files = manifest.unseen(wal), without_gap(manifest, wal)
    epoch, number = files[-1].name if files else manifest.archived
    return f"all entries in segments {unseen[0]} to {unseen[-1]}, after {epoch:08d}-{number:08d},"


def without_gap(manifest: NodeManifest, wal: WalFolder) -> tuple[SegmentFile, ...]:
    """The segments of a listing before the first one that is missing."""
    missing = manifest.unseen(wal)
    return tuple(segment for segment in wal.segments if segment.number < missing.start)


def older_manifest(path: str, evidence: str, advice: str = OLDER_ADVICE) -> CorruptLog:
    """The error for a manifest that an older copy has replaced."""
    reason = f"the manifests here are older than the files beside them ({evidence})"
    return CorruptLog(path, 0, reason, advice)


def replaced(
    folder: str,
    node: str,
    manifest: NodeManifest,
    last: tuple[int, int] | None,
    cluster: ClusterManifest,
    opened: Mapping[str, Name],
) -> CorruptLog | None:
    """The error if a node's folder was replaced by another copy of its log, or by an older one.
    Then another copy was opened, or a snapshot covers positions that this log does not have. So its
    present or later entries would count as covered. `last`: its last segment; None: its segments
    are not here. `opened`: from `opened_epochs`."""
    why = other_copy(node, manifest, cluster, opened)
    if why:
        return CorruptLog(f"{folder}/manifest", 0, why, OTHER_COPY_ADVICE)
    why = older_epoch(manifest, opened)
    if why:
        return older_manifest(f"{folder}/manifest", why)
    if last is None:
        return None
    end = max(last, manifest.archived)
    for mark in cluster.covered(node):
        if mark.directory == manifest.directory and mark.position[:2] > end:
            return older_manifest(
                f"{folder}/manifest",
                f"a snapshot covers node {node!r} up to {mark.position}, but its log ends with "
                f"segment {end[0]}-{end[1]}",
            )
    return None


def other_copy(
    node: str, manifest: NodeManifest, cluster: ClusterManifest, opened: Mapping[str, Name]
) -> str:
    """The error text if another copy of a node's log was opened, or snapshots cover its entries; ""
    if not. `opened`: from `opened_epochs`."""
    reach = cluster.reach_in(manifest)
    for mark in cluster.covered(node):
        end = reach(mark)
        if mark.directory == manifest.directory and end < mark.position:
            shared = (
                f"have the same entries only up to {end}"
                if end > START
                else "are not known to share entries"
            )
            return (
                f"a snapshot covers node {node!r} up to {mark.position} of another copy of this "
                f"log: both {shared}"
            )
    epoch, epoch_id = opened.get(manifest.directory, NOT_OPENED)
    # Without it, the manifest is older, or of a copy that was opened less often: `older_epoch`.
    if epoch_id and epoch <= manifest.epoch and epoch_id not in ids(manifest.epochs, epoch):
        return (
            f"epoch {epoch} of node {node!r} was opened with id {epoch_id}, but the epochs of this "
            "manifest are of another copy of this log"
        )
    return ""


def opened_epochs(store: SegmentStore, cluster_folder: str) -> dict[str, Name]:
    """Log directory → number and id of the newest epoch in which it was opened."""
    epochs: dict[str, Name] = {}
    for file in store.list(layout.opened_folder(cluster_folder)):
        name = layout.parse_opened_path(file.path)
        if name is not None:
            directory, number, epoch_id = name
            epochs[directory] = max((number, epoch_id), epochs.get(directory, NOT_OPENED))
    return epochs


def older_epoch(manifest: NodeManifest, opened: Mapping[str, Name]) -> str:
    """Why an older copy must have replaced this manifest of a node; "" if no later open is
    known."""
    epoch, _ = opened.get(manifest.directory, NOT_OPENED)
    return (
        f"epoch {epoch} of this log was opened, but the manifest is of epoch {manifest.epoch}"
        if epoch > manifest.epoch
        else ""
    )


def current_cluster(
    context: Context, cluster_folder: str, clusters: ManifestLog[ClusterManifest]
) -> ClusterManifest:
    """The cluster's manifest. Raises `CorruptLog` if a node has seen a newer one: an older copy
    replaced it, and would assign generations and incarnations a second time. Also if a restore of a
    backup, which writes this manifest last, has not ended."""
    store, nodes = context.store, {}
    # Read before the cluster's manifest, which is then at least as new as those they have seen.
    for folder in store.folders(f"{cluster_folder}/nodes"):
        nodes[folder] = (
            NodeManifestLog(context, f"{cluster_folder}/nodes/{folder}").read()[1].cluster
        )
    number, cluster = clusters.read()
    if not number and store.exists(layout.RESTORE_MARKER):
        raise CorruptLog(layout.RESTORE_MARKER, 0, RESTORE_UNFINISHED, RESTORE_ADVICE)
    if not number and store.folders(f"{cluster_folder}/snapshot"):
        # Another process may have begun and rewritten this cluster meanwhile.
        number, cluster = clusters.read()
        if not number:
            why = "there are snapshots, but no manifest"
            raise older_manifest(clusters.folder, why, NO_MANIFEST_ADVICE)
    for folder in nodes if not number else ():
        # Segments are listed first: each is begun after a manifest of its node was published.
        path = f"{cluster_folder}/nodes/{folder}"
        segments = any(layout.parse_wal_path(file.path) for file in store.list(f"{path}/wal"))
        if segments and not NodeManifestLog(context, path).read()[0]:
            why = f"there are segments in {path}/wal, but no manifest"
            raise older_manifest(f"{path}/manifest", why, NO_MANIFEST_ADVICE)
    for folder, seen in nodes.items():
        if seen.newer_than(cluster.seen(number)):
            raise older_manifest(
                clusters.folder,
                f"node folder {folder} has seen {seen}, but here is {cluster.seen(number)}",
            )
    return cluster


# Finds file names of a node that its manifest cannot know.
#
# File names have epochs and positions. If these are newer than the manifest, an older copy replaced
# it, or newer manifests were removed. A writer that continued from it would use epochs and names a
# second time. So an open refuses it, `verify` reports it, and `repair` uses the files as well.


@dataclass(frozen=True, slots=True)
class Evidence:
    """`epoch`: the highest epoch in a file name of the node. `newer`: why the manifest is older
    than the files; "" if it is not."""

    epoch: int
    newer: str = ""


def of_files(
    files: Iterable[StoredFile], manifest: NodeManifest, unarchived: Collection[tuple[int, int]]
) -> Evidence:
    """`files`: all files in a node's folder. `unarchived`: (epoch, number) of its segments without
    the archived ones."""
    highest, newer = 0, ""
    segments, late = set(), {}
    for file in files:
        name = layout.parse_wal_path(file.path)
        if name is not None and "/lost/" not in file.path:
            segments.add(name)
        epoch, archive = epoch_of(file.path), layout.parse_archive_path(file.path)
        highest = max(highest, epoch)
        # Only the permit of an epoch is created before its manifest is published.
        if epoch > manifest.epoch + (layout.parse_writer_path(file.path) is not None):
            newer = (
                newer or f"{file.path} is of epoch {epoch}, but the manifest is of {manifest.epoch}"
            )
        elif archive is not None and manifest.archived < archive.last[:2] not in unarchived:
            late[file.path] = archive
    # The list is parsed only for an archive after the manifest's last archived position, which is
    # rare.
    for path in late.keys() - {archive.path for archive in manifest.archives} if late else ():
        surplus = f"{path} has entries up to {late[path].last} that the manifest does not know"
        newer = newer or f"{surplus}; their segments were removed"
    return Evidence(highest, newer or _another_beginning(manifest, segments))


def _another_beginning(manifest: NodeManifest, segments: Collection[tuple[int, int]]) -> str:
    """Why the manifest is of another history of this log with the same epochs, such as that of a
    copy that was opened. "" without evidence."""
    epoch, begins = manifest.begins
    if manifest.archived[1] >= begins:  # its first segments may be archived and removed
        return ""
    first = min((number for of_epoch, number in segments if of_epoch == epoch), default=0)
    if any(of_epoch < epoch and begins <= number < first for of_epoch, number in segments):
        return f"epoch {epoch} began with segment {first}, but the manifest says {begins}"
    return ""


def epoch_of(path: str) -> int:
    """The highest epoch in a file's name; 0 without one."""
    lost = layout.parse_lost_path(path)
    if lost is not None:
        return lost
    segment, archive = layout.parse_wal_path(path), layout.parse_archive_path(path)
    if segment is not None:
        return max(segment[0], layout.recovered_by(path))
    if archive is not None:
        return max(archive.epoch, archive.last.epoch)
    return layout.parse_writer_path(path) or 0
