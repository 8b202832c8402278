"""No thread of an agent ends unnoticed: it continues, `stat` shows the error, and waiting requests
are answered."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imap_wal import worker
from imap_wal.agent import handler
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.reads import merges
from imap_wal.agent.transport.local import _Outbox
from imap_wal.read.newest.index import NewestIndex
from imap_wal.worker import Worker
from imap_wal.write import maintenance
from storage_backends.faults import Killed
from tests.agent.harness import Plugin, config, plugin, serving
from tests.support import eventually

KEYS = [f"k{number:02d}" for number in range(30)]


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    """The settings of an agent with thirty keys in its log."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        member.put(**dict.fromkeys(KEYS, "v"))
    return settings


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "the scratch file")


def unhealthy(member: Plugin, thread: str, why: str) -> dict[str, Any]:
    """Wait until `stat` shows this error; return the state of the thread."""

    def says() -> Any:
        stat = member.stat()
        return (
            stat
            if not stat["healthy"] and thread in stat["failure"] and why in stat["failure"]
            else None
        )

    stat = eventually(says, f"the agent says that {thread} has {why}")
    state: dict[str, Any] = stat["threads"][thread]
    assert state["failures"] >= 1
    return state


def healthy(member: Plugin) -> None:
    eventually(lambda: member.stat()["healthy"], "the agent is healthy again")


def test_reads_are_answered_while_the_scratch_disk_is_full(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stat` shows the error, each read gets one, writes continue, and reads succeed when there is
    space again."""
    with monkeypatch.context() as patch:
        patch.setattr(NewestIndex, "add", full)
        patch.setattr(merges, "AGAIN_S", 3600.0)
        with serving(settings), plugin(settings, timeout_ms=10_000) as member:
            assert unhealthy(member, "imap-wal-reads", "No space left")["alive"]
            for _ in range(2):
                header, _ = member.client.ask("keys", "orders", None, 10)
                assert (
                    header[:1] + header[2:3] == ["error", "restore-failed"]
                    and "No space left" in header[3]
                )
            assert member.put(a="1")[0] == "ack", "writes continue"
            patch.undo()
            assert member.keys() == ["a", *KEYS]
            healthy(member)


def test_a_failed_restore_at_start_is_retried(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no request."""
    monkeypatch.setattr(merges, "AGAIN_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(NewestIndex, "add", full)
        with serving(settings), plugin(settings, greet=False) as member:
            unhealthy(member, "imap-wal-reads", "No space left")
            patch.undo()
            healthy(member)


def test_a_read_after_a_failed_merge_has_every_key(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge failed after half of its rows."""
    add = NewestIndex.add

    def half(index: NewestIndex, node: str, rows: Any, *arguments: Any, **named: Any) -> None:
        add(index, node, rows[: len(rows) // 2], *arguments, **named)
        full()

    with serving(settings) as agent, plugin(settings) as member:
        assert member.keys() == KEYS
        member.put(x="1", y="2")
        with monkeypatch.context() as patch:
            patch.setattr(NewestIndex, "add", half)
            header, _ = member.client.ask("keys", "orders", None, 10)
            assert "No space left" in header[3]
            patch.setattr(NewestIndex, "add", full)
            assert member.client.ask("load", "orders", 0)[0][0] == "error"
            assert not member.stat()["healthy"]
        assert member.keys() == [*KEYS, "x", "y"]
        assert agent._reads._view.statistics.live == 32
        healthy(member)


def test_a_read_whose_answer_fails_gets_an_error(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer cannot be sent; the error and the next read are answered."""
    send = _Outbox.send
    fails = [True]

    def sends(outbox: _Outbox, to: bytes, header: Any, payload: bytes = b"") -> None:
        if fails and fails.pop():
            raise OSError(errno.EMFILE, "Too many open files")
        send(outbox, to, header, payload)

    monkeypatch.setattr(_Outbox, "send", sends)
    with serving(settings), plugin(settings, timeout_ms=10_000) as member:
        header, _ = member.client.ask("keys", "orders", None, 10)
        assert header[2] == "restore-failed" and "Too many open files" in header[3]
        assert member.keys() == KEYS


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_read_thread_is_reported(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stat` is unhealthy, each read gets an error, and writes continue."""
    with serving(settings) as agent, plugin(settings, timeout_ms=10_000) as member:
        assert member.keys() == KEYS

        def dies(*_: Any) -> Any:
            raise Killed("planned")

        monkeypatch.setattr(agent._reads._view, "catch_up", dies)
        for _ in range(2):  # the first one ends the thread
            header, _ = member.client.ask("keys", "orders", None, 10)
            assert header[2] == "restore-failed" and "imap-wal-reads" in header[3]
        assert not unhealthy(member, "imap-wal-reads", "Killed")["alive"]
        assert member.put(a="1")[0] == "ack", "writes continue"


def test_an_error_of_maintenance_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance continues."""
    monkeypatch.setattr(worker, "PAUSE_S", 0.01)
    settings = config(tmp_path, durability="interval", sync_interval_ms=20)
    with serving(settings) as agent, plugin(settings) as member:
        with monkeypatch.context() as patch:
            patch.setattr(agent._log.writer.committer, "rotate_if_due", lambda: full())
            assert unhealthy(member, "imap-wal-maintenance", "No space left")["alive"]
        healthy(member)
        member.put(a="1")
        eventually(lambda: agent._log.writer.committer.statistics.syncs > 0, "maintenance syncs")


def test_an_unexpected_error_of_an_archive_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive run is repeated and succeeds."""
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.01)
    monkeypatch.setattr(maintenance, "PAUSE_S", 0.01)
    from imap_wal.retention import archive

    with monkeypatch.context() as patch:
        patch.setattr(archive, "archive_sealed", full)
        settings = config(tmp_path, archive_interval_s=0.05)
        with serving(settings), plugin(settings) as member:
            member.put(a="1")
            assert unhealthy(member, "imap-wal-archiver", "No space left")["alive"]
            assert "No space left" in member.stat()["archive_error"]
            patch.undo()
            healthy(member)
            eventually(lambda: list(tmp_path.rglob("*.parquet")), "an archive")


def test_an_unexpected_error_in_a_request_is_its_answer(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent continues."""
    with serving(settings), plugin(settings) as member:
        with monkeypatch.context() as patch:
            patch.setattr(handler, "check_entries", full)
            answer = member.put(a="1")
            assert answer[:2] == ["error", "not-ready"] and "No space left" in answer[2]
            member.request = 0
        member.hello()
        assert member.put(a="1")[0] == "ack"


# ---- the mechanism -------------------------------------------------------------------------------


def run(turn: Callable[[Worker], bool]) -> Worker:
    made = Worker("a worker", turn)
    made.start()
    return made


def test_an_error_stays_until_a_turn_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that had nothing to do proves nothing."""
    monkeypatch.setattr(worker, "PAUSE_S", 0.001)
    steps: list[Any] = [full, False, True]
    reached, go = threading.Semaphore(0), threading.Semaphore(0)

    def turn(_: Worker) -> bool:
        step = steps.pop(0) if steps else True
        reached.release()
        assert go.acquire(timeout=20)
        return bool(step()) if callable(step) else step

    made = run(turn)
    reached.acquire()
    assert made.trouble == ""
    go.release()
    reached.acquire()
    assert "No space left" in made.trouble and made.state.failures == 1
    go.release()
    reached.acquire()
    assert "No space left" in made.trouble, "an idle turn proves nothing"
    go.release()
    reached.acquire()
    assert made.trouble == "" and made.state.failures == 1 and made.state.alive
    made.stopping.set()
    go.release()
    assert made.stop(20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_worker_reports_its_error() -> None:
    def turn(_: Worker) -> bool:
        raise Killed("planned")

    made = run(turn)
    eventually(lambda: not made.state.alive, "it dies")
    assert "Killed: planned" in made.trouble
