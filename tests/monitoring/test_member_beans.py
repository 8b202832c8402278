"""The JMX exporter of Prometheus beside a real member: the series that alerts and dashboard
name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.waiting import until
from tests.kit.ports import free_ports
from tests.monitoring.exporter import exporter_jar, series
from tests.monitoring.snapshots import OF_MEMBERS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.thorough]
MONITORING = Path(__file__).parents[2] / "docs" / "monitoring.md"


def test_the_exporter_shows_changes_with_fewer_copies(tmp_path: Path, classpath: str) -> None:
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
        options=("-Xmx256m", f"-javaagent:{exporter_jar()}={port}:{file}"),
        properties={"hazelcast.jmx": "true"},
    ) as cluster:
        cluster.start(1)
        cluster.agents[1].start()
        orders = cluster.client().get_map("orders").blocking()
        orders.set("a", 1)
        until(
            "two agents", lambda: series(f"127.0.0.1:{port}")["io_imapwal_Agent_UsableAgents"] == 2
        )
        assert set(series(f"127.0.0.1:{port}")) >= OF_MEMBERS
        before = series(f"127.0.0.1:{port}")["io_imapwal_Agent_UnderCopied"]
        cluster.agents[1].kill()
        for number in range(10):
            orders.set("a", number)
        assert series(f"127.0.0.1:{port}")["io_imapwal_Agent_UnderCopied"] >= before + 9
        assert series(f"127.0.0.1:{port}")["io_imapwal_Agent_WaitingForCopies"] >= 9
        cluster.agents[1].start()
        until(
            "copies", lambda: series(f"127.0.0.1:{port}")["io_imapwal_Agent_WaitingForCopies"] == 0
        )
        counted = series(f"127.0.0.1:{port}")
        assert counted["io_imapwal_Agent_CopiedAgain"] == counted["io_imapwal_Agent_UnderCopied"]
