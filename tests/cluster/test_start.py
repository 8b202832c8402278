"""A restart with fewer machines than before: the error names the missing node (`start_policy`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.contents import contents, refusal
from tests.cluster.waiting import until

NAME = "orders"
ENTRIES = {f"k{number}": f"value {number}" for number in range(300)}


@pytest.mark.thorough
def test_two_of_three_machines_wait_for_the_third(tmp_path: Path, classpath: str) -> None:
    """The error names its node; with `wait-most` they start without it."""
    with Cluster(
        tmp_path, classpath, lambda endpoint: {"default": logged_map(endpoint)}
    ) as cluster:
        cluster.start(3)
        cluster.client().get_map(NAME).blocking().put_all(ENTRIES)
        cluster.kill_everything()

        cluster.start(2, "wait-all")
        # At first it waits for the former cluster: the third agent was killed, so its sign of life
        # still exists.
        text: Any = until(
            "it waits for the third only",
            lambda: (found := refusal(cluster, NAME)) and "node 'node-3': " in found and found,
        )
        assert "LogUnavailable" in text and "'wait-all' waits for all 3 nodes" in text
        assert "node 'node-1': " not in text and "node 'node-2': " not in text
        starts = [(agent.stat(5000) or {})["start"] for agent in cluster.agents[:2]]
        assert ["node-3"] in [list(start["nodes"]) for start in starts]
        cluster.join(3)
        assert contents(cluster, NAME) == ENTRIES, (
            "the map is loaded when the third member has joined"
        )

        cluster.kill_everything()
        cluster.start(2, "wait-most")
        assert contents(cluster, NAME) == ENTRIES
        orders = cluster.client().get_map(NAME).blocking()
        assert orders.remove("k1") == ENTRIES["k1"]
        cluster.join(3)
        assert "k1" not in contents(cluster, NAME), "the node that was missing returns"
        assert not orders.contains_key("k1")
