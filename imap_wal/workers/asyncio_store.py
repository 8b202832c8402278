"""`connect` for asyncio. One thread sends the changes of all tasks, another one their reads, so the
event loop never waits for the process that serves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar, Unpack, overload

from imap_wal.embedded.async_writer import AsyncWriter
from imap_wal.embedded.asyncio_map import AsyncChanges
from imap_wal.embedded.asyncio_store import AnyAsyncStore, AsyncOpening
from imap_wal.embedded.durable_map import DurableMap
from imap_wal.embedded.opening import OpenOptions
from imap_wal.embedded.sorted_keys import Prefix
from imap_wal.embedded.store import Store
from imap_wal.embedded.views import time_left
from imap_wal.serializer import K, Serializer, SerializerName, V
from imap_wal.workers.map_client import RemoteReads, reading
from imap_wal.workers.store import TIMEOUT_S, ConnectedStore, connect

T = TypeVar("T")
R = TypeVar("R")


class AsyncConnectedStore(AnyAsyncStore):
    """From `aconnect`, for one event loop. As an async context manager, it closes itself at the end
    of the block. Methods have the errors of `connect`."""

    _store: ConnectedStore

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._reads = AsyncWriter(RemoteReads(self._store._client))

    @overload
    async def map(self, name: str, *, key: type[K], value: type[V]) -> AsyncConnectedMap[K, V]: ...
    @overload
    async def map(self, name: str, *, serializer: Serializer[K, V]) -> AsyncConnectedMap[K, V]: ...
    @overload
    async def map(self, name: str, *, raw: Literal[True]) -> AsyncConnectedMap[bytes, bytes]: ...
    @overload
    async def map(
        self,
        name: str,
        *,
        key: Any = None,
        value: Any = None,
        serializer: Serializer[Any, Any] | SerializerName | None = None,
        raw: bool = False,
    ) -> AsyncConnectedMap[Any, Any]: ...
    async def map(self, name: str, **options: Any) -> AsyncConnectedMap[Any, Any]:
        """The durable map of this name. Arguments and errors as for `Store.map`; `disable_wal` and
        `sorted` are not possible here."""
        durable_map = await self._called(partial(self._store.map, name, **options))
        return AsyncConnectedMap(self._commits, self._reads, durable_map)

    def queue(self, name: str, *, serializer: Serializer[Any, Any] | None = None) -> NoReturn:
        """Raises `InvalidSetting`: the log is in the process that serves."""
        self._store.queue(name, serializer=serializer)

    async def maps(self) -> list[str]:
        """The names of all maps; see `Store.maps`."""
        return await self._called(self._store.maps)

    @property
    def is_serving(self) -> bool:
        """Whether this process is the one that serves now."""
        return self._store.is_serving

    async def _called(self, function: Callable[[], R]) -> R:
        self._changes.openness.check_process()  # the threads of the executor are not in a child
        return await self._loop.run_in_executor(None, function)

    async def _drain(self) -> None:
        await super()._drain()
        await self._reads.drain()

    async def _close(self, close: Callable[[], None]) -> None:
        await super()._close(close)
        self._reads.stop()


class AsyncConnectedMap(AsyncChanges[K, V]):
    """One map of an `AsyncConnectedStore`. Reads are coroutine functions too: they ask the process
    that serves. Those of tasks that wait at the same time are one request."""

    def __init__(
        self, commits: AsyncWriter, reads: AsyncWriter, durable_map: DurableMap[K, V]
    ) -> None:
        super().__init__(commits, durable_map)
        self._reads = reads

    async def _ask(self, *call: Any) -> Any:
        read = reading(self._state, *call)
        await self._reads.decide(read)
        return read.answer

    async def _before(self, key: K) -> bytes | None:
        value: bytes | None = await self._ask("get", self._inner._key_data(key))
        return value

    async def _value(self, key: object) -> bytes | None:
        data = self._inner._key(key)
        self._durable.check_open()
        return None if data is None else await self._ask("get", data)

    @overload
    async def get(self, key: K) -> V | None: ...
    @overload
    async def get(self, key: K, default: V) -> V: ...
    @overload
    async def get(self, key: K, default: T) -> V | T: ...
    async def get(self, key: Any, default: Any = None) -> Any:
        """The value of the key; `default` if it does not exist."""
        data = await self._value(key)
        if data is None:
            return default
        return self._state.load(self._inner._key_data(key), data)

    async def contains(self, key: object) -> bool:
        """Whether the key exists."""
        return await self._value(key) is not None

    async def ttl(self, key: K) -> float | None:
        """The remaining time to live of a key in seconds; None: it does not expire. Raises KeyError
        if the key does not exist."""
        data = self._inner._key(key)
        expires = None if data is None else await self._ask("expiry", data)
        return time_left(key, expires, self._durable.now_ms())

    async def size(self) -> int:
        """The number of keys."""
        return int(await self._ask("size"))

    async def keys(self, *, prefix: Prefix | None = None) -> list[K]:
        """All keys, or those that begin with the prefix, at one moment; see `DurableMap.keys`."""
        return await self._listed(self._inner.keys, prefix)

    async def values(self, *, prefix: Prefix | None = None) -> list[V]:
        """All values, or those whose key begins with the prefix, at one moment."""
        return await self._listed(self._inner.values, prefix)

    async def items(self, *, prefix: Prefix | None = None) -> list[tuple[K, V]]:
        """All entries, or those whose key begins with the prefix, at one moment."""
        return await self._listed(self._inner.items, prefix)

    async def snapshot(self) -> dict[K, V]:
        """All keys and values of one moment."""
        return dict(await self.items())

    async def _listed(self, view: Callable[..., Iterable[T]], prefix: Prefix | None) -> list[T]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: list(view(prefix=prefix)))

    def watch(self, since: object = None) -> NoReturn:
        """Raises `InvalidSetting`: the log is in the process that serves."""
        _ = self._durable.log
        raise AssertionError("unreachable")

    def __repr__(self) -> str:
        return f"<AsyncConnectedMap {self.name!r}{' closed' if self._durable.closed else ''}>"


class aconnect(AsyncOpening[AsyncConnectedStore]):  # noqa: N801  # used as a function
    """`imap_wal.connect` for asyncio, with the same arguments and errors. It returns an
    `AsyncConnectedStore`. Use `async with aconnect(url) as store:`, or `store = await
    aconnect(url)` with `await store.close()` at the end.

    Args:
        url: a folder or URL, the same in all processes.
        socket: as for `connect`.
        serve: as for `connect`.
        timeout_s: as for `connect`.
        **options: options of `imap_wal.open`, the same in all processes.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        socket: str | os.PathLike[str] | None = None,
        serve: bool = True,
        timeout_s: float = TIMEOUT_S,
        **options: Unpack[OpenOptions],
    ) -> None:
        open = partial(connect, url, socket=socket, serve=serve, timeout_s=timeout_s, **options)
        super().__init__(open, AsyncConnectedStore)
