"""The embedded store for asyncio: concurrent operations share commits, and reads use memory only.

Operations collect while a commit runs, and the next commit takes all of them. One thread commits,
so the event loop never waits for the disk.

`ring_bytes` and `ring_slots` limit the waiting operations and the running commit together. An
operation beyond these limits is not serialised yet: it waits in a queue, and so does the task that
awaits it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, closing
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar, Unpack, overload

from imap_wal.embedded import decisions, opening
from imap_wal.embedded.changes import MapState, WriteBatch, split
from imap_wal.embedded.decisions import Decision
from imap_wal.embedded.durable_map import RAISE, Delete, DurableMap, Pairs, pairs
from imap_wal.embedded.job_queue import AsyncJobQueue
from imap_wal.embedded.opening import OpenOptions
from imap_wal.embedded.store import Store, StoreStatistics
from imap_wal.embedded.transaction import Batch, Transaction, demand_plain
from imap_wal.embedded.views import MapReads
from imap_wal.embedded.watch import AsyncWatch
from imap_wal.errors import NotSerializable
from imap_wal.forked import OfOneProcess
from imap_wal.format import Position
from imap_wal.rewrite.compaction import Compaction
from imap_wal.serializer import K, Serializer, SerializerName, V

COMMIT_BYTES_MAX = 64 * 1024 * 1024
"""The largest commit, unless a single operation is larger."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PendingCommit: TypeAlias = "tuple[list[WriteBatch], list[asyncio.Future[None]]]"
"""All changes of one commit, and the future of each operation."""


class AsyncStore(OfOneProcess):
    """An open log and its maps, from `aopen`, for one event loop. As an async context manager, it
    closes itself at the end of the block. After that, all methods except `statistics` and `close`
    raise `Closed`."""

    def __init__(self, store: Store) -> None:
        self._store, self._changes = store, store.changes
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._commits: queue.SimpleQueue[_PendingCommit | None] = queue.SimpleQueue()
        # A plain queue and thread: an executor's bookkeeping costs 20 µs a commit.
        self._thread = threading.Thread(target=self._run, name="imap-wal-commit", daemon=True)
        self._thread.start()
        self._waiting: list[WriteBatch] = []
        """Consecutive changes of one map share a batch."""
        self._last: WriteBatch | None = None
        """The batch for the next change of the same map."""
        self._futures: list[asyncio.Future[None]] = []
        self._many: dict[asyncio.Future[None], int] = {}
        """The number of changes of each waiting operation that does not have exactly one change."""
        self._bytes = 0
        self._operations_max, self._bytes_max = store.changes.bounds
        self._room = self._bytes_max
        """How many more bytes may wait: the limit minus the bytes of the running commit."""
        self._later: deque[tuple[asyncio.Future[None], Callable[[], WriteBatch]]] = deque()
        """Operations beyond the limits, each with the function that serialises it."""
        self._full = False
        """New operations are appended to `_later`."""
        self._idle = True
        """No commit runs or is scheduled."""
        self._decides = False
        """Whether there has been a decision. Before the first one, commits are not searched for
        decisions."""

    @overload
    def map(
        self, name: str, *, key: type[K], value: type[V], disable_wal: bool = False
    ) -> AsyncMap[K, V]: ...
    @overload
    def map(
        self, name: str, *, serializer: Serializer[K, V], disable_wal: bool = False
    ) -> AsyncMap[K, V]: ...
    @overload
    def map(
        self, name: str, *, raw: Literal[True], disable_wal: bool = False
    ) -> AsyncMap[bytes, bytes]: ...
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
    ) -> AsyncMap[Any, Any]: ...
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
    ) -> AsyncMap[Any, Any]:
        """The durable map of this name. Arguments and errors as for `Store.map`."""
        inner = self._store.map(
            name,
            key=key,
            value=value,
            serializer=serializer,
            raw=raw,
            disable_wal=disable_wal,
            sorted=sorted,
        )
        return AsyncMap(self, inner)

    def queue(self, name: str, *, serializer: Serializer[Any, Any] | None = None) -> AsyncJobQueue:
        """The durable queue of this name. Arguments and errors as for `Store.queue`."""
        return AsyncJobQueue(self, self._store.queue(name, serializer=serializer))

    def __repr__(self) -> str:
        return f"<Async{repr(self._store)[1:]}"

    def _repr_html_(self) -> str:
        return self._store._repr_html_()

    def maps(self) -> list[str]:
        """The names of all maps; arguments and errors as for `Store.maps`."""
        return self._store.maps()

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[Batch]:
        """Several changes, of one map or more, in one commit at the end of an `async with` block;
        see `Store.batch`."""
        self._changes.check_open()
        with closing(Batch(self._changes)) as batch:
            yield batch
        decision = batch.decision()
        if decision is not None:
            await self.decide(decision)

    def transaction(
        self, function: Callable[Concatenate[Transaction, P], R]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """A decorator: all changes of the function are one commit; see `Store.transaction`. The
        function is a plain one: its reads come from memory. The result is a coroutine function."""

        demand_plain(function)

        @wraps(function)
        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            while True:
                self._changes.check_open()
                with closing(Transaction(self._changes)) as transaction:
                    result = function(transaction, *args, **kwargs)
                decision = transaction.decision()
                if decision is None:
                    return result
                await self.decide(decision)
                if decision.answer:
                    return result

        return run

    async def refresh(self) -> None:
        """Of a store with `read_only`: show all changes that are in the log now; see
        `Store.refresh`."""
        self._changes.check_open()
        await self._loop.run_in_executor(None, self._store.refresh)

    async def sync(self) -> None:
        """Durability barrier: returns when all earlier changes are synced. Errors as for
        `Store.sync`."""
        self._changes.check_open()
        await self._loop.run_in_executor(None, self._store.sync)

    async def flush_wal(self, sync: bool = True) -> None:
        """With `manual_wal_flush`: write all waiting changes to the log. Arguments and errors as
        for `Store.flush_wal`."""
        self._changes.check_open()
        await self._loop.run_in_executor(None, self._store.flush_wal, sync)

    async def archive(self) -> int:
        """Turn the log's segments into archives. Returns the number of archived entries. Errors as
        for `Store.archive`."""
        self._changes.check_open()
        return await self._loop.run_in_executor(None, self._store.archive)

    async def compact(self) -> Compaction:
        """Rewrite all maps and remove the files that this replaces. Returns what was read, written
        and removed. Errors as for `Store.compact`."""
        self._changes.check_open()
        return await self._loop.run_in_executor(None, self._store.compact)

    @property
    def statistics(self) -> StoreStatistics:
        """Counters since the store was opened; see `StoreStatistics`."""
        return self._store.statistics

    async def close(self) -> None:
        """Wait for all operations, then close the store. Errors as for `Store.close`."""
        await self._close(self._store.close)

    async def _close(self, close: Callable[[], None]) -> None:
        self._changes.openness.check_process()
        await self._drain()
        await self._loop.run_in_executor(None, close)
        await self._drain()  # operations that arrived before the store was closed
        self._commits.put(None)
        self._thread.join()

    async def _drain(self) -> None:
        while self._futures or self._later or not self._idle:
            await asyncio.wait(self._futures) if self._futures else await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._close(partial(self._store._close, 0))

    def enqueue(self, make: Callable[[], WriteBatch]) -> asyncio.Future[None]:
        """Commit the changes that `make` serialises, together with all waiting changes. The future
        is done when they are durable. Raises `Closed`, and the errors of `make`."""
        self._changes.check_open()
        future = self._create_future()
        if self._full:
            self._later.append((future, make))
        else:
            self._add(make(), future)
            if self._idle:
                self._schedule()
        return future

    def decide(self, decision: Decision) -> asyncio.Future[None]:
        """Evaluate a decision when all changes before it are in the log. The future is done when
        its changes are durable."""
        if self._full or self._changes.closed:
            return self.enqueue(lambda: decision)
        # The code of `enqueue` for one decision, inlined: the event loop spends this time on each.
        self._waiting.append(decision)
        self._last, self._decides = None, True
        future = self._create_future()
        futures = self._futures
        futures.append(future)
        self._bytes = waiting = self._bytes + decision.size
        if waiting >= self._room or len(futures) >= self._operations_max:
            self._full = True
        if self._idle:
            self._schedule()
        return future

    async def decided(self, make: Callable[[], Decision]) -> Any:
        """The same for a decision that `make` serialises, not before there is room for it. Returns
        its answer."""
        decision: Decision | None = None

        def remember() -> Decision:
            nonlocal decision
            decision = make()
            return decision

        await self.enqueue(remember)
        assert decision is not None
        return decision.answer

    def _add(self, changes: WriteBatch, future: asyncio.Future[None]) -> None:
        if isinstance(changes, Decision):
            self._waiting.append(changes)
            self._last, self._decides = None, True
        else:
            self._batch_for(changes.state).add(changes)
        self._futures.append(future)
        if len(changes) != 1:
            self._many[future] = len(changes)
        self._bytes += sum(changes.sizes())
        if self._bytes >= self._room or len(self._futures) >= self._operations_max:
            self._full = True

    def _admit(self) -> None:
        """Accept operations of `_later`, in order, as far as the limits allow."""
        self._full = False
        while self._later and not self._full:
            future, make = self._later.popleft()
            if future.done():
                continue  # cancelled
            try:
                changes = make()
            except Exception as error:  # passed to the caller
                future.set_exception(error)
            else:
                self._add(changes, future)

    def _batch_for(self, state: MapState) -> WriteBatch:
        """The batch for the next change of this map."""
        batch = self._last
        if batch is None or batch.state is not state:
            batch = self._last = WriteBatch(state, [], [])
            self._waiting.append(batch)
        return batch

    def _schedule(self) -> None:
        """Begin a commit after the callbacks that are ready now."""
        self._idle = False
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._commits.put(self._take())

    def _take(self) -> _PendingCommit:
        """The changes for the next commit: all that wait, or as many whole operations as fit into
        `COMMIT_BYTES_MAX`."""
        batches, futures = self._waiting, self._futures
        self._last = None
        if self._bytes <= COMMIT_BYTES_MAX or len(futures) == 1:
            self._room -= self._bytes
            self._waiting, self._futures, self._bytes = [], [], 0
            self._many.clear()
            return batches, futures
        sizes = [size for batch in batches for size in batch.sizes()]
        operations, end, taken = 0, 0, 0
        for future in futures:
            count = self._many.get(future, 1)
            size = sum(sizes[end : end + count])
            if operations and taken + size > COMMIT_BYTES_MAX:
                break
            self._many.pop(future, None)
            operations, end, taken = operations + 1, end + count, taken + size
        now, self._waiting = split(batches, end)
        self._futures, self._bytes, self._room = (
            futures[operations:],
            self._bytes - taken,
            self._room - taken,
        )
        return now, futures[:operations]

    def _run(self) -> None:
        """The thread that commits."""
        while (commit := self._commits.get()) is not None:
            batches, futures = commit
            error: BaseException | None = None
            try:
                if self._decides and any(isinstance(batch, Decision) for batch in batches):
                    self._changes.evaluate(batches)
                else:
                    self._changes.change(batches)
            except BaseException as caught:  # passed to the callers
                error = caught
            self._loop.call_soon_threadsafe(self._finish, futures, error)

    def _finish(self, futures: list[asyncio.Future[None]], error: BaseException | None) -> None:
        for future in futures:
            try:
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
            except asyncio.InvalidStateError:
                pass  # cancelled
        self._room = self._bytes_max
        if self._full:
            self._full = self._bytes >= self._room or len(self._futures) >= self._operations_max
            if not self._full:
                self._admit()
        if self._futures:
            self._loop.call_soon(
                self._flush
            )  # after the tasks that were just woken: their next operations join this commit
        else:
            self._idle = True


class AsyncMap(MapReads[K, V]):
    """One map of an `AsyncStore`. Awaiting a change waits until it is durable. Reads are plain
    calls, as for a dict.

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

    def __init__(self, store: AsyncStore, inner: DurableMap[K, V]) -> None:
        self._durable = inner._writer
        super().__init__(self._durable, inner._state)
        self._store, self._inner = store, inner
        self._max_value_bytes = self._durable.max_value_bytes

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
        store, state = self._store, self._state
        if ttl is not None or store._full or self._durable.closed or state.order is not None:
            return self._enqueue(key, value, ttl)
        serializer = state.serializer
        try:
            key_data, data = serializer.dump_key(key), serializer.dump(value)
        except NotSerializable:
            return self._enqueue(key, value, None)  # raises it with the place
        size = len(key_data) + len(data)
        if size > self._max_value_bytes or type(key_data) is not bytes or type(data) is not bytes:
            return self._enqueue(key, value, None)  # raises what `demand_columns` raises
        batch = store._last
        if batch is None or batch.state is not state:
            batch = store._batch_for(state)
        batch.keys.append(key_data)
        batch.values.append(data)
        store._bytes = waiting = store._bytes + size
        future = store._create_future()
        futures = store._futures
        futures.append(future)
        if waiting >= store._room or len(futures) >= store._operations_max:
            store._full = True
        if store._idle:
            store._schedule()
        return future

    def _enqueue(self, key: K, value: V, ttl: float | None) -> asyncio.Future[None]:
        # Not in `set`: a lambda there would turn its arguments into closure cells, which slows each
        # call.
        return self._store.enqueue(lambda: self._inner.changes([(key, value)], ttl))

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
            await self._store.decide(decision)
        return self._inner.popped(decision, key, default)

    async def popitem(self, *, last: bool = True) -> tuple[K, V]:
        """Delete the key that was added last, or first, and return it with its value; see
        `DurableMap.popitem`. Raises KeyError if the map is empty."""
        return self._inner.popped_item(
            await self._store.decided(lambda: decisions.pop_end(self._state, last=last))
        )

    @overload
    async def setdefault(self: AsyncMap[K, T | None], key: K, default: None = None) -> T | None: ...
    @overload
    async def setdefault(self, key: K, default: V) -> V: ...
    async def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of the key; if it does not exist, set it to `default` first."""
        value, _ = await self._store.decided(lambda: self._inner.adding_new(key, default, None))
        return self._state.load(self._inner._key_data(key), value)

    async def add(self, key: K, amount: Any = 1) -> V:
        """Add to the number of the key, and return the sum; see `DurableMap.add`."""
        decision = self._inner.adding(key, amount)
        await self._store.decide(decision)
        total: V = decision.answer
        return total

    async def add_new(self, key: K, value: V, ttl: float | None = None) -> bool:
        """Set the key if it does not exist. Returns whether it was set."""
        _, is_new = await self._store.decided(lambda: self._inner.adding_new(key, value, ttl))
        return bool(is_new)

    async def replace(self, key: K, old: V, new: V, ttl: float | None = None) -> bool:
        """Set the key to `new` if its value equals `old`. Returns whether it was set."""
        return bool(await self._store.decided(lambda: self._inner.replacing(key, old, new, ttl)))

    async def change(
        self, key: K, function: Callable[[Any], V | Delete], ttl: float | None = None
    ) -> V | None:
        """Read, change and write one value atomically; see `DurableMap.change`. `function` is a
        plain function."""
        while True:
            new, swap = self._inner.changing(key, function, ttl)
            await self._store.decide(swap)
            if swap.answer:
                return None if isinstance(new, Delete) else new

    async def touch(self, key: K, ttl: float | None) -> bool:
        """Let the key expire `ttl` seconds from now, or never if it is None. Returns whether the
        key exists."""
        touching = self._inner.touching(key, ttl)
        if touching is None:
            return False
        await self._store.decide(touching)
        return bool(touching.answer)

    async def clear(self) -> None:
        """Delete all keys, in one commit; see `DurableMap.clear`."""
        await self._store.decided(self._inner.clearing)

    def watch(self, since: Position | str | None = None) -> AsyncWatch:
        """The changes of this map, for `async for event in orders.watch()`. Arguments and errors as
        for `DurableMap.watch`; the errors are raised when it begins."""
        return AsyncWatch(lambda: self._inner.watch(since), self._durable.signal)

    def delete(self, key: K) -> asyncio.Future[None]:
        """Delete the key if it exists. Returns a future, as `set` does; a missing key is not an
        error."""
        data = self._key(key)
        if data is None:
            return self._nothing_to_do()
        return self._store.enqueue(lambda: WriteBatch(self._state, [data], [None]))

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
        return self._store.enqueue(lambda: self._inner.changes(items, ttl))


class aopen:  # noqa: N801  # used as a function, beside `imap_wal.open`
    """`imap_wal.open` for asyncio, with the same options and errors. It returns an `AsyncStore`.
    The open runs in another thread. Use `async with aopen(url) as store:`, or `store = await
    aopen(url)` with `await store.close()` at the end.

    Args:
        url: a folder or URL.
        **options: the options of `imap_wal.open`.
    """

    def __init__(self, url: str | os.PathLike[str], **options: Unpack[OpenOptions]) -> None:
        self._url, self._options = url, options
        self._store: AsyncStore | None = None

    async def _open(self) -> AsyncStore:
        store = await asyncio.get_running_loop().run_in_executor(
            None, lambda: opening.open(self._url, **self._options)
        )
        return AsyncStore(store)

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.__aexit__(kind, error, trace)
