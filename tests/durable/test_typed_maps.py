"""Maps with types: what is accepted is read back equal, also by a program with newer types."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import imap_wal
from imap_wal import NumpyCodec, TypedSerializer
from imap_wal.errors import InvalidSetting, NotReadable, NotSerializable
from storage_backends.memory import MemoryStore
from tests.support import embedded

PARIS = ZoneInfo("Europe/Paris")
TWICE = dt.datetime(2026, 10, 25, 2, 30, tzinfo=PARIS, fold=1)
"""A moment that is equal to no moment of another zone, not even in UTC."""


class State(enum.Enum):
    NEW = "new"
    PAID = "paid"


class Level(enum.IntEnum):
    LOW = 1


class Place(NamedTuple):
    row: int
    column: float


@dataclass
class Item:
    name: str
    when: dt.datetime
    price: Decimal = Decimal(0)


@dataclass
class Order:
    customer: str
    total: float = 0.0
    items: list[Item] = field(default_factory=list)
    by: dict[str, Item] = field(default_factory=dict)
    extra: Any = None


@dataclass(eq=False)
class Same:
    value: float


@dataclass(frozen=True)
class Cell:
    row: int
    column: float


@attrs.define
class Seat:
    number: int


class Point(msgspec.Struct, rename="camel"):
    left_side: int
    top_side: int = 0


class Film(TypedDict):
    title: str
    year: int


class Older(Order):
    pass


NOW = dt.datetime(2026, 1, 1, 12)
ACCEPTED: list[tuple[Any, Any]] = [
    (Order, Order("ann", 12.5, [Item("pear", NOW, Decimal("1.50"))], {"x": Item("fig", NOW)})),
    (Same, Same(float("nan"))),
    (Cell, Cell(1, 2)),
    (Seat, Seat(7)),
    (Point, Point(1, 2)),
    (Film, {"title": "M", "year": 1931}),
    (Place, Place(1, 2.5)),
    (State, State.PAID),
    (Level, Level.LOW),
    (dt.datetime, NOW.replace(fold=1)),
    (dt.datetime, TWICE),
    (dt.date, dt.date(2026, 1, 1)),
    (dt.time, dt.time(1, 2, tzinfo=dt.UTC)),
    (dt.timedelta, dt.timedelta(-1, 2, 3)),
    (Decimal, Decimal("1.0")),
    (UUID, UUID(int=7)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (bytes, b"\x00\xff"),
    (list[float | None], [1.0, float("nan"), None, -0.0]),
    (dict[UUID, list[Point]], {UUID(int=1): [Point(1)]}),
    (Point | None, None),
    (int, Level.LOW),
    (Any, {"a": [1, "x", None]}),
]


@pytest.mark.parametrize(("kind", "value"), ACCEPTED, ids=repr)
def test_a_typed_value_is_read_equal(memory: MemoryStore, kind: Any, value: Any) -> None:
    def check(same: Any) -> None:
        if value == value and value != TWICE.astimezone(dt.UTC) and value is not TWICE:
            assert same == value or repr(same) == repr(value)
        if isinstance(value, dt.datetime) and value.tzinfo:
            assert same.timestamp() == value.timestamp()
        assert isinstance(same, type(value)) or kind is int

    with embedded(memory) as store:
        m = store.map("m", key=str, value=kind)
        m["k"] = value
        check(m["k"])
    with embedded(memory) as store:
        m = store.map("m", key=str, value=kind)
        check(m["k"])
        assert list(m) == ["k"]


BAD: Any = 3
REFUSED: list[tuple[Any, Any, str]] = [
    (int, "x", r"m\['k'\]: Expected `int`, got `str`; the map has values of type int"),
    (int, True, r"m\['k'\]: Expected `int`, got `bool`"),
    (int, 2**64, r"m\['k'\]: an int beyond 64 bits"),
    (float, 2**53 + 1, r"m\['k'\]: it would be read as 9007199254740992.0, and is 90071992547"),
    (Order, {"customer": "ann"}, r"m\['k'\]: it would be read as Order\("),
    (Order, Older("ann"), r"m\['k'\]: it would be read as Order\("),
    (Order, Order("a", items=[Item("x", NOW), Item("y", BAD)]), r"m\['k'\].items\[1\].when: Exp"),
    (Order, Order("a", by={"x": Item("y", NOW), "z": Item(BAD, NOW)}), r"m\['k'\].by.z.name: Exp"),
    (Order, Order("a", extra=[1, {"t": (2,)}]), r"m\['k'\].extra\[1\].t: it would be read as \[2"),
    (Order, Order("a", extra={"t": [object()]}), r"m\['k'\].extra.t\[0\]: a object"),
    (Order, Order("a", extra=State), r"m\['k'\].extra: a EnumType"),
    (Film, {"title": "M", "year": 1931, "more": 1}, r"m\['k'\]: it would be read as {'title': 'M"),
    (dict[int, int], {"x": 1}, r"m\['k'\]: a key of it: Expected `int`, got `str`"),
    (set[float], {float("nan")}, r"m\['k'\]: it would be read as {nan}"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), REFUSED, ids=lambda case: repr(case)[:30])
def test_a_refused_typed_value_names_its_place(
    memory: MemoryStore, kind: Any, value: Any, text: str
) -> None:
    async def play() -> None:
        async with imap_wal.aopen(memory.url, node="n1", storage=memory) as store:
            m = store.map("m", key=str, value=kind)
            with pytest.raises(NotSerializable, match=text):
                await m.set("k", value)

    with embedded(memory) as store:
        m = store.map("m", key=str, value=kind)
        for change in (
            lambda: m.put("k", value),
            lambda: m.update({"k": value}),
            lambda: m.add_new("k", value),
            lambda: m.change("k", lambda old: value),
        ):
            with pytest.raises(NotSerializable, match=text):
                change()
        assert not m
    asyncio.run(play())


def test_an_endless_typed_value_is_refused(memory: MemoryStore) -> None:
    value: list[Any] = []
    value.append(value)
    with embedded(memory) as store:
        m: imap_wal.DurableMap[str, Any] = store.map("m", key=str, value=Any)
        with pytest.raises(NotSerializable, match="more than 500 levels"):
            m["k"] = value


def test_an_update_of_many_names_the_key_that_failed(memory: MemoryStore) -> None:
    """A typed and an untyped map; also a pair that is too large."""
    with embedded(memory, max_value_bytes=1000) as store:
        typed, untyped = store.map("typed", key=int, value=Seat), store.map("untyped")
        text: Any = "x"
        pairs: dict[int, Any] = {number: Seat(number) for number in range(1000)}
        with pytest.raises(
            NotSerializable, match=r"typed\[700\].number: Expected `int`, got `str`"
        ):
            typed.update({**pairs, 700: Seat(text)})
        with pytest.raises(NotSerializable, match=r"map 'typed', key '700': a str cannot be a key"):
            typed.update({**pairs, "700": Seat(1)})
        with pytest.raises(NotSerializable, match=r"untyped\[700\]: a Seat"):
            untyped.update({**dict.fromkeys(range(1000), 1), 700: Seat(1)})
        with pytest.raises(imap_wal.TooLarge, match=r"untyped\[700\]: key and value take 10\d\d "):
            untyped.update({**dict.fromkeys(range(1000), 1), 700: "x" * 1000})
        assert not typed and not untyped


# ---- keys ----

KEYS: list[tuple[Any, list[Any]]] = [
    (float, [0.0, -0.0, 0, False]),
    (float, [1.0, 1]),
    (int, [1, 1.0, True]),
    (Decimal, [Decimal("1.0"), Decimal(1), Decimal("1.00")]),
    (Decimal, [Decimal("0.10"), Decimal("0.1")]),
    (dt.datetime, [NOW, NOW.replace(fold=1)]),
    (dt.datetime, [NOW.replace(tzinfo=dt.UTC), NOW.replace(hour=13, tzinfo=PARIS)]),
    (Place, [Place(1, 2.0), Place(1, 2), Place(True, 2)]),
    (Cell, [Cell(1, 2.0), Cell(1, 2)]),
    (tuple[int, frozenset[float]], [(1, frozenset({1.0, 2.5})), (1, frozenset({2.5, 1}))]),
    (State, [State.NEW]),
    (Level, [Level.LOW, 1]),
    (UUID, [UUID(int=7)]),
    (dt.timedelta, [dt.timedelta(1), dt.timedelta(hours=24)]),
    (str | int, ["1"]),
]


@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=repr)
def test_equal_typed_keys_are_one_key(memory: MemoryStore, kind: Any, keys: list[Any]) -> None:
    """One that does not have the type may be refused, but it is never another entry."""
    with embedded(memory) as store:
        m = store.map("m", key=kind, value=int)
        for key in keys:
            try:
                m[key] = 1
            except NotSerializable:
                assert type(key) is Place and key not in m
            else:
                assert key in m
        assert len(m) == 1 and list(m) == [keys[0]]
    with embedded(memory) as store:
        m = store.map("m", key=kind, value=int)
        assert list(m) == [keys[0]] and type(next(iter(m))) is type(keys[0])


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (str, 1), (int, "1"), (int, 1.5), (float, float("nan")), (list[int], [1]),
        (Order, Order("a")), (dict[str, int], {"a": 1}), (dt.time, dt.time(1, tzinfo=dt.UTC)),
        (State, "no"), (bytes, bytearray(b"x")),
    ],
)  # fmt: skip
def test_a_key_of_another_type_is_absent(memory: MemoryStore, kind: Any, key: Any) -> None:
    with embedded(memory) as store:
        m = store.map("m", key=kind, value=int)
        with pytest.raises(NotSerializable, match="it takes keys of type"):
            m[key] = 1
        assert key not in m and m.get(key) is None and m.pop(key, 5) == 5


# ---- hostile entries ----


@given(st.binary(max_size=30) | st.sampled_from([b"\xc4\x01x", b"\xc1", b"\x91" * 5000]))
def test_a_bad_value_of_the_log_is_named(data: bytes) -> None:
    serializer = TypedSerializer(Cell, Order)
    for load in (serializer.load, serializer.load_key):
        with pytest.raises(NotReadable, match=r"cannot be read as|is not msgpack"):
            load(data)


# ---- libraries ----


def test_models_of_pydantic_are_values(memory: MemoryStore) -> None:
    """Alone, in containers, and in fields of other classes."""
    pydantic = pytest.importorskip("pydantic")
    customer: Any = pydantic.create_model(
        "Customer",
        name=str,
        since=dt.datetime,
        tags=(set[str], ...),
        secret=(pydantic.SecretStr | None, None),
    )
    ann = customer(name="ann", since=TWICE, tags={"a"})
    bill: Any = make_dataclass("Bill", [("customer", customer), ("total", float)])
    customers: Any = list[customer]
    with embedded(memory) as store:
        store.map("m", key=str, value=customer)["k"] = ann
        store.map("list", key=str, value=customers)["k"] = [ann]
        store.map("bill", key=str, value=bill)["k"] = bill(ann, 1)
        m = store.map("m", key=str, value=customer)
        with pytest.raises(NotSerializable, match=r"m\['k'\].secret: it would be read as Secret"):
            m["k"] = customer(name="bob", since=NOW, tags=set(), secret="password")
        with pytest.raises(NotSerializable, match=r"m\['k'\]: "):
            m["k"] = customer.model_construct(name=5)
    with embedded(memory) as store:
        same = store.map("m", key=str, value=customer)["k"]
        assert type(same) is customer and same.tags == {"a"}
        assert same.since.timestamp() == TWICE.timestamp()
        assert store.map("list", key=str, value=customers)["k"] == [same]
        assert store.map("bill", key=str, value=bill)["k"] == bill(same, 1)
    strict = pydantic.create_model("Customer", name=str, since=dt.date)
    with (
        embedded(memory) as store,
        pytest.raises(NotReadable, match=r"m\['k'\]: the value .*since"),
    ):
        store.map("m", key=str, value=strict)["k"]


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.arange(6, dtype=">i4").reshape(2, 3).T,
    np.array([float("nan"), 1]),
    np.array(["a", "bcd"]),
    np.array([], dtype="M8[ns]"),
    np.array(5, dtype="u1"),
    np.array([1 + 2j]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
def test_an_array_is_a_value(memory: MemoryStore, array: Any) -> None:
    holder = make_dataclass("Holder", [("array", np.ndarray), ("name", str)])
    one = TypedSerializer(str, np.ndarray, codecs=[NumpyCodec()])
    two = TypedSerializer(str, holder, codecs=[NumpyCodec()])
    with embedded(memory) as store:
        store.map("one", serializer=one)["k"] = array
        store.map("two", serializer=two)["k"] = holder(array, "x")
    with embedded(memory) as store:
        for same in (
            store.map("one", serializer=one)["k"],
            store.map("two", serializer=two)["k"].array,
        ):
            assert same.dtype == array.dtype and same.tobytes() == array.tobytes()
            assert same.shape == array.shape and same.flags.writeable


SCALARS = [
    np.float64(1.5), np.float32("nan"), np.int64(7), np.uint8(255), np.bool_(True), np.str_("a"),
    np.datetime64("2026-01-01T00:00:00", "ns"), np.complex128(1j), np.longdouble(0.1),
]  # fmt: skip


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_a_numpy_scalar_is_a_value(scalar: Any) -> None:
    serializer: Any = TypedSerializer(str, type(scalar), codecs=[NumpyCodec()])
    same = serializer.load(serializer.dump(scalar))
    assert type(same) is type(scalar) and (same == scalar or scalar != scalar)
    assert same.dtype == scalar.dtype


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.zeros(2, dtype="i4,f8"),
        np.ma.array([1]),
        [1.0],
        np.zeros(1).view(np.recarray),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_array_that_would_change_is_refused(value: Any) -> None:
    serializer: Any = TypedSerializer(str, np.ndarray, codecs=[NumpyCodec()])
    with pytest.raises(NotSerializable):
        serializer.dump(value)
    plain: Any = TypedSerializer(str, Any)
    with pytest.raises(NotSerializable, match="a ndarray"):
        plain.dump(np.zeros(1))
    for bad in ({"dtype": "O", "shape": [1], "data": b"x" * 8}, {"dtype": "<f8", "shape": [2]}, 5):
        with pytest.raises(NotReadable):
            serializer.load(msgspec.msgpack.encode(bad))


# ---- any value ----

MOMENTS = st.datetimes(
    timezones=st.none() | st.sampled_from([dt.UTC, PARIS, dt.timezone(dt.timedelta(minutes=90))])
)
ITEMS = st.builds(
    Item, st.text(), MOMENTS, st.decimals(allow_nan=False) | st.decimals(allow_nan=True)
)
ANY = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=4,
)
ORDERS = st.builds(
    Order,
    st.text() | st.integers(),
    st.floats() | st.integers(),
    st.lists(ITEMS),
    st.dictionaries(st.text(), ITEMS),
    ANY,
)
DAYS = st.tuples(st.sampled_from(State), st.frozensets(st.integers() | st.floats()), st.dates())


@given(ORDERS, DAYS)
def test_any_typed_entry_is_read_equal_or_refused(order: Order, key: Any) -> None:
    def alike(one: Any, other: Any) -> bool:
        if isinstance(one, dt.datetime) and one.tzinfo:
            return bool(one.timestamp() == other.timestamp())
        if isinstance(one, Order | Item):
            return type(other) is type(one) and alike(vars(one), vars(other))
        if isinstance(one, dict):
            return list(one) == list(other) and alike([*one.values()], [*other.values()])
        if isinstance(one, list | tuple):
            return (
                isinstance(other, type(one))
                and len(one) == len(other)
                and all(map(alike, one, other))
            )
        return bool(one == other) or (one != one and other != other)

    serializer: Any = TypedSerializer(tuple[State, frozenset[float], dt.date], Order)
    try:
        data = serializer.dump(order)
    except NotSerializable:
        pass
    else:
        assert alike(order, serializer.load(data))
    try:
        data = serializer.dump_key(key)
    except NotSerializable:
        return
    assert serializer.load_key(data) == key
    again = (key[0], frozenset(float(each) for each in key[1]), key[2])
    if again == key:
        assert serializer.dump_key(again) == data


def test_a_typed_counter_keeps_its_type(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        hits = store.map("hits", key=str, value=int)
        assert hits.add("home") == 1 and hits.add("home", 2) == 3
        with pytest.raises(NotSerializable, match=r"hits\['home'\]: Expected `int`, got `float`"):
            hits.add("home", 0.5)
        assert hits["home"] == 3


def test_change_deletes_a_key_of_any_types(memory: MemoryStore) -> None:
    """Also if None is no value of the map."""
    with embedded(memory) as store:
        hits = store.map("hits", key=str, value=int)
        hits["home"] = 1
        assert hits.change("home", lambda hit: imap_wal.DELETE) is None
        assert dict(hits.items()) == {}


def test_types_work_in_several_processes(tmp_path: Path) -> None:
    """Of `connect`: the process that serves does not have the types."""
    with imap_wal.connect(tmp_path / "log", socket=tmp_path / "socket") as serving:
        with imap_wal.connect(tmp_path / "log", socket=tmp_path / "socket", serve=False) as store:
            hits, seats = (
                store.map("hits", key=str, value=int),
                store.map("seats", key=int, value=Seat),
            )
            assert hits.add("home") == 1 and hits.add("home", 2) == 3
            seats[7] = Seat(7)
            assert seats.replace(7, Seat(7), Seat(8)) and seats.change(7, lambda old: old)
            assert seats.setdefault(7, Seat(9)) == Seat(8) and seats.pop(7) == Seat(8)
            with pytest.raises(NotSerializable, match="Expected `int`, got `float`"):
                hits.add("home", 0.5)
            with pytest.raises(
                InvalidSetting, match=r"written by serializer 'msgpack\[str, int\]'"
            ):
                store.map("hits")
        assert serving.map("hits", key=str, value=int).snapshot() == {"home": 3}
