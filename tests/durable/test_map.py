"""The embedded map is a dict that survives a restart."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

import pytest

import imap_wal
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import InvalidSetting, NotSerializable
from imap_wal.log import LogReader
from imap_wal.manifest.cluster import ClusterManifestLog
from storage_backends.memory import MemoryStore
from tests.kit.gate import first_sync_waits_until
from tests.support import (
    FakeClock,
    Threads,
    contents,
    copy_files,
    embedded,
    overwrite,
    segments,
)

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    float("inf"),
    "",
    "ä\0😀",
    b"",
    bytes(range(256)),
    [],
    [1, [2, {"a": None}]],
    {},
    {1: 2, "a": {}},
]
KEYS: list[Any] = [None, 0, -1, 2**63, 1.5, "", "a", b"a", (), (1, "a", (b"b",))]


def test_put_survives_a_clean_reopen_and_a_kill(url: str, memory: MemoryStore) -> None:
    """All kinds of values and keys."""
    for store, again in (
        (embedded(memory), lambda: embedded(copy_files(memory))),
        (imap_wal.open(url, node="n"), lambda: imap_wal.open(url, node="n")),
    ):
        orders = store.map("orders")
        for number, value in enumerate(VALUES):
            orders[number] = value
        for key in KEYS:
            store.map("keys")[key] = repr(key)
        if store._log.store is not memory:
            store.close()
        with again() as reopened:
            assert dict(reopened.map("orders").items()) == dict(enumerate(VALUES))
            assert {repr(key): value for key, value in reopened.map("keys").items()} == {
                repr(key): repr(key) for key in KEYS
            }


def test_a_durable_map_is_a_mutable_mapping(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        assert isinstance(m, MutableMapping)
        assert len(m) == 0
        assert not m
        m["a"] = 1
        m.update({"b": 2}, c=3)
        m.update([("d", 4), ("d", 5)])
        m.update(
            type("Keyed", (), {"keys": lambda self: ["d"], "__getitem__": lambda self, key: 5})()
        )
        assert m == {"a": 1, "b": 2, "c": 3, "d": 5}
        assert m.get("x") is None
        assert m.get("x", 7) == 7
        assert "a" in m
        assert "x" not in m
        assert m.setdefault("a", 9) == 1
        assert m.setdefault("e", 9) == 9
        assert m.pop("e") == 9
        assert m.pop("e", "gone") == "gone"
        with pytest.raises(KeyError):
            m.pop("e")
        with pytest.raises(KeyError):
            m["e"]
        with pytest.raises(KeyError):
            del m["e"]
        del m["a"]
        key, value = m.popitem()
        assert {**m, key: value} == {"b": 2, "c": 3, "d": 5}
        assert sorted(m) == sorted(m.keys())
        assert len(m) == 2
        m.clear()
        assert dict(m) == {}
        m.clear()
        m.update({})
        assert repr(m) == "<DurableMap 'm' of 0>"
    assert contents(memory) == {}


def test_a_map_may_be_changed_during_an_iteration(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m.update({number: number for number in range(100)})
        for key in m:
            del m[key]
        assert len(m) == 0


def test_get_returns_what_a_reopen_would_return(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        value = {"list": [1, 2], "nested": {"a": bytearray(b"x")}}
        m["k"] = value
        given = m["k"]
        value["list"] = "changed"
        given["list"].append(3)
        assert m["k"] == {"list": [1, 2], "nested": {"a": b"x"}}
        assert contents(memory) == {"k": m["k"]}


def test_maps_of_one_store_are_separate(memory: MemoryStore) -> None:
    """Their names may be any text."""
    names = ["orders", "../a b", "a/b", ".", "ä", "ORDERS", "*"]
    with embedded(memory) as store:
        for name in names:
            store.map(name)["name"] = name
        assert store.maps() == sorted(names)
        assert store.archive() == len(names)
        store.map("orders")["more"] = 1
    with embedded(copy_files(memory)) as store:
        assert {name: store.map(name)["name"] for name in names} == {name: name for name in names}
        assert store.map("orders")["more"] == 1


def test_a_map_without_a_name_is_refused(memory: MemoryStore) -> None:
    with embedded(memory) as store, pytest.raises(InvalidSetting, match="empty"):
        store.map("")


def test_a_raw_map_keeps_bytes_and_nothing_else(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        raw: imap_wal.DurableMap[Any, Any] = store.map("m", raw=True)
        raw[b"k"] = b"v"
        raw[memoryview(b"l")] = memoryview(b"w")
        with pytest.raises(NotSerializable, match="takes bytes, not str"):
            raw[b"k"] = "text"
        with pytest.raises(NotSerializable, match="a bytearray cannot be a key"):
            raw[bytearray(b"k")] = b"v"
        with pytest.raises(KeyError):
            raw["k"]
        assert dict(raw.items()) == {b"k": b"v", b"l": b"w"}
    with embedded(memory) as store:
        assert dict(store.map("m", raw=True).items()) == {b"k": b"v", b"l": b"w"}
        assert dict(store.map("m").items()) == {b"k": b"v", b"l": b"w"}, (
            "the log knows how it was written"
        )


def test_an_update_is_one_commit(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m").update({number: number for number in range(10_000)})
        assert store.statistics.commits.commits == store.statistics.commits.syncs == 1
        store.map("m").clear()
        assert store.statistics.commits.commits == 2


def test_truncated_update_is_present_whole_or_absent(memory: MemoryStore, seed: int) -> None:
    """The log is cut at many places inside the update."""
    from random import Random

    with embedded(memory, segment_bytes=1024 * 1024) as store:
        m = store.map("m")
        m["before"] = 0
        start = store._log.end.frame
        m.update({f"k{number}": "x" * 20 for number in range(200)})
        whole = memory.read(segments(memory)[0])
        place = store._log.end.frame
        assert place > start
        chance = Random(seed)
        for cut in [
            place,
            place + 1,
            len(whole) - 1,
            *(chance.randrange(place, len(whole)) for _ in range(30)),
        ]:
            left = copy_files(memory)
            overwrite(left, segments(left)[0], whole[:cut])
            assert contents(left) == {"before": 0}, f"cut at {cut}"


def test_many_threads_on_one_map_lose_nothing_and_share_commits(url: str) -> None:
    threads, each = 16, 100
    with imap_wal.open(url, node="n") as store:
        m = store.map("m")

        def work(thread: int) -> None:
            for number in range(each):
                m[f"{thread}.{number}"] = number
                assert m[f"{thread}.{number}"] == number
                if number % 3 == 0:
                    del m[f"{thread}.{number}"]

        published = store.statistics.ring.published + threads
        with first_sync_waits_until(lambda: store.statistics.ring.published >= published):
            Threads(*[lambda thread=thread: work(thread) for thread in range(threads)]).join()
        expected = {
            f"{thread}.{number}": number
            for thread in range(threads)
            for number in range(each)
            if number % 3
        }
        assert dict(m.items()) == expected
        assert store.statistics.commits.commits < store.statistics.commits.records
    with imap_wal.open(url, node="n") as store:
        assert dict(store.map("m").items()) == expected


def test_concurrent_changes_of_a_key_match_the_log(
    memory: MemoryStore,
) -> None:
    """Changes by many threads pass one queue. Each change has its own number and place; both rise
    in the order in which memory was changed."""
    threads, each, keys = 8, 120, 3
    with embedded(memory, durability="os", ring_slots=16, segment_bytes=8000) as store:
        m = store.map("m", raw=True)

        def work(thread: int) -> None:
            for number in range(each):
                key = b"%d" % (number % keys)
                if number % 5 == 4:
                    m.update({b"%d" % other: b"%d.%d" % (thread, number) for other in range(keys)})
                elif number % 7 == 6:
                    with suppress(KeyError):  # another thread was first
                        del m[key]
                else:
                    m[key] = b"%d.%d" % (thread, number)

        Threads(*[lambda thread=thread: work(thread) for thread in range(threads)]).join()
        held = dict(m.items())
        assert store.statistics.commits.rotations > 3
    records = list(LogReader(memory.url, cluster="embedded", node="n1", storage=memory).read())
    assert len(records) > threads * each
    assert [record.entry.order[3] for record in records] == list(range(1, len(records) + 1)), (
        "every number once, in the log's order"
    )
    places = [record.position for record in records]
    assert places == sorted(set(places))
    replayed: dict[bytes, bytes | None] = {
        record.entry.key: record.entry.value for record in records
    }
    assert held == {key: value for key, value in replayed.items() if value is not None}
    assert contents(memory) == held


def test_rotation_and_archive_lose_nothing_and_delete_segments(memory: MemoryStore) -> None:
    with embedded(memory, segment_bytes=2000) as store:
        m = store.map("m")
        for number in range(200):
            m[number % 50] = number
            if number % 70 == 69:
                store.archive()
                assert segments(memory) == []
            if number % 13 == 0 and number % 50 in m:
                del m[number % 50]
        expected = dict(m.items())
        assert store.statistics.commits.rotations > 3
    with embedded(memory) as store:
        assert dict(store.map("m").items()) == expected
    assert contents(memory) == expected


@pytest.mark.parametrize("durability", ["always", "interval", "os", "async"])
def test_every_durability_keeps_all_entries_after_a_close(url: str, durability: Any) -> None:
    with imap_wal.open(url, node="n", durability=durability, sync_interval_ms=20) as store:
        m = store.map("m")
        for number in range(300):
            m[number] = number
        assert len(m) == 300
        store.sync()
    with imap_wal.open(url, node="n") as store:
        assert dict(store.map("m").items()) == {number: number for number in range(300)}


def test_a_barrier_makes_queued_changes_readable_by_others(memory: MemoryStore) -> None:
    store = embedded(memory, durability="async")
    for number in range(100):
        store.map("m")[number] = number
    store.sync()
    assert contents(memory) == {number: number for number in range(100)}
    store.close()


def test_every_open_has_an_incarnation_of_its_own(memory: MemoryStore) -> None:
    for _ in range(3):
        embedded(memory).close()
    manifests = ClusterManifestLog(
        Context(memory, clock=FakeClock(), randomness=SeededRandomness(1)), "default/embedded"
    )
    assert manifests.read()[1].incarnation == 3


def test_statistics_are_a_snapshot_of_numbers(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m").update(a=1, b=2)
        before = store.statistics
        store.map("m")["c"] = 3
        assert (before.entries, before.commits.records, before.commits.commits) == (2, 2, 1)
        assert (store.statistics.entries, store.statistics.commits.records) == (3, 3)
        assert before.commits.bytes > 50
