"""The log as a table of Spark: what reaches the reader from a real Spark."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from imap_wal.publish.lake_table import LIVE
from pyspark_imap_wal.session import configuration
from storage_backends import open_store
from tests.histories import put
from tests.kit.effort import share
from tests.kit.logs import append, node

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log = node(open_store(str(tmp_path / "log")))
    for number in range(4):
        append(
            log,
            put(f"k{number}", number, (1, 1, 1, 2 * number), timestamp_ms=1000 * number),
            put("x", None, (1, 1, 1, 2 * number + 1), "other", timestamp_ms=1000 * number),
        )
        log.rotate()
    return tmp_path / "log"


def test_filters_are_pushed_to_the_files_and_checked_again(spark: Any, root: Path) -> None:
    read = spark.read.format("imap_wal").load(str(root))
    queries = {
        "map = 'orders'": 4,
        "map = 'other' and deleted": 4,
        "key = X'6B31'": 1,
        "key in (X'6B31', X'6B32', X'00')": 2,
        "segment >= 3": 4,
        "segment = 2 and map in ('orders', 'none')": 1,
        "timestamp_ms > 1500 and not deleted": 2,
        "node <> 'n1'": 0,
        "namespace = 'ns' and cluster = 'none'": 0,
        "value is null": 4,
    }
    for pushdown in ("true", "false")[: share(2, ci=50)]:
        spark.conf.set(PUSHDOWN, pushdown)
        found = {query: read.where(query).count() for query in queries}
        assert found == queries, pushdown
    plan = read.where("segment >= 3")
    for pushdown, tasks in (("true", 2), ("false", 4)):
        spark.conf.set(PUSHDOWN, pushdown)
        small = spark.read.format("imap_wal").option("task_bytes", "1").load(str(root))
        assert small.where("segment >= 3").rdd.getNumPartitions() == tasks
    assert plan.count() == 4


def test_a_mistake_in_an_option_is_one_line(spark: Any, root: Path) -> None:
    """Without the traceback of Spark's worker. Spark adds only a line with its SQLSTATE."""
    rows = spark.createDataFrame([(b"k", b"v")], "key binary, value binary")

    def read(**options: str) -> int:
        return int(spark.read.format("imap_wal").options(**options).load(str(root)).count())

    def write(**options: str) -> None:
        rows.write.format("imap_wal").mode("append").options(**options).save(str(root))

    def follow(**options: str) -> None:
        spark.readStream.format("imap_wal").options(**options).load(str(root))

    of_writes = "path, map, namespace, cluster, encryption_keys"
    for ask, options, said in (
        (read, {"mode": "newest"}, "mode is 'newest'; it takes raw or latest"),
        (read, {"map": "order"}, "no map 'order'; found: orders, other"),
        (follow, {"voided": "x"}, "voided is 'x'; it takes fail or ignore"),
        (write, {"map": "m", "as_of": "2h"}, f"no option as_of; it takes {of_writes}"),
    ):
        with pytest.raises(Exception, match=said) as raised:
            ask(**options)
        text, *more = str(raised.value).splitlines()
        assert said in text and [line.split()[0] for line in more] == ["SQLSTATE:"]


def test_rows_reach_pandas_without_a_warning(spark: Any, root: Path) -> None:
    """`toPandas` of Spark 4.3 warns about pandas 3."""
    read = spark.read.format("imap_wal").option("map", "orders").load(str(root))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read.toArrow().to_pandas()
    assert list(found["key"]) == [b"k0", b"k1", b"k2", b"k3"]


def test_only_named_columns_are_read(spark: Any, root: Path) -> None:
    some = spark.read.format("imap_wal").option("columns", "request,map").load(str(root))
    assert some.columns == ["request", "map"] and some.where("map = 'orders'").count() == 4
    given = spark.read.format("imap_wal").schema("key binary, deleted boolean").load(str(root))
    assert given.where("deleted").count() == 4 and given.columns == ["key", "deleted"]
    with pytest.raises(Exception, match="no column colour string"):
        spark.read.format("imap_wal").schema("colour string").load(str(root)).count()


def test_a_log_is_a_view_for_sql(spark: Any, root: Path) -> None:
    spark.sql(
        f"create temporary view orders_log using imap_wal options (path '{root}', map 'orders')"
    )
    try:
        assert spark.sql("select count(*) from orders_log where not deleted").first()[0] == 4
    finally:
        spark.sql("drop view orders_log")


def test_a_session_of_ours_pushes_filters() -> None:
    assert configuration({}).get(PUSHDOWN) == "true"


def test_the_condition_of_live_entries_runs(spark: Any) -> None:
    """That which `imap-wal publish` prints for Spark."""
    rows = "values (0L), (1L), (4503599627370496L) as rows(expires_at_ms)"
    (live,) = spark.sql(f"select count(*) from {rows} where {LIVE['Spark']}").first()
    assert live == 2
