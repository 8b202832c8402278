"""Entries of an embedded map expire, and remain expired."""

from __future__ import annotations

import threading

import pytest

from imap_wal.errors import InvalidSetting
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, Threads, embedded


def test_entry_lifetime_is_kept_across_restarts(memory: MemoryStore) -> None:
    """It does not begin again."""
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
    """Also if the program only puts and gets."""
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m")
        for number in range(500):
            m.put(number, "x", ttl=1)
            clock.advance(0.1)
        assert store.statistics.entries < 20
        assert len(m._state._deadlines) < 20


def test_counting_in_many_threads_removes_only_expired_entries(memory: MemoryStore) -> None:
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
