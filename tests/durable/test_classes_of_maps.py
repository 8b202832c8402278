"""The class of a typed map: other types are refused, unless they can read its entries; types may
change from one open to the next."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import msgspec
import pytest

from imap_wal import TypedSerializer
from imap_wal.errors import InvalidSetting, NotReadable, NotSerializable
from storage_backends.memory import MemoryStore
from tests.support import embedded


@dataclass
class Order:
    customer: str


@dataclass
class Seat:
    number: int


class Point(msgspec.Struct):
    left: int


def refusal(memory: MemoryStore, **options: Any) -> str:
    with embedded(memory) as store, pytest.raises(InvalidSetting) as raised:
        store.map("m", **options)
    return str(raised.value)


def test_a_map_of_another_class_is_refused(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m")["k"] = {"number": 7}
    text = refusal(memory, key=str, value=Seat)
    assert "map 'm' has entries written by serializer 'msgpack', not 'msgpack[str, Seat]'" in text
    assert "open it without key, value and serializer" in text
    assert "copy the entries into a map of another name (docs/how-to/typed.md)" in text
    with embedded(memory) as store:
        old, new = store.map("m"), store.map("new", key=str, value=Seat)
        new.update((key, Seat(**value)) for key, value in old.items())
        assert new["k"] == Seat(7)
        old.clear()
        with pytest.raises(InvalidSetting, match=r"opened with serializer 'msgpack' before"):
            store.map("m", key=str, value=Seat)
    with embedded(memory) as store:
        assert store.map("m", key=str, value=Seat).setdefault("k", Seat(8)) == Seat(8)
        assert store.map("m")["k"] == Seat(8), "it is open with types"
    text = refusal(memory)
    assert "written by serializer 'msgpack[str, Seat]'; pass these types to map() as key" in text
    assert "'pickle'; pass these types" in refusal(memory, serializer="pickle")
    assert "raw" in refusal(memory, raw=True)


def test_a_map_of_other_types_is_refused_unless_named(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m", key=str, value=Seat)["k"] = Seat(7)
    text = refusal(memory, key=str, value=Point)
    assert "written by serializer 'msgpack[str, Seat]', not 'msgpack[str, Point]'" in text
    assert "serializer=imap_wal.TypedSerializer(key, value, name='msgpack[str, Seat]')" in text
    Chair = make_dataclass("Chair", [("number", int)])  # noqa: N806
    named = TypedSerializer(str, Chair, name="msgpack[str, Seat]")
    with embedded(memory) as store:
        assert store.map("m", serializer=named)["k"] == Chair(7)
        store.map("m", serializer=named)["l"] = Chair(8)
    with embedded(memory) as store:
        assert store.map("m", key=str, value=Seat)["l"] == Seat(8)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": str}, "takes key and value together"),
        ({"key": str, "value": int, "raw": True}, "without serializer and raw"),
        ({"key": str, "value": lambda: 0}, "a map cannot have keys str and values <lambda>"),
        ({"key": str, "value": int | str | dt.date}, "a map cannot have keys str and values"),
        ({"serializer": "json"}, "such as imap_wal.RawSerializer.*'msgpack', 'raw', 'pickle'"),
    ],
)  # fmt: skip
def test_types_that_no_map_can_have_are_refused(
    memory: MemoryStore, options: dict[str, Any], text: str
) -> None:
    with embedded(memory) as store, pytest.raises(InvalidSetting, match=text):
        store.map("m", **options)


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((str, Order), "msgpack[str, Order]"),
        ((int, list[Order | None]), "msgpack[int, list[Order | None]]"),
        ((tuple[int, ...], dict[str, Any]), "msgpack[tuple[int, ...], dict[str, Any]]"),
    ],
)
def test_the_class_names_the_types(kinds: tuple[Any, Any], name: str) -> None:
    assert TypedSerializer(*kinds).name == name


# ---- types that change ----


def reopened(memory: MemoryStore, kind: Any) -> Any:
    with embedded(memory) as store:
        return store.map("m", key=str, value=kind).snapshot()


def test_fields_can_be_added_and_removed_over_a_reopen(memory: MemoryStore) -> None:
    first = make_dataclass("Order", [("customer", str), ("old", int)])
    with embedded(memory) as store:
        store.map("m", key=str, value=first)["k"] = first("ann", 1)
    second = make_dataclass("Order", [("customer", str), ("total", float, field(default=0.5))])
    assert reopened(memory, second) == {"k": second("ann", 0.5)}
    with embedded(memory) as store:
        store.map("m", key=str, value=second)["l"] = second("bob", 2.5)
    assert reopened(memory, second) == {"k": second("ann", 0.5), "l": second("bob", 2.5)}


def test_a_field_can_be_renamed_over_a_reopen(memory: MemoryStore) -> None:
    first = msgspec.defstruct("Order", [("customer", str)])
    with embedded(memory) as store:
        store.map("m", key=str, value=first)["k"] = first("ann")
    second = msgspec.defstruct("Order", [("buyer", str)], rename={"buyer": "customer"})
    assert reopened(memory, second) == {"k": second("ann")}


def test_a_value_that_does_not_fit_is_named_and_replaceable(memory: MemoryStore) -> None:
    """A field without a default was added, or the type of one changed."""
    first = make_dataclass("Order", [("customer", str), ("items", list[dict[str, Any]])])
    with embedded(memory) as store:
        m = store.map("m", key=str, value=first)
        m["a"] = first("ann", [])
        m["k"] = first("bob", [{"n": 1}, {"n": "two"}])
    second = make_dataclass("Order", [("customer", str), ("items", list[dict[str, int]])])
    with embedded(memory) as store:
        m = store.map("m", key=str, value=second)
        fitting = second("cid", [])
        reads: list[Callable[[], object]] = [
            lambda: m["k"],
            lambda: dict(m.items()),
            lambda: list(m.values()),
            lambda: m.pop("k"),
            lambda: m.replace("k", fitting, fitting),
            lambda: m.setdefault("k", fitting),
            lambda: m.change("k", lambda old: old),
            lambda: store.transaction(lambda transaction: transaction[m]["k"])(),
        ]
        for read in reads:
            with pytest.raises(NotReadable) as raised:
                read()
            text = str(raised.value)
            assert "m['k'].items[1].n: the value" in text, text
            assert "cannot be read as Order: Expected `int`, got `str`; open the map with" in text
        assert m["a"] == second("ann", []) and list(m) == ["a", "k"]
        with store.batch() as batch:
            batch.delete(m, "k")
        assert m.snapshot() == {"a": second("ann", [])}


class Anything:
    def __init__(self, value: int) -> None:
        self.value = value


def test_pickle_is_used_only_if_it_is_asked_for(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m", serializer="pickle")
        m[1.0] = m["x"] = Anything(7)
        assert m[True].value == 7 and len(m) == 2
        with pytest.raises(NotSerializable, match=r"m\['k'\]: it cannot be pickled"):
            m["k"] = lambda: 0
    text = refusal(memory)
    assert "written by serializer 'pickle'; pass serializer=\"pickle\" to map()" in text
    with embedded(memory, serializer="pickle") as store:
        m = store.map("m")
        assert m["x"].value == 7
        store.map("raw", serializer="raw")[b"k"] = b"v"
        m._state.set(m._key_data("bad"), pickle.dumps(7)[:-1])
        with pytest.raises(NotReadable, match=r"m\['bad'\]: the value .* cannot be unpickled"):
            m["bad"]
