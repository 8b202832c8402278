"""Memory has keys and simple values as objects, and shows what the bytes in the log say."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import imap_wal
from imap_wal.embedded.changes import Clear, MapState, WriteBatch
from imap_wal.embedded.held_keys import AsBytes, AsObjects, ForeignKey, held_keys
from imap_wal.embedded.views import MapReads
from imap_wal.errors import Closed, Fenced, NotReadable
from imap_wal.serializer import MsgpackSerializer, PickleSerializer, RawSerializer
from imap_wal.typed import TypedSerializer
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, Threads, embedded

KEYS: list[Any] = ["", "a", "b" * 40, 0, 1, 300, -5, b"", b"a", 1.5, ("a", 1), None, frozenset("x")]
"""Equal keys of other types are tried with the operations."""
EQUALS: list[Any] = [*KEYS, True, 1.0, 0.0, False, memoryview(b"a")]
FOREIGN = [
    b"\xd9\x01a",  # "a" with a longer header
    b"\xcd\x00\x01",  # 1 in three bytes
    b"\xc3",  # True, whose key is 1
    b"\xcb" + struct.pack(">d", float("nan")),
    b"\xa2a",  # cut off
    b"\x80",  # a dict
    b"",
    b"\xc1",
]
VALUES: list[Any] = ["", "text", "é" * 9, 7, -1, 2.5, True, False, None, b"bytes", [1], {"a": "b"}]
ODD_VALUES = [b"\xd9\x01v", b"\xcd\x00\x07", b"\xca\x3f\x80\x00\x00"]
"""Readable, but not as the serializer writes them."""
serializer = MsgpackSerializer()

STEP = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(EQUALS), st.sampled_from(VALUES), st.booleans()),
    st.tuples(st.just("expiring"), st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.tuples(st.just("delete"), st.sampled_from(EQUALS)),
    st.tuples(st.just("logged"), st.sampled_from(FOREIGN), st.sampled_from(ODD_VALUES)),
    st.tuples(st.just("logged"), st.sampled_from(KEYS), st.sampled_from(ODD_VALUES)),
    st.tuples(st.just("later"), st.integers(1, 3)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("open"), st.booleans()),
    st.tuples(st.just("look")),
)


class Changed(MsgpackSerializer):
    """Finds keys without their case."""

    def dump_key(self, key: Any) -> bytes:
        return super().dump_key(key.lower() if isinstance(key, str) else key)


class Owner:
    """A store that is open."""

    closed = False

    def __init__(self) -> None:
        self.clock = FakeClock()

    def check_open(self) -> None:
        pass

    def now_ms(self) -> int:
        return self.clock.now_ms()


class Pair:
    """A map in memory, and a dict of bytes that gets the same changes."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.state = MapState("m", serializer)
        self.map: MapReads[Any, Any] = MapReads(self.owner, self.state)
        self.model: dict[bytes, tuple[bytes, int]] = {}

    def take(self, key: bytes, value: bytes | None, expires_at_ms: int = 0) -> None:
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = value, expires_at_ms

    def step(self, kind: str, *fields: Any) -> None:
        now = self.owner.now_ms()
        match kind, *fields:
            case "put", key, value, bool(with_objects):
                data = serializer.dump_key(key)
                changes = WriteBatch(self.state, [data], [serializer.dump(value)])
                if with_objects and type(key) in self.state.held.simple:
                    changes.objects = [key]
                self.state.apply(changes)
                self.take(data, changes.values[0])
            case "expiring", key, value:
                data, written = serializer.dump_key(key), serializer.dump(value)
                self.state.apply(WriteBatch(self.state, [data], [written], {0: now + 2000}))
                self.take(data, written, now + 2000)
            case "delete", key:
                data = serializer.dump_key(key)
                self.state.apply(WriteBatch(self.state, [data], [None]))
                self.take(data, None)
            case "logged", key, value:
                data = key if key in FOREIGN else serializer.dump_key(key)
                self.state.set(data, value)
                self.take(data, value)
            case "later", seconds:
                self.owner.clock.advance(seconds)
            case ("clear",):
                self.state.apply(Clear(self.state, []))
                self.model.clear()
            case "end", last:
                entry = self.state.end(now, set(), last=last)
                assert (entry is None) == (not self.alive())
                if entry is not None:
                    data = self.state.held.data(entry[0])
                    assert self.state.bytes_of(entry[1]) == self.alive()[data]
            case "open", own_keys:
                self.state.use(Changed() if own_keys else MsgpackSerializer())
            case ("look",):
                self.compare()

    def alive(self) -> dict[bytes, bytes]:
        now = self.owner.now_ms()
        return {key: value for key, (value, at) in self.model.items() if not at or now < at}

    def compare(self) -> None:
        """Two times: the first read may change the form of values."""
        alive, now = self.alive(), self.owner.now_ms()
        assert len(self.map) == len(alive)
        for _ in range(2):
            for key in EQUALS:
                data = serializer.dump_key(key)
                written = alive.get(data)
                assert (key in self.map) is (written is not None)
                assert self.state.get(data, now) == written
                if written is not None:
                    value = serializer.load(written)
                    own = self.map[key]
                    assert own == value and type(own) is type(value)
                    assert type(value) not in (list, dict) or self.map[key] is not own
                assert self.map.get(key, "no") == (value if written is not None else "no")
            for data in FOREIGN:
                assert self.state.get(data, now) == alive.get(data)
            assert sorted(zip(*self.state.rows(now), strict=True)) == sorted(alive.items())
            if not any(data in FOREIGN for data in alive):
                expected = [(serializer.load_key(k), serializer.load(v)) for k, v in alive.items()]
                assert sorted(self.map.items(), key=repr) == sorted(expected, key=repr)
                assert sorted(self.map.values(), key=repr) == sorted(
                    (value for _, value in expected), key=repr
                )


@given(st.lists(STEP, max_size=40), st.booleans())
def test_memory_equals_a_dict_of_bytes(steps: list[tuple[Any, ...]], opened: bool) -> None:
    pair = Pair()
    if opened:
        pair.state.use(serializer)
    for step in steps:
        pair.step(*step)
    pair.compare()


@pytest.mark.parametrize("data", FOREIGN)
def test_a_foreign_key_is_not_another_key(data: bytes) -> None:
    held = held_keys(serializer)
    keys = held.all_held([serializer.dump_key("a"), data, serializer.dump_key(1)])
    assert keys == ["a", ForeignKey(data), 1]
    assert [*map(held.data, keys)] == [serializer.dump_key("a"), data, serializer.dump_key(1)]
    state = MapState("m", serializer)
    state.use(serializer)
    state.set(data, b"\x07")
    owner = Owner()
    try:
        key = serializer.load_key(data)
    except NotReadable:
        with pytest.raises(NotReadable, match=r"^m\["):
            list(MapReads(owner, state))
    else:
        assert repr(list(MapReads(owner, state))) == repr([key])


def test_bytes_that_are_a_key_only_together_are_foreign() -> None:
    """The first has the header of two letters, and one of them: the second would be the other."""
    parts = [b"\xa2a", b"b\x01"]
    assert msgpack.unpackb(b"\x92" + b"".join(parts)) == ["ab", 1]
    assert held_keys(serializer).all_held(parts) == [ForeignKey(part) for part in parts]


@pytest.mark.parametrize(
    ("given_serializer", "kind", "keeps"),
    [
        (MsgpackSerializer(), AsObjects, True),
        (PickleSerializer(), AsObjects, True),
        (TypedSerializer(str, int), AsObjects, True),
        (TypedSerializer(tuple[str, int], int), AsBytes, False),
        (Changed(), AsBytes, False),
        (RawSerializer(), AsBytes, False),
    ],
)
def test_a_serializer_decides_the_form(given_serializer: Any, kind: Any, keeps: bool) -> None:
    held = held_keys(given_serializer)
    assert isinstance(held, kind) and held.keeps_values is keeps


def test_a_serializer_of_the_user_decides_which_keys_are_equal(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m", serializer=Changed())
        m["A"] = 1
        assert m["a"] == m.get("A") == 1 and "A" in m and list(m) == ["a"]


def test_values_that_can_change_are_never_shared(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m: Any = store.map("m")
        m["k"] = [1]
        for _ in range(2):
            m["k"].append(2)
            m.get("k").append(2)
            for value in m.values():
                value.append(2)
            assert m["k"] == [1]


def test_objects_and_bytes_are_iterated_in_chunks(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {number: [number] if number % 2 else str(number) for number in range(2500)}
    with embedded(memory) as store:
        m: Any = store.map("m")
        m.update(content)
        monkeypatch.setattr(MapState, "loaded", lambda *_: pytest.fail("one by one"))
        for _ in range(2):  # the texts are objects after the first time
            assert dict(m.items()) == content


def test_a_text_that_would_take_more_memory_stays_bytes(memory: MemoryStore) -> None:
    """Four bytes for each letter, because of one."""
    with embedded(memory) as store:
        m: Any = store.map("m")
        m["wide"], m["plain"] = "x" * 1000 + "\U0001f600", "x" * 1000
        assert m["wide"] == m["wide"] and m["plain"] == m["plain"]
        assert type(m._state.values["wide"]) is bytes and type(m._state.values["plain"]) is str


def test_other_bytes_of_a_value_stay_for_comparisons() -> None:
    state = MapState("m", serializer)
    state.use(serializer)
    for value in ODD_VALUES:
        state.set(serializer.dump_key("k"), value)
        assert state.loaded("k", value) == serializer.load(value)
        assert state.get(serializer.dump_key("k"), 0) == value


def test_a_read_never_brings_an_older_value_back() -> None:
    """A put between the read of the bytes and the moment when the object takes their place."""
    state = MapState("m", serializer)
    state.use(serializer)
    key, old, new = serializer.dump_key("k"), serializer.dump("old"), serializer.dump("new")
    state.set(key, old)

    def values() -> Iterator[Any]:
        yield state.values["k"]
        state.set(key, new)

    assert list(state.all_loaded(["k"], values())) == ["old"]
    assert state.get(key, 0) == new


@pytest.mark.parametrize("key", ["k", "absent"])
def test_every_read_after_the_end_is_refused(memory: MemoryStore, key: str) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m["k"] = "v"
        assert m.get(key) == m.get(key) and (key in m) is (key == "k")
    for read in (m.__getitem__, m.get, m.__contains__):
        with pytest.raises(Closed):
            read(key)


def test_a_forked_child_reads_nothing(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m["k"] = "v"
        assert m["k"] == m["k"]
        child = os.fork()
        if not child:
            refused = 0
            for read in (m.__getitem__, m.get, m.__contains__):
                try:
                    read("k")
                except Fenced:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert m["k"] == "v"


def test_a_time_to_live_ends_and_begins_quick_reads(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        m["stays"] = m["goes"] = "v"
        assert m["stays"] == "v" and m._state.quick
        m.put("goes", "v", ttl=1)
        assert m["goes"] == "v" and not m._state.quick
        clock.advance(2)
        assert "goes" not in m and m.get("goes") is None and m["stays"] == "v"
        m.put("other", "v")
        assert len(m) == 2 and m._state.quick and "goes" not in m


def test_readers_see_each_change_while_entries_expire(memory: MemoryStore) -> None:
    """What a thread has put, it reads; what has expired, nothing reads."""
    clock = FakeClock()
    with embedded(memory, durability="os", clock=clock) as store:
        m = store.map("m")

        def work(name: str) -> None:
            for number in range(150):
                m[name] = number
                assert m[name] == number and name in m
                m.put(f"{name} once", number, ttl=0.001)
                clock.advance(0.002)
                assert m.get(f"{name} once") is None
                assert dict(m.items())[name] == number

        threads = Threads(*(lambda name=name: work(name) for name in "abc"))
        threads.join()


def test_forms_agree_over_a_restart(memory: MemoryStore) -> None:
    content = dict(zip(KEYS, [*VALUES, "last"], strict=True))
    with embedded(memory) as store:
        store.map("m").update(content)
    with imap_wal.open(memory.url, node="n1", storage=memory) as store:
        m = store.map("m")
        assert dict(m.items()) == dict(m.items()) == content
        assert {key: m[key] for key in content} == content
