"""Many seeds, on all processors."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.simulation.explore import Failure, failure_of, run_seed
from tests.simulation.install import installed

CHUNK = 100
COLLECT = 20
"""The garbage of this number of runs still fits into the processor's caches."""


@dataclass
class Tally:
    """The sums of a number of runs."""

    schedules: int = 0
    steps: int = 0
    acknowledged: int = 0
    failures: list[Failure] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.acknowledged += other.acknowledged
        self.failures += other.failures
        self.faults += other.faults


def chunk(job: tuple[str, int, int]) -> Tally:
    """Plays a number of seeds from `first` on; called inside of `installed()`."""
    scenario, first, count = job
    tally = Tally()
    gc.disable()  # scanning everything that is remembered takes a quarter of the time
    for seed in range(first, first + count):
        result = run_seed(scenario, seed)
        tally.schedules += 1
        tally.steps += result.steps
        tally.acknowledged += result.acked
        tally.faults.update(result.world.notes.values())
        if result.violation is not None:
            tally.failures.append(failure_of(scenario, seed, result))
        if tally.schedules % COLLECT == 0:
            gc.collect()
            gc.freeze()  # what is left is remembered for later runs: it is not scanned again
    return tally


_worker = ExitStack()


def _begin() -> None:
    """Runs once in each process of the pool."""
    _worker.enter_context(installed())
    gc.collect()
    # Loaded modules are not garbage, and scanning them takes longer than scanning what runs make.
    gc.freeze()


def jobs(scenarios: Sequence[str], first: int, runs: int) -> Iterator[tuple[str, int, int]]:
    """About `runs` schedules, evenly over the scenarios, in chunks that take turns."""
    each = -(-runs // len(scenarios))
    for start in range(first, first + each, CHUNK):
        for scenario in scenarios:
            yield scenario, start, min(CHUNK, first + each - start)


def explore(
    scenarios: Sequence[str], first: int, runs: int, workers: int = 0, failures_max: int = 1
) -> Tally:
    """Ends early after `failures_max` failures."""
    total = Tally()
    workers = workers or os.cpu_count() or 1
    work = list(jobs(scenarios, first, runs))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin) as pool:
        waiting = {pool.submit(chunk, job) for job in work}
        for future in as_completed(waiting):
            total.add(future.result())
            if len(total.failures) >= failures_max:
                pool.shutdown(cancel_futures=True)
                break
    return total
