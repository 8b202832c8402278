"""Changes that depend on the present value, and changes of several maps in one commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal import DELETE
from imap_wal.embedded.asyncio_store import AsyncStore
from imap_wal.errors import Closed, ImapWalError, InvalidSetting, NotSerializable, TooLarge
from imap_wal.write import ring
from storage_backends import SegmentStore
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.gated import GatedStore
from storage_backends.memory import MemoryStore
from tests.kit.effort import share, step
from tests.support import FakeClock, Threads, contents, copy_files, embedded

MAPS = ("left", "right")
numbers = count()
"""Of storages in memory."""


class Slow(GatedStore):
    """Each operation on a segment takes 10 ms."""

    def there(self, path: str = "") -> SegmentStore:
        if "/wal/" in path:
            time.sleep(0.01)
        return self.inner


# ---- one key ----


def test_add_counts_from_nothing(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        hits = store.map("m")
        assert (hits.add("home"), hits.add("home", 2), hits.add("home", -0.5)) == (1, 3, 2.5)
        assert hits.add("share", 0.25) == 0.25
    assert contents(memory) == {"home": 2.5, "share": 0.25}


@pytest.mark.parametrize("amount", ["1", True, None, [1]], ids=str)
def test_add_takes_numbers(memory: MemoryStore, amount: Any) -> None:
    with embedded(memory) as store:
        with pytest.raises(TypeError, match="it takes a number"):
            store.map("m").add("home", amount)
        assert len(store.map("m")) == 0


def test_add_to_what_is_no_number_changes_nothing(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m["home"] = "seven"
        with pytest.raises(TypeError, match=r"m\['home'\] is of type str, which is not a number"):
            m.add("home")
        with pytest.raises(NotSerializable, match="map 'm', key"):
            m.add(["a list"])
        m["large"] = 2**63 - 1
        with pytest.raises(NotSerializable):
            m.add("large", 2**64)
        assert dict(m.items()) == {"home": "seven", "large": 2**63 - 1}


def test_add_and_change_keep_the_expiry(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        m.put("a", 1, ttl=10)
        m.put("b", 1, ttl=10)
        clock.advance(4)
        m.add("a")
        m.change("b", lambda value: value + 1)
        assert (m.ttl("a"), m.ttl("b")) == (6, 6)
        m.change("b", lambda value: value + 1, ttl=60)
        assert m.ttl("b") == 60
        clock.advance(7)
        assert (m.get("a"), m.add("a")) == (None, 1)
        assert m.ttl("a") is None


def test_add_new_sets_only_a_new_key(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        assert m.add_new("a", 1, ttl=5) and not m.add_new("a", 2)
        assert (m["a"], m.ttl("a")) == (1, 5)
        clock.advance(6)
        assert m.add_new("a", 3)
    assert contents(memory) == {"a": 3}


def test_replace_compares_values(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m["a"] = {"x": 1, "y": 2}
        assert not m.replace("a", {"x": 1}, 2) and not m.replace("b", None, 2)
        assert m.replace("a", {"y": 2, "x": 1}, 2, ttl=9)
        assert (m["a"], m.ttl("a")) == (2, pytest.approx(9, abs=1))
    assert contents(memory) == {"a": 2}


def test_change_reads_and_writes_one_value(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        assert m.change("a", lambda value: [value]) == [None]
        assert m.change("a", lambda value: [*value, 1]) == [None, 1]
        assert m.change("a", lambda _: DELETE) is None and m.change("b", lambda _: DELETE) is None
        with pytest.raises(ZeroDivisionError):
            m.change("c", lambda _: 1 // 0)
        assert dict(m.items()) == {}
    assert contents(memory) == {}


def test_change_is_repeated_if_the_value_changed(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        seen: list[int] = []

        def function(value: int) -> int:
            seen.append(value)
            if len(seen) < 3:
                m["a"] = value + 10
            return value + 1

        m["a"] = 0
        assert m.change("a", function) == 21
        assert seen == [0, 10, 20]


def test_touch_changes_the_expiry_alone(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        m.put("a", "value", ttl=5)
        assert m.touch("a", 60) and m.ttl("a") == 60
        assert m.touch("a", None) and m.ttl("a") is None
        assert not m.touch("b", 5) and not m.touch(["no key"], 5)
        with pytest.raises(InvalidSetting, match="ttl is 0"):
            m.touch("a", 0)
    assert contents(memory) == {"a": "value"}


def test_threads_lose_no_change(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m["other"] = 0

        def work() -> None:
            for _ in range(100):
                m.add("sum")
                m.change("changed", lambda value: (value or 0) + 1)
                while not m.replace("other", (now := m["other"]), now + 1):
                    pass

        Threads(*[work] * 6).join()
        assert dict(m.items()) == {"sum": 600, "changed": 600, "other": 600}
    assert contents(memory) == {"sum": 600, "changed": 600, "other": 600}


def test_threads_that_add_share_syncs(memory: MemoryStore) -> None:
    """The storage is slow, so the others collect meanwhile."""
    with embedded(Slow(memory)) as store:
        m = store.map("m")
        before = store.statistics.commits.commits
        Threads(*[lambda: [m.add("sum") for _ in range(20)]] * 8).join()
        assert m["sum"] == 160
        assert store.statistics.commits.commits - before <= 80


def test_tasks_share_commits(memory: MemoryStore) -> None:
    async def program() -> None:
        store = AsyncStore(embedded(memory))
        hits = store.map("m")
        sums = await asyncio.gather(*(hits.add("home") for _ in range(256)))
        assert sorted(sums) == list(range(1, 257))
        assert store.statistics.commits.commits <= 3
        assert await hits.add_new("a", 1) and not await hits.add_new("a", 2)
        assert await hits.replace("a", 1, 2) and not await hits.replace("a", 1, 3)
        await asyncio.gather(*(hits.change("b", lambda n: (n or 0) + 1) for _ in range(20)))
        assert await hits.change("a", lambda _: DELETE) is None
        assert await hits.touch("b", 60) and not await hits.touch("a", 60)
        with pytest.raises(TypeError):
            await hits.add("home", "1")
        await store.close()
        with pytest.raises(Closed):
            await hits.add("home")

    asyncio.run(program())
    assert contents(memory) == {"home": 256, "b": 20}


# ---- several maps ----


def test_a_batch_is_one_commit(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        waiting, running = store.map("waiting"), store.map("running")
        waiting["job"] = 1
        before = store.statistics.commits.commits
        with store.batch() as batch:
            batch.put(running, "job", 1, ttl=60)
            batch.delete(waiting, "job")
            batch.delete(waiting, ["no key"])
            batch.put(waiting, "next", 2)
            assert dict(waiting.items()) == {"job": 1}
        assert store.statistics.commits.commits == before + 1
        assert dict(waiting.items()) == {"next": 2}
        assert running.ttl("job") == pytest.approx(60, abs=1)
        with store.batch():
            pass
        assert store.statistics.commits.commits == before + 1


def test_a_batch_whose_block_fails_changes_nothing(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded(memory) as store, embedded(MemoryStore("other")) as other:
        m = store.map("m")
        with pytest.raises(ZeroDivisionError), store.batch() as batch:
            batch.put(m, "a", 1)
            batch.put(m, "b", 1 // 0)
        with pytest.raises(InvalidSetting, match="map 'x' is of another store"), store.batch() as b:
            b.put(m, "a", 1)
            b.put(other.map("x"), "a", 1)
        unlogged = store.map("unlogged", disable_wal=True)
        with pytest.raises(InvalidSetting, match="disable_wal"), store.batch() as b:
            b.put(unlogged, "a", 1)
        monkeypatch.setattr(ring, "COUNT_MAX", 3)
        with pytest.raises(TooLarge), store.batch() as b:
            for number in range(4):
                b.put(m, number, None)
        assert (dict(m.items()), dict(unlogged.items())) == ({}, {})


def test_a_change_after_the_end_is_refused_not_lost(memory: MemoryStore) -> None:
    """Of a batch and of a transaction, also after an error, by threads and by tasks."""
    ended: list[Any] = []

    def transfer(transaction: imap_wal.Transaction) -> None:
        ended.extend((transaction, transaction[store.map("left")]))

    with embedded(memory) as store:
        m = store.map("left")
        with store.batch() as batch:
            batch.put(m, "a", 1)
        with suppress(ZeroDivisionError), store.batch() as failed:
            raise ZeroDivisionError
        store.transaction(transfer)()
        late: list[Callable[[], object]] = [
            lambda: batch.put(m, "b", 1),
            lambda: batch.delete(m, "a"),
            lambda: failed.put(m, "b", 1),
            lambda: ended[0][m],
            lambda: ended[1].update(b=1),
            lambda: ended[1].pop("a"),
            lambda: ended[1]["a"],
        ]
        for call in late:
            with pytest.raises(Closed, match="has ended with its"):
                call()
        assert dict(m) == {"a": 1}
    assert contents(memory, "left") == {"a": 1}


def test_a_transaction_takes_no_coroutine_function(memory: MemoryStore) -> None:
    """Its body would run after the commit, and its changes would be lost."""

    async def coroutine(transaction: imap_wal.Transaction) -> None: ...

    def generator(transaction: imap_wal.Transaction) -> Iterator[None]:
        yield

    async def run() -> None:
        async with AsyncStore(embedded(memory)) as store:
            with pytest.raises(TypeError, match="a transaction takes a plain function"):
                store.transaction(coroutine)

    with embedded(memory) as store:
        for function in (coroutine, generator):
            with pytest.raises(TypeError, match="a transaction takes a plain function"):
                store.transaction(function)
    asyncio.run(run())


def test_a_transaction_sees_its_own_changes(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m, log = store.map("m"), store.map("log")
        m.update({"ann": 10, "bob": 0})

        @store.transaction
        def transfer(transaction: imap_wal.Transaction, amount: int, *, note: str) -> int:
            balances = transaction[m]
            if balances["ann"] < amount:
                raise ValueError("too little")
            balances["ann"] -= amount
            balances["bob"] += amount
            transaction[log].put(note, amount, ttl=60)
            del balances["ann"]
            assert "ann" not in balances and balances.get("ann") is None
            balances["ann"] = 10 - amount
            assert m["ann"] == 10
            return int(balances["bob"])

        assert transfer(3, note="first") == 3
        assert dict(m.items()) == {"ann": 7, "bob": 3}
        assert log.ttl("first") == pytest.approx(60, abs=1)
        with pytest.raises(ValueError, match="too little"):
            transfer(8, note="second")
        assert "second" not in log

        @store.transaction
        def length(transaction: imap_wal.Transaction) -> int:
            return len(list(transaction[m]))

        with pytest.raises(TypeError, match="has no iteration in a transaction"):
            length()
    assert contents(memory) == {"ann": 7, "bob": 3}


def test_a_transaction_runs_again_after_a_conflict(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        runs: list[Any] = []

        @store.transaction
        def move(transaction: imap_wal.Transaction) -> None:
            value = transaction[m].get("a")
            runs.append(value)
            if len(runs) == 1:
                m["a"] = 1  # what the transaction found absent
            transaction[m]["b"] = value

        move()
        assert runs == [None, 1]
        assert dict(m.items()) == {"a": 1, "b": 1}


def test_transfers_of_threads_and_tasks_keep_the_sum(memory: MemoryStore) -> None:
    def transfer(transaction: imap_wal.Transaction, m: Any, amount: int) -> None:
        balances = transaction[m]
        balances["ann"] -= amount
        balances["bob"] += amount

    with embedded(memory) as store:
        m = store.map("m")
        m.update({"ann": 0, "bob": 0})
        move = store.transaction(transfer)
        Threads(*[lambda: [move(m, 1) for _ in range(50)]] * 4).join()
        assert dict(m.items()) == {"ann": -200, "bob": 200}

    async def program() -> None:
        store = AsyncStore(embedded(memory))
        m = store.map("m")
        move = store.transaction(transfer)
        await asyncio.gather(*(move(m, 1) for _ in range(20)))
        async with store.batch() as batch:
            batch.put(m, "done", True)
        await store.close()

    asyncio.run(program())
    assert contents(memory) == {"ann": -220, "bob": 220, "done": True}


# ---- crashes ----

CHANGES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(MAPS), st.sampled_from("abc"), st.sampled_from([None, 1, 2])),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=share(30, least=6))
@given(history=CHANGES, transactions=st.booleans())
def test_after_a_kill_each_batch_is_whole_or_absent(
    history: list[list[tuple[str, str, Any]]], transactions: bool
) -> None:
    """At any operation of the storage. What is there is what the dicts had after the last
    acknowledged batch, or after the next one."""

    def run(store: imap_wal.Store) -> list[dict[str, dict[str, Any]]]:
        maps = {name: store.map(name) for name in MAPS}
        states: list[dict[str, dict[str, Any]]] = [{name: {} for name in MAPS}]

        def change(put: Callable[..., None], delete: Callable[..., None]) -> None:
            for name, key, value in changes:
                if value is None:
                    delete(maps[name], key)
                else:
                    put(maps[name], key, value)

        def in_transaction(transaction: imap_wal.Transaction) -> None:
            change(
                lambda m, key, value: transaction[m].__setitem__(key, value),
                lambda m, key: transaction[m].pop(key, None),
            )

        for changes in history:
            after = {name: dict(entries) for name, entries in states[-1].items()}
            for name, key, value in changes:
                after[name].pop(key, None)
                if value is not None:
                    after[name][key] = value
            acknowledged.append(states[-1])
            following.append(after)
            if transactions:
                store.transaction(in_transaction)()
            else:
                with store.batch() as batch:
                    change(batch.put, batch.delete)
            states.append(after)
            acknowledged.append(after)
            following.append(after)
        return states

    acknowledged: list[dict[str, dict[str, Any]]] = []
    following: list[dict[str, dict[str, Any]]] = []
    whole = FaultyStore(MemoryStore(f"whole-{next(numbers)}"))
    with embedded(whole) as store:
        run(store)
    for at in range(1, whole.count + 1, min(step(), 5)):
        inner = MemoryStore(f"killed-{next(numbers)}")
        acknowledged[:], following[:] = [], []
        with (
            suppress(ImapWalError, Killed),
            embedded(FaultyStore(inner, Plan((Fault("kill", at=at),)))) as s,
        ):
            run(s)
        with embedded(copy_files(inner), takeover=True) as again:
            present = {name: dict(again.map(name).items()) for name in MAPS}
        if acknowledged:
            assert present in (acknowledged[-1], following[-1]), f"killed at {at}"
        else:
            assert present == {name: {} for name in MAPS}, f"killed at {at}"
