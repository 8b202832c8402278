"""The cluster's manifest of a repaired copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.inspect import older_manifests
from imap_wal.manifest import key_checks
from imap_wal.manifest.claims import CLOSED_ADVICE, ClaimManifest
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.epochs import Name, fork, named
from imap_wal.manifest.snapshots import LowWaterMark, lists_of, names_of, position_in
from imap_wal.parquet import salvage
from imap_wal.read.state import ClusterState
from imap_wal.repair.former import Former
from imap_wal.repair.node import Highest, NodeRepair
from imap_wal.repair.report import COPIED, REWRITTEN, Extent, Item
from imap_wal.repair.snapshots import SnapshotRepair


class ManifestRepair:
    """The part of `ClusterRepair` for the cluster's manifest. `lost`: how many of its newest
    manifests cannot be read."""

    def __init__(
        self,
        context: Context,
        view: ClusterState,
        lost: int,
        wants_node: Callable[[str], bool],
        snapshots: SnapshotRepair,
    ) -> None:
        self._context, self._view, self._lost = context, view, lost
        self._wants_node, self._snapshots = wants_node, snapshots
        self._seen, self._newer = older_manifests.of_cluster(view)

    @property
    def older(self) -> bool:
        """Whether the cluster's manifest in use is older than the files next to it."""
        return self._lost > 0 or bool(self._newer)

    @property
    def number(self) -> int:
        """The number of the copy's manifest. A node refuses a lower number than it has seen."""
        return max(self._view.number + self._lost, self._seen.number) + 1

    def fitting(self, nodes: Sequence[NodeRepair], claims_lost: int) -> ClusterManifest:
        """The manifest of the copy: its positions are those of the repaired logs. `claims_lost`:
        how many manifests of claims cannot be read."""
        view, manifest, lost = self._view, self._view.manifest, self._lost
        highest = self._highest(nodes)
        repairs = {repair.node.name: repair for repair in nodes}

        def moved(marks: Mapping[str, LowWaterMark]) -> dict[str, LowWaterMark]:
            return {
                node: repairs[node].mark(mark) if node in repairs else mark
                for node, mark in marks.items()
            }

        def lowered(
            marks: Mapping[str, LowWaterMark], former: Former | None
        ) -> dict[str, LowWaterMark]:
            """Down to those of the former snapshot, or to what is removed."""
            floors = moved(former.snapshot.marks) if former is not None else {}
            return {
                node: replace(
                    mark,
                    position=min(
                        mark.position,
                        max(repairs[node].removed, position_in(mark.directory, floors.get(node))),
                    ),
                )
                if node in repairs
                else mark
                for node, mark in marks.items()
            }

        others = {node for node, repair in repairs.items() if repair.other_copy}
        snapshots = {
            name: replace(
                snapshot,
                marks=moved(snapshot.marks),
                mixed=snapshot.mixed or not others.isdisjoint(snapshot.marks),
                versions=snapshot.versions if others.isdisjoint(snapshot.marks) else 0,
            )
            for name, snapshot in self._snapshots.planned.items()
        }
        versions = dict(manifest.versions)
        for name, former in self._snapshots.incomplete.items():
            snapshot = snapshots[name]
            # The logs may still have what was dropped before.
            if former is not None or not snapshot.dropped:
                # What is below the mark until now may have lower versions than its table.
                number = former.snapshot.versions if former is not None else 0
                if former is not None and number:
                    versions[number] = former.versions
                marks = lowered(snapshot.marks, former)
                snapshots[name] = replace(snapshot, marks=marks, mixed=True, versions=number)
        lifetimes = tuple(
            replace(
                lifetime,
                cuts={
                    node: repairs[node].cut(cut) if node in repairs else cut
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
                if self._wants_node(name)
            },
            # Each lost manifest may have assigned one that is recorded nowhere else.
            incarnation=max(
                manifest.incarnation + lost,
                self._seen.incarnation + claims_lost,
                view.begun,
                highest.incarnation,
            ),
            generation=max(
                manifest.generation + lost, self._seen.generation, self._snapshots.generation
            ),
            keys=key_checks.with_active(self._context.keys.key_ring, manifest.keys),
            losses=self._losses(manifest),
            epochs=self._epochs(nodes),
            versions=versions,
            token=manifest.token or (self.older and bool(view.claims.tokens)),
        )

    def plan(self, fitting: ClusterManifest) -> tuple[ClusterManifest | None, Item]:
        """The copy's manifest, None if the present one is copied, and what to say about it."""
        view, folder = self._view, f"{self._view.folder}/manifest"
        name = f"{folder}/{view.number:010d}.json"
        changed = self._snapshots.rewritten or self._snapshots.lists_changed
        if fitting == view.manifest and not changed and not self.older:
            return None, Item(name, "manifest", "clean", COPIED)
        status, reason = self._why_rewritten()
        # Below this mark, a map may have lost its snapshot: the next rewrite reads everything.
        return replace(fitting, all_maps={}), Item(
            name,
            "manifest",
            status,
            REWRITTEN,
            given_up=None if status == "clean" else Extent(),
            what=reason,
            to=f"{folder}/{self.number:010d}.json",
        )

    @property
    def lists(self) -> list[str]:
        """The paths of the list files of the present manifest."""
        names = names_of(lists_of(self._view.manifest.snapshots))
        return [layout.list_path(self._view.folder, name) for name in sorted(names)]

    def _epochs(self, nodes: Sequence[NodeRepair]) -> Mapping[str, tuple[Name, ...]]:
        """The epochs that the marks of the copy are of. If the copy does not know all of them, it
        has none: then its marks count for its log directory."""
        names = dict(self._view.manifest.epochs)
        for repair in nodes:
            manifest = repair.manifest or repair.node.manifest
            is_same = repair.manifest is None and not repair.other_copy
            if manifest.directory not in names:
                continue
            if is_same:
                # A prune by a lost manifest may have removed more than the marks cover: the log
                # then forgets the epochs of these marks, but not its present one.
                former = names[manifest.directory]
                if self.older and fork(former, manifest.epochs) is None:
                    names[manifest.directory] = named(manifest.epochs, former)
                continue
            marks = map(repair.mark, self._view.manifest.covered(repair.node.name))
            farthest = max(position_in(manifest.directory, mark).epoch for mark in (*marks, None))
            del names[manifest.directory]
            if manifest.epochs and manifest.epochs[-1].number >= farthest:
                names[manifest.directory] = named(manifest.epochs)
        return names

    def _losses(self, manifest: ClusterManifest) -> Mapping[str, int]:
        """Losses after which no promise of a node is valid: a promise does not say which copies the
        repair has kept, and a lost manifest may have counted more losses."""
        promises = [
            node.manifest.copied for node in self._view.all_nodes if node.manifest.copied[0]
        ]
        if not promises:
            return manifest.losses
        above = max(losses for _, _, losses in promises) + 1
        names = {*manifest.nodes, *manifest.losses, *(node.name for node in self._view.all_nodes)}
        return {name: max(above, manifest.losses.get(name, 0)) for name in sorted(names)}

    def _why_rewritten(self) -> tuple[str, str]:
        """The status of the manifest that was found, and what is said about the new one."""
        view = self._view
        if self._lost:
            return "corrupt", (
                f"the newest manifest cannot be read; number {view.number} is used in "
                f"its place{self._forgotten()}"
            )
        if self._newer:
            return "corrupt", (
                f"this manifest is older than the files beside it ({self._newer})"
                f"{self._forgotten()}"
            )
        return "clean", "changed to fit the files that are kept"

    def _registered(self) -> dict[str, str]:
        """Node → log directory. If the manifest is older, also the nodes that joined later."""
        registered = dict(self._view.manifest.nodes)
        if self.older:
            for node in self._view.all_nodes:
                if node.manifest.directory:
                    registered.setdefault(node.name, node.manifest.directory)
        return registered

    def _highest(self, nodes: Sequence[NodeRepair]) -> Highest:
        """If the manifest is older: the highest numbers in all readable entries."""
        highest = Highest()
        for repair in nodes:
            highest = highest.up_to(repair.highest)
        if self.older:
            for snapshot in self._snapshots.planned.values():
                for path in snapshot.paths:
                    for row in salvage.rows_of(self._context, path, log=None):
                        highest = highest.with_row(row)
        return highest

    def _forgotten(self) -> str:
        adopted = (
            f"; {len(self._snapshots.taken_in)} files of snapshots that it does not name were added"
            if self._snapshots.taken_in
            else ""
        )
        there = max(self._snapshots.generation, self._view.manifest.generation)
        gone = "those that only a later snapshot had are lost, and "
        return (
            ": later drops, cuts and cluster starts are lost; of the entries, "
            f"{gone * (there < self._seen.generation)}those that a later rewrite removed may be "
            f"back{adopted}"
        )


# The claims of a repaired copy.

OF_NO_CLUSTER = "imap-wal repair"
"""A cluster id that no cluster has."""


@dataclass(frozen=True, slots=True)
class ClaimsRepair:
    """`lost`: how many of the newest manifests of claims cannot be read. `is_older`: the cluster's
    manifest in use is older than the files next to it."""

    view: ClusterState
    lost: int
    is_older: bool

    @property
    def number(self) -> int:
        """The number of the copy's manifest of claims."""
        return self.view.claims_number + self.lost + 1

    def plan(self, incarnation: int) -> tuple[ClaimManifest | None, Item | None]:
        """The copy's claims, if newer ones may be lost. After the newest readable claim, another
        cluster may have claimed the log. So the copy gets a claim of the last incarnation for no
        cluster, and every cluster that returns must be restarted. The lost manifest may also have
        had a token: unless it is known that it had none, no cluster can claim the copy until an
        operator decides. Returns None for the claims if the newest readable ones are copied, and
        what to say about them."""
        view, older = self.view, older_manifests.of_claims(self.view)
        name = f"{view.claims_folder}/{view.claims_number:010d}.json"
        if not self.lost and not older:
            return None, Item(name, "manifest", "clean", COPIED) if view.claims_number else None
        closed = (
            view.claims.closed or view.manifest.token or bool(view.claims.tokens) or self.is_older
        )
        claims = view.claims.with_claim(OF_NO_CLUSTER, incarnation)
        reason = f"it is older than the manifest of the cluster ({older})"
        if self.lost:
            name = f"{view.claims_folder}/{view.claims_number + self.lost:010d}.json"
            reason = (
                f"the newest manifest of claims cannot be read; number {view.claims_number} is "
                "used in its place"
            )
        reason += "; Hazelcast clusters must be restarted to use the copy"
        if closed:
            reason += (
                ". With them a token of this cluster may be lost, so no cluster can claim the "
                f"copy before you {CLOSED_ADVICE}"
            )
        to = f"{view.claims_folder}/{self.number:010d}.json"
        return replace(claims, closed=closed), Item(
            name, "manifest", "corrupt", REWRITTEN, given_up=Extent(), what=reason, to=to
        )
