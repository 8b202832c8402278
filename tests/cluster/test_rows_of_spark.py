"""The example that puts a table of Spark into a running cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import history
from tests.cluster.cluster import Cluster
from tests.cluster.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.thorough]
EXAMPLE = ROOT / "examples" / "spark" / "into_a_cluster.py"
ROWS = 2500


def test_rows_of_spark_are_in_the_log(tmp_path: Path, classpath: str) -> None:
    """More rows than one `put_all` has."""
    expected = {number: f"value {number}" for number in range(ROWS)}
    columns = {"id": list(expected), "value": list(expected.values())}
    pq.write_table(pa.table(columns), tmp_path / "customers.parquet")
    with Cluster(tmp_path, classpath, history.maps) as cluster:
        cluster.name = "dev"  # Hazelcast's default, and so that of the example's client
        cluster.start(1)
        (member,) = cluster.running
        ended = subprocess.run(
            [
                *(sys.executable, str(EXAMPLE), str(tmp_path / "customers.parquet")),
                *("customers", str(member.address)),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        there = cluster.client().get_map("customers").blocking().entry_set()
        assert dict(there) == expected
        cluster.kill_everything()
        view = history.log_view(cluster.url)
        assert sum(map(len, view.rows("customers"))) == ROWS
        view.close()
