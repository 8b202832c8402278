"""The embedded store: durable maps in one process, on the same ring, committer, segments and restore as a cluster's.

    put ─▶ serialise ─▶ number, encode, publish (one lock: ring order is request order) ─▶ committer ─▶ memory ─▶ return
    open ─▶ lock, recover the tail ─▶ merge all logs, newest first, once ─▶ memory

Memory holds serialised values; `get` gives a fresh object each time, the same that a reopen would give.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from types import TracebackType
from typing import Any, Self, cast

from imap_wal import layout
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.embedded.changes import Changes, MapState, apply
from imap_wal.embedded.decisions import Decision, Outlook, Unsettled, clear, made, pop, pop_last, set_default
from imap_wal.embedded.serializer import MsgpackSerializer, RawSerializer, Serializer
from imap_wal.embedded.views import MapReads
from imap_wal.embedded.wal_filter import WalFilter, filtered
from imap_wal.encryption import with_keys
from imap_wal.entry import EXPIRES_AT_MS, KEY, KEY_CLASS, VALUE, Row
from imap_wal.errors import Closed, InvalidSetting, NotAppended, StorageUnavailable, TooLarge
from imap_wal.format import CLEARS, COUNT_MAX, ENTRIES, PAYLOAD_BYTES_MAX
from imap_wal.layout import Identity
from imap_wal.manifest.cluster import ClusterManifest, claim_manifests
from imap_wal.manifest.older import current_cluster
from imap_wal.progress import Progress
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import LiveView, live
from imap_wal.settings import RecoveryPolicy, Settings, choose, location
from imap_wal.write.committer import Batch, CommitStatistics, Committer
from imap_wal.write.context import LogContext
from imap_wal.write.maintenance import Keeper
from imap_wal.write.node_log import OTHER_NODE, NodeLog
from imap_wal.write.opening import open_node_log, shut_out_others
from imap_wal.write.recovery import Recovery
from imap_wal.write.ring import RingBuffer, RingStatistics
from storage_backends import SegmentStore, StorageError, open_store

_log = logging.getLogger("imap_wal")

REWRITE_ADVICE = "an open reads all changes that no snapshot covers; `imap-wal rewrite` makes one"
TTL_S_MAX = 100 * 366 * 86_400
"""100 years. For longer, put without a lifetime."""


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
        self,
        log: NodeLog,
        cluster: ClusterLog,
        settings: Settings,
        incarnation: int,
        serializer: Serializer,
        wal_filter: WalFilter | None = None,
        shared: bool = False,
    ) -> None:
        self.knows_all = not shared and wal_filter is None
        """The log has no keys that this store does not know."""
        self._log, self._settings, self._incarnation, self._serializer = log, settings, incarnation, serializer
        self._clock: Clock = log.clock
        self.max_value_bytes = settings.max_value_bytes
        self._session = log.new_session()
        self._request = 0
        self._order_lock = threading.Lock()
        self._maps: dict[str, MapState] = {}
        self.ring: RingBuffer[Batch] = RingBuffer(settings.ring_slots, settings.ring_bytes)
        self.keeper = Keeper(settings, self._clock)
        self.committer = Committer(self.ring, log, settings, self._clock, self.keeper.committed)
        self._some_unlogged = False
        self._archive_lock = threading.Lock()
        self.closed = self._ended = False
        start = self._clock.monotonic()
        self._all_logs = cluster
        self._load(cluster, wal_filter)
        self._restore_seconds = self._clock.monotonic() - start
        self.keeper.start(self.committer, self._archive, self._remove_outlived)

    # ---- maps ----

    def map(self, name: str, *, serializer: Serializer | None = None, raw: bool = False, disable_wal: bool = False) -> DurableMap:
        """The durable map of that name: created empty, or as the log has it. `raw=True`: keys and values are bytes.
        A map is read with the serializer it was written with; asking for another raises InvalidSetting. `disable_wal=True`: a map that lives in memory only and is
        gone when the store is closed; InvalidSetting where the log holds one of that name."""
        self.check_open()
        layout.check_map_name(name)
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
        self.check_open()
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
        """Seal the current segment and turn sealed segments into compressed archives; returns how many entries moved. What a snapshot covers goes when
        `wal_ttl_seconds` and `wal_size_limit_mb` say so."""
        moved = self._archive()
        self._remove_outlived()
        return moved

    def _archive(self) -> int:
        from imap_wal.retention.archive import archive_sealed  # pyarrow is not loaded by a program that never archives

        self.check_open()
        log = self._log
        written = self.keeper.written(log)
        self.committer.rotate()
        try:
            with self._archive_lock:
                store = self.keeper.until_stop(log.store)
                done = archive_sealed(store, log.identity.node_folder, log.identity.node, log.manifests, epoch=log.epoch, writing=log.unsealed)
        except StorageError as error:
            raise StorageUnavailable(f"archiving the log of node {log.identity.node!r}: {error}; nothing is lost, its segments stay") from error
        self.keeper.count_from(written)
        return done.records

    def _remove_outlived(self) -> None:
        from imap_wal.retention.policy import remove_outlived  # as above

        log = self._log
        try:
            with self._archive_lock:
                logs = self._all_logs
                logs = ClusterLog(self.keeper.until_stop(logs.store), logs.namespace, logs.cluster, logs.clock, logs.randomness)
                remove_outlived(logs, log.identity.node, self._settings, log.unsealed)
        except StorageError as error:
            raise StorageUnavailable(
                f"removing covered files of node {log.identity.node!r}: {error}; what is left of them goes the next time"
            ) from error

    @property
    def statistics(self) -> StoreStatistics:
        entries = sum(len(state.values) for state in self._maps.values())
        return StoreStatistics(self.committer.statistics, self.ring.statistics, self._log.recovery, self._restore_seconds, entries)

    def close(self) -> None:
        """Commit what waits, write the clean-shutdown frame, seal, let go. Safe to call twice, also
        after an interrupt."""
        if self._ended:
            return
        self.closed = True
        try:
            self.keeper.stop()
        finally:  # an interrupted close lets the lock go too; if not, the next call does
            try:
                self.committer.close()
                self._ended = True
            except StorageError as error:
                self._ended = True
                raise StorageUnavailable(f"closing the log of node {self._log.identity.node!r}: {error}") from error
            finally:
                self._log.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- changes ----

    def change(self, runs: Sequence[Changes]) -> None:
        """Log the changes as one commit, then apply them; returns as the durability says. Those of maps that are not logged are applied with them."""
        if self._some_unlogged:
            unlogged = [run for run in runs if not run.state.logged]
            if unlogged:
                logged = [run for run in runs if run.state.logged]
                if logged:
                    self.change(logged)
                self.check_open()
                with self._order_lock:
                    apply(unlogged)
                return
        batch = self.submit(runs)
        if not self._settings.acknowledges_early:
            self._await(batch)

    def submit(self, runs: Sequence[Changes]) -> Batch:
        """Number, encode and publish the changes as one batch; the caller sees to its commit (`committer.wait`)."""
        self.check_open()
        with self._order_lock:
            return self._publish(runs)

    def settle(self, steps: Sequence[Changes]) -> None:
        """Log and apply the steps in one commit. A decision among them sees all that is published
        before it, and no other change comes in between."""
        for logged in (True, False):
            of_kind = [step for step in steps if step.state.logged is logged]
            if of_kind:
                self._settle(of_kind, logged)

    def _settle(self, steps: Sequence[Changes], logged: bool) -> None:
        while True:
            self.check_open()
            try:
                with self._order_lock:
                    batch = self._decide(steps, logged)
            except Unsettled:
                self.committer.commit_ready()  # commit the change that it depends on
            else:
                break
        if batch is not None and not self._settings.acknowledges_early:
            self._await(batch)

    # With the order lock held, so that nothing is published at the same time.

    def _decide(self, steps: Sequence[Changes], logged: bool) -> Batch | None:
        """Publish the steps, or apply them if they are not logged. None if nothing was published.
        Raises `Unsettled`."""
        runs = made(steps, self._outlook)
        if not logged:
            apply(runs)
        return self._publish(runs) if logged and runs else None

    def _outlook(self, state: MapState) -> Outlook:
        return Outlook(state, self.now_ms(), self._pending(state))

    def _pending(self, state: MapState) -> list[Changes]:
        """What is published of this map and not yet in memory."""
        if self._settings.acknowledges_early or not state.logged:
            return []
        batches = [batch for batch in self.ring.waiting() if not batch.done]
        return [run for batch in batches for run in cast("Sequence[Changes]", batch.content) if run.state is state]

    def _publish(self, runs: Sequence[Changes]) -> Batch:
        if self._settings.acknowledges_early and self.committer.failure is not None:
            raise self.committer.failure
        count = sum(map(len, runs))
        if count > COUNT_MAX:
            raise TooLarge(f"one commit of {count} changes; it takes at most {COUNT_MAX}, split the update")
        now = self._clock.now_ms()
        request = self._request
        payload: list[bytes] = []
        for run in runs:
            payload += run.pack(now, self._incarnation, self._session, request + 1)
            request += len(run)
        kind = CLEARS if any(run.kind == CLEARS for run in runs) else ENTRIES
        batch = Batch(payload, count, lambda: apply(runs), kind, session=self._session, request=request, content=runs)
        if batch.size > PAYLOAD_BYTES_MAX:
            raise TooLarge(f"one commit of {batch.size} bytes; it takes less than 2 GiB, split the update")
        self._request = request
        self.committer.submit(batch)
        if self._settings.acknowledges_early:
            apply(runs)
        return batch

    def _await(self, batch: Batch) -> None:
        self.committer.wait(batch)
        if batch.error is not None:
            raise batch.error

    @property
    def bounds(self) -> tuple[int, int]:
        """How many operations and how many bytes may wait for the committer."""
        return self._settings.ring_slots, self._settings.ring_bytes

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # ---- inside ----

    def _load(self, cluster: ClusterLog, wal_filter: WalFilter | None) -> None:
        if wal_filter is not None:
            now = self._clock.now_ms()
            for name, newest in filtered(cluster, wal_filter, self._settings.recovery_policy).items():
                self._fill(name, live(list(newest.values()), now))
            return
        progress = Progress(self._clock, f"opening the maps of cluster {cluster.cluster!r}")
        with closing(LiveView(cluster, self._settings, lambda done: progress.reached(done.records, done.part))) as view:
            view.catch_up()
            progress.over(view.statistics.records, REWRITE_ADVICE)
            for node, why in view.missing.items():
                _log.warning("the entries that only the log of node %r holds are left out: %s", node, why)
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


_RAISE = object()


class DurableMap(MapReads, MutableMapping[Any, Any]):
    """One map of a store. Every change returns when it is as durable as the store's settings
    demand; an error means that memory is unchanged. Every operation is atomic among threads, `pop`,
    `popitem` and `setdefault` too."""

    def __init__(self, store: Store, state: MapState) -> None:
        super().__init__(store, state)
        self._store = store

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def put(self, key: Any, value: Any, ttl: float | None = None) -> None:
        """Set the key; with `ttl`, for that many seconds (to the millisecond, also across restarts); without, for ever."""
        self._store.change([self.changes([(key, value)], ttl)])

    def changes(self, pairs: Iterable[tuple[Any, Any]], ttl: float | None = None) -> Changes:
        """The changes that set the keys, serialised. `NotSerializable`, `TooLarge`, `InvalidSetting` for a ttl of 0 or less."""
        state, limit = self._state, self._store.max_value_bytes
        dump_key, dump = state.serializer.dump_key, state.serializer.dump
        changes = Changes(state, [], [])
        for key, value in pairs:
            key_data, data = dump_key(key), dump(value)
            if len(key_data) + len(data) > limit:
                raise TooLarge(f"map {state.name!r}: key and value take {len(key_data) + len(data)} bytes, max_value_bytes is {limit}")
            changes.keys.append(key_data)
            changes.values.append(data)
        if ttl is not None:
            if not _is_number(ttl) or not 0 < ttl <= TTL_S_MAX:
                raise InvalidSetting(f"ttl is {ttl!r}; it takes a number of seconds, more than 0 and up to {TTL_S_MAX:,}, or None for no limit")
            now = self._store.now_ms()
            state.purge(now)  # whoever only puts and gets must not keep what expired
            changes.expires = dict.fromkeys(range(len(changes)), now + max(1, round(ttl * 1000)))
        return changes

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def pop(self, key: Any, default: Any = _RAISE) -> Any:
        """Delete the key and return its value: of several threads one gets it. KeyError, or
        `default`, where there is none."""
        decision = pop(self._state, self._state.serializer.dump_key(key))
        self._store.settle([decision])
        return self.popped(decision, key, default)

    def popped(self, decision: Decision, key: Any, default: Any) -> Any:
        """The return value of `pop`, once its decision is evaluated."""
        if decision.answer is not None:
            return self._state.serializer.load(decision.answer)
        if default is _RAISE:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Any, Any]:
        """Delete the key that was added last; returns it with its value. Each is given to one
        thread. KeyError where there is none."""
        decision = pop_last(self._state)
        self._store.settle([decision])
        return self.popped_item(decision)

    def popped_item(self, decision: Decision) -> tuple[Any, Any]:
        """The return value of `popitem`, once its decision is evaluated."""
        if decision.answer is None:
            raise KeyError("popitem(): the map is empty")
        key, value = decision.answer
        return self._state.serializer.load_key(key), self._state.serializer.load(value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of the key; where there is none, `default` is set first. Several threads all
        get the value of the one that came first."""
        decision = set_default(self.changes([(key, default)]))
        self._store.settle([decision])
        return self._state.serializer.load(decision.answer)

    def deletion(self, key: Any) -> Changes:
        """The change that deletes the key."""
        return Changes(self._state, [self._state.serializer.dump_key(key)], [None])

    def update(self, other: Any = (), /, *, ttl: float | None = None, **more: Any) -> None:
        """All of them in one commit: after a crash all are there or none. `other` is what a dict's
        `update` takes. `ttl`: all of them for that many seconds; a key named "ttl" is given in the
        mapping: `update({"ttl": 5})`."""
        self._store.check_open()
        changes = self.changes(chain(pairs(other), more.items()), ttl)
        if changes:
            self._store.change([changes])

    def clear(self) -> None:
        """Delete all keys, in one commit. It is one entry in the log, unless the store was opened
        with `shared` or `wal_filter`: then keys that it does not know are kept."""
        self._store.settle([self.clearing()])

    def clearing(self) -> Decision:
        """The change that deletes all keys."""
        return clear(self._state, known_only=not self._store.knows_all)

    def __repr__(self) -> str:
        return f"<DurableMap {self.name!r} {'closed' if self._store.closed else f'of {len(self)}'}>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def pairs(other: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of what a dict's `update` takes."""
    if isinstance(other, Mapping):
        return other.items()
    if hasattr(other, "keys"):
        return ((key, other[key]) for key in other.keys())  # noqa: SIM118  # it may not be iterable itself
    given: Iterable[tuple[Any, Any]] = other
    return given


_OPTIONS = (
    "namespace",
    "cluster",
    "node",
    "takeover",
    "serializer",
    "clock",
    "randomness",
    "storage",
    "wal_dir",
    "storage_options",
    "wal_filter",
    "shared",
)
"""What `open` takes besides settings."""


def open(  # the public name: imap_wal.open
    url: str | os.PathLike[str],
    *,
    namespace: str = "default",
    cluster: str = "embedded",
    node: str = "embedded",
    takeover: bool = False,
    serializer: Serializer | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    storage: SegmentStore | None = None,
    wal_dir: str | os.PathLike[str] = "",
    storage_options: Mapping[str, Any] | None = None,
    wal_filter: WalFilter | None = None,
    shared: bool = False,
    **settings: Any,
) -> Store:
    """Open (or create) the durable maps under `url`, a folder or any fsspec URL; `settings` are the
    fields of `Settings`. `wal_dir`: another URL for the segments being written, for example on a
    quick local disk, with archives and snapshots on an object store. The root remembers it, but
    each open must name it if it is on another kind of storage than the root. `storage_options`:
    options of the storage of `url`, such as credentials; they are never shown or stored.
    `wal_filter`: sees every entry of the log before it counts, and keeps, skips or changes it, or
    stops there (`imap_wal.embedded.wal_filter`).

    The maps of a cluster have one writer: an open shuts out every store that is open under another
    node name, which then acknowledges nothing more (`Fenced`). `shared=True` leaves those alone,
    for processes that write different keys at the same time, each under a node name of its own:
    none sees what another writes before it is opened again.

    `WriterLocked` when another process holds the node (`takeover=True` shuts it out), `CorruptLog`
    and its siblings for damage, `StorageUnavailable` when the storage fails, `InvalidSetting` for
    an impossible setting."""
    for name, value in (("takeover", takeover), ("shared", shared)):
        if not isinstance(value, bool):  # "no" would shut another store out
            raise InvalidSetting(f"{name} is {value!r}; it takes True or False")
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    chosen = choose(settings, _OPTIONS)
    identity = Identity(namespace, cluster, node)
    identity.check()
    url, wal_dir = location(url, options=storage_options, file_mode=chosen.file_mode), location(wal_dir, "wal_dir")
    try:
        store = with_keys(storage or open_store(url, wal_dir=wal_dir), chosen.encryption_keys)
        all_logs = ClusterLog(store, namespace, cluster, clock, randomness)
        _demand_ours(all_logs, node, chosen.recovery_policy)
        log = open_node_log(
            LogContext(store, identity, chosen, clock, randomness), what=f"imap_wal.open({url!r})", takeover=takeover, embedded=True, maps=True
        )
        try:
            incarnation = next_incarnation(log)
            if not shared:
                # After the claim of an incarnation: a store that is opened at the same moment and
                # claims a later one shuts this one out.
                shut_out_others(log, f"{OTHER_NODE}, under node name {node!r}")
            return Store(log, all_logs, chosen, incarnation, serializer or MsgpackSerializer(), wal_filter, shared)
        except BaseException:
            log.close(clean=False)
            raise
    except StorageError as error:
        raise StorageUnavailable(f"{url}: {error}") from error


def _demand_ours(logs: ClusterLog, node: str, policy: RecoveryPolicy) -> None:
    """Refuse before anything is written: once a node is registered, all others wait for its log. `InvalidSetting` in a cluster of
    Hazelcast members; `MissingNode` for a new node where another one's log cannot be read."""
    manifest = logs.manifest()
    claims = claim_manifests(logs.store, logs.folder, manifest.claims, logs.clock, logs.randomness)
    if claims.read()[1].newest:
        raise _of_members(logs.cluster, logs.namespace)
    if manifest.nodes and node not in manifest.nodes:
        logs.state().demand(policy)


def _of_members(cluster: str, namespace: str) -> InvalidSetting:
    return InvalidSetting(
        f"cluster {cluster!r} in namespace {namespace!r} belongs to Hazelcast members; open another cluster name, or read it with `imap-wal export`"
    )


def next_incarnation(log: NodeLog) -> int:
    """Claim the next incarnation for an embedded open, by compare-and-swap. `InvalidSetting` where
    Hazelcast members write: the next lifetime of their cluster would void what this store
    acknowledges. `CorruptLog` where the cluster's manifest was put back from an older copy."""
    current_cluster(log.store, log.identity.cluster_folder, log.clusters, log.clock, log.randomness)

    def claim(manifest: ClusterManifest) -> ClusterManifest:
        if log.claims.read()[1].newest:
            raise _of_members(log.identity.cluster, log.identity.namespace)
        return replace(manifest, incarnation=manifest.incarnation + 1, embedded=manifest.incarnation + 1)

    return log.clusters.update(claim).incarnation
