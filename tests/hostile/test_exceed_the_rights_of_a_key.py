"""Attack: over TCP, do more than the rights of a key allow, or use a key that was revoked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from structlog.testing import capture_logs
from zmq.utils.monitor import recv_monitor_message

from imap_wal.agent.access import keys
from imap_wal.agent.access.keys import KeyPair
from imap_wal.agent.access.peers import Right
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.claims import reserve
from imap_wal.agent.server import Agent
from imap_wal.agent.transport.client import AgentClient
from imap_wal.agent.transport.router import Message
from imap_wal.errors import NotAllowed
from tests.agent.harness import identity, serving
from tests.kit.effort import every
from tests.kit.keyed_agents import AGENT, MEMBER, READER, plugin, refused, write_clients
from tests.kit.ports import free_port
from tests.support import eventually


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    keys.write_new(tmp_path / "agent-1.key", AGENT.text(), 0o600)
    write_clients(tmp_path, member=set(Right), reader={Right.READ})
    return AgentConfig.from_mapping(
        {
            "url": f"file://{tmp_path}/log", "cluster": "c", "node": "n1", "endpoint": f"tcp://127.0.0.1:{free_port()}",
            "key": str(tmp_path / "agent-1.key"), "clients": str(tmp_path / "clients.toml"),
            "lifetime_timeout_s": 0, "start_policy": "partial",
        }
    )  # fmt: skip


def set_rights(agent: Agent, folder: Path, reader: set[Right]) -> None:
    """Returns when the agent uses them: a thread has the former ones while another reads the
    file."""
    write_clients(folder, member=set(Right), reader=reader)
    router: Any = agent._router
    eventually(
        lambda: (
            ("reader", reader)
            in [(each.name, each.rights) for each in router._current_clients().values()]
        ),
        "the file of clients is read again",
    )


def admitted(settings: AgentConfig, key: KeyPair) -> bool:
    with plugin(settings, key) as another:
        try:
            return bool(another.stat())
        except (NotAllowed, TimeoutError):  # a refused connection may end without an answer
            return False


def stored(settings: AgentConfig) -> dict[str, bytes]:
    """All files of the log."""
    root = Path(settings.key).parent / "log"
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_a_reader_may_not_write_or_claim(settings: AgentConfig) -> None:
    """It can neither append nor end a lifetime nor leave a member out of a view."""
    with (
        serving(settings),
        plugin(settings, MEMBER) as member,
        plugin(settings, READER, uuid="r", member="reader") as reader,
    ):
        # A key that may only read claims nothing, not even a log that was never claimed.
        assert "reader may not claim it: that needs the rights 'write' and 'claim'" in refused(
            reader, "hello", reader.about(purpose="read")
        )
        member.hello()
        assert member.put(a="1")[0] == "ack"
        assert "reader has no right 'write', which hello needs" in refused(
            reader, "hello", reader.about()
        )
        assert "reader may not claim it" in refused(
            reader, "hello", reader.about(purpose="read", cluster_id="mine")
        )
        reader.hello(purpose="read")
        assert reader.values() == {"a": "1"}
        assert "no right 'write'" in refused(
            reader, "append", member.session, 2, 1, payload=member.payload(2, {"a": "2"})
        )
        assert "no right 'claim'" in refused(
            reader,
            "view",
            {
                "cluster_id": "cluster-1",
                "member_uuid": "reader",
                "members": ["reader"],
                "lost": ["member-1"],
            },
        )
        assert member.put(b="2")[0] == "ack"
        assert member.values() == {"a": "1", "b": "2"}
        assert reader.stat()["claim"]["incarnation"] == 1


def test_a_revoked_key_ends_open_connections(settings: AgentConfig, tmp_path: Path) -> None:
    """The file of clients is read again: a new key needs no restart, and a wrong file changes
    nothing."""
    with (
        capture_logs() as lines,
        serving(settings),
        plugin(settings, READER) as reader,
        plugin(settings, MEMBER) as member,
    ):
        member.hello()
        assert reader.stat()["node"] == "n1"
        write_clients(tmp_path, member=set(Right))
        # The agent closes the connection, although nothing is sent on it; libzmq connects again,
        # and is refused.
        eventually(lambda: member.stat()["connections"]["revoked"] == 1, "the connection is closed")
        with pytest.raises(NotAllowed, match="does not admit this user or key"):
            reader.client.ask("stat")
        assert member.put(a="1")[0] == "ack"
        eventually(lambda: member.stat()["connections"]["open"] == 1, "its place is free")
        with plugin(settings, READER) as again, pytest.raises(NotAllowed):
            again.client.ask("stat")
        write_clients(tmp_path, member=set(Right), reader={Right.READ})
        eventually(lambda: admitted(settings, READER), "the file of clients is read again")
        # A file that cannot be read changes nothing.
        (tmp_path / "clients.toml").write_text("no TOML")
        eventually(
            lambda: (
                member.stat()
                and any(line["event"].startswith("clients not read again") for line in lines)
            ),
            "the file is refused",
        )
        assert member.put(b="1")[0] == "ack"
    assert any(
        line["event"].startswith("clients not read again") and line["log_level"] == "error"
        for line in lines
    )
    reasons = [line["reason"] for line in lines if line["event"] == "connection closed"]
    assert reasons.count("its key was revoked") == 1


def was_refused(client: AgentClient) -> bool:
    """Whether the events of this connection, which sent nothing, end with a refusal."""
    events = client._events
    found = [recv_monitor_message(events)["event"] for _ in iter(lambda: events.poll(0), 0)]
    return zmq.EVENT_HANDSHAKE_FAILED_AUTH in found


def test_a_revoked_key_ends_silent_connections(settings: AgentConfig, tmp_path: Path) -> None:
    """The agent does not know the keys of connections without a message, and closes all of them.
    A client whose key is valid connects again automatically."""
    with (
        serving(settings),
        plugin(settings, READER) as reader,
        plugin(settings, MEMBER) as silent,
        plugin(settings, MEMBER) as member,
    ):
        eventually(lambda: member.stat()["connections"]["open"] == 3, "all have connected")
        write_clients(tmp_path, member=set(Right))
        # It connects again, and is refused.
        eventually(lambda: was_refused(reader.client), "the connection is closed")
        assert silent.stat()["connections"]["revoked"] == 0
        assert member.hello()["session"]


def left_alone(member: str, lost: str) -> dict[str, Any]:
    """The view of a member that has lost the other one."""
    return {
        "cluster_id": "cluster-1",
        "member_uuid": member,
        "members": [member],
        "lost": [lost],
    }


@every(2)
@pytest.mark.parametrize("rights", [{Right.READ}, {Right.READ, Right.CLAIM}])
def test_a_hello_for_reading_changes_nothing(
    settings: AgentConfig, tmp_path: Path, rights: set[Right]
) -> None:
    write_clients(tmp_path, member=set(Right), reader=rights)
    settings = replace(settings, lifetime_timeout_s=60)
    with (
        serving(settings) as agent,
        plugin(settings, MEMBER) as member,
        plugin(settings, READER) as reader,
    ):
        member.hello()
        assert member.client.ask("view", left_alone("member-1", "member-2"))
        assert member.hello()["incarnation"] == 2
        assert member.put(a="1")[0] == "ack"
        sign = agent._log.sessions.sign
        assert sign is not None
        sign.stop(10, clean=False)  # a sign of life would be another file
        before, heard, claims = (
            stored(settings),
            (sign._heard, sign._greeted_at),
            agent._log.sessions.claims.known,
        )
        # Its hello is that of a member, with the number of the view and the id of the plug-in.
        for about in (
            {},
            {"view": 2},
            {"member_uuid": "another", "view": 2},
            {"plugin_uuid": "another", "member_uuid": "member-2", "view": 1},
        ):
            welcome = reader.hello(purpose="read", **about)
            assert (
                welcome["session"],
                welcome["incarnation"],
                welcome["last_request"],
                welcome["former"],
            ) == (0, 2, 0, [])
            assert reader.values() == {"a": "1"}
            assert reader.client.ask("beat")[0][0] == "beat"
            assert "no" in refused(reader, "append", 0, 1, 1, payload=b"x")
        wish = left_alone("member-2", "member-1")
        assert f"right '{'write' if Right.CLAIM in rights else 'claim'}'" in refused(
            reader, "view", wish
        )
        assert stored(settings) == before
        assert ((sign._heard, sign._greeted_at), agent._log.sessions.claims.known) == (
            heard,
            claims,
        )
        assert len(agent._log.sessions._by_number) == 2
        # Its bye does not end the session of the plug-in whose id it sent.
        reader.hello(purpose="read")
        assert reader.client.ask("bye")[0][0] == "bye"
        assert reader.client.ask("keys", "orders", None, 10)[0][2] == "not-ready"
        assert member.put(b="2")[0] == "ack"


def test_a_hello_for_reading_does_not_complete_a_claim(settings: AgentConfig) -> None:
    with (
        serving(settings) as agent,
        plugin(settings, MEMBER) as member,
        plugin(settings, READER) as reader,
    ):
        member.hello()
        assert member.put(a="1")[0] == "ack"
        log = agent._log.node_log
        # An agent was killed after it had claimed, and before the lifetime began.
        reserved = reserve(agent._all_logs)
        log.claims.update(
            lambda claims: claims.with_claim(
                identity("cluster-1"), reserved, (identity("member-1"),)
            )
        )
        before = stored(settings)
        assert reader.hello(purpose="read")["incarnation"] == 1, "the other one has not begun"
        assert reader.values() == {"a": "1"}
        assert stored(settings) == before
        assert [lifetime.incarnation for lifetime in log.clusters.read()[1].lifetimes] == [1]
        assert member.hello()["incarnation"] == 2
        assert [lifetime.incarnation for lifetime in log.clusters.read()[1].lifetimes] == [1, 2]


def test_a_member_that_loses_the_right_to_write_is_removed(
    settings: AgentConfig, tmp_path: Path
) -> None:
    """Its key may only read from now on: its appends, beats and session are refused."""
    with serving(settings) as agent, plugin(settings, MEMBER) as member:
        member.hello()
        write_clients(tmp_path, member={Right.READ})
        eventually(
            lambda: member.put(a="1")[1] == "not-allowed", "the file of clients is read again"
        )
        assert member.client.ask("beat")[0][2] == "not-ready"
        assert member.hello(purpose="read")["session"] == 0
        assert agent._log.sessions._connections == {}


def test_waiting_requests_are_served_with_current_rights(
    settings: AgentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that was revoked while a request waited does not count."""
    monkeypatch.setattr(keys, "LOOK_S", 0)
    with (
        serving(settings) as agent,
        plugin(settings, MEMBER) as member,
        plugin(settings, READER) as reader,
    ):
        member.hello()
        reader.hello(purpose="read")
        with agent._reads._view._lock:  # no read ends
            reading = member.client.post("keys", "orders", None, 10)
            eventually(lambda: agent._reads._taken is not None, "the first read is taken up")
            waiting = reader.client.post("keys", "orders", None, 10)
            eventually(lambda: len(agent._reads._queued) == 1, "the second one waits")
            set_rights(agent, tmp_path, {Right.WRITE})
        assert member.client.answer(reading)[0][0] == "keys"
        assert reader.client.answer(waiting)[0][2] == "not-allowed"
        # In the lane: the hello has been received, and is not served yet.
        set_rights(agent, tmp_path, set(Right))
        take = agent._lane.take

        def later(*, at_once: bool = False) -> Message | None:
            message = take(at_once=at_once)
            if message is not None:
                set_rights(agent, tmp_path, {Right.READ})
            return message

        monkeypatch.setattr(agent._lane, "take", later)
        assert "no right 'write'" in refused(reader, "hello", reader.about())
