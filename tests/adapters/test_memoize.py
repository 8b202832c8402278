"""`memoize`: results in a map, found again after a restart."""

from __future__ import annotations

import asyncio
import enum
import functools
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

import imap_wal
from imap_wal import InvalidSetting, NotSerializable, memoize
from tests.support import FakeClock


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with imap_wal.open(tmp_path / "log") as opened:
        yield opened


def test_results_are_found_again_after_a_restart(tmp_path: Path) -> None:
    calls = []

    def price(article: str, amount: int = 1) -> Decimal:
        calls.append(article)
        return Decimal("1.50") * amount

    for _ in range(2):
        with imap_wal.open(tmp_path) as store:
            cached = memoize(store.map("prices"))(price)
            assert cached("tea") == cached("tea", 1) == cached(amount=1, article="tea") == 1.5
            assert cached("tea", 2) == Decimal(3)
            assert cached.__wrapped__ is price
            assert cached.__name__ == "price"
    assert calls == ["tea", "tea"]


def test_a_result_of_none_is_a_result(store: imap_wal.Store) -> None:
    calls = []

    @memoize(store.map("nothing"))
    def nothing(number: int) -> None:
        calls.append(number)

    nothing(1)
    nothing(1)
    assert calls == [1]
    assert nothing.cache_info() == (1, 1, None, 1)


def test_a_result_ends_with_its_time_to_live(tmp_path: Path) -> None:
    clock = FakeClock()
    with imap_wal.open(tmp_path, clock=clock) as store:
        numbers = iter(range(9))
        cached = memoize(store.map("n"), ttl=60)(lambda: next(numbers))
        assert [cached(), cached()] == [0, 0]
        clock.advance(61)
        assert cached() == 1


def test_an_error_is_raised_and_not_stored(store: imap_wal.Store) -> None:
    answers: list[Any] = [ValueError("once"), 2]

    @memoize(store.map("m"))
    def flaky() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    with pytest.raises(ValueError, match="once"):
        flaky()
    assert [flaky(), flaky()] == [2, 2]


def test_threads_with_the_same_arguments_compute_once(store: imap_wal.Store) -> None:
    calls, begun, go = [], threading.Event(), threading.Event()

    @memoize(store.map("m"))
    def slow(number: int) -> int:
        calls.append(number)
        begun.set()
        assert go.wait(60)
        return number * 2

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(slow(4))) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go.set()
    for thread in threads:
        thread.join()
    assert results == [8] * 6
    assert calls == [4]
    assert slow.cache_info() == (5, 1, None, 1)


@pytest.mark.parametrize("kind", ["aopen", "open"])
def test_tasks_with_the_same_arguments_compute_once(tmp_path: Path, kind: str) -> None:
    async def main(opened: list[Any]) -> None:
        calls = []

        @memoize(lambda: opened[0].map("m"))
        async def slow(number: int) -> list[int]:
            calls.append(number)
            await asyncio.sleep(0)
            if len(calls) == 1:
                raise asyncio.CancelledError  # the next one computes instead
            return [number]

        results = await asyncio.gather(*(slow(4) for _ in range(6)), return_exceptions=True)
        assert results[1:] == [[4]] * 5
        assert calls == [4, 4]
        assert await slow.cache_info() == (4, 2, None, 1)
        await slow.cache_clear()
        assert await slow(4) == [4]
        assert len(calls) == 3

    async def with_aopen() -> None:
        async with imap_wal.aopen(tmp_path) as store:
            await main([store])

    if kind == "aopen":
        asyncio.run(with_aopen())
    else:
        with imap_wal.open(tmp_path) as store:
            asyncio.run(main([store]))


PLAIN = some.recursive(
    some.one_of(
        some.none(),
        some.booleans(),
        some.integers(-3, 3),
        some.sampled_from([0.0, -0.0, 1.0, 2.0, "", "1", b"", b"1", Decimal(1), Decimal("1.0")]),
        some.sampled_from([datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)]),
    ),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.lists(inner, max_size=3).map(tuple)
        | some.dictionaries(some.sampled_from(["a", "b"]), inner, max_size=2)
        | some.frozensets(some.integers(0, 2) | some.booleans(), max_size=2)
    ),
    max_leaves=5,
)


def typed(value: Any) -> Any:
    """The same for values that are equal, also in their types, and in the order of dicts."""
    if isinstance(value, list | tuple):
        return type(value), tuple(map(typed, value))
    if isinstance(value, dict):
        return dict, tuple((key, typed(item)) for key, item in value.items())
    if isinstance(value, frozenset):
        return frozenset, frozenset(map(typed, value))
    return type(value), repr(value)


@memoize(lambda: pytest.fail("no call"))
def keyed(first: Any, second: Any = 0, *rest: Any, **named: Any) -> None: ...


@given(PLAIN, PLAIN)
def test_calls_have_one_key_if_their_arguments_are_the_same(one: Any, other: Any) -> None:
    same = typed(one) == typed(other)
    assert (keyed.cache_key(one) == keyed.cache_key(other)) == same
    assert keyed.cache_key(one, 0) == keyed.cache_key(first=one)
    assert keyed.cache_key(one, other) != keyed.cache_key(one, 0, other)
    assert keyed.cache_key(one, 0, other) != keyed.cache_key(one, 0, named=other)


class Color(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


def test_arguments_of_other_classes_are_refused(store: imap_wal.Store) -> None:
    """An IntEnum would have the key of its number, and another result."""

    @memoize(store.map("m"))
    def name(value: Any) -> str:
        return repr(value)

    endless: list[Any] = []
    endless.append(endless)
    for value in (Color.RED, Point(1), object(), {1: {"a": [Color.RED]}}, 2**70, endless):
        with pytest.raises(NotSerializable, match=r"the arguments of .*name"):
            name(value)
    assert name(1) == "1"
    assert len(store.map("m")) == 1


def test_a_function_makes_the_keys_of_a_method(store: imap_wal.Store) -> None:
    class Shop:
        def __init__(self, city: str) -> None:
            self.city = city

        @memoize(store.map("m"), key=lambda self, article: [self.city, article])
        def price(self, article: str) -> str:
            return f"{article} in {self.city}"

    for _ in range(2):
        assert Shop("Bern").price("tea") == "tea in Bern"
        assert Shop("Rome").price("tea") == "tea in Rome"
    assert Shop.price.cache_info() == (2, 2, None, 2)
    del store.map("m")[Shop.price.cache_key(Shop("Bern"), "tea")]
    assert Shop.price.cache_info().currsize == 1


def test_functions_with_one_map_do_not_mix_results(store: imap_wal.Store) -> None:
    def one(number: int) -> int:
        return number

    def two(number: int) -> int:
        return -number

    cached = [memoize(store.map("m"))(function) for function in (one, two)]
    assert [function(1) for function in cached] == [1, -1]
    assert memoize(store.map("m"), name="v2")(two)(1) == -1
    assert len(store.map("m")) == 3


def test_a_typed_map_has_typed_results(store: imap_wal.Store) -> None:
    results = store.map("typed", key=tuple[str, bytes], value=Point)
    cached = memoize(results)(Point)
    assert [type(cached(1)), type(cached(1))] == [Point, Point]


def test_a_call_inside_of_itself_is_a_recursion_error(store: imap_wal.Store) -> None:
    @memoize(store.map("m"))
    def endless(number: int) -> int:
        return int(endless(number))

    with pytest.raises(RecursionError):
        endless(1)

    @memoize(store.map("fibonacci"))
    def fibonacci(number: int) -> int:
        return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

    assert fibonacci(40) == 102_334_155


def test_wrong_uses_are_refused_with_the_reason(store: imap_wal.Store) -> None:
    for ttl in (0, -1, True, "60", float("nan")):
        with pytest.raises(InvalidSetting, match="ttl is"):
            memoize(store.map("m"), ttl=ttl)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"pass store.map\(name\)"):
        memoize({})(len)("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"@memoize\(store.map"):
        memoize(len)(3)  # type: ignore[arg-type, call-overload]
    half = functools.partial(divmod, 7)
    with pytest.raises(InvalidSetting, match="pass `name` and `key`"):
        memoize(store.map("m"))(half)
    assert memoize(store.map("m"), name="half", key=lambda number: number)(half)(2) == (3, 1)
    with pytest.raises(NotSerializable, match="m"):
        memoize(store.map("m"))(lambda: object())()

    async def with_aopen() -> None:
        async with imap_wal.aopen("memory://") as opened:
            with pytest.raises(InvalidSetting, match=r"imap_wal\.open"):
                memoize(opened.map("m"))(lambda: 1)()

    asyncio.run(with_aopen())
