"""Does the simulation find defects? Each reverted fix must be caught; with all fixes, no drill
fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kit.effort import is_whole, thorough
from tests.simulation import high, views  # which add their drills
from tests.simulation.drills import DRILLS, ORDERS
from tests.simulation.explore import sweep
from tests.simulation.install import installed
from tests.simulation.mutation import Mutation, caught_by_drills, caught_by_itself, taken_back
from tests.simulation.mutations import MUTATIONS

Cases = Callable[[int], None]


FEW = (23, 1)
QUICK = {
    "a clear beside an archive and a rewrite": (23, 7),
    "a reader beside a rewrite and a prune": (4, 1),
    "a rewrite in ranges": (23, 7),
    "a timer of a writer that is replaced": (13, 5),
    "a takeover of a file that is appended by path": (7, 3),
    "a prune beside a long rewrite": (7, 1),
    "threads that change the same numbers": (7, 1),
    "an archive of a writer that is replaced": FEW,
    "a takeover beside an archive": FEW,
    "a takeover of objects beside an archive": (5, 1),
    "a takeover over NFS": FEW,
    "a node is forgotten beside its writer": FEW,
    "a node on objects is forgotten beside its writer": FEW,
    "a rewrite by a machine whose clock is ahead": FEW,
    "a folder that is replaced beside its writer": FEW,
    "an agent whose scratch is full": FEW,
    "both halves of a split network change a key": FEW,
    "two halves of a split network": (7, 1),
    "two survivors with a change under way": (7, 1),
}
"""In `make test`, an actor pauses at every n-th of its calls, in every m-th order of the others:
the numbers here, else 13 and 1. With these numbers each drill still has to catch what it catches
with all pauses, except `MISSED`."""

LONG = {"a program that writes when the first members come", "a task that runs twice"}
"""They have thousands of schedules, of which only a few find a reverted fix. `make test` plays
random schedules of the same actors."""

MISSED = {
    "C7 the first members leave a program alone",
    "C9 parts are named by their number, and deleted by the process that finds them",
}
"""Mutations that no drill of `make test` catches."""

HARMLESS = {"C3 a permit has the same name for all opens of an epoch"}
"""Mutations that no drill catches any more, since a writer knows its permit by what the file is,
not by its name (decision 77)."""


def quick(drill: str) -> tuple[int, int]:
    return QUICK.get(drill, (13, 1))


@pytest.mark.parametrize(
    "drill", [pytest.param(drill, marks=thorough) if drill in LONG else drill for drill in DRILLS]
)
def test_a_long_pause_at_any_call_breaks_nothing(drill: str, cases: Cases) -> None:
    """Each actor of a drill pauses once at each of its calls (in `make test`, at some of them).
    Without a pause, the drill does what it says."""
    plan = DRILLS[drill]
    with installed():
        results = sweep(plan, ORDERS.get(drill, ()), *((1, 1) if is_whole() else quick(drill)))
        for number, result in enumerate(results, 1):
            if number == 1:
                assert (result.acked, result.refused) == (plan.acknowledged, plan.refused)
            assert result.violation is None, f"schedule {number}: {result.violation}"
    cases(number)


ALL = (*MUTATIONS, *high.MUTATIONS, *views.MUTATIONS)


def test_every_reverted_fix_fits_the_code() -> None:
    """It replaces functions that exist. Only `make test-all` tries what each of them does."""
    stale = []
    for mutation in ALL:
        try:
            with installed(), taken_back(mutation):
                pass
        except AttributeError as error:
            stale.append(f"{mutation.name}: {error}")
    assert not stale


@thorough
@pytest.mark.parametrize("mutation", ALL, ids=lambda each: each.name)
def test_a_reverted_fix_is_caught_by_a_drill(mutation: Mutation, cases: Cases) -> None:
    """Each mutation reverts one fix. Almost all are also caught with the pauses of `make test`."""
    number, _ = caught_by_drills(mutation)
    assert bool(number) != (mutation.name in HARMLESS), f"{mutation.name}: {number}"
    if mutation.name in HARMLESS:
        return
    cases(number)
    drills = tuple(drill for drill in mutation.drills if drill not in LONG)
    again, _ = caught_by_drills(replace(mutation, drills=drills), quick)
    does = "do" if again else "do not"
    assert bool(again) != (mutation.name in MISSED), f"the pauses of make test {does} catch it"


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "mutation",
    [each for each in MUTATIONS if not each.is_rare and each.name not in HARMLESS],
    ids=lambda each: each.name,
)
def test_a_reverted_fix_is_caught_by_random_schedules(mutation: Mutation, cases: Cases) -> None:
    """Without a drill, in at most 20,000 schedules."""
    number, _ = caught_by_itself(mutation, 20_000)
    assert number, f"{mutation.name} was not caught in 20,000 schedules"
    cases(number)
