"""Members and agents of an earlier version beside those of today, and a rolling update from one to
the other. tests/older/README.md says what the earlier version is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster, logged_map, until
from tests.cluster.load import Load

OLDER = Path(__file__).parents[1] / "older"
NAME = "upgrades"
KEYS = 300


@pytest.fixture(scope="session")
def older_classpath(classpath: str) -> str:
    hazelcast, _, classes = classpath.split(os.pathsep)
    return os.pathsep.join([hazelcast, str(OLDER / "plugin.jar"), classes])


def maps(endpoint: str) -> dict[str, Any]:
    return {NAME: logged_map(endpoint, backup_count=1)}


def contents(cluster: Cluster) -> dict[Any, Any]:
    entries = cluster.client().get_map(NAME).blocking()
    found: Any = until("the map is there", lambda: entries.entry_set() or None)
    return dict(found)


def update_agents(cluster: Cluster, number: int) -> None:
    agent = cluster.agents[number]
    agent.stop()
    agent.program = None
    agent.start()


@pytest.mark.parametrize("older", ["plug-in", "agent"])
def test_versions_of_plug_in_and_agent_work_side_by_side(
    older: str, classpath: str, older_classpath: str, tmp_path: Path
) -> None:
    """Over a migration, the loss of a member, and a kill of everything."""
    used = older_classpath if older == "plug-in" else classpath
    with Cluster(tmp_path, used, maps, offsets_ms=(0, 0)) as cluster:
        for agent in cluster.agents:
            agent.program = OLDER / "agent.zip" if older == "agent" else None
        cluster.start(1)
        entries = cluster.client().get_map(NAME).blocking()
        expected: dict[Any, Any] = {f"k{number}": f"first {number}" for number in range(KEYS)}
        entries.put_all(expected)
        cluster.join(2)
        for number in range(0, KEYS, 5):
            entries.remove(f"k{number}")
            del expected[f"k{number}"]
        entries.set("long", "lived", ttl=3600)
        expected["long"] = "lived"
        assert entries.get("k1") == "first 1"
        cluster.members[1].kill()
        cluster.wait_safe(1)
        assert contents(cluster) == expected, "after a member was lost"
        cluster.kill_everything()
        cluster.start(2)
        assert contents(cluster) == expected, "after everything was killed"


@pytest.mark.timeout(300)
def test_a_rolling_update_loses_nothing_and_keeps_one_cluster(
    classpath: str, older_classpath: str, tmp_path: Path
) -> None:
    """Under load: on each of three machines the agent and then the member are replaced."""
    with Cluster(tmp_path, older_classpath, maps) as cluster:
        for agent in cluster.agents:
            agent.program = OLDER / "agent.zip"
        cluster.start(3)
        cluster.wait_safe(3)
        before = list(cluster.members)
        cluster.classpath = classpath
        with Load(cluster.client(), NAME) as load:
            for number, member in enumerate(before):
                acknowledged = load.acknowledged
                member.leave()
                cluster.wait_safe(2)
                update_agents(cluster, number)
                cluster.join(number + 1)
                until("writes are acknowledged", lambda a=acknowledged: load.acknowledged > a + 200)
        assert not load.stale and not load.differences(contents(cluster)), load.seed
        assert load.acknowledged > 1000
        print(load.acknowledged, load.refused, load.unknown, load.errors)
        cluster.kill_everything()
        cluster.start(3)
        assert not load.differences(contents(cluster)), load.seed
