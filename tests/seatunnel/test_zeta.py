"""Real servers of SeaTunnel's engine (Zeta), their maps in the log of an agent: a job runs again
after kill -9 of server and agent, and what happens when one of them, or the disk, is gone.

`tests/seatunnel/test_map_store.py` tests the same map stores without SeaTunnel's engine.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Agent, Child
from tests.cluster.waiting import until
from tests.kit.disks import needed_disk
from tests.kit.effort import thorough
from tests.kit.ports import free_ports
from tests.seatunnel.zeta import FACTORY, SEATUNNEL_FACTORY, Client, Home, Zeta

pytestmark = pytest.mark.timeout(600)

STREAM = """
env { job.mode = "STREAMING", checkpoint.interval = 1000, parallelism = 1 }
source { FakeSource { row.num = 1000000, split.num = 1000, split.read-interval = 300,
  result_table_name = "fake", schema = { fields { name = "string", age = "int" } } } }
sink { Console { log.print.data = false } }
"""
BATCH = """
env { job.mode = "BATCH", parallelism = 1 }
source { FakeSource { row.num = 1, result_table_name = "fake",
  schema = { fields { name = "string" } } } }
sink { Console { log.print.data = false } }
"""
COMPLETED = "notify checkpoint completed"
RESTORED = "begin restore"
OUTAGE_S = 8
"""How long an agent is gone: no condition ends it earlier."""
JOBS = 200


class World:
    """Agents with one log, servers of one cluster, a client. All end with the test."""

    def __init__(
        self, folder: Path, servers: int, log: Path, factory: str, **settings: Any
    ) -> None:
        ports = free_ports(2 * servers)
        self.url = log.as_uri()
        self.agents = [
            Agent(
                folder,
                f"node-{number}",
                self.url,
                cluster="seatunnel",
                endpoint=f"tcp://127.0.0.1:{ports[servers + number]}",
                **settings,
            )
            for number in range(servers)
        ]
        own = {"type": "imap-wal"} if factory == SEATUNNEL_FACTORY else {}
        stores = [{"factory": factory, "agent": agent.endpoint, **own} for agent in self.agents]
        self.home = Home(folder / "home", ports[:servers])
        self.servers = [Zeta(self.home, number, store) for number, store in enumerate(stores)]
        self.client = Client(self.home)
        self.stream, self.batch = folder / "stream.conf", folder / "batch.conf"
        self.stream.write_text(STREAM)
        self.batch.write_text(BATCH)

    def start(self) -> None:
        for agent in self.agents:
            agent.start()
        for server in self.servers:
            server.launch()
        self.client.start()

    def close(self) -> None:
        children: list[Child] = [self.client, *self.servers, *self.agents]
        for child in children:
            child.kill()

    def wait_for(self, job: int, state: str, seconds: float = 90) -> None:
        until(
            f"job {job} is {state}; {self.servers[0].last_words()}",
            lambda: self.client.status(job) == state,
            seconds,
            0.3,
        )

    def checkpoints(self) -> int:
        """How many were completed since the servers were started. Only the master says so."""
        return sum(server.said().count(COMPLETED) for server in self.servers)

    def wait_for_checkpoints(self, more: int = 2) -> None:
        count = self.checkpoints() + more
        until(
            f"{count} checkpoints; {self.servers[0].last_words()}",
            lambda: self.checkpoints() >= count,
            90,
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(
        servers: int = 1, log: Path | None = None, factory: str = FACTORY, **settings: Any
    ) -> World:
        worlds.append(World(tmp_path, servers, log or tmp_path / "log", factory, **settings))
        return worlds[-1]

    yield make
    for one in worlds:
        one.close()


@thorough
def test_a_finished_job_is_remembered_after_a_kill(world: Callable[..., World]) -> None:
    zeta = world()
    zeta.start()
    (server,), (agent,) = zeta.servers, zeta.agents
    job = zeta.client.submit(zeta.batch)
    zeta.wait_for(job, "FINISHED")
    server.kill()
    agent.kill()
    agent.start()
    server.launch()
    zeta.wait_for(job, "FINISHED")


@thorough
@pytest.mark.parametrize("factory", [FACTORY, SEATUNNEL_FACTORY], ids=["factory", "type"])
def test_a_job_continues_after_server_and_agent_were_killed(
    world: Callable[..., World], factory: str
) -> None:
    zeta = world(factory=factory)
    zeta.start()
    (server,), (agent,) = zeta.servers, zeta.agents
    job = zeta.client.submit(zeta.stream)
    zeta.wait_for(job, "RUNNING")
    zeta.wait_for_checkpoints()
    server.kill()
    agent.kill()
    agent.start()
    server.launch()
    zeta.wait_for(job, "RUNNING")
    assert RESTORED in server.said()
    zeta.wait_for_checkpoints()
    zeta.client.ask(f"cancel {job}")
    zeta.wait_for(job, "CANCELED")


@thorough
def test_a_job_continues_after_one_of_two_servers_was_killed(world: Callable[..., World]) -> None:
    zeta = world(servers=2)
    zeta.start()
    for server in zeta.servers:
        server.wait_for("Members {size:2")
    job = zeta.client.submit(zeta.stream)
    zeta.wait_for(job, "RUNNING")
    zeta.wait_for_checkpoints()
    zeta.servers[1].kill()
    until("it is noticed", lambda: "Members {size:1" in zeta.servers[0].said(), 30)
    zeta.wait_for_checkpoints()
    zeta.wait_for(job, "RUNNING")


@thorough
def test_a_job_continues_after_its_agent_was_gone(world: Callable[..., World]) -> None:
    """The refused change fails the pipeline, and the engine restores it."""
    zeta = world()
    zeta.start()
    (server,), (agent,) = zeta.servers, zeta.agents
    job = zeta.client.submit(zeta.stream)
    zeta.wait_for(job, "RUNNING")
    zeta.wait_for_checkpoints()
    agent.kill()
    until("a change is refused", lambda: "imap-wal: agent tcp://" in server.said(), 20)
    time.sleep(OUTAGE_S)
    agent.start()
    zeta.wait_for(job, "RUNNING")
    zeta.wait_for_checkpoints()


@thorough
def test_a_full_disk_refuses_a_job_and_loses_none(
    world: Callable[..., World], tmp_path: Path
) -> None:
    with needed_disk(tmp_path / "disk", 2) as disk:
        zeta = world(log=disk / "log", preallocate=False, segment_bytes=1 << 16)
        zeta.start()
        (server,), (agent,) = zeta.servers, zeta.agents
        job = zeta.client.submit(zeta.stream)
        zeta.wait_for(job, "RUNNING")
        zeta.wait_for_checkpoints()
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=4k"], check=False, stderr=-3
        )
        until("a change is refused", lambda: "imap-wal: agent tcp://" in server.said(), 60)
        (disk / "filler").unlink()
        zeta.wait_for(job, "RUNNING")
        zeta.wait_for_checkpoints()
        server.kill()
        agent.kill()
        agent.start()
        server.launch()
        zeta.wait_for(job, "RUNNING")
        zeta.client.kill()
        server.kill()
        agent.kill()


@thorough
def test_compaction_bounds_the_log_of_finished_jobs(
    world: Callable[..., World], tmp_path: Path
) -> None:
    """The agent compacts when the log has grown by its own size. A later start has the history."""
    zeta = world(preallocate=False, segment_bytes=1 << 16, auto_rewrite_min_bytes=1 << 16)
    zeta.start()
    (server,), (agent,) = zeta.servers, zeta.agents
    largest, jobs = 0, list[int]()
    for _ in range(JOBS // 10):
        jobs += [zeta.client.submit(zeta.batch) for _ in range(10)]
        for job in jobs[-10:]:
            zeta.wait_for(job, "FINISHED")
        largest = max(largest, _bytes(tmp_path / "log"))
    stat = agent.stat(5000)
    assert stat is not None
    assert largest < stat["commit"]["bytes"] / 2
    server.kill()
    agent.kill()
    agent.start()
    server.launch()
    for job in (jobs[0], jobs[-1]):
        zeta.wait_for(job, "FINISHED")


def _bytes(folder: Path) -> int:
    """Without the space that the agent reserves."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".#reserve")
    return sum(path.stat().st_size for path in files)
