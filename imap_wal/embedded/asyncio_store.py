"""The embedded store for asyncio: thousands of operations in flight share commits; reads are
memory.

Operations gather while a commit is under way, and the next commit takes them all. The event loop
never waits for the disk: one thread commits.

What gathers, and what is being committed, is bounded by `ring_bytes` and `ring_slots`. An operation
that comes when they are used up is not serialised yet: it waits its turn, and so does whoever
awaits it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias, Unpack

from imap_wal.embedded import decisions, opening
from imap_wal.embedded.changes import MapState, WriteBatch, split
from imap_wal.embedded.decisions import Decision
from imap_wal.embedded.durable_map import RAISE, DurableMap, pairs
from imap_wal.embedded.opening import OpenOptions
from imap_wal.embedded.serializer import Serializer
from imap_wal.embedded.store import Store, StoreStatistics
from imap_wal.embedded.views import MapReads

COMMIT_BYTES_MAX = 64 * 1024 * 1024
"""What waits beyond this goes into the next commit."""

_Commit: TypeAlias = "tuple[list[WriteBatch], list[asyncio.Future[None]]]"
"""What one commit takes: all changes, and the future of each operation."""


class AsyncStore:
    """Made by `aopen`; an async context manager. For one event loop."""

    def __init__(self, store: Store) -> None:
        self._store, self._changes = store, store.changes
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._commits: queue.SimpleQueue[_Commit | None] = queue.SimpleQueue()
        # A plain queue and thread: an executor's bookkeeping costs 20 µs a commit.
        self._thread = threading.Thread(target=self._run, name="imap-wal-commit", daemon=True)
        self._thread.start()
        self._waiting: list[WriteBatch] = []
        """Those of one map that came one after another are together."""
        self._last: WriteBatch | None = None
        """Where the next change of the same map goes."""
        self._futures: list[asyncio.Future[None]] = []
        self._many: dict[asyncio.Future[None], int] = {}
        """Number of waiting changes of an operation that has more than one."""
        self._bytes = 0
        self._operations_max, self._bytes_max = store.changes.bounds
        self._room = self._bytes_max
        """How many bytes may wait. Bytes of the running commit are not free yet."""
        self._later: deque[tuple[asyncio.Future[None], Callable[[], WriteBatch]]] = deque()
        """Operations that arrived when there was no room, and how to serialise them."""
        self._full = False
        """A new operation is put at the end of `_later`."""
        self._idle = True
        """No commit is under way, and none is scheduled."""
        self._decides = False
        """There was a decision: from then on, commits are searched for them."""

    def map(
        self,
        name: str,
        *,
        serializer: Serializer | None = None,
        raw: bool = False,
        disable_wal: bool = False,
    ) -> AsyncMap:
        """The durable map of that name; see `Store.map`."""
        return AsyncMap(
            self, self._store.map(name, serializer=serializer, raw=raw, disable_wal=disable_wal)
        )

    def maps(self) -> list[str]:
        return self._store.maps()

    async def sync(self) -> None:
        """Durability barrier, see `Store.sync`."""
        await self._loop.run_in_executor(None, self._store.sync)

    async def flush_wal(self, sync: bool = True) -> None:
        """See `Store.flush_wal`."""
        await self._loop.run_in_executor(None, self._store.flush_wal, sync)

    async def archive(self) -> int:
        """See `Store.archive`."""
        return await self._loop.run_in_executor(None, self._store.archive)

    @property
    def statistics(self) -> StoreStatistics:
        return self._store.statistics

    async def close(self) -> None:
        """Wait for all operations, then close the store."""
        await self._settle()
        await self._loop.run_in_executor(None, self._store.close)
        await self._settle()  # what came before the store was closed, but after we looked
        self._commits.put(None)
        self._thread.join()

    async def _settle(self) -> None:
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
        await self.close()

    def enqueue(self, make: Callable[[], WriteBatch]) -> asyncio.Future[None]:
        """Have the changes that `make` serialises committed with whatever else waits; the future
        ends when they are durable."""
        self._changes.check_open()
        future = self._create_future()
        if self._full:
            self._later.append((future, make))
        else:
            self._add(make(), future)
            if self._idle:
                self._schedule()
        return future

    async def decided(self, make: Callable[[], Decision]) -> Decision:
        """Evaluate the decision once all changes before it are in the log. When this returns, its
        changes are durable."""
        decision: Decision | None = None

        def remember() -> Decision:
            nonlocal decision
            decision = make()
            return decision

        await self.enqueue(remember)
        assert decision is not None
        return decision

    def _add(self, changes: WriteBatch, future: asyncio.Future[None]) -> None:
        if isinstance(changes, Decision):
            self._waiting.append(changes)
            self._last, self._decides = None, True
        else:
            self.run(changes.state).add(changes)
        self._futures.append(future)
        if len(changes) != 1:
            self._many[future] = len(changes)
        self._bytes += sum(changes.sizes())
        if self._bytes >= self._room or len(self._futures) >= self._operations_max:
            self._full = True

    def _admit(self) -> None:
        """Accept waiting operations for which there is room now, in order."""
        self._full = False
        while self._later and not self._full:
            future, make = self._later.popleft()
            if future.done():
                continue  # cancelled
            try:
                changes = make()
            except Exception as error:  # carried to the caller, whatever it is
                future.set_exception(error)
            else:
                self._add(changes, future)

    def run(self, state: MapState) -> WriteBatch:
        """Where the next change of that map goes."""
        run = self._last
        if run is None or run.state is not state:
            run = self._last = WriteBatch(state, [], [])
            self._waiting.append(run)
        return run

    def _schedule(self) -> None:
        """Begin a commit once what runs now has run."""
        self._idle = False
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._commits.put(self._take())

    def _take(self) -> _Commit:
        """All that waits, or as many whole operations as one commit should hold."""
        runs, futures = self._waiting, self._futures
        self._last = None
        if self._bytes <= COMMIT_BYTES_MAX or len(futures) == 1:
            self._room -= self._bytes
            self._waiting, self._futures, self._bytes = [], [], 0
            self._many.clear()
            return runs, futures
        sizes = [size for run in runs for size in run.sizes()]
        operations, end, taken = 0, 0, 0
        for future in futures:
            count = self._many.get(future, 1)
            size = sum(sizes[end : end + count])
            if operations and taken + size > COMMIT_BYTES_MAX:
                break
            self._many.pop(future, None)
            operations, end, taken = operations + 1, end + count, taken + size
        now, self._waiting = split(runs, end)
        self._futures, self._bytes, self._room = (
            futures[operations:],
            self._bytes - taken,
            self._room - taken,
        )
        return now, futures[:operations]

    def _run(self) -> None:
        """The committing thread."""
        while (commit := self._commits.get()) is not None:
            runs, futures = commit
            error: BaseException | None = None
            try:
                if self._decides and any(isinstance(run, Decision) for run in runs):
                    self._changes.settle(runs)
                else:
                    self._changes.change(runs)
            except BaseException as caught:  # carried to the callers, whatever it is
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
                pass  # cancelled: nobody waits for it
        self._room = self._bytes_max
        if self._full:
            self._full = self._bytes >= self._room or len(self._futures) >= self._operations_max
            if not self._full:
                self._admit()
        if self._futures:
            self._loop.call_soon(
                self._flush
            )  # behind those just woken: what they do next shares the commit
        else:
            self._idle = True


class AsyncMap(MapReads):
    """One map of an AsyncStore. A change is awaited until it is durable; reads are plain calls, as
    of a dict.

    `put`, `pop`, `popitem`, `setdefault` and `clear` are coroutine functions: pass what they return
    to `asyncio.create_task` or `TaskGroup.create_task`. `set`, `delete` and `update` are faster:
    they start when they are called, and return a future, for `await`, `gather`, `wait_for`,
    `shield` and `wait`. `create_task` takes coroutines only, no futures; for a task, use `put`, or
    `asyncio.ensure_future(m.set(...))`, which returns the future.

    When `ring_bytes` or `ring_slots` are used up, an operation waits before it is serialised: leave
    its value alone until it has ended, and expect NotSerializable and TooLarge from the awaitable
    then."""

    def __init__(self, store: AsyncStore, inner: DurableMap) -> None:
        self._durable = inner._writer
        super().__init__(self._durable, inner._state)
        self._store, self._inner = store, inner
        self._max_value_bytes = self._durable.max_value_bytes

    def set(self, key: Any, value: Any, ttl: float | None = None) -> asyncio.Future[None]:
        """Set the key, for `ttl` seconds or without limit. NotSerializable and TooLarge are raised
        at once. `asyncio.create_task` takes no future: use `put` there."""
        # What `enqueue` does with one change, spelt out: this is what every operation costs the
        # event loop.
        store, state = self._store, self._state
        if ttl is not None or store._full or self._durable.closed:
            return self._enqueue(key, value, ttl)
        serializer = state.serializer
        key_data, data = serializer.dump_key(key), serializer.dump(value)
        size = len(key_data) + len(data)
        if size > self._max_value_bytes:
            return self._enqueue(key, value, None)  # which raises TooLarge
        run = store._last
        if run is None or run.state is not state:
            run = store.run(state)
        run.keys.append(key_data)
        run.values.append(data)
        store._bytes = waiting = store._bytes + size
        future = store._create_future()
        futures = store._futures
        futures.append(future)
        if waiting >= store._room or len(futures) >= store._operations_max:
            store._full = True
        if store._idle:
            store._schedule()
        return future

    def _enqueue(self, key: Any, value: Any, ttl: float | None) -> asyncio.Future[None]:
        # Not in `set`: a lambda there turns its arguments into closure cells and slows each call.
        return self._store.enqueue(lambda: self._inner.changes([(key, value)], ttl))

    async def put(self, key: Any, value: Any, ttl: float | None = None) -> None:
        """`set` as a coroutine: it starts when it is awaited, or when its task runs."""
        await self.set(key, value, ttl)

    async def pop(self, key: Any, default: Any = RAISE) -> Any:
        """Delete the key and return its value: only one of several tasks gets it. Without the key,
        return `default`, or raise KeyError if none is given."""
        decision = await self._store.decided(
            lambda: decisions.pop(self._state, self._state.serializer.dump_key(key))
        )
        return self._inner.popped(decision, key, default)

    async def popitem(self) -> tuple[Any, Any]:
        """Delete the key that was added last, and return it with its value. KeyError if the map is
        empty."""
        return self._inner.popped_item(
            await self._store.decided(lambda: decisions.pop_last(self._state))
        )

    async def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of the key; set `default` first if there is none."""
        decision = await self._store.decided(
            lambda: decisions.set_default(self._inner.changes([(key, default)]))
        )
        return self._state.serializer.load(decision.answer)

    async def clear(self) -> None:
        """Delete all keys, in one commit."""
        await self._store.decided(self._inner.clearing)

    def delete(self, key: Any) -> asyncio.Future[None]:
        """Delete the key; an absent one is fine."""
        return self._store.enqueue(lambda: self._inner.deletion(key))

    def update(
        self,
        other: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (),
        /,
        *,
        ttl: float | None = None,
        **more: Any,
    ) -> asyncio.Future[None]:
        """All of them in one commit, with a lifetime of `ttl` seconds or without limit; see
        `DurableMap.update`."""
        given = [*pairs(other), *more.items()]
        if not given:
            self._durable.check_open()
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return self._store.enqueue(lambda: self._inner.changes(given, ttl))


class aopen:  # noqa: N801  # used as a function, beside `imap_wal.open`
    """`imap_wal.open` for asyncio: the same options, opened off the event loop. `async with
    aopen(url) as store:`, or `store = await aopen(url)` and `await store.close()` at the end."""

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
            await self._store.close()
