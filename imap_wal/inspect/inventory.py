"""The inventory of a URL, from listings and manifests alone: quick, and safe while a service
runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from imap_wal import layout
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.errors import LogError
from imap_wal.format import Home
from imap_wal.manifest.archives import Archive, ListFile
from imap_wal.manifest.claims import ClaimManifest, claim_manifests
from imap_wal.manifest.cluster import ClusterManifest, cluster_manifests
from imap_wal.manifest.epochs import ids
from imap_wal.manifest.node import NOTHING_SEEN, NodeManifest, node_manifests
from imap_wal.manifest.older import mark_beyond, older_epoch, opened_epochs
from imap_wal.manifest.parts import PartList
from imap_wal.manifest.roots import is_cluster
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.names import decode
from imap_wal.segment.listing import SegmentFile, WalFolder, sorted_out
from imap_wal.segment.verdict import Place
from storage_backends import SegmentStore, StoredFile

ATTEMPTS = 8


class DamagedPartList(NamedTuple):
    """A list of files of a map's snapshot that cannot be read."""

    map: str
    list: PartList
    error: LogError


@dataclass(frozen=True)
class NodeView:
    """One node's folder."""

    name: str
    folder: str
    manifest_number: int
    manifest: NodeManifest
    wal: WalFolder
    files: tuple[StoredFile, ...]
    """All files in the folder."""

    @property
    def forgotten(self) -> bool:
        """Whether there is no log here because all of it was forgotten."""
        return self.manifest.forgotten and self.manifest.empty

    @property
    def of_no_manifest(self) -> bool:
        """Whether there are segments or archives here, but no manifest."""
        return not self.manifest_number and bool(
            self.segments or any(layout.parse_archive_path(file.path) for file in self.files)
        )

    @property
    def is_on_own_disk(self) -> bool:
        """Whether segments of this log are not in the root, and the manifest has the address of the
        agent that has them on its disk. Whether that agent runs is not checked."""
        return bool(self.manifest.address) and not self.manifest.is_whole(self.wal)

    @property
    def segments(self) -> tuple[SegmentFile, ...]:
        """All files with the name of a segment, including those that do not count."""
        wal = self.wal
        return (*wal.archived, *wal.segments, *wal.copied, *wal.void)

    @cached_property
    def wal_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @cached_property
    def _archives(self) -> tuple[tuple[Archive, ...], tuple[tuple[ListFile, LogError], ...]]:
        damaged: list[tuple[ListFile, LogError]] = []
        found = self.manifest.listed.readable(damaged)
        return found, tuple(damaged)

    @property
    def archives(self) -> tuple[Archive, ...]:
        """The archives in the manifest, without those of damaged lists."""
        return self._archives[0]

    @property
    def damaged_lists(self) -> tuple[tuple[ListFile, LogError], ...]:
        """The lists of archives that cannot be read, with their errors."""
        return self._archives[1]

    @cached_property
    def archive_bytes(self) -> int:
        return sum(archive.bytes for archive in self.manifest.archives)


@dataclass(frozen=True)
class ClusterView:
    """One cluster's folder."""

    namespace: str
    cluster: str
    folder: str
    manifest_number: int
    manifest: ClusterManifest
    nodes: tuple[NodeView, ...]
    claims_number: int = 0
    """Number of the manifest of claims; 0 if there is none."""
    claims: ClaimManifest = field(default_factory=ClaimManifest)
    forgotten: tuple[NodeView, ...] = ()
    """Folders of forgotten nodes, without a log (see `imap_wal.agent.membership.forget_node`)."""
    opened: Mapping[str, int] = field(default_factory=dict)
    """Log directory → the newest epoch in which it was opened."""
    snapshot_files: int = 0
    """The number of snapshot files, if there is no manifest of the cluster."""

    @property
    def of_no_manifest(self) -> str:
        """The files that exist without a manifest of the cluster; "" if there is one, or if there
        are no files."""
        if self.manifest_number:
            return ""
        logs = f"the logs of {', '.join(map(repr, self.logs))}" if self.logs else ""
        snapshots = f"{self.snapshot_files} files of snapshots" if self.snapshot_files else ""
        return " and ".join(filter(None, (logs, snapshots)))

    @property
    def logs(self) -> list[str]:
        """Nodes whose log was registered. A log is registered before its first entry. An open that
        failed before that left a manifest, and no entry is lost."""
        return [
            node.name
            for node in self.nodes
            if node.of_no_manifest
            or node.manifest.archives
            or node.manifest.cluster != NOTHING_SEEN
            or node.manifest.directory in self.opened
        ]

    @property
    def claims_folder(self) -> str:
        """The folder of the manifests of claims."""
        return f"{self.folder}/claims/manifest"

    @property
    def begun(self) -> int:
        """The newest incarnation that began with a cluster lifetime; 0 if there is none."""
        return max((lifetime.incarnation for lifetime in self.manifest.lifetimes), default=0)

    @property
    def missing_nodes(self) -> list[str]:
        """Nodes that have written, and whose log is missing or was replaced by another log of the
        same name."""
        present = {node.name: node.manifest.directory for node in self.nodes}
        return sorted(
            name
            for name, directory in self.manifest.nodes.items()
            if present.get(name) != directory
        )

    @property
    def unreadable_nodes(self) -> list[str]:
        """Missing nodes, and nodes without segments: their disk may not be mounted. A restart
        refuses to continue without them."""
        away = [node.name for node in self.nodes if not node.manifest.is_whole(node.wal)]
        return sorted({*self.missing_nodes, *away})

    @property
    def returned_nodes(self) -> list[str]:
        """Forgotten nodes whose folder has the forgotten log again, such as that of a lost disk
        that came back. It is not read, and cannot be opened."""
        return [
            node.name for node in self.nodes if node.manifest.directory in self.manifest.forgotten
        ]

    def state_of(self, name: str) -> str:
        """The state of a node, for people: MISSING, "own disk", forgotten, closed, or "open or
        crashed". "own disk": a part of its log is only there (`NodeView.is_on_own_disk`)."""
        on_disk = name not in self.missing_nodes and any(
            node.name == name and node.is_on_own_disk for node in self.nodes
        )
        if name in self.unreadable_nodes:
            return "own disk" if on_disk else "MISSING"
        if name in self.returned_nodes or any(node.name == name for node in self.forgotten):
            return "forgotten"
        found = next(node for node in self.nodes if node.name == name)
        return "closed" if found.manifest.clean else "open or crashed"

    @cached_property
    def _snapshots(self) -> tuple[dict[str, Snapshot], tuple[DamagedPartList, ...]]:
        damaged: list[DamagedPartList] = []
        found = {}
        for name, snapshot in self.manifest.snapshots.items():
            found[name] = snapshot
            wrong: list[tuple[PartList, LogError]] = []
            if snapshot.listed is not None:
                parts = snapshot.listed.readable(wrong)
                found[name] = snapshot.with_parts(parts) if wrong else snapshot
            damaged += [DamagedPartList(name, each, error) for each, error in wrong]
        return found, tuple(damaged)

    @property
    def snapshots(self) -> dict[str, Snapshot]:
        """Map → its snapshot, without the files of damaged lists."""
        return self._snapshots[0]

    @property
    def damaged_lists(self) -> tuple[DamagedPartList, ...]:
        """The lists of files of snapshots that cannot be read."""
        return self._snapshots[1]

    @property
    def snapshot_bytes(self) -> int:
        return sum(snapshot.bytes for snapshot in self.manifest.snapshots.values())

    def place(
        self, node: NodeView, manifest: NodeManifest, segment: SegmentFile, *, followed: bool
    ) -> Place:
        """A segment's place in its log."""
        return place_of(self.manifest, node.name, manifest, segment, followed=followed)

    def names(self, node: NodeView) -> tuple[str, str, str]:
        """The names of a node's log: namespace, cluster, node."""
        return self.namespace, self.cluster, node.name

    def home(self, node: NodeView, segment: SegmentFile) -> Home:
        """The place of a segment of that node, from its name and the node's manifest."""
        return Home(*self.names(node), node.manifest.directory, segment.epoch, segment.number)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.cluster}"


def place_of(
    cluster: ClusterManifest,
    node: str,
    manifest: NodeManifest,
    segment: SegmentFile,
    *,
    followed: bool,
) -> Place:
    """A segment's place in the log of a node, by all manifests. A snapshot's mark names a frame
    that existed, just as a checkpoint does: if the frame is missing, entries of the log are lost,
    though the snapshot has them."""
    here, checkpoint = segment.name, manifest.checkpoint
    marks = cluster.marks(node, manifest.directory).values()
    return Place(
        segment.path,
        manifest.directory,
        *here,
        followed,
        max((end for end in (*marks, checkpoint) if end[:2] == here), default=checkpoint),
        max(manifest.newest, checkpoint.segment),
        ids(manifest.epochs, segment.epoch),
    )


def take_inventory(
    store: SegmentStore,
    namespaces: tuple[str, ...] = (),
    clusters: tuple[str, ...] = (),
    damaged: list[tuple[str, LogError]] | None = None,
) -> list[ClusterView]:
    """All clusters under a root, or those with the given names. `damaged` gets those whose
    manifests cannot be read; without it, they are an error."""
    found: list[ClusterView] = []
    top = store.folders("")
    if is_cluster(store, top):
        return found
    for namespace in top:
        if namespaces and decode(namespace) not in namespaces:
            continue
        for cluster in store.folders(namespace):
            if clusters and decode(cluster) not in clusters:
                continue
            if {"nodes", "manifest", "snapshot"} & set(store.folders(f"{namespace}/{cluster}")):
                names = decode(namespace), decode(cluster)
                try:
                    found.append(_cluster(store, *names))
                except LogError as error:
                    if damaged is None:
                        raise
                    damaged.append(("/".join(names), error))
    return found


def _cluster(store: SegmentStore, namespace: str, cluster: str) -> ClusterView:
    """Reads the nodes first and the cluster's manifests after them, like `ClusterLog.state`. Reads
    again if something changed meanwhile: a manifest is older than the files next to it only if the
    last look still shows it."""
    folder = layout.cluster_folder(namespace, cluster)
    clock, randomness = SystemClock(), SystemRandomness()
    for _ in range(ATTEMPTS):
        found = [_node(store, folder, decode(name)) for name in store.folders(f"{folder}/nodes")]
        nodes = tuple(node for node in found if not node.forgotten)
        forgotten = tuple(node for node in found if node.forgotten)
        number, manifest = cluster_manifests(store, folder, clock, randomness).read()
        claims = claim_manifests(store, folder, clock, randomness).read()
        snapshots = (
            0
            if number
            else sum(file.path.endswith(".parquet") for file in store.list(f"{folder}/snapshot"))
        )
        view = ClusterView(
            namespace,
            cluster,
            folder,
            number,
            manifest,
            nodes,
            *claims,
            forgotten,
            opened_epochs(store, folder),
            snapshots,
        )
        fits = claims[1].newest <= manifest.incarnation and (
            claims[1].names_token or not manifest.token
        )
        if fits and not any(_moved(node, view) for node in found):
            break
    return view


def _moved(node: NodeView, view: ClusterView) -> bool:
    """Whether something changed between the reads of node and cluster."""
    last = node.wal.segments[-1].name if node.wal.segments else (0, 0)
    seen = view.manifest.seen(view.manifest_number)
    older = mark_beyond(node.name, node.manifest, last, view.manifest) or older_epoch(
        node.manifest, view.opened
    )
    return node.manifest.cluster.newer_than(seen) or bool(older)


def _node(store: SegmentStore, cluster: str, name: str) -> NodeView:
    folder = layout.node_folder(cluster, name)
    manifests = node_manifests(store, folder, SystemClock(), SystemRandomness())
    for _ in range(ATTEMPTS):
        # Before the manifest: then the manifest knows of segments that are archived meanwhile, and
        # they do not seem to be missing.
        files = tuple(store.list(folder))
        number, manifest = manifests.read()
        wal = sorted_out(
            (file for file in files if file.path.startswith(f"{folder}/wal/")),
            manifest.archived,
            manifest.begins,
        )
        last = max((segment.number for segment in wal.segments), default=manifest.archived[1])
        if max(manifest.newest, manifest.checkpoint.segment) <= last:
            break  # otherwise a segment is missing, or was begun between the two reads
    return NodeView(name, folder, number, manifest, wal, files)
