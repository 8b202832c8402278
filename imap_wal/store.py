"""The embedded store: durable maps in one process, on the same ring, committer, segments and restore as a cluster's.

    put ─▶ serialise ─▶ number, encode, publish (one lock: ring order is request order) ─▶ committer ─▶ memory ─▶ return
    open ─▶ lock, recover the tail ─▶ merge all logs, newest first, once ─▶ memory

Memory holds serialised values; `get` gives a fresh object each time, the same that a reopen would give.
"""

from __future__ import annotations

import heapq
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeAlias

from imap_wal import layout
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.committer import Batch, CommitStatistics, Committer
from imap_wal.entry import EXPIRES_AT_MS, KEY, KEY_CLASS, SMALL_UPSERT, VALUE, Row, pack, small_upsert_parts
from imap_wal.errors import Closed, InvalidSetting, NotAppended, StorageUnavailable, TooLarge
from imap_wal.format import BODY_BYTES_MAX, COUNT_MAX, FRAME_OVERHEAD_BYTES
from imap_wal.keeper import Keeper
from imap_wal.manifest import ClusterManifest
from imap_wal.restore import ClusterLog, LiveView, live
from imap_wal.ring import RingBuffer, RingStatistics
from imap_wal.serializer import MsgpackSerializer, RawSerializer, Serializer
from imap_wal.settings import Settings
from imap_wal.wal_filter import WalFilter, filtered
from imap_wal.writer import Identity, NodeLog, Recovery, open_node_log
from storage_backends import SegmentStore, StorageError, open_store

Change: TypeAlias = "tuple[MapState, bytes, bytes | None, int]"
"""One serialised change: map, key, value (None: a deletion), expires_at_ms (0: never). A plain tuple, since one is made per operation."""


class MapState:
    """What memory knows of one map: serialised keys and values, and who expires when."""

    __slots__ = ("_deadlines", "_mutex", "expires", "logged", "name", "serializer", "values")

    def __init__(self, name: str, serializer: Serializer, logged: bool = True) -> None:
        self.name, self.serializer, self.logged = name, serializer, logged
        self.values: dict[bytes, bytes] = {}
        self.expires: dict[bytes, int] = {}
        self._deadlines: list[tuple[int, bytes]] = []
        self._mutex = threading.Lock()
        """Between `set` and `purge`; `get` and the sets of a map where nothing expires do without."""

    def set(self, key: bytes, value: bytes | None, expires_at_ms: int = 0) -> None:
        """Apply one change."""
        with self._mutex:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
            if expires_at_ms and value is not None:
                self.expires[key] = expires_at_ms
                heapq.heappush(self._deadlines, (expires_at_ms, key))
            else:
                self.expires.pop(key, None)

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        value = self.values.get(key)
        if value is not None and self.expires and self.expires.get(key, now_ms + 1) <= now_ms:
            return None
        return value

    def purge(self, now_ms: int) -> None:
        """Forget what has expired."""
        if not self._deadlines:
            return
        with self._mutex:
            while self._deadlines and self._deadlines[0][0] <= now_ms:
                deadline, key = heapq.heappop(self._deadlines)
                if self.expires.get(key) == deadline:
                    # In this order: while `expires` is empty, a put without a lifetime takes no lock, and must not meet the pop.
                    self.values.pop(key, None)
                    del self.expires[key]


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """A snapshot of a store since it was opened."""

    commits: CommitStatistics
    ring: RingStatistics
    recovery: Recovery
    restore_seconds: float
    entries: int


class Store:
    """An open log and its maps. Made by `imap_wal.open`; a context manager; safe for many threads."""

    def __init__(
        self, log: NodeLog, cluster: ClusterLog, settings: Settings, incarnation: int, serializer: Serializer, wal_filter: WalFilter | None = None
    ) -> None:
        self._log, self._settings, self._incarnation, self._serializer = log, settings, incarnation, serializer
        self._clock: Clock = log.clock
        self.max_value_bytes = settings.max_value_bytes
        self._session = log.new_session()
        self._request = 0
        self._order_lock = threading.Lock()
        self._maps: dict[str, MapState] = {}
        self.ring: RingBuffer[Batch] = RingBuffer(settings.ring_slots, settings.ring_bytes)
        self.keeper = Keeper(settings, self._clock)
        self.committer = Committer(self.ring, log, settings, self._clock, self.keeper.sealed)
        self._some_unlogged = False
        self._archive_lock = threading.Lock()
        self.closed = False
        start = self._clock.monotonic()
        self._all_logs = cluster
        self._load(cluster, wal_filter)
        self._restore_seconds = self._clock.monotonic() - start
        self.keeper.start(self.committer, self.archive)

    # ---- maps ----

    def map(self, name: str, *, serializer: Serializer | None = None, raw: bool = False, disable_wal: bool = False) -> DurableMap:
        """The durable map of that name: created empty, or as the log has it. `raw=True`: keys and values are bytes.
        A map is read with the serializer it was written with; asking for another raises InvalidSetting. `disable_wal=True`: a map that lives in memory only and is
        gone when the store is closed; InvalidSetting where the log holds one of that name."""
        self.check_open()
        layout.encode(name)
        wanted = RawSerializer() if raw else serializer
        with self._order_lock:
            state = self._maps.get(name)
            if state is None:
                state = self._maps[name] = MapState(name, wanted or self._serializer, logged=not disable_wal)
                self._some_unlogged |= disable_wal
        if state.logged is disable_wal:
            now, asked = ("in the log", "without") if state.logged else ("not in the log", "with")
            raise InvalidSetting(f"map {name!r} is {now}; it cannot be had {asked} it as well (`imap-wal drop` forgets a map)")
        if wanted is not None and wanted.name != state.serializer.name:
            if state.values:
                raise InvalidSetting(f"map {name!r} holds entries written by serializer {state.serializer.name!r}, not {wanted.name!r}")
            state.serializer = wanted
        elif wanted is not None:
            state.serializer = wanted
        elif isinstance(state.serializer, _Label):
            raise InvalidSetting(f"map {name!r} was written by serializer {state.serializer.name!r}; pass it to map()")
        return DurableMap(self, state)

    def maps(self) -> list[str]:
        """Names of all maps that were asked for or are in the log."""
        return sorted(self._maps)

    # ---- the log ----

    def sync(self) -> None:
        """Durability barrier: all that returned before is safe on storage when this returns."""
        self.check_open()
        self.committer.sync()

    def flush_wal(self, sync: bool = True) -> None:
        """With `manual_wal_flush`: bring all that waits into the log; `sync`: and make it safe, whatever the durability. Raises why it could not."""
        if sync:
            self.sync()
            return
        self.check_open()
        self.committer.commit_ready()
        if self.committer.failure is not None:
            raise self.committer.failure

    def archive(self) -> int:
        """Seal the current segment and turn sealed segments into compressed archives; returns how many entries moved."""
        from imap_wal.archive import archive_sealed  # pyarrow is not loaded by a program that never archives
        from imap_wal.retention import remove_outlived

        self.check_open()
        self.committer.rotate()
        log = self._log
        with self._archive_lock:
            try:
                done = archive_sealed(log.store, log.identity.node_folder, log.identity.node, log.manifests, writing=log.unsealed)
                remove_outlived(self._all_logs, log.identity.node, self._settings, log.unsealed)
                return done.records
            except StorageError as error:
                raise StorageUnavailable(f"archiving the log of node {log.identity.node!r}: {error}; nothing is lost, its segments stay") from error

    @property
    def statistics(self) -> StoreStatistics:
        entries = sum(len(state.values) for state in self._maps.values())
        return StoreStatistics(self.committer.statistics, self.ring.statistics, self._log.recovery, self._restore_seconds, entries)

    def close(self) -> None:
        """Commit what waits, write the clean-shutdown frame, seal, let go. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self.keeper.stop()
        try:
            self.committer.close()
        except StorageError as error:
            raise StorageUnavailable(f"closing the log of node {self._log.identity.node!r}: {error}") from error
        finally:
            self._log.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- changes ----

    def change(self, changes: list[Change]) -> None:
        """Log the changes as one commit, then apply them; returns as the durability says. Those of maps that are not logged are applied with them."""
        if self._some_unlogged:
            unlogged = [change for change in changes if not change[0].logged]
            if unlogged:
                logged = [change for change in changes if change[0].logged]
                if logged:
                    self.change(logged)
                self.check_open()
                _apply(unlogged)
                return
        if self._settings.acknowledges_early:
            if self.committer.failure is not None:
                raise self.committer.failure
            self.submit(changes)
            return
        batch = self.submit(changes)
        self.committer.wait(batch)
        if batch.error is not None:
            raise batch.error

    def submit(self, changes: list[Change]) -> Batch:
        """Number, encode and publish the changes as one batch; the caller sees to its commit (`committer.wait`)."""
        self.check_open()
        if len(changes) > COUNT_MAX:
            raise TooLarge(f"one commit of {len(changes)} changes; it takes at most {COUNT_MAX}, split the update")
        now = self._clock.now_ms()
        incarnation, session = self._incarnation, self._session
        known: MapState | None = None
        head = middle = tail = b""
        rows: list[bytes] = []
        with self._order_lock:
            request = self._request
            for state, key, value, expires in changes:
                request += 1
                if value is None or expires or len(value) > 255 or len(key) > 255 or request >> 32:
                    label = state.serializer.name
                    rows.append(pack((state.name, key, label, value, label, value is None, now, expires, 0, (incarnation, 0, session, request))))
                    continue
                if state is not known:
                    known = state
                    head, middle, tail = small_upsert_parts(state.name, state.serializer.name, now, incarnation, session)
                rows.append(SMALL_UPSERT % (head, len(key), key, middle, len(value), value, tail, request.to_bytes(4, "big")))
            payload = b"".join(rows)
            if len(payload) > BODY_BYTES_MAX - FRAME_OVERHEAD_BYTES:
                raise TooLarge(f"one commit of {len(payload)} bytes; it takes less than 2 GiB, split the update")
            self._request = request
            batch = Batch([payload], len(changes), lambda: _apply(changes), session=session, request=request)
            self.committer.submit(batch)
            if self._settings.acknowledges_early:
                _apply(changes)
        return batch

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # ---- inside ----

    def _load(self, cluster: ClusterLog, wal_filter: WalFilter | None) -> None:
        if wal_filter is not None:
            now = self._clock.now_ms()
            for name, newest in filtered(cluster, wal_filter, self._settings.recovery_policy).items():
                self._fill(name, live(list(newest.values()), now))
            return
        with closing(LiveView(cluster, self._settings)) as view:
            view.catch_up()
            for name in view.maps():
                for rows in view.rows(name):
                    self._fill(name, rows)

    def _fill(self, name: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        state = self._maps.get(name)
        if state is None:
            known: dict[str, Serializer] = {kind.name: kind for kind in (MsgpackSerializer(), RawSerializer(), self._serializer)}
            label = rows[0][KEY_CLASS]
            state = self._maps[name] = MapState(name, known.get(label) or _Label(label))
        for row in rows:
            state.set(row[KEY], row[VALUE], row[EXPIRES_AT_MS])

    def check_open(self) -> None:
        """`Closed` if it was."""
        if self.closed:
            raise Closed("this store was closed; open it again")


class _Label:
    """Stands for a serializer whose name is in the log but which nobody passed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def dump(self, value: Any) -> bytes:
        raise NotAppended(f"this map was written by serializer {self.name!r}; pass it to map()")

    def load(self, data: bytes) -> Any:
        raise InvalidSetting(f"this map was written by serializer {self.name!r}; pass it to map()")

    dump_key = dump
    load_key = load


def _apply(changes: list[Change]) -> None:
    for state, key, value, expires in changes:
        if value is None or expires or state.expires:
            state.set(key, value, expires)
        else:
            state.values[key] = value


class DurableMap(MutableMapping[Any, Any]):
    """One map of a store. Every change returns when it is as durable as the store was told; an error means memory is unchanged.
    Single operations are atomic among threads; `pop`, `popitem` and `setdefault` are a read and then a write, as two operations."""

    def __init__(self, store: Store, state: MapState) -> None:
        self._store, self._state = store, state

    @property
    def name(self) -> str:
        return self._state.name

    def __getitem__(self, key: Any) -> Any:
        value = self._state.get(self._state.serializer.dump_key(key), self._store.now_ms())
        if value is None:
            raise KeyError(key)
        return self._state.serializer.load(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def put(self, key: Any, value: Any, ttl: float | None = None) -> None:
        """Set the key; with `ttl`, for that many seconds (to the millisecond, also across restarts); without, for ever."""
        self._store.change([self.prepare(key, value, ttl)])

    def prepare(self, key: Any, value: Any, ttl: float | None = None) -> Change:
        """The change that `put` would make, serialised."""
        if ttl is not None and ttl <= 0:
            raise InvalidSetting(f"ttl is {ttl}; it takes more than 0 seconds, or None")
        if ttl is None:
            return self.serialise(key, value)
        now = self._store.now_ms()
        self._state.purge(now)  # whoever only puts and gets must not keep what expired
        return self.serialise(key, value, now + max(1, round(ttl * 1000)))

    def serialise(self, key: Any, value: Any, expires_at_ms: int = 0) -> Change:
        """The change that sets the key. `NotSerializable`, `TooLarge`."""
        state = self._state
        serializer = state.serializer
        key_data, data = serializer.dump_key(key), serializer.dump(value)
        if len(key_data) + len(data) > self._store.max_value_bytes:
            size = len(key_data) + len(data)
            raise TooLarge(f"map {state.name!r}: key and value take {size} bytes, max_value_bytes is {self._store.max_value_bytes}")
        return state, key_data, data, expires_at_ms

    def __delitem__(self, key: Any) -> None:
        change = self.prepare_delete(key)
        if self._state.get(change[1], self._store.now_ms()) is None:
            raise KeyError(key)
        self._store.change([change])

    def prepare_delete(self, key: Any) -> Change:
        return self._state, self._state.serializer.dump_key(key), None, 0

    def update(self, other: Any = (), /, **more: Any) -> None:
        """All of them in one commit: after a crash all are there or none. `other` is what a dict's `update` takes."""
        pairs: Iterable[tuple[Any, Any]] = other
        if isinstance(other, Mapping):
            pairs = other.items()
        elif hasattr(other, "keys"):
            pairs = ((key, other[key]) for key in other.keys())  # noqa: SIM118  # it may not be iterable itself
        changes = [self.serialise(key, value) for key, value in pairs]
        changes += [self.serialise(key, value) for key, value in more.items()]
        if changes:
            self._store.change(changes)

    def clear(self) -> None:
        """Delete all keys, in one commit."""
        changes: list[Change] = [(self._state, key, None, 0) for key in list(self._state.values)]
        if changes:
            self._store.change(changes)

    def ttl(self, key: Any) -> float | None:
        """Seconds left of a key, None for ever. KeyError where there is none."""
        data = self._state.serializer.dump_key(key)
        now = self._store.now_ms()
        if self._state.get(data, now) is None:
            raise KeyError(key)
        expires = self._state.expires.get(data)
        return None if expires is None else (expires - now) / 1000

    def __contains__(self, key: object) -> bool:
        return self._state.get(self._state.serializer.dump_key(key), self._store.now_ms()) is not None

    def __iter__(self) -> Iterator[Any]:
        self._state.purge(self._store.now_ms())
        return iter([self._state.serializer.load_key(key) for key in list(self._state.values)])

    def __len__(self) -> int:
        self._state.purge(self._store.now_ms())
        return len(self._state.values)

    def __repr__(self) -> str:
        return f"<DurableMap {self.name!r} of {len(self)}>"


def open(  # the public name: imap_wal.open
    url: str,
    *,
    namespace: str = "default",
    cluster: str = "embedded",
    node: str | None = None,
    takeover: bool = False,
    serializer: Serializer | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    storage: SegmentStore | None = None,
    wal_dir: str = "",
    wal_filter: WalFilter | None = None,
    **settings: Any,
) -> Store:
    """Open (or create) the durable maps under `url`, any fsspec URL; `settings` are the fields of `Settings`. `wal_dir`: another URL for the segments being written,
    so that they may stand on a quick local disk and archives and snapshots on an object store; told once, the root remembers it. `wal_filter`: sees every entry of the log before it counts, and keeps, skips or changes it, or stops there (`imap_wal.wal_filter`).

    `WriterLocked` when another process holds the node (`takeover=True` shuts it out), `CorruptLog` and its siblings for damage,
    `StorageUnavailable` when the storage fails, `InvalidSetting` for a setting that cannot be."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    try:
        chosen = Settings(**settings)
    except TypeError as error:
        raise InvalidSetting(f"no such setting: {error}") from error
    identity = Identity(namespace, cluster, node or socket.gethostname())
    try:
        store = storage or open_store(url, wal_dir=wal_dir)
        log = open_node_log(store, identity, chosen, clock, randomness, what=f"imap_wal.open({url!r})", takeover=takeover)
        try:
            incarnation = next_incarnation(log)
            all_logs = ClusterLog(store, namespace, cluster, clock, randomness)
            return Store(log, all_logs, chosen, incarnation, serializer or MsgpackSerializer(), wal_filter)
        except BaseException:
            log.close(clean=False)
            raise
    except StorageError as error:
        raise StorageUnavailable(f"{url}: {error}") from error


def next_incarnation(log: NodeLog) -> int:
    """Claim the next incarnation for an embedded open, by compare-and-swap. `InvalidSetting` where Hazelcast members write: the next lifetime of their cluster
    would void what this store acknowledges."""

    def claim(manifest: ClusterManifest) -> ClusterManifest:
        if manifest.claims:
            raise InvalidSetting(
                f"cluster {log.identity.cluster!r} in namespace {log.identity.namespace!r} belongs to Hazelcast members; open another cluster name, "
                "or read it with `imap-wal export`"
            )
        return replace(manifest, incarnation=manifest.incarnation + 1)

    return log.clusters.update(claim).incarnation
