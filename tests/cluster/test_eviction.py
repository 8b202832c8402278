"""Evicted entries are read from the log, also after everything was killed with SIGKILL."""

from __future__ import annotations

from typing import Any

from tests.cluster.history import Now, Scene, written
from tests.cluster.waiting import until


@written
def evict_with_read_through(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("through-evict")
    orders.put_all({"read": 1, "written": 1, "removed": 1, "deleted": 1, "asked for": 1})
    orders.set("read", 2)
    for key in ("read", "written", "removed", "deleted", "asked for"):
        assert orders.evict(key)
    assert orders.get("read") == 2
    assert orders.put_if_absent("asked for", 7) == 1
    assert orders.put("written", 3) == 1
    assert orders.remove("removed") == 1
    orders.delete("deleted")
    assert orders.get("removed") is None
    assert orders.get("deleted") is None
    orders.evict_all()
    assert orders.get_all(["read", "written", "removed"]) == {"read": 2, "written": 3}
    orders.evict_all()
    return {"read": 2, "written": 3, "asked for": 1}


def test_evicted_entries_are_read_and_removed_ones_stay_removed(now: Now) -> None:
    """With read-through."""
    expected = now.written("evict_with_read_through")
    assert now.contents("through-evict") == expected
    orders = now.map("through-evict")
    orders.evict_all()
    assert orders.size() == 0
    assert {key: orders.get(key) for key in (*expected, "removed", "deleted")} == {
        **expected,
        "removed": None,
        "deleted": None,
    }


@written
def evict_without_read_through(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("evict")
    orders.put_all(
        {"evicted": 1, "evicted, then removed": 1, "evicted, not read": 1, "in memory": 1}
    )
    for key in ("evicted", "evicted, then removed", "evicted, not read"):
        assert orders.evict(key)
    assert orders.get("evicted") == 1  # read from the log
    orders.delete("evicted, then removed")
    others = scene.map("evict-all")
    others.put_all({"a": 1, "b": 2})
    others.evict_all()
    assert others.size() == 0
    others.clear()
    assert others.get("a") is None
    return {"evicted": 1, "evicted, not read": 1, "in memory": 1}


def test_evicted_entries_are_restored_by_a_restart(now: Now) -> None:
    """The map has no read-through; its evicted entries are also read from the log when they are
    asked for."""
    assert now.contents("evict") == now.written("evict_without_read_through")
    assert now.contents("evict-all") == {}


@written
def evict_by_size(scene: Scene) -> int:
    orders = scene.map("evicting-by-size")
    orders.put_all({number: number for number in range(3000)})
    orders.put_all({number: -number for number in range(0, 3000, 3)})
    for number in range(300):
        orders.delete(number)
    until("entries are evicted", lambda: orders.size() < 2500, 30)
    return 3000


def test_a_map_with_a_size_limit_answers_evicted_keys(now: Now) -> None:
    count = now.written("evict_by_size")
    assert now.map("evicting-by-size").size() < count - 300
    seen = now.map("evicting-by-size").get_all(list(range(count)))
    assert seen == {number: -number if number % 3 == 0 else number for number in range(300, count)}


def test_a_put_of_a_new_key_reads_no_log(now: Now) -> None:
    """The map never evicts, so all of its keys are in memory."""
    orders = now.map(f"no-hop-{now.members}")
    orders.put("first", 1)
    before = now.reads()
    for number in range(100):
        assert orders.put(number, number) is None
        assert orders.put_if_absent(f"absent {number}", number) is None
        assert orders.get(f"never there {number}") is None
    assert now.reads() == before


def test_a_put_in_an_evicting_map_reads_the_log(now: Now) -> None:
    """The key may have been evicted."""
    orders = now.map(f"through-hop-{now.members}")
    orders.put("first", 1)
    before = now.reads()
    for number in range(10):
        assert orders.put(number, number) is None
    assert now.reads() > before
