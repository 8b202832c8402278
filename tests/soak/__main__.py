"""A long run of a real cluster under load: faults and maintenance, and whether memory, open files,
threads, disk and latency stay flat.

make soak HOURS=8 SEED=1
make soak HOURS=8 SEED=1 DISKS=own COPIES=2
python -m tests.soak --hours 0.5 --quiet-minutes 1

Ends with code 1 if a change was lost or came back, or if a line is not flat. Writes the lines to
out/soak.json and a picture to out/soak.svg. `python -m tests.soak.report` puts both on
docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.cluster.classes import compile_java
from tests.cluster.processes import ROOT
from tests.nemesis.report import commit
from tests.nemesis.storage import add_options, chosen_storage
from tests.soak.lines import judged
from tests.soak.night import JUDGED_S, night, plan
from tests.soak.pictures import picture

SAMPLES = 1500
"""About this many samples in a whole run."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m tests.soak",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0, help="default: one is drawn, and printed")
    parser.add_argument(
        "--quiet-minutes",
        type=float,
        default=5.0,
        help="minutes of load alone, before and after each rewrite",
    )
    add_options(parser)
    chosen = parser.parse_args()
    storage = chosen_storage(chosen)
    seed = chosen.seed or random.SystemRandom().randrange(1, 2**31)
    folder, seconds = Path(tempfile.mkdtemp(prefix="soak-")), 3600 * chosen.hours
    print(f"{storage}; seed {seed}; logs of all processes in {folder}", flush=True)
    found = night(
        folder,
        compile_java(folder),
        seed=seed,
        storage=storage,
        episodes=plan(seed, 60 * chosen.quiet_minutes, storage),
        seconds=seconds,
        sample_s=max(1.0, seconds / SAMPLES),
    )
    findings = Counter(f"{each.name}: {kind}" for each in found.records for kind in each.found)
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    changes = sum(each.outcomes.get("acknowledged", 0) for each in found.records)
    result = {
        "commit": commit(),
        "seed": seed,
        "storage": str(storage),
        "minutes": round(found.seconds / 60, 1),
        "episodes": dict(Counter(each.name for each in found.records)),
        "acknowledged": changes,
        "findings": dict(findings),
        "judged": judged(found.lines, JUDGED_S),
        "drifts": [str(each) for each in found.drifts],
        "failure": found.failure,
        "lines": [each.as_json() for each in found.lines],
    }
    (out / "soak.json").write_text(json.dumps(result), encoding="utf-8")
    (out / "soak.svg").write_text(picture(found.lines), encoding="utf-8")
    print(
        f"\n{found.seconds / 60:.0f} minutes, {len(found.records)} episodes, {changes:,} "
        f"acknowledged operations; {result['judged']} lines judged, of processes that lived at "
        f"least {JUDGED_S / 60:.0f} minutes"
    )
    for text in [*(f"{kind}: {count}" for kind, count in findings.items()), *found.drifts]:
        print(f"found: {text}")
    if found.failure:
        print(f"ended early: {found.failure}")
    return 1 if findings or found.drifts or found.failure else 0


if __name__ == "__main__":
    sys.exit(main())
