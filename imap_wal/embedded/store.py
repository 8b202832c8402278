"""The embedded store: durable maps in one process, with the same ring, committer, segments and
restore as a cluster.

    put    serialise ─▶ number, encode, publish (one lock: ring order is request order)
           ─▶ committer ─▶ memory ─▶ return
    open   lock, recover the tail ─▶ read all logs once, the newest entry of a key wins ─▶ memory

Memory contains serialised values. `get` returns a new object each time, equal to what a reopened
store returns.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from html import escape
from operator import itemgetter
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload
from weakref import finalize

from imap_wal.embedded.changes import MapState
from imap_wal.embedded.durable_map import DurableMap
from imap_wal.embedded.job_queue import LEASED, JobQueue
from imap_wal.embedded.labels import Label, Mixed, how_to_change, how_to_open, missing
from imap_wal.embedded.loading import load
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.embedded.transaction import Batch, Transaction, demand_plain
from imap_wal.embedded.views import table
from imap_wal.embedded.wal_filter import WalFilter
from imap_wal.entry import (
    DELETED,
    KEY_CLASS,
    MSGPACK,
    RAW,
    VALUE_CLASS,
    Row,
    differing,
)
from imap_wal.errors import InvalidSetting, NotSerializable, StorageUnavailable
from imap_wal.forked import OfOneProcess
from imap_wal.names import check_map_name
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.log_writer import LogWriter
from imap_wal.retention.other_process import OtherProcess
from imap_wal.rewrite.compaction import Compaction, CompactionStatistics, Compactor
from imap_wal.rules.valid import shows_classes
from imap_wal.serializer import (
    K,
    RawSerializer,
    Serializer,
    SerializerName,
    V,
    known_serializers,
    serializer_of,
)
from imap_wal.typed import TypedSerializer
from imap_wal.write.committer import CommitStatistics
from imap_wal.write.maintenance import MaintenanceStatistics
from imap_wal.write.recovery import RecoveryReport
from imap_wal.write.ring import RingStatistics
from storage_backends import StorageError

_KEY_CLASS_OF: Callable[[Row], str] = itemgetter(KEY_CLASS)
_VALUE_CLASS_OF: Callable[[Row], str] = itemgetter(VALUE_CLASS)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FollowStatistics:
    """How far a store with `read_only` is behind. `lag_s`: all that was in the log so many seconds
    ago is shown. `positions`: up to where the log of each node is shown. `records`: changes that
    were read. `loads`: how often all maps were loaded from the start."""

    lag_s: float
    positions: Mapping[str, str]
    records: int
    loads: int


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters of a store since it was opened. `recovery`: the result of the open.
    `restore_seconds`: how long it took to load the maps. `entries`: keys in memory, including
    expired ones that are not removed yet. `failure`: why nothing more can be written; "" if it
    can. [What each number is for](monitoring.md#embedded-stores)."""

    commits: CommitStatistics
    ring: RingStatistics
    recovery: RecoveryReport
    restore_seconds: float
    entries: int
    maintenance: MaintenanceStatistics
    failure: str
    compaction: CompactionStatistics
    following: FollowStatistics | None = None
    """Of a store with `read_only`, whose `commits`, `ring`, `recovery`, `maintenance` and
    `compaction` are empty."""


class Store(OfOneProcess):
    """An open log and its maps, from `imap_wal.open`. It is thread-safe. As a context manager, it
    closes itself at the end of the block."""

    def __init__(
        self,
        writer: LogWriter,
        cluster: ClusterLog,
        process: OtherProcess | None,
        incarnation: int,
        serializer: Serializer[Any, Any],
        wal_filter: WalFilter | None = None,
        shared: bool = False,
        compacts: bool = True,
    ) -> None:
        """`compacts`: compact automatically if the settings say so."""
        self.writer, self.committer = writer, writer.committer
        self.changes = MapWriter(writer, incarnation, knows_all=not shared and wal_filter is None)
        self._log, self._serializer = writer.log, serializer
        self._clock = self._log.clock
        self._maps: dict[str, MapState] = {}
        self.changes.openness.at_end = partial(retire, self._maps)
        self._queues: dict[str, JobQueue] = {}
        self._queues_lock = threading.Lock()
        self._ended = False
        self.url = self._log.store.url
        self._unclosed = finalize(self, _warn_unclosed, self.url, os.getpid())
        start = self._clock.monotonic()
        self._load(cluster, wal_filter)
        self._restore_seconds = self._clock.monotonic() - start
        self._compactor = Compactor(writer, cluster, process)
        writer.start()
        if compacts:
            self._compactor.start()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.changes.closed

    def is_closed_at_exit(self) -> None:
        """The caller closes the store when the program ends, so it does not warn then."""
        self._unclosed.atexit = False

    @property
    def serializer(self) -> Serializer[Any, Any]:
        """That of maps which have none of their own."""
        return self._serializer

    # ---- maps ----

    @overload
    def map(
        self, name: str, *, key: type[K], value: type[V], disable_wal: bool = False
    ) -> DurableMap[K, V]: ...
    @overload
    def map(
        self, name: str, *, serializer: Serializer[K, V], disable_wal: bool = False
    ) -> DurableMap[K, V]: ...
    @overload
    def map(
        self, name: str, *, raw: Literal[True], disable_wal: bool = False
    ) -> DurableMap[bytes, bytes]: ...
    @overload
    def map(
        self,
        name: str,
        *,
        key: Any = None,
        value: Any = None,
        serializer: Serializer[Any, Any] | SerializerName | None = None,
        raw: bool = False,
        disable_wal: bool = False,
        sorted: bool = False,
    ) -> DurableMap[Any, Any]: ...
    def map(
        self,
        name: str,
        *,
        key: Any = None,
        value: Any = None,
        serializer: Serializer[Any, Any] | SerializerName | None = None,
        raw: bool = False,
        disable_wal: bool = False,
        sorted: bool = False,
    ) -> DurableMap[Any, Any]:
        """The durable map of this name; a new map is empty.

        Args:
            name: 1 to 1024 bytes of UTF-8.
            key: the type of the keys, such as `str`. Pass both types or none of them.
            value: the type of the values, such as a dataclass or `list[int]`
                ([how to use types](how-to/typed.md)).
            serializer: the serializer that the map was written with, or `"msgpack"`, `"raw"` or
                `"pickle"` (see `PickleSerializer` for its danger); None: the store's.
            raw: keys and values are bytes, which are stored unchanged.
            disable_wal: the map is only in memory, and is lost when the store is closed.
            sorted: keep the keys in order in memory: iterations are in this order, `irange` is
                possible, and `prefix` is quick. All keys must be comparable with each other.
                It is not stored: pass it after each open.

        Returns:
            The map. Later calls with the same name return maps with the same content.

        Raises:
            InvalidSetting: the name is not valid, msgspec does not know a type, the map was written
                or opened with another serializer or other types, or the map is in the log and
                `disable_wal` is True, or the reverse; or with
                `sorted`, the map has keys that cannot be compared.
            Closed: the store was closed.
        """
        check_map_name(name)
        wanted = RawSerializer() if raw else serializer_of(serializer)
        if key is not None or value is not None:
            if key is None or value is None or wanted is not None:
                raise InvalidSetting(
                    f"map {name!r} takes key and value together, without serializer and raw, as in "
                    "map('orders', key=str, value=Order); a key or value of any type is typing.Any"
                )
            wanted = serializer_of(TypedSerializer(key, value))
        self.changes.check_open()
        return self._map(name, wanted, disable_wal, sorted)

    def _map(
        self,
        name: str,
        wanted: Serializer[Any, Any] | None,
        disable_wal: bool,
        sorted: bool,
    ) -> DurableMap[Any, Any]:
        with self.changes.order_lock:
            state = self._maps.get(name)
            if state is None:
                state = self._maps[name] = MapState(
                    name, wanted or self._serializer, logged=not disable_wal
                )
                self.changes.some_unlogged |= disable_wal
            self._demand_opened_alike(state, wanted, disable_wal)
            state.use(wanted or state.serializer)
            if self.closed:  # meanwhile
                state.retire()
            if sorted:
                try:
                    state.sort()
                except NotSerializable as error:
                    raise InvalidSetting(f"map {name!r} cannot be sorted: {error}") from error
        return DurableMap(self.changes, state)

    def queue(self, name: str, *, serializer: Serializer[Any, Any] | None = None) -> JobQueue:
        """The durable queue of this name, which is in the maps `name` and `name.leased`. Arguments
        and errors as for `map`; the serializer must accept tuples of ints as keys."""
        maps = [
            self.map(each, serializer=serializer, sorted=True) for each in (name, name + LEASED)
        ]
        with self._queues_lock:
            if name not in self._queues:
                self._queues[name] = JobQueue(self.changes, *maps)
            return self._queues[name]

    def _demand_opened_alike(
        self, state: MapState, wanted: Serializer[Any, Any] | None, disable_wal: bool
    ) -> None:
        """Raise `InvalidSetting` unless a map can be opened with these arguments. Once a map has
        been opened, its class stays until the store is closed, even if the map is empty: a change
        may already be serialised."""
        name, known = state.name, state.serializer
        if state.logged is disable_wal:
            raise InvalidSetting(
                f"map {name!r} is in the log, so it cannot be opened with disable_wal; choose "
                "another name, or delete the map with `imap-wal drop`"
                if state.logged
                else f"map {name!r} was opened with disable_wal, so it is not in the log; open it "
                "with disable_wal again, or choose another name"
            )
        if isinstance(known, Mixed) and state.values:
            raise InvalidSetting(known.why(name))
        if wanted is not None and wanted.name != known.name:
            if state.values:
                raise InvalidSetting(
                    f"map {name!r} has entries written by serializer {known.name!r}, not "
                    f"{wanted.name!r}; {how_to_open(known.name)}; "
                    f"{how_to_change(known, wanted)}{shows_classes(name)}"
                )
            if state.opened:
                raise InvalidSetting(
                    f"map {name!r} was opened with serializer {known.name!r} before, not "
                    f"{wanted.name!r}; {how_to_open(known.name)}, or close the store first"
                )
        elif wanted is None and isinstance(known, Label):
            raise InvalidSetting(f"map {name!r}: {missing(known.name)}")

    def maps(self) -> list[str]:
        """The names of all maps that are in the log or were opened with `map`, sorted. Raises
        `Closed` after the store was closed."""
        self.changes.check_open()
        return sorted(self._maps)

    def __repr__(self) -> str:
        count = len(self._maps)
        state = "closed" if self.closed else f"of {count} map{'' if count == 1 else 's'}"
        return f"<{type(self).__name__} {self.url!r} {state}>"

    def _repr_html_(self) -> str:
        """The maps as a table, for notebooks."""
        return table(
            repr(self),
            ("map", "entries"),
            [
                f"<td>{escape(name)}</td><td>{len(self._maps[name].values)}</td>"
                for name in sorted(self._maps)
            ],
        )

    # ---- changes of several keys or maps ----

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Several changes, of one map or more, in one commit at the end of the block: after a crash
        all of them are there or none. If the block raises an error, nothing is changed.

            with store.batch() as batch:
                batch.put(running, job, "since noon")
                batch.delete(waiting, job)

        Raises:
            TooLarge: they are too large for one commit; nothing was changed.
            InvalidSetting: a map is of another store, or was opened with `disable_wal`.
        """
        self.changes.check_open()
        with closing(Batch(self.changes)) as batch:
            yield batch
        decision = batch.decision()
        if decision is not None:
            self.changes.evaluate([decision])

    def transaction(self, function: Callable[Concatenate[Transaction, P], R]) -> Callable[P, R]:
        """A decorator: the function gets a `Transaction`, and all of its changes are one commit.
        What it reads is what it would read if nothing else ran at that time. If another caller
        changes a value that it has read, it is called again, so it should do nothing else.

            @store.transaction
            def transfer(transaction, amount):
                balances = transaction[accounts]
                balances["ann"] -= amount
                balances["bob"] += amount

            transfer(5)

        Returns:
            The function, without its first parameter. If it raises an error, nothing is changed.
            Errors of the commit as for `DurableMap.put`.
        """

        demand_plain(function)

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            while True:
                self.changes.check_open()
                with closing(Transaction(self.changes)) as transaction:
                    result = function(transaction, *args, **kwargs)
                decision = transaction.decision()
                if decision is None:
                    return result
                self.changes.evaluate([decision])
                if decision.answer:
                    return result

        return run

    # ---- the log ----

    def refresh(self) -> None:
        """Of a store with `read_only`: show all changes that are in the log now. Any other store
        shows its own changes at once, and those of others when it is opened.

        Raises:
            LogError: the log is damaged.
            MissingNode: the log of a node is missing.
            StorageUnavailable: the storage failed; what was shown before is still shown.
            Closed: the store was closed.
        """
        self.changes.check_open()

    def sync(self) -> None:
        """Durability barrier: when this returns, all earlier changes are synced.

        Raises:
            NotAppended: the sync failed.
            Fenced: another process took over the log.
            Closed: the store was closed.
        """
        self.changes.check_open()
        self.committer.sync()

    def flush_wal(self, sync: bool = True) -> None:
        """With `manual_wal_flush`: write all waiting changes to the log.

        Args:
            sync: also sync them, with any durability.

        Raises:
            NotAppended: the storage failed.
            Fenced: another process took over the log.
            Closed: the store was closed.
        """
        if sync:
            self.sync()
            return
        self.changes.check_open()
        self.committer.commit_ready()
        if self.committer.failure is not None:
            raise self.committer.failure

    def archive(self) -> int:
        """Seal the current segment, turn all sealed segments into compressed archives, and remove
        covered files by `wal_ttl_seconds` and `wal_size_limit_mb`.

        Returns:
            The number of archived entries.

        Raises:
            NotAppended: the storage failed while the segment was sealed.
            StorageUnavailable: the storage or the local temporary folder failed.
            MissingLibrary: pyarrow is not installed.
            LogError: a sealed segment is damaged.
            Fenced: another process took over the log.
            LostRace: other processes changed the log's manifest several times meanwhile.
            Closed: the store was closed.
        """
        self.changes.check_open()
        moved = self.writer.archive().records
        self.writer.remove_covered()
        return moved

    def compact(self) -> Compaction:
        """Rewrite all maps so that only the newest change of each key is left, and remove
        everything else: superseded changes, deletions, expired entries. Another process does the
        work, and changes continue meanwhile. A store also starts this automatically, see
        `auto_rewrite_percentage`.

        Returns:
            The numbers of entries and bytes that were read, written and removed.

        Raises:
            LostRace: another process dropped a map or opened the log meanwhile.
            LogError: the log is damaged; no file that a damaged snapshot covers was removed.
            StorageUnavailable: the storage failed.
            ProcessDied: the other process was killed.
            Fenced: another process took over the log.
            Closed: the store was closed.
        """
        self.changes.check_open()
        return self._compactor.compact()

    @property
    def statistics(self) -> StoreStatistics:
        """Counters since the store was opened, as one immutable value. It can be read after
        `close`. Raises `Fenced` in a forked child."""
        self.changes.openness.check_process()
        entries = sum(len(state.values) for state in self._maps.values())
        return StoreStatistics(
            self.committer.statistics,
            self.writer.ring.statistics,
            self._log.recovery,
            self._restore_seconds,
            entries,
            self.writer.maintenance.statistics,
            str(self.committer.failure or ""),
            self._compactor.statistics,
        )

    def close(self) -> None:
        """Commit all waiting changes, write the clean-shutdown frame, seal the segment, and release
        the lock. If the log has grown much, it is compacted first, for at most
        `auto_rewrite_close_s`; not while the interpreter shuts down, nor if an error ends the
        `with` block. It is safe to call this twice, even after an interrupt.

        Raises:
            StorageUnavailable: the storage failed; the store is closed nevertheless.
        """
        self._close(self._log.settings.auto_rewrite_close_s)

    def _close(self, wait_s: float) -> None:
        """`wait_s`: for a compaction; the next open does the rest of it."""
        self.changes.openness.check_process()
        if self._ended:
            return
        self.changes.openness.end()
        self._unclosed.detach()
        try:
            try:
                self._compactor.finish(wait_s)
            finally:
                self._compactor.stop()
            self.writer.stop()
        finally:  # an interrupted close releases the lock too, or the next call of `close` does
            try:
                self.committer.close()
                self._ended = True
            except StorageError as error:
                self._ended = True
                raise StorageUnavailable(
                    f"closing the log of node {self._log.identity.node!r}: {error}"
                ) from error
            finally:
                self.writer.signal.end()
                self._log.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:  # perhaps a signal ends the program
            self._close(0)

    # ---- loading ----

    def _load(self, cluster: ClusterLog, wal_filter: WalFilter | None) -> None:
        now = self._clock.now_ms()
        load(
            cluster,
            self._log.settings,
            lambda name, rows: self._replay(self._maps, name, rows, now),
            self._maps.clear,
            wal_filter,
        )
        for name in [name for name, state in self._maps.items() if not state.values]:
            del self._maps[name]

    def _replay(
        self, maps: dict[str, MapState], name: str, rows: Sequence[Row], now_ms: int
    ) -> None:
        state = maps.get(name)
        if state is None:
            labels = (row[KEY_CLASS] for row in rows if not row[DELETED])
            label = next(labels, None)
            if label is None:
                return  # there is nothing to delete
            serializer = known_serializers(self._serializer).get(label) or Label(label)
            state = maps[name] = MapState(name, serializer)
        self._note_classes(state, rows)
        state.replay(rows, now_ms)

    def _note_classes(self, state: MapState, rows: Sequence[Row]) -> None:
        """Remember if a map has entries of several classes."""
        name, rows = state.serializer.name, differing(rows)
        if {name, *map(_KEY_CLASS_OF, rows), *map(_VALUE_CLASS_OF, rows)} == {name}:
            return
        live = [row for row in rows if not row[DELETED]]  # deletions have any class
        classes = set(map(_KEY_CLASS_OF, live))
        if name in (MSGPACK, RAW):  # a serializer of the user may have written another one
            classes.update(map(_VALUE_CLASS_OF, live))
        if isinstance(state.serializer, Mixed):
            state.serializer.classes |= classes
        elif classes - {name}:
            state.use(Mixed(classes | {name}), opened=False)


def retire(maps: dict[str, MapState]) -> None:
    for state in list(maps.values()):
        state.retire()


def _warn_unclosed(url: str, process: int) -> None:
    """Of a store that is deleted, or that is still open when the program ends."""
    if os.getpid() == process:  # not in a forked child, which cannot close it
        warnings.warn(
            f"the store {url!r} was never closed, so the next open has to read the end of its log; "
            "close it, or use it in a `with` statement",
            ResourceWarning,
            stacklevel=2,
        )
