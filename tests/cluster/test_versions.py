"""The older Hazelcast versions that the plug-in supports. All other tests run the newest one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, connect
from tests.cluster.configuration import logged_map
from tests.cluster.contents import contents, filled

NAME = "versions"
KEYS = 500


def maps(endpoint: str) -> dict[str, Any]:
    return {NAME: logged_map(endpoint)}


def committed_by_the_first_member(cluster: Cluster) -> dict[str, str]:
    """A transaction that changes keys of both members, while only the first one has an agent."""
    changed = {f"t{number}": "committed" for number in range(20)}
    client = connect([cluster.members[0].address], cluster.name, smart_routing=False)
    try:
        with client.new_transaction() as transaction:
            for key, value in changed.items():
                transaction.get_map(NAME).set(key, value)
    finally:
        client.shutdown()
    return changed


@pytest.mark.thorough
def test_an_older_member_keeps_its_map(classpath_of: str, tmp_path: Path) -> None:
    """Over a migration, the loss of a member and a kill of everything."""
    with Cluster(tmp_path, classpath_of, maps, offsets_ms=(0, 0)) as cluster:
        expected = filled(cluster, NAME, KEYS)
        entries = cluster.client().get_map(NAME).blocking()
        assert entries.replace_if_same("k1", "first 1", "second")
        expected["k1"] = "second"
        cluster.agents[1].kill()
        expected |= committed_by_the_first_member(cluster)
        cluster.agents[1].start()

        cluster.members[1].kill()
        cluster.wait_safe(1)
        assert contents(cluster, NAME) == expected, "after a member was lost"
        entries = cluster.client().get_map(NAME).blocking()
        entries.set("alone", 1)
        expected["alone"] = 1

        cluster.kill_everything()
        cluster.start(2)
        assert contents(cluster, NAME) == expected, "after everything was killed"
