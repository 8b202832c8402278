"""A log as a table of Spark's catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imap_wal.errors import InvalidSetting
from pyspark_imap_wal.tables import catalog
from storage_backends import open_store
from tests.histories import put
from tests.kit.effort import every, thorough
from tests.kit.logs import append, node

pytestmark = pytest.mark.spark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log = node(open_store(str(tmp_path / "a log")))
    append(log, put("k1", 1, (1, 1, 1, 1)), put("k1", 2, (1, 1, 1, 2)))
    append(log, put("k2", 1, (1, 1, 1, 3)), put("x", None, (1, 1, 1, 4), "other"))
    return tmp_path / "a log"


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    yield spark.sql
    for name in ("entries", "orders_now", "log_files"):
        spark.sql(f"drop table if exists {name}")


def test_a_table_has_the_options_of_its_creation(spark: Any, sql: Any, root: Path) -> None:
    sql(f"create table entries using imap_wal location '{root}'")
    assert sql("select count(*) from entries").first()[0] == 4
    assert sql("select count(*) from entries where map = 'orders' and not deleted").first()[0] == 3
    sql(f"""create table orders_now using imap_wal
        options (path '{root}', map 'orders', mode 'latest', columns 'key,value')""")
    for read in (sql("select * from orders_now"), spark.table("orders_now")):
        assert sorted(map(tuple, read.collect())) == [(b"k1", b"2"), (b"k2", b"1")]
    sql(f"create table log_files using imap_wal options (path '{root}', table 'files')")
    assert sql("select state from log_files").collect() == [("current",)]
    assert [row[0] for row in sql("describe orders_now").collect()] == ["key", "value"]
    shown = f"using imap_wal: columns 'key,value', map 'orders', mode 'latest', path '{root}'"
    assert sql("describe orders_now").first()["comment"] == shown
    assert "using imap_wal: " in sql("show create table orders_now").first()[0]


def test_options_of_a_query_are_added_to_its_table_s(sql: Any, root: Path) -> None:
    sql(f"create table entries using imap_wal options (path '{root}', map 'orders')")
    assert sql("select * from entries with (mode = 'raw', map = 'other')").count() == 1
    with pytest.raises(Exception, match="takes no option colour"):
        sql("select * from entries with (colour = 'red')").collect()


@thorough
def test_a_stream_of_a_table(spark: Any, sql: Any, root: Path, tmp_path: Path) -> None:
    sql(f"create table entries using imap_wal options (path '{root}', map 'orders')")
    (
        spark.readStream.table("entries")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"), format="parquet")
        .awaitTermination()
    )
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


def test_a_dropped_table_leaves_the_log(spark: Any, sql: Any, root: Path) -> None:
    sql(f"create table entries using imap_wal location '{root}'")
    sql("drop table entries")
    assert spark.read.format("imap_wal").load(str(root)).count() == 4


@every(3)
@pytest.mark.parametrize(
    ("clauses", "shown"),
    [
        ("options (path '{root}', colour 'red')", "takes no option colour"),
        ("options (path '{root}', mode 'newest')", "mode is 'newest'"),
        ("", "location '/folder'"),
        ("location 's3://bucket/maps?secret=never-shown'", "IMAP_WAL_CREDENTIALS"),
    ],
)
def test_a_wrong_table_is_not_created(sql: Any, root: Path, clauses: str, shown: str) -> None:
    with pytest.raises(Exception, match=shown) as raised:
        sql(f"create table entries using imap_wal {clauses.format(root=root)}")
    assert "never-shown" not in str(raised.value)
    assert sql("show tables like 'entries'").count() == 0


@thorough
def test_a_table_takes_no_rows(sql: Any, root: Path) -> None:
    sql(f"create table entries using imap_wal options (path '{root}', columns 'key,value')")
    with pytest.raises(Exception, match=r"df\.write"):
        sql("insert into entries values (X'00', X'01')")


def test_only_what_spark_adds_is_left_out() -> None:
    """A property that is no option belongs to Spark or to the user's table properties."""
    properties = {
        "provider": "IMAP_WAL",
        "owner": "root",
        "location": "file:/maps",
        "path": "file:/maps",
        "option.map": "orders",
        "map": "orders",
    }
    assert catalog.is_new_table(properties, "imap_wal")
    assert catalog.options_of_table(properties) == {"map": "orders", "path": "/maps"}
    with pytest.raises(InvalidSetting, match="location"):
        catalog.options_of_table({"provider": "imap_wal", "option.map": "orders"})
