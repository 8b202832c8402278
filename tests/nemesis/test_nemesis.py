"""The short form of `make nemesis`: one cluster, a few faults, everything killed and restarted
twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nemesis.runs import Run, failures
from tests.nemesis.world import World

# What an owner that is lost, a split network and a frozen member do to a map is in the long form.
EPISODES = {
    "kill-agent": "",
    "kill-machine": "in other order",
    "scale-in-and-out": "",
    "maintenance-beside": "as before",
}


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_no_acknowledged_change_is_lost_or_undone(
    tmp_path: Path, classpath: str, seed: int
) -> None:
    """After each fault, and after a restart, which has what was live."""
    restarts = iter(EPISODES.values())
    with World(tmp_path, classpath, print) as world:
        run = Run(world, seed, restarts=lambda _: next(restarts))
        run.play(list(EPISODES))
    assert [each.name for each in run.records] == list(EPISODES)
    assert all(each.outcomes.get("acknowledged", 0) > 0 for each in run.records)
    assert not any(each.findings for each in run.records), failures(run)
