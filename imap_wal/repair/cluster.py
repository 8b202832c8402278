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
from itertools import zip_longest
from typing import Any

from imap_wal import layout
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.encryption import keys_of
from imap_wal.entry import ORDER
from imap_wal.errors import CorruptLog, NotRepairable
from imap_wal.format import Position
from imap_wal.inspect import older_manifests
from imap_wal.inspect.inventory import ClusterView, survey
from imap_wal.inspect.verify import foreign_files
from imap_wal.manifest import key_checks
from imap_wal.manifest.cluster import (
    CLOSED_ADVICE,
    ClaimManifest,
    ClusterManifest,
    LowWaterMark,
    Snapshot,
    claim_manifests,
    cluster_manifests,
)
from imap_wal.manifest.document import with_checksum
from imap_wal.manifest.node import LOG, NOTHING_SEEN, Seen, node_manifests
from imap_wal.manifest.store import C, ManifestLog
from imap_wal.parquet import salvage
from imap_wal.parquet.file import checksum
from imap_wal.read.cluster import ClusterLog
from imap_wal.repair.manifest import with_made_manifests
from imap_wal.repair.node import NodeRepair
from imap_wal.repair.report import COPIED, GIVEN_UP, LEFT_OUT, REWRITTEN, Extent, Item
from imap_wal.rewrite import conflicts
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.report import MapRewrite
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import RecoveryPolicy
from storage_backends import NotFound, SegmentStore, StoredFile
from storage_backends.memory import MemoryStore, forget

UNFINISHED = "of an imap-wal repair that did not finish"
"""A marker has this in place of the format number, so a reader's error says "manifest format of an
imap-wal repair that did not finish"."""


OF_NO_CLUSTER = "imap-wal repair"
"""A cluster id that no cluster has."""


@dataclass
class ClusterRepair:
    """See the module's docstring."""

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
    _snapshots: dict[str, Snapshot] = field(default_factory=dict)
    _anew: set[str] = field(default_factory=set)
    _seen: Seen = NOTHING_SEEN
    _newer: str = ""
    _generation: int = 0
    """The highest generation that has a folder."""
    _taken_in: list[str] = field(default_factory=list)
    """Files of snapshots that no manifest names but the copy keeps."""
    _manifest: ClusterManifest | None = None
    _claims: ClaimManifest | None = None
    """None: the newest readable one is copied."""

    def plan(self) -> None:
        """Read everything and fill `items`. `NotRepairable` if manifests are missing and the files
        do not say enough to make new ones."""
        for node in self.view.nodes:
            what, way_out = (
                older_manifests.other_log(self.store, self.view, node)
                if self.wants_node(node.name)
                else ("", "")
            )
            if what:
                raise NotRepairable(f"{node.folder}: {what}; {way_out}, then repair")
        key_checks.demand_same(
            keys_of(self.store).ring, self.view.manifest.keys, f"{self.view.folder}/manifest"
        )
        view = self.view = with_made_manifests(
            self.store, self.view, self.wants_node, self.randomness.name()
        )
        self._seen, self._newer = older_manifests.of_cluster(view)
        unnamed = self._unnamed_snapshots() if self.older else {}
        for name in sorted(view.manifest.snapshots.keys() | unnamed):
            self._plan_snapshot(name, self._adopted(name, unnamed.get(name, [])))
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
        for node in view.nodes:
            if not self.wants_node(node.name):
                continue
            lost = self.lost_manifests.get(f"{node.folder}/manifest", 0)
            repair = NodeRepair(
                self.store,
                view,
                node,
                self.mode,
                self.clock,
                self.randomness,
                self.tell,
                lost,
                self.drops,
            )
            repair.plan(look_at_entries=self.older)
            self._nodes.append(repair)
            self.items += repair.items
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
        self._plan_manifest()

    def write(self, target: SegmentStore, prefer: str = "") -> list[MapRewrite]:
        """Write the copy. If this fails, the rest is not opened as a log, and no other repair takes
        it for a whole copy. `prefer`: the node whose claims count. Returns the maps with such
        claims."""
        folders = [self.view.folder, *(repair.node.folder for repair in self._nodes)]
        marker: dict[str, Any] = {"format": UNFINISHED}
        text = with_checksum(marker)
        markers = [f"{folder}/manifest/{0:010d}.json" for folder in folders]
        for path in markers:
            target.create(path, text)
        for name, snapshot in self._snapshots.items():
            self._write_snapshot(target, name, snapshot)
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
        """Whether the cluster's manifest in use is older than the files next to it: newer ones are
        lost, or all."""
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
        """The number of the copy's manifest. A node refuses a lower one than it has seen."""
        return max(self.view.manifest_number + self._lost, self._seen.number) + 1

    def _node_manifest(self, repair: NodeRepair) -> tuple[str, bytes]:
        folder, number, content = repair.node.folder, repair.node.manifest_number, repair.manifest
        if content is None:
            return self._manifest_file(folder, number)
        return _made(
            lambda store: node_manifests(store, folder, self.clock, self.randomness),
            repair.number,
            content,
        )

    def _claim_manifest(self) -> tuple[str, bytes]:
        view, content = self.view, self._claims
        if content is None:
            return self._manifest_file(f"{view.folder}/claims", view.claims_number)
        return _made(
            lambda store: claim_manifests(store, view.folder, {}, self.clock, self.randomness),
            self._claims_number,
            content,
        )

    def _cluster_manifest(self) -> tuple[str, bytes]:
        folder, number = self.view.folder, self.view.manifest_number
        if self._manifest is None:
            return self._manifest_file(folder, number)
        content = replace(self._manifest, snapshots=self._snapshots)
        return _made(
            lambda store: cluster_manifests(store, folder, self.clock, self.randomness),
            self._number,
            content,
        )

    def _manifest_file(self, folder: str, number: int) -> tuple[str, bytes]:
        path = f"{folder}/manifest/{number:010d}.json"
        return path, self.store.read(path)

    # ---- snapshots ----

    def _unnamed_snapshots(self) -> dict[str, list[StoredFile]]:
        """Map → files of its newest generation, if that is newer than the one that the manifest
        names. A lost manifest may have named it, and the log below it may have been removed. If no
        manifest is left, the newest generation may be of an unfinished rewrite: then all files."""
        newest: dict[str, tuple[int, list[StoredFile]]] = {}
        for file in self.store.list(f"{self.view.folder}/snapshot"):
            *_, name, number, part = file.path.split("/")
            if not number.isdigit() or not part.endswith(".parquet"):
                continue
            map_name = salvage.map_of(
                self.store, file.path, name, self.view.manifest.snapshots, log=None
            )
            if not map_name:
                continue
            self._generation = max(self._generation, int(number))
            known = self.view.manifest.snapshots.get(map_name)
            generation, files = newest.get(
                map_name, (known.generation if known is not None else 0, [])
            )
            if not self.view.manifest_number:
                newest[map_name] = max(generation, int(number)), [*files, file]
            elif int(number) >= generation and file.path not in (
                known.files if known is not None else ()
            ):
                newest[map_name] = (
                    int(number),
                    [*(files if int(number) == generation else []), file],
                )
        return {name: files for name, (_, files) in newest.items() if files}

    def _adopted(self, name: str, unnamed: list[StoredFile]) -> Snapshot:
        """The snapshot with these files added. Its marks stay as they are: the log above them is
        read, and the newest change of each key wins."""
        known = self.view.manifest.snapshots.get(name)
        if known is None:
            known = Snapshot(0, (), {}, 0, 0, 0, self.clock.now_ms())
        if not unnamed:
            return known
        there = {file.path for file in self.store.list(f"{self.view.folder}/snapshot")}
        # A missing file was replaced by the newer ones.
        old = [(path, checksum) for path, checksum in _files(known) if path in there]
        files = [*old, *((file.path, 0) for file in unnamed)]
        self._taken_in += [file.path for file in unnamed]
        return replace(
            known,
            generation=max(int(file.path.split("/")[-2]) for file in unnamed),
            files=tuple(path for path, _ in files),
            checksums=tuple(checksum for _, checksum in files),
            bytes=known.bytes + sum(file.size for file in unnamed),
            sizes=(),
            rows=(),
        )

    def _plan_snapshot(self, name: str, snapshot: Snapshot) -> None:
        files: list[str] = []
        checksums: list[int] = []
        records = tombstones = 0
        damaged = False
        for path, wanted in _files(snapshot):
            self.tell(path)
            try:
                size = self.store.size(path)
                with self.store.open_input(path) as file:
                    whole = wanted != 0 and checksum(file) == wanted
            except NotFound:
                whole, size = False, 0
            kept = salvage.survey_file(self.store, path, log=None)
            records, tombstones = records + kept.records, tombstones + kept.tombstones
            if whole or (not wanted and not kept.what):
                files.append(path)
                checksums.append(wanted)
                self.items.append(
                    Item(
                        path, "snapshot", "clean", COPIED, Extent(records=kept.records, bytes=size)
                    )
                )
                continue
            damaged = True
            lost = Extent(records=kept.lost) if kept.lost != 0 else None
            what = kept.what or "its bytes do not match the checksum that the manifest has of them"
            if not kept.records:
                self.items.append(
                    Item(path, "snapshot", "corrupt", GIVEN_UP, given_up=lost, what=what)
                )
                continue
            files.append(path)
            checksums.append(wanted)
            self._anew.add(path)
            self.items.append(
                Item(
                    path, "snapshot", "corrupt", REWRITTEN, Extent(records=kept.records), lost, what
                )
            )
        if damaged:
            live = records - tombstones
            snapshot = replace(
                snapshot,
                files=tuple(files),
                checksums=tuple(checksums),
                live=live,
                tombstones=tombstones,
                sizes=(),
                rows=(),
            )
        self._snapshots[name] = snapshot

    def _write_snapshot(self, target: SegmentStore, name: str, snapshot: Snapshot) -> None:
        checksums: list[int] = []
        size = snapshot.bytes
        for path, known in _files(snapshot):
            self.tell(path)
            if path in self._anew:
                written = salvage.rewrite_file(self.store, path, target, path, log=None)
                size += written.bytes - self.store.size(path)
                checksums.append(written.checksum)
            else:
                salvage.copy_file(self.store, path, target)
                checksums.append(known)
        if self._anew & set(snapshot.files):
            self._snapshots[name] = replace(
                snapshot, checksums=tuple(checksums), bytes=max(size, 0), sizes=(), rows=()
            )

    # ---- the cluster's manifest ----

    def _plan_manifest(self) -> None:
        view, folder = self.view, f"{self.view.folder}/manifest"
        manifest, lost = view.manifest, self._lost
        repairs = {repair.node.name: repair for repair in self._nodes}
        snapshots = {
            name: replace(
                snapshot,
                marks={
                    node: LowWaterMark(mark.directory, repairs[node].position(mark.position))
                    if node in repairs
                    else mark
                    for node, mark in snapshot.marks.items()
                },
            )
            for name, snapshot in self._snapshots.items()
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
        fitting = replace(
            manifest,
            snapshots=snapshots,
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
                self._incarnation(),
            ),
            generation=max(manifest.generation + lost, self._seen.generation, self._generation),
            keys=key_checks.with_active(keys_of(self.store).ring, manifest.keys),
            token=manifest.token or (self.older and bool(view.claims.tokens)),
        )
        name = f"{folder}/{view.manifest_number:010d}.json" if view.manifest_number else folder
        self._snapshots = snapshots
        if not view.manifest_number:
            self._note_unknown_logs(fitting.nodes.values())
        self._plan_claims(fitting.incarnation)
        if fitting == manifest and not self._anew:
            self.items.append(Item(name, "manifest", "clean", COPIED))
            return
        self._manifest = fitting
        status, given_up, what = "clean", None, "made to fit what is kept"
        if not view.manifest_number:
            status, given_up = "missing", Extent()
            what = (
                "no manifest of the cluster can be read: this one is made from the files that "
                f"are here{self._forgotten()}"
            )
            what += (
                ""
                if view.logs
                else "; no log of a node is here, so changes after the snapshots are lost"
            )
        elif lost:
            status, given_up = "corrupt", Extent()
            what = (
                f"the newest manifest cannot be read; number {view.manifest_number} is used in "
                f"its place{self._forgotten()}"
            )
        elif self._newer:
            status, given_up = "corrupt", Extent()
            what = (
                f"this manifest is older than what is beside it ({self._newer}){self._forgotten()}"
            )
        self.items.append(
            Item(
                name,
                "manifest",
                status,
                REWRITTEN,
                given_up=given_up,
                what=what,
                to=f"{folder}/{self._number:010d}.json",
            )
        )

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
        """The copy's claims, if newer ones may be lost. The cluster of the newest readable claim
        may have had a successor. So the copy has a claim of the last incarnation for no cluster,
        and every cluster that returns must start anew. The lost manifest may also have had a token:
        unless it is known that there was none, the copy is closed until an operator decides."""
        view, older = self.view, older_manifests.of_claims(self.view)
        name = f"{view.claims_folder}/{view.claims_number:010d}.json"
        unknown = self._claims_unknown
        if not self._lost_claims and not older and not unknown:
            if view.claims_number:
                self.items.append(Item(name, "manifest", "clean", COPIED))
            return
        closed = view.claims.closed or view.manifest.token or bool(view.claims.tokens) or self.older
        # A claim says that members write here. Without any manifest it may be a log of programs.
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
        """Whether neither claims nor the cluster's manifest are left, and agents may have written
        the log: then it is unknown whether it had a token."""
        view = self.view
        of_agents = any(
            node.manifest.kind != LOG and not node.manifest.embedded for node in view.nodes
        )
        return of_agents and not view.claims_number and not view.manifest_number

    def _registered(self) -> dict[str, str]:
        """Node → log directory; if the manifest is older, with nodes that joined later."""
        known = dict(self.view.manifest.nodes)
        if self.older:
            for node in self.view.nodes:
                if node.manifest.directory:
                    known.setdefault(node.name, node.manifest.directory)
        return known

    def _incarnation(self) -> int:
        """If the manifest is older: the highest of all readable entries."""
        found = [repair.highest.incarnation for repair in self._nodes]
        if self.older:
            paths = [path for snapshot in self._snapshots.values() for path in snapshot.files]
            rows = (row for path in paths for row in salvage.rows_of(self.store, path, log=None))
            found.append(max((row[ORDER][0] for row in rows), default=0))
        return max(found, default=0)

    def _forgotten(self) -> str:
        adopted = (
            f"; {len(self._taken_in)} files of snapshots that it does not name were taken in"
            if self._taken_in
            else ""
        )
        return (
            ": later drops, cuts and cluster starts are forgotten, and what a later rewrite "
            f"made final may be back{adopted}"
        )


def tolerant_survey(
    store: SegmentStore, namespaces: tuple[str, ...], clusters: tuple[str, ...]
) -> tuple[list[ClusterView], dict[str, int]]:
    """Like `survey`, but uses an older manifest if the newest is damaged. Also returns how many
    newer ones of each folder cannot be read."""
    without = _Without(store)
    while True:
        try:
            views = survey(without, namespaces, clusters)
            for view in views:  # the packed part of a manifest is parsed at its first use
                for manifest in (
                    view.manifest.snapshots,
                    *(node.manifest.archives for node in view.nodes),
                ):
                    len(manifest)
            break
        except CorruptLog as error:
            without.hidden.add(error.file)
    lost: dict[str, int] = {}
    for view in views:
        claims = f"{view.folder}/claims", view.claims_number
        for folder, number in (
            (view.folder, view.manifest_number),
            claims,
            *((node.folder, node.manifest_number) for node in view.nodes),
        ):
            hidden = [
                int(path.rpartition("/")[2][:-5])
                for path in without.hidden
                if path.startswith(f"{folder}/manifest/")
            ]
            if hidden:
                lost[f"{folder}/manifest"] = max(hidden) - number
    return views, lost


def _files(snapshot: Snapshot) -> list[tuple[str, int]]:
    """Each file with its checksum in the manifest, 0 if it has none."""
    return [
        (str(path), int(known))
        for path, known in zip_longest(snapshot.files, snapshot.checksums, fillvalue=0)
    ]


class _Without:
    """A store without some files."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.hidden: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, folder: str) -> list[StoredFile]:
        return [file for file in self._store.list(folder) if file.path not in self.hidden]


def _made(
    log: Callable[[SegmentStore], ManifestLog[C]], number: int, content: C
) -> tuple[str, bytes]:
    """Path and bytes of manifest `number` with this content."""
    name = f"imap-wal-repair-{SystemRandomness().name()}"
    scratch = MemoryStore(name)
    try:
        manifests = log(scratch)
        manifests.publish(number - 1, content)
        path = manifests.next_path(number - 1)
        return path, scratch.read(path)
    finally:
        scratch.close()
        forget(name)
