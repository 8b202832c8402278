"""Servers and a client of SeaTunnel's engine (Zeta), from Maven Central, without a distribution.

Zeta      a server in its own JVM, whose maps are in the log of an agent
Client    one more JVM: submits jobs and asks for their states
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewrite_cli.local_cluster import jars
from rewrite_cli.local_cluster.launcher import JVM_FLAGS
from tests.cluster.processes import QUICK_JVM, ROOT, Child
from tests.cluster.waiting import until
from tests.seatunnel.asked import Asked, compiled

HERE = Path(__file__).parent
BUILT = ROOT / "hazelcast_plugin" / "seatunnel" / "target" / "zeta"
OPENED = ("lang", "lang.invoke", "util", "util.concurrent", "net", "nio", "io")
FACTORY = "io.imapwal.seatunnel.ImapWalMapStoreFactory"
SEATUNNEL_FACTORY = "org.apache.seatunnel.engine.server.persistence.FileMapStoreFactory"
QUICK_LOSS = {
    "hazelcast.heartbeat.interval.seconds": "1",
    "hazelcast.max.no.heartbeat.seconds": "8",
}


def fetched() -> Path:
    """The folder with SeaTunnel's 64 jars and our client, fetched at the first use."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (BUILT / "complete").exists():
            subprocess.run(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "package"], check=True)
            (BUILT / "complete").touch()
        compiled("ZetaClient", BUILT / "classes", _classpath(True))
    return BUILT


def _classpath(connectors: bool) -> str:
    """Without seatunnel-config-shade as the first, a job's file cannot be read."""
    first = sorted((BUILT / "lib").glob("seatunnel-config-shade-*.jar"))
    others = [
        path
        for path in sorted((BUILT / "lib").glob("*.jar"))
        if path not in first and (connectors or not path.name.startswith("connector-"))
    ]
    return os.pathsep.join(map(str, [BUILT / "classes", *first, *others]))


class Home:
    """A folder as SEATUNNEL_HOME, and the configuration of servers on some ports."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        fetched()
        self.folder, self.ports = folder, ports
        (folder / "connectors").mkdir(parents=True)
        for jar in (BUILT / "lib").glob("connector-*.jar"):
            (folder / "connectors" / jar.name).symlink_to(jar)
        (folder / "connectors" / "plugin-mapping.properties").write_text(
            "seatunnel.source.FakeSource = connector-fake\n"
            "seatunnel.sink.Console = connector-console\n"
        )
        self._write("seatunnel.yaml", {"seatunnel": {"engine": self._engine()}})
        members = [f"127.0.0.1:{port}" for port in ports]
        client = {
            "cluster-name": "seatunnel",
            "connection-strategy": {
                "connection-retry": {"cluster-connect-timeout-millis": 120_000}
            },
            "network": {"cluster-members": members},
        }
        self._write("hazelcast-client.yaml", {"hazelcast-client": client})
        (folder / "log4j2.properties").write_text(
            "rootLogger.level = INFO\nrootLogger.appenderRef.c.ref = c\nappender.c.name = c\n"
            "appender.c.type = Console\nappender.c.target = SYSTEM_ERR\n"
            "appender.c.layout.type = PatternLayout\n"
            "appender.c.layout.pattern = %d{HH:mm:ss.SSS} %-5p [%t] %c{1.} - %m%n\n"
        )

    def _engine(self) -> dict[str, Any]:
        plugin = {
            "namespace": f"{self.folder}/checkpoints/",
            "storage.type": "hdfs",
            "fs.defaultFS": "file:///",
        }
        storage = {"type": "hdfs", "max-retained": 3, "plugin-config": plugin}
        return {
            "history-job-expire-minutes": 1440,
            "backup-count": 1,
            "slot-service": {"dynamic-slot": True},
            "checkpoint": {"interval": 1000, "timeout": 60_000, "storage": storage},
        }

    def _write(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content))  # JSON is YAML
        return path

    def hazelcast(self, number: int, storage: Mapping[str, str]) -> Path:
        """The configuration of server `number`. `storage`: the factory of the map store
        (`factory`), and its properties."""
        factory = storage["factory"]
        properties = {name: value for name, value in storage.items() if name != "factory"}
        store = {
            "enabled": True,
            "initial-mode": "EAGER",
            "factory-class-name": factory,
            "properties": properties,
        }
        members = [f"127.0.0.1:{port}" for port in self.ports]
        config = {
            "cluster-name": "seatunnel",
            "network": {
                "join": {"tcp-ip": {"enabled": True, "member-list": members}},
                "port": {"auto-increment": False, "port": self.ports[number]},
            },
            "properties": {
                "hazelcast.phone.home.enabled": "false",
                "hazelcast.invocation.max.retry.count": "20",
                "hazelcast.tcp.join.port.try.count": "30",
                "hazelcast.logging.type": "log4j2",
                # With two, as on two processors, heartbeats of servers block each other.
                "hazelcast.operation.generic.thread.count": "50",
                **QUICK_LOSS,
            },
            "map": {"engine*": {"map-store": store}},
        }
        return self._write(f"hazelcast-{number}.yaml", {"hazelcast": config})

    def java(self, main: str, config: Path | None, megabytes: int) -> list[str]:
        """The command of a JVM; `config`: of a server, None: of a client."""
        options = {
            "SEATUNNEL_HOME": self.folder,
            "seatunnel.config": self.folder / "seatunnel.yaml",
            "hazelcast.client.config": self.folder / "hazelcast-client.yaml",
            "log4j2.configurationFile": self.folder / "log4j2.properties",
            "hazelcast.ignoreXxeProtectionFailures": "true",
            "java.net.preferIPv4Stack": "true",
        }
        classpath = _classpath(config is None)
        if config is not None:
            options["hazelcast.config"] = config
            jar = jars.plugin_jar(jars.SEATUNNEL_NAME)
            classpath = f"{classpath}{os.pathsep}{jar}"
        return [
            jars.java(),
            *JVM_FLAGS,
            *QUICK_JVM,
            f"-Xmx{megabytes}m",
            *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED),
            *(f"-D{name}={value}" for name, value in options.items()),
            "-cp",
            classpath,
            main,
        ]


class Zeta(Child):
    """A server."""

    def __init__(self, home: Home, number: int, storage: Mapping[str, str]) -> None:
        super().__init__(f"server {number}", home.folder / f"server-{number}.log")
        config = home.hazelcast(number, storage)
        self._command = home.java(
            "org.apache.seatunnel.engine.server.SeaTunnelServerStarter", config, 600
        )
        self._since = 0

    def launch(self) -> None:
        self._since = len(self.text())
        self.spawn(["env", f"SEATUNNEL_HOME={self.log.parent}", *self._command])

    def text(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def said(self) -> str:
        """Its log since the last start."""
        return self.text()[self._since :]

    def wait_for(self, text: str, seconds: float = 60) -> None:
        until(f"{self.name} logs {text!r}", lambda: self.check() or text in self.said(), seconds)


class Client(Asked):
    """Asks the engine."""

    def __init__(self, home: Home) -> None:
        command = home.java("ZetaClient", None, 300)
        super().__init__(
            "client", home.folder / "client.log", ["env", f"SEATUNNEL_HOME={home.folder}", *command]
        )

    def start(self) -> None:
        super().start()
        assert self.answer() == "ready"

    def submit(self, job: Path, name: str = "job") -> int:
        return int(self.ask(f"submit {job} {name}"))

    def status(self, job: int) -> str:
        return self.ask(f"status {job}")
