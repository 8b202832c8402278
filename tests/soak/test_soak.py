"""The short form of `make soak`: three minutes of load, a rewrite, a prune, and faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.effort import thorough
from tests.nemesis.episodes import EPISODES
from tests.soak.lines import drifts, judged
from tests.soak.night import MAINTAIN, UNDER_LOAD, night, quiet

QUIET_S = 25


@thorough
@pytest.mark.cluster
@pytest.mark.timeout(500)
def test_a_short_night_is_flat_and_loses_nothing(tmp_path: Path, classpath: str, seed: int) -> None:
    """Judged are open files, and the threads of agents. Memory, disk and latency are not: processes
    still warm up. Nor are the threads of members: Hazelcast starts one for each request of its pool
    `client-blocking-tasks`, until it has 20 for each processor."""
    episodes = [
        quiet(QUIET_S),
        MAINTAIN,
        quiet(QUIET_S),
        EPISODES["rolling-restart"],
        MAINTAIN,
        quiet(QUIET_S),
    ]
    found = night(
        tmp_path,
        classpath,
        seed=seed,
        episodes=iter(episodes),
        seconds=600,
        sample_s=1,
    )
    assert not found.failure
    assert [each.name for each in found.records] == [each.name for each in episodes]
    assert not any(each.findings for each in found.records), found.records
    assert all(each.write_p99_ms > 0 for each in found.records if each.name == UNDER_LOAD)
    counted = [
        line
        for line in found.lines
        if line.quantity == "files" or (line.quantity == "threads" and "agent" in line.name)
    ]
    assert judged(counted, QUIET_S) >= 6, "files and threads of three agents at least"
    assert not drifts(counted, QUIET_S)
