"""The metrics and the health of real agents, while they work, fail and are attacked."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.monitoring import health
from imap_wal.agent.monitoring.listener import CONNECTIONS_MAX
from imap_wal.agent.server import Agent
from imap_wal.placement import Placed
from rewrite_cli.console.check import WARNING
from rewrite_cli.doctor.agent import agent_checks
from storage_backends import NoSpace
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.agent.harness import Plugin, config, plugin, serving
from tests.hostile.peers import agent_process
from tests.kit.disks import needed_disk
from tests.kit.gate import Gate
from tests.monitoring.http import ask, get
from tests.support import eventually

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: here\r\n"


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return with_http(config(tmp_path))


def with_http(settings: AgentConfig) -> AgentConfig:
    return replace(settings, http_address="127.0.0.1:0")


def port_of(member: Plugin) -> int:
    """Where the agent answers for its metrics."""

    def known() -> int:
        return int(member.stat()["http_address"].rpartition(":")[2] or 0)

    return int(eventually(known, "the agent listens"))


def metrics(port: int) -> dict[str, float]:
    reply = get(port, "/metrics")
    assert reply.status == 200
    lines = [line.rpartition(" ") for line in reply.body.decode().splitlines()]
    return {name: float(value) for name, _, value in lines if not name.startswith("#")}


def test_metrics_follow_the_appends_of_a_member(settings: AgentConfig, tmp_path: Path) -> None:
    with agent_process(settings, tmp_path), plugin(settings) as member:
        port = port_of(member)
        for number in range(1, 31):
            assert member.put(**{f"k{number}": "v"})[0] == "ack"
            before = metrics(port)
            assert before["imap_wal_appends_total"] <= number
        found = eventually(
            lambda: now if (now := metrics(port))["imap_wal_appends_total"] == 30 else None,
            "all appends are counted",
        )
        syncs = found["imap_wal_sync_seconds_count"]
        assert syncs >= 30
        assert found['imap_wal_sync_seconds_bucket{le="+Inf"}'] == syncs
        assert found["imap_wal_ready"] == found["imap_wal_live"] == 1
        assert found["imap_wal_incarnation"] == 1
        assert found["process_open_fds"] > 0
        assert (get(port, "/livez").body, get(port, "/readyz").body) == (b"ok\n", b"ok\n")
        checks = {each.name: each for each in agent_checks(settings.endpoint)}
        assert f"http://127.0.0.1:{port}/metrics" in checks["agent's metrics"].what


def test_an_agent_is_unready_only_while_its_log_fails(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alive all the time: a restart would not help."""
    faulty = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(faulty, place))
    monkeypatch.setattr("imap_wal.agent.mender.REOPEN_S", 0.01)
    settings = with_http(config(tmp_path, url=memory.url))
    with serving(settings), plugin(settings) as member:
        port = port_of(member)
        assert get(port, "/readyz").status == 200
        broken = Plan((Fault("error", kind="*", path="*", error=NoSpace, times=10**6),))
        faulty._seen, faulty.plan = [0], broken
        assert member.put(a="1")[0] == "error"
        reply = get(port, "/readyz")
        assert (reply.status, get(port, "/livez").status) == (503, 200)
        assert b"planned" not in reply.body, "no text of an error"
        eventually(lambda: metrics(port)["imap_wal_log_failed"] == 1, "the metric shows it")
        faulty.plan = Plan(())
        eventually(lambda: get(port, "/readyz").status == 200, "the log is open again")
        eventually(lambda: metrics(port)["imap_wal_epoch"] == 2, "with the next epoch")


def test_health_is_answered_while_the_loop_waits_for_the_storage(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(gate, place))
    monkeypatch.setattr(health, "STUCK_S", 1.0)
    settings = with_http(config(tmp_path, url=memory.url))
    with serving(settings), plugin(settings) as member:
        port = port_of(member)
        gate.open.clear()
        gate.waiting.clear()
        number = member.client.post(
            "append", member.session, 1, 1, payload=member.payload(1, {"a": "1"})
        )
        try:
            assert gate.waiting.wait(30)
            eventually(lambda: get(port, "/readyz").status == 503, "the loop does not continue")
            assert get(port, "/livez").status == 200
            assert metrics(port)["imap_wal_turn_seconds"] > 0
        finally:
            gate.open.set()
        assert member.client.answer(number)[0][0] == "ack"
        # The answer is sent in the turn that waited; the next turn is a new one.
        eventually(lambda: get(port, "/readyz").status == 200, "the loop continues")


def test_slow_peers_keep_no_member_and_no_scraper_out(
    settings: AgentConfig, tmp_path: Path
) -> None:
    """200 connections are open and silent, or have sent a part of a request."""
    with agent_process(settings, tmp_path) as agent, plugin(settings) as member, ExitStack() as all:
        port, files = port_of(member), agent.open_files
        for number in range(200):
            peer = all.enter_context(closing(socket.socket()))
            peer.setblocking(False)
            with suppress(BlockingIOError):
                peer.connect(("127.0.0.1", port))
            with suppress(OSError):
                peer.send(REQUEST if number % 2 else b"")
        for number in range(50):
            assert member.put(**{f"k{number}": "v"})[0] == "ack"
            assert agent.open_files <= files + CONNECTIONS_MAX + 4
        assert get(port, "/metrics").status == 200
        assert member.put(last="v")[0] == "ack"


def test_a_request_line_of_ten_megabytes_is_refused(settings: AgentConfig, tmp_path: Path) -> None:
    with agent_process(settings, tmp_path) as agent, plugin(settings) as member:
        port = port_of(member)
        assert get(port, "/metrics").status == 200
        before = agent.memory
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            ask(port, b"GET /" + b"a" * 10_000_000 + b" HTTP/1.1\r\n\r\n")
        assert get(port, "/metrics").status == 200
        assert agent.memory - before < 5_000_000
        assert member.put(a="1")[0] == "ack"


def test_an_agent_works_while_its_http_address_is_taken(settings: AgentConfig) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        settings = replace(settings, http_address=f"127.0.0.1:{taken.getsockname()[1]}")
        with serving(settings), plugin(settings) as member:
            assert member.put(a="1")[0] == "ack"
            eventually(lambda: member.stat()["threads"]["imap-wal-http"]["error"], "it is shown")
            assert member.stat()["healthy"]
            checks = {each.name: each for each in agent_checks(settings.endpoint)}
            assert checks["agent's metrics"].status == WARNING
            taken.close()
            assert get(port_of(member), "/readyz").status == 200


def test_an_agent_holds_a_reserve_of_its_disk(settings: AgentConfig) -> None:
    with (
        serving(replace(settings, reserve_bytes=1 << 20)),
        plugin(settings) as member,
    ):
        found = metrics(port_of(member))
        assert found['imap_wal_reserve_held_bytes{folder="root"}'] == 1 << 20
        assert found['imap_wal_reserve_given_up{folder="root"}'] == 0
        assert found['imap_wal_disk_size_bytes{folder="root"}'] > 1 << 20
    with serving(settings), plugin(settings) as member:
        assert metrics(port_of(member))['imap_wal_reserve_held_bytes{folder="root"}'] == 0


def test_an_agent_opens_no_log_in_the_reserve(tmp_path: Path) -> None:
    with needed_disk(tmp_path / "disk", 16) as disk:
        settings = replace(config(tmp_path, url=f"file://{disk}/log"), reserve_bytes=2 << 20)
        with serving(settings), plugin(settings) as member:
            assert member.put(a="1")[0] == "ack"
        reserve = LocalStore(str(disk / "log")).reserve
        assert reserve.give_up()
        now = reserve.state()
        assert now is not None
        with (disk / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, now.free - (1 << 20))
        files = sorted(disk.rglob("*"))
        with pytest.raises(NoSpace, match="are for rewrite and prune"):
            Agent(settings)
        assert sorted(disk.rglob("*")) == files, "nothing was written"
        (disk / "filler").unlink()
        with serving(settings), plugin(settings) as member:
            assert member.put(b="2")[0] == "ack"
        assert reserve.floor() == 0, "the open has taken it again"


def test_an_agent_without_an_http_address_listens_nowhere(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        stat = member.stat()
        assert stat["http_address"] == ""
        assert "imap-wal-http" not in stat["threads"]
