"""Attack: over TCP, use an agent without a key, or with a stranger's key."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from structlog.testing import capture_logs

from imap_wal.agent.access import keys
from imap_wal.agent.access.peers import Right
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.lines import WINDOW_S, Lines
from imap_wal.agent.server import Agent
from imap_wal.agent.transport.connection_limit import SILENT, ConnectionLimiter, SocketEvent
from imap_wal.agent.transport.gate import check_pair
from imap_wal.clock import SystemClock
from imap_wal.errors import InvalidSetting, NotAllowed
from tests.agent.harness import entry, identity, serving
from tests.kit.keyed_agents import (
    AGENT,
    MEMBER,
    READER,
    STRANGER,
    plugin,
    refused,
    write_clients,
)
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


def test_a_request_after_a_refusal_ends(settings: AgentConfig) -> None:
    """libzmq has no queue for a connection that was refused, and a plain send then never ends."""
    with serving(settings), plugin(settings, STRANGER) as stranger:
        queue = stranger.client._socket
        eventually(lambda: not queue.poll(0, zmq.POLLOUT), "the end of the connection")
        with pytest.raises(NotAllowed, match="does not admit this user or key"):
            stranger.client.ask("stat")


def test_a_strangers_key_is_refused_and_logged(settings: AgentConfig) -> None:
    with capture_logs() as lines, serving(settings), plugin(settings, STRANGER) as stranger:
        with pytest.raises(NotAllowed, match="does not admit this user or key"):
            stranger.client.ask("stat")
        with plugin(settings, MEMBER) as member:
            assert member.hello()["incarnation"] == 1
    lines = [line for line in lines if line["event"] == "peer refused"]
    (line,) = [line for line in lines if line["reason"] != SILENT]
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


@pytest.mark.parametrize("agent_key", ["", STRANGER.public], ids=["no key", "another key"])
def test_a_peer_that_ends_in_the_handshake_is_logged(settings: AgentConfig, agent_key: str) -> None:
    """It has no key, or expects another public key of the agent."""
    own = MEMBER if agent_key else None
    named = {"agent_key": agent_key} if agent_key else {}

    def found() -> list[Any]:
        return [line for line in lines if line["event"] == "peer refused"]

    with capture_logs() as lines, serving(settings):
        with (
            plugin(settings, own, timeout_ms=500, **named) as stranger,
            pytest.raises((NotAllowed, TimeoutError)),
        ):
            stranger.client.ask("stat")
        eventually(found, "a line about the peer")
    line = found()[0]
    assert line["reason"] == SILENT
    # The connection may have ended before the agent asks for the address of its other end.
    assert line["peer"] in ("a peer at 127.0.0.1", "a peer at an unknown address")


def test_a_connection_that_ended_at_once_is_logged() -> None:
    """Its descriptor is closed before the agent examines it."""
    closed = os.dup(0)
    os.close(closed)
    events = iter([SocketEvent(accepted=True, fd=closed)])
    clock = SystemClock()
    with capture_logs() as lines:
        limiter = ConnectionLimiter(
            lambda: next(events, None), 1, 10, clock, Lines(clock), has_keys=True
        )
        limiter.worker.start()
        eventually(lambda: lines, "a line about the connection")
        assert limiter.worker.stop(5)
        limiter.close()
    assert [(line["peer"], line["reason"]) for line in lines] == [
        ("a peer at an unknown address", SILENT)
    ]


def test_a_public_key_alone_is_refused(settings: AgentConfig) -> None:
    """The handshake proves that the peer has the secret key."""
    # The member's public key with the secret key of another one.
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
        match="without keys, anyone who can reach this address could read and change the log",
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
            "only a public key",
        ),
        (
            "agent-1.key",
            0o600,
            f'name = "a"\npublic-key = "{MEMBER.public}"\nsecret-key = "{AGENT.secret}"\n',
            "does not belong to its secret key",
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
            "is not a valid name of a key",
        ),
        (
            "clients.toml",
            0o644,
            "".join(f'[{n}]\npublic-key = "{AGENT.public}"\nrights = ["read"]\n' for n in "ab"),
            "each client needs its own key",
        ),
    ],
    ids=itertools.count(1),
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
    assert not (tmp_path / "log/default/c/nodes").exists()  # no log was opened


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
