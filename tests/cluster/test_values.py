"""Names, indexes, keys and values of maps, after everything was killed with SIGKILL and started
again."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hazelcast.core import HazelcastJsonValue
from hazelcast.errors import HazelcastError
from hazelcast.predicate import sql

from imap_wal.entry import KEY, PARTITION, VALUE
from tests.cluster.history import Now, Scene, log_view, written
from tests.cluster.values import CLIENT_OPTIONS, Flight, Leg, Parcel

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


VALUES: dict[str, Any] = {
    "str": "grüße ✓",
    "empty str": "",
    "int": 42,
    "great int": -(2**63),
    "float": 0.1,
    "bool": True,
    # (the client pickles bytes as text, and fails where they are none).
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
    seen = {row[KEY]: row[VALUE] for row in found}
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


def test_keys_are_restored_byte_for_byte_in_their_partitions(now: Now) -> None:
    now.written("keys")
    orders = now.map("keys")
    assert [orders.get(key) for key in KEYS] == list(range(len(KEYS)))
    assert orders.size() == len(KEYS)
    view = log_view(now.cluster.url)
    try:
        (found,) = view.rows("keys", 1000)
    finally:
        view.close()
    assert {row[KEY] for row in found} == {now.data(key) for key in KEYS}
    partition = now.client.partition_service.get_partition_id
    assert {row[KEY]: row[PARTITION] for row in found} == {
        now.data(key): partition(key) for key in KEYS
    }


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
