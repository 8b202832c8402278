"""Runs Hazelcast's own tests of maps with the plug-in as the map store of each map.

make test-hazelcast                                     all classes in classes.txt
python -m tests.hazelcast_maps map.MapLockTest          these
python -m tests.hazelcast_maps --store simple           with a map store that does nothing special
python -m tests.hazelcast_maps --store none             without a map store

Ends with code 1 if a test fails that is not in excluded.txt, or one that is there passes. The
folder that is printed first has the output of each class.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from tests.hazelcast_maps.agents import Agents
from tests.hazelcast_maps.runs import Result, build, run
from tests.hazelcast_maps.verdict import FAIL, LIST, findings, read_list

CLASSES = Path(__file__).with_name("classes.txt")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m tests.hazelcast_maps",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("classes", nargs="*", help="without com.hazelcast.; default: all")
    parser.add_argument("--store", choices=sorted(FAIL), default="wal")
    parser.add_argument("--at-once", type=int, default=2, help="how many classes run at a time")
    parser.add_argument("--limit-s", type=float, default=900.0, help="how long a class may take")
    chosen = parser.parse_args()
    excluded = read_list(LIST.read_text("utf-8"))
    classes = chosen.classes or CLASSES.read_text("utf-8").split()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder = Path(tempfile.mkdtemp(prefix="hazelcast-maps-"))
    class_path = build(folder)
    print(f"map store {chosen.store}; output of all classes in {folder}", flush=True)

    def run_class(name: str) -> list[Result]:
        began = time.monotonic()
        own = folder / name
        own.mkdir()
        agents = Agents(own)
        try:
            slow = [
                each.method
                for each in excluded.values()
                if each.kind == "slow" and each.of_class == name
            ]
            results = run(
                name,
                chosen.store,
                class_path,
                agents.socket,
                own,
                limit_s=chosen.limit_s,
                without=slow,
            )
        finally:
            agents.close()
        results += [Result(name, "failed", failure=each) for each in agents.failures]
        print(f"{name}: {_counts(results)}, {time.monotonic() - began:.0f} s", flush=True)
        return results

    with ThreadPoolExecutor(chosen.at_once) as pool:
        results = [each for of_class in pool.map(run_class, classes) for each in of_class]
    wrong = list(findings(results, excluded, chosen.store, classes))
    print(f"\n{len(classes)} classes: {_counts(results)}")
    print("\n".join(wrong))
    return 1 if wrong else 0


def _counts(results: list[Result]) -> str:
    outcomes = Counter(each.outcome for each in results)
    maps = sum(each.maps for each in results)
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) + f", {maps} maps"


if __name__ == "__main__":
    sys.exit(main())
