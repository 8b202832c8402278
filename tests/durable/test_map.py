"""The embedded map is a dict that is still there after a restart, and says what it cannot keep."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import (
    Closed,
    CorruptLog,
    InvalidSetting,
    NotAppended,
    NotSerializable,
    StorageUnavailable,
    TooLarge,
    UnsupportedVersion,
)
from imap_wal.log import LogReader
from imap_wal.manifest.cluster import cluster_manifests
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.support import (
    FakeClock,
    SeededRandomness,
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
KEYS: list[Any] = [None, True, 0, -1, 2**63, 1.5, "", "a", b"a", (), (1, "a", (b"b",))]


def test_put_survives_a_clean_reopen_and_a_kill(url: str, memory: MemoryStore) -> None:
    """What was put is there after a clean reopen and after a kill."""
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


def test_a_map_may_be_changed_while_it_is_walked(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m.update({number: number for number in range(100)})
        for key in m:
            del m[key]
        assert len(m) == 0


def test_get_gives_what_a_reopen_would_give(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        value = {"list": (1, 2), "nested": {"a": bytearray(b"x")}}
        m["k"] = value
        given = m["k"]
        value["list"] = "changed"
        given["list"].append(3)
        assert m["k"] == {"list": [1, 2], "nested": {"a": b"x"}}
        assert contents(memory) == {"k": m["k"]}


def test_maps_of_one_store_are_separate(memory: MemoryStore) -> None:
    """Several maps of one store are apart whatever they are called."""
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
        raw = store.map("m", raw=True)
        raw[b"k"] = b"v"
        raw[bytearray(b"l")] = memoryview(b"w")
        with pytest.raises(NotSerializable, match="takes bytes, not str"):
            raw[b"k"] = "text"
        with pytest.raises(NotSerializable):
            raw["k"]
        assert dict(raw.items()) == {b"k": b"v", b"l": b"w"}
    with embedded(memory) as store:
        assert dict(store.map("m", raw=True).items()) == {b"k": b"v", b"l": b"w"}
        assert dict(store.map("m").items()) == {b"k": b"v", b"l": b"w"}, (
            "the log knows how it was written"
        )


class Json:
    name = "json"

    def dump(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def load(self, data: bytes) -> Any:
        return json.loads(data)

    dump_key = dump
    load_key = load


def test_custom_serializer_is_required_after_a_reopen(memory: MemoryStore) -> None:
    """A serializer of one's own is asked for again after a reopen."""
    with embedded(memory) as store:
        store.map("m", serializer=Json())["k"] = {"a": [1]}
        with pytest.raises(InvalidSetting, match=r"written by serializer 'json', not 'raw'"):
            store.map("m", raw=True)
    with embedded(memory) as store:
        with pytest.raises(InvalidSetting, match="'json'; pass it to map"):
            store.map("m")
        assert store.map("m", serializer=Json())["k"] == {"a": [1]}
        assert store.map("m")["k"] == {"a": [1]}
    with embedded(memory, serializer=Json()) as store:
        assert store.map("m")["k"] == {"a": [1]}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.__setitem__(object(), 1),
        lambda m: m.__setitem__("k", object()),
        lambda m: m.__setitem__("k", {1, 2}),
        lambda m: m.__setitem__("k", 2**64),
        lambda m: m.__setitem__("k", "\ud800"),
        lambda m: m.update({"x": 1, "y": object()}),
        lambda m: m.put("k", lambda: 0, ttl=5),
        lambda m: m.__setitem__("k", _endless()),
    ],
)
def test_unserializable_value_appends_nothing(
    memory: MemoryStore, change: Callable[[Any], None]
) -> None:
    """What msgpack cannot write is not serializable and nothing is appended."""
    with embedded(memory) as store:
        m = store.map("m")
        m["before"] = 1
        size = store.statistics.commits.bytes
        with pytest.raises(NotSerializable) as raised:
            change(m)
        assert isinstance(raised.value, NotAppended)
        assert isinstance(raised.value, TypeError)
        assert store.statistics.commits.bytes == size
        m["after"] = 2
        assert dict(m.items()) == {"before": 1, "after": 2}
    assert contents(memory) == {"before": 1, "after": 2}


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_a_value_of_64_megabytes_is_kept(url: str) -> None:
    value = bytes(range(256)) * (64 * 1024 * 4)
    with imap_wal.open(url, node="n") as store:
        store.map("m")["big"] = value
        store.map("m")["small"] = 1
    with imap_wal.open(url, node="n") as store:
        assert store.map("m")["big"] == value
        assert store.map("m")["small"] == 1


def test_value_above_the_limit_appends_nothing(memory: MemoryStore) -> None:
    """A value above the limit is refused and nothing is appended."""
    with embedded(memory, max_value_bytes=1000) as store:
        m = store.map("m", raw=True)
        m[b"k"] = b"x" * 999
        for change in (
            lambda: m.put(b"k", b"x" * 1000),
            lambda: m.update({b"a": b"1", b"b": b"x" * 1000}),
            lambda: m.put(b"y" * 1001, b""),
        ):
            with pytest.raises(TooLarge, match="max_value_bytes is 1000") as raised:
                change()
            assert isinstance(raised.value, NotAppended | ValueError)
        assert store.statistics.commits.records == 1
        assert len(m) == 1


def test_entry_lifetime_is_kept_across_restarts(memory: MemoryStore) -> None:
    """An entry has its lifetime also across restarts."""
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        m.put("short", 1, ttl=1.5)
        m.put("long", 2, ttl=3600)
        m.put("again", 3, ttl=1)
        m["again"] = 4
        m.put("shorter", 5)
        m.put("shorter", 6, ttl=1)
        assert m.ttl("short") == 1.5
        assert m.ttl("again") is None
        with pytest.raises(KeyError):
            m.ttl("absent")
        clock.advance(1.499)
        assert m["short"] == 1
        assert m.ttl("short") == 0.001
        clock.advance(0.001)
        assert "short" not in m
        assert m.get("short") is None
        with pytest.raises(KeyError):
            m["short"]
        with pytest.raises(KeyError):
            del m["short"]
        assert dict(m.items()) == {"long": 2, "again": 4}
        assert len(m) == 2
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        assert dict(m.items()) == {"long": 2, "again": 4}
        assert m.ttl("long") == 3598.5
        clock.advance(3599)
        assert dict(m.items()) == {"again": 4}


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_ttl_that_is_over_before_it_begins_is_refused(memory: MemoryStore, ttl: float) -> None:
    with embedded(memory) as store, pytest.raises(InvalidSetting, match="more than 0"):
        store.map("m").put("k", 1, ttl=ttl)


def test_expired_entries_are_removed_from_memory(
    memory: MemoryStore,
) -> None:
    """What has expired is forgotten in memory also by a program that only puts and gets."""
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        for number in range(500):
            m.put(number, "x", ttl=1)
            clock.advance(0.1)
        assert store.statistics.entries < 20
        assert len(m._state._deadlines) < 20


def test_counting_a_map_from_many_threads_forgets_only_what_expired(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock, durability="os") as store:
        m = store.map("m")
        stop = threading.Event()

        def count() -> None:
            while not stop.is_set():
                len(m)

        def change() -> None:
            try:
                for number in range(300):
                    m.put("same", number, ttl=0.001)
                    m.put(f"dies{number}", 1, ttl=0.5)
                    m.put(f"lives{number}", number, ttl=1000)
                    clock.advance(0.002)
                    m["same"] = number
                    assert m["same"] == number
            finally:
                stop.set()

        Threads(count, count, count, change).join()
        assert {key for key in m if key.startswith("lives")} == {
            f"lives{number}" for number in range(300)
        }
        assert m["same"] == 299


def test_an_update_is_one_commit(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m").update({number: number for number in range(10_000)})
        assert store.statistics.commits.commits == store.statistics.commits.syncs == 1
        store.map("m").clear()
        assert store.statistics.commits.commits == 2


def test_update_above_the_frame_count_is_refused_whole(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of more changes than a frame counts is refused whole."""
    monkeypatch.setattr("imap_wal.embedded.map_writer.COUNT_MAX", 5)
    with embedded(memory) as store:
        with pytest.raises(TooLarge, match="6 changes"):
            store.map("m").update({number: number for number in range(6)})
        store.map("m").update({number: number for number in range(5)})
    assert len(contents(memory)) == 5


def test_truncated_update_is_present_whole_or_absent(memory: MemoryStore, seed: int) -> None:
    """An update cut at any place is there whole or not at all."""
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
    """Changes of one key by many threads go through one queue and memory ends as the log says.
    Each change has a number and a place of its own, both rise in the order in which memory was
    changed."""
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


def test_a_closed_store_says_so_and_closing_twice_is_fine(memory: MemoryStore) -> None:
    store = embedded(memory)
    m = store.map("m")
    m["a"] = 1
    store.close()
    store.close()
    for use in (
        lambda: m.__setitem__("a", 2),
        lambda: m.clear(),
        lambda: store.map("m"),
        lambda: store.sync(),
        lambda: store.archive(),
    ):
        with pytest.raises(Closed, match="open it again"):
            use()


def test_reads_of_a_closed_store_are_refused(memory: MemoryStore) -> None:
    """Reads of a closed store are refused and give no old value."""
    store = embedded(memory)
    m = store.map("m")
    m["a"] = 1
    store.close()
    reads: list[Callable[[], Any]] = [
        lambda: m["a"],
        lambda: m.get("a"),
        lambda: "a" in m,
        lambda: len(m),
        lambda: iter(m),
        lambda: list(m.keys()),
        lambda: list(m.items()),
        lambda: list(m.values()),
        lambda: dict(m),
        lambda: m == {"a": 1},
        lambda: m.ttl("a"),
        lambda: m.pop("a"),
        m.popitem,
        lambda: m.setdefault("a"),
        lambda: m.update({}),
        store.maps,
    ]
    for read in reads:
        with pytest.raises(Closed, match="open it again"):
            read()
    assert repr(m) == "<DurableMap 'm' closed>"


def test_rotation_and_archive_lose_nothing_and_segments_go(memory: MemoryStore) -> None:
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
def test_every_durability_keeps_what_was_closed(url: str, durability: str) -> None:
    with imap_wal.open(url, node="n", durability=durability, sync_interval_ms=20) as store:
        m = store.map("m")
        for number in range(300):
            m[number] = number
        assert len(m) == 300
        store.sync()
    with imap_wal.open(url, node="n") as store:
        assert dict(store.map("m").items()) == {number: number for number in range(300)}


def test_a_barrier_makes_what_the_ring_held_readable_by_others(memory: MemoryStore) -> None:
    store = embedded(memory, durability="async")
    for number in range(100):
        store.map("m")[number] = number
    store.sync()
    assert contents(memory) == {number: number for number in range(100)}
    store.close()


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://relative/path", "three slashes"),
        ("nosuch://bucket/x", "nosuch"),
        ("file:///dev/null/x", "/dev/null/x"),
        ("file:///proc/nothing", "/proc/nothing"),
    ],
)
def test_a_wrong_url_is_an_error_that_names_it(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageUnavailable, match=says):
        imap_wal.open(url)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"durability": "sometimes"},
            "durability is 'sometimes'; it takes one of always, interval, os, async",
        ),
        ({"ring_slots": 100}, "ring_slots is 100; it takes a power of two"),
        ({"segment_bytes": 0}, "segment_bytes is 0; it takes 1 or more"),
        ({"max_value_bytes": 2**31}, "max_value_bytes"),
        ({"segment_size": 1}, "segment_size"),
        ({"recovery_policy": "none"}, "recovery_policy"),
        ({"archive_interval_s": -1}, "archive_interval_s is -1"),
        ({"segment_bytes": "64M"}, "segment_bytes is '64M'; it takes a whole number"),
        ({"preallocate": "no"}, "preallocate is 'no'; it takes true or false"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_created(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidSetting, match=says):
        imap_wal.open(f"file://{tmp_path}/log", **settings)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_name_of_node_cluster_or_namespace_is_refused(url: str) -> None:
    for name in ("namespace", "cluster"):
        with pytest.raises(InvalidSetting, match="must not be empty"):
            imap_wal.open(url, **{name: ""})


def test_a_log_of_a_newer_version_is_not_touched(memory: MemoryStore) -> None:
    import struct

    import google_crc32c

    store = embedded(memory)
    store.map("m")["a"] = 1
    left = copy_files(memory)
    path = segments(left)[0]
    data = bytearray(left.read(path))
    length = struct.unpack_from("<H", data, 10)[0]
    data[8:10] = struct.pack("<H", 7)
    data[12 + length : 16 + length] = struct.pack(
        "<I", google_crc32c.value(bytes(data[: 12 + length]))
    )
    overwrite(left, path, bytes(data))
    with pytest.raises(UnsupportedVersion, match="version 7"):
        embedded(left)
    assert left.read(path) == bytes(data)


def test_damaged_sealed_frame_stops_open_after_clean_shutdown(url: str, tmp_path: Path) -> None:
    """A damaged frame in a sealed segment stops the open even after a clean shutdown."""
    with imap_wal.open(url, node="n", segment_bytes=1000) as store:
        for number in range(50):
            store.map("m")[number] = "x" * 50
    files = LocalStore(f"{tmp_path}/log")
    path = segments(files)[1]
    data = bytearray(files.read(path))
    data[400] ^= 1
    overwrite(files, path, bytes(data))
    with pytest.raises(CorruptLog) as raised:
        imap_wal.open(url, node="n")
    assert raised.value.file == path
    data[400] ^= 1
    overwrite(files, path, bytes(data))
    with imap_wal.open(url, node="n") as store:
        assert len(store.map("m")) == 50


def test_every_open_has_an_incarnation_of_its_own(memory: MemoryStore) -> None:
    for _ in range(3):
        embedded(memory).close()
    manifests = cluster_manifests(memory, "default/embedded", FakeClock(), SeededRandomness(1))
    assert manifests.read()[1].incarnation == 3


def test_statistics_are_a_snapshot_of_numbers(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m").update(a=1, b=2)
        before = store.statistics
        store.map("m")["c"] = 3
        assert (before.entries, before.commits.records, before.commits.commits) == (2, 2, 1)
        assert (store.statistics.entries, store.statistics.commits.records) == (3, 3)
        assert before.commits.bytes > 50
