"""Agents compact the logs of their cluster automatically, one of them at a time."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.context import open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite import compaction
from imap_wal.rewrite.turn import RewriteRunning, turn
from tests.agent.harness import Plugin, config, plugin, serving
from tests.kit.agents import Process, live
from tests.kit.effort import thorough
from tests.support import eventually

LIMITS: dict[str, Any] = {"auto_rewrite_min_bytes": 20_000, "durability": "os"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(compaction, "OTHERS_S", 0.05)


def logs(settings: AgentConfig) -> ClusterLog:
    return ClusterLog(open_context(settings.url), settings.namespace, settings.cluster)


def write(member: Plugin, numbers: range, prefix: str = "k") -> dict[str, str]:
    """The newest values."""
    newest = {}
    for number in numbers:
        key, value = f"{prefix}{number % 10}", f"{number}" * 20
        assert member.put(**{key: value})[0] == "ack"
        newest[key] = value
    return newest


def test_an_agent_compacts_its_log(tmp_path: Path) -> None:
    settings = config(tmp_path, **LIMITS)
    with serving(settings) as agent, plugin(settings) as member:
        write(member, range(500))
        eventually(lambda: agent._log.compactor.statistics.runs, "a compaction", 60)
        assert "imap-wal-compactor" in agent.snapshot().threads
        expected = write(member, range(500, 510))
    assert live(settings) == expected
    assert logs(settings).manifest().snapshots


def test_an_agent_without_the_setting_does_not(tmp_path: Path) -> None:
    settings = config(tmp_path, **LIMITS, auto_rewrite_percentage=0)
    with serving(settings) as agent, plugin(settings) as member:
        write(member, range(300))
        assert "imap-wal-compactor" not in agent.snapshot().threads
    assert not logs(settings).manifest().snapshots


def is_held(log: ClusterLog) -> bool:
    try:
        with turn(log, "the test"):
            return False
    except RewriteRunning:
        return True


@thorough
def test_another_agent_compacts_after_the_elected_one_was_killed(tmp_path: Path) -> None:
    """It is killed in the middle of its run, which has the lock."""
    first = config(tmp_path, "n1", **LIMITS)
    second = config(tmp_path, "n2", url=first.url, **LIMITS)
    every, elected = logs(first), Process(first)
    with serving(second) as agent, plugin(second, member="m2", uuid="p2") as two:
        with plugin(first, member="m1", uuid="p1") as one:
            count, expected = 0, dict[str, str]()
            while not is_held(every):
                expected = write(one, range(count, count + 20))
                count += 20
                assert count < 100_000, "the first never compacts"
            assert elected.end(signal.SIGKILL) == -signal.SIGKILL
        assert not agent._log.compactor.statistics.runs
        expected |= write(two, range(300), "m")
        eventually(lambda: agent._log.compactor.statistics.runs, "a compaction of the second", 60)
        assert not agent._log.compactor.statistics.error
    assert live(second) == expected
