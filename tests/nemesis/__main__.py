"""Applies faults to a real cluster under load, and judges every answer and every restart.

make nemesis MINUTES=10 SEED=1                                  all episodes
make nemesis MINUTES=10 SEED=1 DISKS=own COPIES=2               and those of own disks
python -m tests.nemesis --seed 1 --episodes split,kill-member    these, in this order
python -m tests.nemesis --minutes 10 --baseline                  Hazelcast without a map store

Ends with code 1 if anything was found. The results are a line in out/nemesis.jsonl. The folder that
is printed first has the output of each process. For times without a success, the number in brackets
is the worst of all runs with --baseline.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.classes import compile_java
from tests.nemesis.defects import DEFECTS
from tests.nemesis.episodes import EPISODES
from tests.nemesis.report import commit, episodes_of, keep, kept, plain, rows, totals
from tests.nemesis.runs import Run, drawn, failures
from tests.nemesis.storage import add_options, chosen_storage
from tests.nemesis.world import World


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m tests.nemesis",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="begin no episode after this time"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: one is drawn, and printed")
    parser.add_argument(
        "--episodes", default="", help=f"these, once each, in this order, of: {', '.join(EPISODES)}"
    )
    parser.add_argument(
        "--restart", default="", help="how everything is restarted after each of them"
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="without the plug-in: how long no operation succeeds with Hazelcast alone",
    )
    add_options(parser)
    parser.add_argument(
        "--defect", default="", help=f"a defect of all agents: {', '.join(DEFECTS)}"
    )
    chosen = parser.parse_args()
    storage = chosen_storage(chosen)
    seed = chosen.seed or random.SystemRandom().randrange(1, 2**31)
    folder = Path(tempfile.mkdtemp(prefix="nemesis-"))
    print(f"{storage}; seed {seed}; logs of all processes in {folder}", flush=True)
    names = [each for each in chosen.episodes.split(",") if each]
    restarts = (lambda rng: str(chosen.restart)) if chosen.restart else None
    with World(
        folder,
        compile_java(folder),
        lambda text: print(text, flush=True),
        bare=chosen.baseline,
        storage=storage,
        defect=chosen.defect,
    ) as world:
        fitting = (each for each in EPISODES.values() if each.fits(storage, bare=chosen.baseline))
        among = [each.name for each in fitting]
        run = Run(world, seed, restarts=restarts)
        run.play(names or drawn(seed, among), until_moment=time.monotonic() + 60 * chosen.minutes)
    episodes = [each.as_json() for each in run.records]
    line = {"commit": commit(), "seed": seed, "baseline": chosen.baseline, "episodes": episodes}
    if not chosen.defect:
        keep({**line, "storage": str(storage)})
    bare = {} if chosen.baseline else totals(episodes_of(kept(), baseline=True))
    print("\n" + plain(list(rows(totals(episodes), bare))))
    found = sum(len(each.findings) for each in run.records)
    if found:
        print(f"\n{found} findings\n\n{failures(run)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
