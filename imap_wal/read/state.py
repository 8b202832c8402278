"""The logs of a cluster as they were when they were looked at: manifests and listings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imap_wal.errors import MissingNode
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest, Seen
from imap_wal.manifest.older import MISSING_ADVICE
from imap_wal.read.file_scan import Overtaken
from imap_wal.segment.listing import SegmentFile
from imap_wal.settings import RecoveryPolicy


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node's log as it was when it was looked at. `segments` are those that are not archived,
    in order, without gaps. `missing`: why its segments cannot be read here; "" where they can."""

    name: str
    folder: str
    manifest: NodeManifest
    segments: tuple[SegmentFile, ...]
    missing: str = ""

    @property
    def last(self) -> tuple[int, int]:
        """(epoch, number) of the last segment that is not archived; (0, 0) where there is none."""
        return self.segments[-1].name if self.segments else (0, 0)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All logs of a cluster as they stood. `missing`: registered nodes whose log is not there, with
    why."""

    manifest: ClusterManifest
    nodes: Mapping[str, NodeState]
    missing: Mapping[str, str]
    number: int = 0
    """Of the cluster's manifest."""

    @property
    def seen(self) -> Seen:
        """What whoever acts on this state has seen of the cluster."""
        return self.manifest.seen(self.number)

    def cuts(self, node: str) -> tuple[tuple[int, Position], ...]:
        """(incarnation, position) of each cluster lifetime: what an older incarnation has after
        the position is void. A node that a lifetime does not name had no log when it began."""
        return tuple(
            (lifetime.incarnation, lifetime.cuts.get(node, START))
            for lifetime in self.manifest.lifetimes
        )

    def covered(self, node: str) -> dict[str, Position]:
        """Map → position at or below which a snapshot holds what this node wrote to it. Marks of
        another log directory do not count."""
        directory = self.nodes[node].manifest.directory
        marks = {
            name: snapshot.marks.get(node) for name, snapshot in self.manifest.snapshots.items()
        }
        return {
            name: mark.position
            for name, mark in marks.items()
            if mark is not None and mark.directory == directory
        }

    def overtaken(self) -> Overtaken:
        """Map → partition → pair: what holds above the marks of that map's snapshot."""
        tables = {name: self.manifest.versions_of(name).pairs for name in self.manifest.snapshots}
        return {name: pairs for name, pairs in tables.items() if pairs}

    def demand(self, policy: RecoveryPolicy) -> None:
        """`MissingNode` unless all registered nodes are there, or the policy does without them."""
        if self.missing and policy is RecoveryPolicy.FULL:
            raise MissingNode(
                "; ".join(f"node {node!r}: {why}" for node, why in self.missing.items()),
                MISSING_ADVICE,
            )
