"""asyncio: thousands of operations in flight, few commits, and each task has its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import Closed, NotAppended, NotSerializable, OutcomeUnknown, TooLarge
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.tasks import aopen, run
from tests.support import contents


def test_two_thousand_concurrent_operations_are_all_kept(url: str) -> None:
    """They share commits."""

    async def work() -> None:
        async with imap_wal.aopen(url, node="n") as store:
            orders = store.map("orders")

            async def one(number: int) -> None:
                await orders.set(number, {"n": number})
                assert orders[number] == {"n": number}, "readable when it is acknowledged"

            await asyncio.gather(*[one(number) for number in range(2000)])
            commits = store.statistics.commits
            assert commits.records == 2000
            assert commits.commits <= 20
            await asyncio.gather(*[orders.delete(number) for number in range(0, 2000, 2)])
            assert len(orders) == 1000
        with imap_wal.open(url, node="n") as again:
            assert dict(again.map("orders").items()) == {
                number: {"n": number} for number in range(1, 2000, 2)
            }

    run(work)


def test_an_asyncio_map_reads_like_the_synchronous_one(memory: MemoryStore) -> None:
    async def work() -> None:
        async with await aopen(memory) as store:
            m = store.map("m")
            await m.update({"a": 1, "b": 2})
            await m.update([("c", 3)])
            await m.update({})
            await m.set("d", 4, ttl=1000)
            await m.delete("absent")
            await store.sync()
            assert dict(m.items()) == {"a": 1, "b": 2, "c": 3, "d": 4}
            assert sorted(m.keys()) == ["a", "b", "c", "d"]
            assert sorted(m.values()) == [1, 2, 3, 4]
            assert ("a" in m, "x" in m, m.get("x", 0), len(m), m.name, store.maps()) == (
                True,
                False,
                0,
                4,
                "m",
                ["m"],
            )
            assert await store.archive() == 5
        assert contents(memory) == {"a": 1, "b": 2, "c": 3, "d": 4}

    run(work)


def test_a_change_that_cannot_be_written_fails_alone(memory: MemoryStore) -> None:
    async def work() -> None:
        async with await aopen(memory, max_value_bytes=100) as store:
            m = store.map("m")
            good = [m.set(number, "x") for number in range(10)]
            with pytest.raises(TooLarge):
                m.set("big", "x" * 200)
            with pytest.raises(NotSerializable):
                m.set("k", object())
            with pytest.raises(NotSerializable):
                m.update({"a": 1, "b": object()})
            good.append(m.set("last", 1))
            await asyncio.gather(*good)
            assert len(m) == 11
        assert len(contents(memory)) == 11

    run(work)


def test_cancelled_task_does_not_disturb_its_commit(
    memory: MemoryStore,
) -> None:
    """The other tasks of the commit succeed."""

    async def work() -> None:
        async with await aopen(memory) as store:
            m = store.map("m")

            async def put(number: int) -> int:
                await m.set(number, number)
                return number

            tasks = [asyncio.create_task(put(number)) for number in range(100)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(each, asyncio.CancelledError) for each in done[::2]] == [True] * 50
            assert done[1::2] == list(range(1, 100, 2))
            await m.set("after", 1)
            kept = dict(m.items())
            assert {*range(1, 100, 2), "after"} <= set(kept)
        assert contents(memory) == kept

    run(work)


def test_failed_commit_is_reported_to_all_its_tasks(memory: MemoryStore) -> None:
    """Later operations fail too."""

    async def work() -> None:
        faulty = FaultyStore(memory, Plan((Fault("error", at=3, kind="sync", path="*/wal/*"),)))
        store = await aopen(faulty)
        m = store.map("m")
        await m.set("acked", 1)
        failed = await asyncio.gather(
            *[m.set(number, 1) for number in range(50)], return_exceptions=True
        )
        assert {type(each) for each in failed} == {OutcomeUnknown}
        with pytest.raises(NotAppended):
            await m.set("later", 1)
        assert dict(m.items()) == {"acked": 1}
        await store.close()
        assert contents(memory)["acked"] == 1

    run(work)


def test_close_waits_for_operations_in_flight(
    memory: MemoryStore,
) -> None:
    """Later operations are refused."""

    async def work() -> None:
        store = await aopen(memory)
        m = store.map("m")
        futures = [m.set(number, number) for number in range(500)]
        await store.close()
        assert all(future.done() and future.exception() is None for future in futures)
        with pytest.raises(Closed):
            await m.set("late", 1)
        await store.close()
        assert contents(memory) == {number: number for number in range(500)}

    run(work)


def test_large_operations_are_never_split_inside_one(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations that are larger than a commit are divided between operations, never inside one."""
    monkeypatch.setattr("imap_wal.embedded.async_writer.COMMIT_BYTES_MAX", 1000)

    async def work() -> None:
        async with await aopen(memory, commit_bytes_max=1) as store:
            m = store.map("m")
            await asyncio.gather(
                *[
                    m.update({f"{number}.{part}": "x" * 100 for part in range(4)})
                    for number in range(20)
                ],
                m.update({f"huge.{part}": "x" * 100 for part in range(50)}),
            )
            assert store.statistics.commits.commits >= 11
        from imap_wal.segment.reader import SegmentReader
        from tests.support import segments

        counts = [
            frame.count
            for path in segments(memory)
            for frame in SegmentReader(memory, path).whole_frames()
            if frame.kind == 1
        ]
        assert sum(counts) == 130
        assert all(count % 4 == 0 or count == 50 for count in counts)

    run(work)


def test_threads_and_tasks_may_write_one_store(memory: MemoryStore) -> None:
    async def work() -> None:
        async with await aopen(memory) as store:
            m = store.map("m")
            plain = store._store.map("m")

            def write(thread: int) -> None:
                for number in range(50):
                    plain[f"t{thread}.{number}"] = number

            loop = asyncio.get_running_loop()
            threads = [loop.run_in_executor(None, write, thread) for thread in range(3)]
            await asyncio.gather(*threads, *[m.set(f"a{number}", number) for number in range(300)])
            assert len(m) == 450
        assert len(contents(memory)) == 450

    run(work)


def test_reads_of_a_closed_asyncio_store_are_refused(memory: MemoryStore) -> None:
    async def work() -> None:
        store = await aopen(memory)
        m = store.map("m")
        await m.set("a", 1)
        await store.close()
        reads: list[Callable[[], Any]] = [
            lambda: m["a"],
            lambda: m.get("a"),
            lambda: "a" in m,
            lambda: len(m),
            lambda: list(m),
            lambda: dict(m),
        ]
        reads += [
            lambda: list(m.items()),
            lambda: list(m.values()),
            lambda: list(m.keys()),
            lambda: m.ttl("a"),
            lambda: m.update({}),
        ]
        for read in reads:
            with pytest.raises(Closed):
                read()

    run(work)


def test_asyncio_iterations_show_one_moment_while_entries_expire(memory: MemoryStore) -> None:
    """A copy of the map has all entries that expire together, or none."""

    async def work() -> None:
        async with await aopen(memory, durability="os") as store:
            m = store.map("m")
            for number in range(60):
                await m.update(dict.fromkeys(range(40), number), ttl=0.02 if number % 2 else None)
                for walk in (dict, lambda shown: dict(shown.items()), lambda shown: {**shown}):
                    copied = walk(m)
                    assert set(copied.values()) <= {number}
                    assert len(copied) in (0, 40)

    run(work)


def test_changes_can_be_passed_to_the_functions_of_asyncio(memory: MemoryStore) -> None:
    async def work() -> None:
        async with await aopen(memory) as store:
            m = store.map("m")
            await asyncio.create_task(m.put("task", 1))
            await asyncio.ensure_future(m.set("future", 1))
            for name, change in (("set", m.set), ("put", m.put)):
                await asyncio.gather(change(f"gather {name}", 1), change(f"both {name}", 1))
                await asyncio.wait_for(change(f"wait_for {name}", 1), 30)
                await asyncio.shield(change(f"shield {name}", 1))
            done, pending = await asyncio.wait(
                [m.set("wait", 1), asyncio.create_task(m.put("wait task", 1))]
            )
            assert len(done) == 2
            assert not pending
            async with asyncio.TaskGroup() as group:
                group.create_task(m.put("group", 1, ttl=1000))
                popped = group.create_task(m.pop("task"))
                default = group.create_task(m.setdefault("default", 2))
            assert (popped.result(), default.result()) == (1, 2)
            await asyncio.create_task(m.clear())
            assert dict(m) == {}
        assert contents(memory) == {}

    run(work)


def test_docstrings_explain_tasks_for_changes() -> None:
    """The docstrings explain how to make a task of a change."""
    assert "create_task" in (imap_wal.AsyncMap.set.__doc__ or "")
    assert "ensure_future" in (imap_wal.embedded.asyncio_map.AsyncChanges.__doc__ or "")


def test_an_asyncio_map_has_the_changes_of_a_map() -> None:
    names = {"put", "pop", "popitem", "setdefault", "update", "clear"}
    assert names <= vars(imap_wal.DurableMap).keys() & set(dir(imap_wal.AsyncMap))
