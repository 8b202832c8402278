"""`node start`: real members, each with its agent, as children of this process in its process
group.

    this process ─┬─ agent 1 ◀─ ipc ─ member 1 ─┐
                  ├─ agent 2 ◀─ ipc ─ member 2 ─┴─ TCP-IP join on 127.0.0.1
                  └─ …

A signal to the group ends all; a child dies with its parent (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imap_wal.agent.access.keys import KeyPair
from imap_wal.clock import Clock
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from rewrite_cli.local_cluster import hazelcast_yaml, jars

STARTER = "com.hazelcast.core.server.HazelcastMemberStarter"
# As in Hazelcast's own start script for Java 17.
JVM_FLAGS = (
    "--add-modules", "java.se",
    "--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens", "java.base/java.lang=ALL-UNNAMED",
    "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens", "java.management/sun.management=ALL-UNNAMED",
    "--add-opens", "jdk.management/com.sun.management.internal=ALL-UNNAMED",
)  # fmt: skip
PR_SET_PDEATHSIG = 1
STOP_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What to start. `settings` are for every agent's [log], `properties` for the map store,
    `clock_offsets_ms` for the agents in turn."""

    url: str
    members: int = 1
    port: int = 5701
    namespace: str = "default"
    cluster: str = "dev"
    node_prefix: str = "node"
    cluster_name: str = "dev"
    settings: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    clock_offsets_ms: tuple[int, ...] = ()
    java_options: tuple[str, ...] = ("-Xmx512m",)
    takeover: bool = False
    hazelcast_jar: Path | None = None
    credentials: Path | None = None

    @property
    def ports(self) -> list[int]:
        return [self.port + number for number in range(self.members)]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]


@dataclass(slots=True)
class Child:
    """A child process; its output is written to `log`."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def ended(self) -> int | None:
        return self.process.poll() if self.process else None

    def last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-600:]


_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Between fork and exec: ask for SIGKILL when the parent process ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """The running children. `start` returns when all members have joined and all agents are
    healthy."""

    def __init__(self, plan: ClusterPlan, clock: Clock) -> None:
        self.plan, self._clock = plan, clock
        # The prefix is short, because a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="imap-wal-"))
        self.endpoints = [
            f"ipc://{self.folder}/agent-{number}.sock" for number in range(1, plan.members + 1)
        ]
        self.agents: list[Child] = []
        self.members: list[Child] = []

    def start(self, timeout_s: float) -> None:
        """Start all. `Failed`, with the last output of the child that ended, if that fails."""
        plan = self.plan
        # A copy: otherwise a build in the source tree would change the jar under running members.
        plugin = shutil.copy(jars.plugin_jar(), self.folder)
        classpath = f"{jars.hazelcast_jar(plan.hazelcast_jar)}{os.pathsep}{plugin}"
        java = jars.java()
        for number, (port, endpoint) in enumerate(zip(plan.ports, self.endpoints, strict=True), 1):
            toml, yaml = self.folder / f"agent-{number}.toml", self.folder / f"member-{number}.yaml"
            toml.write_text(self._agent_toml(number, endpoint), encoding="utf-8")
            yaml.write_text(
                hazelcast_yaml.to_run(
                    plan.cluster_name, port, plan.ports, endpoint, plan.properties
                ),
                encoding="utf-8",
            )
            agent = [sys.executable, "-m", "rewrite_cli.cli", "agent", "--config", str(toml)] + [
                "--takeover"
            ] * plan.takeover
            self.agents.append(Child(f"agent {number}", agent, self.folder / f"agent-{number}.log"))
            member = [
                java,
                *JVM_FLAGS,
                *plan.java_options,
                f"-Dhazelcast.config={yaml}",
                "-cp",
                classpath,
                STARTER,
            ]
            self.members.append(
                Child(f"member {number}", member, self.folder / f"member-{number}.log")
            )
        for child in (*self.agents, *self.members):
            child.start()
        deadline = self._clock.monotonic() + timeout_s
        self._wait_for_agents(deadline)
        self._wait_for_members(deadline)

    def _agent_toml(self, number: int, endpoint: str) -> str:
        plan = self.plan
        offset = plan.clock_offsets_ms[number - 1] if number <= len(plan.clock_offsets_ms) else 0
        top = {
            "url": plan.url,
            "namespace": plan.namespace,
            "cluster": plan.cluster,
            "node": f"{plan.node_prefix}-{number}",
            "endpoint": endpoint,
            # Do not wait for nodes of an earlier run with more members.
            "start_policy": "partial",
            "clock_offset_ms": offset,
            **({"credentials": plan.credentials.absolute()} if plan.credentials else {}),
        }
        return (
            "".join(f"{key} = {_toml(value)}\n" for key, value in top.items())
            + "[log]\n"
            + "".join(f"{key} = {_toml(value)}\n" for key, value in plan.settings.items())
        )

    def _check(self, deadline: float, waiting_for: str) -> None:
        for child in (*self.agents, *self.members):
            code = child.ended()
            if code is not None:
                raise Failed(
                    f"{child.name} ended with {_how(code)} before the cluster was ready: "
                    f"{child.last_words()}"
                )
        if self._clock.monotonic() > deadline:
            raise Failed(
                f"the cluster was not ready in time: {waiting_for}; the logs are in {self.folder}"
            )

    def _wait_for_agents(self, deadline: float) -> None:
        for agent, endpoint in zip(self.agents, self.endpoints, strict=True):
            while True:
                self._check(deadline, f"{agent.name} does not answer")
                health = ask_stat(endpoint, 300)
                if health is not None and health.get("healthy"):
                    break

    def _wait_for_members(self, deadline: float) -> None:
        from rewrite_cli.local_cluster.clients import connect

        for address in self.plan.addresses:
            client = None
            try:
                while True:
                    self._check(deadline, f"the member at {address} has not joined the others")
                    try:
                        client = client or connect([address], self.plan.cluster_name, 1)
                    except Exception:  # noqa: BLE001, S112  # the client has many errors for this
                        continue
                    if len(client.cluster_service.get_members()) == self.plan.members:
                        break
                    _pause(0.1)
            finally:
                if client is not None:
                    client.shutdown()

    def watch(self) -> None:
        """Restart each agent that ends, like a service manager. Raises `Failed` when all members
        have ended."""
        reported: set[int] = set()
        while any(member.ended() is None for member in self.members):
            for member in self.members:
                code = member.ended()
                if code is not None and member.pid not in reported:
                    reported.add(member.pid)
                    out.echo(
                        f"{member.name} (process {member.pid}) ended with {_how(code)}", err=True
                    )
            for agent in self.agents:
                code = agent.ended()
                if code is not None:
                    out.echo(
                        f"{agent.name} (process {agent.pid}) ended with {_how(code)}; "
                        "starting it again",
                        err=True,
                    )
                    _pause(0.5)
                    agent.start()
            _pause(0.2)
        raise Failed(f"all members ended; output of the last: {self.members[-1].last_words()}")

    def stop(self) -> None:
        """Ends members first, then agents: the members' last changes are logged, and every log ends
        with a clean shutdown."""
        for children in (self.members, self.agents):
            running = [
                child.process
                for child in children
                if child.process is not None and child.process.poll() is None
            ]
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def ask_stat(
    endpoint: str, timeout_ms: int = 2000, key: KeyPair | None = None, agent_key: str = ""
) -> dict[str, Any] | None:
    """An agent's statistics; None if it does not answer. The errors of `AgentClient.answer`. `key`,
    `agent_key`: as for `AgentClient`. Raises `NoAgent` if the answer is not an agent's."""
    from imap_wal.agent.transport.client import AgentClient, NoAgent

    client = AgentClient(endpoint, timeout_ms, key, agent_key)
    try:
        header, _ = client.ask("stat")
        if header[0] != "stat":
            return None
        if len(header) < 3 or type(header[2]) is not dict:
            raise NoAgent(f"what listens at {endpoint} is no agent: its statistics are not a map")
        return header[2]
    except TimeoutError:
        return None
    finally:
        client.close()


def _pause(seconds: float) -> None:
    signal.sigtimedwait([], seconds)  # a sleep that signal handlers interrupt


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            import json

            return json.dumps(str(value), ensure_ascii=False)
