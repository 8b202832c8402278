"""A storage that is unavailable for a while: the agent answers with the reason, continues to try,
and recovers without help."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent import mender
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.server import Agent
from imap_wal.errors import StorageUnavailable
from imap_wal.placement import Placed
from storage_backends import SegmentStore, Unavailable
from storage_backends.faults import AwayStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.agent.harness import Plugin, config, plugin, serving
from tests.kit.effort import every, step
from tests.support import eventually

LEASE_MS = 200


@pytest.fixture(params=["append", "objects"])
def inner(request: pytest.FixtureRequest, memory: MemoryStore, tmp_path: Path) -> SegmentStore:
    """A storage that appends, under a lock; and one of objects, under a lease."""
    return (
        memory
        if request.param == "append"
        else LocalObjects(str(tmp_path / "log"), lease_ms=LEASE_MS)
    )


@pytest.fixture
def away(inner: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> AwayStore:
    """What the agents of this test open."""
    away = AwayStore(inner)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(away, place))
    monkeypatch.setattr(mender, "REOPEN_S", 0.02)
    monkeypatch.setattr(mender, "REOPEN_S_MAX", 0.1)
    return away


def back(agent: Agent, member: Plugin) -> None:
    """Wait until the agent has opened its log again, and say hello."""
    eventually(lambda: member.stat()["healthy"], "the agent is healthy again")
    member.hello()


def refused(answer: list[Any], *codes: str) -> None:
    assert answer[0] == "error" and answer[1] in codes and "the storage is away" in answer[2], (
        answer
    )


@every(2)
def test_an_agent_recovers_when_its_storage_works_again(tmp_path: Path, away: AwayStore) -> None:
    """Until then it refuses requests with the reason, and `stat` shows it."""
    settings = config(tmp_path, url=away.url, archive_interval_s=3600)
    with serving(settings) as agent, plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        for life in range(3):
            away.away = True
            refused(member.put(b="2"), "full", "outcome-unknown")
            refused(member.put(c="3"), "not-ready")
            header, _ = member.client.ask("hello", member.about())
            refused([header[0], *header[2:]], "not-ready")
            header, _ = member.client.ask("keys", "orders", None, 10)
            assert header[0] == "error"
            refusals = away.refused
            eventually(lambda refusals=refusals: away.refused > refusals + 3, "it keeps trying")
            stat = member.stat()
            assert not stat["healthy"] and "the storage is away" in stat["failure"]
            away.away = False
            back(agent, member)
            assert member.put(**{f"life{life}": "v"})[0] == "ack"
        assert {"a", "life0", "life1", "life2"} <= set(member.keys())
    with serving(settings), plugin(settings) as member:
        assert {"a", "life0", "life1", "life2"} <= set(member.keys())


def test_requests_do_not_wait_for_a_hanging_reopen(tmp_path: Path, away: AwayStore) -> None:
    """The storage does not answer while the log is opened again: the agent still answers at
    once."""
    settings = config(tmp_path, url=away.url)
    waiting, answer = threading.Event(), threading.Event()

    def hang() -> None:
        if threading.current_thread().name == "imap-wal-mender":
            waiting.set()
            assert answer.wait(60)

    with serving(settings) as agent, plugin(settings, timeout_ms=10_000) as member:
        assert member.put(a="1")[0] == "ack"
        away.waits, away.away = hang, True
        assert member.put(b="2")[0] == "error"
        try:
            assert waiting.wait(20), "the log is being closed, or opened"
            assert not member.stat()["healthy"]
            refused(member.put(c="3"), "not-ready")
            header, _ = member.client.ask("hello", member.about())
            refused([header[0], *header[2:]], "not-ready")
        finally:
            away.away = False
            answer.set()
        back(agent, member)
        assert member.put(d="4")[0] == "ack"


def test_a_stop_while_the_storage_is_unavailable_releases_everything(
    tmp_path: Path, away: AwayStore
) -> None:
    """The error says so, and the log can be opened when the storage works again."""
    settings = config(tmp_path, url=away.url)
    with (
        pytest.raises(StorageUnavailable, match="all acknowledged changes are in it"),
        serving(settings),
        plugin(settings) as member,
    ):
        assert member.put(a="1")[0] == "ack"
        away.away = True
    away.away = False
    eventually(lambda: opens(settings), "the lock is released, or expires")
    with serving(settings), plugin(settings) as member:
        assert member.keys() == ["a"]


def test_a_stop_while_the_log_waits_for_the_storage_ends(tmp_path: Path, away: AwayStore) -> None:
    settings = config(tmp_path, url=away.url)
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        away.away = True
        assert member.put(b="2")[0] == "error"
        eventually(lambda: away.refused > 5, "it tries to open the log")
    away.away = False
    eventually(lambda: opens(settings), "the lock is released, or expires")


def opens(settings: AgentConfig) -> bool:
    from imap_wal.errors import WriterLocked

    try:
        agent = Agent(settings)
    except WriterLocked:
        return False
    agent.stop()
    agent.serve()
    return True


class OneCallFails(AwayStore):
    """A storage of which a write to the log fails, and then one call of the thread that opens the
    log again."""

    write_fails = False
    at = calls = 0

    def there(self, path: str = "") -> SegmentStore:
        if threading.current_thread().name == "imap-wal-mender":
            self.calls += 1
            if self.calls == self.at:
                raise Unavailable(f"the planned failure of call {self.at}", path)
        elif self.write_fails and "/wal/" in path:
            self.write_fails = False
            raise Unavailable("the planned failure of a write", path)
        return super().there(path)


@every(2)
def test_a_reopen_succeeds_after_a_failure_of_any_call(
    tmp_path: Path, inner: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each storage call of opening the log again fails once; a later attempt succeeds."""
    store = OneCallFails(inner)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(store, place))
    monkeypatch.setattr(mender, "REOPEN_S", 0.01)
    monkeypatch.setattr(mender, "REOPEN_S_MAX", 0.02)
    settings = config(
        tmp_path, url=inner.url, archive_interval_s=3600, avoid_flush_during_recovery=True
    )
    acknowledged = set()
    with serving(settings) as agent, plugin(settings) as member:
        at = 0
        while store.calls >= at:  # it failed
            at += min(step(), 3)
            store.at, store.calls, store.write_fails = at, 0, True
            assert member.put(lost="1")[0] == "error"
            eventually(
                lambda: (
                    agent._agent_log.mender is None and agent._log.writer.committer.failure is None
                ),
                f"it came back after call {store.at} failed",
            )
            member.hello()
            assert member.put(**{f"k{at}": "v"})[0] == "ack"
            acknowledged.add(f"k{at}")
        assert at > 10, "opening a log asks more of a storage"
        assert acknowledged <= set(member.keys())
