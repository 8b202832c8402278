"""Members and agents of an earlier version beside those of today, and a rolling update from one to
the other. tests/older/README.md says what the earlier version is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.manifest.feature_level import FIRST, NEWEST
from imap_wal.manifest.node import node_manifests
from imap_wal.manifest.upgrade import LevelReport, Upgrade
from rewrite_cli.cli import group
from storage_backends import open_store
from tests.cluster.cluster import Cluster, connect
from tests.cluster.configuration import logged_map
from tests.cluster.contents import contents, filled
from tests.cluster.load import Load
from tests.cluster.processes import Agent
from tests.cluster.waiting import until

OLDER = Path(__file__).parents[1] / "older"
NAME = "upgrades"
KEYS = 300


@pytest.fixture(scope="session")
def older_classpath(classpath: str) -> str:
    hazelcast, tests, _ = classpath.split(os.pathsep)
    return os.pathsep.join([hazelcast, tests, str(OLDER / "plugin.jar")])


def maps(endpoint: str) -> dict[str, Any]:
    return {NAME: logged_map(endpoint, backup_count=1)}


@pytest.mark.thorough
@pytest.mark.parametrize("older", ["plug-in", "agent"])
def test_versions_of_plug_in_and_agent_work_side_by_side(
    older: str, classpath: str, older_classpath: str, tmp_path: Path
) -> None:
    """Over a migration, the loss of a member, and a kill of everything."""
    used = older_classpath if older == "plug-in" else classpath
    with Cluster(tmp_path, used, maps, offsets_ms=(0, 0)) as cluster:
        for agent in cluster.agents:
            agent.program = OLDER / "agent.zip" if older == "agent" else None
        expected = filled(cluster, NAME, KEYS)
        entries = cluster.client().get_map(NAME).blocking()
        assert entries.get("k1") == "first 1"
        cluster.members[1].kill()
        cluster.wait_safe(1)
        assert contents(cluster, NAME) == expected, "after a member was lost"
        cluster.kill_everything()
        cluster.start(2)
        assert contents(cluster, NAME) == expected, "after everything was killed"


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["older", "newer"])
def test_a_joining_member_of_another_version_opens_the_map(
    first: str, classpath: str, older_classpath: str, tmp_path: Path
) -> None:
    """It asks the other one about the map, which it opens itself."""
    order = [older_classpath, classpath]
    if first == "newer":
        order.reverse()
    with Cluster(tmp_path, order[0], maps, offsets_ms=(0, 0)) as cluster:
        cluster.start(1)
        written = {f"k{number}": number for number in range(KEYS)}
        cluster.client().get_map(NAME).blocking().put_all(written)
        cluster.classpath = order[1]
        joined = cluster.join(2)
        opened = [member.ask("owned-entries", NAME) for member in cluster.members]
        assert all(opened) and sum(opened) == KEYS
        only = connect([joined.address], cluster.name, smart_routing=False)
        assert dict(cluster.keep(only).get_map(NAME).blocking().entry_set()) == written


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_rolling_update_loses_nothing_and_keeps_one_cluster(
    classpath: str, older_classpath: str, tmp_path: Path
) -> None:
    """Under load: on each of three machines, agent and member are replaced. The second one returns
    to the earlier version once. Archives are written all the time."""
    small: dict[str, Any] = {"segment_bytes": 32 * 1024, "max_total_wal_size": 128 * 1024}
    with Cluster(tmp_path, older_classpath, maps, **small) as cluster:
        for agent in cluster.agents:
            agent.program = OLDER / "agent.zip"
        cluster.start(3)
        cluster.wait_safe(3)
        beside = dict(enumerate(cluster.members))
        with Load(cluster.client(), NAME, value_bytes=200) as load:
            until("all callers write", lambda: load.acknowledged > 200)
            for number, older in ((0, False), (1, False), (1, True), (1, False), (2, False)):
                assert level_of(cluster).possible is FIRST, "a node cannot read more"
                acknowledged = load.acknowledged
                beside[number].leave()
                cluster.wait_safe(2)
                agent = cluster.agents[number]
                agent.stop()
                agent.program = OLDER / "agent.zip" if older else None
                cluster.classpath = older_classpath if older else classpath
                beside[number] = cluster.join(number + 1)
                until("writes are acknowledged", lambda a=acknowledged: load.acknowledged > a + 200)
            assert not sorted_archives(cluster)
            raised(cluster)
            until("an archive is sorted", lambda: sorted_archives(cluster), 90)
        assert not load.stale and not load.differences(contents(cluster, NAME)), load.seed
        cluster.kill_everything()
        cluster.start(3)
        assert not load.differences(contents(cluster, NAME)), load.seed
    refused(cluster.agents[0])


def opened(cluster: Cluster) -> tuple[Any, ...]:
    return open_store(cluster.url), "default/dev", SystemClock(), SystemRandomness()


def level_of(cluster: Cluster) -> LevelReport:
    return Upgrade(*opened(cluster)).report()


def sorted_archives(cluster: Cluster) -> int:
    store, folder, *rest = opened(cluster)
    nodes = [
        node_manifests(store, f"{folder}/nodes/{agent.node}", *rest).read()[1]
        for agent in cluster.agents
    ]
    assert all(node.archives for node in nodes)
    return sum(bool(each.unpacked) for node in nodes for each in node.archives)


def raised(cluster: Cluster) -> None:
    ended = CliRunner().invoke(group, ["upgrade", cluster.url, "--yes"])
    assert ended.exit_code == 0, ended.output
    assert level_of(cluster).level is NEWEST


def refused(agent: Agent) -> None:
    """The earlier version refuses the log."""
    agent.program = OLDER / "agent.zip"
    agent.launch()
    until("the earlier agent has ended", lambda: not agent.running)
    assert re.search(
        r"manifest format [4-7]; this imap-wal reads 1 and 2 and 3", agent.last_words()
    )
