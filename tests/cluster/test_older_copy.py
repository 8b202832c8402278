"""An agent that is killed begins again in an older copy of its log, while its member runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hazelcast.errors import HazelcastError

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.waiting import until


def maps(endpoint: str) -> dict[str, Any]:
    return {"default": logged_map(endpoint)}


@pytest.mark.thorough
def test_a_member_is_refused_an_older_copy_of_its_log(tmp_path: Path, classpath: str) -> None:
    """Otherwise what was acknowledged since the copy would be in memory only, and nothing would
    say so. When the folder is brought back, the member goes on."""

    logs, copy, own = tmp_path / "logs", tmp_path / "copy", tmp_path / "own"
    with Cluster(tmp_path, classpath, maps) as cluster:
        cluster.start(1)
        (agent,) = (agent for agent in cluster.agents if agent.running)
        orders = cluster.client().get_map("orders").blocking()
        orders.put("old", 1)
        shutil.copytree(logs, copy)
        orders.put("new", 1)
        agent.kill()
        logs.rename(own)
        copy.rename(logs)
        agent.start()
        with pytest.raises(HazelcastError, match="an older copy replaced the node's folder"):
            orders.put("later", 1)
        assert orders.get("new") == 1
        agent.kill()
        shutil.rmtree(logs)
        own.rename(logs)
        agent.start()

        def is_back() -> bool:
            try:
                orders.put("later", 2)
            except HazelcastError:
                return False
            return True

        until("the member goes on", is_back)
        cluster.kill_everything()
        cluster.start(1)
        orders = cluster.client().get_map("orders").blocking()
        assert dict(orders.entry_set()) == {"old": 1, "new": 1, "later": 2}


@pytest.mark.thorough
def test_a_copy_from_before_a_view_is_refused(tmp_path: Path, classpath: str) -> None:
    """The copy has all changes of the session that it knows. The changes that it lacks are of a
    later session."""
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    with Cluster(tmp_path, classpath, maps) as cluster:
        cluster.start(2)
        agent = cluster.agents[0]
        orders = cluster.client().get_map("orders").blocking()
        orders.put("old", 1)
        shutil.copytree(logs, copy)
        cluster.members[1].kill()

        def has_view() -> bool:
            return (agent.stat() or {}).get("claim", {}).get("incarnation") == 2

        until("the other member has a view", has_view)
        orders.put("new", 1)
        for each in cluster.agents:
            each.kill()
        logs.rename(tmp_path / "own")
        copy.rename(logs)
        agent.start()
        with pytest.raises(HazelcastError, match="is in view 1, and its agent has acknowledged"):
            orders.put("later", 1)
        assert orders.get("new") == 1
