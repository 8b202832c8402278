"""Jobs of Jet and mappings of SQL in the log."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.processes import ROOT
from tests.cluster.waiting import until

PROPERTIES = {
    "hazelcast.partition.count": "23",
    "hazelcast.jet.job.scan.period": "500",
    "imap-wal.agent": "{agent}",
    "imap-wal.durable-maps": "*, __jet.*, __sql.catalog",
}
JET = {"jet": {"enabled": True, "cooperative-thread-count": 2}}


@pytest.fixture
def cluster(tmp_path: Path, classpath: str) -> Cluster:
    return Cluster(
        tmp_path,
        classpath,
        lambda _endpoint: {},
        offsets_ms=(0, 0),
        properties=PROPERTIES,
        sections=JET,
    )


def wait_for(counted: Any, count: int) -> None:
    until("the job counts on", lambda: counted.size() > count, 60)


@pytest.mark.thorough
def test_a_job_goes_on_from_its_last_snapshot(cluster: Cluster) -> None:
    """`kill -9` of all members and agents, twice: each run begins where a snapshot was, and no
    number is missing."""
    with cluster:
        cluster.start(2)
        job = cluster.members[0].ask("job", "start")["id"]
        for lifetime in range(1, 4):
            client = cluster.client()
            counted = client.get_map("counted").blocking()
            wait_for(counted, counted.size() + 300)
            state = cluster.members[0].ask("job", "look")
            assert (state["id"], state["status"]) == (job, "RUNNING")
            begins = sorted(client.get_map("begins").blocking().values())
            assert len(begins) == lifetime and begins[0] == 0
            assert begins[-1] >= 100 * (lifetime - 1), "a run began from a snapshot"
            newest = max(counted.key_set())
            wait_for(counted, counted.size() + 300)  # writers of several partitions run ahead
            assert set(range(newest)) <= set(counted.key_set())
            if lifetime < 3:
                cluster.kill_everything()
                cluster.start(2)


@pytest.fixture(scope="session")
def sql_jar() -> Path:
    """Hazelcast's SQL, which is a jar of its own."""
    folder = ROOT / "build" / "sql"
    jar = folder / "hazelcast-sql-5.7.0.jar"
    if not jar.exists():
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        artifact = "-Dartifact=com.hazelcast:hazelcast-sql:5.7.0"
        subprocess.run(
            ["mvn", "-q", "-B", copy, artifact, f"-DoutputDirectory={folder}"],
            check=True,
            cwd=ROOT,
            timeout=300,
        )
    return jar


@pytest.mark.thorough
def test_sql_mappings_and_views_are_there_after_a_kill(cluster: Cluster, sql_jar: Path) -> None:
    cluster.classpath = os.pathsep.join([cluster.classpath, str(sql_jar)])
    with cluster:
        cluster.start(2)
        sql = cluster.client().sql
        sql.execute(
            "CREATE MAPPING orders TYPE IMap OPTIONS ('keyFormat'='int', 'valueFormat'='varchar')"
        ).result()
        sql.execute("CREATE VIEW big_orders AS SELECT * FROM orders WHERE __key > 5").result()
        sql.execute("SINK INTO orders VALUES (1, 'small'), (9, 'large')").result()
        cluster.kill_everything()
        cluster.start(2)
        rows = list(cluster.client().sql.execute("SELECT this FROM big_orders").result())
        assert [row["this"] for row in rows] == ["large"]
