"""The newest entries of a cluster's log, merged once, then kept up to date: `MaterializedView`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from imap_wal.entry import DELETED, EXPIRES_AT_MS, Row
from imap_wal.errors import Closed, ImapWalError
from imap_wal.format import FRAME_HEADER_BYTES, START, Position
from imap_wal.manifest.older import mark_beyond
from imap_wal.read.cluster import ATTEMPTS, ClusterLog, T, from_manifest
from imap_wal.read.file_scan import MEMBERS_MAX, SEGMENT, FileScan, Metadata
from imap_wal.read.newest.digest import digest
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.partitions import Partitions
from imap_wal.read.newest.rivals import Noted
from imap_wal.read.scan import CutBack, ahead, read_scan
from imap_wal.read.scan_list import cluster_scans, node_scans
from imap_wal.read.state import ClusterState
from imap_wal.segment.listing import wal_folder
from imap_wal.settings import Settings
from storage_backends import NotFound, StorageError


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """Progress of a merge, in files and in bytes of storage."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    records: int

    @property
    def part(self) -> float:
        """The progress from 0 to 1, by bytes."""
        return self.bytes / self.bytes_total if self.bytes_total else 1.0

    def __str__(self) -> str:
        return (
            f"{self.part:.0%}, {self.files} of {self.files_total} files, {self.records:,} records"
        )


@dataclass(frozen=True, slots=True)
class MergeStatistics:
    """What a view has merged since it was made, as far as it is known without reading. `merges`:
    how many merges had something to read. `keys`: how many keys have an entry, also a tombstone;
    None: not known."""

    merges: int = 0
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """What a view has merged since it was made. `live` and `tombstones` (including expired entries)
    count keys now, `conflicts` those that several nodes claim with the same order
    (`imap_wal.read.newest.rivals`)."""

    records: int
    bytes: int
    live: int
    tombstones: int
    seconds: float
    missing: Mapping[str, str]
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The merged part of a node's log: the last position, and where its segment continues."""

    directory: str
    position: Position = START
    path: str = ""
    next_offset: int = 0


class MaterializedView:
    """The newest change of every key over all nodes. Thread-safe. Nothing is read before the first
    `catch_up`. Methods raise `Closed` after `close`."""

    def __init__(
        self,
        log: ClusterLog,
        settings: Settings,
        progress: Callable[[MergeProgress], None] | None = None,
    ) -> None:
        self._log, self._settings, self._progress = log, settings, progress
        self._lock = threading.RLock()
        self._index = self._new_index()
        self._cursors: dict[str, _Cursor] = {}
        self._generations: dict[str, int] = {}
        self._lifetimes: tuple[object, ...] = ()
        self._schemas: dict[Metadata, None] = {}
        self._members: dict[Metadata, None] = {}
        """The newest `MEMBERS_MAX` of the other metadata: each session of a member adds one."""
        self._missing: Mapping[str, str] = {}
        self._covered: Mapping[str, str] = {}
        self.feature_level = 0
        """Of the log at the last merge; 0: nothing was merged yet."""
        self._state: ClusterState | None = None
        """The merged state; None if unknown, or if nothing is merged."""
        self._noted = Noted()
        self._records = self._bytes = 0
        self._seconds = 0.0
        self._closed = False
        self.merged = MergeStatistics()
        """Replaced after each merge; safe to read from any thread, also during a merge."""
        self.version = 0
        """Grows when the index is rebuilt or a map is removed from it: an older iteration then
        misses keys."""

    @property
    def positions(self) -> dict[str, str]:
        """Up to where each node's log is merged. Safe to read from any thread, also during a
        merge: the copy is one step of the interpreter."""
        return {node: str(cursor.position) for node, cursor in self._cursors.copy().items()}

    def catch_up(self) -> None:
        """The first call merges everything, later calls what was appended since; cheap if nothing
        was. Raises `MissingNode`, `LogError`, `StorageError`."""
        with self._lock:
            self._check_open()
            news = None if self._state is None else self._news(self._state)
            if news is not None and not news[1]:
                return
            start = self._log.clock.monotonic()
            for attempt in range(ATTEMPTS):
                self._state = None  # after a failure the next call examines everything
                state, nodes = news or (self._log.state(), None)
                try:
                    self._merge(state, nodes)
                except NotFound as error:
                    if attempt == ATTEMPTS - 1:
                        raise self._log.lost(error) from error
                    news = None
                    continue
                except CutBack:
                    # An open has cut off merged frames: they were never acknowledged.
                    self._begin_anew()
                    if attempt == ATTEMPTS - 1:
                        raise
                    news = None
                    continue
                except (ImapWalError, StorageError):
                    raise  # the merged part is whole, and its end is known
                except BaseException:
                    self._begin_anew()  # the index may have a part of the last batch
                    raise
                self._state = state
                break
            self._seconds += self._log.clock.monotonic() - start
            self.merged = MergeStatistics(
                self.merged.merges + 1,
                self._records,
                self._bytes,
                self._seconds,
                self._index.known_count(),
            )

    def maps(self) -> list[str]:
        """Names of all maps that have a live key."""
        with self._lock:
            return [
                name for name in self._index.maps() if next(self.keys(name, 1000), None) is not None
            ]

    def names(self) -> list[str]:
        """Names of all maps that have any entry in the log, even if only tombstones."""
        with self._lock:
            self._check_open()
            return self._index.maps()

    def clear_counts(self) -> set[int]:
        """The different partition counts of all clears."""
        with self._lock:
            self._check_open()
            return self._index.clear_counts()

    def hash_keys(self, count: int) -> None:
        """Hash keys for listings of some of `count` partitions. A later call hashes only new
        keys."""
        with self._lock:
            self._check_open()
            self._index.hash_keys(count)

    def known(self, names: Sequence[str]) -> list[str]:
        """Those of these maps that have any entry in the log, even if only tombstones."""
        with self._lock:
            self._check_open()
            return [name for name in names if name in self._index]

    def keys(
        self, name: str, batch: int = 10_000, partitions: Partitions | None = None
    ) -> Iterator[list[bytes]]:
        """The live keys of a map, in no order, at most `batch` at a time. `partitions`: only keys
        in these. Reads no values."""
        for states in self._each(self._index.keys(name, batch, partitions)):
            now = self._log.clock.now_ms()
            keys = [
                key for key, deleted, expires in states if not deleted and not 0 < expires <= now
            ]
            if keys:
                yield keys

    def rows(self, name: str, batch: int = 10_000) -> Iterator[list[Row]]:
        """The live rows of a map, in no order, at most `batch` rows and about
        `NewestIndex.page_bytes` bytes at a time."""
        for rows in self._each(self._index.batches(name, batch)):
            alive = live(rows, self._log.clock.now_ms())
            if alive:
                yield alive

    def _each(self, pages: Iterator[T]) -> Iterator[T]:
        """Takes each page of a listing with the lock held. The index may change between two of
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
        """The live rows of those keys, without absent, deleted and expired ones."""
        return self.load_some(name, keys, None)[0]

    def load_some(
        self, name: str, keys: Sequence[bytes], bytes_max: int | None
    ) -> tuple[list[Row], int]:
        """`load` of as many of the first keys as fit into `bytes_max`, at least one; and their
        number."""
        with self._lock:
            self._check_open()
            found = self._index.get(name, keys, bytes_max)
            self._noted.note(self._index.conflicts())
        return live([row for row in found if row is not None], self._log.clock.now_ms()), len(found)

    def digest(self, name: str, salt: bytes, partitions: Partitions) -> bytes | None:
        """The digest of a map's live entries in some partitions (`imap_wal.read.newest.digest`);
        None: some rows are on disk, so this would take as long as reading all of them."""
        with self._lock:
            self._check_open()
            rows = self._index.in_memory(name, partitions)
            self._noted.note(self._index.conflicts())
        return None if rows is None else digest(salt, live(rows, self._log.clock.now_ms()))

    def metadata(self) -> list[Metadata]:
        """The schemas of all nodes and the newest other metadata, each once."""
        with self._lock:
            return [*self._schemas, *self._members]

    def ends(self) -> dict[str, Position]:
        """The position up to which each node's log is merged."""
        with self._lock:
            return {node: cursor.position for node, cursor in self._cursors.items()}

    @property
    def conflicts_seen(self) -> int:
        """How many keys readers of this view have found in conflict, at most `NAMED_MAX` of
        `rivals`. Does not wait for a merge."""
        return self._noted.count

    @property
    def missing(self) -> Mapping[str, str]:
        """Nodes that were left out (recovery policy partial), with the reason."""
        return self._missing

    @property
    def covered(self) -> Mapping[str, str]:
        """Nodes that cannot be read, with the reason: other logs have their acknowledged
        changes."""
        return self._covered

    @property
    def statistics(self) -> RestoreStatistics:
        with self._lock:
            total = sum(self._index.counts().values())
            now = self._log.clock.now_ms()
            living = conflicts = 0
            for name in self._index.maps():
                for states in self._index.keys(name):
                    living += sum(
                        not deleted and not 0 < expires <= now for _, deleted, expires in states
                    )
                    for each in self._index.conflicts():
                        conflicts += 1
                        self._noted.note((each,))
            return RestoreStatistics(
                self._records,
                self._bytes,
                living,
                total - living,
                self._seconds,
                self._missing,
                conflicts,
            )

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this view was closed")

    def interrupt(self) -> None:
        """End a merge under way with `Closed` at its next batch; nothing is merged after this. May
        be called from any thread; does not wait."""
        self._closed = True

    def close(self) -> None:
        """Free memory and scratch. Safe to call twice."""
        self.interrupt()
        with self._lock:
            self.version += 1
            self._index.close()

    # ---- with the lock held ----

    def _new_index(self) -> NewestIndex:
        return NewestIndex(self._settings.restore_memory_bytes, self._settings.scratch)

    def _news(self, state: ClusterState) -> tuple[ClusterState, Collection[str]] | None:
        """The new entries since `state`, if they are in segments: the state now, and the nodes that
        have more to read. None: everything must be examined. If nothing changed, this is a listing
        and a read for each node, and one more listing."""
        log, nodes, moved = self._log, dict(state.nodes), set()
        for name, known in state.nodes.items():
            manifest = known.manifest
            wal = wal_folder(log.store, known.folder, manifest.archived, manifest.begins)
            # Without a known segment, one may have been written and archived since.
            same = known.segments and [each.path for each in wal.segments] == [
                each.path for each in known.segments
            ]
            if not same or not manifest.is_whole(wal):
                found = log.node(name)
                if found == known:
                    continue
                if (
                    found.missing
                    or found.manifest.directory != manifest.directory
                    or found.manifest.cluster.newer_than(state.seen)
                ):
                    return None
                if mark_beyond(name, found.manifest, found.last, state.manifest):
                    return None
                nodes[name] = found
                moved.add(name)
            elif known.segments and self._has_more(name, known.segments[-1].path):
                moved.add(name)
        for name in state.missing:
            found = log.node(name)
            if name in state.parts and found.segments != state.parts[name].segments:
                return None  # it has uploaded more
            if not found.missing and found.manifest.directory == state.manifest.nodes[name]:
                return None  # it has returned
        # After the nodes, as in `ClusterLog.state`: anything removed from a node is in a snapshot
        # that is already published.
        newer = log.manifests.next_path(state.number)
        if any(file.path >= newer for file in log.store.list(log.manifests.folder)):
            return None
        return replace(state, nodes=nodes), moved

    def _has_more(self, node: str, newest: str) -> bool:
        """Whether a node's newest segment has more than was merged. A preallocated one does not
        grow, so this reads the place of its next frame."""
        cursor = self._cursors[node]
        if cursor.path != newest:
            return True
        if not self._log.store.capabilities.durable_append:
            return False  # an object never grows
        try:
            return bool(
                self._log.store.read(newest, cursor.next_offset, FRAME_HEADER_BYTES).strip(b"\0")
            )
        except NotFound:
            return True

    def _merge(self, state: ClusterState, nodes: Collection[str] | None = None) -> None:
        """Read the unmerged part, of some nodes or of all."""
        state = state.demand(self._settings.recovery_policy)
        self._missing = state.lacking
        self._covered = {node: state.missing[node] for node in sorted(state.covered_by_copies)}
        self.feature_level = int(state.manifest.feature_level)
        self._heed_lifetimes(state)
        again = self._maps_to_read_again(state)
        scans: list[tuple[FileScan, bool]] = []
        if again:
            self.version += 1
            for name in again:
                self._index.remove(name)
                self._generations.pop(name, None)
            until = {node: cursor.position for node, cursor in self._cursors.items()}
            scans += [(scan, False) for scan in cluster_scans(state, maps=again, until=until)]
        logs = {node: log for node, log in state.nodes.items() if nodes is None or node in nodes}
        for node, log in logs.items():
            cursor = self._cursors.get(node)
            if cursor is None or cursor.directory != log.manifest.directory:
                cursor = self._cursors[node] = _Cursor(log.manifest.directory)
            for item in log.manifest.metadata:
                self._note(from_manifest(item))
            for scan in node_scans(
                state, node, since=cursor.position if cursor.position > START else None
            ):
                start = cursor.next_offset if scan.path == cursor.path else 0
                scans.append((replace(scan, start=start) if start else scan, True))
        self._read(scans, again)
        for node, log in logs.items():
            # Only after all of a node's archives: there is one for each map, and their positions
            # overlap.
            end = max((archive.last for archive in log.manifest.archives), default=START)
            if end > self._cursors[node].position:
                self._cursors[node] = replace(self._cursors[node], position=end)
        self._generations = {
            name: snapshot.generation for name, snapshot in state.manifest.snapshots.items()
        }

    def _read(self, scans: list[tuple[FileScan, bool]], again: Collection[str]) -> None:
        total = sum(scan.bytes for scan, _ in scans)
        done = 0
        directions = [forward for _, forward in scans]
        sources = ahead(self._log.store, [scan for scan, _ in scans])
        for count, (forward, (scan, store)) in enumerate(zip(directions, sources, strict=True)):
            of_scan = 0
            for changes in read_scan(store, scan, None if forward else again):
                if self._closed:
                    raise Closed("this view was closed while it merged the logs")
                if changes.rows:
                    self._index.add(
                        changes.node, changes.rows, changes.bytes, clears=changes.clears
                    )
                    self._records += len(changes.rows)
                for item in changes.metadata:
                    self._note(item)
                if forward and scan.kind == SEGMENT:
                    cursor = self._cursors[scan.node]
                    self._cursors[scan.node] = _Cursor(
                        cursor.directory, changes.last, scan.path, changes.next_offset
                    )
                    self._bytes += changes.bytes
                if self._progress is not None:
                    of_scan = min(of_scan + changes.bytes, scan.bytes)
                    self._progress(
                        MergeProgress(count, len(scans), done + of_scan, total, self._records)
                    )
            if forward and scan.kind == SEGMENT and self._cursors[scan.node].path != scan.path:
                # It has no frame yet: look there next time.
                self._cursors[scan.node] = replace(
                    self._cursors[scan.node], path=scan.path, next_offset=0
                )
            if scan.kind != SEGMENT:
                self._bytes += scan.bytes
            done += scan.bytes
            if self._progress is not None:
                self._progress(MergeProgress(count + 1, len(scans), done, total, self._records))

    def _note(self, item: Metadata) -> None:
        if item[:1] == ("schema",):
            self._schemas.setdefault(item)
            return
        self._members.setdefault(item)
        if len(self._members) > MEMBERS_MAX:
            del self._members[next(iter(self._members))]

    def _heed_lifetimes(self, state: ClusterState) -> None:
        """Start again if a new lifetime voids merged entries: their bytes were written after the
        cut, but before its manifest."""
        known, lifetimes = self._lifetimes, state.manifest.lifetimes
        new = [lifetime for lifetime in lifetimes if lifetime not in known]
        if any(
            cursor.position > lifetime.cuts.get(node, START)
            for lifetime in new
            for node, cursor in self._cursors.items()
        ):
            self._begin_anew()
        self._lifetimes = lifetimes

    def _begin_anew(self) -> None:
        """Remove everything: the next merge reads everything."""
        self.version += 1
        self._state = None
        self._cursors.clear()
        self._generations.clear()
        with suppress(OSError):  # the failure may be in its scratch files
            self._index.forget()

    def _maps_to_read_again(self, state: ClusterState) -> list[str]:
        """Maps whose new snapshot must be read: it is the first one that is merged here, the map
        was dropped, or the snapshot covers unmerged entries, which may be pruned."""
        found = []
        for name, snapshot in state.manifest.snapshots.items():
            known = self._generations.get(name, 0)
            if snapshot.generation == known:
                continue
            ahead = any(
                mark.position > cursor.position
                for node, mark in snapshot.marks.items()
                if (cursor := self._cursors.get(node, _Cursor(mark.directory))).directory
                == mark.directory
            )
            if known == 0 or snapshot.dropped > known or ahead:
                found.append(name)
        return found


def live(rows: Sequence[Row], now_ms: int) -> list[Row]:
    """Leaves out tombstones and expired entries."""
    return [row for row in rows if not row[DELETED] and not 0 < row[EXPIRES_AT_MS] <= now_ms]
