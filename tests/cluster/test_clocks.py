"""A real agent whose clock is an hour fast, beside a member with the right time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.waiting import until
from tests.kit.effort import thorough

HOUR_MS = 3_600_000
HALF_AN_HOUR_S = 1800


def maps(endpoint: str) -> dict[str, Any]:
    return {"sessions": logged_map(endpoint)}


@thorough
def test_entries_survive_a_restart_beside_a_fast_clock(classpath: str, tmp_path: Path) -> None:
    """All 400 have half an hour left."""
    with Cluster(tmp_path, classpath, maps, offsets_ms=(0, HOUR_MS)) as cluster:
        cluster.start(2)
        sessions = cluster.client().get_map("sessions").blocking()
        expected = {f"k{number}": number for number in range(400)}
        for key, value in expected.items():
            sessions.set(key, value, HALF_AN_HOUR_S)
        cluster.kill_everything()
        cluster.start(2)
        sessions = cluster.client().get_map("sessions").blocking()
        assert dict(sessions.entry_set()) == expected
        agent = cluster.agents[1]
        until("the agent names the clocks", lambda: (agent.stat() or {}).get("clock_doubt"))
