"""Attack: take all connections, descriptors or memory of an agent, or make it store data without
limit."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal.agent import bounds
from imap_wal.agent.bounds import REQUESTS_MAX, UNSENT_BYTES, raise_file_limit, wanted_files
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.transport.router import parts
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import InvalidSetting
from imap_wal.manifest.claims import claim_manifests
from imap_wal.settings import Settings
from storage_backends import open_store
from tests.agent.harness import Plugin, config, entry, plugin, serving
from tests.hostile.peers import RawPeer, agent_process, connected
from tests.kit.effort import every, thorough
from tests.support import FakeClock, eventually

MB = 1024 * 1024


def at(settings: AgentConfig, kind: str, number: int) -> AgentConfig:
    return settings if kind == "ipc" else replace(settings, endpoint=f"tcp://127.0.0.1:{number}")


def comes_in(settings: AgentConfig) -> bool:
    """Whether a new connection can say hello and read."""
    late = Plugin(settings.endpoint, uuid="late", timeout_ms=2000)
    try:
        late.hello()
        return late.values() == {"a": "1", "b": "2"}
    except TimeoutError:
        return False  # this connection was over the limit; a plug-in would try again
    finally:
        late.close()


# ---- connections ---------------------------------------------------------------------------------


@every(4)
@pytest.mark.parametrize(
    ("kind", "files"), [("ipc", 1700), ("ipc", 4096), ("tcp", 128), ("tcp", 1700)]
)
def test_idle_connections_do_not_keep_members_out(tmp_path: Path, kind: str, files: int) -> None:
    """Nor do they end the agent: libzmq ends the process when it cannot accept a connection ("Too
    many open files")."""
    settings = at(config(tmp_path), kind, 17_800 + files % 97)
    with (
        agent_process(replace(settings, connections_max=200), tmp_path, files) as agent,
        plugin(settings) as member,
    ):
        assert member.put(a="1")[0] == "ack"
        idle = [connected(settings.endpoint) for _ in range(400)]
        eventually(lambda: member.stat()["connections"]["refused"] > 0, "connections are refused")
        counts = member.stat()["connections"]
        assert counts["open"] <= counts["most"] <= 200
        assert member.put(b="2")[0] == "ack"
        eventually(
            lambda: comes_in(settings), "a late member is admitted, as idle connections make room"
        )
        assert agent.open_files < files
        for each in idle:
            each.close()
        eventually(
            lambda: member.stat()["connections"]["open"] < 5, "those that ended do not count"
        )


def _flood(endpoint: str, until: float) -> None:
    raise_file_limit(3000)
    with suppress(OSError):
        while time.monotonic() < until:
            open_ = []
            for _ in range(1500):
                if time.monotonic() > until:
                    break
                open_.append(connected(endpoint))
            for each in open_:
                each.close()


@every(2)
@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_flood_of_connections_does_not_end_the_agent(tmp_path: Path, kind: str) -> None:
    """The agent refuses connections as fast as three processes open them, and a member writes
    meanwhile."""
    settings = replace(at(config(tmp_path), kind, 17_901), connections_max=100)
    files = wanted_files(100)
    with agent_process(settings, tmp_path, files) as agent, plugin(settings) as member:
        member.put(a="0")
        until = time.monotonic() + 4  # the test is how many connections are opened in this time
        flooding = [
            multiprocessing.get_context("fork").Process(
                target=_flood, args=(settings.endpoint, until)
            )
            for _ in range(3)
        ]
        for each in flooding:
            each.start()
        most = number = 0
        while time.monotonic() < until:
            number += 1
            assert member.put(a=str(number))[0] == "ack"
            most = max(most, agent.open_files)
        for each in flooding:
            each.join()
        assert agent.alive, agent.output
        assert most < files
        assert member.stat()["connections"]["refused"] > 100
        assert member.values() == {"a": str(number)}


def test_an_agent_needs_enough_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """It admits fewer connections, or refuses to start with the number that it needs."""
    limits: list[int] = [4096]
    monkeypatch.setattr("resource.getrlimit", lambda _: (limits[0], limits[0]))
    for local, unseen in ((True, 0), (False, bounds.UNSEEN_MAX)):
        limits[0] = 4096
        allowed = bounds.bounds(1000, 1, local=local)
        assert allowed.certain and allowed.connections == 1000
        limits[0] = unseen + 1000
        allowed = bounds.bounds(1000, 1, local=local)
        assert allowed.certain and bounds.OWN_FILES + allowed.connections + unseen <= limits[0]
        limits[0] = 300
        allowed = bounds.bounds(1000, 1, local=local)
        assert not allowed.certain and allowed.connections < 150
        limits[0] = 40
        with pytest.raises(
            InvalidSetting,
            match=r"may open 40 files .* an agent needs at least 80, and should have 2556",
        ):
            bounds.bounds(1000, 1, local=local)


def test_a_peer_that_does_not_finish_the_handshake_is_disconnected(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        idle = connected(settings.endpoint)
        idle.settimeout(20)
        while idle.recv(100):  # libzmq's own greeting, and then the end
            pass
        assert member.put(a="1")[0] == "ack"


def test_connections_that_ended_are_forgotten(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings) as agent, plugin(settings) as member:
        for number in range(100):
            with plugin(
                settings, uuid="again" if number % 2 else "", greet=bool(number % 2)
            ) as short:
                short.client.ask("stat")
        sessions = agent._log.sessions
        eventually(lambda: len(sessions._connections) == 1, "one is remembered")
        eventually(lambda: agent._router.statistics.open == 1, "and one is counted")
        assert member.put(a="1")[0] == "ack"


def test_a_peer_cannot_take_a_members_routing_id(tmp_path: Path) -> None:
    """A peer that presents it gets its own answers, and no other."""
    settings = config(tmp_path)
    with serving(settings) as agent, plugin(settings) as member:
        (name,) = agent._log.sessions._connections
        for routing_id in (name, b"mine", b"\0"):
            thief = RawPeer(settings.endpoint, routing_id)
            member.client.post("stat")
            assert member.put(a="1")[0] == "ack"
            thief.send("stat", 77)
            assert thief.answer()[:2] == ["stat", 77], "it gets its own answer, and no other"
            thief.close()


# ---- messages ------------------------------------------------------------------------------------


@thorough
def test_a_message_larger_than_any_value_is_not_read(tmp_path: Path) -> None:
    settings = config(tmp_path, max_value_bytes=MB)
    with agent_process(settings, tmp_path) as agent, plugin(settings) as member:
        assert member.hello()["max_message_bytes"] == 17 * MB
        before = agent.memory
        for size in (18 * MB, 1 << 40, (1 << 63) - 1):
            peer = RawPeer(settings.endpoint)
            peer.send("stat", 1)
            peer.socket.sendall(bytes([3]) + size.to_bytes(8, "big") + b"x")
            assert peer.ended(), size
            peer.close()
        header, _ = member.client.ask("maps", ["m" * 1000] * 5000)
        assert header[2] == "bad-request" and "the header has" in header[3]
        assert agent.memory - before < 40 * MB
        assert member.put(a="1")[0] == "ack"


def test_a_value_of_the_largest_size_arrives(tmp_path: Path) -> None:
    settings = config(tmp_path, max_value_bytes=MB)
    with serving(settings), plugin(settings) as member:
        value = "x" * (MB - 1)
        assert member.put(a=value)[0] == "ack"
        assert member.values() == {"a": value}


def test_a_peer_that_sends_requests_without_end_is_disconnected(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        peer = RawPeer(settings.endpoint)
        with suppress(ConnectionError):
            for number in range(1, 20 * REQUESTS_MAX):
                peer.send("stat", number)
        assert peer.ended()
        assert member.put(a="1")[0] == "ack"
        assert member.stat()["connections"]["refused"] == 1


def test_of_many_reads_of_one_connection_two_are_accepted(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings) as agent, plugin(settings) as member:
        member.put(a="1")
        member.values()
        socket = member.client._socket
        with agent._reads._view._lock:  # no read ends
            first = member.client.post("keys", "orders", None, 10)

            def taken() -> bool:  # not the one before, whose answer has just been sent
                message = agent._reads._taken
                return message is not None and message.request.number == first

            eventually(taken, "the first one is taken up")
            for _ in range(9):
                member.client.post("keys", "orders", None, 10)
            refused = [parts(socket.recv())[0] for _ in range(8) if socket.poll(10_000)]
            assert [header[2] for header in refused] == ["not-ready"] * 8
            assert member.client.ask("beat")[0][0] == "beat"
        assert [parts(socket.recv())[0][0] for _ in range(2) if socket.poll(10_000)] == ["keys"] * 2
        assert member.values() == {"a": "1"}


@thorough
def test_unread_answers_take_bounded_memory(tmp_path: Path) -> None:
    """A peer that does not read its answers is disconnected when another one needs the room."""
    settings = config(tmp_path, max_value_bytes=16 * MB)
    with agent_process(settings, tmp_path) as agent, plugin(settings) as member:
        member.put(**{f"k{number}": "v" * (7 * MB) for number in range(2)})
        assert len(member.values()) == 2
        before = most = agent.memory
        about = member.about(purpose="read", plugin_uuid="lazy")
        with ExitStack() as stack:
            for _ in range(18):  # 252 MB, more than is allowed below; each four make room in 5 s
                peer = RawPeer(settings.endpoint)
                stack.callback(peer.close)
                peer.send("hello", 1, about)
                peer.await_answer(b"welcome")
                peer.send(
                    "load",
                    2,
                    "orders",
                    2,
                    payload=b"".join(msgpack.packb(key) for key in (b"k0", b"k1")),
                )

            def makes_room() -> bool:
                nonlocal most
                most = max(most, agent.memory)
                return "does not read its answer" in agent.output

            eventually(makes_room, "the oldest of them is disconnected")
            with plugin(settings, uuid="reader", timeout_ms=60_000) as reader:
                assert len(reader.values()) == 2, "the oldest of the others makes room"
            most = max(most, agent.memory)
        assert most - before < UNSENT_BYTES + 8 * 16 * MB
        assert "does not read its answer" in agent.output


@thorough
def test_a_refusal_does_not_quote_a_large_field(tmp_path: Path) -> None:
    """msgspec's error for a wrong `purpose` has the whole field, four characters for each byte."""
    settings = config(tmp_path)
    with (
        agent_process(settings, tmp_path) as agent,
        plugin(settings) as member,
        ExitStack() as ends,
    ):
        about = {"cluster_id": UUID, "plugin_uuid": UUID, "purpose": "\0" * 4_000_000}
        header, _ = member.client.ask("hello", about)
        assert "Invalid enum value" in header[3] and "$[2].purpose" in header[3]
        assert len(header[3]) < 2000
        before = agent.memory
        peer = RawPeer(settings.endpoint)
        ends.callback(peer.close)
        for number in range(20):
            peer.send("hello", number, about)
        peer.await_answer(b"bad-request")
        assert agent.memory - before < 128 * MB


@every(11)
@pytest.mark.parametrize("kind", ["append", "metadata"])
@pytest.mark.parametrize("inner", [b"\x80", b"\x91\x80", b"\xd6\xff\0\0\0\0"], ids=repr)
def test_a_value_of_another_shape_is_not_built(tmp_path: Path, kind: str, inner: bytes) -> None:
    """A payload of 16 MB, of empty maps for example, which take 64 bytes each in memory."""
    settings = config(tmp_path)
    count = 16 * MB // len(inner)
    bomb = b"\xdd" + count.to_bytes(4, "big") + inner * count
    with agent_process(settings, tmp_path) as agent, plugin(settings) as member:
        before = agent.memory_peak
        fields = list(map(msgpack.packb, entry("a", "1", member.order(1))))
        fields[3] = bomb
        payload = b"\x9a" + b"".join(fields)
        if kind == "metadata":
            payload = b"\x93" + msgpack.packb("schema") + b"\x01" + bomb
        numbers = (1, 1) if kind == "append" else (1,)
        header, _ = member.client.ask(kind, member.session, *numbers, payload=payload)
        assert header[2] == "bad-request"
        assert agent.memory_peak - before < 128 * MB


def test_unread_answers_about_maps_take_bounded_memory(tmp_path: Path) -> None:
    settings = config(tmp_path)
    names = [f"{number}{'x' * 1100}" for number in range(3600)]
    with (
        agent_process(settings, tmp_path) as agent,
        plugin(settings) as member,
        ExitStack() as ends,
    ):
        member.client.ask("maps", names)
        before = agent.memory
        peer = RawPeer(settings.endpoint)
        ends.callback(peer.close)
        peer.send("hello", 0, member.about(purpose="read", plugin_uuid="lazy"))
        peer.await_answer(b"welcome")
        for number in range(40):
            peer.send("maps", number, names)
            member.client.ask("maps", ["orders"])
        assert agent.memory - before < 128 * MB


# ---- what is stored ------------------------------------------------------------------------------


UUID = "221ef35a-e32a-46f9-903d-be16e646f5a3"


@every(4)
@pytest.mark.parametrize("field", ["cluster_id", "plugin_uuid", "member_uuid"])
@pytest.mark.parametrize(
    "value",
    [
        "x" * 20_000_000,
        "x" * 255,
        UUID.upper(),
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        f"{UUID}\n",
        f"{UUID}\0",
        f" {UUID}",
        "٣" + UUID[1:],
        7,
    ],
    ids=lambda value: repr(value)[:50],
)
def test_an_id_must_be_a_uuid(tmp_path: Path, field: str, value: Any) -> None:
    """Other ids are refused, and nothing of them is stored."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings, greet=False) as member:
        about = {
            "protocol": 1,
            "cluster_id": UUID,
            "member_uuid": UUID,
            "plugin_uuid": UUID,
            "purpose": "write",
        }
        member.client._socket.send_multipart(
            [msgpack.packb(["hello", 1, {**about, field: value}]), b""]
        )
        header = parts(member.client._socket.recv())[0]
        assert header[2] == "bad-request" and len(header[3]) < 500
        assert field in header[3] or "the header has" in header[3]
    assert (
        not claim_manifests(
            Context(open_store(settings.url), clock=FakeClock(), randomness=SeededRandomness(1)),
            "default/c",
        )
        .read()[1]
        .claims
    )


def test_a_view_with_too_many_members_is_refused(tmp_path: Path) -> None:
    """The limit is above the size of any cluster."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        members = [member.member, *(f"{number:08x}{UUID[8:]}" for number in range(1000))]
        header, _ = member.client.ask(
            "view",
            {
                "cluster_id": member.cluster_id,
                "member_uuid": member.member,
                "members": members,
                "lost": [],
            },
        )
        assert header[2] == "bad-request" and "members" in header[3]


def test_a_value_limit_above_the_answer_size_is_refused(tmp_path: Path) -> None:
    """An answer could not contain such a value, so the configuration refuses the limit."""
    with pytest.raises(InvalidSetting, match="max_value_bytes"):
        AgentConfig(url=f"file://{tmp_path}", log=Settings(max_value_bytes=2**30))
