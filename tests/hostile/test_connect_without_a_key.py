"""Attack: over TCP, use an agent without a key, with a stranger's key, or with a key that may do
less."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from structlog.testing import capture_logs

from imap_wal.agent import keys
from imap_wal.agent.claims import reserve
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.gate import check_pair, new_pair
from imap_wal.agent.keys import KeyPair
from imap_wal.agent.lines import WINDOW_S
from imap_wal.agent.peers import Peer, Right
from imap_wal.agent.server import Agent
from imap_wal.agent.transport import Message
from imap_wal.errors import InvalidSetting, NotAllowed
from tests.agent.harness import NamedClient, Plugin, entry, identity, serving
from tests.support import eventually

MEMBER, READER, STRANGER = new_pair("member-1"), new_pair("reader"), new_pair("stranger")
AGENT = new_pair("agent-1")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_clients(folder: Path, **rights: set[Right]) -> None:
    pairs = {"member": MEMBER, "reader": READER}
    keys.write_clients(
        folder / "clients.toml",
        {
            pairs[name].public: Peer(pairs[name].name, frozenset(given))
            for name, given in rights.items()
        },
    )


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


@contextlib.contextmanager
def plugin(
    settings: AgentConfig,
    key: KeyPair | None,
    agent_key: str = AGENT.public,
    timeout_ms: int = 10_000,
    **about: str,
) -> Iterator[Plugin]:
    connected = Plugin(settings.endpoint, **about)
    connected.client.close()
    connected.client = NamedClient(settings.endpoint, timeout_ms, key, agent_key)
    try:
        yield connected
    finally:
        connected.close()


def admitted(settings: AgentConfig, key: KeyPair) -> bool:
    with plugin(settings, key) as another:
        try:
            return bool(another.stat())
        except NotAllowed:
            return False


def stored(settings: AgentConfig) -> dict[str, bytes]:
    """All files of the log."""
    root = Path(settings.key).parent / "log"
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def refused(peer: Plugin, kind: str, *fields: Any, payload: bytes = b"") -> str:
    header, _ = peer.client.ask(kind, *fields, payload=payload)
    assert header[0] == "error", header
    assert header[2] == "not-allowed", header
    return str(header[3])


def test_a_member_with_its_key_reads_and_writes(settings: AgentConfig) -> None:
    with capture_logs() as lines, serving(settings), plugin(settings, MEMBER) as member:
        member.hello()
        assert member.put(a="1", b="x" * 100_000)[0] == "ack"
        assert member.values() == {"a": "1", "b": "x" * 100_000}
    assert any(
        line["event"] == "peer admitted" and line["peer"] == "member-1 at 127.0.0.1"
        for line in lines
    )
    (claimed,) = [line for line in lines if line["event"] == "log claimed"]
    assert (claimed["peer"], claimed["member"], claimed["incarnation"]) == (
        "member-1",
        identity("member-1"),
        1,
    )


def test_a_strangers_key_is_refused_and_logged(settings: AgentConfig) -> None:
    with capture_logs() as lines, serving(settings), plugin(settings, STRANGER) as stranger:
        with pytest.raises(NotAllowed, match="does not admit this user or key"):
            stranger.client.ask("stat")
        with plugin(settings, MEMBER) as member:
            assert member.hello()["incarnation"] == 1
    (line,) = [line for line in lines if line["event"] == "peer refused"]
    assert (line["peer"], line["reason"]) == (
        f"key {STRANGER.public} at 127.0.0.1",
        "this key is not among the clients",
    )


def test_without_a_key_nothing_is_answered(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings, None, timeout_ms=2000) as stranger:
        with pytest.raises((NotAllowed, TimeoutError)):
            stranger.client.ask("stat")
        with socket.create_connection(
            ("127.0.0.1", int(settings.endpoint.rpartition(":")[2]))
        ) as raw:
            raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
            raw.sendall(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER")
            raw.settimeout(5)
            with contextlib.suppress(ConnectionError):
                while answer := raw.recv(4096):
                    assert b"stat" not in answer


def test_a_public_key_alone_is_refused(settings: AgentConfig) -> None:
    """The handshake proves that the peer has the secret key."""
    # The member's public key with the secret of another one: the handshake proves the secret.
    forged = replace(STRANGER, public=MEMBER.public)
    with (
        serving(settings),
        plugin(settings, forged, timeout_ms=2000) as thief,
        pytest.raises((NotAllowed, TimeoutError)),
    ):
        thief.client.ask("stat")


def test_an_agent_with_another_key_is_not_trusted(settings: AgentConfig) -> None:
    with (
        serving(settings),
        plugin(settings, MEMBER, agent_key=STRANGER.public, timeout_ms=2000) as member,
        pytest.raises((NotAllowed, TimeoutError)),
    ):
        member.client.ask("stat")


def test_a_reader_may_not_write_or_claim(settings: AgentConfig) -> None:
    """It can neither append nor end a lifetime nor leave a member out of a view."""
    with (
        serving(settings),
        plugin(settings, MEMBER) as member,
        plugin(settings, READER, uuid="r", member="reader") as reader,
    ):
        # A key that may only read does not have the log claimed, not even the first time.
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
    assert [line["reason"] for line in lines if line["event"] == "connection closed"] == [
        "its key was revoked"
    ]


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
        assert member.client.ask(
            "view",
            {
                "cluster_id": "cluster-1",
                "member_uuid": "member-1",
                "members": ["member-1"],
                "lost": ["member-2"],
            },
        )
        assert member.hello()["incarnation"] == 2
        assert member.put(a="1")[0] == "ack"
        sign = agent._sessions.sign
        assert sign is not None
        sign.stop(10, clean=False)  # a sign of life would be another file
        before, heard, claims = (
            stored(settings),
            (sign._heard, sign._greeted_at),
            agent._sessions.claims.known,
        )
        # It says what a member would say, also the number of the view and the id of the plug-in.
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
        wish = {
            "cluster_id": "cluster-1",
            "member_uuid": "member-2",
            "members": ["member-2"],
            "lost": ["member-1"],
        }
        assert f"right '{'write' if Right.CLAIM in rights else 'claim'}'" in refused(
            reader, "view", wish
        )
        assert stored(settings) == before
        assert ((sign._heard, sign._greeted_at), agent._sessions.claims.known) == (heard, claims)
        assert len(agent._sessions._by_number) == 2
        # Its bye is not that of the plug-in whose id it gave.
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
        log = agent._node_log
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
        assert agent._sessions._connections == {}


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
            write_clients(tmp_path, member=set(Right), reader={Right.WRITE})
        assert member.client.answer(reading)[0][0] == "keys"
        assert reader.client.answer(waiting)[0][2] == "not-allowed"
        # In the lane: the hello has been received, and is not served yet.
        write_clients(tmp_path, member=set(Right), reader=set(Right))
        take = agent._lane.take

        def later(*, at_once: bool = False) -> Message | None:
            message = take(at_once=at_once)
            if message is not None:
                write_clients(tmp_path, member=set(Right), reader={Right.READ})
            return message

        monkeypatch.setattr(agent._lane, "take", later)
        assert "no right 'write'" in refused(reader, "hello", reader.about())


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://0.0.0.0:7701",
        "tcp://*:7701",
        "tcp://10.0.0.5:7701",
        "tcp://[::]:7701",
        "tcp://eth0:7701",
        "tcp://host.example:7701",
    ],
)
def test_an_address_that_others_reach_needs_keys(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(
        InvalidSetting,
        match="without keys, whoever reaches this address could read and change the log",
    ) as error:
        AgentConfig.from_mapping({"url": f"file://{tmp_path}", "endpoint": endpoint})
    assert "imap-wal keys new" in str(error.value)
    for loopback in (
        "tcp://127.0.0.1:7701",
        "tcp://[::1]:7701",
        "tcp://localhost:7701",
        "tcp://127.9.9.9:7701",
    ):
        assert (
            "every user of this machine may connect"
            in AgentConfig.from_mapping(
                {"url": f"file://{tmp_path}", "endpoint": loopback}
            ).access.doubt
        )


@pytest.mark.parametrize(
    ("name", "mode", "text", "said"),
    [
        ("agent-1.key", 0o644, None, "other users may open it"),
        ("agent-1.key", 0o600, 'name = "a"\n', "public-key is not a key"),
        (
            "agent-1.key",
            0o600,
            f'name = "a"\npublic-key = "{AGENT.public}"\n',
            "secret-key is not a key",
        ),
        (
            "agent-1.key",
            0o600,
            f'name = "a"\npublic-key = "{MEMBER.public}"\nsecret-key = "{AGENT.secret}"\n',
            "is not that of its secret key",
        ),
        ("clients.toml", 0o666, None, "other users may change it"),
        ("clients.toml", 0o644, '[a]\npublic-key = "00"\nrights = ["read"]\n', "is not a key"),
        (
            "clients.toml",
            0o644,
            f'[a]\npublic-key = "{AGENT.public}"\nrights = ["root"]\n',
            "rights are ['root']",
        ),
        (
            "clients.toml",
            0o644,
            f'[a]\npublic-key = "{AGENT.public}"\nrights = []\n',
            "rights are []",
        ),
        (
            "clients.toml",
            0o644,
            f'["a b"]\npublic-key = "{AGENT.public}"\nrights = ["read"]\n',
            "no name of a key",
        ),
        (
            "clients.toml",
            0o644,
            "".join(f'[{n}]\npublic-key = "{AGENT.public}"\nrights = ["read"]\n' for n in "ab"),
            "each client has its own",
        ),
    ],
)
def test_untrustworthy_key_files_are_refused_at_the_start(
    settings: AgentConfig, tmp_path: Path, name: str, mode: int, text: str | None, said: str
) -> None:
    """The error names the reason, without a secret, and no log is opened."""
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    os.chmod(file, mode)
    with pytest.raises(InvalidSetting) as refusal:
        Agent(settings)
    assert said in str(refusal.value)
    assert AGENT.secret not in str(refusal.value)
    assert not (tmp_path / "log/default/c/nodes").exists()  # nothing was opened


def test_a_secret_is_in_no_repr() -> None:
    assert AGENT.secret not in repr(AGENT)
    check_pair(AGENT)


def test_the_largest_payload_arrives_over_encrypted_tcp(settings: AgentConfig) -> None:
    """libzmq counts the bytes that CURVE adds to a frame."""
    settings = replace(settings, log=replace(settings.log, max_value_bytes=1024 * 1024))
    with serving(settings), plugin(settings, MEMBER, timeout_ms=20_000) as member:
        most = member.hello()["max_message_bytes"]
        row = entry("k", "", member.order(1))
        sizes = [800_000] * 22

        def payload() -> bytes:
            return b"".join(
                msgpack.packb([*row[:3], bytes(size), *row[4:9], member.order(1 + number)])
                for number, size in enumerate(sizes)
            )

        sizes[-1] -= len(payload()) - most
        assert len(payload()) == most
        header, _ = member.client.ask("append", member.session, 1, len(sizes), payload=payload())
        assert header[0] == "ack", header
        assert member.load("k")["k"][0] == "\0" * sizes[-1]


def test_a_refused_peer_does_not_fill_the_log_output(settings: AgentConfig) -> None:
    with (
        capture_logs() as lines,
        serving(settings) as agent,
        plugin(settings, MEMBER) as member,
        plugin(settings, READER, uuid="r") as reader,
    ):
        member.hello()
        for _ in range(300):
            refused(reader, "append", 1, 1, 1, payload=b"x")
        agent._lines._since -= WINDOW_S
        eventually(
            lambda: any(line["event"] == "log lines left out" for line in lines),
            "the others are counted",
        )
        assert member.put(a="1")[0] == "ack"
    written = sum(line["event"] == "request refused" for line in lines)
    left_out = sum(
        line["lines"].get("request refused", 0)
        for line in lines
        if line["event"] == "log lines left out"
    )
    assert written <= 10
    assert 300 - 10 <= written + left_out <= 300
