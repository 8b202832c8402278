"""Tests of the checker: histories whose verdict is known, and small ones compared with a search of
all orders."""

from __future__ import annotations

import random
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.effort import share
from tests.nemesis.linearizability import (
    UNKNOWN,
    UNSEEN,
    Checker,
    Kind,
    Operation,
    TooLarge,
    check,
    step,
)


def op(
    kind: Kind,
    start: float,
    end: float,
    value: Any = None,
    *,
    result: Any = UNSEEN,
    expected: Any = None,
) -> Operation:
    return Operation(kind=kind, start=start, end=end, value=value, result=result, expected=expected)


LINEARIZABLE = {
    "nothing": [],
    "one after the other": [
        op("put", 0, 1, "a", result=None),
        op("get", 2, 3, result="a"),
        op("remove", 4, 5, result="a"),
        op("get", 6, 7),
    ],
    "contains sees whether there is a value": [
        op("contains", 0, 1, result=False),
        op("put", 2, 3, "a"),
        op("contains", 4, 5, result=True),
    ],
    "contains sees the clear of unknown outcome": [
        op("set", 0, 1, "a"),
        op("clear", 2, UNKNOWN),
        op("contains", 3, 4, result=False),
    ],
    "a read beside a put sees either": [
        op("put", 0, 9, "a"),
        op("get", 1, 2, result=None),
        op("get", 3, 4, result="a"),
    ],
    "puts beside each other in either order": [
        op("put", 0, 9, "a", result="b"),
        op("put", 0, 9, "b", result=None),
        op("get", 10, 11, result="a"),
    ],
    "unknown, and it happened": [
        op("put", 0, UNKNOWN, "a"),
        op("get", 1, 2, result=None),
        op("get", 3, 4, result="a"),
    ],
    "unknown, and it never happened": [op("put", 0, UNKNOWN, "a"), op("get", 1, 2, result=None)],
    "unknown, and it happened after others": [
        op("set", 0, UNKNOWN, "a"),
        op("set", 1, 2, "b"),
        op("get", 3, 4, result="b"),
        op("get", 5, 6, result="a"),
    ],
    "one of two put_if_absent wins": [
        op("put_if_absent", 0, 9, "a", result="b"),
        op("put_if_absent", 0, 9, "b", result=None),
    ],
    "replaced, which needs an unknown put": [
        op("put", 0, UNKNOWN, "a"),
        op("replace", 1, 2, "b", expected="a", result=True),
        op("get", 3, 4, result="b"),
    ],
    "not replaced, because an unknown remove came first": [
        op("set", 0, 1, "a"),
        op("delete", 2, UNKNOWN),
        op("replace", 3, 4, "b", expected="a", result=False),
        op("get", 5, 6, result=None),
    ],
}
WRONG = {
    "never written": [op("get", 0, 1, result="a")],
    "contains sees nothing after a set": [op("set", 0, 1, "a"), op("contains", 2, 3, result=False)],
    "lost": [op("set", 0, 1, "a"), op("get", 2, 3, result=None)],
    "older than what was acknowledged": [
        op("set", 0, 1, "a"),
        op("set", 2, 3, "b"),
        op("get", 4, 5, result="a"),
    ],
    "removed, and back": [
        op("set", 0, 1, "a"),
        op("remove", 2, 3, result="a"),
        op("get", 4, 5, result="a"),
    ],
    "seen, and then not": [
        op("put", 0, 3, "a"),
        op("get", 1, 2, result="a"),
        op("get", 3, 4, result=None),
    ],
    "unknown, and it happened twice": [
        op("set", 0, UNKNOWN, "a"),
        op("get", 1, 2, result="a"),
        op("set", 3, 4, "b"),
        op("get", 5, 6, result="b"),
        op("get", 7, 8, result="a"),
    ],
    "both put_if_absent win": [
        op("put_if_absent", 0, 9, "a", result=None),
        op("put_if_absent", 0, 9, "b", result=None),
    ],
    "put_if_absent over an acknowledged value": [
        op("set", 0, 1, "a"),
        op("put_if_absent", 2, 3, "b", result=None),
    ],
    "both replace the same value": [
        op("set", 0, 1, "a"),
        op("replace", 2, 9, "b", expected="a", result=True),
        op("replace", 2, 9, "c", expected="a", result=True),
    ],
    "put says what was never there": [op("set", 0, 1, "a"), op("put", 2, 3, "b", result="c")],
}
# Right only if an operation may take effect twice between its start and its end.
TWICE = {
    "put returns its own value": [op("put", 0, 9, "a", result="a"), op("get", 10, 11, result="a")],
    "put_if_absent finds its own value": [op("put_if_absent", 0, 9, "a", result="a")],
    "remove finds nothing, after it removed": [
        op("set", 0, 1, "a"),
        op("remove", 2, 9, result=None),
        op("get", 10, 11, result=None),
    ],
    "overwritten, and written again": [
        op("set", 0, 9, "a"),
        op("put", 1, 2, "b", result="a"),
        op("get", 10, 11, result="a"),
    ],
}


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_a_history_that_a_map_can_have_is_accepted(name: str) -> None:
    assert check(LINEARIZABLE[name]) is None
    assert check(LINEARIZABLE[name], again=True) is None


@pytest.mark.parametrize("name", WRONG)
def test_an_impossible_history_is_refused_at_its_last_operation(name: str) -> None:
    """No map can have such a history."""
    for again in (False, True):
        violation = check(WRONG[name], again=again)
        assert violation is not None
        assert violation.operation.end == max(
            each.end for each in WRONG[name] if each.end != UNKNOWN
        )


@pytest.mark.parametrize("name", TWICE)
def test_a_repeated_effect_is_accepted_only_where_allowed(name: str) -> None:
    """An operation took effect twice."""
    assert check(TWICE[name]) is not None
    assert check(TWICE[name], again=True) is None


def test_unknown_operations_stay_possible_in_later_pieces() -> None:
    """A history may be fed in pieces."""
    checker = Checker()
    assert checker.feed([op("set", 0, 1, "a"), op("set", 2, UNKNOWN, "late")]) is None
    for number in range(3):
        assert checker.feed([op("get", 10 + number, 10.5 + number, result="a")]) is None
    assert checker.copy().feed([op("get", 20, 21, result="lost")]) is not None
    assert checker.feed([op("get", 20, 21, result="late")]) is None
    assert checker.feed([op("get", 22, 23, result="a")]) is not None


def test_a_long_history_with_many_unknowns_is_judged() -> None:
    """20,000 operations of one key, a hundred of them with an unknown outcome."""
    rng, checker, state = random.Random(7), Checker(again=True), None
    operations = []
    for number in range(20_000):
        at = float(number)
        if number % 200 == 0:
            operations.append(op("set", at, UNKNOWN, f"unknown {number}"))
        elif rng.random() < 0.5:
            operations.append(op("get", at, at + 0.5, result=state))
        else:
            operations.append(op("put", at, at + 0.5, number, result=state))
            state = number
    assert checker.feed(operations) is None
    assert checker.feed([op("get", 30_000, 30_001, result="unknown 200")]) is None
    assert (
        checker.feed(
            [
                op("get", 30_002, 30_003, result="unknown 0"),
                op("get", 30_004, 30_005, result="unknown 200"),
            ]
        )
        is not None
    )


def test_many_unknown_removes_are_judged() -> None:
    """One can stand for another, so their number does not multiply what is possible."""
    rng, checker = random.Random(7), Checker(again=True)
    operations = []
    for number in range(0, 2_000, 2):
        operations.append(op("remove", number, UNKNOWN))
        operations.append(op("put", number, number + 0.5, number))
        seen = rng.choice([number, None])
        operations.append(op("get", number + 1, number + 1.5, result=seen))
    assert checker.feed(operations) is None
    assert checker.feed([op("get", 3_000, 3_001, result="never")]) is not None


def test_a_search_that_is_too_large_is_given_up() -> None:
    operations = [op("put_if_absent", 0, UNKNOWN, number) for number in range(30)]
    operations += [op("remove", 0, UNKNOWN) for _ in range(30)]
    beside = [op("put", 1, 9, "a"), op("put", 1, 8, "b"), op("get", 1, 7, result="c")]
    with pytest.raises(TooLarge):
        Checker(bound=1_000).feed([*operations, *beside])


# ---- against all orders ----


def brute(history: list[Operation]) -> bool:
    """Every order of every choice of the unknown ones."""
    known = [each for each in history if each.end != UNKNOWN]
    unknown = [each for each in history if each.end == UNKNOWN]
    return any(
        _explained([*known, *chosen])
        for count in range(len(unknown) + 1)
        for chosen in combinations(unknown, count)
    )


def _explained(chosen: list[Operation]) -> bool:
    return any(_in_time(order) and _answers(order) for order in permutations(chosen))


def _in_time(order: tuple[Operation, ...]) -> bool:
    return all(one.start <= later.end for at, one in enumerate(order) for later in order[at + 1 :])


def _answers(order: tuple[Operation, ...]) -> bool:
    state: Any = None
    for each in order:
        fits, state = step(each, state)
        if not fits:
            return False
    return True


VALUES = st.sampled_from([None, "a", "b"])
WRITTEN = st.sampled_from(["a", "b"])


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    kind: Kind = draw(
        st.sampled_from(["get", "put", "set", "remove", "delete", "put_if_absent", "replace"])
    )
    start = draw(st.integers(0, 8))
    end = draw(
        st.one_of(
            st.integers(start + 1, 10),
            st.just(UNKNOWN) if kind != "get" else st.integers(start + 1, 10),
        )
    )
    result = (
        UNSEEN
        if end == UNKNOWN or kind in ("set", "delete")
        else draw(st.booleans() if kind == "replace" else VALUES)
    )
    value = draw(WRITTEN) if kind in ("put", "set", "put_if_absent", "replace") else None
    expected = draw(WRITTEN) if kind == "replace" else None
    return op(kind, start, end, value, result=result, expected=expected)


@settings(max_examples=share(600), deadline=None)
@given(st.lists(operations(), max_size=6))
def test_the_verdict_is_that_of_trying_all_orders(history: list[Operation]) -> None:
    assert (check(history) is None) == brute(history)


@settings(max_examples=share(300), deadline=None)
@given(st.lists(operations(), max_size=3))
def test_the_verdict_on_repetitions_is_that_of_all_orders(history: list[Operation]) -> None:
    """Each order is tried with each choice of repeated operations."""
    known = [each for each in history if each.end != UNKNOWN and each.kind != "get"]
    repeated = [
        op(each.kind, each.start, each.end, each.value, expected=each.expected) for each in known
    ]
    expected = any(
        brute([*history, *chosen])
        for count in range(len(repeated) + 1)
        for chosen in combinations(repeated, count)
    )
    assert (check(history, again=True) is None) == expected
