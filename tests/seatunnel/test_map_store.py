"""The map stores for SeaTunnel, in members of Hazelcast 5.1, with real agents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewrite_cli.local_cluster import jars
from rewrite_cli.local_cluster.launcher import JVM_FLAGS
from tests.cluster.processes import QUICK_JVM, ROOT, Agent
from tests.cluster.waiting import until
from tests.kit.effort import thorough
from tests.kit.ports import free_ports
from tests.seatunnel.asked import Asked, compiled

BUILT = ROOT / "hazelcast_plugin" / "seatunnel" / "target"
MAPS = ("engine_factory", "engine_type")


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[Agent]]:
    """Two, over one log."""
    two = [
        Agent(
            tmp_path,
            f"node-{number}",
            (tmp_path / "log").as_uri(),
            cluster="seatunnel",
            endpoint=f"tcp://127.0.0.1:{port}",
        )
        for number, port in enumerate(free_ports(2))
    ]
    yield two
    for agent in two:
        agent.kill()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    libraries = [str(path) for path in sorted((BUILT / "lib").glob("*.jar"))]
    classpath = os.pathsep.join([*libraries, str(jars.plugin_jar(jars.SEATUNNEL_NAME))])
    classes = compiled("StoreMember", BUILT / "members", classpath)
    options = [*JVM_FLAGS, *QUICK_JVM, "-cp", f"{classes}{os.pathsep}{classpath}"]
    command = [jars.java(), *options, "StoreMember"]
    jvm = Asked("members", tmp_path_factory.mktemp("seatunnel") / "members.log", command)
    jvm.start()
    yield jvm
    jvm.kill()


@pytest.fixture
def members(process: Asked) -> Iterator[Asked]:
    """None at first. A JVM for all tests costs less than members in their own."""
    yield process
    process.ask("kill")


def test_the_change_of_the_later_owner_wins(agents: list[Agent], members: Asked) -> None:
    """The later owner has sent fewer requests, so without the version of the partition its changes
    would be older. A key that was removed stays away, and one that expires still does."""
    for agent in agents:
        agent.start()
    first, second, again = free_ports(3)
    members.ask(f"start {first} {agents[0].endpoint}")
    for name in MAPS:
        members.ask(f"fill {name} 300 old")
    members.ask(f"start {second} {agents[1].endpoint}")
    for name in MAPS:
        members.ask(f"fill {name} 100 new")
        members.ask(f"remove {name} 7")
    members.ask("put engine_factory 8 new 1000")
    appended = [agent.stat() for agent in agents]
    members.ask("kill")
    assert members.ask(f"start {again} {agents[0].endpoint}") == "1"
    for name in MAPS:
        assert members.ask(f"sum {name}") == "{new=99, old=200}", appended
    assert 900 < int(members.ask("ttl engine_factory 8")) <= 1000
    assert members.ask("ttl engine_type 8") == "-1"


@thorough
def test_a_change_without_an_agent_is_refused(agents: list[Agent], members: Asked) -> None:
    """Also by the storage whose results SeaTunnel drops. Memory and log stay as they were."""
    agent = agents[0]
    agent.start()
    members.ask(f"start {free_ports(1)[0]} {agent.endpoint}")
    for name in MAPS:
        members.ask(f"put {name} 1 before")
    agent.kill()
    for name in MAPS:
        with pytest.raises(RuntimeError, match="imap-wal: agent tcp://"):
            members.ask(f"put {name} 1 after")
        assert members.ask(f"get {name} 1") == "before"
    agent.start()
    for name in MAPS:
        until("the agent is used again", lambda name=name: members.ask(f"put {name} 2 later"), 20)
    members.ask("kill")
    members.ask(f"start {free_ports(1)[0]} {agent.endpoint}")
    for name in MAPS:
        assert members.ask(f"sum {name}") == "{before=1, later=1}"


@thorough
def test_an_older_copy_of_the_log_is_refused(
    agents: list[Agent], members: Asked, tmp_path: Path
) -> None:
    agent, log = agents[0], tmp_path / "log"
    agent.start()
    members.ask(f"start {free_ports(1)[0]} {agent.endpoint}")
    members.ask("put engine_type 1 before")
    shutil.copytree(log, tmp_path / "copy")
    members.ask("put engine_type 1 after")
    agent.kill()
    log.rename(tmp_path / "own")
    (tmp_path / "copy").rename(log)
    agent.start()
    for text in ("imap-wal: agent tcp://", "an older copy replaced the node's folder"):
        with pytest.raises(RuntimeError, match=text):
            members.ask("put engine_type 2 later")
    assert members.ask("get engine_type 1") == "after"
