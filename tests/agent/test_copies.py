"""A plug-in that appends each change to two agents: both give it one session, each recognises what
its own log has, and neither acknowledges anything for an older view."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.entry import SHARED_SESSIONS, shared_session
from imap_wal.errors import NotAppended
from imap_wal.write.node_log import PLUGINS_KEPT
from storage_backends.memory import MemoryStore
from tests.agent.harness import Plugin, config, identity, plugin, serving
from tests.kit.agents import Process
from tests.kit.logs import node


@pytest.fixture
def two(tmp_path: Path) -> list[AgentConfig]:
    return [config(tmp_path, name, f"file://{tmp_path}/log") for name in ("n1", "n2")]


@contextmanager
def copied(settings: list[AgentConfig]) -> Iterator[list[Plugin]]:
    """A plug-in, connected to each agent."""
    with ExitStack() as opened:
        found = [opened.enter_context(plugin(each, greet=False)) for each in settings]
        for each in found:
            each.hello(shared=True)
        yield found


def test_copies_have_one_order_and_are_read_once(two: list[AgentConfig]) -> None:
    with serving(two[0]), serving(two[1]), copied(two) as (first, second):
        assert first.session == second.session == shared_session(identity("plugin-1"), 1)
        for each in (first, second):
            assert each.send(1, {"a": "1", "b": "1"}) == ["ack", 1, 2]
        assert first.send(3, {"a": "2"}) == ["ack", 3, 1], "n2 is away"
        assert second.send(4, {"b": None, "c": "1"}) == ["ack", 4, 2], "n1 is away"
        for each in (first, second):
            assert each.values() == {"a": "2", "c": "1"}
        assert first.hello(shared=True)["last_request"] == 3
        assert second.hello(shared=True)["last_request"] == 5
        assert second.send(4, {"b": None, "c": "1"}) == ["ack", 4, 2], "as before"
        with plugin(two[0], uuid="plugin-2") as alone:
            assert alone.session == 1, "sessions of one log are numbered as before"


def test_a_killed_agent_recognises_requests_of_shared_sessions(two: list[AgentConfig]) -> None:
    processes = [Process(each) for each in two]
    with copied(two) as (first, second):
        for each in (first, second):
            each.send(1, {"a": "1", "b": "1"})
        processes[1].end(signal.SIGKILL)
        first.send(3, {"a": "2"})
    again = Process(two[1])
    with copied(two) as (first, second):
        assert (first.request, second.request) == (3, 2)
        assert second.send(1, {"a": "1", "b": "1"}) == ["ack", 1, 2]
        assert second.send(3, {"a": "2"}) == ["ack", 3, 1]
        assert first.values() == second.values() == {"a": "2", "b": "1"}
    for process in (processes[0], again):
        assert process.end(signal.SIGTERM) == 0


def test_no_agent_acknowledges_in_an_older_view(two: list[AgentConfig]) -> None:
    """The view is claimed by one agent; the other one finds that its permit is gone."""
    with serving(two[0]), serving(two[1]), copied(two) as (first, second):
        old = first.session
        for each in (first, second):
            each.send(1, {"a": "1"})
        second.send(2, {"a": "2"})
        wish = {
            "cluster_id": first.cluster_id,
            "member_uuid": first.member,
            "members": [first.member],
            "lost": ["member-2"],
        }
        assert first.client.ask("view", wish)[0][:1] == ["view"]
        for each in (first, second):
            assert each.send(3, {"a": "3"})[1] in ("void-incarnation", "outcome-unknown")
        welcomes = [each.hello(shared=True) for each in (first, second)]
        assert [each["former"] for each in welcomes] == [[[old, 1]], [[old, 2]]]
        assert first.session == second.session != old
        assert first.values() == {"a": "2"}
        for each in (first, second):
            assert each.send(3, {"a": "3"}) == ["ack", 3, 1]
        assert second.values() == {"a": "3"}


def test_a_number_of_another_plugin_is_refused(memory: MemoryStore) -> None:
    log = node(memory)
    assert log.new_session("a/1", shared=SHARED_SESSIONS + 5) == SHARED_SESSIONS + 5
    assert log.new_session("a/1", shared=SHARED_SESSIONS + 5) == SHARED_SESSIONS + 5
    with pytest.raises(NotAppended, match="another number"):
        log.new_session("b/1", shared=SHARED_SESSIONS + 5)
    assert log.new_session("b/1") == 1, "numbers of this node are its own"


def test_newer_sessions_are_kept_whether_shared_or_not(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(PLUGINS_KEPT):
        log.new_session(f"p{number}/1", shared=shared_session(f"p{number}", 1))
    for number in range(5):
        log.new_session(f"q{number}/2")
    known = log.manifests.read()[1].plugins
    assert len(known) == PLUGINS_KEPT
    assert {f"q{number}/2" for number in range(5)} <= known.keys()
