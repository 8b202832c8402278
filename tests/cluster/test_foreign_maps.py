"""A map that a program wrote is not served to members as an empty map."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hazelcast.errors import HazelcastError

import imap_wal
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.waiting import until


@pytest.mark.thorough
def test_members_are_refused_the_map_of_a_program(tmp_path: Path, classpath: str) -> None:
    def maps(endpoint: str) -> dict[str, Any]:
        return {"default": logged_map(endpoint)}

    def put() -> None:
        with suppress(HazelcastError):
            client.get_map("orders").put("42", "changed")
            answered.append("orders")

    answered: list[str] = []
    with imap_wal.open(tmp_path / "logs", node="program", cluster="dev") as store:
        store.map("orders")["42"] = "new"
    with Cluster(tmp_path, classpath, maps) as cluster:
        cluster.start(1)
        client = cluster.client()
        other = client.get_map("other").blocking()
        other.put("42", "of a member")
        assert other.get("42") == "of a member"
        waiting = Thread(target=put, daemon=True)
        waiting.start()
        log = cluster.members[0].log
        refused = "map 'orders' has entries of class 'msgpack', which programs wrote"
        until("the map is refused", lambda: refused in log.read_text())
        cluster.kill_everything()
        waiting.join()
    assert not answered
