"""Reads a cluster's log when a store is opened, and fills its maps.

    one node has written all   each change goes into its map at once: the log has them in order
    several nodes              `MaterializedView` finds the newest change of each key, on scratch
                               if it must, and its rows go into the maps
    a function of the user     `wal_filter`

See docs/decisions/restores.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from imap_wal.collector import collecting_rarely
from imap_wal.embedded.wal_filter import WalFilter, filtered
from imap_wal.entry import (
    KEY,
    KEY_CLASS,
    MAP,
    ORDER,
    PARTITION_COUNT,
    Order,
    Row,
    differing,
    is_clear,
)
from imap_wal.format import START, Position
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.progress import Progress
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, SNAPSHOT, EntryBatch, FileScan
from imap_wal.read.scan import ahead, read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from storage_backends import NotFound

_log = logging.getLogger("imap_wal")

ADVICE = "an open reads all changes that no snapshot covers; `imap-wal rewrite` makes one"

Fill: TypeAlias = Callable[[str, Sequence[Row]], None]
"""Applies changes of one map, in order: an upsert, a tombstone, a clear of the whole map, or an
entry that has expired, which deletes its key like a tombstone."""

_NO_ORDER: Order = (0, 0, 0, 0)


class NotInOrder(Exception):  # an answer, never shown
    """The changes must be compared with each other."""


class ReadAgain(NotInOrder):
    """Everything must be read again; it may well be in order then."""


def load(
    cluster: ClusterLog,
    settings: Settings,
    fill: Fill,
    forget: Callable[[], None],
    wal_filter: WalFilter | None = None,
) -> None:
    """Call `fill` until the maps are those of the log.
    `forget` removes all maps: files were removed meanwhile, and reading begins again. Raises
    `MissingNode`, `LogError`, `StorageError`, and what `wal_filter` raises."""
    if wal_filter is not None:
        for name, newest in filtered(cluster, wal_filter, settings.recovery_policy).items():
            fill(name, list(newest.values()))
        return
    progress = Progress(cluster.clock, f"opening the maps of cluster {cluster.cluster!r}")
    with collecting_rarely():
        records = _in_order(cluster, settings, fill, forget, progress)
        if records is None:
            forget()
            records = _merged(cluster, settings, fill, progress)
    progress.over(records, ADVICE)


def _merged(cluster: ClusterLog, settings: Settings, fill: Fill, progress: Progress) -> int:
    """Find the newest change of each key of all nodes first."""
    view = MaterializedView(
        cluster, settings, lambda done: progress.reached(done.records, done.part)
    )
    with closing(view):
        view.catch_up()
        for node, why in view.missing.items():
            _log.warning(
                "the entries that are only in the log of node %r are left out: %s", node, why
            )
        for name in view.maps():
            for rows in view.rows(name):
                fill(name, rows)
        return view.statistics.records


def _in_order(
    cluster: ClusterLog,
    settings: Settings,
    fill: Fill,
    forget: Callable[[], None],
    progress: Progress,
) -> int | None:
    """Apply the changes while they are read. Returns their number; None: they must be compared, and
    some may be applied."""
    for attempt in range(ATTEMPTS):
        state = cluster.state().demand(settings.recovery_policy)
        sink = InOrder(fill)
        try:
            sink.begin(state)
            return _read(cluster, state, sink, progress)
        except NotInOrder:
            return None
        except NotFound as error:  # it was archived or pruned meanwhile
            if attempt == ATTEMPTS - 1:
                raise cluster.lost(error) from error
            forget()
    raise AssertionError("unreachable")


def _read(cluster: ClusterLog, state: ClusterState, sink: InOrder, progress: Progress) -> int:
    """How many changes were read."""
    scans = cluster_scans(state, metadata=False)
    total = sum(scan.bytes for scan in scans)
    records = done = 0
    for scan, context in ahead(cluster.context, scans):
        of_scan = 0
        for changes in read_scan(context, scan):
            sink.take(scan, changes)
            records += len(changes.rows)
            of_scan = min(of_scan + changes.bytes, scan.bytes)
            progress.reached(records, (done + of_scan) / total if total else None)
            del changes  # before the next batch is decoded, which gets the same memory
        done += scan.bytes
    return records


class InOrder:
    """The sink of a log that one node has written: its changes become newer from each file to the
    next one, so each is applied when it is read. Raises `NotInOrder` if that is not certain:

    - other nodes have a log here, or had one that a snapshot contains;
    - it is not known up to where a snapshot covers the log: it may be newer than a part of it, and
      `imap-wal repair` may have given up changes in between;
    - the keys of a map's snapshot do not increase, or the positions of its archives do not:
      `imap-wal repair` may take in files that a later one replaced;
    - a file that is sorted by key has clears, which delete only older entries;
    - a batch of a segment does not begin with a newer change than the batches before it, or has
      changes of members, as no release writes them into such a log;
    - a map was emptied, and then written with another serializer.

    `following`: only what was appended to segments may come now. Otherwise it raises `ReadAgain`: a
    snapshot or an archive has one map only, so the maps would show a state that the log never had.
    """

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self.following = self._is_stale = False
        self._node = self._directory = ""
        self._newest = _NO_ORDER
        self._labels: dict[str, str] = {}
        self._last_keys: dict[str, bytes] = {}
        """Map → the last key of its snapshot that was read."""
        self._archived: dict[str, Position] = {}
        """Map → the last position of its archives that were read."""
        self._archive = ""
        """The path of the archive that was read last."""

    def begin(self, state: ClusterState) -> None:
        if self._is_stale:
            raise ReadAgain
        if len(state.nodes) != 1 or state.missing:
            raise NotInOrder
        node = next(iter(state.nodes))
        directory = state.nodes[node].manifest.directory
        if (self._node or node, self._directory or directory) != (node, directory):
            raise NotInOrder
        self._node, self._directory = node, directory
        if not all(map(self._begins, state.manifest.snapshots.values())):
            raise NotInOrder

    def _begins(self, snapshot: Snapshot) -> bool:
        """Whether all changes that are read from this log are newer than this snapshot. This
        is not known of files that a repair took in."""
        mark = snapshot.marks.get(self._node)
        if snapshot.marks.keys() - {self._node}:
            return False
        covers = mark is not None and mark.directory == self._directory and not snapshot.mixed
        return covers or not snapshot.files

    def take(self, scan: FileScan, changes: EntryBatch) -> None:
        if self.following and scan.kind != SEGMENT:
            raise ReadAgain
        self._demand_later(scan)
        self._demand_order(scan, changes)
        for name, rows in _by_map(changes.rows):
            self._demand_one_label(name, rows)
            self._fill(name, rows)

    def remove(self, name: str) -> None:
        # What was applied cannot be taken back: its deletion may be in the snapshot that follows.
        if self.following or name in self._labels:
            raise ReadAgain

    def forget(self) -> None:
        """What was applied may not be in the log: it was cut off, or a part of it was applied."""
        self._is_stale = True

    def known_count(self) -> int | None:
        return None

    def close(self) -> None:
        pass

    def _demand_order(self, scan: FileScan, changes: EntryBatch) -> None:
        rows = changes.rows
        if changes.node != self._node or (changes.clears and scan.kind != SEGMENT):
            raise NotInOrder
        if scan.kind == SNAPSHOT and rows:
            last = self._last_keys.get(scan.map)
            if last is not None and rows[0][KEY] <= last:
                raise NotInOrder
            self._last_keys[scan.map] = rows[-1][KEY]
        if scan.kind != SEGMENT or not rows:
            return
        if changes.clears and any(is_clear(row) and row[PARTITION_COUNT] != 1 for row in rows):
            raise NotInOrder
        first, last_order = rows[0][ORDER], rows[-1][ORDER]
        if not self._newest < first <= last_order or first[1] or last_order[1]:
            raise NotInOrder
        self._newest = last_order

    def _demand_later(self, scan: FileScan) -> None:
        """An archive has later positions than those of its map before it."""
        if scan.kind == ARCHIVE and scan.path != self._archive:
            self._archive = scan.path
            if scan.first <= self._archived.get(scan.map, START):
                raise NotInOrder
            self._archived[scan.map] = scan.last

    def _demand_one_label(self, name: str, rows: Sequence[Row]) -> None:
        """Note the label of a map's serializer. Raises `NotInOrder` if its entries have more
        than one, also those deleted since."""
        labels = set(map(itemgetter(KEY_CLASS), differing(rows))) - {""}
        label = self._labels.get(name)
        if label is not None:
            labels.add(label)
        if len(labels) > 1:
            raise NotInOrder
        if labels and label is None:
            self._labels[name] = labels.pop()


def _by_map(rows: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    """The changes of each map, in order."""
    if not rows:
        return []
    name = rows[0][MAP]
    if len(set(map(itemgetter(MAP), differing(rows)))) == 1:
        return [(name, rows)]
    return [(map_name, list(some)) for map_name, some in groupby(rows, itemgetter(MAP))]
