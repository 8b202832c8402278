"""Raises the feature level of a log when every registered node can read it.

    node opens its log     enters its release and its highest level in its own manifest; nodes of
                           backfills have no program, and do not count
    upgrade                reads these, and publishes the level in the cluster's manifest

A node that an older release opens in between keeps no level in its manifest, or finds the raised
one and refuses the log.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from imap_wal import layout
from imap_wal.clock import Clock, Randomness
from imap_wal.manifest.cluster import ClusterManifest, cluster_manifests
from imap_wal.manifest.feature_level import FIRST, NEWEST, FeatureLevel
from imap_wal.manifest.node import node_manifests
from storage_backends import SegmentStore


@dataclass(frozen=True, slots=True)
class NodeLevel:
    """What the program that last opened a node's log can read. `release`: its version; "": it did
    not know levels, or the log is missing."""

    node: str
    release: str
    level: int
    missing: bool = False

    def __str__(self) -> str:
        if self.missing:
            return f"node {self.node!r}, whose log is missing"
        return (
            f"node {self.node!r}, last opened by "
            f"{f'imap-wal {self.release}' if self.release else 'an older imap-wal'}, "
            f"which reads levels up to {self.level}"
        )


@dataclass(frozen=True, slots=True)
class LevelReport:
    """The level of a log, and those that its nodes can read."""

    level: FeatureLevel
    nodes: tuple[NodeLevel, ...]

    @property
    def possible(self) -> FeatureLevel:
        """The highest level that all nodes and this release can read, never below `level`."""
        lowest = min((each.level for each in self.nodes), default=NEWEST)
        return max(self.level, *(each for each in FeatureLevel if each <= max(lowest, FIRST)))

    @property
    def refused(self) -> str:
        """Why the newest level cannot be reached; "" if it can."""
        older = [str(each) for each in self.nodes if each.level < NEWEST]
        return (
            f"level {NEWEST:d} needs every node to read it, and these cannot: {'; '.join(older)}. "
            "Upgrade their programs and start them, or forget the nodes (imap-wal forget-node)"
            if older and self.level < NEWEST
            else ""
        )


class Upgrade:
    """The feature level of one log."""

    def __init__(
        self, store: SegmentStore, cluster_folder: str, clock: Clock, randomness: Randomness
    ) -> None:
        self._store, self._folder, self._clock, self._randomness = (
            store,
            cluster_folder,
            clock,
            randomness,
        )
        self._clusters = cluster_manifests(store, cluster_folder, clock, randomness)

    def report(self) -> LevelReport:
        """The level now. Raises the errors of `ManifestLog.read`."""
        return self._report(self._clusters.read()[1])

    def run(self, fenced: Collection[str] = ()) -> LevelReport:
        """Raise the level as far as all nodes can read. `fenced`: nodes whose programs write no
        more, so they need not read it. Returns the report after that."""
        reports = []

        def change(manifest: ClusterManifest) -> ClusterManifest | None:
            reports.append(self._report(manifest, fenced))
            possible = reports[-1].possible
            return replace(manifest, level=possible) if possible > reports[-1].level else None

        level = self._clusters.update(change).feature_level
        return replace(reports[-1], level=level)

    def _report(self, manifest: ClusterManifest, fenced: Collection[str] = ()) -> LevelReport:
        nodes = (
            self._level_of(node, directory)
            for node, directory in sorted(manifest.nodes.items())
            if node not in fenced and not layout.is_backfill(node)
        )
        return LevelReport(manifest.feature_level, tuple(nodes))

    def _level_of(self, node: str, directory: str) -> NodeLevel:
        folder = layout.node_folder(self._folder, node)
        found = node_manifests(self._store, folder, self._clock, self._randomness).read()[1]
        if found.directory != directory:
            return NodeLevel(node, "", FIRST, missing=True)
        return NodeLevel(node, found.release, found.level or FIRST)
