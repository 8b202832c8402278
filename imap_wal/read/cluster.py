"""All nodes' logs of one cluster, as a restore reads them.

    ClusterLog        looks at the logs (`state`) and reads their files (`changes`); everything that
                      reads a log uses it. `scan_list` plans which files are read
    Merge             reads them once, into a NewestIndex, then only what was appended since
    MaterializedView  serves its keys and rows to many threads

A file may be archived or pruned between planning and reading: `NotFound`. Then the manifests are
read again and the pass starts again; merging an entry twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.entry import KEY, Row
from imap_wal.errors import LogError, MissingNode, ShortLog
from imap_wal.format import START, Position
from imap_wal.manifest import missing
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.epochs import demand_same
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.manifest.older import (
    MISSING_ADVICE,
    current_cluster,
    foreign_wal,
    older_manifest,
    opened_epochs,
    unseen_segments,
)
from imap_wal.manifest.store import C, ManifestLog
from imap_wal.names import decode
from imap_wal.read.file_scan import (
    SEGMENT,
    SNAPSHOT,
    EntryBatch,
    FileScan,
    Scope,
)
from imap_wal.read.scan import ahead, read_scan
from imap_wal.read.scan_list import (
    cluster_scans,
    last_planned,
    node_scans,
    replacing_scans,
    segment_scan,
)
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.segment.listing import WalFolder, sorted_out
from imap_wal.settings import RecoveryPolicy
from storage_backends import NotFound, SegmentStore

ATTEMPTS = 8
"""How often a pass starts again because files were removed during it."""

EVERYTHING = Scope()

T = TypeVar("T")


class ClusterLog:
    """All logs of one cluster, for reading. It keeps what it has read of manifests; as thread-safe
    as the store."""

    def __init__(self, context: Context, namespace: str, cluster: str) -> None:
        self.context, self.namespace, self.cluster = context, namespace, cluster
        self.store, self.clock, self.randomness = context.store, context.clock, context.randomness
        self.folder = layout.cluster_folder(namespace, cluster)
        self.manifests = ClusterManifestLog(self.context, self.folder)
        self._nodes: dict[str, NodeManifestLog] = {}

    @classmethod
    def of(cls, context: Context, state: ClusterState) -> ClusterLog:
        """The logs that a look was at."""
        return cls(context, state.namespace, state.cluster)

    def on(self, store: SegmentStore) -> ClusterLog:
        """The same logs through another store."""
        return ClusterLog(self.context.on(store), self.namespace, self.cluster)

    def manifest(self) -> ClusterManifest:
        """The newest manifest of the cluster."""
        return self.manifests.read()[1]

    def nodes(self) -> list[str]:
        """Names of all registered nodes."""
        return sorted(self.manifest().nodes)

    def node_folder(self, node: str) -> str:
        return layout.node_folder(self.folder, node)

    def state(self) -> ClusterState:
        """`look`, without damage. Raises the errors of `ClusterState.without_damage` and `look`."""
        return self.look().without_damage()

    def look(self, *, everything: bool = False) -> ClusterState:
        """All manifests and listings as they are now; damage is a value in the result.
        `everything`: also the folders of nodes that are not registered, all their files, the
        claims, and what is before a manifest that cannot be read. Otherwise that is an error.

        Nodes are read first, the cluster's manifest after them: then anything removed from a node
        before it was read is in a snapshot that this manifest names. Each removal records in the
        node's manifest which manifest of the cluster justified it; an older one, from a stale
        listing, is damage. Something may have changed between the reads: it is damage only if
        the last look still shows it. Raises `NotFound` if nodes joined or left during each attempt,
        and the errors of `ManifestLog.read`."""
        registered: Mapping[str, str] = {} if everything else self.manifest().nodes
        state: ClusterState | None = None
        for _ in range(ATTEMPTS):
            names: Iterable[str] = registered
            if everything:
                names = [decode(name) for name in self.store.folders(f"{self.folder}/nodes")]
            nodes = {name: self.look_at(name, everything=everything) for name in sorted(names)}
            number, manifest, lost = _read(self.manifests, everything=everything)
            if not everything and manifest.nodes != registered:
                registered = manifest.nodes
                continue
            state = self._state(number, manifest, nodes)
            agree = True
            if everything:
                state = self._with_everything(state, nodes, lost)
                agree = state.claims.newest <= manifest.incarnation and (
                    state.claims.names_token or not manifest.token
                )
            lasting = not number or any(node.damage for node in nodes.values())
            if agree and (lasting or not state.damage):
                break
        if state is None:
            raise NotFound(
                "nodes joined or left this cluster at each attempt to read it; try again",
                self.folder,
            )
        return state

    def _state(
        self, number: int, manifest: ClusterManifest, nodes: dict[str, NodeState]
    ) -> ClusterState:
        damage = [node.damage for node in nodes.values() if node.damage is not None]
        if not number:  # a log that is just being created, or one that lost its manifest
            try:
                current_cluster(self.context, self.folder, self.manifests)
            except LogError as error:
                damage.append(error)
        seen = manifest.seen(number)
        for name, node in nodes.items():
            if node.manifest.cluster.newer_than(seen):
                why = f"node {name!r} has seen {node.manifest.cluster}, but here is {seen}"
                damage.append(older_manifest(self.manifests.folder, why))
        opened = opened_epochs(self.store, self.folder)
        # It may also be newer entries that a rewrite has covered since the node was read, or an
        # open that has ended.
        damage += [
            replaced
            for node in nodes.values()
            if (replaced := node.replaced(manifest, opened)) is not None
        ]
        registered = manifest.nodes
        there = {
            name: nodes.get(name)
            or NodeState(name, self.node_folder(name), NodeManifest(), WalFolder(()))
            for name in registered
        }
        missing = {
            name: why
            for name, directory in sorted(registered.items())
            if (why := there[name].why_missing(directory))
        }
        return ClusterState(
            manifest,
            {name: there[name] for name in sorted(registered) if name not in missing},
            missing,
            number,
            {name: there[name] for name in missing if there[name].is_part_of(registered[name])},
            tuple(damage),
            self.namespace,
            self.cluster,
            opened,
        )

    def _with_everything(
        self, state: ClusterState, nodes: Mapping[str, NodeState], lost: tuple[LogError, ...]
    ) -> ClusterState:
        claims = claim_manifests(self.context, self.folder)
        number, claim, lost_claims = _read(claims, everything=True)
        snapshots = () if state.number else self.store.list(f"{self.folder}/snapshot")
        lost_by_folder = {
            **{f"{node.folder}/manifest": node.lost for node in nodes.values()},
            self.manifests.folder: lost,
            claims.folder: lost_claims,
        }
        return replace(
            state,
            folders=tuple(nodes.values()),
            claims=claim,
            claims_number=number,
            snapshot_files=sum(layout.snapshot_place(file.path)[1] > 0 for file in snapshots),
            lost={folder: errors for folder, errors in lost_by_folder.items() if errors},
        )

    def _node_manifests(self, name: str) -> NodeManifestLog:
        manifests = self._nodes.get(name)
        if manifests is None:
            folder = self.node_folder(name)
            manifests = NodeManifestLog(self.context, folder)
        return self._nodes.setdefault(name, manifests)

    def node(self, name: str) -> NodeState:
        """One node's log; an empty manifest if there is none. Raises `ShortLog` if a segment is
        missing, and the errors of `ManifestLog.read`."""
        return self.look_at(name).without_damage()

    def look_at(self, name: str, *, everything: bool = False) -> NodeState:
        """`look`, of one node."""
        folder, manifests = self.node_folder(name), self._node_manifests(name)
        for _ in range(ATTEMPTS):
            # The listing first: then the manifest knows of segments that are archived meanwhile,
            # and they do not seem to be missing.
            files = tuple(self.store.list(folder if everything else f"{folder}/wal"))
            number, manifest, lost = _read(manifests, everything=everything)
            wal = sorted_out(
                (file for file in files if file.path.startswith(f"{folder}/wal/")),
                manifest.archived,
                manifest.begins,
            )
            why, gap = self._why_missing(folder, number, manifest, wal), None
            if not why:
                last = max(manifest.checkpoint.segment, manifest.newest)
                gap = missing.segment(folder, manifest, wal.segments, last)
            everything_here = files if everything else ()
            state = NodeState(name, folder, manifest, wal, why, number, gap, everything_here, lost)
            if gap is None:
                break
        return state

    def _why_missing(self, folder: str, number: int, manifest: NodeManifest, wal: WalFolder) -> str:
        """Why the segments of a node's log cannot be read here; "" if they can."""
        if not number and wal.segments:
            return f"there are segments in {folder}/wal, but no manifest in {folder}/manifest"
        if manifest.is_whole(wal):
            return ""
        if manifest.address and not wal.logs:
            disk = self.context.own_disk
            return unseen_segments(manifest, wal, "" if disk is None else disk.why_away(folder))
        return foreign_wal(folder, manifest, wal.logs)

    def lost(self, error: NotFound) -> ShortLog | NotFound:
        """The error for a file that was not found again: `ShortLog` if the manifests, read again,
        still name it; otherwise the error itself."""
        for name in self.nodes():
            manifest = NodeManifestLog(self.context, self.node_folder(name)).read()[1]
            lost = missing.archive(error.path, name, manifest)
            if lost is not None:
                return lost
        return missing.snapshot_file(error.path, self.manifest()) or error

    def changes(
        self,
        maps: Collection[str] | None = None,
        scope: Scope = EVERYTHING,
        *,
        policy: RecoveryPolicy = RecoveryPolicy.FULL,
        positions: bool = False,
        state: ClusterState | None = None,
        damaged: list[LogError] | None = None,
    ) -> Iterator[EntryBatch]:
        """The entries of `scope` that count: snapshots, then each node's log above its low-water
        marks, in its order. What was archived meanwhile is read from the archive. Raises
        `NotFound` if a rewrite and a prune removed files meanwhile: then start again. `ShortLog`
        names a missing file that the manifests name. Raises `MissingNode`, `LogError`. `damaged`
        gets the damage of a file, and reading continues with the next file."""
        state = (state or self.state()).demand(policy)
        if scope.snapshots:
            for scan in cluster_scans(state, maps=maps, nodes=(), snapshots=True):
                try:
                    with _past(damaged):
                        for changes in read_scan(
                            self.context, replace(scan, span=scope.span), maps
                        ):
                            if scope.nodes is None or changes.node in scope.nodes:
                                yield changes
                except NotFound as error:
                    raise self.lost(error) from error
        for node in sorted(state.nodes):
            if scope.nodes is None or node in scope.nodes:
                until = None if scope.until is None else scope.until.get(node, START)
                scans = partial(
                    node_scans, node=node, until=until, maps=maps, covered=scope.covered
                )
                yield from self._node_changes(
                    state,
                    node,
                    scope.since.get(node),
                    scans,
                    partial(read_scan, maps=maps, positions=positions),
                    damaged,
                )

    def _node_changes(
        self,
        state: ClusterState,
        node: str,
        place: Position | None,
        scans: Callable[..., Iterable[FileScan]],
        read: Callable[[Context, FileScan], Iterator[EntryBatch]],
        damaged: list[LogError] | None,
    ) -> Iterator[EntryBatch]:
        """The batches of a node's `scans` above `place`, see `changes`."""
        for attempt in range(ATTEMPTS):
            now = state
            if attempt:
                now = self.state().demand(RecoveryPolicy.PARTIAL)  # `changes` has checked it
                if now.manifest.snapshots != state.manifest.snapshots or node not in now.nodes:
                    raise NotFound(
                        "the log was rewritten while it was read; begin again", self.folder
                    )
                planned, present = state.nodes[node].manifest, now.nodes[node].manifest
                demand_same_log(node, planned.directory, present.directory)
                name = f"node {node!r}"
                demand_same(present.epochs, planned.epochs, place or START, name, present.removed)
            segment = False
            try:
                for scan, context in ahead(self.context, scans(now, since=place)):
                    segment = scan.kind == SEGMENT
                    with _past(damaged):
                        for changes in read(context, scan):
                            yield changes
                            if segment:
                                place = changes.last
                break
            except NotFound as error:
                if not segment or attempt == ATTEMPTS - 1:
                    raise self.lost(error) from error

    def all_changes(
        self,
        state: ClusterState,
        maps: Collection[str] | None = None,
        *,
        covered: bool = False,
        positions: bool = False,
    ) -> Iterator[EntryBatch]:
        """The entries that count in `state` (of `ClusterState.demand`), also if its snapshots are
        former ones. In any order, and some may appear twice; for that, the log may be archived any
        number of times meanwhile. `covered`: also those that a snapshot covers. Raises the errors
        of `read_on`."""
        for scan, context in ahead(self.context, cluster_scans(state, maps=maps, covered=covered)):
            yield from self.read_on(scan, maps, context=context, positions=positions)

    def read_on(
        self,
        scan: FileScan,
        maps: Collection[str] | None = None,
        attempts: int = ATTEMPTS,
        context: Context | None = None,
        *,
        positions: bool = False,
    ) -> Iterator[EntryBatch]:
        """`read_scan`, even during an archive run: if the file is deleted while it is read, the
        rest is read from the files that replaced it. Entries may appear twice and in any order;
        reading cannot continue from `last` of such a batch. Raises `NotFound` if they were removed
        because a newer snapshot covers them, or after `attempts` in a row that read nothing. Raises
        `MissingNode` if this machine does not see the segments of the node. `context`: one of
        `ahead` for this scan."""
        place = scan.since if scan.kind == SEGMENT else None
        try:
            for changes in read_scan(context or self.context, scan, maps, positions=positions):
                yield changes
                attempts = ATTEMPTS
                if scan.kind == SEGMENT:
                    place = changes.last
            return
        except NotFound as error:
            if scan.kind == SNAPSHOT or not attempts:
                raise self.lost(error) from error
        for following in self.replaced(scan, place, maps):
            yield from self.read_on(following, maps, attempts - 1, positions=positions)

    def replaced(
        self, scan: FileScan, place: Position | None, maps: Collection[str] | None
    ) -> list[FileScan]:
        """The files that now have the entries of a scan above `place`, with the same rules. Raises
        `MissingNode` if this process cannot read the node's log, `OtherHistory` if it was replaced
        by a copy without these entries, `NotFound` if a snapshot covers the entries and their log
        was removed, and the errors of `node`."""
        node = self.node(scan.node)
        if node.missing:  # another process sees its segments; this one does not
            raise MissingNode(f"node {scan.node!r}: {node.missing}", MISSING_ADVICE)
        present, name = node.manifest, f"node {scan.node!r}"
        demand_same_log(scan.node, scan.directory, present.directory)
        read_to = last_planned(scan, place)
        demand_same(present.epochs, scan.epochs, read_to, name, present.removed)
        manifest = self.manifest()  # after the node's: its snapshots have what the node has removed
        return replacing_scans(scan, place, ClusterState(manifest, {scan.node: node}, {}), maps)

    def ends(
        self, since: Mapping[str, Position] | None = None, state: ClusterState | None = None
    ) -> dict[str, Position]:
        """Position of the last entry of every node's log. With `since`, an earlier answer, less is
        read. `state`: the nodes, if not all whose log is whole: with those of `demand`, the last
        entry of a part is the last one that was uploaded. Raises the errors of `state`."""
        return {
            node: self._end(node, (since or {}).get(node, START))
            for node in sorted((state or self.state()).nodes)
        }

    def _end(self, node: str, at_least: Position) -> Position:
        for _ in range(ATTEMPTS):
            log = self.node(node)
            # The checkpoint may be in a segment that was not uploaded. Its node may come back: then
            # what follows the part must not seem to be read.
            checkpoint = START if log.missing else log.manifest.checkpoint
            try:
                return self.end_of(log, max(at_least, checkpoint))
            except NotFound:
                continue
        raise NotFound(
            "the log changes too fast to find its end; try again", self.node_folder(node)
        )

    def end_of(self, log: NodeState, at_least: Position) -> Position:
        """Position of the last entry of a log as it was read, at least `at_least`. Raises
        `NotFound` if its files changed since."""
        end = max([at_least, *(archive.last for archive in log.manifest.archives)])
        # The newest may have no whole frame yet.
        for index in range(len(log.segments) - 1, -1, -1):
            segment = log.segments[index]
            if (segment.epoch, segment.number) < end[:2]:
                break
            since = end if end[:2] == (segment.epoch, segment.number) else None
            scan = segment_scan(log, index, since)
            last = max(
                (changes.last for changes in read_scan(self.context, scan, ())), default=START
            )
            if last > end:
                return last
        return end

    def find(self, name: str, key: bytes) -> list[tuple[str, Position, Row]]:
        """All entries of one key that count, with node and position (START: in a snapshot). Reads
        the whole log. Raises the errors of `changes`."""
        entries: list[tuple[str, Position, Row]] = []
        for changes in self.changes(maps=(name,), policy=RecoveryPolicy.PARTIAL, positions=True):
            places = changes.positions or [START] * len(changes.rows)
            entries += [
                (changes.node, place, row)
                for row, place in zip(changes.rows, places, strict=True)
                if row[KEY] == key
            ]
        return entries


def _read(manifests: ManifestLog[C], *, everything: bool) -> tuple[int, C, tuple[LogError, ...]]:
    """The newest manifest, its number, and the errors of newer ones, as for `look`."""
    return manifests.read_past_damage() if everything else (*manifests.read(), ())


def demand_same_log(node: str, planned: str, directory: str) -> None:
    """Raises `MissingNode` if the node has another log now than when the read was planned."""
    if planned and directory != planned:
        now = f"{directory} replaced it" if directory else "the node was forgotten"
        raise MissingNode(
            f"node {node!r}: log {planned} was removed while it was read; {now}",
            "run this again: it then reads what the cluster has now",
        )


@contextmanager
def _past(damaged: list[LogError] | None) -> Iterator[None]:
    """Adds damage found within this to the list, if there is one."""
    try:
        yield
    except LogError as error:
        if damaged is None:
            raise
        damaged.append(error)
