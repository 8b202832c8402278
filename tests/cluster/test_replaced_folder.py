"""The folder of the log is replaced by a copy of it while members use it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hazelcast.errors import HazelcastError

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map


@pytest.mark.thorough
def test_members_lose_nothing_after_their_folder_was_replaced(
    tmp_path: Path, classpath: str
) -> None:
    """As with `cp -a log copy; mv log old; mv copy log`. A put either fails, or a restart finds it
    in the folder that is there now."""

    def maps(endpoint: str) -> dict[str, Any]:
        return {"default": logged_map(endpoint)}

    logs, copy = tmp_path / "logs", tmp_path / "copy"
    with Cluster(tmp_path, classpath, maps) as cluster:
        cluster.start(2)
        orders = cluster.client().get_map("orders").blocking()
        acknowledged = {number: number for number in range(100)}
        orders.put_all(acknowledged)
        shutil.copytree(logs, copy)
        logs.rename(tmp_path / "old")
        copy.rename(logs)
        failed = 0
        for number in range(100, 130):
            try:
                orders.put(number, number)
            except HazelcastError:
                failed += 1
            else:
                acknowledged[number] = number
        assert failed > 0
        cluster.kill_everything()
        cluster.start(2)
        found = dict(cluster.client().get_map("orders").blocking().entry_set())
    assert {number: found.get(number) for number in acknowledged} == acknowledged
