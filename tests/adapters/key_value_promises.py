"""The promises that the suite of py-key-value itself checks, for each kind of store. Its sdist has
no tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from key_value.aio.errors import InvalidTTLError, SerializationError
from key_value.aio.protocols.key_value import (
    AsyncDestroyCollectionProtocol,
    AsyncDestroyStoreProtocol,
    AsyncEnumerateCollectionsProtocol,
    AsyncEnumerateKeysProtocol,
    AsyncKeyValue,
)

import imap_wal
from imap_wal.adapters.key_value import ImapWalStore


@asynccontextmanager
async def opened(kind: str, log: Path) -> AsyncIterator[ImapWalStore]:
    async with AsyncExitStack() as stack:
        if kind == "url":
            store = ImapWalStore(log)
        elif kind == "aopen":
            store = ImapWalStore(store=await stack.enter_async_context(imap_wal.aopen(log)))
        elif kind == "open":
            store = ImapWalStore(store=stack.enter_context(imap_wal.open(log)))
        else:
            socket = log.with_suffix(".socket")
            connected = imap_wal.connect(log, socket=socket)
            store = ImapWalStore(store=stack.enter_context(connected))
        yield await stack.enter_async_context(store)


async def one_entry(store: ImapWalStore) -> None:
    place: dict[str, Any] = {"key": "k", "collection": "c"}
    assert await store.get(**place) is None
    assert await store.ttl(**place) == (None, None)
    assert await store.delete(**place) is False
    for value in ({"test": "one"}, {"test": "two"}, {}):
        await store.put(value=value, **place)
        assert await store.get(**place) == value
    assert await store.ttl(**place) == ({}, None)
    assert await store.delete(**place) is True
    assert await store.delete(**place) is False
    assert await store.get(**place) is None


async def many_entries(store: ImapWalStore) -> None:
    keys, values = ["a", "b", "a"], [{"n": 1}, {"n": 2}, {"n": 3}]
    await store.put_many(keys, values)
    assert await store.get_many(["b", "x", "a"]) == [{"n": 2}, None, {"n": 3}]
    assert await store.ttl_many(["b", "x"]) == [({"n": 2}, None), (None, None)]
    assert await store.delete_many(["a", "x", "b", "b"]) == 2
    assert await store.delete_many(["a", "b"]) == 0
    with pytest.raises(ValueError, match="different number"):
        await store.put_many(["a"], [])


async def values_of_json(store: ImapWalStore) -> None:
    value = {
        "text": "a" * 10_000, "int": 10**18, "float": 1e63, "list": [1, [True, None]],
        "dict": {"nested": {}}, "more": 2**80,
    }  # fmt: skip
    await store.put("k", value)
    assert await store.get("k") == value
    await store.put("k", {"tuple": (1, 2)})
    assert await store.get("k") == json.loads('{"tuple": [1, 2]}')
    with pytest.raises(SerializationError):
        await store.put("k", {"object": object()})
    with pytest.raises((TypeError, SerializationError)):
        await store.put("k", {1: 2})
    assert await store.get("k") == {"tuple": [1, 2]}


async def times_to_live(store: ImapWalStore) -> None:
    await store.put("k", {"a": 1}, ttl=100)
    value, left = await store.ttl("k")
    assert value == {"a": 1}
    assert left is not None
    assert 90 < left <= 100
    await store.put_many(["k", "l"], [{}, {}], ttl=1e-9)
    assert await store.get_many(["k", "l"]) == [None, None]
    await store.put("century", {"a": 1}, ttl=200 * 366 * 86_400)
    assert await store.get("century") == {"a": 1}
    for wrong in (0, -1, True):
        with pytest.raises(InvalidTTLError):
            await store.put("k", {}, ttl=wrong)


async def any_names(store: ImapWalStore) -> None:
    names = ["c" * 1400, "!@#$%^&*()/\\..", "a::b", "ключ 🗝", " "]
    for collection in names:
        await store.put_many(names, [{"in": collection}] * len(names), collection=collection)
    for collection in names:
        assert sorted(await store.keys(collection)) == sorted(names)
        assert await store.get("a::b", collection=collection) == {"in": collection}
    assert sorted(await store.collections()) == sorted(names)


async def enumerate_and_destroy(store: ImapWalStore) -> None:
    for protocol in (
        AsyncKeyValue,
        AsyncEnumerateKeysProtocol,
        AsyncEnumerateCollectionsProtocol,
        AsyncDestroyCollectionProtocol,
        AsyncDestroyStoreProtocol,
    ):
        assert isinstance(store, protocol)
    for collection in ("one", "two", "three"):
        await store.put_many(["a", "b"], [{}, {}], collection=collection)
    assert len(await store.keys("one", limit=1)) == 1
    assert len(await store.collections(limit=2)) == 2
    assert await store.destroy_collection("one") is True
    assert await store.destroy_collection("one") is False
    assert await store.keys("one") == []
    assert sorted(await store.collections()) == ["three", "two"]
    assert await store.destroy() is True
    assert await store.collections() == []


async def tasks_at_the_same_time(store: ImapWalStore) -> None:
    async def work(name: str) -> None:
        for number in range(3):
            key = f"{name}-{number}"
            await store.put(key, {"n": 1})
            await store.put(key, {"n": 2})
            assert await store.get(key) == {"n": 2}
            assert await store.delete(key)
            assert await store.get(key) is None

    await asyncio.gather(*(work(str(number)) for number in range(3)))


SCENARIOS = [
    one_entry, many_entries, values_of_json, times_to_live, any_names, enumerate_and_destroy,
    tasks_at_the_same_time,
]  # fmt: skip
