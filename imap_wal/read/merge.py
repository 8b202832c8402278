"""Reads the logs of a cluster into a `Sink`: everything once, then what was appended since. The
sink of a view is a `NewestIndex`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from imap_wal.errors import Closed, ImapWalError, LogError, OtherHistory
from imap_wal.format import FRAME_HEADER_BYTES, START, Position
from imap_wal.manifest.epochs import demand, ids, marked
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import (
    MEMBERS_MAX,
    SEGMENT,
    EntryBatch,
    FileScan,
    Metadata,
    from_manifest,
)
from imap_wal.read.scan import CutBack, ahead, read_scan
from imap_wal.read.scan_list import cluster_scans, node_scans
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.segment.listing import wal_folder
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from storage_backends import NotFound, StorageError


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """Progress of a merge, in files and in bytes of storage. `step`: of several that begin at 0
    each, whose `files` are tasks."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    records: int
    step: str = ""

    @property
    def part(self) -> float:
        """The progress from 0 to 1, by bytes."""
        return self.bytes / self.bytes_total if self.bytes_total else 1.0

    def __str__(self) -> str:
        if self.step:
            return f"{self.step}, {self.files} of {self.files_total} tasks"
        return (
            f"{self.part:.0%}, {self.files} of {self.files_total} files, {self.records:,} records"
        )


@dataclass(frozen=True, slots=True)
class MergeStatistics:
    """What a view has merged since it was made, as far as it is known without reading. `merges`:
    how many merges had something to read. `keys`: how many keys have an entry, including
    tombstones; None: not known."""

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


class Sink(Protocol):
    """Gets what a merge reads."""

    def begin(self, state: ClusterState) -> None:
        """A pass over the logs begins, as they are in this state."""

    def take(self, scan: FileScan, changes: EntryBatch) -> None:
        """The next entries, of this file."""

    def remove(self, name: str) -> None:
        """Remove a map: the whole of it follows again."""

    def forget(self) -> None:
        """Remove all maps: everything follows again."""

    def known_count(self) -> int | None:
        """How many keys there are; None: it would have to be counted."""

    def close(self) -> None:
        """Free what it uses."""


S = TypeVar("S", bound=Sink)


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The merged part of a node's log: the last position, with the id of its epoch, and where its
    segment continues."""

    directory: str
    position: Position = START
    path: str = ""
    next_offset: int = 0


class Merge(Generic[S]):
    """Not thread-safe, except where it is said. Nothing is read before the first `catch_up`."""

    def __init__(
        self,
        log: ClusterLog,
        settings: Settings,
        index: S,
        progress: Callable[[MergeProgress], None] | None = None,
    ) -> None:
        self._log, self._settings, self._progress = log, settings, progress
        self.index = index
        self._cursors: dict[str, _Cursor] = {}
        self._generations: dict[str, int] = {}
        self._lifetimes: tuple[object, ...] = ()
        self._complete, self._done = False, (0, 0)
        """Whether the last merge succeeded; the files and bytes that it and the failed ones before
        it have merged."""
        self._schemas: dict[Metadata, None] = {}
        self._members: dict[Metadata, None] = {}
        """The newest `MEMBERS_MAX` of the other metadata: each session of a member adds one."""
        self._state: ClusterState | None = None
        """The merged state; None if unknown, or if nothing is merged."""
        self.missing: Mapping[str, str] = {}
        """Nodes that were left out (recovery policy partial), with the reason."""
        self.covered: Mapping[str, str] = {}
        """Nodes that cannot be read, with the reason: other logs have their acknowledged
        changes."""
        self.records = self.bytes = 0
        """Read until now, even by a merge that failed."""
        self.seconds = 0.0
        self.merged = MergeStatistics()
        """Replaced after each merge; safe to read from any thread, even during a merge."""
        self.version = 0
        """Grows when the index is rebuilt or a map is removed from it: an older iteration then
        misses keys."""
        self.stopped = False

    @property
    def ends(self) -> dict[str, Position]:
        """The position up to which each node's log is merged. Safe to read from any thread, even
        during a merge: the copy is one step of the interpreter."""
        return {node: cursor.position for node, cursor in self._cursors.copy().items()}

    def metadata(self) -> list[Metadata]:
        """The schemas of all nodes and the newest other metadata, each once."""
        return [*self._schemas, *self._members]

    def catch_up(self) -> None:
        """The first call merges everything, later calls what was appended since; cheap if nothing
        was. Raises `MissingNode`, `LogError`, `StorageError`, and `Closed` if it is stopped
        meanwhile."""
        news = None if self._state is None else self._news(self._state)
        if news is not None and not news[1]:
            return
        start = self._log.clock.monotonic()
        if self._complete:
            self._done = 0, 0
        self._complete = False
        for attempt in range(ATTEMPTS):
            self._state = None  # after a failure the next call examines everything
            state, nodes = news or (self._log.state(), None)
            if self._is_of_other_history(state):
                self._begin_again()
                state, nodes = self._log.state(), None
            try:
                self._read_unmerged(state, nodes)
            except NotFound as error:
                if attempt == ATTEMPTS - 1:
                    raise self._log.lost(error) from error
                news = None
                continue
            except CutBack:
                # An open has cut off merged frames: they were never acknowledged.
                self._begin_again()
                if attempt == ATTEMPTS - 1:
                    raise
                news = None
                continue
            except (ImapWalError, StorageError):
                raise  # the merged part is whole, and its end is known
            except BaseException:
                self._begin_again()  # the index may have a part of the last batch
                raise
            self._state = state
            break
        self._complete = True
        self.seconds += self._log.clock.monotonic() - start
        self.merged = MergeStatistics(
            self.merged.merges + 1,
            self.records,
            self.bytes,
            self.seconds,
            self.index.known_count(),
        )

    def has_more(self) -> bool:
        """Whether the newest known segment of a node has more than was merged: one read for each
        node. True also if that is not known."""
        state = self._state
        return state is None or any(
            self._has_more(name, node.segments[-1].path)
            for name, node in state.nodes.items()
            if node.segments
        )

    def is_replaced(self) -> bool:
        """Whether the newest known segment of a node is now that of another copy of the log: it may
        have the same name, and nothing at the place of the next frame. One read for each node."""
        state = self._state
        return state is not None and any(
            self._is_replaced(self._cursors[name], node) for name, node in state.nodes.items()
        )

    def _is_replaced(self, cursor: _Cursor, node: NodeState) -> bool:
        newest = [segment.path for segment in node.segments[-1:]]
        if not cursor.next_offset or newest != [cursor.path]:
            return False
        try:
            header = SegmentReader(self._log.store, cursor.path).header
        except (LogError, NotFound):
            return False  # the next look at the logs says why
        epoch_ids = ids(node.manifest.epochs, cursor.position.epoch)
        return bool(epoch_ids) and header.epoch_id not in epoch_ids

    def stop(self) -> None:
        """End a merge under way with `Closed` at its next batch; nothing is merged after this. May
        be called from any thread; does not wait."""
        self.stopped = True

    def close(self) -> None:
        """Free memory and scratch. Safe to call twice."""
        self.stop()
        self.version += 1
        self.index.close()

    def _news(self, state: ClusterState) -> tuple[ClusterState, Collection[str]] | None:
        """The new entries since `state`, if they are in segments: the state now, and the nodes that
        have more to read. None: everything must be examined. If nothing changed, this is a listing
        and a read for each node, and one more listing."""
        log, nodes, moved = self._log, dict(state.nodes), set()
        for name, former in state.nodes.items():
            manifest = former.manifest
            wal = wal_folder(log.store, former.folder, manifest.archived, manifest.begins)
            # Without a known segment, one may have been written and archived since.
            same = former.segments and [segment.path for segment in wal.segments] == [
                segment.path for segment in former.segments
            ]
            if not same or not manifest.is_whole(wal):
                node_state = log.node(name)
                if node_state == former:
                    continue
                if (
                    node_state.missing
                    or node_state.manifest.directory != manifest.directory
                    or node_state.manifest.cluster.newer_than(state.seen)
                ):
                    return None
                if node_state.replaced(state.manifest, {}):
                    return None
                nodes[name] = node_state
                moved.add(name)
            elif former.segments and self._has_more(name, former.segments[-1].path):
                moved.add(name)
        for name in state.missing:
            node_state = log.node(name)
            if name in state.parts and node_state.segments != state.parts[name].segments:
                return None  # it has uploaded more
            if (
                not node_state.missing
                and node_state.manifest.directory == state.manifest.nodes[name]
            ):
                return None  # it has returned
        # After the nodes, as in `ClusterLog.state`: anything removed from a node is in a snapshot
        # that is already published.
        newer = log.manifests.next_path(state.number)
        if any(file.path >= newer for file in log.store.list(log.manifests.folder)):
            return None
        return replace(state, nodes=nodes), moved

    def _is_of_other_history(self, state: ClusterState) -> bool:
        """Whether the log of a node was replaced by another copy since it was merged, or an open
        has cut off what was merged."""
        try:
            for name, node in state.nodes.items():
                cursor = self._cursors.get(name)
                # What is given up with a node's own disk may have copies, which need no new merge.
                if cursor is None or node.manifest.address:
                    continue
                if cursor.directory == node.manifest.directory:
                    demand(node.manifest.epochs, cursor.position, f"node {name!r}")
        except OtherHistory:
            return True
        return False

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

    def _read_unmerged(self, state: ClusterState, nodes: Collection[str] | None = None) -> None:
        """Read the unmerged part, of some nodes or of all."""
        state = state.demand(self._settings.recovery_policy)
        self.missing = state.lacking
        self.covered = {node: state.missing[node] for node in sorted(state.covered_by_copies)}
        self._heed_lifetimes(state)
        self.index.begin(state)
        again = self._maps_to_read_again(state)
        scans: list[tuple[FileScan, bool]] = []
        if again:
            self.version += 1
            for name in again:
                self.index.remove(name)
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
                position = marked(log.manifest.epochs, end)
                self._cursors[node] = replace(self._cursors[node], position=position)
        self._generations = {
            name: snapshot.generation for name, snapshot in state.manifest.snapshots.items()
        }

    def _read(self, scans: list[tuple[FileScan, bool]], again: Collection[str]) -> None:
        # What earlier attempts have merged counts too: otherwise the progress would decrease.
        files, done = self._done
        total, last = done + sum(_left(scan) for scan, _ in scans), files + len(scans)
        directions = [forward for _, forward in scans]
        sources = ahead(self._log.context, [scan for scan, _ in scans])
        for count, (forward, (scan, context)) in enumerate(
            zip(directions, sources, strict=True), files
        ):
            of_scan = 0
            for changes in read_scan(context, scan, None if forward else again):
                if self.stopped:
                    raise Closed("this view was closed while it merged the logs")
                if changes.rows:
                    self.index.take(scan, changes)
                    self.records += len(changes.rows)
                for item in changes.metadata:
                    self._note(item)
                if forward and scan.kind == SEGMENT:
                    cursor = self._cursors[scan.node]
                    position = marked(scan.epochs, changes.last)
                    self._cursors[scan.node] = _Cursor(
                        cursor.directory, position, scan.path, changes.next_offset
                    )
                    self.bytes += changes.bytes
                of_scan = min(of_scan + changes.bytes, _left(scan))
                if forward and scan.kind == SEGMENT:
                    self._done = count, done + of_scan
                if self._progress is not None:
                    self._progress(MergeProgress(count, last, done + of_scan, total, self.records))
            if forward and scan.kind == SEGMENT and self._cursors[scan.node].path != scan.path:
                # It has no frame yet: look there next time.
                self._cursors[scan.node] = replace(
                    self._cursors[scan.node], path=scan.path, next_offset=0
                )
            if scan.kind != SEGMENT:
                self.bytes += scan.bytes
            done += _left(scan)
            self._done = count + 1, done
            if self._progress is not None:
                self._progress(MergeProgress(count + 1, last, done, total, self.records))

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
        former, lifetimes = self._lifetimes, state.manifest.lifetimes
        new = [lifetime for lifetime in lifetimes if lifetime not in former]
        if any(
            cursor.position > lifetime.cuts.get(node, START)
            for lifetime in new
            for node, cursor in self._cursors.items()
        ):
            self._begin_again()
        self._lifetimes = lifetimes

    def _begin_again(self) -> None:
        """Remove everything: the next merge reads everything."""
        self.version += 1
        self._state, self._done = None, (0, 0)
        self._cursors.clear()
        self._generations.clear()
        with suppress(OSError):  # the failure may be in its scratch files
            self.index.forget()

    def _maps_to_read_again(self, state: ClusterState) -> list[str]:
        """Maps whose new snapshot must be read: it is the first one that is merged here, the map
        was dropped, or the snapshot covers unmerged entries, which may be pruned."""
        maps = []
        for name, snapshot in state.manifest.snapshots.items():
            generation = self._generations.get(name, 0)
            if snapshot.generation == generation:
                continue
            ahead = any(
                mark.position > cursor.position
                for node, mark in snapshot.marks.items()
                if (cursor := self._cursors.get(node, _Cursor(mark.directory))).directory
                == mark.directory
            )
            if generation == 0 or snapshot.dropped > generation or ahead:
                maps.append(name)
        return maps


def _left(scan: FileScan) -> int:
    """How many bytes of a file are still to be read."""
    return max(scan.bytes - scan.start, 0)
