"""The store of py-key-value. The library takes long to import, so only these tests import it, and
no collection of tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import imap_wal
from imap_wal import InvalidSetting
from tests.kit.effort import every
from tests.support import FakeClock

KINDS = ["url", "open", "aopen", "connect"]


@every(3)
@pytest.mark.parametrize("kind", KINDS)
def test_store_keeps_the_promises_of_py_key_value(tmp_path: Path, kind: str) -> None:
    from tests.adapters.key_value_promises import SCENARIOS, opened

    async def main() -> None:
        async with opened(kind, tmp_path / "log") as store:
            for scenario in SCENARIOS:
                await scenario(store)
                await store.destroy()

    asyncio.run(main())


def test_entries_survive_a_restart_in_any_kind(tmp_path: Path) -> None:
    from tests.adapters.key_value_promises import opened

    async def main() -> None:
        log = tmp_path / "log"
        for number, kind in enumerate(KINDS):
            async with opened(kind, log) as store:
                for before in KINDS[:number]:
                    assert await store.get(before) == {"kind": before}
                await store.put(kind, {"kind": kind}, ttl=1000 if number else None)

    asyncio.run(main())


def test_an_entry_expires_by_the_clock_of_the_log() -> None:
    from imap_wal.adapters.key_value import ImapWalStore

    clock = FakeClock()

    async def main() -> None:
        async with ImapWalStore("memory://", clock=clock) as store:
            await store.put("k", {}, ttl=60)
            clock.advance(61)
            assert await store.keys() == []

    asyncio.run(main())


def test_an_open_that_fails_names_its_cause(tmp_path: Path) -> None:
    from key_value.aio.errors import StoreSetupError

    from imap_wal.adapters.key_value import ImapWalStore

    async def main() -> None:
        with imap_wal.open(tmp_path):
            store = ImapWalStore(tmp_path)
            with pytest.raises(StoreSetupError) as refused:
                await store.get("k")
            assert isinstance(refused.value.__cause__, imap_wal.WriterLocked)
        await store.put("k", {"now": 1})  # the next call opens it
        await store.close()

    asyncio.run(main())
    with imap_wal.open(tmp_path) as store:
        assert list(store.map("key_value")) == [("default_collection", "k")]


def test_a_store_that_was_passed_stays_open() -> None:
    from imap_wal.adapters.key_value import ImapWalStore

    async def main() -> None:
        with imap_wal.open("memory://") as store:
            async with ImapWalStore(store=store, map="mcp", default_collection="mine") as adapter:
                await adapter.put("k", {})
            assert list(store.map("mcp")) == [("mine", "k")]

    asyncio.run(main())


def test_neither_or_both_places_are_refused() -> None:
    from imap_wal.adapters.key_value import ImapWalStore

    for arguments in ({}, {"url": "x", "store": object()}, {"store": object(), "node": "n"}):
        with pytest.raises(InvalidSetting, match="or an open store"):
            ImapWalStore(**arguments)  # type: ignore[call-overload]
