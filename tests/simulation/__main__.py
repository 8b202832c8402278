"""Plays schedules and shows the first that breaks a promise, shrunk, as a table.

python -m tests.simulation --runs 20000                          all scenarios, all processors
python -m tests.simulation --scenario hosts --seed 7             one schedule, again
python -m tests.simulation --scenario hosts --seed 7 --trace     … with every call to the storage
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.explore import plan_of, run_seed
from tests.simulation.install import installed
from tests.simulation.many import explore
from tests.simulation.runs import Result, replay, shrink, table
from tests.simulation.scenarios import OPEN, SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.simulation")
    parser.add_argument("--scenario", choices=[*SCENARIOS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--runs", type=int, default=1, help="how many schedules")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes; default: one a processor"
    )
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--trace", action="store_true", help="of one schedule, every call")
    chosen = parser.parse_args()
    names = (
        [name for name in SCENARIOS if name not in OPEN]
        if chosen.scenario == "all"
        else [chosen.scenario]
    )
    if chosen.runs == 1 and len(names) == 1:
        with installed():
            result = run_seed(names[0], chosen.seed)
            if chosen.trace:
                print(table(result))
            return report(names[0], chosen.seed, result)
    start = time.monotonic()
    tally = explore(names, chosen.seed, chosen.runs, chosen.workers, chosen.failures)
    spent = time.monotonic() - start
    print(
        f"{tally.schedules:,} schedules, {tally.steps:,} calls to the storage, "
        f"{tally.acknowledged:,} acknowledged changes, in {spent:.0f} s; faults: "
        f"{dict(tally.faults)}"
    )
    for failure in tally.failures[1:]:
        print(f"{failure.scenario} --seed {failure.seed}: {failure.text[:300]}")
    if tally.failures:
        failure = tally.failures[0]
        with installed():
            report(failure.scenario, failure.seed, run_seed(failure.scenario, failure.seed))
    return 1 if tally.failures else 0


def report(scenario: str, seed: int, result: Result) -> int:
    """Prints the violation; 1 if there is one. Called inside of `installed()`."""
    if result.violation is None:
        print(f"{scenario} --seed {seed}: {result.steps} calls, nothing broken")
        return 0
    if result.cause is not None:
        traceback.print_exception(result.cause)
    print(story(scenario, seed, result))
    return 1


def story(scenario: str, seed: int, result: Result) -> str:
    """The shrunk schedule as a table, and how to play it again."""
    assert result.violation is not None
    plan, runs = shrink(plan_of(scenario, seed), result.runs, result.violation.rule)
    smaller = replay(plan, runs)
    actors = "\n".join(
        f"  {spec.name} ({spec.role} of {spec.node} on machine {spec.machine}, clock "
        f"{spec.offset_ms:+} ms): {' | '.join(' '.join(map(str, ops)) for ops in spec.threads)}"
        for spec in plan.specs
    )
    return (
        f"{result.violation}\n\nstorage {plan.kind}, log before: {plan.prologue}, "
        f"faults: {dict(plan.faults)}, afterwards: {plan.after}\n{actors}\n\n{table(smaller)}\n\n"
        f"{smaller.violation or 'shrunk away'}\n\n"
        f"replay: python -m tests.simulation --scenario {scenario} --seed {seed}"
    )


if __name__ == "__main__":
    sys.exit(main())
