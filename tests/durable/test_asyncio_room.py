"""asyncio: operations wait for room, and decisions see the changes before them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from imap_wal.errors import Closed, NotAppended, NotSerializable, OutcomeUnknown
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.gate import Gate
from tests.kit.tasks import aopen, run
from tests.support import contents


def test_operations_wait_unserialised_for_ring_space(
    memory: MemoryStore,
) -> None:
    """When the ring is full, operations wait for room, and are serialised only after that."""

    async def work() -> None:
        gate = Gate(memory)
        async with await aopen(gate, ring_bytes=10_000, ring_slots=64) as store:
            m = store.map("m")
            await m.set("first", 1)
            gate.open.clear()
            values = [["x" * 1000, number] for number in range(200)]
            tasks = [
                asyncio.ensure_future(m.set(number, value)) for number, value in enumerate(values)
            ]
            tasks.append(m.delete("first"))
            tasks.append(m.update({"a": 1, "b": 2}, ttl=1000))
            tasks.append(m.set(0, "last"))
            await asyncio.sleep(0.01)
            queued = store._commits._bytes + store._commits._bytes_max - store._commits._room
            assert queued <= 10_000 + 1_010, (
                "what is queued is bounded by ring_bytes and one operation"
            )
            assert sum(map(len, store._commits._waiting)) <= 64
            with pytest.raises(NotSerializable):
                await asyncio.gather(
                    late := m.set("bad", object()),
                    asyncio.get_running_loop().run_in_executor(None, gate.open.set),
                )
            assert late.done()
            await asyncio.gather(*tasks)
            assert "first" not in m
            assert m[0] == "last", "in the order in which they were called"
            assert len(m) == 202
            assert 0 < (m.ttl("a") or 0) <= 1000
            assert store._commits._bytes == 0
            assert store._commits._room == 10_000
        assert contents(memory)[0] == "last"

    run(work)


def test_operations_above_the_ring_slots_wait(
    memory: MemoryStore,
) -> None:
    """As many operations are queued as the ring has slots, and the others wait."""

    async def work() -> None:
        gate = Gate(memory)
        async with await aopen(gate, ring_slots=8) as store:
            m = store.map("m")
            await m.set("first", 1)
            gate.open.clear()
            tasks = [m.set(number, number) for number in range(100)]
            assert len(store._commits._futures) == 8
            tasks[50].cancel()
            gate.open.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert dict(m) == {
                "first": 1,
                **{number: number for number in range(100) if number != 50},
            }, "a cancelled one that waited is not logged"

    run(work)


def test_closing_ends_operations_that_wait_for_room(memory: MemoryStore) -> None:
    async def work() -> None:
        store = await aopen(memory, ring_bytes=1000)
        m = store.map("m")
        futures = [m.set(number, "x" * 100) for number in range(300)]
        await store.close()
        assert all(future.done() and future.exception() is None for future in futures)
        assert len(contents(memory)) == 300

    run(work)


@pytest.mark.parametrize(
    "options", [{}, {"durability": "async"}, {"manual_wal_flush": True}, {"ring_slots": 2}], ids=str
)
@pytest.mark.parametrize("logged", [True, False])
def test_only_one_of_many_tasks_and_threads_pops_a_key(
    memory: MemoryStore, options: dict[str, Any], logged: bool
) -> None:
    async def work() -> None:
        async with await aopen(memory, **options) as store:
            m = store.map("m", disable_wal=not logged)
            plain = store._store.map("m", disable_wal=not logged)
            put: list[Any] = []
            got: list[Any] = []

            async def change(task: int) -> None:
                for number in range(20):
                    if task < 2:
                        put.append([task, number])
                        await m.set("k", [task, number])
                    in_thread = asyncio.get_running_loop().run_in_executor(
                        None, plain.pop, "k", None
                    )
                    got.extend(
                        tuple(popped)
                        for popped in (await m.pop("k", None), await in_thread)
                        if popped is not None
                    )
                    try:
                        got.append(tuple((await m.popitem())[1]))
                    except KeyError:
                        pass

            await asyncio.gather(*[change(task) for task in range(6)])
            assert len(got) == len(set(got)), "one value was given to two"
            assert {*got} <= {tuple(each) for each in put}
            left = dict(m)
        if logged:
            assert contents(memory) == left

    run(work)


def test_decisions_see_earlier_changes_and_share_their_commit(memory: MemoryStore) -> None:
    async def work() -> None:
        gate = Gate(memory)
        async with await aopen(gate) as store:
            m, other = store.map("m"), store.map("other")
            await m.update({"old": 1, "older": 0})
            commits = store.statistics.commits.commits
            gate.open.clear()
            blocker = m.set("blocker", 1)
            await asyncio.sleep(0)
            waiting = asyncio.gather(
                m.set("new", 2),
                m.pop("new"),
                m.pop("new", "none"),
                m.setdefault("new", 3),
                m.setdefault("new", 4),
                other.setdefault("new", 5),
                m.put("old", 6),
                m.popitem(),
                m.popitem(),
                m.popitem(),
                m.pop("older"),
                m.delete("x"),
                return_exceptions=True,
            )
            await asyncio.sleep(0)
            gate.open.set()
            answers = await waiting
            await blocker
            assert answers[:7] == [None, 2, "none", 3, 3, 5, None]
            assert answers[7:10] == [("new", 3), ("blocker", 1), ("older", 0)]
            assert isinstance(answers[10], KeyError)
            assert dict(m) == {"old": 6}
            assert store.statistics.commits.commits <= commits + 2
        assert contents(memory, "m") == {"old": 6}

    run(work)


def test_unlogged_decision_fails_and_changes_nothing(memory: MemoryStore) -> None:
    """`pop`, `popitem`, `setdefault` and `clear`, whose changes cannot be logged."""

    async def work() -> None:
        faulty = FaultyStore(
            memory, Plan((Fault("error", at=3, kind="append", path="*/wal/*", times=0),))
        )
        store = await aopen(faulty)
        m = store.map("m")
        await m.set("k", 1)
        for change in (lambda: m.pop("k"), m.popitem, lambda: m.setdefault("new", 1), m.clear):
            with pytest.raises((NotAppended, OutcomeUnknown)):
                await change()
        assert dict(m) == {"k": 1}
        await store.close()
        with pytest.raises(Closed):
            await m.pop("k")

    run(work)
