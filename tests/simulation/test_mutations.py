"""Does the simulation find defects? Each reverted fix must be caught; with all fixes, no drill
fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.effort import step, thorough
from tests.simulation import high, views  # which add their drills
from tests.simulation.drills import DRILLS, ORDERS
from tests.simulation.explore import sweep
from tests.simulation.install import installed
from tests.simulation.mutation import Mutation, caught_by_drills, caught_by_itself
from tests.simulation.mutations import MUTATIONS

Cases = Callable[[int], None]


LONG = {
    "a clear beside an archive and a rewrite",
    "a program that writes when the first members come",
    "a listing through an agent",
    "a task that runs twice",
    "a rewrite in ranges",
}
"""They have thousands of schedules. `make test` plays random schedules of the same actors."""


@pytest.mark.parametrize(
    "drill", [pytest.param(drill, marks=thorough) if drill in LONG else drill for drill in DRILLS]
)
def test_a_long_pause_at_any_call_breaks_nothing(drill: str, cases: Cases) -> None:
    """Each actor of a drill pauses once at each of its calls. Without a pause, the drill does what
    it says."""
    plan = DRILLS[drill]
    with installed():
        for number, result in enumerate(sweep(plan, ORDERS.get(drill, ()), min(step(), 2)), 1):
            if number == 1:
                assert (result.acked, result.refused) == (plan.acknowledged, plan.refused)
            assert result.violation is None, f"schedule {number}: {result.violation}"
    cases(number)


@thorough
@pytest.mark.parametrize(
    "mutation", [*MUTATIONS, *high.MUTATIONS, *views.MUTATIONS], ids=lambda each: each.name
)
def test_a_reverted_fix_is_caught_by_a_drill(mutation: Mutation, cases: Cases) -> None:
    """Each mutation reverts one fix."""
    number, _ = caught_by_drills(mutation)
    assert number, f"{mutation.name} was not caught"
    cases(number)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if not each.is_rare], ids=lambda each: each.name
)
def test_a_reverted_fix_is_caught_by_random_schedules(mutation: Mutation, cases: Cases) -> None:
    """Without a drill, in at most 20,000 schedules."""
    number, _ = caught_by_itself(mutation, 20_000)
    assert number, f"{mutation.name} was not caught in 20,000 schedules"
    cases(number)
