"""The logs of a cluster as they were when they were looked at: manifests, listings, and damage. A
reader that needs a whole log turns the damage into an error (`without_damage`); `verify` and
`repair` describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

from imap_wal import layout
from imap_wal.errors import LogError, MissingNode
from imap_wal.format import START, Home, Position
from imap_wal.manifest import epochs
from imap_wal.manifest.claims import ClaimManifest
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import Archive, Listed, ListFile
from imap_wal.manifest.node import NOTHING_SEEN, NodeManifest, Seen
from imap_wal.manifest.older import (
    MISSING_ADVICE,
    replaced,
    without_gap,
)
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.rules.counts import Overtaken
from imap_wal.segment.listing import SegmentFile, WalFolder
from imap_wal.segment.verdict import Place
from imap_wal.settings import RecoveryPolicy
from storage_backends import StoredFile


class DamagedPartList(NamedTuple):
    """A list of files of a map's snapshot that cannot be read."""

    map: str
    list: ListFile
    error: LogError


@dataclass(frozen=True)
class NodeState:
    """One node's log when it was looked at.

    Attributes:
        name: The node.
        folder: Its folder.
        manifest: Its manifest; an empty one if there is none.
        wal: The listing of its segments.
        missing: Why its segments cannot be read here; "" if they can.
        number: The number of the manifest; 0: there is none.
        damage: The first missing segment, if one is missing.
        files: All files in the folder. This and the following are only in a look at everything.
        lost: The errors of newer manifests that cannot be read, newest first.
    """

    name: str
    folder: str
    manifest: NodeManifest
    wal: WalFolder
    missing: str = ""
    number: int = 0
    damage: LogError | None = None
    files: tuple[StoredFile, ...] = ()
    lost: tuple[LogError, ...] = ()

    @cached_property
    def segments(self) -> tuple[SegmentFile, ...]:
        """The segments to read, in order: those that are not archived, without gaps."""
        if not self.missing:
            return self.wal.segments
        uploaded = self.manifest.address and not self.wal.logs
        return without_gap(self.manifest, self.wal) if uploaded else ()

    @property
    def all_segments(self) -> tuple[SegmentFile, ...]:
        """All files with the name of a segment, including those that do not count."""
        wal = self.wal
        return (*wal.archived, *wal.segments, *wal.copied, *wal.void)

    def without_damage(self) -> Self:
        """This log. Raises `ShortLog` if a segment is missing."""
        if self.damage is not None:
            raise self.damage
        return self

    @property
    def forgotten(self) -> bool:
        """Whether there is no log here because all of it was forgotten."""
        return self.manifest.forgotten and self.manifest.empty

    @property
    def of_no_manifest(self) -> bool:
        """Whether there are segments or archives here, but no manifest."""
        return not self.number and bool(
            self.all_segments or any(layout.parse_archive_path(file.path) for file in self.files)
        )

    @property
    def is_on_own_disk(self) -> bool:
        """Whether segments of this log are not in the root, and the manifest has the address of the
        agent that has them on its disk. Whether that agent runs is not checked."""
        return bool(self.manifest.address) and not self.manifest.is_whole(self.wal)

    @property
    def misplaced(self) -> str:
        """Why the segments beside the manifest are not all of this log; "" if they are."""
        return self.missing if self.number else ""

    @cached_property
    def wal_bytes(self) -> int:
        return sum(segment.bytes for segment in self.all_segments)

    @cached_property
    def _archives(self) -> tuple[tuple[Archive, ...], tuple[tuple[ListFile, LogError], ...]]:
        damaged: list[tuple[ListFile, LogError]] = []
        archives = self.manifest.archives.readable(damaged)
        return archives, tuple(damaged)

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

    @property
    def last(self) -> tuple[int, int]:
        """(epoch, number) of the last segment that is not archived; (0, 0) if there is none."""
        return self.segments[-1].name if self.segments else (0, 0)

    def why_missing(self, directory: str) -> str:
        """Why the log that the cluster's manifest has for this node cannot be read; "" if it
        can."""
        if not self.manifest.directory:
            return self.missing or f"there is no log in {self.folder}"
        if self.manifest.directory != directory:
            return (
                f"{self.folder} has log directory {self.manifest.directory}, but {directory} is "
                "registered"
            )
        return self.missing

    def is_part_of(self, directory: str) -> bool:
        """Whether this is what a node whose disk cannot be read uploaded of that log."""
        return bool(self.manifest.address) and self.manifest.directory == directory

    def replaced(
        self, cluster: ClusterManifest, opened: Mapping[str, epochs.Name]
    ) -> LogError | None:
        """The error if the node's folder was replaced by an older or another copy. `opened`: the
        newest opened epoch of each log."""
        if self.missing or not self.manifest.directory:
            return None
        return replaced(self.folder, self.name, self.manifest, self.last, cluster, opened)


@dataclass(frozen=True)
class ClusterState:
    """All logs of a cluster when they were looked at. `demand` returns the state to read.

    Attributes:
        manifest: The cluster's manifest; an empty one if there is none.
        nodes: The registered nodes whose log can be read.
        missing: The registered nodes whose log is missing, with the reason.
        number: The number of the cluster's manifest; 0: there is none.
        parts: Of missing nodes whose own disk cannot be read, what they uploaded.
        damage: Missing segments, and manifests that are older than the files beside them.
        namespace, cluster: The names of the cluster.
        opened: Log directory → number and id of the newest epoch in which it was opened.
        folders: All nodes that have a folder, registered or not. This and the following are only
            in a look at everything.
        claims: The manifest of claims.
        claims_number: Its number; 0: there is none.
        snapshot_files: The number of snapshot files, if there is no manifest of the cluster.
        lost: Manifest folder → the errors of newer manifests that cannot be read, newest first.
    """

    manifest: ClusterManifest
    nodes: Mapping[str, NodeState]
    missing: Mapping[str, str]
    number: int = 0
    parts: Mapping[str, NodeState] = field(default_factory=dict)
    damage: tuple[LogError, ...] = ()
    namespace: str = ""
    cluster: str = ""
    opened: Mapping[str, epochs.Name] = field(default_factory=dict)
    folders: tuple[NodeState, ...] = ()
    claims: ClaimManifest = field(default_factory=ClaimManifest)
    claims_number: int = 0
    snapshot_files: int = 0
    lost: Mapping[str, tuple[LogError, ...]] = field(default_factory=dict)

    def without_damage(self) -> Self:
        """These logs. Raises the first damage: `ShortLog` names a missing segment, `CorruptLog` a
        manifest that is older than the files beside it."""
        if self.damage:
            raise self.damage[0]
        return self

    def __str__(self) -> str:
        return f"{self.namespace}/{self.cluster}"

    @property
    def folder(self) -> str:
        return layout.cluster_folder(self.namespace, self.cluster)

    @property
    def claims_folder(self) -> str:
        """The folder of the manifests of claims."""
        return f"{self.folder}/claims/manifest"

    # ---- what has a folder ----

    @property
    def all_nodes(self) -> tuple[NodeState, ...]:
        """All logs that have a folder, readable or not."""
        return tuple(node for node in self.folders if not node.forgotten)

    @property
    def forgotten(self) -> tuple[NodeState, ...]:
        """Folders of forgotten nodes, without a log (see
        `imap_wal.agent.membership.forget_node`)."""
        return tuple(node for node in self.folders if node.forgotten)

    @property
    def of_no_manifest(self) -> str:
        """The files that exist without a manifest of the cluster; "" if there is one, or if there
        are no files."""
        if self.number:
            return ""
        logs = f"the logs of {', '.join(map(repr, self.begun_logs))}" if self.begun_logs else ""
        snapshots = f"{self.snapshot_files} files of snapshots" if self.snapshot_files else ""
        return " and ".join(filter(None, (logs, snapshots)))

    @property
    def begun_logs(self) -> list[str]:
        """Nodes whose log was registered. A log is registered before its first entry. An open that
        failed before that left a manifest, and no entry is lost."""
        return [
            node.name
            for node in self.all_nodes
            if node.of_no_manifest
            or node.manifest.archives
            or node.manifest.cluster != NOTHING_SEEN
            or node.manifest.directory in self.opened
        ]

    @property
    def begun(self) -> int:
        """The newest incarnation that began with a cluster lifetime; 0 if there is none."""
        return max((lifetime.incarnation for lifetime in self.manifest.lifetimes), default=0)

    @property
    def missing_nodes(self) -> list[str]:
        """Nodes that have written, and whose log is missing or was replaced by another log of the
        same name."""
        present = {node.name: node.manifest.directory for node in self.all_nodes}
        return sorted(
            name
            for name, directory in self.manifest.nodes.items()
            if present.get(name) != directory
        )

    @property
    def unreadable_nodes(self) -> list[str]:
        """Missing nodes, and nodes without segments: their disk may not be mounted. A restart
        refuses to continue without them."""
        away = [node.name for node in self.all_nodes if not node.manifest.is_whole(node.wal)]
        return sorted({*self.missing_nodes, *away})

    @property
    def returned_nodes(self) -> list[str]:
        """Forgotten nodes whose folder has the forgotten log again, such as that of a lost disk
        that came back. It is not read, and cannot be opened."""
        forgotten = self.manifest.forgotten
        return [node.name for node in self.all_nodes if node.manifest.directory in forgotten]

    def state_of(self, name: str) -> str:
        """The state of a node, for people: MISSING, "own disk", forgotten, closed, or "open or
        crashed". "own disk": a part of its log is only there (`NodeState.is_on_own_disk`)."""
        nodes = {node.name: node for node in self.folders}
        if name in self.unreadable_nodes:
            on_disk = name not in self.missing_nodes and nodes[name].is_on_own_disk
            return "own disk" if on_disk else "MISSING"
        if name in self.returned_nodes or nodes[name].forgotten:
            return "forgotten"
        return "closed" if nodes[name].manifest.clean else "open or crashed"

    @cached_property
    def _snapshots(self) -> tuple[dict[str, Snapshot], tuple[DamagedPartList, ...]]:
        damaged: list[DamagedPartList] = []
        snapshots = dict(self.manifest.snapshots.items())
        for name, snapshot in self.manifest.snapshots.items():
            wrong: list[tuple[ListFile, LogError]] = []
            if snapshot.files.lists:
                files = snapshot.files.readable(wrong)
                snapshots[name] = replace(snapshot, files=Listed(files)) if wrong else snapshot
            damaged += [DamagedPartList(name, file, error) for file, error in wrong]
        return snapshots, tuple(damaged)

    @property
    def snapshots(self) -> dict[str, Snapshot]:
        """Map → its snapshot, without the files of damaged lists."""
        return self._snapshots[0]

    @property
    def damaged_lists(self) -> tuple[DamagedPartList, ...]:
        """The list files of snapshots that cannot be read."""
        return self._snapshots[1]

    @property
    def snapshot_bytes(self) -> int:
        return sum(snapshot.bytes for snapshot in self.manifest.snapshots.values())

    def names(self, node: NodeState) -> tuple[str, str, str]:
        """The names of a node's log: namespace, cluster, node."""
        return self.namespace, self.cluster, node.name

    def home(self, node: NodeState, segment: SegmentFile) -> Home:
        """The place of a segment of that node, from its name and the node's manifest."""
        return Home(*self.names(node), node.manifest.directory, segment.epoch, segment.number)

    def place(
        self, node: NodeState, manifest: NodeManifest, segment: SegmentFile, *, followed: bool
    ) -> Place:
        """A segment's place in the log of a node, by all manifests. A snapshot's mark names a frame
        that existed, just as a checkpoint does: if the frame is missing, entries of the log are
        lost, though the snapshot has them."""
        name, checkpoint = segment.name, manifest.checkpoint
        marks = self.manifest.marks(node.name, node.manifest).values()
        return Place(
            segment.path,
            manifest.directory,
            *name,
            followed,
            max((end for end in (*marks, checkpoint) if end[:2] == name), default=checkpoint),
            max(manifest.newest, checkpoint.segment),
            epochs.ids(manifest.epochs, segment.epoch),
        )

    # ---- what is read ----

    @property
    def lacking(self) -> Mapping[str, str]:
        """The missing nodes that may have acknowledged changes which no readable log has, with the
        reason. A change is not lost if more logs have it than nodes are missing."""
        return {
            name: why
            for name, why in self.missing.items()
            if self._acks_of_unseen(name) <= len(self.missing)
        }

    @property
    def covered_by_copies(self) -> frozenset[str]:
        """The missing nodes of which other logs have every acknowledged change."""
        return frozenset(self.missing.keys() - self.lacking.keys())

    def _acks_of_unseen(self, name: str) -> int:
        """At least how many logs have each acknowledged change in the segments that are only on
        this node's disk."""
        part = self.parts.get(name)
        if part is None:
            return 1
        seen = max(part.last[1], part.manifest.archived[1])
        return self.manifest.acks_from(name, part.manifest, seen + 1)

    @property
    def seen(self) -> Seen:
        """What a process that acts on this state has seen of the cluster."""
        return self.manifest.seen(self.number)

    def removed(self) -> dict[str, Position]:
        """Node → the position up to which its log may lack entries that snapshots cover."""
        return {name: node.manifest.removed for name, node in self.nodes.items()} | self.gone()

    def gone(self) -> dict[str, Position]:
        """The nodes of backfills that a prune has removed, and their last positions. Snapshots
        cover them, and their names are never used again."""
        ends: dict[str, Position] = {}
        for snapshot in self.manifest.snapshots.values():
            for node, mark in snapshot.marks.items():
                if node not in self.manifest.nodes and layout.is_backfill(node):
                    ends[node] = max(mark.position, ends.get(node, START))
        return ends

    def end_of_gone(self, node: str, directory: str) -> Position | None:
        """The last position of a log that was forgotten, or of a backfill that a prune has removed;
        None: the log exists, or its end is not known."""
        end = self.manifest.forgotten.get(directory)
        return self.gone().get(node) if end is None else end

    def cuts(self, node: str) -> tuple[tuple[int, Position], ...]:
        """(incarnation, position) of each cluster lifetime: entries of older incarnations after the
        position are void. A node that a lifetime does not name had no log when it began."""
        return tuple(
            (lifetime.incarnation, lifetime.cuts.get(node, START))
            for lifetime in self.manifest.lifetimes
        )

    def covered(self, node: str) -> dict[str, Position]:
        """Map → position up to which a snapshot covers this node's entries."""
        return self.manifest.marks(node, self.nodes[node].manifest)

    def complete(self, node: str) -> Position:
        """The position up to which snapshots cover this node's entries of all maps."""
        return self.manifest.complete(node, self.nodes[node].manifest)

    def overtaken(self) -> Overtaken:
        """Map → partition → pair, for entries above the marks of that map's snapshot."""
        tables = {name: self.manifest.versions_of(name).pairs for name in self.manifest.snapshots}
        return {name: pairs for name, pairs in tables.items() if pairs}

    def marked(self, node: str, position: Position) -> Position:
        """A position of a node with the id of its epoch; without one if the node is gone."""
        if node not in self.nodes:
            return position
        return epochs.marked(self.nodes[node].manifest.epochs, position)

    def plain(self, places: Mapping[str, Position]) -> dict[str, Position]:
        """Positions without their ids. Raises `OtherHistory` if the log of a node has another
        history. A node that cannot be read is not checked, nor a position that is forgotten because
        what followed it was removed."""
        logs = {node: log.manifest for node, log in self.nodes.items()}
        return {
            node: epochs.demand(logs[node].epochs, place, f"node {node!r}", logs[node].removed)
            if node in logs
            else place
            for node, place in places.items()
        }

    def demand(self, policy: RecoveryPolicy) -> ClusterState:
        """The state whose entries are to be read. Its nodes include `parts`: other logs have copies
        only of the entries that these parts lack. Raises `MissingNode` if entries of a registered
        node are missing, unless other logs have them, or the policy allows it."""
        if policy is RecoveryPolicy.FULL:
            _refuse(self.lacking)
        return replace(self, nodes={**self.nodes, **self.parts}) if self.parts else self

    def demand_all(self, policy: RecoveryPolicy = RecoveryPolicy.FULL) -> None:
        """Raises `MissingNode` unless all registered nodes can be read, or the policy allows it:
        for work on the logs themselves, for which a copy elsewhere is not enough."""
        if policy is RecoveryPolicy.FULL:
            _refuse(self.missing)


def _refuse(missing: Mapping[str, str]) -> None:
    if missing:
        reasons = "; ".join(f"node {node!r}: {why}" for node, why in missing.items())
        raise MissingNode(reasons, MISSING_ADVICE)
