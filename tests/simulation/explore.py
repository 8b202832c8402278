"""Many runs: by seed, or systematically with one long pause."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.simulation.choosers import Pause, Priorities, RandomWalk
from tests.simulation.runs import Plan, Result, play
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Chooser, Violation

STEPS = 160
"""About the number of steps in a run. PCT's changes of priority fall in this range."""


@dataclass(frozen=True)
class Failure:
    scenario: str
    seed: int
    rule: str
    text: str
    runs: list[tuple[int, int]]
    number: int = 0
    """The number of the schedule, from 1."""


def chooser_of(seed: int, plan: Plan) -> Chooser:
    rng = Random(seed * 7919 + 1)
    way = rng.random()
    tasks = sum(len(spec.threads) for spec in plan.specs)
    if way < 0.1:
        return RandomWalk(seed, rng.choice((0.05, 0.2, 0.5, 1.0)))
    if way < 0.4:
        return Priorities(seed, rng.randint(1, 4), STEPS)
    order = list(range(tasks))
    rng.shuffle(order)
    paused = order.pop()
    cut, end = sorted((rng.randint(0, len(order)), rng.randint(0, len(order))))
    changes = rng.random() < 0.5
    ops = [ops for spec in plan.specs for ops in spec.threads][paused]
    most = sum(_CALLS.get(op[0], (10, 3))[changes] for op in ops)
    at = rng.randint(1, max(2, most))
    return Pause(tuple(order[:cut]), paused, at, tuple(order[cut : max(end, cut + 1)]), changes)


_CALLS = {
    "open": (45, 7),
    "put": (4, 1),
    "delete": (4, 1),
    "archive": (24, 6),
    "close": (10, 5),
    "list": (20, 1),
    "rewrite": (45, 4),
    "rewrite_twice": (45, 4),
    "prune": (25, 5),
    "copy": (20, 1),
    "drop": (16, 1),
    "forget": (60, 20),
}
"""Operation → about how many calls it makes, and how many of them change something."""


def plan_of(scenario: str, seed: int) -> Plan:
    plan = SCENARIOS[scenario](Random(seed * 104_729 + 7))
    return replace(plan, seed=seed)


def run_seed(scenario: str, seed: int) -> Result:
    plan = plan_of(scenario, seed)
    return play(plan, chooser_of(seed, plan))


def failure_of(scenario: str, seed: int, result: Result, number: int = 0) -> Failure:
    assert isinstance(result.violation, Violation)
    return Failure(
        scenario, seed, result.violation.rule, str(result.violation), result.runs, number
    )


Order = tuple[tuple[int, ...], int, tuple[int, ...]]
"""Tasks that run to their end before, the one that is paused, and those that run to their end
during its pause. The others run after it."""


def orders(tasks: int) -> Iterator[Order]:
    """All orders in which every other task runs before the paused one or during its pause, and at
    least one of them during it."""
    for paused in range(tasks):
        others = [number for number in range(tasks) if number != paused]
        for size in range(1, len(others) + 1):
            for inside in itertools.permutations(others, size):
                for before in itertools.permutations([o for o in others if o not in inside]):
                    yield before, paused, inside


def sweep(
    plan: Plan, chosen: tuple[Order, ...] = (), every: int = 1, every_order: int = 1
) -> Iterator[Result]:
    """A plan with one long pause of every task at every one of its calls, or at each `every`-th, in
    all orders of the others or in the `chosen` ones, or in each `every_order`-th of them; inside of
    `installed()`. The seed of a schedule depends only on its order and pause, so all pauses find
    what some of them find."""
    result = play(plan, Pause((), -1, 1, ()))  # one after the other
    yield result
    for number, (before, paused, inside) in enumerate(chosen or orders(result.tasks)):
        if number % every_order:
            continue
        for at in itertools.count(1, every):
            pause = Pause(before, paused, at, inside)
            yield play(replace(plan, seed=1000 * number + at), pause)
            if not pause.reached:
                break
