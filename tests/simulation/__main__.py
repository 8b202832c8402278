"""python -m tests.simulation --scenario NAME --seed N --runs N [--shrink]"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.explore import chooser_of, failure_of, plan_of, run_seed
from tests.simulation.install import installed
from tests.simulation.runs import play, replay, shrink, table
from tests.simulation.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", choices=[*SCENARIOS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--keep-going", action="store_true")
    chosen = parser.parse_args()
    names = list(SCENARIOS) if chosen.scenario == "all" else [chosen.scenario]
    found = 0
    with installed():
        for name in names:
            start, steps, rules = time.process_time(), 0, Counter()
            for seed in range(chosen.seed, chosen.seed + chosen.runs):
                result = run_seed(name, seed)
                steps += result.steps
                if chosen.trace and chosen.runs == 1:
                    print(table(result))
                if result.violation is None:
                    continue
                found += 1
                rules[result.violation.rule] += 1
                if rules[result.violation.rule] == 1 or chosen.runs == 1:
                    print(f"{name} --seed {seed}: {result.violation}", flush=True)
                    if chosen.trace and result.cause is not None:
                        traceback.print_exception(result.cause)
                    if chosen.shrink:
                        plan, runs = shrink(plan_of(name, seed), result.runs, result.violation.rule)
                        smaller = replay(plan, runs)
                        print(plan)
                        print(table(smaller))
                        print(smaller.violation)
                if not chosen.keep_going and chosen.runs > 1 and not rules:
                    break
            spent = time.process_time() - start
            print(
                f"{name}: {chosen.runs} runs, {steps / chosen.runs:.0f} steps each, "
                f"{1000 * spent / chosen.runs:.1f} ms each, {sum(rules.values())} failed: {dict(rules)}",
                flush=True,
            )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
