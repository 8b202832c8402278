"""The logs of a cluster as they were when they were looked at: manifests and listings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from imap_wal import layout
from imap_wal.errors import MissingNode
from imap_wal.format import START, Position
from imap_wal.manifest import epochs
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest, Seen
from imap_wal.manifest.older import MISSING_ADVICE, mark_beyond, older_epoch
from imap_wal.read.file_scan import Overtaken
from imap_wal.segment.listing import SegmentFile
from imap_wal.settings import RecoveryPolicy


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node's log when it was read. `segments` are those that are not archived, in order,
    without gaps. `missing`: why its segments cannot be read here; "" if they can."""

    name: str
    folder: str
    manifest: NodeManifest
    segments: tuple[SegmentFile, ...]
    missing: str = ""

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

    def why_older(self, cluster: ClusterManifest, opened: Mapping[str, int]) -> str:
        """Why the node's folder was replaced by an older copy; "" if it was not. `opened`: the
        newest opened epoch of each log."""
        if self.missing or not self.manifest.directory:
            return ""
        return mark_beyond(self.name, self.manifest, self.last, cluster) or older_epoch(
            self.manifest, opened
        )


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All logs of a cluster. `missing`: registered nodes whose log is missing, with the reason.
    `parts`: of those whose own disk cannot be read, what they uploaded. `demand` returns the state
    to read."""

    manifest: ClusterManifest
    nodes: Mapping[str, NodeState]
    missing: Mapping[str, str]
    number: int = 0
    """The number of the cluster's manifest."""
    parts: Mapping[str, NodeState] = field(default_factory=dict)

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
        return {node: each.manifest.removed for node, each in self.nodes.items()} | self.gone()

    def gone(self) -> dict[str, Position]:
        """The nodes of backfills that a prune has removed, and their last positions. Snapshots
        cover them, and their names are never used again."""
        found: dict[str, Position] = {}
        for snapshot in self.manifest.snapshots.values():
            for node, mark in snapshot.marks.items():
                if node not in self.manifest.nodes and layout.is_backfill(node):
                    found[node] = max(mark.position, found.get(node, START))
        return found

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
        """Map → position up to which a snapshot covers this node's entries. Marks of another log
        directory do not count."""
        return self.manifest.marks(node, self.nodes[node].manifest.directory)

    def complete(self, node: str) -> Position:
        """The position up to which snapshots cover this node's entries of all maps."""
        return self.manifest.complete(node, self.nodes[node].manifest.directory)

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
        history. A node that cannot be read is not checked."""
        return {
            node: epochs.demand(self.nodes[node].manifest.epochs, place, f"node {node!r}")
            if node in self.nodes
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
        what = "; ".join(f"node {node!r}: {why}" for node, why in missing.items())
        raise MissingNode(what, MISSING_ADVICE)
