"""Real members and real agents, each in its own process, which ends with the test.

Agent     `imap-wal agent` beside a member: start, kill, freeze, statistics
Member    a JVM with TestMember.java: start, kill, leave, questions on its standard input
Cluster   members with an agent each over one directory of logs, started and killed together
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import hazelcast

from rewrite_cli.local_cluster import jars
from rewrite_cli.local_cluster.launcher import JVM_FLAGS, ask_stat
from tests.cluster.network import Network, host

ROOT = Path(__file__).parents[2]
JAVA = Path(__file__).parent / "java"
FACTORY = "io.imapwal.hazelcast.WalMapStoreFactory"
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData")
TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")
"""Warnings of the JVM; standard output is for answers."""
# Partition tables are exchanged and clusters formed by timers made for data centres; these are made
# for one machine.
QUICK_MEMBER = {
    "hazelcast.phone.home.enabled": "false",
    "hazelcast.socket.bind.any": "false",
    "hazelcast.logging.type": "jdk",
    "hazelcast.wait.seconds.before.join": "0",
    "hazelcast.max.wait.seconds.before.join": "1",
    "hazelcast.operation.thread.count": "16",
    "hazelcast.shutdownhook.enabled": "false",
}
PR_SET_PDEATHSIG = 1
CLIENTS = 300
"""That a cluster keeps open. About 900 filled the heap of a member, which has 256 MiB."""
LIFETIME_TIMEOUT_S = 6
"""The agents' default: how long a new cluster waits for signs of life of the former one."""

T = TypeVar("T")
_libc = ctypes.CDLL(None)

logging.getLogger("hazelcast").setLevel(logging.CRITICAL)


class Ended(Exception):
    """A process that should run has ended, so waiting is useless."""


def until(what: str, condition: Callable[[], T], seconds: float = 60, pause: float = 0.02) -> T:
    """The first truthy answer of the condition; an error that it raised last is part of the
    failure."""
    deadline = time.monotonic() + seconds
    last: BaseException | None = None
    while True:
        try:
            answer = condition()
        except Ended:
            raise
        except Exception as error:
            last = error
        else:
            if answer:
                return answer
            last = None
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}") from last
        time.sleep(pause)


def free_ports(count: int) -> list[int]:
    """Below the range that the kernel uses for outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def connect(
    members: Sequence[int | str], cluster_name: str, **more: Any
) -> hazelcast.HazelcastClient:
    """A client of members at these ports, or addresses. It gives up early: its own retries would
    hide what the cluster says."""
    options: dict[str, Any] = {
        "cluster_connect_timeout": 20,
        "invocation_timeout": 30,
        "statistics_enabled": False,
        **more,
    }
    addresses = [each if isinstance(each, str) else f"127.0.0.1:{each}" for each in members]
    return hazelcast.HazelcastClient(
        cluster_name=cluster_name, cluster_members=addresses, **options
    )


class Child:
    """A process, its log, and the signals it is sent."""

    group: Path | None = None
    """The control group of its process; None: that of this process."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self.process: subprocess.Popen[str] | None = None

    def spawn(self, command: Sequence[str], *, talks: bool = False) -> subprocess.Popen[str]:
        """With `talks`, input and output are pipes, a line at a time. Otherwise the process gets no
        input, and its output is written to the log."""
        assert not self.running, f"{self.name} runs already"
        pipe = subprocess.PIPE if talks else None
        with self.log.open("ab") as log:
            # The death signal is the forking thread's: children are started by the thread that runs
            # the tests.
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                text=True,
                bufsize=1,
                preexec_fn=_die_with_parent,
            )
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(self.process.pid))
        return self.process

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL; the process has ended when this returns."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self._reap(30)

    def stop(self, seconds: float = 30) -> int:
        """Send SIGTERM; return the exit code."""
        self.send(signal.SIGTERM)
        return self._reap(seconds)

    def _reap(self, seconds: float) -> int:
        if self.process is None:
            return 0
        code = self.process.wait(seconds)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return code

    def check(self) -> None:
        if not self.running:
            raise Ended(f"{self.name} ended: {self.last_words()}")

    def last_words(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Agent(Child):
    """`imap-wal agent` of one node. `settings` are those of its [log] section; `module` replaces
    the command, for agents that misbehave, and `program` is an older release of it. `defect`: see
    `tests.nemesis.defects`. `own_disk`: its segments are in a folder of its own, which no other
    agent is given. With `lifetime_timeout_s` 0 a cluster that is started does not wait for the one
    before it, nor for other nodes."""

    def __init__(
        self,
        folder: Path,
        node: str,
        url: str,
        *,
        cluster: str = "dev",
        clock_offset_ms: int = 0,
        endpoint: str = "",
        lifetime_timeout_s: float = 0,
        restore_at_start: bool = True,
        own_disk: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(f"agent {node}", folder / f"{node}.log")
        self.program: Path | None = None
        self.defect = ""
        self.node, self.url, self.cluster = node, url, cluster
        self.endpoint = endpoint or f"ipc://{folder}/{node}.sock"
        self.config = folder / f"{node}.toml"
        top = {
            "url": url,
            "cluster": cluster,
            "node": node,
            "endpoint": self.endpoint,
            "clock_offset_ms": clock_offset_ms,
            "lifetime_timeout_s": lifetime_timeout_s,
            "restore_at_start": restore_at_start,
            "start_policy": "wait-all" if lifetime_timeout_s else "partial",
        }
        if own_disk:
            top |= {
                "wal_dir": (folder / f"disk-{node}").as_uri(),
                "wal_dir_is_local": True,
                "tail_endpoint": f"tcp://127.0.0.1:{free_ports(1)[0]}",
                "tail_timeout_s": 2,
                "upload_interval_s": 1000,
            }
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        self.config.write_text(
            "\n".join(
                [
                    *lines,
                    "[log]",
                    *(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
                    "",
                ]
            )
        )

    def configure(self, **given: Any) -> None:
        """Other values of settings that the file has, from the next launch on."""
        text = self.config.read_text()
        for key, value in given.items():
            text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {json.dumps(value)}", text)
        self.config.write_text(text)

    def launch(self, module: str = "") -> None:
        what = ["-m", module] if module else ["-m", "rewrite_cli.cli", "agent", "--config"]
        if self.program is not None:
            what = [str(self.program), "agent", "--config"]
        if self.defect:
            what = ["-m", "tests.nemesis.defects", self.defect]
        self.spawn([sys.executable, *what, str(self.config)])

    def start(self, module: str = "") -> None:
        self.launch(module)
        self.wait()

    def wait(self, seconds: float = 60) -> None:
        """Wait until it reports that it is healthy."""
        until(
            f"{self.name} is healthy",
            lambda: self.check() or (self.stat() or {}).get("healthy"),
            seconds,
        )

    def stat(self, timeout_ms: int = 1000) -> dict[str, Any] | None:
        return ask_stat(self.endpoint, timeout_ms)

    def reads(self) -> int:
        stat = self.stat(5000)
        assert stat is not None
        return int(stat["reads"])

    def bytes_read(self) -> int:
        """What the process has read from files since it began."""
        fields = dict(
            line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines()
        )
        return int(fields["rchar"])


class Member(Child):
    """A member in its own JVM."""

    def __init__(
        self,
        folder: Path,
        name: str,
        port: int,
        config: Mapping[str, Any],
        classpath: str,
        options: Sequence[str],
    ) -> None:
        super().__init__(name, folder / f"{name}.log")
        self.port, self.node = port, 0  # its number in the network
        self.address = self.announced = f"127.0.0.1:{port}"
        yaml = folder / f"{name}.yaml"
        yaml.write_text(json.dumps(config))  # JSON is YAML
        archive = _archive(classpath)
        self._command = [
            jars.java(),
            *JVM_FLAGS,
            *QUICK_JVM,
            *TO_STDERR,
            *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []),
            *options,
            f"-Dhazelcast.config={yaml}",
            "-cp",
            classpath,
            "TestMember",
        ]
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asking = threading.Lock()

    def launch(self) -> None:
        process = self.spawn(self._command, talks=True)
        self._answers = answers = queue.SimpleQueue()

        def listen() -> None:
            assert process.stdout is not None
            with contextlib.suppress(ValueError, OSError):
                for line in process.stdout:
                    answers.put(line.rstrip("\n"))
            answers.put("! the member ended")

        threading.Thread(target=listen, daemon=True).start()

    def wait(self, seconds: float = 90) -> None:
        """Wait until it has joined or begun a cluster."""
        self._answer(seconds)

    def _answer(self, seconds: float) -> Any:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(
                f"{self.name} did not answer within {seconds} s: {self.last_words()}"
            ) from None
        if line.startswith("!"):
            raise MemberError(f"{self.name}: {line[1:].strip()}")
        return json.loads(line.removeprefix("= "))

    def ask(self, *question: str, seconds: float = 60) -> Any:
        """One line of TestMember.java's; its answer, `MemberError` if that is an exception."""
        with self._asking:
            assert self.process is not None
            assert self.process.stdin is not None
            self.process.stdin.write("\t".join(question) + "\n")
            self.process.stdin.flush()
            return self._answer(seconds)

    def leave(self, seconds: float = 60) -> None:
        """Shut down gracefully: partitions are migrated first."""
        self.ask("leave", seconds=seconds)
        self._reap(seconds)


class MemberError(Exception):
    """The exception that a member answered with."""


class Cluster:
    """Members with an agent each. Node i keeps its name, folder and clock over restarts; ports and
    the cluster id are new each time. `agents`: those of another cluster, which may run already.
    `network`: connections between members use its proxies; member number i of it is the one beside
    agent i. `properties`: Hazelcast's. The agents' `start_policy` is the default one, except where
    fewer nodes are started than were used before. Then it is `partial`, and agents that this
    cluster starts do not wait for a former cluster either."""

    def __init__(
        self,
        folder: Path,
        classpath: str,
        maps: Callable[[str], Mapping[str, Any]],
        *,
        offsets_ms: Sequence[int] = (0, 0, 0),
        options: Sequence[str] = ("-Xmx256m",),
        url: str = "",
        agents: Sequence[Agent] = (),
        network: Network | None = None,
        properties: Mapping[str, str] | None = None,
        lifetime_timeout_s: float = LIFETIME_TIMEOUT_S,
        own_disks: bool = False,
        **settings: Any,
    ) -> None:
        self._network, self._properties = network, {**QUICK_MEMBER, **(properties or {})}
        self.folder, self._maps, self._options = folder, maps, options
        self.classpath = classpath
        """Of the members that are started from now on."""
        self.url = url or (folder / "logs").as_uri()
        self.name = f"test-{random.randrange(10**9)}"
        self.agents = list(agents) or [
            Agent(
                folder,
                f"node-{number}",
                self.url,
                clock_offset_ms=offset,
                lifetime_timeout_s=lifetime_timeout_s,
                own_disk=own_disks,
                **settings,
            )
            for number, offset in enumerate(offsets_ms, 1)
        ]
        self._lifetime_timeout_s, self._own, self._used = (
            lifetime_timeout_s,
            not agents,
            set[Agent](),
        )
        self.members: list[Member] = []
        self.groups: Sequence[Path] = ()
        """Control groups: one for each member and the agent beside it."""
        self._lifetime = 0
        self._clients: list[hazelcast.HazelcastClient] = []

    def start(self, count: int, policy: str = "") -> None:
        """Start this many members, until joined. `policy`: the agents' `start_policy`."""
        self._lifetime += 1
        self.members = []
        waits = policy != "" or self._used <= set(self.agents[:count])
        self._used |= set(self.agents[:count])
        timeout_s = self._lifetime_timeout_s if waits or not self._own else 0
        for agent in self.agents:
            rule = policy or "wait-all" if waits and timeout_s else "partial"
            agent.configure(start_policy=rule, lifetime_timeout_s=timeout_s)
        for agent, group in zip(self.agents, self.groups, strict=False):
            agent.group = group
        for agent in self.agents[:count]:
            if not agent.running:
                agent.launch()
        self._new_member(0).launch()
        self.members[
            0
        ].wait()  # members that find no master at first wait for seconds until they elect one
        for number in range(1, count):
            self._new_member(number).launch()
        for agent in self.agents[:count]:
            agent.wait()
        for member in self.members[1:]:
            member.wait()
        until(
            f"{count} members are one cluster",
            lambda: all(member.ask("members") == count for member in self.members),
        )

    def _new_member(self, number: int) -> Member:
        (port,) = free_ports(1)
        name = f"{self.name}-member-{self._lifetime}-{len(self.members) + 1}"
        address = announced = f"127.0.0.1:{port}"
        if self._network is not None:
            address = f"{host(number + 1)}:{port}"
            announced = self._network.listen(number + 1, port)
        others = [member.announced for member in self.running] or [announced]
        config = member_config(
            self.name,
            port,
            others,
            self._maps(self.agents[number].endpoint),
            self._properties,
            announced,
        )
        member = Member(self.folder, name, port, config, self.classpath, self._options)
        member.node, member.address, member.announced = number + 1, address, announced
        member.group = self.groups[number] if self.groups else None
        self.members.append(member)
        return member

    def join(self, number: int) -> Member:
        """One more member, beside agent `number` (from 1), which is started if need be."""
        agent = self.agents[number - 1]
        self._used.add(agent)
        if not agent.running:
            agent.launch()
        before = len(self.running)
        member = self._new_member(number - 1)
        member.launch()
        agent.wait()
        member.wait()
        self.wait_safe(before + 1)
        return member

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.running]

    def wait_safe(self, count: int) -> None:
        """Wait until there are `count` members, and every partition has its owner and its
        backup."""

        def safe() -> bool:
            return all(
                member.ask("members") == count and member.ask("safe") for member in self.running
            )

        until(f"{count} members have all partitions and backups", safe, 90, 0.05)

    def client(self, **more: Any) -> hazelcast.HazelcastClient:
        return self.keep(connect([member.address for member in self.running], self.name, **more))

    def keep(self, client: hazelcast.HazelcastClient) -> hazelcast.HazelcastClient:
        """The client, which this cluster closes. Each open client takes memory of the members, so a
        condition that is polled uses the same client each time."""
        assert len(self._clients) < CLIENTS, f"{CLIENTS} clients are open: reuse one"
        self._clients.append(client)
        return client

    def kill_everything(self) -> None:
        """Send SIGKILL to all members and agents at once, with no shutdown of any kind."""
        children = [child for child in (*self.members, *self.agents) if child.running]
        for child in children:
            child.send(signal.SIGKILL)
        for child in children:
            child.kill()
        self.close_clients()

    def close_clients(self) -> None:
        clients, self._clients = self._clients, []
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda client: client.shutdown(), clients))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_everything()


def member_config(
    cluster: str,
    port: int,
    members: Sequence[int | str],
    maps: Mapping[str, Any],
    properties: Mapping[str, str] = QUICK_MEMBER,
    announced: str = "",
) -> dict[str, Any]:
    """`members`: ports, or addresses. `announced`: the address that others use, with the host that
    this member binds."""
    host = announced.partition(":")[0] or "127.0.0.1"
    network: dict[str, Any] = {
        "port": {"port": port, "auto-increment": False},
        "interfaces": {"enabled": True, "interfaces": ["127.0.0.1"]},
        "join": {
            "auto-detection": {"enabled": False},
            "multicast": {"enabled": False},
            "tcp-ip": {
                "enabled": True,
                "member-list": [
                    each if isinstance(each, str) else f"127.0.0.1:{each}" for each in members
                ],
            },
        },
    }
    if host != "127.0.0.1":  # a loopback address that no interface lists must be named otherwise
        network |= {"interfaces": {"enabled": False}, "public-address": announced}
        properties = {**properties, "hazelcast.local.localAddress": host}
    return {
        "hazelcast": {
            "cluster-name": cluster,
            "properties": dict(properties),
            "network": network,
            "map": dict(maps),
        }
    }


def logged_map(
    endpoint: str,
    properties: Mapping[str, str] | None = None,
    *,
    store: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A map's section with the plug-in in it; `more` with _ for -."""
    map_store = {
        "enabled": True,
        "initial-mode": "EAGER",
        "factory-class-name": FACTORY,
        "write-delay-seconds": 0,
        "offload": False,
        **(store or {}),
        "properties": {"agent": endpoint, **(properties or {})},
    }
    return {
        "map-store": map_store,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def compile_java(folder: Path) -> str:
    """The class path of a test member: Hazelcast, the test's classes, and a copy of the plug-in (so
    that a rebuild does not replace the jar of a running JVM)."""
    plugin = Path(shutil.copy(jars.plugin_jar(), folder / "plugin.jar"))
    hazelcast_jar, tests = jars.hazelcast_jar(), folder / "tests.jar"
    classes = Path(shutil.copytree(JAVA / "META-INF", folder / "classes/META-INF")).parent
    sources = [str(path) for path in sorted(JAVA.glob("*.java"))]
    subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", f"{hazelcast_jar}", *sources], check=True
    )
    # The archive below needs jars.
    subprocess.run(["jar", "--create", "--file", str(tests), "-C", str(classes), "."], check=True)
    archive_classes(os.pathsep.join([str(hazelcast_jar), str(tests)]), folder)
    return os.pathsep.join([str(hazelcast_jar), str(tests), str(plugin)])


def archive_classes(classpath: str, folder: Path) -> None:
    """Let a member run once and archive the classes that it has loaded. Members whose class path
    begins with this one start with a third less work."""
    (port,) = free_ports(1)
    config = member_config("archive", port, [port], {})
    written = f"-XX:ArchiveClassesAtExit={_archive(classpath)}"
    member = Member(folder, "archive", port, config, classpath, (written,))
    member.launch()
    member.wait()
    member.ask("write")
    member.leave()


def _archive(classpath: str) -> Path:
    """The archive of members with this class path, or one that begins with it: beside the tests'
    classes."""
    return Path(classpath.split(os.pathsep)[1]).with_suffix(".jsa")


@contextlib.contextmanager
def gateway(target: str) -> Iterator[str]:
    """A `tcp://` endpoint in front of an agent's `ipc://` one that accepts connections also while
    the agent does not run, as the port of a restarting container does. It keeps them open until the
    agent listens, and closes them when the agent ends."""
    path = target.removeprefix("ipc://")
    server = socket.create_server(("127.0.0.1", 0))
    closing = threading.Event()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve(near: socket.socket) -> None:
        while not closing.wait(0.01):
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(path)
            except OSError:
                far.close()
                continue
            threading.Thread(target=pump, args=(far, near), daemon=True).start()
            pump(near, far)
            return

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                threading.Thread(target=serve, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        closing.set()
        server.close()
