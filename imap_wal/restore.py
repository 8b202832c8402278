"""What a restore sees: all nodes' logs of one cluster, and their newest-first merge.

    ClusterLog   plans which files are read (`pieces`), reads them (`changes`); everything that reads a log goes through it
    LiveView     merges them once into a NewestIndex, then only what was appended since; serves keys and rows

A file may be archived or pruned between planning and reading: `NotFound`. Then the manifests are read again and that pass begins anew; merging twice what was
merged before changes nothing.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from imap_wal import layout, missing
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.entry import Row
from imap_wal.errors import Closed, ImapWalError, MissingNode, ShortLog
from imap_wal.format import FRAME_HEADER_BYTES, START, Position
from imap_wal.index import NewestIndex
from imap_wal.manifest import (
    MISSING_ADVICE,
    ClusterManifest,
    NodeManifest,
    Seen,
    Snapshot,
    cluster_manifests,
    current_cluster,
    foreign_wal,
    mark_beyond,
    node_manifests,
    older_epoch,
    older_manifest,
    opened_epochs,
)
from imap_wal.partitions import Partitions
from imap_wal.pieces import ARCHIVE, END, SEGMENT, SNAPSHOT, Changes, CutBack, Metadata, Overtaken, Piece, read_piece
from imap_wal.rivals import Noted
from imap_wal.segments import SegmentFile, sorted_out, wal_folder
from imap_wal.settings import RecoveryPolicy, Settings
from storage_backends import NotFound, SegmentStore, StorageError

ATTEMPTS = 8
"""How often a pass begins anew because files went while they were read."""

T = TypeVar("T")


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
    """All logs of a cluster as they stood. `missing`: registered nodes whose log is not there, with why."""

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
        """(incarnation, position) of each cluster lifetime: what an older incarnation has behind the position is void. A node that a lifetime does not
        name had no log when it began."""
        return tuple((lifetime.incarnation, lifetime.cuts.get(node, START)) for lifetime in self.manifest.lifetimes)

    def covered(self, node: str) -> dict[str, Position]:
        """Map → position at or below which a snapshot holds what this node wrote to it. Marks of another log directory do not count."""
        directory = self.nodes[node].manifest.directory
        marks = {name: snapshot.marks.get(node) for name, snapshot in self.manifest.snapshots.items()}
        return {name: mark.position for name, mark in marks.items() if mark is not None and mark.directory == directory}

    def overtaken(self) -> Overtaken:
        """Map → partition → pair: what holds above the marks of that map's snapshot."""
        tables = {name: self.manifest.versions_of(name).pairs for name in self.manifest.snapshots}
        return {name: pairs for name, pairs in tables.items() if pairs}

    def demand(self, policy: RecoveryPolicy) -> None:
        """`MissingNode` unless all registered nodes are there, or the policy does without them."""
        if self.missing and policy is RecoveryPolicy.FULL:
            raise MissingNode("; ".join(f"node {node!r}: {why}" for node, why in self.missing.items()), MISSING_ADVICE)


class ClusterLog:
    """All logs of one cluster, for reading. Holds no state but where to look; safe for many threads as far as the store is."""

    def __init__(self, store: SegmentStore, namespace: str, cluster: str, clock: Clock | None = None, randomness: Randomness | None = None) -> None:
        self.store, self.namespace, self.cluster = store, namespace, cluster
        self.clock, self.randomness = clock or SystemClock(), randomness or SystemRandomness()
        self.folder = layout.cluster_folder(namespace, cluster)
        self.manifests = cluster_manifests(store, self.folder, self.clock, self.randomness)

    def manifest(self) -> ClusterManifest:
        """The cluster's manifest, as it is now."""
        return self.manifests.read()[1]

    def nodes(self) -> list[str]:
        """Names of all registered nodes."""
        return sorted(self.manifest().nodes)

    def node_folder(self, node: str) -> str:
        return layout.node_folder(self.folder, node)

    def state(self) -> ClusterState:
        """Look at all manifests and listings. `ShortLog` names a segment that is missing,
        `CorruptLog` a cluster's manifest that is older than what a node has seen of it.

        The nodes first, the cluster's manifest after them: whatever was removed from a node by the
        time it was looked at is then in a snapshot that this manifest names. Each removal leaves in
        its node's manifest which manifest of the cluster justified it; an older one, from a stale
        listing, is not taken."""
        evidence, where = "", self.manifests.folder
        registered = self.manifest().nodes
        for _ in range(ATTEMPTS):
            found = {name: self.node(name) for name in sorted(registered)}
            number, manifest = self.manifests.read()
            if manifest.nodes != registered:
                registered = manifest.nodes
                continue
            if not number:  # a log that is just being made, or one whose manifest is gone
                current_cluster(self.store, self.folder, self.manifests, self.clock, self.randomness)
            seen = manifest.seen(number)
            ahead = [name for name, node in found.items() if node.manifest.cluster.newer_than(seen)]
            if ahead:
                evidence = f"node {ahead[0]!r} has seen {found[ahead[0]].manifest.cluster}, here is {seen}"
                where = self.manifests.folder
                continue
            opened = opened_epochs(self.store, self.folder)
            older = {node.folder: why for name, node in found.items() if (why := self._older(name, node, manifest, opened))}
            if older:
                folder, evidence = next(iter(older.items()))
                where = f"{folder}/manifest"
                continue  # or a rewrite has covered what was appended since the node was looked at, or an open has ended
            missing = {name: why for name, directory in sorted(registered.items()) if (why := self._missing(found[name], directory))}
            return ClusterState(manifest, {name: node for name, node in found.items() if name not in missing}, missing, number)
        if evidence:
            raise older_manifest(where, evidence)
        raise NotFound("nodes joined or left this cluster each time it was looked at; try again", self.folder)

    @staticmethod
    def _older(name: str, node: NodeState, cluster: ClusterManifest, opened: Mapping[str, int]) -> str:
        """Why a node's folder was put back from an older copy; "" where it was not."""
        if node.missing or not node.manifest.directory:
            return ""
        return mark_beyond(name, node.manifest, node.last, cluster) or older_epoch(node.manifest, opened)

    @staticmethod
    def _missing(found: NodeState, directory: str) -> str:
        if not found.manifest.directory:
            return found.missing or f"there is no log in {found.folder}"
        if found.manifest.directory != directory:
            return f"in {found.folder} is log directory {found.manifest.directory}, registered was {directory}"
        return found.missing

    def node(self, name: str) -> NodeState:
        """One node's log; an empty manifest where there is none."""
        folder = self.node_folder(name)
        manifests = node_manifests(self.store, folder, self.clock, self.randomness)
        gap = ""
        for _ in range(ATTEMPTS):
            # Listing first: what is archived in between is then known to the manifest, and never seems to be missing.
            listed = self.store.list(f"{folder}/wal")
            number, manifest = manifests.read()
            wal = sorted_out(listed, manifest.archived, manifest.begins)
            if not number and wal.segments:
                why = f"there are segments in {folder}/wal, and no manifest in {folder}/manifest (`imap-wal repair` makes one)"
                return NodeState(name, folder, manifest, (), why)
            if not manifest.lives_in(wal.logs):
                return NodeState(name, folder, manifest, (), foreign_wal(folder, manifest, wal.logs))
            gap = self._gap(folder, manifest, wal.segments)
            if not gap:
                return NodeState(name, folder, manifest, wal.segments)
        raise ShortLog(gap, 0, "this segment is missing: the log goes on after it", missing.ADVICE)

    @staticmethod
    def _gap(folder: str, manifest: NodeManifest, segments: Sequence[SegmentFile]) -> str:
        expected = manifest.archived[1] + 1
        for segment in segments:
            if segment.number != expected:
                return f"{folder}/wal/*-{expected:08d}.wal"
            expected += 1
        if max(manifest.checkpoint.segment, manifest.newest) >= expected:
            return f"{folder}/wal/*-{expected:08d}.wal"
        return ""

    def lost(self, error: NotFound) -> ShortLog | NotFound:
        """What to raise where a file was not found and looking again did not help: `ShortLog` where
        the manifests, read again, still name it; else the error itself."""
        for name in self.nodes():
            manifest = node_manifests(self.store, self.node_folder(name), self.clock, self.randomness).read()[1]
            found = missing.archive(error.path, name, manifest)
            if found is not None:
                return found
        return missing.snapshot_file(error.path, self.manifest()) or error

    def pieces(
        self,
        state: ClusterState,
        *,
        since: Mapping[str, Position] | None = None,
        until: Mapping[str, Position] | None = None,
        maps: Collection[str] | None = None,
        nodes: Collection[str] | None = None,
        snapshots: bool = True,
        covered: bool = False,
    ) -> list[Piece]:
        """The files to read, snapshots first, then node by node in log order. `covered=True` reads also what a snapshot covers, if it is still there."""
        found: list[Piece] = []
        if snapshots:
            for name, snapshot in sorted(state.manifest.snapshots.items()):
                if maps is None or name in maps:
                    found += snapshot_pieces(name, snapshot)
        for node in sorted(state.nodes):
            if nodes is None or node in nodes:
                found += self.node_pieces(
                    state, node, since=(since or {}).get(node), until=None if until is None else until.get(node, START), maps=maps, covered=covered
                )
        return found

    def node_pieces(
        self,
        state: ClusterState,
        node: str,
        *,
        since: Position | None = None,
        until: Position | None = None,
        maps: Collection[str] | None = None,
        covered: bool = False,
    ) -> list[Piece]:
        """`pieces` of one node."""
        if until == START:
            return []
        log = state.nodes[node]
        marks = {} if covered else state.covered(node)
        cuts = state.cuts(node)
        overtaken = {} if covered else state.overtaken()
        found: list[Piece] = []
        for archive in sorted(log.manifest.archives, key=lambda archive: (archive.first, archive.map)):
            below = max(since or START, marks.get(archive.map, START))
            if archive.last <= below or (until is not None and archive.first > until) or (maps is not None and archive.map not in maps):
                continue
            found.append(
                Piece(
                    ARCHIVE, node, archive.path, archive.map, first=archive.first, last=archive.last, since=since, until=until, covered=marks, cuts=cuts,
                    bytes=archive.bytes, records=archive.records, checksum=archive.checksum, overtaken=overtaken,
                )
            )  # fmt: skip
        all_covered = min((marks.get(name, START) for name in maps), default=END) if maps is not None else START
        below = max(since or START, all_covered)
        for index, segment in enumerate(log.segments):
            here = (segment.epoch, segment.number)
            if here < below[:2] or (until is not None and here > until[:2]):
                continue
            following = log.segments[index + 1].path if index + 1 < len(log.segments) else ""
            found.append(
                Piece(
                    SEGMENT, node, segment.path, epoch=segment.epoch, number=segment.number, next_path=following, since=since, until=until,
                    covered=marks, cuts=cuts, bytes=segment.bytes, checkpoint=log.manifest.checkpoint,
                    newest=log.manifest.newest, overtaken=overtaken,
                )
            )  # fmt: skip
        return found

    def changes(
        self,
        since: Mapping[str, Position] | None = None,
        maps: Collection[str] | None = None,
        *,
        until: Mapping[str, Position] | None = None,
        nodes: Collection[str] | None = None,
        policy: RecoveryPolicy = RecoveryPolicy.FULL,
        positions: bool = False,
        snapshots: bool = True,
        covered: bool = False,
        state: ClusterState | None = None,
    ) -> Iterator[Changes]:
        """All entries that count: snapshots, then each node's log above its low-water marks (and
        above `since`), in its order. What was archived meanwhile is read from the archive.
        `NotFound` when a rewrite and a prune came in between: then begin again. `ShortLog` names a
        file that the manifests name and that is not there. `MissingNode`, `LogError`."""
        state = state or self.state()
        state.demand(policy)
        if snapshots:
            for piece in self.pieces(state, maps=maps, nodes=(), snapshots=True):
                try:
                    for changes in read_piece(self.store, piece, maps):
                        if nodes is None or changes.node in nodes:
                            yield changes
                except NotFound as error:
                    raise self.lost(error) from error
        for node in sorted(state.nodes):
            if nodes is not None and node not in nodes:
                continue
            place, limit = (since or {}).get(node), None if until is None else until.get(node, START)
            for attempt in range(ATTEMPTS):
                now = state
                if attempt:
                    now = self.state()
                    if now.manifest.snapshots != state.manifest.snapshots or node not in now.nodes:
                        raise NotFound("the log was rewritten while it was read; begin again", self.folder)
                pieces = self.node_pieces(now, node, since=place, until=limit, maps=maps, covered=covered)
                segment = False
                try:
                    for piece in pieces:
                        segment = piece.kind == SEGMENT
                        for changes in read_piece(self.store, piece, maps, positions=positions):
                            yield changes
                            if segment:
                                place = changes.last
                    break
                except NotFound as error:
                    if not segment or attempt == ATTEMPTS - 1:
                        raise self.lost(error) from error

    def read_on(self, piece: Piece, maps: Collection[str] | None = None, attempts: int = ATTEMPTS) -> Iterator[Changes]:
        """`read_piece`, also during an archive run: when the file is deleted while it is read, the
        rest is read from what replaced it. Entries may come twice and in any order; reading cannot
        continue from `last` of such a batch. `NotFound` when they were removed because a newer
        snapshot covers them, or after `attempts` in a row that read nothing."""
        place = piece.since if piece.kind == SEGMENT else None
        try:
            for changes in read_piece(self.store, piece, maps):
                yield changes
                attempts = ATTEMPTS
                if piece.kind == SEGMENT:
                    place = changes.last
            return
        except NotFound as error:
            if piece.kind == SNAPSHOT or not attempts:
                raise self.lost(error) from error
        for following in self._replaced(piece, place, maps):
            yield from self.read_on(following, maps, attempts - 1)

    def _replaced(self, piece: Piece, place: Position | None, maps: Collection[str] | None) -> list[Piece]:
        """Where the entries of a piece above `place` are now, under the same rules."""
        here = (piece.epoch, piece.number)
        end = piece.last if piece.kind == ARCHIVE else Position(*here, END.epoch, END.epoch)
        until = end if piece.until is None else min(end, piece.until)
        node = self.node(piece.node)
        manifest = self.manifest()  # after the node's: it covers whatever was removed from that
        start = max(place or START, piece.since or START, piece.first._replace(index=-1))
        if piece.kind == SEGMENT:
            start = max(start, Position(*here, -1, 0))
        for name, snapshot in manifest.snapshots.items():
            mark = snapshot.marks.get(piece.node)
            wanted = name == piece.map if piece.map else maps is None or name in maps
            known = max(start, piece.covered.get(name, START))
            if wanted and mark is not None and mark.position > known < node.manifest.removed:
                what = f"a newer snapshot covers map {name!r}, and its log was removed; begin again"
                raise NotFound(what, piece.path)
        state = ClusterState(manifest, {piece.node: node}, {})
        found = []
        names = (piece.map,) if piece.map else maps
        for each in self.node_pieces(state, piece.node, since=start, until=until, maps=names, covered=True):
            same = each.kind == SEGMENT and (each.epoch, each.number) == here
            if each.kind == SEGMENT and not same and piece.kind == SEGMENT:
                continue
            rules = replace(each, covered=piece.covered, cuts=piece.cuts, overtaken=piece.overtaken)
            if same:  # what it was to be read with: only then is its end checked
                rules = replace(rules, until=piece.until, since=place)
            found.append(rules)
        if not found and (piece.kind == ARCHIVE or here > node.manifest.archived):
            raise NotFound("this file of the log is gone, and no other replaced it", piece.path)
        return found

    def ends(self, since: Mapping[str, Position] | None = None) -> dict[str, Position]:
        """Position of the last entry of every node's log now. `since`: an earlier answer, to read less."""
        return {node: self._end(node, (since or {}).get(node, START)) for node in sorted(self.state().nodes)}

    def _end(self, node: str, known: Position) -> Position:
        for _ in range(ATTEMPTS):
            log = self.node(node)
            end = max([known, log.manifest.checkpoint, *(archive.last for archive in log.manifest.archives)])
            try:
                for index in range(len(log.segments) - 1, -1, -1):  # the newest may hold no whole frame yet
                    segment = log.segments[index]
                    if (segment.epoch, segment.number) < end[:2]:
                        break
                    following = log.segments[index + 1].path if index + 1 < len(log.segments) else ""
                    since = end if end[:2] == (segment.epoch, segment.number) else None
                    piece = Piece(SEGMENT, node, segment.path, epoch=segment.epoch, number=segment.number, next_path=following, since=since)
                    last = max((changes.last for changes in read_piece(self.store, piece, ())), default=START)
                    if last > end:
                        return last
                return end
            except NotFound:
                continue
        raise NotFound("the log changes too fast to find its end", self.node_folder(node))

    def find(self, name: str, key: bytes) -> list[tuple[str, Position, Row]]:
        """Every entry of one key that counts, with node and position (START: in a snapshot). Reads the whole log."""
        found: list[tuple[str, Position, Row]] = []
        for changes in self.changes(maps=(name,), policy=RecoveryPolicy.PARTIAL, positions=True):
            places = changes.positions or [START] * len(changes.rows)
            found += [(changes.node, place, row) for row, place in zip(changes.rows, places, strict=True) if row[1] == key]
        return found


def snapshot_pieces(name: str, snapshot: Snapshot) -> list[Piece]:
    """The part files of a snapshot, with what the manifest says of each."""
    count = len(snapshot.files)
    sizes = snapshot.sizes or (snapshot.bytes // max(count, 1),) * count
    rows, checksums = snapshot.rows or (0,) * count, snapshot.checksums or (0,) * count
    return [
        Piece(SNAPSHOT, "", path, name, bytes=size, records=records, checksum=checksum)
        for path, size, records, checksum in zip(snapshot.files, sizes, rows, checksums, strict=True)
    ]


def pin_cuts(log: ClusterLog) -> dict[str, Position]:
    """Where every node's log ends now; entries at or below that position are in. A registered node whose log is missing is cut behind everything: what it holds
    counts if it comes back."""
    state = log.state()
    return {**log.ends(), **dict.fromkeys(state.missing, END)}


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """How far a merge is, in files and in bytes on storage."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    records: int

    @property
    def part(self) -> float:
        """From 0 to 1, by bytes."""
        return self.bytes / self.bytes_total if self.bytes_total else 1.0

    def __str__(self) -> str:
        return f"{self.part:.0%}, {self.files} of {self.files_total} files, {self.records:,} records"


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """What a view has merged since it was made. `live` and `tombstones` (expired ones too) count
    keys now, `conflicts` those that several nodes claim with the same order (`imap_wal.rivals`)."""

    records: int
    bytes: int
    live: int
    tombstones: int
    seconds: float
    missing: Mapping[str, str]
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class _Cursor:
    """How far a node's log was merged: the last position, and where its segment goes on."""

    directory: str
    position: Position = START
    path: str = ""
    next_offset: int = 0


class LiveView:
    """The newest change of every key over all nodes. Thread-safe. Nothing is read before the first `catch_up`."""

    def __init__(self, log: ClusterLog, settings: Settings, progress: Callable[[MergeProgress], None] | None = None) -> None:
        self._log, self._settings, self._progress = log, settings, progress
        self._lock = threading.RLock()
        self._index = self._new_index()
        self._cursors: dict[str, _Cursor] = {}
        self._generations: dict[str, int] = {}
        self._lifetimes: tuple[object, ...] = ()
        self._metadata: dict[Metadata, None] = {}
        self._missing: Mapping[str, str] = {}
        self._state: ClusterState | None = None
        """What is merged; None when that is not known, or nothing is."""
        self._noted = Noted()
        self._records = self._bytes = 0
        self._seconds = 0.0
        self._closed = False
        self.version = 0
        """Grows whenever the index is built anew or a map is taken out of it: what iterates over it
        since before that misses keys."""

    def catch_up(self) -> None:
        """Merge everything once; later, what was appended since. Cheap when nothing was. `MissingNode`, `LogError`, `StorageError`."""
        with self._lock:
            self._check_open()
            news = None if self._state is None else self._news(self._state)
            if news is not None and not news[1]:
                return
            start = self._log.clock.monotonic()
            with no_garbage_collection():
                for attempt in range(ATTEMPTS):
                    self._state = None  # whatever fails from here on: next time everything is looked at
                    state, nodes = news or (self._log.state(), None)
                    try:
                        self._merge(state, nodes)
                    except NotFound as error:
                        if attempt == ATTEMPTS - 1:
                            raise self._log.lost(error) from error
                        news = None
                        continue
                    except CutBack:
                        # An open has cut off frames that were merged here: they were never
                        # acknowledged.
                        self._begin_anew()
                        if attempt == ATTEMPTS - 1:
                            raise
                        news = None
                        continue
                    except (ImapWalError, StorageError):
                        raise  # what was merged until then is whole, and how far is known
                    except BaseException:
                        self._begin_anew()  # what of the last batch is in the index is not known
                        raise
                    self._state = state
                    break
            self._seconds += self._log.clock.monotonic() - start

    def maps(self) -> list[str]:
        """Names of all maps that have a live key."""
        with self._lock:
            return [name for name in self._index.maps() if next(self.keys(name, 1000), None) is not None]

    def hash_keys(self, count: int) -> None:
        """Hash keys for listings of some of `count` partitions. A later call hashes only new
        keys."""
        with self._lock:
            self._check_open()
            self._index.hash_keys(count)

    def known(self, names: Sequence[str]) -> list[str]:
        """Those of these maps that have anything in the log, even if only tombstones."""
        with self._lock:
            self._check_open()
            return [name for name in names if name in self._index]

    def keys(self, name: str, batch: int = 10_000, partitions: Partitions | None = None) -> Iterator[list[bytes]]:
        """The live keys of a map, in no order, at most `batch` at a time. `partitions`: only those
        in these partitions. No value is read."""
        for states in self._each(self._index.keys(name, batch, partitions)):
            now = self._log.clock.now_ms()
            keys = [key for key, deleted, expires in states if not deleted and not 0 < expires <= now]
            if keys:
                yield keys

    def rows(self, name: str, batch: int = 10_000) -> Iterator[list[Row]]:
        """The live rows of a map, in no order, at most `batch` at a time and not many bytes
        (`NewestIndex.page_bytes`)."""
        for rows in self._each(self._index.batches(name, batch)):
            alive = live(rows, self._log.clock.now_ms())
            if alive:
                yield alive

    def _each(self, pages: Iterator[T]) -> Iterator[T]:
        """Each page of a listing, taken with the lock held. The index may change between two of
        them."""
        while True:
            with self._lock:
                self._check_open()
                page = next(pages, None)
                self._noted.note(self._index.conflicts())
            if page is None:
                return
            yield page

    def load(self, name: str, keys: Sequence[bytes]) -> list[Row]:
        """The live rows of those keys; absent, deleted and expired ones are left out."""
        return self.load_some(name, keys, None)[0]

    def load_some(self, name: str, keys: Sequence[bytes], bytes_max: int | None) -> tuple[list[Row], int]:
        """`load` of the first keys, of as many as fit into `bytes_max`, at least one; and how many
        keys that were."""
        with self._lock:
            self._check_open()
            found = self._index.get(name, keys, bytes_max)
            self._noted.note(self._index.conflicts())
        return live([row for row in found if row is not None], self._log.clock.now_ms()), len(found)

    def metadata(self) -> list[Metadata]:
        """All metadata of all nodes, each once, in the order they were read."""
        with self._lock:
            return list(self._metadata)

    def ends(self) -> dict[str, Position]:
        """How far each node's log was merged."""
        with self._lock:
            return {node: cursor.position for node, cursor in self._cursors.items()}

    @property
    def missing(self) -> Mapping[str, str]:
        """Nodes that were left out (recovery policy partial), with why."""
        return self._missing

    @property
    def statistics(self) -> RestoreStatistics:
        with self._lock:
            total = sum(self._index.counts().values())
            now = self._log.clock.now_ms()
            living = conflicts = 0
            for name in self._index.maps():
                for states in self._index.keys(name):
                    living += sum(not deleted and not 0 < expires <= now for _, deleted, expires in states)
                    for each in self._index.conflicts():
                        conflicts += 1
                        self._noted.note((each,))
            return RestoreStatistics(self._records, self._bytes, living, total - living, self._seconds, self._missing, conflicts)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this view was closed")

    def interrupt(self) -> None:
        """Have a merge under way end with `Closed` at its next batch; nothing is merged after this.
        From any thread, at once."""
        self._closed = True

    def close(self) -> None:
        """Let go of memory and scratch. Safe to call twice."""
        self.interrupt()
        with self._lock:
            self.version += 1
            self._index.close()

    # ---- with the lock held ----

    def _new_index(self) -> NewestIndex:
        return NewestIndex(self._settings.restore_memory_bytes, self._settings.scratch)

    def _news(self, state: ClusterState) -> tuple[ClusterState, Collection[str]] | None:
        """What has come since `state` was merged, as far as it is in segments: the state now, and
        the nodes that have more to read. None: everything is to be looked at. While nothing moves
        this is a listing and a read for each node, and one listing for all."""
        log, nodes, moved = self._log, dict(state.nodes), set()
        for name, known in state.nodes.items():
            manifest = known.manifest
            wal = wal_folder(log.store, known.folder, manifest.archived, manifest.begins)
            # Where no segment was known, one may have been written and archived since.
            same = known.segments and [each.path for each in wal.segments] == [each.path for each in known.segments]
            if not same or not manifest.lives_in(wal.logs):
                found = log.node(name)
                if found == known:
                    continue
                if found.missing or found.manifest.directory != manifest.directory or found.manifest.cluster.newer_than(state.seen):
                    return None
                if mark_beyond(name, found.manifest, found.last, state.manifest):
                    return None
                nodes[name] = found
                moved.add(name)
            elif known.segments and self._has_more(name, known.segments[-1].path):
                moved.add(name)
        for name in state.missing:
            found = log.node(name)
            if not found.missing and found.manifest.directory == state.manifest.nodes[name]:
                return None  # it is back
        # After the nodes, as in `ClusterLog.state`: what was removed from one of them is in a
        # snapshot that is published by now.
        newer = log.manifests.next_path(state.number)
        if any(file.path >= newer for file in log.store.list(log.manifests.folder)):
            return None
        return replace(state, nodes=nodes), moved

    def _has_more(self, node: str, newest: str) -> bool:
        """Whether a node's newest segment has more than what was merged. A preallocated one does
        not grow: look at the place of its next frame."""
        cursor = self._cursors[node]
        if cursor.path != newest:
            return True
        if not self._log.store.capabilities.durable_append:
            return False  # an object never grows
        try:
            return bool(self._log.store.read(newest, cursor.next_offset, FRAME_HEADER_BYTES).strip(b"\0"))
        except NotFound:
            return True

    def _merge(self, state: ClusterState, nodes: Collection[str] | None = None) -> None:
        """Read what is not merged yet, of some nodes or of all."""
        state.demand(self._settings.recovery_policy)
        self._missing = state.missing
        self._heed_lifetimes(state)
        again = self._maps_to_read_again(state)
        pieces: list[tuple[Piece, bool]] = []
        if again:
            self.version += 1
            for name in again:
                self._index.remove(name)
                self._generations.pop(name, None)
            until = {node: cursor.position for node, cursor in self._cursors.items()}
            pieces += [(piece, False) for piece in self._log.pieces(state, maps=again, until=until)]
        logs = {node: log for node, log in state.nodes.items() if nodes is None or node in nodes}
        for node, log in logs.items():
            cursor = self._cursors.get(node)
            if cursor is None or cursor.directory != log.manifest.directory:
                cursor = self._cursors[node] = _Cursor(log.manifest.directory)
            for item in log.manifest.metadata:
                self._metadata.setdefault(from_manifest(item))
            for piece in self._log.node_pieces(state, node, since=cursor.position if cursor.position > START else None):
                start = cursor.next_offset if piece.path == cursor.path else 0
                pieces.append((replace(piece, start=start) if start else piece, True))
        self._read(pieces, again)
        for node, log in logs.items():
            # Only when all of a node's archives are merged: they are a file a map, side by side in position.
            end = max((archive.last for archive in log.manifest.archives), default=START)
            if end > self._cursors[node].position:
                self._cursors[node] = replace(self._cursors[node], position=end)
        self._generations = {name: snapshot.generation for name, snapshot in state.manifest.snapshots.items()}

    def _read(self, pieces: list[tuple[Piece, bool]], again: Collection[str]) -> None:
        total = sum(piece.bytes for piece, _ in pieces)
        done = 0
        for count, (piece, forward) in enumerate(pieces):
            of_piece = 0
            for changes in read_piece(self._log.store, piece, None if forward else again):
                if self._closed:
                    raise Closed("this view was closed while it merged the logs")
                if changes.rows:
                    self._index.add(changes.node, changes.rows, changes.bytes, clears=changes.clears)
                    self._records += len(changes.rows)
                for item in changes.metadata:
                    self._metadata.setdefault(item)
                if forward and piece.kind == SEGMENT:
                    cursor = self._cursors[piece.node]
                    self._cursors[piece.node] = _Cursor(cursor.directory, changes.last, piece.path, changes.next_offset)
                    self._bytes += changes.bytes
                if self._progress is not None:
                    of_piece = min(of_piece + changes.bytes, piece.bytes)
                    self._progress(MergeProgress(count, len(pieces), done + of_piece, total, self._records))
            if forward and piece.kind == SEGMENT and self._cursors[piece.node].path != piece.path:
                # no frame in it yet: remember to look there
                self._cursors[piece.node] = replace(self._cursors[piece.node], path=piece.path, next_offset=0)
            if piece.kind != SEGMENT:
                self._bytes += piece.bytes
            done += piece.bytes
            if self._progress is not None:
                self._progress(MergeProgress(count + 1, len(pieces), done, total, self._records))

    def _heed_lifetimes(self, state: ClusterState) -> None:
        """A lifetime that began since may void what is already merged (its bytes came after the cut, before its manifest): then begin anew."""
        known, lifetimes = self._lifetimes, state.manifest.lifetimes
        new = [lifetime for lifetime in lifetimes if lifetime not in known]
        if any(cursor.position > lifetime.cuts.get(node, START) for lifetime in new for node, cursor in self._cursors.items()):
            self._begin_anew()
        self._lifetimes = lifetimes

    def _begin_anew(self) -> None:
        """Forget all that was merged: the next merge reads everything."""
        self.version += 1
        self._state = None
        self._cursors.clear()
        self._generations.clear()
        with suppress(OSError):  # its scratch files may be what failed
            self._index.forget()

    def _maps_to_read_again(self, state: ClusterState) -> list[str]:
        """Maps whose new snapshot cannot be passed over: the map was dropped, or it covers what was not yet merged and may be pruned."""
        found = []
        for name, snapshot in state.manifest.snapshots.items():
            known = self._generations.get(name, 0)
            if snapshot.generation == known:
                continue
            ahead = any(
                mark.position > cursor.position
                for node, mark in snapshot.marks.items()
                if (cursor := self._cursors.get(node, _Cursor(mark.directory))).directory == mark.directory
            )
            if known == 0 or snapshot.dropped > known or ahead:
                found.append(name)
        return found


def live(rows: Sequence[Row], now_ms: int) -> list[Row]:
    """Without tombstones and what has expired."""
    return [row for row in rows if not row[5] and not 0 < row[7] <= now_ms]


def from_manifest(item: Metadata) -> Metadata:
    """Metadata as a frame has it: a node's manifest keeps a schema's bytes in hex."""
    return ("schema", item[1], bytes.fromhex(item[2])) if item[0] == "schema" and isinstance(item[2], str) else tuple(item)


_collector_lock = threading.Lock()
_collector_users = 0
_collector_was_on = False


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A merge makes millions of tuples and no cycles; the collector would walk them all again and again (measured: two thirds of the time)."""
    global _collector_users, _collector_was_on
    with _collector_lock:
        if _collector_users == 0:
            _collector_was_on = gc.isenabled()
            gc.disable()
        _collector_users += 1
    try:
        yield
    finally:
        with _collector_lock:
            _collector_users -= 1
            if _collector_users == 0 and _collector_was_on:
                gc.enable()
