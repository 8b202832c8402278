"""The JMX exporter of Prometheus beside a real member: the series that alerts and dashboard
name."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.waiting import until
from tests.kit.ports import free_ports
from tests.monitoring.snapshots import OF_MEMBERS
from tests.storage.services import BUILD, need

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.thorough]
EXPORTER = "io.prometheus.jmx:jmx_prometheus_javaagent:1.0.1"
MONITORING = Path(__file__).parents[2] / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def exporter() -> Path:
    folder = BUILD / "jmx"
    if not list(folder.glob("*.jar")):
        maven = need("mvn", "Prometheus's exporter for JMX comes through Maven")
        subprocess.run(
            [
                maven,
                "-q",
                "-B",
                "dependency:copy",
                f"-Dartifact={EXPORTER}",
                f"-DoutputDirectory={folder}",
            ],
            check=True,
        )
    (jar,) = folder.glob("*.jar")
    return jar


def test_the_exporter_shows_changes_with_fewer_copies(
    tmp_path: Path, exporter: Path, classpath: str
) -> None:
    """With the configuration of the documentation, copies = 2, and one of two agents killed."""
    (config,) = re.findall(r"```yaml\n(# jmx\.yaml\n.*?)```", MONITORING.read_text(), re.DOTALL)
    file = tmp_path / "jmx.yaml"
    file.write_text(config)
    (port,) = free_ports(1)
    agents = ",".join(f"ipc://{tmp_path}/node-{number}.sock" for number in (1, 2))
    some = {"copies": "2", "acks": "1", "copy-agents": agents}
    with Cluster(
        tmp_path,
        classpath,
        lambda own: {"default": logged_map(own, some)},
        options=("-Xmx256m", f"-javaagent:{exporter}={port}:{file}"),
        properties={"hazelcast.jmx": "true"},
    ) as cluster:
        cluster.start(1)
        cluster.agents[1].start()
        orders = cluster.client().get_map("orders").blocking()
        orders.set("a", 1)
        until("two agents", lambda: series(port)["io_imapwal_Agent_UsableAgents"] == 2)
        assert set(series(port)) >= OF_MEMBERS
        before = series(port)["io_imapwal_Agent_UnderCopied"]
        cluster.agents[1].kill()
        for number in range(10):
            orders.set("a", number)
        assert series(port)["io_imapwal_Agent_UnderCopied"] >= before + 9
        assert series(port)["io_imapwal_Agent_WaitingForCopies"] >= 9
        cluster.agents[1].start()
        until("copies", lambda: series(port)["io_imapwal_Agent_WaitingForCopies"] == 0)
        counted = series(port)
        assert counted["io_imapwal_Agent_CopiedAgain"] == counted["io_imapwal_Agent_UnderCopied"]


def series(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(io_imapwal_\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
