"""Real members and agents whose disks cannot see each other: a whole restart, the loss of a machine
while the cluster runs, and of its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.contents import contents, refusal_for_a_disk
from tests.cluster.waiting import until

pytestmark = [pytest.mark.timeout(400), pytest.mark.thorough]
NAME = "orders"
ENTRIES = {f"k{number}": f"value {number}" for number in range(300)}


def settling(cluster: Cluster, machine: int) -> int:
    """How many partitions the member of a machine compares with the log, as its agent knows."""
    members = (cluster.agents[machine].stat() or {}).get("members", [])
    return sum(each["settling"] for each in members)


def put_all(cluster: Cluster, entries: dict[str, str]) -> None:
    cluster.client().get_map(NAME).blocking().put_all(entries)


def test_own_disks_lose_nothing_until_one_is_lost(tmp_path: Path, classpath: str) -> None:
    with Cluster(
        tmp_path,
        classpath,
        lambda endpoint: {"default": logged_map(endpoint, {"restore-timeout-ms": "10000"})},
        own_disks=True,
        recovery_policy="full",
    ) as cluster:
        cluster.start(3)
        put_all(cluster, ENTRIES)
        cluster.kill_everything()
        assert not list((tmp_path / "logs").rglob("*.wal")), "nothing was uploaded"
        assert all(list((tmp_path / f"disk-node-{n}").rglob("*.wal")) for n in (1, 2, 3))

        # All machines are there again: each agent reads the other disks from their agents.
        cluster.start(3)
        assert contents(cluster, NAME) == ENTRIES

        # One machine is lost while the cluster runs. Its partitions are settled from its log, so
        # they wait for its disk.
        more = {f"more{number}": "x" for number in range(300)}
        put_all(cluster, more)
        cluster.members[2].kill()
        cluster.agents[2].kill()
        until(
            "its partitions wait at both others", lambda: all(settling(cluster, n) for n in (0, 1))
        )
        cluster.agents[2].launch()
        assert contents(cluster, NAME) == {**ENTRIES, **more}
        until("none waits", lambda: not any(settling(cluster, n) for n in (0, 1)))

        # What that agent had on its disk was sealed and uploaded when it opened its log again. So
        # the machine writes again, before it is lost once more.
        cluster.join(3)
        more |= {f"last{number}": "x" for number in range(300)}
        put_all(cluster, more)
        cluster.kill_everything()

        # Two of three machines: the error names the third, whose disk returns with its agent.
        cluster.start(2, "wait-most")
        text = refusal_for_a_disk(cluster, NAME)
        assert "node 'node-3': all entries in segments" in text, text
        assert "no agent listens at" in text, text
        cluster.agents[2].launch()
        assert contents(cluster, NAME) == {**ENTRIES, **more}

        # The third disk is lost permanently, with what its machine wrote since it started.
        cluster.join(3)
        put_all(cluster, {f"end{number}": "x" for number in range(300)})
        cluster.kill_everything()
        shutil.rmtree(tmp_path / "disk-node-3")
        for agent in cluster.agents:
            agent.configure(recovery_policy="partial")
        cluster.start(2, "wait-most")
        left = contents(cluster, NAME)
        assert {**ENTRIES, **more}.items() <= left.items(), "what was uploaded is not lost"
        lost = 300 - sum(key.startswith("end") for key in left)
        assert 0 < lost < 300, "only what that disk alone had is lost"
        stat = cluster.agents[0].stat(5000) or {}
        assert "node-3" in stat["left_out"]
