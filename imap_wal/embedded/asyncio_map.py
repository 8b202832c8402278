"""Maps for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from imap_wal.embedded import decisions
from imap_wal.embedded.async_writer import AsyncWriter
from imap_wal.embedded.changes import WriteBatch
from imap_wal.embedded.durable_map import RAISE, Delete, DurableMap, Pairs, pairs
from imap_wal.embedded.views import MapReads
from imap_wal.embedded.watch import AsyncWatch
from imap_wal.errors import NotSerializable
from imap_wal.forked import OfOneProcess
from imap_wal.format import Position
from imap_wal.serializer import K, V

T = TypeVar("T")


class AsyncChanges(OfOneProcess, Generic[K, V]):
    """The changes of a map for asyncio. Awaiting a change waits until it is durable.

    `put`, `pop`, `popitem`, `setdefault`, `clear`, `add`, `add_new`, `replace`, `change` and
    `touch` are coroutine functions: pass their result to `asyncio.create_task` or
    `TaskGroup.create_task`. `set`, `delete` and `update` are faster: they start when they are
    called, and return a future, for `await`, `gather`, `wait_for`, `shield` and `wait`.
    `create_task` accepts only coroutines; for a task, use `put`, or `asyncio.ensure_future(
    m.set(...))`, which returns the future.

    When `ring_bytes` or `ring_slots` are used up, an operation waits before it is serialised. Do
    not change its value until it is done. `NotSerializable` and `TooLarge` are then raised by the
    awaitable, not by the call.

    Changes raise the same errors as those of `DurableMap`."""

    def __init__(self, commits: AsyncWriter, durable_map: DurableMap[K, V]) -> None:
        self._commits, self._inner = commits, durable_map
        self._state, self._durable = durable_map._state, durable_map._writer
        self._openness, self._max_value_bytes = (
            self._durable.openness,
            self._durable.max_value_bytes,
        )

    @property
    def name(self) -> str:
        """The name of the map."""
        return self._state.name

    @property
    def durable_map(self) -> DurableMap[K, V]:
        """The map that the changes are made in."""
        return self._inner

    def set(self, key: K, value: V, ttl: float | None = None) -> asyncio.Future[None]:
        """Set the key. Returns a future, which is done when the change is durable.

        `asyncio.create_task` does not accept a future: use `put` there.

        Args:
            key: the key.
            value: the value.
            ttl: time to live in seconds; None: the key does not expire.

        Raises:
            NotSerializable: the key or value cannot be serialised.
            TooLarge: key and value together exceed `max_value_bytes`.
            InvalidSetting: `ttl` is not a number of seconds above 0 and up to 100 years.
            Closed: the store was closed.
        """
        # The code of `enqueue` for one change, inlined, because the event loop spends this time on
        # every operation.
        commits, state = self._commits, self._state
        if ttl is not None or commits._full or self._openness.closed or state.order is not None:
            return self._enqueue(key, value, ttl)
        serializer = state.serializer
        try:
            key_data, data = serializer.dump_key(key), serializer.dump(value)
        except NotSerializable:
            return self._enqueue(key, value, None)  # raises it with the place
        size = len(key_data) + len(data)
        if size > self._max_value_bytes or type(key_data) is not bytes or type(data) is not bytes:
            return self._enqueue(key, value, None)  # raises what `demand_columns` raises
        batch = commits._last
        if batch is None or batch.state is not state:
            batch = commits._batch_for(state)
        batch.keys.append(key_data)
        batch.values.append(data)
        if batch.objects is not None:
            if type(key) in state.held.simple:
                batch.objects.append(key)
            else:
                batch.objects = None
        commits._bytes = waiting = commits._bytes + size
        future = commits._create_future()
        futures = commits._futures
        futures.append(future)
        if waiting >= commits._room or len(futures) >= commits._operations_max:
            commits._full = True
        if commits._idle:
            commits._schedule()
        return future

    def _enqueue(self, key: K, value: V, ttl: float | None) -> asyncio.Future[None]:
        # Not in `set`: a lambda there would turn its arguments into closure cells, which slows each
        # call.
        return self._commits.enqueue(lambda: self._inner.changes([(key, value)], ttl))

    async def put(self, key: K, value: V, ttl: float | None = None) -> None:
        """`set` as a coroutine: it starts when it is awaited, or when its task runs. Arguments and
        errors as for `set`; returns when the change is durable."""
        await self.set(key, value, ttl)

    @overload
    async def pop(self, key: K) -> V: ...
    @overload
    async def pop(self, key: K, default: V) -> V: ...
    @overload
    async def pop(self, key: K, default: T) -> V | T: ...
    async def pop(self, key: Any, default: Any = RAISE) -> Any:
        """Delete the key and return its value. Of several tasks, only one gets the value. If the
        key does not exist, return `default`, or raise KeyError without a default."""
        decision = self._inner.popping(key)
        if decision is not None:
            await self._commits.decide(decision)
        return self._inner.popped(decision, key, default)

    async def popitem(self, *, last: bool = True) -> tuple[K, V]:
        """Delete the key that was added last, or first, and return it with its value; see
        `DurableMap.popitem`. Raises KeyError if the map is empty."""
        return self._inner.popped_item(
            await self._commits.decided(lambda: decisions.pop_end(self._state, last=last))
        )

    @overload
    async def setdefault(
        self: AsyncChanges[K, T | None], key: K, default: None = None
    ) -> T | None: ...
    @overload
    async def setdefault(self, key: K, default: V) -> V: ...
    async def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of the key; if it does not exist, set it to `default` first."""
        value, _ = await self._commits.decided(lambda: self._inner.adding_new(key, default, None))
        return self._state.load(self._inner._key_data(key), value)

    async def add(self, key: K, amount: Any = 1) -> V:
        """Add to the number of the key, and return the sum; see `DurableMap.add`."""
        decision = self._inner.adding(key, amount)
        await self._commits.decide(decision)
        total: V = decision.answer
        return total

    async def add_new(self, key: K, value: V, ttl: float | None = None) -> bool:
        """Set the key if it does not exist. Returns whether it was set."""
        _, is_new = await self._commits.decided(lambda: self._inner.adding_new(key, value, ttl))
        return bool(is_new)

    async def replace(self, key: K, old: V, new: V, ttl: float | None = None) -> bool:
        """Set the key to `new` if its value equals `old`. Returns whether it was set."""
        return bool(await self._commits.decided(lambda: self._inner.replacing(key, old, new, ttl)))

    async def change(
        self, key: K, function: Callable[[Any], V | Delete], ttl: float | None = None
    ) -> V | None:
        """Read, change and write one value atomically; see `DurableMap.change`. `function` is a
        plain function."""
        while True:
            new, swap = self._inner.changing(key, await self._before(key), function, ttl)
            await self._commits.decide(swap)
            if swap.answer:
                return None if isinstance(new, Delete) else new

    async def _before(self, key: K) -> bytes | None:
        return self._inner.before(key)

    async def touch(self, key: K, ttl: float | None) -> bool:
        """Let the key expire `ttl` seconds from now, or never if it is None. Returns whether the
        key exists."""
        touching = self._inner.touching(key, ttl)
        if touching is None:
            return False
        await self._commits.decide(touching)
        return bool(touching.answer)

    async def clear(self) -> None:
        """Delete all keys, in one commit; see `DurableMap.clear`."""
        await self._commits.decided(self._inner.clearing)

    def delete(self, key: K) -> asyncio.Future[None]:
        """Delete the key if it exists. Returns a future, as `set` does; a missing key is not an
        error."""
        data = self._inner._key(key)
        if data is None:
            return self._nothing_to_do()
        return self._commits.enqueue(lambda: WriteBatch(self._state, [data], [None]))

    def _nothing_to_do(self) -> asyncio.Future[None]:
        self._durable.check_open()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def update(
        self,
        other: Pairs[K, V] = (),
        /,
        *,
        ttl: float | None = None,
        **more: V,
    ) -> asyncio.Future[None]:
        """Set several keys in one commit. Returns a future, as `set` does. Arguments and errors as
        for `DurableMap.update`."""
        items = [*pairs(other), *more.items()]
        if not items:
            return self._nothing_to_do()
        return self._commits.enqueue(lambda: self._inner.changes(items, ttl))


class AsyncMap(AsyncChanges[K, V], MapReads[K, V]):
    """One map of an `AsyncStore`. Awaiting a change waits until it is durable. Reads are plain
    calls, as for a dict: they use memory only."""

    def __init__(self, commits: AsyncWriter, durable_map: DurableMap[K, V]) -> None:
        AsyncChanges.__init__(self, commits, durable_map)
        MapReads.__init__(self, self._durable, self._state)

    def watch(self, since: Position | str | None = None) -> AsyncWatch:
        """The changes of this map, for `async for event in orders.watch()`. Arguments and errors as
        for `DurableMap.watch`; the errors are raised when it begins."""
        return AsyncWatch(lambda: self._inner.watch(since), self._durable.signal)
