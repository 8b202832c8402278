"""A map that several threads change while it is read: every iteration shows one moment, and only
one of two threads pops an entry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import imap_wal
from imap_wal.embedded.changes import HEAP_SPARE, MapState
from imap_wal.errors import NotAppended, OutcomeUnknown
from imap_wal.serializer import RawSerializer
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.gate import Gate
from tests.support import FakeClock, Threads, contents, embedded, eventually


class Ticking(FakeClock):
    """Advances by a second at each call."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


WALKS: dict[str, Callable[[Any], Any]] = {
    "items": lambda m: dict(m.items()),
    "snapshot": lambda m: m.snapshot(),
}


@pytest.mark.parametrize("walk", WALKS)
def test_copy_shows_one_moment_while_entries_expire(memory: MemoryStore, walk: str) -> None:
    """A copy shows the moment at which it began, while entries expire at every call."""
    clock = Ticking()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        for number in range(20):
            m.put(number, number, ttl=1000)
        m.update({number: number for number in range(20)}, ttl=5 + 20)
        assert WALKS[walk](m) == {number: number for number in range(20)}
        clock.advance(100)
        assert WALKS[walk](m) == {}


def test_copy_shows_one_moment_while_a_thread_deletes(
    memory: MemoryStore,
) -> None:
    """A copy shows the moment at which it began, although another thread deletes meanwhile."""
    with embedded(memory) as store:
        m = store.map("m", serializer=(slow := Meddling()))
        m.update({number: number for number in range(10)})
        slow.meddle = lambda: m.clear()
        assert m.snapshot() == {number: number for number in range(10)}
        assert m.snapshot() == {}
        m.update({number: number for number in range(10)})
        slow.meddle = lambda: m.clear()
        with pytest.raises(KeyError):
            dict(m)  # as documented
        m["a"] = 1
        assert [key for key in m.keys() if m.pop(key)] == ["a"]  # noqa: SIM118  # `keys()` is what is tested
        with pytest.raises(KeyError):
            m["a"]


class Meddling(imap_wal.MsgpackSerializer):
    """Does something once, after it has read the first value."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Callable[[], Any] | None = None

    def load(self, data: bytes) -> Any:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            Threads(meddle).join()
        return super().load(data)


def test_value_after_a_key_listing_is_not_old(memory: MemoryStore) -> None:
    """A caller that lists the keys and then gets a value gets no old value."""
    with embedded(memory) as store:
        m = store.map("m")
        m["a"] = 1
        keys = list(m.keys())
        del m["a"]
        for key in keys:
            assert m.get(key) is None
        m["a"] = 2
        for key in m:
            m[key] = 3
            assert m[key] == 3
        assert dict(m) == {"a": 3}
        m["a"] = 4
        assert m["a"] == 4


def test_iterations_show_one_moment_during_expiry_and_writes(
    memory: MemoryStore,
) -> None:
    """Iterations over a map in which entries expire and threads write never fail, and never mix two
    moments. All keys get the same number in one commit: an iteration that shows two numbers mixes
    two moments."""
    with embedded(memory, durability="os") as store:
        m = store.map("m")
        m.update(dict.fromkeys(range(50), 0))
        over = threading.Event()
        seen: list[int] = []

        def write() -> None:
            try:
                for number in range(1, 120):
                    m.update(dict.fromkeys(range(50), number))
                    m.update({f"t{each}": number for each in range(20)}, ttl=0.001)
                    m.put(f"gone{number}", number, ttl=0.002)
                    if number % 3 == 0:
                        m.pop("gone1", None)
            finally:
                over.set()

        def read(walk: Callable[[Any], Any]) -> None:
            while not over.is_set():
                shown = {value for key, value in walk(m).items() if isinstance(key, int)}
                assert len(shown) == 1, shown
                seen.append(len(m))
                assert 0 in m
                assert sum(1 for _ in m.values()) >= 50
                assert m.items() >= set()

        Threads(write, *(lambda walk=WALKS[name]: read(walk) for name in WALKS)).join(120)
        assert seen


def test_an_iteration_has_only_pairs_that_were_put_together(memory: MemoryStore) -> None:
    with embedded(memory, durability="os") as store:
        m = store.map("m")
        over = threading.Event()

        def write(thread: int) -> None:
            for number in range(150):
                m.put(
                    f"{thread}.{number % 7}",
                    [f"{thread}.{number % 7}", number],
                    ttl=0.002 if number % 2 else None,
                )
                if number % 5 == 0:
                    m.pop(f"{thread}.{(number + 3) % 7}", None)
            over.set()

        def read() -> None:
            while not over.is_set():
                assert all(key == value[0] for key, value in m.items())
                assert all(key == value[0] for key, value in m.snapshot().items())

        Threads(*(lambda thread=thread: write(thread) for thread in range(3)), read, read).join(120)


@pytest.mark.parametrize(
    "options",
    [{}, {"durability": "os"}, {"durability": "async"}, {"manual_wal_flush": True}, {"slots": 2}],
    ids=str,
)
@pytest.mark.parametrize("logged", [True, False])
def test_of_many_threads_that_pop_one_key_one_gets_it(
    memory: MemoryStore, options: dict[str, Any], logged: bool
) -> None:
    slots = {"ring_slots": options["slots"]} if "slots" in options else options
    with embedded(memory, **slots) as store:
        m = store.map("m", disable_wal=not logged)
        popped: list[list[Any]] = [[] for _ in range(6)]

        def pop(thread: int) -> None:
            for number in range(40):
                value = m.pop("k", None)
                if value is not None:
                    popped[thread].append(value)
                if thread < 2:
                    m["k"] = [thread, number]
                try:
                    popped[thread].append(m.popitem()[1])
                except KeyError:
                    pass

        Threads(*(lambda thread=thread: pop(thread) for thread in range(6))).join(120)
        all_popped = [tuple(value) for values in popped for value in values]
        assert len(all_popped) == len(set(all_popped)), "one value was given to two"
        left = dict(m)
        assert not left.keys() - {"k"}
    if logged:
        assert contents(memory) == left


def test_threads_setting_a_default_get_the_first_value(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        got: list[list[int]] = [[] for _ in range(8)]
        Threads(
            *(
                lambda thread=thread: got[thread].extend(
                    m.setdefault(key, thread) for key in range(40)
                )
                for thread in range(8)
            )
        ).join(120)
        assert all(values == got[0] for values in got)
        assert dict(m) == dict(enumerate(got[0]))
        assert store.statistics.commits.records == 40, "a caller that found a value logged nothing"
    assert contents(memory) == dict(enumerate(got[0]))


def test_threads_that_pop_items_empty_the_map_and_share_commits(memory: MemoryStore) -> None:
    gate = Gate(memory)
    with embedded(gate) as store:
        m = store.map("m")
        m.update({number: number for number in range(16)})
        gate.open.clear()
        gate.waiting.clear()
        got: list[Any] = []
        leader = Threads(lambda: got.append(m.popitem()))
        assert gate.waiting.wait(30)
        published = store.writer.ring.statistics.published
        others = Threads(*(lambda: got.append(m.popitem()) for _ in range(15)))
        eventually(
            lambda: store.writer.ring.statistics.published == published + 15,
            "all are in the ring while the first is synced",
        )
        gate.open.set()
        leader.join()
        others.join()
        assert sorted(got) == [(number, number) for number in range(16)]
        assert store.statistics.commits.commits == 3
        with pytest.raises(KeyError, match="empty"):
            m.popitem()


def test_pop_waits_only_for_puts_of_its_key(memory: MemoryStore) -> None:
    gate = Gate(memory)
    with embedded(gate) as store:
        m = store.map("m")
        m.update({"a": 1, "b": 1})
        gate.open.clear()
        gate.waiting.clear()
        put = Threads(lambda: m.__setitem__("a", 2))
        assert gate.waiting.wait(30)
        got: dict[str, Any] = {}
        pops = Threads(*(lambda key=key: got.update({key: m.pop(key)}) for key in ("a", "b")))
        eventually(lambda: store.writer.ring.statistics.waiting == 2, "the pop of b is published")
        assert got == {}
        gate.open.set()
        put.join()
        pops.join()
        assert got == {"a": 2, "b": 1}


def test_second_change_in_one_sync_sees_the_first(
    memory: MemoryStore,
) -> None:
    """If two changes of one key share a sync, the second sees the first."""
    gate = Gate(memory)
    with embedded(gate) as store:
        m = store.map("m")
        m.update({"popped": 1, "deleted": 1})
        waits = threading.Event()
        commit_ready = store.committer.commit_ready
        store.committer.commit_ready = lambda: (waits.set(), commit_ready())[1]  # type: ignore[method-assign]
        for change, sorted_answers in (
            (lambda: m.pop("popped", "none"), [1, "none"]),
            (lambda: m.setdefault("set", threading.get_ident()), None),
            (lambda: delete(m, "deleted"), ["KeyError", "deleted"]),
        ):
            gate.open.clear()
            gate.waiting.clear()
            waits.clear()
            answers: list[Any] = []
            first = Threads(lambda change=change, answers=answers: answers.append(change()))
            assert gate.waiting.wait(30)
            second = Threads(lambda change=change, answers=answers: answers.append(change()))
            eventually(
                lambda: waits.is_set() or store.writer.ring.statistics.waiting == 2,
                "the second waits, or is published",
            )
            gate.open.set()
            first.join()
            second.join()
            assert (
                sorted(answers, key=str) == sorted_answers
                if sorted_answers
                else answers[0] == answers[1]
            )


def delete(m: Any, key: str) -> str:
    try:
        del m[key]
    except KeyError:
        return "KeyError"
    return key


@pytest.mark.parametrize("at", ["append", "sync"])
def test_a_pop_that_could_not_be_logged_leaves_the_entry(memory: MemoryStore, at: str) -> None:
    faulty = FaultyStore(memory, Plan((Fault("error", at=3, kind=at, path="*/wal/*", times=0),)))
    store = embedded(faulty)
    m = store.map("m")
    m["k"] = 1
    for change in (
        lambda: m.pop("k"),
        m.popitem,
        lambda: m.setdefault("new", 1),
        lambda: m.__delitem__("k"),
    ):
        with pytest.raises((NotAppended, OutcomeUnknown)):
            change()
    assert dict(m) == {"k": 1}
    store.close()
    assert contents(memory)["k"] == 1 if "k" in contents(memory) else at == "sync"


def test_pop_and_setdefault_see_no_entry_that_has_expired(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        m.update({"a": 1, "b": 1, "ttl": 1}, ttl=5)
        m.update({"ttl": 5})
        assert m.ttl("a") == 5
        assert m.ttl("ttl") is None
        clock.advance(5)
        assert m.pop("a", "none") == "none"
        assert m.setdefault("b", [2]) == [2]
        assert dict([m.popitem(), m.popitem()]) == {"b": [2], "ttl": 5}
        assert dict(m) == {}


def test_puts_with_a_lifetime_keep_few_deadlines() -> None:
    """Puts with a time to live keep about one deadline per key."""
    state = MapState("m", RawSerializer())
    for number in range(30_000):
        state.set(b"%d" % (number % 100), b"v", 10_000 + number)
        assert len(state._deadlines) <= 2 * 100 + HEAP_SPARE + 1
    for number in range(100):
        state.set(b"%d" % number, b"permanent")
    assert len(state._deadlines) <= HEAP_SPARE
    state.set(b"short", b"v", 5)
    state.set(b"long", b"v", 10)
    assert state.size(5) == 101
    assert state.keys(9)[-1] == b"long"
    assert state.size(10) == 100
