"""What a member sends again is in the log once, whichever process dies in between."""

from __future__ import annotations

import signal
from typing import Any

import msgpack
import pytest

from imap_wal.agent.config import AgentConfig
from storage_backends.faults import Fault
from tests.agent.harness import plugin, serving
from tests.kit.agents import Process, logged
from tests.kit.effort import every


def test_what_is_sent_again_is_acknowledged_and_not_appended(settings: AgentConfig) -> None:
    with serving(settings) as agent, plugin(settings) as member:
        assert member.send(1, {"a": "1", "b": "2"}) == ["ack", 1, 2]
        assert member.send(1, {"a": "1", "b": "2"}) == ["ack", 1, 2]
        with plugin(settings, greet=False) as again:
            assert again.hello()["last_request"] == 2
            assert again.session == member.session
            assert again.send(1, {"a": "1", "b": "2"}) == ["ack", 1, 2]
            assert again.send(2, {"b": "2"}) == ["ack", 2, 1]
        assert agent.statistics()["duplicates"] == 5
    assert [order[3] for _, _, order in logged(settings)] == [1, 2]


def test_a_message_that_is_partly_logged_is_completed(settings: AgentConfig) -> None:
    """If the first requests of a resend are in the log, only the later ones are appended, once."""
    with serving(settings), plugin(settings) as member:
        member.send(1, {"a": "1", "b": "2"})
        assert member.send(1, {"a": "1", "b": "2", "c": "3", "d": "4"}) == ["ack", 1, 4]
        assert member.hello()["last_request"] == 4
    assert [(key, order[3]) for key, _, order in logged(settings)] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
        ("d", 4),
    ]


def test_an_agent_that_was_killed_recognises_what_is_sent_again(settings: AgentConfig) -> None:
    first = Process(settings)
    with plugin(settings) as member:
        member.send(1, {"a": "1", "b": "2"})
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = Process(settings)
    with plugin(settings) as member:
        assert (member.session, member.incarnation, member.request) == (1, 1, 2)
        assert member.send(1, {"a": "1", "b": "2", "c": "3"}) == ["ack", 1, 3]
        assert member.values() == {"a": "1", "b": "2", "c": "3"}
    assert second.end(signal.SIGTERM) == 0
    assert [order[3] for _, _, order in logged(settings)] == [1, 2, 3]


@every(4)
@pytest.mark.parametrize(
    ("kind", "when", "there"),
    [
        ("append", "before", False),
        ("append", "after", True),
        ("sync", "before", True),
        ("sync", "after", True),
        ("exists", "before", True),
        ("exists", "after", True),
    ],
)
def test_a_resend_after_a_kill_leaves_one_record(
    settings: AgentConfig, kind: Any, when: Any, there: bool
) -> None:
    """The agent is killed at each step between the append and the acknowledgement."""
    # In wal/: 1 header, 2 the member's metadata, 3 the first change, 4 the one that is killed. For
    # each, the permit and the segment are asked for; for the session and the manifest, the permit.
    at = 9 if kind == "exists" else 4
    first = Process(settings, Fault("kill", at=at, kind=kind, path="*/wal/*", when=when))
    with plugin(settings) as member:
        assert member.send(1, {"a": "1"}) == ["ack", 1, 1]
        member.client._timeout_ms = 1
        with pytest.raises(TimeoutError):
            member.send(2, {"b": "2", "c": "3"})
        assert first.wait() == -signal.SIGKILL
    second = Process(settings)
    with plugin(settings) as member:
        assert member.request == (3 if there else 1), "the welcome says what is in the log"
        assert member.send(2, {"b": "2", "c": "3"}) == ["ack", 2, 2]
    assert second.end(signal.SIGTERM) == 0
    assert [(key, order[3]) for key, _, order in logged(settings)] == [("a", 1), ("b", 2), ("c", 3)]


def test_a_later_connection_supersedes_the_earlier_one(settings: AgentConfig) -> None:
    """Only the newest connection of a plug-in may append."""
    with serving(settings), plugin(settings) as old, plugin(settings) as new:
        assert old.session == new.session
        assert old.put(a="old")[:2] == ["error", "superseded"]
        assert (
            old.client.ask("metadata", old.session, 1, payload=msgpack.packb(["schema", 1, b""]))[
                0
            ][2]
            == "superseded"
        )
        assert new.put(a="new") == ["ack", 1, 1]
        assert old.put(a="old")[:2] == ["error", "superseded"]
    assert [value for _, value, _ in logged(settings)] == ["new"]
