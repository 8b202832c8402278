"""A store of py-key-value, the storage of FastMCP and others.

All collections are one map, whose keys are (collection, key). Values are JSON text, as in other
stores of py-key-value, so they can only be what JSON has.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Unpack, cast, overload

from imap_wal.adapters.any_map import AnyMap, call
from imap_wal.embedded import opening
from imap_wal.embedded.asyncio_store import AsyncStore
from imap_wal.embedded.durable_map import TTL_S_MAX
from imap_wal.embedded.opening import OpenOptions
from imap_wal.embedded.store import Store
from imap_wal.errors import InvalidSetting
from storage_backends.extras import needs

with needs("key-value"):
    from key_value.aio.stores.base import (
        BaseContextManagerStore,
        BaseDestroyCollectionStore,
        BaseDestroyStore,
        BaseEnumerateCollectionsStore,
        BaseEnumerateKeysStore,
        ManagedEntry,
    )

MAP = "key_value"
TTL_S_MIN = 0.001


class ImapWalStore(
    BaseDestroyStore,
    BaseDestroyCollectionStore,
    BaseEnumerateCollectionsStore,
    BaseEnumerateKeysStore,
    BaseContextManagerStore,
):
    """A durable store of py-key-value: `put` returns when the entry is durable; `put_many`,
    `delete_many` and `destroy_collection` are one commit each.

    Args:
        url: a folder or URL, which the first call opens with `imap_wal.open`, and `close` closes.
        store: an open store instead, of `open`, `connect` or `aopen`, which the caller closes. That
            of `connect` may be used in several processes, that of `aopen` in one event loop.
        map: the name of the map in the store.
        default_collection: the collection of calls that name none.
        **options: options of `imap_wal.open`.

    Raises:
        InvalidSetting: not exactly one of `url` and `store` was passed.
        Others: of a call: those of `DurableMap`. An open that fails is a `StoreSetupError` of
            py-key-value, with the error of `imap_wal.open` as its cause.
    """

    @overload
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        map: str = MAP,
        default_collection: str | None = None,
        **options: Unpack[OpenOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        store: Store | AsyncStore,
        map: str = MAP,
        default_collection: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        store: Store | AsyncStore | None = None,
        map: str = MAP,
        default_collection: str | None = None,
        **options: Any,
    ) -> None:
        if (url is None) == (store is None) or (options and url is None):
            raise InvalidSetting(
                "ImapWalStore takes a folder or URL with options of imap_wal.open, or an open "
                "store, ImapWalStore(store=...), without options"
            )
        self._url, self._options, self._name = url, cast("OpenOptions", options), map
        self._store = store
        self._map: AnyMap | None = None
        super().__init__(
            default_collection=default_collection,
            client_provided_by_user=store is not None,
            stable_api=True,
        )

    async def _setup(self) -> None:
        if self._url is not None:
            open_store = partial(opening.open, self._url, **self._options)
            self._store = await asyncio.to_thread(open_store)
            self._exit_stack.push_async_callback(asyncio.to_thread, self._store.close)
        assert self._store is not None
        self._map = await asyncio.to_thread(self._store.map, self._name)

    async def _get_managed_entry(self, *, collection: str, key: str) -> ManagedEntry | None:
        return (await self._get_managed_entries(collection=collection, keys=[key]))[0]

    async def _get_managed_entries(
        self, *, collection: str, keys: Sequence[str]
    ) -> list[ManagedEntry | None]:
        texts = await self._call(lambda entries: [entries.get((collection, key)) for key in keys])
        load = self._serialization_adapter.load_json
        return [None if text is None else load(json_str=text) for text in texts]

    async def _put_managed_entry(
        self, *, collection: str, key: str, managed_entry: ManagedEntry
    ) -> None:
        await self._put({(collection, key): managed_entry}, managed_entry.ttl)

    async def _put_managed_entries(
        self,
        *,
        collection: str,
        keys: Sequence[str],
        managed_entries: Sequence[ManagedEntry],
        ttl: float | None,
        created_at: datetime,
        expires_at: datetime | None,
    ) -> None:
        named = zip(keys, managed_entries, strict=True)
        await self._put({(collection, key): entry for key, entry in named}, ttl)

    async def _put(self, entries: dict[tuple[str, str], ManagedEntry], ttl: float | None) -> None:
        dump = self._serialization_adapter.dump_json
        texts = {key: dump(entry=entry) for key, entry in entries.items()}
        if ttl is not None:
            ttl = min(max(ttl, TTL_S_MIN), TTL_S_MAX)
        await self._call(lambda entries: entries.update(texts, ttl=ttl))

    async def _delete_managed_entry(self, *, collection: str, key: str) -> bool:
        return await self._delete([(collection, key)]) > 0

    async def _delete_managed_entries(self, *, collection: str, keys: Sequence[str]) -> int:
        return await self._delete([(collection, key) for key in keys])

    async def _delete(self, keys: Sequence[tuple[str, str]]) -> int:
        """How many of the keys existed. All are deleted in one commit."""

        def delete(transaction: Any) -> int:
            entries = transaction[self._map]
            return sum(entries.pop(key, None) is not None for key in keys)

        store = self._store
        assert store is not None
        if isinstance(store, AsyncStore):
            return await store.transaction(delete)()
        return await asyncio.to_thread(store.transaction(delete))

    async def _get_collection_keys(self, *, collection: str, limit: int | None = None) -> list[str]:
        return [key for _, key in await self._keys_of(collection, limit)]

    async def _keys_of(self, collection: str, limit: int | None = None) -> list[tuple[str, str]]:
        prefix = (collection,)
        keys = await self._call(lambda entries: list(islice(entries.keys(prefix=prefix), limit)))
        return cast("list[tuple[str, str]]", keys)

    async def _get_collection_names(self, *, limit: int | None = None) -> list[str]:
        names = dict.fromkeys(collection for collection, _ in await self._call(list))
        return list(islice(names, limit))

    async def _delete_collection(self, *, collection: str) -> bool:
        return await self._delete(await self._keys_of(collection)) > 0

    async def _delete_store(self) -> bool:
        await self._call(lambda entries: entries.clear())
        return True

    async def _call(self, method: Any) -> Any:
        assert self._map is not None
        return await call(self._map, method)
