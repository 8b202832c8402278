"""Every operation of a map, asserted after everything was killed with SIGKILL and started again;
with two members, then with three."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hazelcast.core import HazelcastJsonValue
from hazelcast.errors import HazelcastError
from hazelcast.predicate import between, greater_or_equal, less, sql

from tests.cluster.harness import ROOT, connect, until
from tests.cluster.history import Now, Scene, log_view, written
from tests.cluster.values import CLIENT_OPTIONS, Add, Flight, Leg, Parcel, Remove

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
    orders.put("for ever", 1, ttl=3600)
    orders.set_ttl("for ever", 0)
    orders.put("processed", 1, ttl=3600)
    orders.execute_on_key("processed", Add(1))
    orders.put("over before the kill", 1, ttl=1)
    orders.put("shortened", 1)
    orders.set_ttl("shortened", 1)
    scene.map("short-lived-by-configuration").put("a", 1)
    until(
        "what expires at once is gone",
        lambda: orders.get("over before the kill") is None and orders.get("shortened") is None,
        20,
    )
    return {key: scene.expiry("ttl", key) for key in orders.key_set()}


def test_time_to_live_continues_where_it_was(now: Now) -> None:
    """It does not begin again after a restart."""
    before = now.written("time_to_live")
    after = {key: now.expiry("ttl", key) for key in now.map("ttl").key_set()}
    assert sorted(after) == sorted(before)
    # A member keeps expiry in whole seconds since a start of its own.
    assert after == {key: pytest.approx(expiry, abs=1000) for key, expiry in before.items()}
    assert 0 < now.expiry("short-lived-by-configuration", "a") - time.time() * 1000 < 3_600_000


@written
def time_to_live_that_ends_while_nobody_runs(scene: Scene) -> None:
    orders = scene.map("ttl-over-in-between")
    orders.put("over", 1, ttl=8)
    orders.put("not over", 1, ttl=3600)


def test_what_expires_while_everything_is_down_stays_expired(now: Now) -> None:
    """One agent's clock is five minutes slow."""
    now.written("time_to_live_that_ends_while_nobody_runs")
    # One agent's clock is five minutes slow: it hands out what has expired, and the member knows
    # better.
    until(
        "the time to live is over", lambda: now.map("ttl-over-in-between").get("over") is None, 20
    )
    assert now.contents("ttl-over-in-between") == {"not over": 1}


# ---- eviction ----


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


def test_evicted_entries_are_read_through_and_removed_ones_stay_removed(now: Now) -> None:
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


def test_evicted_entries_come_back_with_a_restart(now: Now) -> None:
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
    """What was in it before is forgotten."""
    assert now.contents("dropped") == now.written("drop")
    assert now.map("not dropped").size() == 50


# ---- names, modes, formats ----

NAMES = ["../a b", "wild-1-card", "offloaded-map", "object-map", "ü/%2F\\:*?", "x" * 200]


@written
def names(scene: Scene) -> dict[Any, Any]:
    for name in NAMES:
        orders = scene.map(name)
        orders.put_all({f"k{number}": f"{name} {number}" for number in range(10)})
        orders.put("k0", "put")
        orders.remove("k1")
    return {"k0": "put"}


@pytest.mark.parametrize("name", NAMES)
def test_maps_of_all_names_and_modes(now: Now, name: str) -> None:
    now.written("names")
    assert now.contents(name) == {
        "k0": "put",
        **{f"k{number}": f"{name} {number}" for number in range(2, 10)},
    }


@written
def indexed(scene: Scene) -> None:
    people = scene.map("indexed-people")
    people.put_all(
        {
            number: HazelcastJsonValue({"name": f"n{number}", "age": number % 90})
            for number in range(300)
        }
    )
    people.delete(40)


def test_indexed_map_is_whole_and_its_index_too(now: Now) -> None:
    now.written("indexed")
    people = now.map("indexed-people")
    assert people.size() == 299
    assert sorted(people.key_set(sql("age = 40"))) == [130, 220]


# ---- keys and values from Python ----

VALUES: dict[str, Any] = {
    "str": "grüße ✓",
    "empty str": "",
    "int": 42,
    "great int": -(2**63),
    "float": 0.1,
    "bool": True,
    # (the client pickles bytes as text, and fails by itself where they are none).
    "bytes": b"text as bytes",
    "bytearray": bytearray(b"\x00\xff bytearray"),
    "list": [1, "zwei", 3.0, [True]],
    "dict": {"a": [1, 2], "b": {"c": "d"}},
    "tuple": (1, "zwei"),
    "set": {1, 2, 3},
    "json": HazelcastJsonValue({"a": [1, 2, {"b": None}]}),
    "uuid": uuid.UUID(int=2**100 + 7),
    "decimal": Decimal("10.50"),
    "date": date(2026, 11, 21),
    "datetime": datetime(2026, 11, 21, 12, 30, 15, 123456, UTC),
    "identified": Parcel("p", 7),
    "compact": Flight("UA", 1545, (1, -2)),
    "nested compact": Leg(Flight("AA", 1141), "12F"),
}


@written
def values(scene: Scene) -> dict[str, str]:
    errors = {}
    for key, value in VALUES.items():
        try:
            scene.map("values").put(key, value)
        except HazelcastError as error:
            errors[key] = str(error)
    return errors


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_a_python_client(now: Now, kind: str) -> None:
    assert kind not in now.written("values"), now.written("values")[kind]
    value = now.map("values").get(kind)
    if isinstance(value, HazelcastJsonValue):
        assert value.loads() == VALUES[kind].loads()
    else:
        assert value == VALUES[kind]
        assert type(value) is type(VALUES[kind])


def test_values_are_in_the_log_byte_for_byte(now: Now) -> None:
    refused = now.written("values")
    view = log_view(now.cluster.url)
    try:
        (found,) = view.rows("values", 1000)
    finally:
        view.close()
    seen = {row[1]: row[3] for row in found}
    assert seen == {
        now.data(key): now.data(value) for key, value in VALUES.items() if key not in refused
    }


KEYS: list[Any] = [
    "text",
    "",
    "ключ",
    1,
    -1,
    2**62,
    1.5,
    True,
    Flight("UA", 1),
    Leg(Flight("B6", 2), "1A"),
    uuid.UUID(int=3),
    Parcel("k", 1),
]


@written
def keys(scene: Scene) -> None:
    orders = scene.map("keys")
    for number, key in enumerate(KEYS):
        orders.put(key, number)


def test_keys_come_back_byte_for_byte_where_they_belong(now: Now) -> None:
    now.written("keys")
    orders = now.map("keys")
    assert [orders.get(key) for key in KEYS] == list(range(len(KEYS)))
    assert orders.size() == len(KEYS)
    view = log_view(now.cluster.url)
    try:
        (found,) = view.rows("keys", 1000)
    finally:
        view.close()
    assert {row[1] for row in found} == {now.data(key) for key in KEYS}
    partition = now.client.partition_service.get_partition_id
    assert {row[1]: row[8] for row in found} == {now.data(key): partition(key) for key in KEYS}


@written
def compact(scene: Scene) -> None:
    flights = scene.map("compact")
    flights.put_all({number: Flight("UA", number) for number in range(20)})
    flights.put("leg", Leg(Flight("AA", 1), "3C"))


def test_compact_without_a_class_on_any_member(now: Now) -> None:
    """The client is new and has stored nothing: it asks the cluster for the schema, and the cluster
    has it from the log."""
    now.written("compact")
    fresh = now.cluster.client(**CLIENT_OPTIONS)
    flights = fresh.get_map("compact").blocking()
    assert flights.get(7) == Flight("UA", 7)
    assert flights.get("leg") == Leg(Flight("AA", 1), "3C")
    assert sorted(
        flight.number for flight in flights.values(sql("number >= 18 and carrier = 'UA'"))
    ) == [18, 19]


# ---- what it costs ----


def test_a_put_of_a_new_key_reads_no_log(now: Now) -> None:
    """Nothing of the map is ever evicted, so memory knows all of its keys."""
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
