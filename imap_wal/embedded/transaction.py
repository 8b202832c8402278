"""Several changes in one commit, of one map or more: after a crash, all of them are there or none.

`Batch`: changes that depend on nothing. `Transaction`: it also reads. What it has read is compared
again when it is committed, under the lock that orders all changes of a store. If anything differs,
nothing is changed, and the function runs again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Protocol, cast

from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.decisions import Decision, together
from imap_wal.embedded.durable_map import DurableMap
from imap_wal.errors import Closed, InvalidSetting
from imap_wal.serializer import K, V


class HasMap(Protocol[K, V]):
    """A `DurableMap`, or an `AsyncMap`, which has one."""

    @property
    def durable_map(self) -> DurableMap[K, V]: ...


class Batch:
    """Changes that a store commits together at the end of a `with` block, in this order. If the
    block raises an error, nothing is changed. See `Store.batch`."""

    def __init__(self, store: object) -> None:
        self._store = store
        self._changes: list[WriteBatch] = []
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """The block ends: a later change would be lost without an error."""
        with self._lock:
            self._closed = True

    def put(self, map: HasMap[K, V], key: K, value: V, ttl: float | None = None) -> None:
        """Set a key of a map of this store. Arguments and errors as for `DurableMap.put`."""
        self._add(of_store(map, self._store).changes([(key, value)], ttl))

    def delete(self, map: HasMap[K, Any], key: K) -> None:
        """Delete a key of a map of this store, if it exists."""
        durable_map = of_store(map, self._store)
        data = durable_map._key(key)
        if data is not None:
            self._add(WriteBatch(durable_map._state, [data], [None]))

    def _add(self, changes: WriteBatch) -> None:
        with self._lock:
            if self._closed:
                raise Closed("this batch has ended with its block; begin another one")
            if self._changes and self._changes[-1].state is changes.state:
                self._changes[-1].add(changes)
            else:
                self._changes.append(changes)

    def decision(self) -> Decision | None:
        """The changes as one decision; None: there are none. Call it after `close`."""
        return together(self._changes, {}) if self._changes else None


class Transaction:
    """Reads and changes of a function that `Store.transaction` runs. `transaction[map]` is the map
    as the function sees it: with its own changes, which nothing else sees before they are
    committed."""

    def __init__(self, store: object) -> None:
        self._store = store
        self._maps: dict[MapState, TransactionMap[Any, Any]] = {}
        self._closed = False

    def close(self) -> None:
        """The function has returned: a later change would be lost without an error."""
        self._closed = True

    def demand_open(self) -> None:
        """Raises `Closed` after the function has returned."""
        if self._closed:
            raise Closed("this transaction has ended with its function; call the function again")

    def __getitem__(self, map: HasMap[K, V]) -> TransactionMap[K, V]:
        self.demand_open()
        durable_map = of_store(map, self._store)
        state = durable_map._state
        if state not in self._maps:
            self._maps[state] = TransactionMap(durable_map, self.demand_open)
        return cast("TransactionMap[K, V]", self._maps[state])

    def decision(self) -> Decision | None:
        """The changes as one decision, whose answer says whether they were made; None: nothing was
        read or changed. Call it after `close`."""
        maps = self._maps.items()
        changes = [map.changes for _, map in maps if map.changes.keys]
        reads = {state: map.reads for state, map in maps if map.reads}
        return together(changes, reads) if changes or reads else None


class TransactionMap(MutableMapping[K, V]):
    """One map in a transaction, with the methods of a dict that name a key. It has no iteration and
    no length, because a key that another caller adds meanwhile would not be noticed."""

    def __init__(self, durable_map: DurableMap[K, V], demand_open: Callable[[], None]) -> None:
        self._map, self._state = durable_map, durable_map._state
        self._demand_open = demand_open
        self.reads: dict[bytes, bytes | None] = {}
        """Serialised values that were read; None: there was no such key."""
        self._written: dict[bytes, tuple[bytes | None, int]] = {}

    @property
    def changes(self) -> WriteBatch:
        """The last change of each key."""
        expires = {index: at for index, (_, at) in enumerate(self._written.values()) if at}
        values = [value for value, _ in self._written.values()]
        return WriteBatch(self._state, list(self._written), values, expires)

    def __getitem__(self, key: K) -> V:
        self._demand_open()
        data = self._map._key(key)
        value = None if data is None else self._value(data)
        if data is None or value is None:
            raise KeyError(key)
        loaded: V = self._state.load(data, value)
        return loaded

    def _value(self, data: bytes) -> bytes | None:
        if data in self._written:
            return self._written[data][0]
        if data not in self.reads:
            self._map._owner.check_open()
            self.reads[data] = self._state.get(data, self._map._owner.now_ms())
        return self.reads[data]

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def put(self, key: K, value: V, ttl: float | None = None) -> None:
        """Set the key. Arguments and errors as for `DurableMap.put`."""
        self._demand_open()
        changes = self._map.changes([(key, value)], ttl)
        self._written[changes.keys[0]] = changes.values[0], changes.expires.get(0, 0)

    def __delitem__(self, key: K) -> None:
        self._demand_open()
        data = self._map._key(key)
        if data is None or self._value(data) is None:
            raise KeyError(key)
        self._written[data] = None, 0

    def __iter__(self) -> Iterator[K]:
        raise TypeError(
            f"map {self._state.name!r} has no iteration in a transaction; iterate over the map "
            "itself before, and read the keys that matter in the transaction"
        )

    def __len__(self) -> int:
        raise TypeError(f"map {self._state.name!r} has no length in a transaction")


def demand_plain(function: Callable[..., Any]) -> None:
    """Raises TypeError for a function whose body runs after its call has returned: its changes
    would be in no commit."""
    if any(
        kind(function) for kind in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    ):
        raise TypeError(
            f"a transaction takes a plain function, and {function.__qualname__} is a coroutine "
            "function or a generator: write it with def, without await and yield"
        )


def of_store(map: HasMap[K, V], store: object) -> DurableMap[K, V]:
    """The map. Raises `InvalidSetting` if it is of another store, or not in the log."""
    durable_map = map.durable_map
    name = durable_map.name
    if durable_map._writer is not store:
        raise InvalidSetting(f"map {name!r} is of another store; one commit is in one log")
    if not durable_map._state.logged:
        raise InvalidSetting(
            f"map {name!r} was opened with disable_wal, so it cannot be part of a commit"
        )
    return durable_map
