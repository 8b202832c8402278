"""Maps with their keys in order, prefixes, and the first key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import imap_wal
from imap_wal.embedded import changes, sorted_keys
from imap_wal.embedded.asyncio_store import AsyncStore
from imap_wal.embedded.held_keys import AsBytes, AsObjects, HeldKeys
from imap_wal.embedded.sorted_keys import EVERYTHING, SortedKeys, Span, begins
from imap_wal.errors import InvalidSetting, NotSerializable
from imap_wal.serializer import MsgpackSerializer
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, Threads, embedded

TEXT = st.text(alphabet="ab\U0010ffff", max_size=4)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "delete", "look"]), TEXT, TEXT), max_size=60
)


@given(STEPS)
def test_keys_in_order_equal_a_sorted_dict(steps: list[tuple[str, str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_keys, "LIST_KEYS", 3)
        for form in (AsObjects, AsBytes):
            compare(steps, form(MsgpackSerializer()))


def test_keys_that_are_never_read_take_no_memory(memory: MemoryStore) -> None:
    with embedded(memory, durability="os") as store:
        m = store.map("m", sorted=True)
        m[0] = 0
        assert list(m) == [0]
        for start in range(1, 5000, 500):
            m.update(dict.fromkeys(range(start, start + 500)))
            m.clear()
        assert m._state.order is not None and len(m._state.order._touched) <= 2000
        m[7] = 7
        assert list(m) == [7]


def compare(steps: list[tuple[str, str, str]], held: HeldKeys) -> None:
    serializer = held.serializer
    values: dict[Any, bytes] = {}
    keys = SortedKeys(held, values)
    for step, first, second in steps:
        data = held.held(serializer.dump_key(first))
        if step == "put":
            keys.demand(first)
            keys.note((data,), values)
            values[data] = b""
        elif step == "delete":
            if values.pop(data, None) is not None:
                keys.touch((data,))
        else:
            model = sorted(held.keys(values))

            def found(span: Span) -> list[str]:
                return list(held.keys(keys.between(span, values)))

            assert found(EVERYTHING) == model
            low, high = sorted((first, second))
            assert found(Span(low, high)) == [key for key in model if low <= key <= high]
            assert found(Span(low, high, (False, False))) == [
                key for key in model if low < key < high
            ]
            assert found(Span(high, low)) == [key for key in model if high <= key <= low]
            assert found(Span(prefix=first)) == [key for key in model if key.startswith(first)]
            for last in (False, True):
                walked = list(held.keys(keys.walk(values, last=last)))
                assert walked == (model[::-1] if last else model)


def test_a_sorted_map_is_iterated_in_key_order(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m").update({5: "e", 1: "a", 3: "c"})
    with embedded(memory) as store:
        m = store.map("m", sorted=True)
        m[2] = "b"
        del m[5]
        assert list(m) == [1, 2, 3] and list(reversed(m)) == [3, 2, 1]
        assert list(m.items()) == [(1, "a"), (2, "b"), (3, "c")]
        assert list(m.values()) == ["a", "b", "c"]
        assert list(reversed(m.items())) == [(3, "c"), (2, "b"), (1, "a")]
        assert list(m.irange(2)) == [2, 3] and list(m.irange(None, 2, reverse=True)) == [2, 1]
        assert list(m.irange(1, 3, (False, False))) == [2]
        assert list(m.irange(1.5, 2.5)) == [2] and list(m.irange(9, 0)) == []
        assert list(m.irange_items(2, reverse=True)) == [(3, "c"), (2, "b")]
        m.clear()
        assert list(m) == list(m.irange()) == []


def test_keys_that_expire_leave_the_order(memory: MemoryStore) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        m = store.map("m", sorted=True)
        m.put("b", 1, ttl=1)
        m.update({"a": 1, "c": 1})
        assert list(m.irange()) == ["a", "b", "c"]
        clock.advance(2)
        assert list(m.irange()) == list(m) == ["a", "c"]
        m["b"] = 2
        assert list(m.irange_items("b")) == [("b", 2), ("c", 1)]


def test_a_range_is_of_one_moment(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m", sorted=True)
        m.update({number: number for number in range(5)})
        entries = m.irange_items(1, 3)
        m.clear()
        assert list(entries) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_prefix_chooses_keys(memory: MemoryStore, is_sorted: bool) -> None:
    with embedded(memory) as store:
        m = store.map("m", sorted=is_sorted)
        m.update({"2026-01": 1, "2026-02": 2, "2025-12": 3, "2026": 4, "2027": 5})
        assert sorted(m.keys(prefix="2026-")) == ["2026-01", "2026-02"]
        assert dict(m.items(prefix="2026")) == {"2026": 4, "2026-01": 1, "2026-02": 2}
        assert sorted(m.values(prefix="2026-")) == [1, 2]
        assert len(m.items(prefix="2026-")) == 2 and len(m.keys(prefix="")) == 5
        assert "2026-01" in m.keys(prefix="2026-") and "2025-12" not in m.keys(prefix="2026-")
        assert ("2026-01", 1) in m.items(prefix="2026-")
        assert ("2025-12", 3) not in m.items(prefix="2026-")
        assert () not in m.items() and ("2026", 4, 0) not in m.items(prefix="2026")
        assert list(reversed(m.keys(prefix="2026-"))) == list(m.keys(prefix="2026-"))[::-1]
        assert list(m.keys(prefix=b"2026-")) == [] == list(m.keys(prefix=("2026-",)))
        with pytest.raises(TypeError, match="prefix is 2026; it takes text, bytes or a tuple"):
            m.keys(prefix=2026)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_tuple_is_the_prefix_of_longer_ones(memory: MemoryStore, is_sorted: bool) -> None:
    with embedded(memory) as store:
        m = store.map("m", sorted=is_sorted)
        m.update({("ann", 2): 1, ("ann", 1): 2, ("bob", 1): 3, ("ann",): 4})
        assert dict(m.items(prefix=("ann",))) == {("ann",): 4, ("ann", 1): 2, ("ann", 2): 1}
        assert len(m.keys(prefix=())) == 4
        assert begins(("a", "b"), ("a",)) and not begins("ab", ("a",))


@pytest.mark.parametrize(
    "refused", ["a", None, (1,), b"a"], ids=["text", "nothing", "tuple", "bytes"]
)
def test_a_key_without_a_place_is_refused(memory: MemoryStore, refused: Any) -> None:
    with embedded(memory) as store:
        m = store.map("m", sorted=True)
        m.update({1: "a", 2.5: "b"})
        m[True] = "c"
        for attempt in (
            lambda: m.put(refused, 1),
            lambda: m.update({7: 1, refused: 1}),
            lambda: m.setdefault(refused, 1),
            lambda: m.add(refused),
            lambda: m.change(refused, lambda _: 1),
        ):
            with pytest.raises(NotSerializable, match="the map is sorted"):
                attempt()
        assert list(m.items()) == [(1, "c"), (2.5, "b")] and refused not in m
    with embedded(memory) as store:
        assert len(store.map("m")) == 2


def test_parts_of_tuples_are_compared(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m", sorted=True)
        m.update({("a",): 1, ("a", 1): 2, ("b", 2, "x"): 3})
        for refused in (("a", "b"), ("a", None), ("c", 1, 2)):
            with pytest.raises(NotSerializable, match=r"\(str, number, str\)|no order"):
                m[refused] = 1
        assert list(m) == [("a",), ("a", 1), ("b", 2, "x")]


def test_a_map_of_mixed_keys_cannot_be_sorted(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m.update({1: 1, "a": 2})
        with pytest.raises(InvalidSetting, match="map 'm' cannot be sorted: "):
            store.map("m", sorted=True)
        assert sorted(m.items(), key=str) == [("a", 2), (1, 1)]
        with pytest.raises(InvalidSetting, match=r"open it with store.map\('m', sorted=True\)"):
            m.irange()


def test_a_limit_of_another_type_is_an_error(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m", sorted=True)
        m["a"] = 1
        with pytest.raises(TypeError, match="map 'm': the range from 1 to None cannot be compared"):
            m.irange(1)
        assert list(m) == ["a"]


def test_sorting_survives_an_interrupted_read(memory: MemoryStore) -> None:
    class Slow:
        name = "slow"
        broken = False

        def dump(self, value: Any) -> bytes:
            return str(value).encode()

        def load(self, data: bytes) -> Any:
            if self.broken:
                raise KeyboardInterrupt
            return int(data)

        dump_key, load_key = dump, load

    slow = Slow()
    with embedded(memory) as store:
        m = store.map("m", serializer=slow, sorted=True)
        m.update({number: number for number in range(100, 0, -1)})
        assert next(m.irange()) == 1
        m[0] = 0
        slow.broken = True
        with pytest.raises(KeyboardInterrupt):
            m.irange()
        slow.broken = False
        assert list(m.irange()) == list(range(101))


def test_dates_with_and_without_zone_are_not_mixed() -> None:
    class Dates:
        name = "dates"

        def dump_key(self, key: Any) -> bytes:
            return str(key.isoformat()).encode()

        def load_key(self, data: bytes) -> Any:
            return datetime.fromisoformat(data.decode())

        dump, load = dump_key, load_key

    keys = SortedKeys(AsBytes(Dates()), ())
    keys.demand(datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(NotSerializable, match="datetime with a time zone"):
        keys.demand(datetime(2026, 1, 1))


# ---- the first key ----


def test_popitem_takes_the_first_key_too(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m.update({number: str(number) for number in range(5)})
        m[0] = "again"  # keeps its place, as in a dict
        assert m.popitem(last=False) == (0, "again") and m.popitem() == (4, "4")
        m[0] = "new"
        assert [m.popitem(last=False)[0] for _ in range(4)] == [1, 2, 3, 0]
        with pytest.raises(KeyError, match="the map is empty"):
            m.popitem(last=False)
        with store.batch() as batch:
            batch.put(m, 2, 2)
            batch.put(m, 1, 1)
        assert m.popitem(last=False) == (2, 2)


def test_popitem_of_a_sorted_map_takes_its_ends(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m", sorted=True)
        m.update({5: "e", 1: "a", 9: "i", 3: "c"})
        assert m.popitem(last=False) == (1, "a") and m.popitem() == (9, "i")
        assert list(m) == [3, 5]


def test_taking_the_first_key_does_not_slow_down(memory: MemoryStore) -> None:
    """A dict has a place for each removed key, and a search for the first key passes them all."""
    with embedded(memory, durability="os") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "REMOVED_SPARE", 100)
        m = store.map("m")
        m.update(dict.fromkeys(range(1000)))
        for number in range(800):
            assert m.popitem(last=False)[0] == number
        assert m._state._removed <= 101 + 1000 // 64


def test_threads_take_each_first_key_once(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("m")
        m.update({number: number for number in range(40)})
        taken: list[list[int]] = [[] for _ in range(4)]

        def take(mine: list[int]) -> None:
            mine += [m.popitem(last=False)[0] for _ in range(10)]

        Threads(*(lambda mine=mine: take(mine) for mine in taken)).join()
        assert sorted(chain.from_iterable(taken)) == list(range(40)) and len(m) == 0
        assert all(mine == sorted(mine) for mine in taken)


def test_tasks_take_first_keys_in_one_commit(memory: MemoryStore) -> None:
    async def main() -> None:
        with embedded(memory) as store:
            async with AsyncStore(store) as opened:
                for is_sorted in (False, True):
                    m = opened.map(f"m{is_sorted}", sorted=is_sorted)
                    await m.update({number: number for number in range(5)})
                    m.set(7, 7)
                    answers = await asyncio.gather(*(m.popitem(last=False) for _ in range(6)))
                    assert [key for key, _ in answers] == [0, 1, 2, 3, 4, 7]
                with pytest.raises(NotSerializable):
                    await opened.map("mTrue").set("text", 1)

    asyncio.run(main())


# ---- as a dict ----


def test_a_map_has_the_operators_of_a_dict(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m, other = store.map("m"), store.map("other")
        m.update(a=1, b=2)
        other.update(b=3)
        assert m | {"b": 5, "c": 6} == {"a": 1, "b": 5, "c": 6}
        assert {"a": 7, "c": 6} | m == {"a": 1, "c": 6, "b": 2}
        assert m | other == {"a": 1, "b": 3} and other | m == {"b": 2, "a": 1}
        with pytest.raises(TypeError):
            m | [("c", 1)]  # type: ignore[operator]
        m |= other
        m |= [("c", 4)]
        assert m.copy() == {"a": 1, "b": 3, "c": 4} and type(m.copy()) is dict
        assert list(reversed(m)) == ["c", "b", "a"]
        assert isinstance(m, imap_wal.DurableMap) and m == store.map("m")
    assert str(imap_wal.DurableMap[str, int]).endswith("DurableMap[str, int]")
    with embedded(memory) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 3, "c": 4}


def test_notebooks_show_maps_and_stores(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        m = store.map("<b>")
        m.update({f"<{number}>": "&" for number in range(11)})
        assert repr(m) == "<DurableMap '<b>' of 11>"
        assert repr(store) == f"<Store {memory.url!r} of 1 map>"
        for text in (m._repr_html_(), store._repr_html_()):
            assert "&lt;b&gt;" in text and "<b>" not in text
        assert m._repr_html_().count("<tr>") == 12 and "…" in m._repr_html_()
    assert repr(m) == "<DurableMap '<b>' closed>" and "closed" in repr(store)
    assert "closed" in m._repr_html_() and "closed" in store._repr_html_()
