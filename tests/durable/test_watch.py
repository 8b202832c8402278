"""The changes of a map, one after the other: `DurableMap.watch`."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import imap_wal
from imap_wal import Event
from imap_wal.embedded import watch as watching
from imap_wal.embedded.asyncio_store import AsyncStore
from imap_wal.errors import InvalidSetting, NotAppended, OtherHistory, PositionGone
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, Threads, copy_files, embedded

numbers = count()


def taken(watch: imap_wal.Watch, number: int) -> list[Event]:
    return [next(watch) for _ in range(number)]


def test_each_change_has_the_value_before_and_after(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m, other = store.map("m"), store.map("other")
        m["a"] = 1
        watch = m.watch()
        m["a"] = [2]
        other["a"] = "of another map"
        m.update(b=1, c=None)
        del m["b"]
        m.add("b", 5)
        events = taken(watch, 5)
        assert [(*event[:3], event.kind) for event in events] == [
            ("a", 1, [2], "replace"),
            ("b", None, 1, "add"),
            ("c", None, None, "add"),
            ("b", 1, None, "delete"),
            ("b", None, 5, "add"),
        ]
        positions = [event.position for event in events]
        assert positions == sorted(positions) and watch.position == positions[-1]


def test_a_watch_continues_after_a_restart(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        watch = m.watch()
        m.update(a=1, b=2)
        m["a"] = 3
        first = next(watch)
        assert first[:3] == ("a", None, 1)
    with embedded(memory) as store:
        m = store.map("m")
        m["b"] = 4
        expected = [("b", None, 2), ("a", 1, 3), ("b", 2, 4)]
        with pytest.raises(TypeError, match="since is 5; it takes a position, or its text"):
            m.watch(since=5)  # type: ignore[arg-type]
        for since in (first.position, str(first.position)):
            assert [event[:3] for event in taken(m.watch(since), 3)] == expected
        store.archive()
        assert [event[:3] for event in taken(m.watch(first.position), 3)] == expected


def test_a_clear_deletes_each_key(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m.update(a=1, b=2)
        watch = m.watch()
        m.clear()
        m["c"] = 3
        events = taken(watch, 3)
        assert [event[:3] for event in events] == [("a", 1, None), ("b", 2, None), ("c", None, 3)]
        # A program that stopped within the clear gets all of it again.
        assert events[0].position < events[1].position
        again = taken(m.watch(events[0].position), 3)
        assert [event[:3] for event in again] == [event[:3] for event in events]
        assert [event[:3] for event in taken(m.watch(events[1].position), 1)] == [("c", None, 3)]


def test_an_expired_value_is_no_old_value(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        watch = m.watch()
        m.put("a", 1, ttl=5)
        clock.advance(4)
        m.touch("a", 5)
        clock.advance(6)
        m.put("a", 2, ttl=5)
        clock.advance(6)
        m.pop("a", None)
        m["b"] = 1
        expected = [("a", None, 1), ("a", 1, 1), ("a", None, 2), ("b", None, 1)]
        events = taken(watch, 4)
        assert [event[:3] for event in events] == expected
        assert [event[:3] for event in taken(m.watch(events[0].position), 3)] == expected[1:]


def test_a_waiting_watch_gets_the_next_commit(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        watch = m.watch()
        got: list[Event] = []
        threads = Threads(lambda: got.extend(taken(watch, 20)))
        for number in range(20):
            m[number] = number
        threads.join()
        assert [event.new for event in got] == list(range(20))


def test_a_watch_ends_with_its_store(memory: MemoryStore) -> None:
    store = embedded(memory)
    m = store.map("m")
    watch, closed = m.watch(), m.watch()
    got: list[Event] = []
    threads = Threads(lambda: got.extend(watch), lambda: got.extend(closed))
    closed.close()
    store.close()
    threads.join()
    assert got == []
    with embedded(memory) as store, store.map("m").watch() as another:
        another.close()
        assert list(another) == []


def test_a_watch_ends_while_its_store_closes(memory: MemoryStore) -> None:
    """The committer refuses changes before the watch is told that the store was closed."""
    store = embedded(memory)
    watch = store.map("m").watch()
    store.changes.openness.closed = True
    store.committer.close()
    assert list(watch) == []


def test_a_failed_store_raises_its_error(memory: MemoryStore) -> None:
    faulty = FaultyStore(MemoryStore(f"failed-{next(numbers)}"))
    store = embedded(faulty)
    m = store.map("m")
    watch = m.watch()
    m["a"] = 1
    faulty.plan = Plan((Fault("error", at=1),))
    faulty._seen = [0]
    with pytest.raises(imap_wal.ImapWalError):
        m["b"] = 2
    faulty.plan = Plan()
    assert next(watch)[:3] == ("a", None, 1)
    with pytest.raises(NotAppended, match="nothing more is acknowledged"):
        next(watch)
    assert list(watch) == []
    with pytest.raises(NotAppended):
        m.watch()


def test_an_old_position_is_gone_and_of_no_other_history(memory: MemoryStore) -> None:
    """After a compaction, the next opens forget the epoch that it is of."""
    with embedded(memory) as store:
        watch = store.map("m").watch()
        store.map("m")["a"] = 1
        position = next(watch).position
    for value in (2, 3, 4):
        with embedded(memory) as store:
            store.map("m")["a"] = value
            store.compact()
    with embedded(memory) as store:
        with pytest.raises(PositionGone) as gone:
            store.map("m").watch(position)
        assert type(gone.value) is PositionGone
        store.map("m")["a"] = 5
        assert next(store.map("m").watch(gone.value.oldest))[:3] == ("a", 4, 5)


def test_a_watch_without_history_says_so(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        watch, slow = m.watch(), m.watch()
        m.update(a=1, b=2)
        m["a"] = 3
        first = next(watch)
        store.compact()
        with pytest.raises(PositionGone, match="begin with a snapshot"):
            next(slow)
        assert list(slow) == []
        with pytest.raises(PositionGone) as gone:
            m.watch(first.position)
        # From the position that the error names, a watch goes on.
        m["c"] = 4
        assert next(m.watch(gone.value.oldest))[:3] == ("c", None, 4)
        # What was read before the compaction is still returned.
        rest = [event[:3] for event in taken(watch, 3)]
        assert rest == [("b", None, 2), ("a", 1, 3), ("c", None, 4)]


def test_history_lets_a_watch_continue_after_compaction(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock, history_s=3600) as store:
        m = store.map("m")
        watch = m.watch()
        m.update(a=1, b=2)
        m["a"] = 3
        first = next(watch)
        for _ in range(2):
            clock.advance(1200)
            store.compact()
            m["c"] = 4
        assert [event[:3] for event in taken(m.watch(first.position), 4)] == [
            ("b", None, 2),
            ("a", 1, 3),
            ("c", None, 4),
            ("c", 4, 4),
        ]


def test_a_position_of_another_history_is_refused(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m")["a"] = 1
    copy = copy_files(memory)
    with embedded(memory) as store:
        m = store.map("m")
        watch = m.watch()
        m["a"] = 2
        position = next(watch).position
    with embedded(copy) as store, pytest.raises(OtherHistory):
        store.map("m").watch(position)


def test_what_cannot_be_watched_is_refused(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        with pytest.raises(InvalidSetting, match="opened with disable_wal"):
            store.map("m", disable_wal=True).watch()
        with pytest.raises(ValueError, match="'here' is not a position"):
            store.map("n").watch("here")


@pytest.mark.parametrize("durability", ["async", "interval", "os"])
def test_a_watch_begins_after_earlier_changes(memory: MemoryStore, durability: str) -> None:
    with embedded(memory, durability=durability) as store:
        m = store.map("m")
        for number in range(5):
            m["a"] = number
        watch = m.watch()
        m["a"] = "next"
        store.sync()
        assert next(watch)[:3] == ("a", 4, "next")


def test_events_are_read_in_portions(memory: MemoryStore, monkeypatch: Any) -> None:
    monkeypatch.setattr(watching, "EVENTS_MAX", 3)
    with embedded(memory) as store:
        m = store.map("m")
        watch = m.watch()
        m.update({number: number for number in range(10)})
        assert watch.read() and len(watch._events) == 3
        assert [event.key for event in taken(watch, 10)] == list(range(10))
        m.clear()
        events = taken(watch, 10)
        assert watch.position == events[-1].position
        assert [event.key for event in taken(m.watch(events[4].position), 10)] == list(range(10))


def test_tasks_watch_a_map(memory: MemoryStore) -> None:
    async def main() -> None:
        async with AsyncStore(embedded(memory)) as store:
            m = store.map("m")
            watch = await m.watch()
            await m.put("a", 1)
            first = await anext(watch)
            assert first[:3] == ("a", None, 1) and watch.position == first.position
            # A cancelled wait loses nothing.
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.001)
            await asyncio.gather(*(m.put(number, number) for number in range(5)))
            assert [(await anext(watch)).new for _ in range(5)] == list(range(5))
            got = []
            async for event in m.watch(first.position):
                got.append(event.new)
                if event.new == 4:
                    break
            assert got == list(range(5))
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="not a position"):
                await m.watch("0")
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(main())


KEYS, VALUES = st.sampled_from("abc"), st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, VALUES),
        st.tuples(st.just("expire"), KEYS, VALUES),
        st.tuples(st.just("delete"), KEYS, VALUES),
        st.tuples(st.sampled_from(["clear", "wait", "archive", "reopen", "take"]), KEYS, VALUES),
    ),
    max_size=25,
)


@given(STEPS)
def test_old_values_equal_those_of_a_dict(steps: list[tuple[str, str, int]]) -> None:
    """The program may stop after each event, and continues at its position."""
    memory, clock = MemoryStore(f"watched-{next(numbers)}"), FakeClock()
    options = {"clock": clock, "segment_bytes": 2000}
    store = embedded(memory, **options)
    model: dict[str, tuple[int, int]] = {}
    expected: list[tuple[Any, Any, Any]] = []
    commits: list[int] = []
    """Of each expected event."""
    got: list[tuple[Any, Any, Any]] = []
    watch = store.map("m").watch()
    start = watch.position

    def note(commit: int, key: str, new: int | None, until: int) -> None:
        old, expires = model.pop(key, (None, 0))
        if 0 < expires <= clock.now_ms():
            old = None
        if new is not None:
            model[key] = new, until
        if old is not None or new is not None:
            expected.append((key, old, new))
            commits.append(commit)

    def by_commit(events: list[tuple[Any, Any, Any]]) -> list[Any]:
        """The events of a clear are in any order."""
        return sorted(zip(commits, events, strict=False))

    for commit, (kind, key, value) in enumerate(steps):
        m = store.map("m")
        if kind == "put":
            m[key] = value
            note(commit, key, value, 0)
        elif kind == "expire":
            m.put(key, value, ttl=1)
            note(commit, key, value, clock.now_ms() + 1000)
        elif kind == "delete":
            if m.pop(key, None) is not None:
                note(commit, key, None, 0)
        elif kind == "clear":
            alive = list(m)
            m.clear()
            for each in alive:
                note(commit, each, None, 0)
        elif kind == "wait":
            clock.advance(0.6)
        elif kind == "archive":
            store.archive()
        elif kind == "take" and len(got) < len(expected):
            got.append(next(watch)[:3])
        elif kind == "reopen":
            place = watch.position
            store.close()
            store = embedded(memory, **options)
            watch = store.map("m").watch(place)
            while got and commits[len(got) - 1 : len(got) + 1] in [[each] * 2 for each in commits]:
                got.pop()  # a part of a clear, of which the watch returns everything again
    got += [event[:3] for event in taken(watch, len(expected) - len(got))]
    assert by_commit(got) == by_commit(expected)
    again = [event[:3] for event in taken(store.map("m").watch(start), len(expected))]
    assert by_commit(again) == by_commit(expected)
    store.close()
