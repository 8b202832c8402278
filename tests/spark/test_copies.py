"""Spark counts each copy of a change once, as the other readers do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.rewrite_engine import SparkEngine
from storage_backends import open_store
from tests.kit.copies import Copying
from tests.kit.effort import thorough
from tests.kit.logs import cluster
from tests.kit.rewrites import archive, members

pytestmark = pytest.mark.spark


@thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_a_rewrite_and_a_table_by_spark_equal_a_dict(spark: Any, tmp_path: Path, seed: int) -> None:
    writer = Copying(random.Random(seed), open_store(str(tmp_path)))
    for _ in range(40):
        writer.write()
    for log in list(writer.logs.values())[:2]:
        archive(writer.store, log)
    table = spark.read.format("imap_wal").option("mode", "latest").option("map", "orders")
    for again in (False, True):
        rows = table.load(str(tmp_path)).collect()
        assert {bytes(row["key"]).decode(): bytes(row["value"]).decode() for row in rows} == (
            writer.expected
        )
        if not again:
            rewrite(cluster(writer.store), SparkEngine(spark), skew_ms_max=2**60)
            writer.check()
            members(writer.store, 2)
    rewrite(cluster(writer.store), SparkEngine(spark), skew_ms_max=2**60)
    writer.check()
    writer.close()
