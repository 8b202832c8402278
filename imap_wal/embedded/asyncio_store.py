"""The embedded store for asyncio: concurrent operations share commits, and reads use memory
only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from imap_wal.embedded import opening
from imap_wal.embedded.async_writer import AsyncWriter
from imap_wal.embedded.asyncio_map import AsyncMap
from imap_wal.embedded.job_queue import AsyncJobQueue
from imap_wal.embedded.opening import OpenOptions
from imap_wal.embedded.store import Store, StoreStatistics
from imap_wal.embedded.transaction import Batch, Transaction, demand_plain
from imap_wal.forked import OfOneProcess
from imap_wal.rewrite.compaction import Compaction
from imap_wal.serializer import K, Serializer, SerializerName, V

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=AbstractAsyncContextManager[Any])


class AnyAsyncStore(OfOneProcess):
    """A store for one event loop. As an async context manager, it closes itself at the end of the
    block. After that, all methods except `statistics` and `close` raise `Closed`."""

    def __init__(self, store: Store) -> None:
        self._store, self._changes = store, store.changes
        self._loop = asyncio.get_running_loop()
        self._commits = AsyncWriter(store.changes)

    def __repr__(self) -> str:
        return f"<Async{repr(self._store)[1:]}"

    def _repr_html_(self) -> str:
        return self._store._repr_html_()

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[Batch]:
        """Several changes, of one map or more, in one commit at the end of an `async with` block;
        see `Store.batch`."""
        self._changes.check_open()
        with closing(Batch(self._changes)) as batch:
            yield batch
        decision = batch.decision()
        if decision is not None:
            await self._commits.decide(decision)

    def transaction(
        self, function: Callable[Concatenate[Transaction, P], R]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """A decorator: all changes of the function are one commit; see `Store.transaction`. The
        function is a plain one. The result is a coroutine function."""

        demand_plain(function)

        @wraps(function)
        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            while True:
                self._changes.check_open()
                with closing(Transaction(self._changes)) as transaction:
                    result = await self._called(partial(function, transaction, *args, **kwargs))
                decision = transaction.decision()
                if decision is None:
                    return result
                await self._commits.decide(decision)
                if decision.answer:
                    return result

        return run

    async def _in_thread(self, function: Callable[[], R]) -> R:
        """What a function returns that waits for the storage. Raises `Closed`."""
        self._changes.check_open()
        return await self._loop.run_in_executor(None, function)

    async def _called(self, function: Callable[[], R]) -> R:
        return function()

    async def sync(self) -> None:
        """Durability barrier: returns when all earlier changes are synced. Errors as for
        `Store.sync`."""
        await self._in_thread(self._store.sync)

    async def flush_wal(self, sync: bool = True) -> None:
        """With `manual_wal_flush`: write all waiting changes to the log. Arguments and errors as
        for `Store.flush_wal`."""
        await self._in_thread(partial(self._store.flush_wal, sync))

    async def archive(self) -> int:
        """Turn the log's segments into archives. Returns the number of archived entries. Errors as
        for `Store.archive`."""
        return await self._in_thread(self._store.archive)

    async def compact(self) -> Compaction:
        """Rewrite all maps and remove the files that this replaces. Returns what was read, written
        and removed. Errors as for `Store.compact`."""
        return await self._in_thread(self._store.compact)

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
        self._commits.stop()

    async def _drain(self) -> None:
        await self._commits.drain()

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


class AsyncStore(AnyAsyncStore):
    """An open log and its maps, from `aopen`, for one event loop. As an async context manager, it
    closes itself at the end of the block. After that, all methods except `statistics` and `close`
    raise `Closed`."""

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
        return AsyncMap(self._commits, inner)

    def queue(self, name: str, *, serializer: Serializer[Any, Any] | None = None) -> AsyncJobQueue:
        """The durable queue of this name. Arguments and errors as for `Store.queue`."""
        return AsyncJobQueue(self._commits, self._store.queue(name, serializer=serializer))

    def maps(self) -> list[str]:
        """The names of all maps; arguments and errors as for `Store.maps`."""
        return self._store.maps()

    async def refresh(self) -> None:
        """Of a store with `read_only`: show all changes that are in the log now; see
        `Store.refresh`."""
        await self._in_thread(self._store.refresh)


class AsyncOpening(Generic[S]):
    """What `async with` and `await` take. `open` runs in another thread."""

    def __init__(self, open: Callable[[], R], kind: Callable[[R], S]) -> None:
        self._open: Callable[[], Any] = open
        self._kind: Callable[[Any], S] = kind
        self._store: S | None = None

    async def _opened(self) -> S:
        return self._kind(await asyncio.get_running_loop().run_in_executor(None, self._open))

    def __await__(self) -> Generator[Any, None, S]:
        return self._opened().__await__()

    async def __aenter__(self) -> S:
        self._store = await self._opened()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.__aexit__(kind, error, trace)


class aopen(AsyncOpening[AsyncStore]):  # noqa: N801  # used as a function, beside `imap_wal.open`
    """`imap_wal.open` for asyncio, with the same options and errors. It returns an `AsyncStore`.
    The open runs in another thread. Use `async with aopen(url) as store:`, or `store = await
    aopen(url)` with `await store.close()` at the end.

    Args:
        url: a folder or URL.
        **options: the options of `imap_wal.open`.
    """

    def __init__(self, url: str | os.PathLike[str], **options: Unpack[OpenOptions]) -> None:
        super().__init__(partial(opening.open, url, **options), AsyncStore)
