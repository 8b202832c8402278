"""The answer to a hello after a view: which requests of the earlier sessions count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent import server
from imap_wal.agent.membership import sessions
from tests.agent.harness import Plugin, config, identity, serving
from tests.kit.halves import Halves, greet, member, restored, stranger, view
from tests.support import eventually


def test_a_survivor_learns_which_of_its_requests_count(halves: Halves) -> None:
    session = halves.b.session
    view(halves.a, "ab", "c")
    assert halves.b.put(above="1")[:2] == ["error", "outcome-unknown"], "above the cut"
    welcome = greet(halves.b)[1]
    assert welcome["last_request"] == 0 and welcome["session"] != session
    assert welcome["former"] == [[session, 1]]
    assert greet(halves.b)[1]["former"] == [[session, 1]], "also when the answer was lost"
    assert "above" not in restored(halves.url)


def test_a_request_below_the_cut_that_was_not_acknowledged_counts(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, sync = halves.b.session, halves.agents["b"]._log.node_log.sync
    claimed: list[Any] = []

    def frozen() -> None:
        sync()
        if not claimed:
            claimed.append(view(halves.a, "ab", "c"))

    monkeypatch.setattr(halves.agents["b"]._log.node_log, "sync", frozen)
    assert halves.b.put(below="1")[:2] == ["error", "outcome-unknown"]
    assert claimed[0][0] == "view"
    assert greet(halves.b)[1]["former"] == [[session, 2]]
    assert restored(halves.url)["below"] == "1"


def one_turn(
    agent: server.Agent, asking: Plugin, kind: str, *fields: Any, payload: bytes = b""
) -> list[Any]:
    """A request to an agent whose loop does not run by itself; the answer's header."""
    number = asking.client.post(kind, *fields, payload=payload)
    eventually(lambda: agent._turn(10) or asking.client._socket.poll(0), "it answers")
    return asking.client.answer(number)[0]


@pytest.mark.parametrize("killed", ["before the hello", "after the hello"])
def test_former_is_the_same_after_the_agent_was_killed(tmp_path: Path, killed: str) -> None:
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    agent = server.Agent(one)
    try:
        with serving(two), member(two, "a") as a, stranger(one, "b") as b:
            welcome = one_turn(agent, b, "hello", b.about())[2]
            b.session, b.incarnation = welcome["session"], welcome["incarnation"]
            assert (
                one_turn(agent, b, "append", b.session, 1, 1, payload=b.payload(1, {"below": "1"}))[
                    0
                ]
                == "ack"
            )
            assert view(a, "ab", "c")[0] == "view"
            assert (
                one_turn(agent, b, "append", b.session, 2, 1, payload=b.payload(2, {"above": "1"}))[
                    0
                ]
                == "error"
            )
            if killed == "after the hello":
                assert one_turn(agent, b, "hello", b.about())[2]["former"] == [[b.session, 1]]
    finally:
        agent._reads.close()
        agent._router.close()
    # The log was not closed: the next agent takes it over, as after a kill.
    again = replace(one, takeover=True)
    with serving(again), stranger(again, "b") as later:
        assert greet(later)[1]["former"] == [[b.session, 1]]
        assert later.put(after="1")[0] == "ack"
    assert restored(one.url) == {"below": "1", "after": "1"}


def test_former_counts_each_earlier_view_by_its_cut(halves: Halves) -> None:
    """A member that missed two views gets one pair for each of its sessions."""
    sessions = [halves.b.session]
    view(halves.a, "ab", "c")
    halves.b.put(void="1")
    greet(halves.b)
    sessions.append(halves.b.session)
    assert halves.b.put(second="1", third="1")[0] == "ack"
    assert greet(halves.a)[0] == "welcome"
    assert view(halves.a, "ab", "d") == ["view", 2, ["a", "b"]]
    assert view(halves.a, "a", "b") == ["view", 3, ["a"]]
    halves.b.put(void="2")
    first, second = (
        halves.agents["a"]._log.sessions._by_plugin[identity("plugin of a"), incarnation].number
        for incarnation in (1, 2)
    )
    assert greet(halves.a)[1]["former"] == [[first, 1], [second, 0]]
    with member(halves.settings["b"], "e", view=3):
        known = halves.agents["b"]._log.node_log.manifests.read()[1].former
    assert [known[session] for session in sessions] == [1, 2]


def test_former_is_omitted_when_files_are_missing(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files above the cut were removed, so the agent cannot prove an answer."""
    view(halves.a, "ab", "c")
    assert halves.b.put(void="1")[0] == "error"
    log = halves.agents["b"]._log.node_log
    log.manifests.update(
        lambda manifest: manifest.__class__.from_json(
            {**manifest.to_json(), "removed": tuple(log.end)}
        )
    )
    assert greet(halves.b)[1]["former"] == []


def test_former_is_read_from_archives_too(halves: Halves) -> None:
    """Maintenance archived what was above the cutoff before the member said hello."""
    session = halves.b.session
    view(halves.a, "ab", "c")
    assert halves.b.put(void="1")[0] == "error"
    halves.agents["b"]._log.archive()
    assert greet(halves.b)[1]["former"] == [[session, 1]]
    assert "void" not in restored(halves.url)


def test_former_is_omitted_during_another_claim(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cut may be lower than what was read, so an answer could become wrong."""
    view(halves.a, "ab", "c")
    assert halves.b.put(void="1")[0] == "error"
    look = sessions.last_that_count
    claimed: list[Any] = []

    def meanwhile(*arguments: Any) -> dict[int, int]:
        found = look(*arguments)
        if not claimed:
            claimed.append(view(halves.a, "a", "b"))
        return found

    assert greet(halves.a)[0] == "welcome"
    monkeypatch.setattr(sessions, "last_that_count", meanwhile)
    refused = greet(halves.b)
    assert refused[:2] == ["error", "not-ready"]
    assert "has to say hello again" in refused[2]
    assert greet(halves.b)[:2] == ["error", "void-incarnation"]
