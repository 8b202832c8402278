"""A fix that is reverted, and after how many schedules the simulation notices it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.drills import DRILLS, ORDERS
from tests.simulation.explore import run_seed, sweep
from tests.simulation.install import installed
from tests.simulation.world import UNEXPECTED, Violation

Put = Callable[[Any, str, Any], None]
"""Replaces an attribute until the end of the trial."""


@dataclass(frozen=True)
class Mutation:
    """`take_back` replaces functions by what they did before; `drills` names plans that catch
    it. `crashes`: the other code does not expect what it then finds, and fails. `is_rare`: 20,000
    random schedules of its scenario do not meet it; only a drill does."""

    item: str
    what: str
    take_back: Callable[[Put], None]
    drills: tuple[str, ...]
    scenario: str
    crashes: bool = False
    is_rare: bool = False

    @property
    def name(self) -> str:
        return f"{self.item} {self.what}"


@contextmanager
def taken_back(mutation: Mutation) -> Iterator[None]:
    from tests.simulation import prologues

    replaced: list[tuple[Any, str, Any]] = []

    def put(where: Any, name: str, value: Any) -> None:
        replaced.append((where, name, getattr(where, name)))
        setattr(where, name, value)

    try:  # also if one of the names does not exist, or all later tests would have the defect
        mutation.take_back(put)
        prologues._made.cache_clear()
        yield
    finally:
        for where, name, value in reversed(replaced):
            setattr(where, name, value)
        prologues._made.cache_clear()


def caught_by_drills(
    mutation: Mutation, sample: Callable[[str], tuple[int, int]] = lambda drill: (1, 1)
) -> tuple[int, str]:
    """After how many schedules, and what was broken; (0, "") when it was not caught. `sample`: a
    drill → it pauses at every n-th call, in every m-th order."""
    count = itertools.count(1)
    with installed(), taken_back(mutation):
        for name in mutation.drills:
            for result in sweep(DRILLS[name], ORDERS.get(name, ()), *sample(name)):
                number = next(count)
                if result.violation is not None:
                    return number, _what(mutation, result.violation)
    return 0, ""


def caught_by_itself(mutation: Mutation, runs: int) -> tuple[int, str]:
    """Like the function above, by seeds of the mutation's scenario."""
    with installed(), taken_back(mutation):
        for seed in range(1, runs + 1):
            result = run_seed(mutation.scenario, seed)
            if result.violation is not None:
                return seed, _what(mutation, result.violation)
    return 0, ""


def _what(mutation: Mutation, violation: Violation) -> str:
    """A function of `take_back` that no longer fits the code fails too, and proves nothing."""
    crashed = violation.rule == UNEXPECTED
    assert crashed == mutation.crashes, f"{mutation.name}: {violation}"
    return str(violation)
