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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from imap_wal import layout
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.errors import NotRepairable
from imap_wal.format import Position
from imap_wal.inspect import older_manifests
from imap_wal.inspect.inventory import ClusterView, NodeView
from imap_wal.inspect.verify import foreign_files
from imap_wal.manifest import key_checks
from imap_wal.manifest.archives import ListedArchives
from imap_wal.manifest.claims import CLOSED_ADVICE, ClaimManifest, claim_manifests
from imap_wal.manifest.cluster import ClusterManifest, cluster_manifests
from imap_wal.manifest.document import with_checksum
from imap_wal.manifest.feature_level import FIRST, NEWEST, FeatureLevel
from imap_wal.manifest.node import LOG, NOTHING_SEEN, Seen, node_manifests
from imap_wal.manifest.snapshots import LowWaterMark
from imap_wal.parquet import salvage
from imap_wal.read.cluster import ClusterLog
from imap_wal.repair.manifest import encoded, with_made_manifests
from imap_wal.repair.node import Highest, NodeRepair
from imap_wal.repair.node_plan import NodePlan
from imap_wal.repair.report import COPIED, GIVEN_UP, LEFT_OUT, REWRITTEN, Extent, Item
from imap_wal.repair.snapshots import SnapshotRepair
from imap_wal.retention import backfill
from imap_wal.rewrite import conflicts
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.report import MapRewrite
from imap_wal.rewrite.run import rewrite
from imap_wal.security.encryption import keys_of, with_fixed_keys, with_keys_of
from imap_wal.settings import RecoveryPolicy
from storage_backends import SegmentStore

UNFINISHED = "of an imap-wal repair that did not finish"
"""A marker has this in place of the format number, so a reader's error says "manifest format of an
imap-wal repair that did not finish"."""


OF_NO_CLUSTER = "imap-wal repair"
"""A cluster id that no cluster has."""


@dataclass
class ClusterRepair:
    """See the module. `plan` fills `items` and the other fields; `write` uses them."""

    store: SegmentStore
    view: ClusterView
    mode: str
    wants_node: Callable[[str], bool]
    tell: Callable[[str], None]
    lost_manifests: Mapping[str, int] = field(default_factory=dict)
    """Manifest folder → how many of its newest manifests cannot be read."""
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=SystemRandomness)
    drops: frozenset[Position] = frozenset()
    """Entries to leave out, of the one node that is repaired."""
    items: list[Item] = field(default_factory=list)
    _nodes: list[NodeRepair] = field(default_factory=list)
    _snapshots: SnapshotRepair = field(init=False)
    _seen: Seen = NOTHING_SEEN
    _newer: str = ""
    _manifest: ClusterManifest | None = None
    _claims: ClaimManifest | None = None
    """None: the newest readable one is copied."""

    def __post_init__(self) -> None:
        self.store = with_fixed_keys(self.store)  # `plan` compares them, `write` uses them

    def plan(self) -> None:
        """Read everything and fill `items`. Raises `NotRepairable` if manifests are missing and the
        files do not contain enough to make new ones."""
        self._demand_repairable()
        view = self.view = with_made_manifests(
            self.store, self.view, self.wants_node, self.randomness.name()
        )
        self._seen, self._newer = older_manifests.of_cluster(view)
        self._snapshots = SnapshotRepair(self.store, view, self.clock, self.tell, self.items)
        unnamed = self._snapshots.unnamed() if self.older else {}
        for name in sorted(view.manifest.snapshots.keys() | unnamed):
            snapshot = self._snapshots.adopted(name, unnamed.get(name, []))
            self._snapshots.decide(name, snapshot)
        self._note_missing_nodes()
        for node in view.nodes:
            if self.wants_node(node.name):
                self._plan_node(node)
        self._note_left_out()
        self._plan_manifest()

    def _demand_repairable(self) -> None:
        for node in self.view.nodes:
            what, way_out = (
                older_manifests.other_log(self.store, self.view, node)
                if self.wants_node(node.name)
                else ("", "")
            )
            if what:
                raise NotRepairable(f"{node.folder}: {what}; {way_out}, then repair")
        key_checks.demand_same(
            keys_of(self.store).key_ring, self.view.manifest.keys, f"{self.view.folder}/manifest"
        )

    def _note_missing_nodes(self) -> None:
        view = self.view
        for name in view.missing_nodes:
            if self.wants_node(name):
                what = (
                    f"node {name!r} is registered with log directory "
                    f"{view.manifest.nodes[name]}, which is not here: the copy lacks it too"
                )
                self.items.append(
                    Item(
                        f"{view.folder}/nodes/{name}",
                        "node",
                        "missing",
                        GIVEN_UP,
                        given_up=Extent(),
                        what=what,
                    )
                )

    def _plan_node(self, node: NodeView) -> None:
        lost = self.lost_manifests.get(f"{node.folder}/manifest", 0)
        plan = NodePlan(
            self.store,
            self.view,
            node,
            self.mode,
            self.clock,
            self.randomness,
            self.tell,
            self.drops,
        )
        repair = NodeRepair(plan, lost)
        repair.plan(look_at_entries=self.older)
        self._nodes.append(repair)
        self.items += repair.items

    def _note_left_out(self) -> None:
        view = self.view
        self.items += [
            Item(path, "foreign", "clean", LEFT_OUT, what="not of imap-wal")
            for path in foreign_files(view, self.wants_node)
        ]
        for node in view.nodes:
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
        target = with_keys_of(self.store, target)
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
            target.create(*self._node_manifest(repair))
        if self._claims is not None or self.view.claims_number:
            target.create(*self._claim_manifest())
        target.create(*self._cluster_manifest())
        decided = self._decide(target, prefer) if prefer else []
        for path in reversed(markers):
            target.delete(path)
        return decided

    def _decide(self, target: SegmentStore, prefer: str) -> list[MapRewrite]:
        log = ClusterLog(
            target, self.view.namespace, self.view.cluster, self.clock, self.randomness
        )
        resolution = Resolution(prefer, alone=True)
        maps = {
            each.map for each in conflicts.find(log) if resolution.winner(each.claims) is not None
        }
        if not maps:
            return []
        return list(
            rewrite(
                log, LocalEngine(), maps=maps, policy=RecoveryPolicy.PARTIAL, resolve=resolution
            ).maps
        )

    @property
    def older(self) -> bool:
        """Whether the cluster's manifest in use is older than the files next to it: newer manifests
        are lost, or all of them."""
        return self._lost > 0 or bool(self._newer) or not self.view.manifest_number

    @property
    def _lost(self) -> int:
        return self.lost_manifests.get(f"{self.view.folder}/manifest", 0)

    @property
    def _lost_claims(self) -> int:
        return self.lost_manifests.get(self.view.claims_folder, 0)

    @property
    def _claims_number(self) -> int:
        return self.view.claims_number + self._lost_claims + 1

    @property
    def _number(self) -> int:
        """The number of the copy's manifest. A node refuses a lower number than it has seen."""
        return max(self.view.manifest_number + self._lost, self._seen.number) + 1

    def _node_manifest(self, repair: NodeRepair) -> tuple[str, bytes]:
        folder, number, content = repair.node.folder, repair.node.manifest_number, repair.manifest
        if content is None:
            return self._manifest_file(folder, number)
        return encoded(
            lambda store: node_manifests(store, folder, self.clock, self.randomness),
            repair.number,
            content,
        )

    def _claim_manifest(self) -> tuple[str, bytes]:
        view, content = self.view, self._claims
        if content is None:
            return self._manifest_file(f"{view.folder}/claims", view.claims_number)
        return encoded(
            lambda store: claim_manifests(store, view.folder, {}, self.clock, self.randomness),
            self._claims_number,
            content,
        )

    def _cluster_manifest(self) -> tuple[str, bytes]:
        folder, number = self.view.folder, self.view.manifest_number
        if self._manifest is None:
            return self._manifest_file(folder, number)
        content = replace(self._manifest, snapshots=self._snapshots.planned)
        return encoded(
            lambda store: cluster_manifests(store, folder, self.clock, self.randomness),
            self._number,
            content,
        )

    def _manifest_file(self, folder: str, number: int) -> tuple[str, bytes]:
        path = f"{folder}/manifest/{number:010d}.json"
        return path, self.store.read(path)

    # ---- the cluster's manifest ----

    def _plan_manifest(self) -> None:
        view, folder = self.view, f"{self.view.folder}/manifest"
        fitting = self._fitting()
        name = f"{folder}/{view.manifest_number:010d}.json" if view.manifest_number else folder
        self._snapshots.planned = dict(fitting.snapshots)
        if not view.manifest_number:
            self._note_unknown_logs(fitting.nodes.values())
        self._plan_claims(fitting.incarnation)
        if fitting == view.manifest and not self._snapshots.anew and not self.older:
            self.items.append(Item(name, "manifest", "clean", COPIED))
            return
        # Below this mark, a map may have lost its snapshot: the next rewrite reads everything.
        self._manifest = replace(fitting, all_maps={})
        status, what = self._why_rewritten()
        self.items.append(
            Item(
                name,
                "manifest",
                status,
                REWRITTEN,
                given_up=None if status == "clean" else Extent(),
                what=what,
                to=f"{folder}/{self._number:010d}.json",
            )
        )

    def _fitting(self) -> ClusterManifest:
        """The manifest of the copy: its positions are those of the repaired logs."""
        view, manifest, lost = self.view, self.view.manifest, self._lost
        highest = self._highest()
        repairs = {repair.node.name: repair for repair in self._nodes}

        def moved(marks: Mapping[str, LowWaterMark]) -> dict[str, LowWaterMark]:
            return {
                node: LowWaterMark(mark.directory, repairs[node].position(mark.position))
                if node in repairs
                else mark
                for node, mark in marks.items()
            }

        snapshots = {
            name: replace(snapshot, marks=moved(snapshot.marks))
            for name, snapshot in self._snapshots.planned.items()
        }
        lifetimes = tuple(
            replace(
                lifetime,
                cuts={
                    node: repairs[node].position(cut) if node in repairs else cut
                    for node, cut in lifetime.cuts.items()
                },
            )
            for lifetime in manifest.lifetimes
        )
        return replace(
            manifest,
            snapshots=snapshots,
            all_maps=moved(manifest.all_maps),
            lifetimes=lifetimes,
            nodes={
                name: directory
                for name, directory in self._registered().items()
                if self.wants_node(name)
            },
            # Each lost manifest may have assigned one that is recorded nowhere else.
            incarnation=max(
                manifest.incarnation + lost,
                self._seen.incarnation + self._lost_claims,
                view.begun,
                highest.incarnation,
            ),
            generation=max(
                manifest.generation + lost, self._seen.generation, self._snapshots.generation
            ),
            keys=key_checks.with_active(keys_of(self.store).key_ring, manifest.keys),
            losses=self._losses(manifest),
            token=manifest.token or (self.older and bool(view.claims.tokens)),
            level=self._level(highest) if self.older else manifest.level,
        )

    def _losses(self, manifest: ClusterManifest) -> Mapping[str, int]:
        """Losses after which no promise of a node is valid: it does not say which of the copies the
        repair has kept, and a lost manifest may have counted more."""
        promises = [node.manifest.copied for node in self.view.nodes if node.manifest.copied[0]]
        if not promises:
            return manifest.losses
        above = max(losses for _, _, losses in promises) + 1
        names = {*manifest.nodes, *manifest.losses, *(node.name for node in self.view.nodes)}
        return {name: max(above, manifest.losses.get(name, 0)) for name in sorted(names)}

    def _why_rewritten(self) -> tuple[str, str]:
        """The status of the manifest that was found, and what is said about the new one."""
        view = self.view
        if not view.manifest_number:
            return "missing", (
                "no manifest of the cluster can be read: this one is made from the files that "
                f"are here{self._forgotten()}"
            ) + (
                ""
                if view.logs
                else "; no log of a node is here, so changes after the snapshots are lost"
            )
        if self._lost:
            return "corrupt", (
                f"the newest manifest cannot be read; number {view.manifest_number} is used in "
                f"its place{self._forgotten()}"
            )
        if self._newer:
            return "corrupt", (
                f"this manifest is older than the files beside it ({self._newer})"
                f"{self._forgotten()}"
            )
        return "clean", "made to fit what is kept"

    def _note_unknown_logs(self, known: Collection[str]) -> None:
        """Adds items for logs that were opened in this cluster and have no files here."""
        wanted = {node.manifest.directory for node in self.view.nodes}
        for directory in sorted(self.view.opened.keys() - set(known) - wanted):
            what = (
                f"log {directory} was opened in this cluster, and no file of it is here: it was "
                "lost, or another one replaced it"
            )
            self.items.append(
                Item(
                    layout.opened_path(self.view.folder, directory, self.view.opened[directory]),
                    "node",
                    "missing",
                    GIVEN_UP,
                    given_up=Extent(),
                    what=what,
                )
            )

    def _plan_claims(self, incarnation: int) -> None:
        """The copy's claims, if newer ones may be lost. After the newest readable claim, another
        cluster may have claimed the log. So the copy gets a claim of the last incarnation for no
        cluster, and every cluster that returns must start anew. The lost manifest may also have had
        a token: unless it is known that it had none, no cluster can claim the copy until an
        operator decides."""
        view, older = self.view, older_manifests.of_claims(self.view)
        name = f"{view.claims_folder}/{view.claims_number:010d}.json"
        unknown = self._claims_unknown
        if not self._lost_claims and not older and not unknown:
            if view.claims_number:
                self.items.append(Item(name, "manifest", "clean", COPIED))
            return
        closed = view.claims.closed or view.manifest.token or bool(view.claims.tokens) or self.older
        # A claim shows that members write here. Without any manifest it may be a log of programs.
        claims = view.claims if unknown else view.claims.with_claim(OF_NO_CLUSTER, incarnation)
        self._claims = replace(claims, closed=closed)
        what = f"it is older than the manifest of the cluster ({older})"
        if unknown:
            name, what = (
                view.claims_folder,
                "no manifest of claims and none of the cluster can be read",
            )
        if self._lost_claims:
            name = f"{view.claims_folder}/{view.claims_number + self._lost_claims:010d}.json"
            what = (
                f"the newest manifest of claims cannot be read; number {view.claims_number} is "
                "used in its place"
            )
        what += "; Hazelcast clusters start anew with the copy"
        if closed:
            what += (
                ". With them a token of this cluster may be lost, so no cluster can claim the "
                f"copy before you {CLOSED_ADVICE}"
            )
        to = f"{view.claims_folder}/{self._claims_number:010d}.json"
        self.items.append(
            Item(name, "manifest", "corrupt", REWRITTEN, given_up=Extent(), what=what, to=to)
        )

    @property
    def _claims_unknown(self) -> bool:
        """Whether there are neither claims nor a manifest of the cluster, and agents may have
        written the log: then it is unknown whether it had a token."""
        view = self.view
        of_agents = any(
            node.manifest.kind != LOG and not node.manifest.embedded for node in view.nodes
        )
        return of_agents and not view.claims_number and not view.manifest_number

    def _registered(self) -> dict[str, str]:
        """Node → log directory. If the manifest is older, also the nodes that joined later."""
        known = dict(self.view.manifest.nodes)
        if self.older:
            for node in self.view.nodes:
                if node.manifest.directory:
                    known.setdefault(node.name, node.manifest.directory)
        return known

    def _highest(self) -> Highest:
        """If the manifest is older: the highest numbers in all readable entries."""
        found = Highest()
        for repair in self._nodes:
            found = found.up_to(repair.highest)
        if self.older:
            for snapshot in self._snapshots.planned.values():
                for path in snapshot.files:
                    for row in salvage.rows_of(self.store, path, log=None):
                        found = found.with_row(row)
        return found

    def _level(self, highest: Highest) -> int:
        """The feature level, if the manifest is older: a lost one may have raised it. It was never
        above what the agents' nodes can read, and a program's own node, if all other programs were
        shut out; nodes of backfills have no reader. A level that is too high only makes older
        releases refuse the copy; with one that is too low, they would misread it."""
        manifest = self.view.manifest
        if not self.view.manifest_number:
            return int(NEWEST)
        known = [
            repair.node.manifest
            for repair in self._nodes
            if not repair.older and not repair.node.name.startswith(backfill.PREFIX)
        ]
        reads = [node.level for node in known if not node.embedded]
        programs = [node.level for node in known if node.embedded]
        reads += [max(programs)] if programs else []
        needed = FeatureLevel.COPIES if highest.shared else FIRST
        if any(repair.sorted_archives for repair in self._nodes):
            needed = max(needed, FeatureLevel.SORTED_ARCHIVES)
        if any(isinstance(repair.node.manifest.archives, ListedArchives) for repair in self._nodes):
            needed = max(needed, FeatureLevel.LISTS)
        lowest = max(min(reads, default=NEWEST), needed)
        level = max(each for each in FeatureLevel if each <= lowest)
        return int(level) if level > manifest.feature_level else manifest.level

    def _forgotten(self) -> str:
        adopted = (
            f"; {len(self._snapshots.taken_in)} files of snapshots that it does not name were "
            "taken in"
            if self._snapshots.taken_in
            else ""
        )
        return (
            ": later drops, cuts and cluster starts are forgotten, and what a later rewrite "
            f"made final may be back{adopted}"
        )
