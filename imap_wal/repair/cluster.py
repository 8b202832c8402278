"""A repaired copy of a cluster's logs, in an empty place. The log itself is only read.

    plan    reads every byte; the items say what is kept and what is given up
    write   markers ─▶ snapshots, archives, segments ─▶ nodes' manifests ─▶ claims
            ─▶ cluster's manifest ─▶ markers are removed
    prefer  decides keys that several nodes claim for one node, by a rewrite of their maps in the
            copy, before the markers are removed

A marker is a manifest number 0 that no version reads: until a real manifest has a higher number,
the copy cannot be opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from imap_wal import layout
from imap_wal.clock import SystemRandomness
from imap_wal.context import Context
from imap_wal.errors import NotRepairable
from imap_wal.inspect import older_manifests
from imap_wal.inspect.verify import foreign_files
from imap_wal.manifest import key_checks, readers
from imap_wal.manifest.claims import ClaimManifest, claim_manifests
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.manifest.older import NO_MANIFEST_ADVICE
from imap_wal.manifest.store import C, ManifestLog, manifest_number, with_checksum
from imap_wal.names import encode
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.repair.cluster_manifest import ClaimsRepair, ManifestRepair
from imap_wal.repair.node import NodeRepair
from imap_wal.repair.node_plan import NodePlan
from imap_wal.repair.report import COPIED, GIVEN_UP, LEFT_OUT, Extent, Item
from imap_wal.repair.snapshots import SnapshotRepair
from imap_wal.rewrite import conflicts
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.report import MapRewrite
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import RecoveryPolicy
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget

UNFINISHED = "of an imap-wal repair that did not finish"
"""A marker has this in place of the format number, so a reader's error says "manifest format of an
imap-wal repair that did not finish"."""

FAR = 1_000_000

Files: TypeAlias = list[tuple[str, bytes]]
"""Path and content of files, in the order in which they are written."""


@dataclass
class ClusterRepair:
    """See the module's docstring. `plan` fills `items` and the other fields; `write` uses them."""

    context: Context
    view: ClusterState
    mode: str
    wants_node: Callable[[str], bool]
    tell: Callable[[str], None]
    items: list[Item] = field(default_factory=list)
    _nodes: list[NodeRepair] = field(default_factory=list)
    _snapshots: SnapshotRepair = field(init=False)
    _manifest_repair: ManifestRepair = field(init=False)
    _manifest: ClusterManifest | None = None
    _claims: ClaimManifest | None = None
    """None: the newest readable one is copied."""

    def __post_init__(self) -> None:
        self.context = self.context.with_fixed_keys()  # `plan` compares them, `write` uses them
        self.store = self.context.store
        self.clock, self.randomness = self.context.clock, self.context.randomness

    def plan(self) -> None:
        """Read everything and fill `items`. Raises `NotRepairable` if no manifest of the cluster or
        of a node is left."""
        self._demand_repairable()
        view = self.view
        self._snapshots = SnapshotRepair(self.context, view, self.wants_node, self.tell, self.items)
        view = self.view = self._snapshots.find_again()
        lost = self._lost(f"{view.folder}/manifest", view.number)
        self._manifest_repair = ManifestRepair(
            self.context, view, lost, self.wants_node, self._snapshots
        )
        unnamed = self._snapshots.unnamed() if self._manifest_repair.older else {}
        for name in sorted(view.manifest.snapshots.keys() | unnamed):
            snapshot = self._snapshots.adopted(name, unnamed.get(name, []))
            self._snapshots.decide(name, snapshot)
        self._note_missing_nodes()
        for node in view.all_nodes:
            # A node without a manifest and without files was forgotten, or its open failed.
            if self.wants_node(node.name) and node.number:
                self._plan_node(node)
        self._note_left_out()
        self._plan_manifest()

    def _lost(self, folder: str, number: int) -> int:
        """How many manifests after `number` in this folder cannot be read. Numbers grow by one and
        old manifests are kept, so a file with a number far above the others is not a manifest."""
        newest = number
        for error in reversed(self.view.lost.get(folder, ())):
            later = manifest_number(error.file.rpartition("/")[2]) or 0
            if number and later > newest + FAR:
                break
            newest = max(newest, later)
        return newest - number

    def _demand_repairable(self) -> None:
        if not self.view.number:
            raise _without_manifest(f"cluster {self.view}", self.view.folder)
        for node in filter(lambda node: self.wants_node(node.name), self.view.all_nodes):
            problem, way_out = older_manifests.other_log(self.store, self.view, node)
            if problem:
                raise NotRepairable(f"{node.folder}: {problem}; {way_out}, then repair")
            if node.of_no_manifest:
                raise _without_manifest(f"node {node.name!r}", node.folder)
        key_checks.demand_same(
            self.context.keys.key_ring, self.view.manifest.keys, f"{self.view.folder}/manifest"
        )

    def _note_missing_nodes(self) -> None:
        view = self.view
        for name in view.missing_nodes:
            if self.wants_node(name):
                reason = (
                    f"node {name!r} is registered with log directory "
                    f"{view.manifest.nodes[name]}, which is not here: the copy does not have it, "
                    "either"
                )
                self.items.append(
                    Item(
                        f"{view.folder}/nodes/{name}",
                        "node",
                        "missing",
                        GIVEN_UP,
                        given_up=Extent(),
                        what=reason,
                    )
                )

    def _plan_node(self, node: NodeState) -> None:
        lost = self._lost(f"{node.folder}/manifest", node.number)
        plan = NodePlan(
            self.context,
            self.view,
            node,
            self.mode,
            self.tell,
        )
        repair = NodeRepair(plan, lost)
        repair.plan(look_at_entries=self._manifest_repair.older)
        self._nodes.append(repair)
        self.items += repair.items

    def _note_left_out(self) -> None:
        view = self.view
        sound, damaged = readers.examined(self.store, view.folder)
        self.items += [
            Item(
                f"{layout.readers_folder(view.folder)}/{encode(name)}",
                "reader",
                "corrupt" if name in damaged else "clean",
                LEFT_OUT,
                what="the copy has no history: no former moment can be read there"
                if name == readers.HISTORY
                else f"the copy does not have reader {name!r}: start its query again there, "
                "without its checkpoint",
            )
            for name in sorted([*sound, *damaged])
        ]
        self.items += [
            Item(path, "foreign", "clean", LEFT_OUT, what="not a file of imap-wal")
            for path in foreign_files(view, self.wants_node)
        ]
        for node in view.all_nodes:
            if self.wants_node(node.name):
                aside = [
                    file.path for file in node.files if file.path.startswith(f"{node.folder}/lost/")
                ]
                self.items += [
                    Item(path, "lost", "clean", LEFT_OUT, what="put aside by an earlier recovery")
                    for path in aside
                ]

    def write(self, target: SegmentStore, prefer: str = "") -> list[MapRewrite]:
        """Write the copy. Returns the maps with claims of several nodes. `prefer`: the node whose
        claims count. After a failure, the target cannot be opened as a log, and another repair does
        not treat it as a whole copy."""
        folders = [self.view.folder, *(repair.node.folder for repair in self._nodes)]
        marker: dict[str, Any] = {"format": UNFINISHED}
        text = with_checksum(marker)
        markers = [f"{folder}/manifest/{0:010d}.json" for folder in folders]
        for path in markers:
            target.create(path, text)
        for name, snapshot in self._snapshots.planned.items():
            self._snapshots.write(target, name, snapshot)
        for repair in self._nodes:
            repair.write(target)
        for repair in self._nodes:
            if repair.wal_id:
                target.create(layout.log_path(repair.node.folder, repair.wal_id), b"")
            _create(target, self._node_manifest(repair))
        if self._claims is not None or self.view.claims_number:
            _create(target, self._claim_manifest())
        _create(target, self._cluster_manifest())
        decided = self._decide(target, prefer) if prefer else []
        for path in reversed(markers):
            target.delete(path)
        return decided

    def _decide(self, target: SegmentStore, prefer: str) -> list[MapRewrite]:
        log = ClusterLog.of(self.context.on(target), self.view)
        resolution = Resolution(prefer, alone=True)
        maps = {
            conflict.map
            for conflict in conflicts.find(log)
            if resolution.winner(conflict.claims) is not None
        }
        if not maps:
            return []
        return list(
            rewrite(
                log, LocalEngine(), maps=maps, policy=RecoveryPolicy.PARTIAL, resolve=resolution
            ).maps
        )

    @property
    def _claims_repair(self) -> ClaimsRepair:
        lost = self._lost(self.view.claims_folder, self.view.claims_number)
        return ClaimsRepair(self.view, lost, self._manifest_repair.older)

    def _node_manifest(self, repair: NodeRepair) -> Files:
        folder, number, content = repair.node.folder, repair.node.number, repair.manifest
        if content is None:
            return self._manifest_file(folder, number)
        return self._encoded(partial(NodeManifestLog, node_folder=folder), repair.number, content)

    def _claim_manifest(self) -> Files:
        view, content = self.view, self._claims
        if content is None:
            return self._manifest_file(f"{view.folder}/claims", view.claims_number)
        return self._encoded(
            partial(claim_manifests, cluster_folder=view.folder),
            self._claims_repair.number,
            content,
        )

    def _cluster_manifest(self) -> Files:
        folder, number = self.view.folder, self.view.number
        if self._manifest is None:
            lists = [(path, self.store.read(path)) for path in self._manifest_repair.lists]
            return [*lists, *self._manifest_file(folder, number)]
        content = replace(self._manifest, snapshots=self._snapshots.planned)
        return self._encoded(
            partial(ClusterManifestLog, cluster_folder=folder),
            self._manifest_repair.number,
            content,
        )

    def _encoded(self, log: Callable[[Context], ManifestLog[C]], number: int, content: C) -> Files:
        """Manifest `number` with this content, and the lists that it names, which come first."""
        name = f"imap-wal-repair-{SystemRandomness().name()}"
        scratch = MemoryStore(name)
        try:
            manifests = log(self.context.on(scratch))
            manifests.publish(number - 1, content)
            path = manifests.next_path(number - 1)
            lists = [file.path for file in scratch.list("") if layout.list_number(file.path)]
            return [(file, scratch.read(file)) for file in (*lists, path)]
        finally:
            scratch.close()
            forget(name)

    def _manifest_file(self, folder: str, number: int) -> Files:
        path = f"{folder}/manifest/{number:010d}.json"
        return [(path, self.store.read(path))]

    def _plan_manifest(self) -> None:
        fitting = self._manifest_repair.fitting(self._nodes, self._claims_repair.lost)
        self._snapshots.planned = dict(fitting.snapshots)
        self._claims, item = self._claims_repair.plan(fitting.incarnation)
        if item is not None:
            self.items.append(item)
        self._manifest, item = self._manifest_repair.plan(fitting)
        self.items.append(item)
        if self._manifest is None:
            self.items += [
                Item(path, "list", "clean", COPIED) for path in self._manifest_repair.lists
            ]


def _without_manifest(whose: str, folder: str) -> NotRepairable:
    return NotRepairable(
        f"no manifest of {whose} is left in {folder}/manifest; {NO_MANIFEST_ADVICE}"
    )


def _create(target: SegmentStore, files: Files) -> None:
    for path, content in files:
        target.create(path, content)
