"""A node whose agent ended is named before the next start of all members waits for it."""

from __future__ import annotations

from pathlib import Path

from imap_wal.agent.config import AgentConfig
from imap_wal.context import Context
from imap_wal.inspect.inventory import take_inventory
from rewrite_cli.console.check import WARNING, Check
from rewrite_cli.doctor.agent import agent_checks
from rewrite_cli.doctor.storage import log_checks
from storage_backends import open_store
from tests.agent.harness import config, plugin, serving
from tests.support import eventually

ADVICE = "forget-node --node n2"


def pair(folder: Path, policy: str = "") -> list[AgentConfig]:
    return [
        config(folder, node, lifetime_timeout_s=1, start_policy=policy) for node in ("n1", "n2")
    ]


def of_the_log(settings: AgentConfig) -> list[Check]:
    """What `doctor` finds without asking an agent."""
    store = open_store(settings.url)
    (view,) = take_inventory(Context(store))
    return [each for each in log_checks(Context(store), view, None) if "no agent of" in each.what]


def test_a_node_that_left_is_named_before_the_next_start(tmp_path: Path) -> None:
    one, two = pair(tmp_path)
    with serving(one) as first, plugin(one) as member:
        with serving(two), plugin(two, uuid="plugin-2", member="member-2"):
            eventually(lambda: "n2" in first._log.sessions.clocks.seen, "both agents run")
            assert first.snapshot().absent == ()
            assert of_the_log(one) == []
        eventually(lambda: member.stat()["absent"] == ["n2"], "the node is missed")
        for found in (agent_checks(one.endpoint), of_the_log(one)):
            (check,) = [each for each in found if "no agent of node 'n2'" in each.what]
            assert check.status == WARNING
            assert "the next start of all members waits for it" in check.what
            assert ADVICE in check.advice
        with serving(two):
            eventually(lambda: member.stat()["absent"] == [], "its agent runs again")


def test_a_start_that_waits_for_no_node_misses_none(tmp_path: Path) -> None:
    one, two = pair(tmp_path, "partial")
    with serving(one) as first, plugin(one):
        with serving(two), plugin(two, uuid="plugin-2", member="member-2"):
            eventually(lambda: "n2" in first._log.sessions.clocks.seen, "both agents run")
        eventually(lambda: "n2" not in first._log.sessions.clocks.seen, "one has ended")
        assert first.snapshot().absent == ()


def test_an_agent_that_never_had_a_member_is_not_missed(tmp_path: Path) -> None:
    one, two = pair(tmp_path)
    with serving(one) as first, plugin(one):
        with serving(two):
            eventually(lambda: "n2" in first._log.sessions.clocks.seen, "both agents run")
        eventually(lambda: "n2" not in first._log.sessions.clocks.seen, "one has ended")
        assert first.snapshot().absent == ()
