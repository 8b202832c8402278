"""A store that only reads: it takes no lock, registers no node and writes nothing, so there may be
any number of them beside the writer."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias

from imap_wal.collector import collecting_rarely
from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.durable_map import DurableMap
from imap_wal.embedded.loading import InOrder, NotInOrder, ReadAgain
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.embedded.store import FollowStatistics, Store, StoreStatistics, retire
from imap_wal.entry import KEY, MAP, Row, is_clear
from imap_wal.errors import Closed, InvalidSetting, NoSuchLog, ReadOnly
from imap_wal.forked import Openness
from imap_wal.format import Position
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import EntryBatch
from imap_wal.read.log_reader import storage_errors
from imap_wal.read.merge import Merge
from imap_wal.read.newest.index import NewestIndex
from imap_wal.rewrite.compaction import Compaction, CompactionStatistics
from imap_wal.rules.alive import is_alive
from imap_wal.serializer import Serializer
from imap_wal.settings import Settings
from imap_wal.worker import Worker
from imap_wal.write.committer import CommitCounts
from imap_wal.write.maintenance import MaintenanceStatistics
from imap_wal.write.node_log import NodeLog
from imap_wal.write.recovery import RecoveryReport
from imap_wal.write.ring import CommitRequest, RingStatistics
from storage_backends import Unavailable

POLL_S, POLL_OBJECTS_S = 0.002, 1.0
"""How often a follower looks for more: in local files, and in any other storage."""
LOOK_S = 0.1
"""A look of this age is repeated in full: for another segment, another node, another snapshot."""


def poll_s(url: str) -> float:
    """How often a follower of this storage looks, by default."""
    return POLL_S if url.startswith(("file:", "memory:")) else POLL_OBJECTS_S


class ReadOnlyStore(Store):
    """From `imap_wal.open(…, read_only=True)`. The methods that read are those of `Store`; all
    others raise `ReadOnly`."""

    def __init__(
        self,
        cluster: ClusterLog,
        settings: Settings,
        serializer: Serializer[Any, Any],
        follow_s: float | None,
    ) -> None:
        """`follow_s`: how often to look for new changes; None: only `refresh` does."""
        self.changes: _Refusing = _Refusing(cluster, settings)
        self._cluster, self._serializer, self._clock = cluster, serializer, cluster.clock
        self._maps: dict[str, MapState] = {}
        self.changes.openness.at_end = partial(retire, self._maps)
        self.url = cluster.store.url
        self._follower = Follower(cluster, settings, self)
        self._refreshing = threading.Lock()
        self._made: dict[str, MapState] | None = None
        """The maps that are being loaded, until they are shown."""
        self._follow_s = follow_s
        start = self._looked_at = self._clock.monotonic()
        if not cluster.nodes():
            raise NoSuchLog(
                f"{cluster.store.url} has no maps in cluster {cluster.cluster!r}, namespace "
                f"{cluster.namespace!r}; open it without read_only once, or look with `imap-wal ls`"
            )
        self.refresh()
        self._restore_seconds = self._clock.monotonic() - start
        self._worker = Worker("imap-wal-follow", self._turn)
        if follow_s is not None:
            self._worker.start()

    # ---- the maps ----

    def _map(
        self,
        name: str,
        wanted: Serializer[Any, Any] | None,
        disable_wal: bool,
        sorted: bool,
    ) -> DurableMap[Any, Any]:
        if disable_wal:
            raise InvalidSetting("a store with read_only has no maps that are only in memory")
        return super()._map(name, wanted, disable_wal, sorted)

    def queue(self, name: str, *, serializer: Serializer[Any, Any] | None = None) -> NoReturn:
        """Raises `ReadOnly`."""
        self.changes.refuse()

    def maps(self) -> list[str]:
        """The names of all maps with an entry, and of those that were opened with `map`, sorted.
        Raises `Closed` after the store was closed."""
        self.changes.check_open()
        with self.changes.order_lock:
            shown = self._maps.items()
            return sorted(name for name, state in shown if state.values or state.opened)

    def fill(self, name: str, rows: Sequence[Row]) -> None:
        """For the follower."""
        now = self._clock.now_ms()
        if self._made is not None:
            self._replay(self._made, name, rows, now)
            return
        with self.changes.order_lock:
            state = self._maps.get(name)
            if state is None or state.values:
                self._replay(self._maps, name, rows, now)
            else:  # perhaps it was opened before its first entry, with another serializer
                made: dict[str, MapState] = {}
                self._replay(made, name, rows, now)
                state.become(made.get(name))

    @contextmanager
    def replaced(self, names: Collection[str] | None) -> Iterator[None]:
        """For the follower."""
        made: dict[str, MapState] = {}
        self._made = made
        try:
            yield
        finally:
            self._made = None
        with self.changes.order_lock:
            for name in made.keys() | self._maps.keys() if names is None else names:
                if name in self._maps:
                    self._maps[name].become(made.get(name))
                elif name in made:
                    self._maps[name] = made[name]

    # ---- following ----

    def refresh(self) -> None:
        """Show all changes that are in the log now; see `Store.refresh`."""
        self.changes.check_open()
        with storage_errors(f"reading {self._cluster.store.url}"), self._refreshing:
            self.changes.check_open()
            now = self._clock.monotonic()
            self._follower.catch_up()
            self._looked_at = now

    def _turn(self, worker: Worker) -> bool:
        assert self._follow_s is not None
        worker.stopping.wait(self._follow_s)
        if worker.stopping.is_set():
            return False
        with self._refreshing:
            due = self._clock.monotonic() - self._looked_at >= max(LOOK_S, self._follow_s)
            due = due or self._follower.has_more()
        if due:
            try:
                self.refresh()
            except Closed:
                return False
        return due

    @property
    def statistics(self) -> StoreStatistics:
        """As for `Store.statistics`. `following` says how far the store is behind."""
        self.changes.openness.check_process()
        return StoreStatistics(
            CommitCounts().statistics(0),
            RingStatistics(0, 0, 0, 0, 0),
            RecoveryReport(clean=True),
            self._restore_seconds,
            sum(len(state.values) for state in list(self._maps.values())),
            MaintenanceStatistics(0, 0, "", 0, 0, ""),
            self._worker.state.error,
            CompactionStatistics(),
            FollowStatistics(
                self._clock.monotonic() - self._looked_at,
                {node: str(end) for node, end in self._follower.positions.items()},
                self._follower.records,
                self._follower.loads,
            ),
        )

    def close(self) -> None:
        """End following, and free the memory. Safe to call twice."""
        self._close(0)

    def _close(self, wait_s: float) -> None:
        self.changes.openness.check_process()
        self.changes.openness.end()
        self._worker.stop()
        with self._refreshing:
            self._follower.close()
        self._cluster.store.close()

    # ---- what a store with read_only does not do ----

    def sync(self) -> None:
        """Raises `ReadOnly`."""
        self.changes.refuse()

    def flush_wal(self, sync: bool = True) -> None:
        """Raises `ReadOnly`."""
        self.changes.refuse()

    def archive(self) -> int:
        """Raises `ReadOnly`."""
        self.changes.refuse()

    def compact(self) -> Compaction:
        """Raises `ReadOnly`."""
        self.changes.refuse()


class _Refusing(MapWriter):
    """Takes the place of the writer of a store's maps."""

    def __init__(self, cluster: ClusterLog, settings: Settings) -> None:
        self.knows_all, self.some_unlogged = True, False
        self.max_value_bytes = settings.max_value_bytes
        self.bounds_of = settings.ring_slots, settings.ring_bytes
        self._clock = cluster.clock
        self.order_lock = threading.Lock()
        self.openness = Openness("store")

    @property
    def log(self) -> NodeLog:  # type: ignore[override]
        """Raises `InvalidSetting`."""
        raise InvalidSetting(
            "a store with read_only has no watches; follow the log with imap_wal.log.LogReader"
        )

    def refuse(self) -> NoReturn:
        """Raises `ReadOnly`."""
        self.check_open()
        raise ReadOnly(
            "this store was opened with read_only=True, so it changes nothing; make changes in the "
            "process that writes the log, or open the store without read_only"
        )

    def change(self, batches: Sequence[WriteBatch]) -> None:
        self.refuse()

    def submit(self, batches: Sequence[WriteBatch]) -> CommitRequest:
        self.refuse()

    def evaluate(self, steps: Sequence[WriteBatch]) -> None:
        self.refuse()

    @property
    def bounds(self) -> tuple[int, int]:
        return self.bounds_of


# Keeps maps equal to the logs of a cluster, which other processes write.
#
#   one node has written all   what was appended to its segments goes into the maps in its order
#   several nodes              a `NewestIndex` says which change of a key is the newest
#
# If that does not suffice, because a snapshot or an archive has changes that were not read yet, or
# because an open has cut off what was read, the maps are loaded again, beside those that are shown.


class Maps(Protocol):
    """The maps that are shown."""

    def fill(self, name: str, rows: Sequence[Row]) -> None:
        """Apply changes of a map, in order."""

    def replaced(self, names: Collection[str] | None) -> AbstractContextManager[None]:
        """Within this, `fill` makes the content of these maps (None: of all) from the start. It is
        shown at the end."""


class _Newest(NewestIndex):
    """Remembers which keys have changed since they were last shown."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.restore_memory_bytes, settings.scratch)
        self.changed: dict[str, dict[bytes, None]] = {}
        self.again: set[str] = set()
        """Maps of which anything may have changed."""
        self.everything = True

    def take(self, scan: object, changes: EntryBatch) -> None:
        super().take(scan, changes)
        if self.everything:
            return
        for row in changes.rows:
            if is_clear(row):
                self.again.add(row[MAP])
            else:
                self.changed.setdefault(row[MAP], {})[row[KEY]] = None

    def remove(self, name: str) -> None:
        super().remove(name)
        self.again.add(name)

    def forget(self) -> None:
        super().forget()
        self.everything = True

    def show(self, maps: Maps, now_ms: int) -> None:
        """Bring the maps up to date."""
        again = None if self.everything else self.again
        if again is None or again:
            with maps.replaced(again):
                for name in self.maps() if again is None else sorted(again):
                    for page in self.batches(name):
                        maps.fill(name, [row for row in page if is_alive(row, now_ms)])
        if again is not None:
            for name in self.changed.keys() - again:
                keys = list(self.changed[name])
                rows = zip(keys, self.get(name, keys), strict=True)
                maps.fill(name, [row or _deletion(name, key) for key, row in rows])
        self.everything, self.again, self.changed = False, set(), {}


_AnyMerge: TypeAlias = "Merge[InOrder] | Merge[_Newest]"


class Follower:
    """Not thread-safe, except for methods that say otherwise."""

    def __init__(self, cluster: ClusterLog, settings: Settings, maps: Maps) -> None:
        self._cluster, self._settings, self._maps = cluster, settings, maps
        self._merge: _AnyMerge | None = None
        self.loads = 0
        """How often all maps were loaded."""
        self._records = 0

    @property
    def records(self) -> int:
        """How many changes were read. May be read from any thread."""
        merge = self._merge
        return self._records + (0 if merge is None else merge.records)

    @property
    def positions(self) -> dict[str, Position]:
        """Up to where the log of each node is shown. May be read from any thread."""
        merge = self._merge
        return {} if merge is None else merge.ends

    def has_more(self) -> bool:
        """Whether the newest known segment of a node has more: one read for each node. False does
        not say that there is nothing: there may be another segment."""
        return self._merge is None or self._merge.has_more()

    def catch_up(self) -> None:
        """Show what the logs have now. If this raises, what was shown before stays, with a part of
        what follows it in the log. Raises `MissingNode`, `LogError`, `StorageError`."""
        merge = self._merge
        if merge is None or merge.is_replaced():
            self._forget()
            self._load()
            return
        try:
            merge.catch_up()
        except NotInOrder:
            self._forget()
            self._load()
        else:
            if isinstance(merge.index, _Newest):
                merge.index.show(self._maps, self._cluster.clock.now_ms())

    def _load(self) -> None:
        with collecting_rarely():
            self._merge = self._loaded_in_order() or self._loaded_merged()
        self.loads += 1

    def _loaded_in_order(self) -> Merge[InOrder] | None:
        for _ in range(ATTEMPTS):
            merge = Merge(self._cluster, self._settings, InOrder(self._maps.fill))
            try:
                with self._maps.replaced(None):
                    merge.catch_up()
            except ReadAgain:
                continue
            except NotInOrder:
                return None
            merge.index.following = True
            return merge
        raise Unavailable("the log was changed at each attempt to read it; try again", "")

    def _loaded_merged(self) -> Merge[_Newest]:
        merge = Merge(self._cluster, self._settings, _Newest(self._settings))
        try:
            merge.catch_up()
            merge.index.show(self._maps, self._cluster.clock.now_ms())
        except BaseException:
            merge.close()
            raise
        return merge

    def _forget(self) -> None:
        if self._merge is not None:
            self._records += self._merge.records
            self._merge.close()
        self._merge = None

    def close(self) -> None:
        """Free memory and scratch. Safe to call twice."""
        self._forget()


def _deletion(name: str, key: bytes) -> Row:
    return (name, key, "", None, "", True, 0, 0, 0, (0, 0, 0, 0))
