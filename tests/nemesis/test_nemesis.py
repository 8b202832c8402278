"""The short forms of `make nemesis`: one cluster, one fault or a few, everything killed and
restarted; and one whose agents have own disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.effort import thorough
from tests.nemesis.runs import Run, failures
from tests.nemesis.storage import Storage
from tests.nemesis.world import World

# What an owner that is lost, a split network and a frozen member do to a map is in the long form.
EPISODES = {
    "kill-agent": "",
    "kill-machine": "in other order",
    "scale-in-and-out": "",
    "maintenance-beside": "as before",
}


OWN_DISKS = {
    "lose-disk": "in other order",
    "without-root": "",
    "lose-disk-while-another-is-away": "as before",
}


def played(run: Run, episodes: dict[str, str]) -> None:
    run.play(list(episodes))
    assert [each.name for each in run.records] == list(episodes)
    assert all(each.outcomes.get("acknowledged", 0) > 0 for each in run.records)
    assert not any(each.findings for each in run.records), failures(run)


@thorough
@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_a_killed_agent_loses_no_acknowledged_change(
    tmp_path: Path, classpath: str, seed: int
) -> None:
    """One fault of those below, with fewer clears and transactions."""
    with World(tmp_path, classpath, print) as world:
        played(Run(world, seed, restarts=lambda _: "", together_pause_s=0.3), {"kill-agent": ""})


@pytest.mark.cluster
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_no_acknowledged_change_is_lost_or_undone(
    tmp_path: Path, classpath: str, seed: int
) -> None:
    """After each fault, and after a restart, which has what was live."""
    restarts = iter(EPISODES.values())
    with World(tmp_path, classpath, print) as world:
        played(Run(world, seed, restarts=lambda _: next(restarts)), EPISODES)


@pytest.mark.cluster
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_lost_disks_lose_no_acknowledged_change_silently(
    tmp_path: Path, classpath: str, seed: int
) -> None:
    """With copies, the loss of one disk loses nothing, and stops no start. A second one beside it
    loses nothing, unless the start of its agent is refused first."""
    restarts = iter(OWN_DISKS.values())
    with World(tmp_path, classpath, print, storage=Storage(own_disks=True, copies=2)) as world:
        run = Run(world, seed, restarts=lambda _: next(restarts))
        played(run, OWN_DISKS)
    assert not any(each.refusals for each in run.records[:2])
