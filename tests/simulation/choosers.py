"""Which task runs next: by chance, by priorities that change (PCT), after one long pause, or as
before."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

from tests.simulation.world import CHANGES, Task, World


class RandomWalk:
    """Another task with probability `restless` at each step."""

    def __init__(self, seed: int, restless: float) -> None:
        self._random, self._restless = Random(seed), restless

    def choose(self, world: World, ready: list[Task], current: Task | None) -> Task:
        if current is not None and self._random.random() >= self._restless and current in ready:
            return current
        return ready[int(self._random.random() * len(ready))]


class Priorities:
    """Probabilistic concurrency testing (Burckhardt and others, ASPLOS 2010): the ready task of the
    highest priority runs; at `depth - 1` steps, drawn from `steps`, it falls to the lowest. Finds a
    bug that needs `depth` such orderings with a probability of at least 1 / (n · steps^(depth-1)).
    """

    def __init__(self, seed: int, depth: int, steps: int) -> None:
        self._random = Random(seed)
        self._points = sorted(self._random.randrange(1, steps + 1) for _ in range(depth - 1))
        self._priority: dict[int, float] = {}
        self._lowest = 0.0

    def choose(self, world: World, ready: list[Task], current: Task | None) -> Task:
        priority = self._priority
        best, highest = ready[0], -inf
        for task in ready:
            number = task.number
            if number not in priority:
                priority[number] = 1 + self._random.random()
            if priority[number] > highest:
                best, highest = task, priority[number]
        while self._points and world.step >= self._points[0]:
            self._points.pop(0)
            self._lowest -= 1
            priority[best.number] = self._lowest
            best = max(ready, key=lambda task: priority[task.number])
        return best


class Pause:
    """Runs the tasks of `first` in order, each to its end; then `paused` up to its call number `at`
    (of those that change something, with `changes`); then the tasks of `during`, each to its end;
    then the rest of `paused`; then all others by number."""

    def __init__(
        self,
        first: tuple[int, ...],
        paused: int,
        at: int,
        during: tuple[int, ...],
        changes: bool = False,
    ) -> None:
        self._first, self._paused, self._at, self._during = first, paused, at, during
        self._changes = changes
        self.reached = False

    def choose(self, world: World, ready: list[Task], current: Task | None) -> Task:
        for number in self._first:
            for task in ready:
                if task.number == number:
                    return task
        paused = None
        for task in ready:
            if task.number == self._paused:
                paused = task
        if paused is not None and not self.reached:
            if self._changes:
                self.reached = paused.following in CHANGES and paused.changes + 1 >= self._at
            else:
                self.reached = paused.calls + 1 >= self._at
            if not self.reached:
                return paused
        for number in self._during:
            for task in ready:
                if task.number == number:
                    return task
        return paused if paused is not None else ready[0]


class Replay:
    """The schedule of a former run, as runs of (task, steps). Where the named task cannot run, the
    current one continues, so that a schedule is still valid when one of its runs is left out."""

    def __init__(self, runs: list[tuple[int, int]]) -> None:
        self._runs = [list(run) for run in runs]
        self._runs.reverse()

    def choose(self, world: World, ready: list[Task], current: Task | None) -> Task:
        while self._runs:
            run = self._runs[-1]
            if run[1] <= 0:
                self._runs.pop()
                continue
            run[1] -= 1
            for task in ready:
                if task.number == run[0]:
                    return task
            self._runs.pop()
        return current if current is not None and current in ready else ready[0]


def as_runs(choices: list[int]) -> list[tuple[int, int]]:
    """A list of choices as runs of (task, steps)."""
    runs: list[Any] = []
    for number in choices:
        if runs and runs[-1][0] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return [tuple(run) for run in runs]
