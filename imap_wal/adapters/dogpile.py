"""A backend of dogpile.cache, which finds it by the name `imap_wal`.

    region = make_region().configure("imap_wal", arguments={"url": "/var/lib/app/cache"})

Arguments:

    url      a folder or URL. It is opened with `imap_wal.connect` at the first use: several
             processes share the cache
    options  options of `connect` for it, such as {"durability": "async"}
    store    an open store, of `open` or `connect`, or a function that returns it, instead of `url`:
             all regions of a process can share it, each with a map of its own
    map      the name of the map in the store; without it, `dogpile.cache`
    ttl      when a value is deleted, in seconds; without it, never. dogpile.cache itself compares
             `expiration_time` when it reads, and deletes nothing

A value is stored by the serializer of the map, so without pickle; or by the serializer of the
region, if it has one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imap_wal.embedded.durable_map import DurableMap, checked_ttl
from imap_wal.embedded.store import Store
from imap_wal.errors import InvalidSetting
from imap_wal.workers.store import connect
from storage_backends.extras import needs

with needs("dogpile"):
    from dogpile.cache.api import NO_VALUE, BackendFormatted, CacheBackend, CachedValue

MAP = "dogpile.cache"


class MapBackend(CacheBackend):
    """The cache of a region in a durable map. Thread-safe. Raises the errors of `imap_wal.connect`
    at the first use, and those of `DurableMap`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        url: Any = arguments.get("url")
        store, options = arguments.get("store"), arguments.get("options", {})
        if (url is None) == (store is None):
            raise InvalidSetting(
                "the backend imap_wal takes one of the arguments `url` and `store`, an open store "
                "of imap_wal.open or imap_wal.connect"
            )
        self._source = store if store is not None else lambda: connect(url, **options)
        self._name, self._ttl = arguments.get("map", MAP), arguments.get("ttl")
        if self._ttl is not None:
            checked_ttl(self._ttl)
        self._mutex = threading.Lock()
        self._opened: tuple[Store, DurableMap[Any, Any]] | None = None

    def _open(self) -> tuple[Store, DurableMap[Any, Any]]:
        with self._mutex:
            if self._opened is None:
                store = self._source() if callable(self._source) else self._source
                if not isinstance(store, Store):
                    raise InvalidSetting(
                        f"the argument `store` of the backend imap_wal is {store!r}; it takes a "
                        "store of imap_wal.open or imap_wal.connect"
                    )
                self._opened = store, store.map(self._name)
            return self._opened

    @property
    def store(self) -> Store:
        """The store, opened if it was not. Close it if it was opened by its `url`."""
        return self._open()[0]

    @property
    def map(self) -> DurableMap[Any, Any]:
        """The map of the values."""
        return self._open()[1]

    def get(self, key: str) -> BackendFormatted:
        value = self.map.get(key, NO_VALUE)
        return CachedValue(*value) if isinstance(value, list) else value

    def get_multi(self, keys: Iterable[str]) -> Sequence[BackendFormatted]:
        return [self.get(key) for key in keys]

    def set(self, key: str, value: CachedValue | bytes) -> None:
        self.map.put(key, _stored(value), self._ttl)

    def set_multi(self, mapping: Mapping[str, CachedValue | bytes]) -> None:
        """In one commit."""
        pairs = {key: _stored(value) for key, value in mapping.items()}
        self.map.update(pairs, ttl=self._ttl)

    def delete(self, key: str) -> None:
        self.map.pop(key, None)

    def delete_multi(self, keys: Iterable[str]) -> None:
        """In one commit."""
        with self.store.batch() as batch:
            for key in keys:
                batch.delete(self.map, key)


def _stored(value: CachedValue | bytes) -> Any:
    """Bytes of the region's serializer as they are; a list of payload and metadata otherwise."""
    return value if isinstance(value, bytes) else [value.payload, dict(value.metadata)]
