"""Load for hours, with faults and maintenance in between, and the gauges of all processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.nemesis.episode import Episode
from tests.nemesis.episodes import EPISODES
from tests.nemesis.runs import Record, Run, drawn
from tests.nemesis.storage import SHARED, Storage
from tests.nemesis.world import World
from tests.soak.gauges import Gauges
from tests.soak.lines import Drift, Line, drifts

JUDGED_S = 1200.0
"""A process that lived less than this is not judged."""
RESTART_SHARE = 0.1
"""How often everything is killed and restarted after a fault."""
UNDER_LOAD = "under-load"


@dataclass(frozen=True, slots=True)
class Night:
    """The result. `seconds`: how long it took. `failure`: why it ended early; empty if it did
    not."""

    records: list[Record]
    lines: list[Line]
    drifts: list[Drift]
    seconds: float
    failure: str = ""


def maintain(world: World, _: Random) -> None:
    """What a nightly job does, beside the load."""
    for each in (world.rewrite, world.prune):
        said = each()
        assert said.startswith("exit code 0"), said


MAINTAIN = Episode(name="rewrite-and-prune", run=maintain, bare=False)


def quiet(seconds: float) -> Episode:
    """Nothing happens but the load."""
    return Episode(name=UNDER_LOAD, run=lambda world, rng: time.sleep(seconds))


def plan(seed: int, quiet_s: float, storage: Storage = SHARED) -> Iterator[Episode]:
    """Load, maintenance and load again, then one of the faults; and so on with the next one."""
    faults = {each.name: each for each in EPISODES.values() if each.fits(storage)}
    del faults["full-disk"]
    for name in drawn(seed, sorted(faults)):
        yield quiet(quiet_s)
        yield MAINTAIN
        yield quiet(quiet_s)
        yield faults[name]


def night(
    folder: Path,
    classpath: str,
    *,
    seed: int,
    episodes: Iterator[Episode],
    seconds: float,
    sample_s: float,
    storage: Storage = SHARED,
) -> Night:
    """Begins no episode after `seconds`. The last one ends a little later. After a failure, or
    Ctrl-C, it returns what was recorded so far."""
    rng = Random(seed)
    with World(folder, classpath, lambda text: print(text, flush=True), storage=storage) as world:
        gauges = Gauges(world, sample_s)
        begin = time.monotonic()
        run = Run(
            world,
            seed,
            restarts=lambda _: "as before" if rng.random() < RESTART_SHARE else "",
        )

        def measured() -> Iterator[Episode]:
            for episode in episodes:
                yield episode
                record = run.records[-1]
                if record.name == UNDER_LOAD:
                    gauges.note("p99", "changes", record.write_p99_ms)

        gauges.start()
        failure = ""
        try:
            run.play(measured(), until_moment=begin + seconds)
        except (Exception, KeyboardInterrupt) as error:
            failure = f"{type(error).__name__}: {error}"
        finally:
            gauges.stop()
        drifting = drifts(gauges.lines, JUDGED_S)
        return Night(run.records, gauges.lines, drifting, time.monotonic() - begin, failure)
