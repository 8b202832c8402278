"""A rolling update in a long run: to members of an earlier version, and back to the newest.
tests/older/README.md says what that version is.

Its agents are not used: the log of the run has the newest feature level from its first entry on,
and they refuse it. tests/cluster/test_upgrades.py replaces both, on a log that begins with them."""

from __future__ import annotations

import os
import time
from random import Random

from tests.cluster.processes import ROOT
from tests.nemesis.episode import Episode
from tests.nemesis.world import MACHINES, World

PLUGIN = ROOT / "tests" / "older" / "plugin.jar"


def older_classpath(classpath: str) -> str:
    hazelcast, tests, _ = classpath.split(os.pathsep)
    return os.pathsep.join([hazelcast, tests, str(PLUGIN)])


def roll(world: World, rng: Random) -> None:
    """Machine after machine, the member is replaced by one with the earlier plug-in, and its agent
    is restarted. Then all members are replaced by the newest again. Each version has load."""
    newest = world.cluster.classpath
    try:
        for classpath in (older_classpath(newest), newest):
            world.cluster.classpath = classpath
            for machine in rng.sample(MACHINES, len(MACHINES)):
                world.leave(machine)
                world.agent(machine).stop()
                world.join(machine)
                time.sleep(rng.uniform(0, 3))
            world.say(f"all members have {classpath.split(os.pathsep)[-1]}")
            time.sleep(rng.uniform(2, 10))
    finally:
        world.cluster.classpath = newest


ROLL = Episode(name="rolling-update", run=roll, bare=False)
"""Only with one copy and a shared root: the earlier version knows nothing else. It has defects that
were fixed later (decision 41): if this episode has a finding, look at them first."""
