"""Members that are lost while the state of the cluster forbids migrations: their partitions get a
new owner only when it is ACTIVE again, and are then settled from the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.waiting import until


def change(cluster: Cluster, state: str) -> None:
    """Hazelcast refuses it while migrations are pending."""
    until(f"the cluster is {state}", lambda: cluster.members[0].ask("state", state), 60, 0.2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("state", "lost"), [("FROZEN", 1), ("NO_MIGRATION", 2)], ids=["frozen", "no migration"]
)
def test_a_loss_while_partitions_may_not_move(
    tmp_path: Path, classpath: str, state: str, lost: int
) -> None:
    with Cluster(
        tmp_path,
        classpath,
        lambda endpoint: {"default": logged_map(endpoint, {"settle-timeout-ms": "60000"})},
    ) as cluster:
        cluster.start(3)
        orders = cluster.client().get_map("orders").blocking()
        orders.put_all(dict.fromkeys(range(300), "old"))
        cluster.wait_safe(3)
        change(cluster, state)
        expected = dict.fromkeys(range(300), "old")
        for number in range(0, 300, 7):
            orders.set(number, "new")
            expected[number] = "new"
        for number in range(0, 300, 11):
            orders.remove(number)
            expected.pop(number, None)
        for member in cluster.members[3 - lost :]:
            member.kill()
        left = 3 - lost
        until("the loss is noticed", lambda: cluster.members[0].ask("members") == left)
        change(cluster, "ACTIVE")
        client = cluster.client()
        orders = client.get_map("orders").blocking()
        assert {key: orders.get(key) for key in expected} == expected
        assert dict(orders.entry_set()) == expected
        for number in range(0, 300, 13):
            orders.remove(number)
            expected.pop(number, None)
        assert dict(orders.entry_set()) == expected
        cluster.kill_everything()
        cluster.start(3)
        assert dict(cluster.client().get_map("orders").blocking().entry_set()) == expected
