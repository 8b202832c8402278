"""Every operation of a map, asserted after everything was killed with SIGKILL and started again;
with two members, then with three."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from hazelcast.predicate import between, greater_or_equal, less

from tests.cluster.cluster import connect
from tests.cluster.history import Now, Scene, written
from tests.cluster.processes import ROOT
from tests.cluster.values import Add, Remove
from tests.cluster.waiting import until

# ---- single keys ----


@written
def put(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("put")
    assert orders.put("new", 1) is None
    assert orders.put("twice", 1) is None
    assert orders.put("twice", 2) == 1
    return {"new": 1, "twice": 2}


def test_put_is_restored(now: Now) -> None:
    """New keys, and keys that were put twice."""
    assert now.contents("put") == now.written("put")


@written
def set_(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("set")
    for value in range(20):
        orders.set("often", value)
    orders.set("once", "1")
    return {"often": 19, "once": "1"}


def test_set_is_restored(now: Now) -> None:
    """A key that was set once, and one that was set often."""
    assert now.contents("set") == now.written("set_")


@written
def put_if_absent(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("put-if-absent")
    assert orders.put_if_absent("a", 1) is None
    assert orders.put_if_absent("a", 2) == 1
    assert orders.try_put("tried", 3)
    return {"a": 1, "tried": 3}


def test_put_if_absent_and_try_put(now: Now) -> None:
    assert now.contents("put-if-absent") == now.written("put_if_absent")


@written
def replace(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("replace")
    orders.put_all({"a": 1, "b": 1, "c": 1})
    assert orders.replace("a", 2) == 1
    assert orders.replace("absent", 2) is None
    assert orders.replace_if_same("b", 1, 3)
    assert not orders.replace_if_same("c", 7, 4)
    return {"a": 2, "b": 3, "c": 1}


def test_replace_is_restored(now: Now) -> None:
    """With and without a condition."""
    assert now.contents("replace") == now.written("replace")


@written
def remove(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("remove")
    orders.put_all({f"k{number}": number for number in range(8)})
    assert orders.remove("k0") == 0
    orders.delete("k1")
    assert orders.remove_if_same("k2", 2)
    assert not orders.remove_if_same("k3", 7)
    assert orders.try_remove("k4")
    assert orders.remove("never there") is None
    orders.remove("k5")
    orders.put("k5", "again")
    return {"k3": 3, "k5": "again", "k6": 6, "k7": 7}


def test_remove_and_delete_are_restored(now: Now) -> None:
    """With and without a condition."""
    assert now.contents("remove") == now.written("remove")


# ---- many keys ----


@written
def put_all(scene: Scene) -> dict[Any, Any]:
    orders = {f"key-{number}": number for number in range(1000)}
    scene.map("put-all").put_all(orders)
    changes = {f"key-{number}": -number for number in range(0, 1000, 10)}
    scene.map("put-all").put_all(changes)
    return {**orders, **changes}


def test_put_all_is_restored(now: Now) -> None:
    """A thousand keys, of which some were changed."""
    assert now.contents("put-all") == now.written("put_all")
    assert now.map("put-all").get_all([f"key-{number}" for number in range(20)]) == {
        key: value
        for key, value in now.written("put_all").items()
        if int(key.removeprefix("key-")) < 20
    }


@written
def remove_all(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("remove-all")
    orders.put_all({number: number for number in range(100)})
    orders.remove_all(less("this", 60))
    return {number: number for number in range(60, 100)}


def test_remove_all_by_predicate(now: Now) -> None:
    assert now.contents("remove-all") == now.written("remove_all")


@written
def clear(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("clear")
    orders.put_all({number: number for number in range(100)})
    orders.clear()
    assert orders.size() == 0
    orders.set(5, "after")
    return {5: "after"}


def test_clear_is_restored(now: Now) -> None:
    """A put after the clear counts."""
    assert now.contents("clear") == now.written("clear")


# ---- code that runs on members ----


@written
def entry_processor(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("entry-processor")
    orders.put_all({f"k{number}": number for number in range(10)})
    assert orders.execute_on_key("k1", Add(100)) == 101
    assert orders.execute_on_key("new", Add(7)) == 7
    orders.execute_on_key("k2", Remove())
    assert dict(orders.execute_on_keys(["k3", "k4"], Add(1000))) == {"k3": 1003, "k4": 1004}
    orders.execute_on_keys(["k5", "never there"], Remove())
    orders.execute_on_entries(Add(10), between("this", 6, 7))
    orders.execute_on_entries(Remove(), greater_or_equal("this", 1004))
    return {"k0": 0, "k1": 101, "k3": 1003, "k6": 16, "k7": 17, "k8": 8, "k9": 9, "new": 17}


def test_entry_processor_update_and_null_on_key_keys_and_entries(now: Now) -> None:
    assert now.contents("entry-processor") == now.written("entry_processor")


@written
def java(scene: Scene) -> None:
    scene.cluster.members[0].ask("write")


def test_compute_and_merge_from_java(now: Now) -> None:
    now.written("java")
    expected = {"absent": 7, "local": 2, "merged": 11, "present": 2, "remote": 2}
    assert now.cluster.members[-1].ask("read")["compute"] == expected


def test_entry_processors_from_java(now: Now) -> None:
    now.written("java")
    expected = {"k0": 0, "k1": 101, "k5": 15, "k6": 16, "k7": 7, "k8": 8, "k9": 9, "new": 1}
    assert now.cluster.members[-1].ask("read")["processed"] == expected


def test_serializable_identified_and_compact_values_from_java(now: Now) -> None:
    now.written("java")
    assert now.cluster.members[-1].ask("read")["objects"] == {
        "bytes": "[0, -1, 127]",
        "compact": "Car Wartburg 353",
        "decimal": "BigDecimal 12345678901234567890.123456789",
        "enum": "State WAITING",
        "identified": "Parcel p-1 42",
        "map": "HashMap {a=1, b=zwei}",
        "serializable": "Order o-1 10.50 3",
    }


def test_keys_of_every_java_kind_are_found(now: Now) -> None:
    """Each in its own partition."""
    now.written("java")
    assert now.cluster.members[-1].ask("read")["keys"] == {
        "serializable": "serializable",
        "identified": "identified",
        "compact": "compact",
        "aware": "partition aware",
        "long": "long",
        "short": "short",
        "size": 6,
    }


def test_a_change_in_place_in_object_format_is_restored(now: Now) -> None:
    """An entry processor changed the object itself."""
    now.written("java")
    assert now.cluster.members[-1].ask("read")["object"] == "a 2"


# ---- transactions ----


@written
def transaction(scene: Scene) -> dict[Any, Any]:
    scene.map("transaction").put_all({"replaced": 1, "removed": 1, "deleted": 1, "kept": 1})
    with scene.client.new_transaction(timeout=30) as transaction:
        orders = transaction.get_map("transaction")
        orders.put("put", 1)
        orders.put("with a time to live", 1, ttl=3600)
        orders.set("set", 2)
        orders.put_if_absent("put-if-absent", 3)
        orders.replace("replaced", 4)
        orders.remove("removed")
        orders.delete("deleted")
    with pytest.raises(ZeroDivisionError), scene.client.new_transaction(timeout=30) as transaction:
        transaction.get_map("transaction").put("kept", 2)
        transaction.get_map("transaction").put("never", 2)
        raise ZeroDivisionError
    return {
        "kept": 1,
        "put": 1,
        "with a time to live": 1,
        "set": 2,
        "put-if-absent": 3,
        "replaced": 4,
    }


def test_transaction_committed_and_rolled_back(now: Now) -> None:
    assert now.contents("transaction") == now.written("transaction")
    assert now.expiry("transaction", "with a time to live") > 0


# ---- time to live ----


@written
def time_to_live(scene: Scene) -> dict[str, int]:
    orders = scene.map("ttl")
    orders.put("put", 1, ttl=3600)
    orders.set("set", 1, ttl=1800)
    orders.put_if_absent("put-if-absent", 1, ttl=900)
    orders.put("none", 1)
    orders.put("taken away", 1, ttl=3600)
    orders.set("taken away", 2)
    orders.put("replaced", 1, ttl=3600)
    orders.replace("replaced", 2)
    orders.put("set_ttl", 1)
    start = time.monotonic()
    orders.set_ttl("set_ttl", 7200)
    assert time.monotonic() - start < 4, (
        "the backup of set_ttl was refused: clients wait five seconds for its acknowledgement"
    )
    orders.put("longer", 1, ttl=60)
    orders.set_ttl("longer", 7200)
    orders.put("without end", 1, ttl=3600)
    orders.set_ttl("without end", 0)
    orders.put("processed", 1, ttl=3600)
    orders.execute_on_key("processed", Add(1))
    orders.put("over before the kill", 1, ttl=1)
    orders.put("shortened", 1)
    orders.set_ttl("shortened", 1)
    scene.map("short-lived-by-configuration").put("a", 1)
    until(
        "entries that expire at once are gone",
        lambda: orders.get("over before the kill") is None and orders.get("shortened") is None,
        20,
    )
    return {key: scene.expiry("ttl", key) for key in orders.key_set()}


def test_time_to_live_continues_where_it_was(now: Now) -> None:
    """It does not begin again after a restart."""
    before = now.written("time_to_live")
    after = {key: now.expiry("ttl", key) for key in now.map("ttl").key_set()}
    assert sorted(after) == sorted(before)
    # A member keeps expiry in whole seconds since its own start.
    assert after == {key: pytest.approx(expiry, abs=1000) for key, expiry in before.items()}
    assert 0 < now.expiry("short-lived-by-configuration", "a") - time.time() * 1000 < 3_600_000


@written
def time_to_live_that_ends_during_a_stop(scene: Scene) -> None:
    orders = scene.map("ttl-over-in-between")
    orders.put("over", 1, ttl=8)
    orders.put("not over", 1, ttl=3600)


def test_entries_that_expire_during_a_stop_stay_expired(now: Now) -> None:
    """One agent's clock is five minutes slow."""
    now.written("time_to_live_that_ends_during_a_stop")
    # That agent sends entries that have expired; the member drops them.
    until(
        "the time to live is over", lambda: now.map("ttl-over-in-between").get("over") is None, 20
    )
    assert now.contents("ttl-over-in-between") == {"not over": 1}


# ---- not stored, and not forgotten ----


@written
def put_transient(scene: Scene) -> dict[Any, Any]:
    orders = scene.map("transient")
    orders.put("logged", 1)
    orders.put("logged, then not", 1)
    orders.put_transient("logged, then not", 2)
    orders.put_transient("not logged", 2)
    assert orders.get("not logged") == 2
    return {"logged": 1, "logged, then not": 1}


def test_put_transient_is_not_stored(now: Now) -> None:
    assert now.contents("transient") == now.written("put_transient")


@written
def destroy(scene: Scene) -> list[str]:
    """One map through each member: the member that a client asks sends an operation to the others,
    and none to itself."""
    names = []
    for number, member in enumerate(scene.cluster.running, 1):
        name = f"destroyed-{number}"
        client = connect([member.address], scene.cluster.name, smart_routing=False)
        client.get_map(name).put_all({f"k{key}": key for key in range(50)}).result()
        client.get_map(name).destroy()
        again = client.get_map(name).blocking()
        assert again.size() == 0, name
        assert again.get("k1") is None, name
        again.set("k0", "after")
        client.shutdown()
        names.append(name)
    return names


def test_destroyed_map_has_only_what_was_written_to_it_afterwards(now: Now) -> None:
    names = now.written("destroy")
    assert len(names) > 1
    assert {name: now.contents(name) for name in names} == {name: {"k0": "after"} for name in names}


@written
def drop(scene: Scene) -> dict[Any, Any]:
    scene.map("dropped").put_all({f"k{number}": number for number in range(50)})
    scene.map("not dropped").put_all({f"k{number}": number for number in range(50)})
    scene.client.get_map("dropped").destroy()
    command = [
        sys.executable,
        "-m",
        "rewrite_cli.cli",
        "drop",
        scene.cluster.url,
        "--map",
        "dropped",
        "--yes",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    again = scene.map("dropped")
    assert until("the map is back", lambda: again.size() == 0)
    assert again.get("k0") is None
    again.put("k1", "after")
    return {"k1": "after"}


def test_a_dropped_map_has_only_later_writes(now: Now) -> None:
    """The entries from before the drop are not restored."""
    assert now.contents("dropped") == now.written("drop")
    assert now.map("not dropped").size() == 50
