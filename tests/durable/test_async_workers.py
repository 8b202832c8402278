"""Several asyncio processes that share one store: `imap_wal.aconnect`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal.errors import Closed, InvalidSetting, NotSerializable, TooLarge, WriterLocked
from tests.kit.effort import share, thorough
from tests.kit.tasks import run
from tests.kit.worker_faults import Cutting, run_workers
from tests.kit.worker_processes import count_async


@pytest.fixture
def aconnect(tmp_path: Path) -> Callable[..., imap_wal.aconnect]:
    def connect(**options: Any) -> imap_wal.aconnect:
        options = {"preallocate": False, "socket": tmp_path / "socket", **options}
        return imap_wal.aconnect(tmp_path / "log", **options)

    return connect


Connect = Callable[..., imap_wal.aconnect]


def test_all_methods_of_an_asyncio_map_work(aconnect: Connect) -> None:
    async def work() -> None:
        async with aconnect() as first, aconnect() as second:
            assert first.is_serving and not second.is_serving
            m, same = await second.map("m"), await first.map("m")
            other = await second.map("other", key=str, value=int)
            await m.set("a", 1)
            await m.put(("a", 1), {"x": [1, None]})
            assert await same.get("a") == 1
            assert await m.snapshot() == {"a": 1, ("a", 1): {"x": [1, None]}}
            await m.delete(("a", 1))
            assert (await m.add("n"), await same.add("n", 2), await m.get("b", 7)) == (1, 3, 7)
            assert await m.contains("n") and not await m.contains(object())
            assert await m.size() == 2
            assert await m.replace("a", 1, 5) and not await m.replace("a", 1, 6)
            assert await m.add_new("z", 1) and await m.setdefault("z", 3) == 1
            assert (await m.pop("z"), await m.pop("z", None)) == (1, None)
            with pytest.raises(KeyError):
                await m.pop("z")
            assert await m.change("a", lambda value: value + 1) == 6
            assert await m.change("a", lambda value: imap_wal.DELETE) is None
            await m.update({"u": 1, "v": 2}, ttl=30)
            assert 29 < (await m.ttl("u") or 0) <= 30 and await m.ttl("n") is None
            with pytest.raises(KeyError):
                await m.ttl("a")
            assert await m.touch("u", None) and await m.ttl("u") is None
            assert await m.popitem() == ("v", 2)
            assert await m.keys(prefix="u") == ["u"] and await m.values(prefix="u") == [1]
            assert sorted(await m.items()) == [("n", 3), ("u", 1)]
            async with second.batch() as batch:
                batch.put(m, "q", 1)
                batch.put(other, "q", 2)

            @second.transaction
            def move(transaction: imap_wal.Transaction) -> int:
                transaction[m]["q"] -= 1
                transaction[other]["q"] += 1
                return transaction[other]["q"]

            assert await move() == 3 and await other.snapshot() == {"q": 3}
            await other.clear()
            assert await other.size() == 0 and await first.maps() == ["m", "other"]
            await second.sync()
            for refused in (lambda: second.queue("jobs"), m.watch, lambda: second.statistics):
                with pytest.raises(InvalidSetting):
                    refused()
            assert repr(m) == "<AsyncConnectedMap 'm'>" and "AsyncConnectedStore" in repr(second)
        with pytest.raises(Closed):
            await m.get("a")
        with pytest.raises(Closed):
            await m.set("a", 1)

    run(work)


def test_an_error_of_one_task_is_not_that_of_another(aconnect: Connect) -> None:
    """They share a request; a change that is too large for it is refused alone."""

    async def work() -> None:
        async with aconnect(ring_bytes=2**20) as store:
            m = await store.map("m")
            await m.put("text", "x")

            async def large() -> None:  # `update` itself begins before the tasks do
                await m.update({str(number): "x" * 10_000 for number in range(200)})

            results = await asyncio.gather(
                m.add("n"),
                m.add("text"),
                m.put("a", object()),
                large(),
                m.put("b", 1),
                m.pop("none"),
                m.add("n"),
                return_exceptions=True,
            )
            errors = [TypeError, NotSerializable, TooLarge, KeyError]
            assert [type(results[index]) for index in (1, 2, 3, 5)] == errors
            assert [results[index] for index in (0, 4, 6)] == [1, None, 2]
            assert await m.snapshot() == {"text": "x", "n": 2, "b": 1}

    run(work)


def test_tasks_of_all_processes_share_commits(aconnect: Connect) -> None:
    async def work() -> None:
        async with aconnect() as one, aconnect() as two:
            maps = [await one.map("m"), await two.map("m")]
            before = one.statistics.commits.commits
            sums = await asyncio.gather(*(m.add("n") for m in maps for _ in range(100)))
            assert sorted(sums) == list(range(1, 201))
            assert one.statistics.commits.commits - before <= 20
            reads = await asyncio.gather(*(m.get("n") for m in maps for _ in range(100)))
            assert reads == [200] * 200

    run(work)


def test_the_event_loop_does_not_wait_for_the_server(aconnect: Connect) -> None:
    """While a request has no answer, other tasks run; reads do not wait for changes."""

    async def work() -> None:
        async with aconnect() as store:
            m = await store.map("m")
            await m.put("a", 1)
            go_on = threading.Event()
            evaluate = store._store._serving.server.served.store.changes.evaluate  # type: ignore[union-attr]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    store._store._serving.server.served.store.changes,  # type: ignore[union-attr]
                    "evaluate",
                    lambda steps: go_on.wait() and evaluate(steps),
                )
                change = asyncio.ensure_future(m.add("a"))
                assert await m.get("a") == 1
                assert not change.done()
                go_on.set()
                assert await change == 2

    run(work)


@settings(max_examples=share(30, least=2))
@given(seed=st.integers(0, 2**32))
def test_tasks_whose_requests_are_sent_again_count_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Answers are lost, and another process serves. Each task has its own keys in a dict, and all
    add to one number."""
    folder = tmp_path_factory.mktemp("once")
    options: dict[str, Any] = {"socket": folder / "s", "preallocate": False, "durability": "os"}

    async def work() -> None:
        async with (
            imap_wal.aconnect(folder / "log", **options) as one,
            imap_wal.aconnect(folder / "log", **options) as two,
        ):
            maps = [await one.map("m"), await two.map("m")]

            async def task(name: int) -> int:
                random, model, added = Random(seed + name), {}, 0
                for number in range(8):
                    m, key = random.choice(maps), (name, random.randrange(3))
                    match random.randrange(5):
                        case 0:
                            await m.add("all", number)
                            added += number
                        case 1:
                            await m.set(key, number)
                            model[key] = number
                        case 2:
                            assert await m.pop(key, None) == model.pop(key, None), seed
                        case 3:
                            assert await m.add_new(key, number) is (key not in model), seed
                            model.setdefault(key, number)
                        case 4:
                            model[key] = model.get(key, 0) * 2 + 1
                            assert await m.change(key, double) == model[key], seed
                    assert await m.get(key) == model.get(key), seed
                return added

            added = await asyncio.gather(*map(task, range(6)))
            assert await maps[0].get("all", 0) == sum(added), seed

    with pytest.MonkeyPatch.context() as patch:
        Cutting(seed, patch)
        run(work)


def double(value: int | None) -> int:
    return (value or 0) * 2 + 1


def test_no_change_is_lost_by_kills_of_asyncio_processes(tmp_path: Path) -> None:
    run_workers(tmp_path, 4, 12, 2, seed=1, work=count_async)


@thorough
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_of_asyncio_processes(tmp_path: Path, seed: int) -> None:
    run_workers(tmp_path, 4, 100, 15, seed, work=count_async)


def test_aconnect_raises_what_connect_raises(aconnect: Connect, tmp_path: Path) -> None:
    async def work() -> None:
        with imap_wal.open(tmp_path / "log"), pytest.raises(WriterLocked):
            await aconnect()
        with pytest.raises(InvalidSetting, match="shared"):
            await aconnect(shared=True)
        async with aconnect() as store:
            m = await store.map("m", raw=True)
            await m.set(b"a", b"1")
            with pytest.raises(InvalidSetting, match="written by serializer 'raw'"):
                await store.map("m", serializer="msgpack")
            assert await (await store.map("m")).get(b"a") == b"1"

    run(work)


def test_an_asyncio_server_that_stops_is_replaced(aconnect: Connect) -> None:
    """What is under way is done, by the server that stops or by the next one."""

    async def work() -> None:
        first = await aconnect()
        async with aconnect() as second:
            m = await second.map("m")
            adding = [asyncio.ensure_future(m.add("n")) for _ in range(50)]
            await asyncio.gather(first.close(), *adding)
            assert await m.get("n") == 50 and second.is_serving

    run(work)


@pytest.mark.parametrize("how", ["connect", "read_only"])
def test_an_error_in_the_block_is_what_is_raised(tmp_path: Path, how: str) -> None:
    """Of each kind of store."""
    with imap_wal.open(tmp_path / "log", preallocate=False) as store:
        store.map("m")["a"] = 1
    with pytest.raises(ValueError, match="of the program"):  # noqa: SIM117
        with (
            imap_wal.connect(tmp_path / "log", socket=tmp_path / "s")
            if how == "connect"
            else imap_wal.open(tmp_path / "log", read_only=True)
        ) as store:
            raise ValueError("of the program")
    with pytest.raises(Closed):
        store.map("m").get("a")
