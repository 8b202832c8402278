"""A state of an agent is one sentence: on the page, in /readyz, in `doctor` and in the log."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from imap_wal.agent.monitoring.health import why_not_ready
from imap_wal.agent.monitoring.pages import StatusPage
from imap_wal.agent.server import Agent
from imap_wal.context import Context
from imap_wal.inspect.inventory import take_inventory
from imap_wal.placement import Placed
from rewrite_cli.console.check import PROBLEM, WARNING
from rewrite_cli.doctor.agent import agent_checks
from rewrite_cli.doctor.storage import log_checks
from storage_backends import NoSpace, StorageError, Unavailable
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from tests.agent.harness import config, plugin, serving
from tests.support import FakeClock, eventually

FULL = "the log failed because its disk is full; it is opened again when there is space"
FAILED = "the log failed; it is opened again when the storage can be reached"


def page_of(agent: Agent) -> str:
    return StatusPage(agent.snapshot, FakeClock()).html().decode()


@pytest.mark.parametrize(("error", "sentence"), [(NoSpace, FULL), (Unavailable, FAILED)])
def test_a_failed_log_is_one_sentence_everywhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[StorageError],
    sentence: str,
) -> None:
    """`doctor` knows from the agent that a process has the node, although its log is closed."""
    disk = LocalStore(str(tmp_path / "log"))
    faulty = FaultyStore(disk)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    settings = config(tmp_path)
    with (
        structlog.testing.capture_logs() as lines,
        serving(settings) as agent,
        plugin(settings) as member,
    ):
        assert member.put(a="1")[0] == "ack"
        faulty._seen = [0]
        faulty.plan = Plan((Fault("error", kind="append|sync|lock", times=0, error=error),))
        assert member.put(b="2")[0] == "error"
        eventually(lambda: why_not_ready(agent.snapshot()) == sentence, "the agent says it")
        assert sentence in page_of(agent)
        failed: set[str] = set()
        said = next(agent_checks(settings.endpoint, failed=failed))
        assert (said.status, failed) == (PROBLEM, {"n1"})
        assert sentence in said.what
        assert sentence in [line.get("state") for line in lines]
        (view,) = take_inventory(Context(disk))

        def closed() -> bool:
            return not any(
                "written by" in each.what for each in log_checks(Context(disk), view, None)
            )

        eventually(closed, "the failed log is closed")
        whats = [each.what for each in log_checks(Context(disk), view, None, failed)]
        assert any("its agent runs, and its log has failed" in what for what in whats)
        assert not any("a crash or kill" in what for what in whats)
        faulty.plan = Plan()


def test_doctor_says_why_an_agent_is_not_ready(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings) as agent, plugin(settings) as member:
        member.client.ask("beat", 7)
        state = eventually(lambda: why_not_ready(agent.snapshot()), "it is not ready")
        said = next(agent_checks(settings.endpoint))
        assert said.status == WARNING
        assert state in said.what
