"""Stores that only read, beside a process that writes."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal.embedded.store import Store
from imap_wal.errors import (
    Closed,
    Fenced,
    InvalidSetting,
    LogError,
    NoSuchLog,
    ReadOnly,
    StorageUnavailable,
)
from imap_wal.rewrite.drop import drop_map
from imap_wal.serializer import MsgpackSerializer
from storage_backends import SegmentStore, Unavailable, open_store
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.actors import Interrupted, compact, log_of
from tests.kit.effort import every, share
from tests.kit.nth_call import AtCall, counted, replaced
from tests.support import Threads, embedded, eventually, segments

URLS = ["file://{}/maps", "objects+file://{}/maps"]
MAPS = ("left", "right")
State = dict[str, dict[Any, Any]]
numbers = count()
"""Of storages in memory."""


def reader(store: Any, **options: Any) -> Store:
    return imap_wal.open("memory://", storage=store, read_only=True, **options)


def shown(store: Store) -> State:
    return {name: dict(store.map(name).items()) for name in MAPS}


def files(url: str) -> dict[str, bytes]:
    store = open_store(url)
    return {file.path: store.read(file.path) for file in store.list("")}


# ---- it changes nothing ----


@pytest.mark.parametrize("url", URLS)
def test_a_reader_writes_no_byte_and_fences_nothing(tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    with imap_wal.open(url) as writer:
        m = writer.map("m")
        m.update({"a": 1, "b": 2})
        before = files(url)
        folders = sorted(tmp_path.rglob("*"))
        with (
            imap_wal.open(url, read_only=True) as one,
            imap_wal.open(url, read_only=True, follow=0.01) as two,
        ):
            assert dict(one.map("m").items()) == dict(two.map("m")) == {"a": 1, "b": 2}
            one.refresh()
            assert files(url) == before and sorted(tmp_path.rglob("*")) == folders
            m["a"] = 3
            one.refresh()
            assert one.map("m")["a"] == 3
            eventually(lambda: two.map("m")["a"] == 3, "the follower shows the change")
        m["a"] = 4
    before = files(url)
    with imap_wal.open(url, read_only=True) as store:
        assert store.map("m")["a"] == 4 and store.maps() == ["m"]
    assert files(url) == before


def test_a_reader_of_nothing_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoSuchLog, match="has no maps in cluster 'embedded'"):
        imap_wal.open(tmp_path / "maps", read_only=True)
    assert not list(tmp_path.rglob("*"))


def test_every_change_of_a_reader_is_refused(memory: MemoryStore) -> None:
    with embedded(memory) as writer:
        writer.map("m")["a"] = 1
        with reader(memory) as store:
            m = store.map("m")

            def batch() -> None:
                with store.batch() as batch:
                    batch.put(m, "b", 1)

            @store.transaction
            def transaction(t: Any) -> None:
                t[m]["a"] += 1

            changes: list[Callable[[], Any]] = [
                lambda: m.put("a", 2),
                lambda: m.update(b=1),
                lambda: m.pop("a"),
                m.popitem,
                m.clear,
                lambda: m.setdefault("b", 1),
                lambda: m.add("a"),
                lambda: m.add_new("b", 1),
                lambda: m.replace("a", 1, 2),
                lambda: m.change("a", lambda value: value),
                lambda: m.touch("a", 5),
                batch,
                transaction,
                store.sync,
                store.flush_wal,
                store.archive,
                store.compact,
            ]
            for change in changes:
                with pytest.raises(ReadOnly, match="read_only=True, so it changes nothing"):
                    change()
            with pytest.raises(InvalidSetting, match="only in memory"):
                store.map("m", disable_wal=True)
            assert dict(m) == {"a": 1} == dict(writer.map("m"))
        for use in (lambda: m["a"], store.refresh, lambda: m.put("a", 1)):
            with pytest.raises(Closed):
                use()


@pytest.mark.parametrize(
    "options",
    [
        {"follow": True},
        {"read_only": True, "takeover": True},
        {"read_only": True, "shared": True},
        {"read_only": True, "follow": -1},
        {"read_only": True, "wal_filter": print},
        {"read_only": "yes"},
    ],
    ids=["follow", "takeover", "shared", "interval", "wal_filter", "text"],
)
def test_options_that_do_not_fit_are_refused(memory: MemoryStore, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        imap_wal.open("memory://", storage=memory, **options)


def test_a_reader_in_asyncio(memory: MemoryStore) -> None:
    async def work() -> None:
        with embedded(memory) as writer:
            writer.map("m")["a"] = 1
            async with imap_wal.aopen("memory://", storage=memory, read_only=True) as store:
                m = store.map("m")
                writer.map("m")["a"] = 2
                assert m["a"] == 1
                await store.refresh()
                assert m["a"] == 2
                with pytest.raises(ReadOnly):
                    await m.set("a", 3)
                with pytest.raises(ReadOnly):
                    await m.add("a")

    asyncio.run(work())


# ---- what it shows ----


class Writers:
    """The processes that write, and every state that the log had."""

    def __init__(self, memory: MemoryStore, seed: int, nodes: int) -> None:
        self.memory, self.random = memory, random.Random(seed)
        self.history: list[State] = [{name: {} for name in MAPS}]
        self.nodes = nodes
        self.stores = [self._open(number) for number in range(nodes)]

    def _open(self, number: int, **options: Any) -> Store:
        return imap_wal.open(
            "memory://",
            storage=self.memory,
            node=f"n{number}",
            shared=self.nodes > 1,
            segment_bytes=self.random.choice((600, 4000, 64 * 1024)),
            preallocate=self.random.random() < 0.3,
            **options,
        )

    def act(self) -> None:
        """One action of one of them."""
        number = self.random.randrange(self.nodes)
        store, now = self.stores[number], {name: dict(m) for name, m in self.history[-1].items()}
        name, other = self.random.sample(MAPS, 2)
        key = f"{number}{self.random.choice('abcd')}"
        value = len(self.history)
        match self.random.randrange(16):
            case 0 | 1 | 2 | 3 | 4:
                store.map(name)[key] = now[name][key] = value
            case 5 | 6:
                store.map(name).pop(key, None)
                now[name].pop(key, None)
            case 7 | 8:
                with store.batch() as batch:
                    batch.put(store.map(name), key, value)
                    batch.delete(store.map(other), key)
                now[name][key] = value
                now[other].pop(key, None)
            case 9 if self.nodes == 1:
                store.map(name).clear()
                now[name].clear()
            case 10:
                store.archive()
            case 11:
                compact(self.memory)
            case 12:
                store.committer.rotate()
            case 13:
                self.stores[number] = self._open(number, takeover=True)
                with suppress(Fenced):
                    store.close()
            case 14:
                store.close()
                if self.random.random() < 0.3 and self.nodes == 1 and now[name]:
                    drop_map(log_of(self.memory), name)
                    now[name].clear()
                self.stores[number] = self._open(number)
            case 15:  # it is killed in the middle of a write
                store.map(name)[key] = now[name][key] = value
                path = [path for path in segments(self.memory) if f"/n{number}/" in path][-1]
                if not store.committer.log.settings.preallocate:
                    self.memory._medium.files[path] += b"\x01torn"
                self.stores[number] = self._open(number, takeover=True)
        self.history.append(now)


def of_node(node: int, state: State) -> State:
    """The entries that a node has written."""
    return {
        name: {key: value for key, value in m.items() if key[0] == str(node)}
        for name, m in state.items()
    }


@pytest.mark.parametrize("nodes", [1, 2])
@settings(max_examples=share(100, ci=3))
@given(seed=st.integers(0, 2**32))
def test_a_reader_shows_only_states_that_the_log_had(nodes: int, seed: int) -> None:
    """Between two calls of the storage by the reader, writers act. What it shows is always a state
    that the log of each node had, never an earlier one than before, and after a refresh the
    newest."""
    memory = MemoryStore(f"prefixes-{next(numbers)}")
    writers = Writers(memory, seed, nodes)
    for _ in range(5):
        writers.act()
    store = Interrupted(memory)
    follower = reader(store)
    seen = [0] * nodes

    def check() -> None:
        state = shown(follower)
        for node in range(nodes):
            own = [of_node(node, each) for each in writers.history]
            assert of_node(node, state) in own[seen[node] :], (seed, node, seen, state, own)
            seen[node] = own.index(of_node(node, state), seen[node])

    def meanwhile() -> None:
        check()
        for _ in range(writers.random.choice((1, 1, 4))):
            writers.act()

    for _ in range(12):
        for _ in range(writers.random.randrange(4)):
            writers.act()
        store.at, store.meanwhile = store.calls + writers.random.randrange(30), meanwhile
        follower.refresh()
        check()
        store.at = None
        if nodes == 1 or writers.random.random() < 0.5:
            follower.refresh()
            assert shown(follower) == writers.history[-1], (seed, writers.history[-3:])
            seen = [len(writers.history) - 1] * nodes
    follower.close()


def test_a_compaction_during_an_open_brings_no_key_back(memory: MemoryStore) -> None:
    """The open has read a part of the log when a snapshot replaces the rest, in which a key is
    deleted."""
    store = Interrupted(memory)
    with embedded(memory) as writer:
        left = writer.map("left")
        left["deleted"] = left["kept"] = 1
        writer.committer.rotate()
        left["later"] = 2
        writer.committer.rotate()
        second = sorted(segments(memory))[1]

        def meanwhile() -> None:
            del left["deleted"]
            writer.archive()
            compact(memory)

        store.when, store.meanwhile = lambda kind, path: path == second, meanwhile
        with reader(store) as follower:
            assert shown(follower)["left"] == {"kept": 1, "later": 2} == dict(left.items())


def test_archives_are_not_shown_one_after_the_other(memory: MemoryStore) -> None:
    """Each has one map only: after the first one, its map would be ahead of the other."""
    store = Interrupted(memory)
    with embedded(memory) as writer:
        left, right = (writer.map(name) for name in MAPS)
        left["a"] = right["a"] = 1
        with reader(store) as follower:
            before = shown(follower)
            left["b"], right["b"] = 2, 2
            left["c"] = 3
            writer.archive()

            def look() -> None:
                assert shown(follower) == before
                store.when = lambda kind, path: path.endswith(".parquet")

            store.when, store.meanwhile = lambda kind, path: path.endswith(".parquet"), look
            follower.refresh()
            assert shown(follower) == {"left": dict(left.items()), "right": dict(right.items())}


def test_a_follower_beside_a_busy_writer(memory: MemoryStore) -> None:
    """Threads: one writes to two maps, one compacts, one reads what the follower shows."""
    with embedded(memory, segment_bytes=4000) as writer:
        left, right = (writer.map(name) for name in MAPS)
        left["n"] = right["n"] = 0
        over = threading.Event()
        with reader(memory, follow=0.0005) as follower:
            shown_left, shown_right = (follower.map(name) for name in MAPS)

            def write() -> None:
                for number in range(1, 400):
                    left["n"] = number
                    right["n"] = number
                over.set()

            def read() -> None:
                last = 0
                while not over.is_set():
                    second = shown_right["n"]
                    first = shown_left["n"]
                    assert first >= second >= last  # left is written before right
                    last = second

            def rewrite() -> None:
                while not over.is_set():
                    compact(memory)
                    time.sleep(0.01)

            Threads(write, read, rewrite).join()
            eventually(lambda: shown_right["n"] == 399, "the follower shows the last change")
            following = follower.statistics.following
            assert following is not None and following.records >= 800
            assert follower.statistics.failure == ""


@every(3)
@pytest.mark.parametrize("value", ["", "x" * 99], ids=["shorter", "longer"])
@pytest.mark.parametrize("kind", [LocalStore, LocalObjects])
def test_a_follower_notices_that_its_log_was_replaced(
    tmp_path: Path, kind: type[LocalStore], value: str
) -> None:
    """By an older copy, whose writer then began a segment with the same name, at any call of the
    storage. It showed the former log for good if the copy's segment was the shorter one."""

    def write(place: SegmentStore, key: str, written: str) -> None:
        with imap_wal.open(place.url, storage=kind(str(tmp_path / place.url[-1]))) as store:
            store.map("m")[key] = written

    first, then = kind(str(tmp_path / "1")), kind(str(tmp_path / "2"))
    write(first, "both", "")
    shutil.copytree(tmp_path / "1", tmp_path / "2", dirs_exist_ok=True)
    write(first, "first", "y" * 50)
    write(then, "then", value)
    histories = [{"both": "", "first": "y" * 50}, {"both": "", "then": value}]

    def states_of(gate: AtCall) -> Iterator[dict[str, str]]:
        """What a store shows after its open, and after each refresh that succeeds."""
        with suppress(LogError), reader(gate) as store:
            yield dict(store.map("m").items())
            for _ in range(3):
                with suppress(LogError):
                    store.refresh()
                yield dict(store.map("m").items())

    whole = counted(first)
    calls = [whole.calls for state in states_of(whole) if state == histories[0]]
    for number in range(calls[2]):
        states = list(states_of(replaced(first, then, number)))
        assert all(state in histories for state in states), (number, states)
        assert not states or states[-1] == histories[1], (number, states)


def test_a_torn_tail_is_no_error_for_a_follower(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, preallocate=False) as writer:
        m = writer.map("m")
        m["a"] = 1
        with imap_wal.open(tmp_path, read_only=True) as follower:
            segment = next(tmp_path.rglob("*.wal"))
            before = len(segment.read_bytes())
            m["a"] = 2
            whole = segment.read_bytes()
            follower.refresh()
            for cut in range(before, len(whole), 5):
                segment.write_bytes(whole[:cut])
                with imap_wal.open(tmp_path, read_only=True) as late:
                    assert late.map("m")["a"] == 1
            segment.write_bytes(whole)
            follower.refresh()
            assert follower.map("m")["a"] == 2


def test_expired_keys_are_not_shown(memory: MemoryStore) -> None:
    with embedded(memory) as writer:
        writer.map("m").put("a", 1, ttl=0.05)
        writer.map("m")["b"] = 2
        with reader(memory) as follower:
            m = follower.map("m")
            eventually(lambda: "a" not in m, "the key expires")
            assert list(m) == ["b"] and len(m) == 1


class Named(MsgpackSerializer):
    name = "named"


def test_a_map_that_is_opened_before_its_first_entry(memory: MemoryStore) -> None:
    """Its serializer is known only then."""
    with embedded(memory) as writer:
        writer.map("other")["a"] = 1
        with reader(memory) as follower:
            early, raw = follower.map("m"), follower.map("raw", raw=True)
            custom = follower.map("custom")
            writer.map("m", raw=True)[b"a"] = writer.map("raw", raw=True)[b"a"] = b"1"
            writer.map("custom", serializer=Named())["a"] = 1
            follower.refresh()
            assert early[b"a"] == raw[b"a"] == b"1"
            with pytest.raises(InvalidSetting, match="written by serializer 'named'; pass it"):
                custom.snapshot()
            assert follower.map("custom", serializer=Named())["a"] == 1


# ---- failures ----


def test_a_follower_continues_after_the_storage_failed(memory: MemoryStore) -> None:
    store = Interrupted(memory)

    def fails() -> None:
        store.when = lambda kind, path: kind == "list"  # again and again
        unavailable()

    with embedded(memory) as writer:
        writer.map("m")["a"] = 1
        with reader(store, follow=0.001) as follower:
            store.meanwhile, store.when = fails, lambda kind, path: kind == "list"
            eventually(lambda: "no route" in follower.statistics.failure, "it says what failed")
            store.meanwhile = lambda: None
            writer.map("m")["a"] = 2
            eventually(lambda: follower.map("m")["a"] == 2, "it continues")
            eventually(lambda: not follower.statistics.failure, "it works again")


def unavailable() -> None:
    raise Unavailable("no route", "")


def test_a_refresh_that_fails_keeps_what_was_shown(memory: MemoryStore) -> None:
    store = Interrupted(memory)
    with embedded(memory) as writer:
        writer.map("m")["a"] = 1
        with reader(store) as follower:
            writer.map("m")["a"] = 2
            store.at, store.meanwhile = store.calls, unavailable
            with pytest.raises(StorageUnavailable, match="no route"):
                follower.refresh()
            assert follower.map("m")["a"] == 1
            follower.refresh()
            assert follower.map("m")["a"] == 2


def test_a_reader_has_sorted_maps(memory: MemoryStore) -> None:
    with embedded(memory) as writer:
        m = writer.map("m")
        m.update({"b": 1, "a": 2})
        with embedded(memory, read_only=True) as store:
            shown_map = store.map("m", sorted=True)
            assert list(shown_map.irange()) == ["a", "b"]
            m["ab"] = 3
            del m["b"]
            store.refresh()
            assert list(shown_map.irange_items("a")) == [("a", 2), ("ab", 3)]
            writer.compact()
            m["c"] = 4
            store.refresh()
            assert list(shown_map.keys(prefix="a")) == ["a", "ab"]
            assert list(reversed(shown_map)) == ["c", "ab", "a"]
            assert repr(store).startswith("<ReadOnlyStore 'memory")
            with pytest.raises(InvalidSetting, match="has no watches"):
                shown_map.watch()
            with pytest.raises(ReadOnly):
                store.queue("jobs")
