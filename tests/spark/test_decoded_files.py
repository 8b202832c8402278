"""Spark's own reader of Parquet reads archives and snapshots with decoded columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.encoder import plain
from rewrite_cli.cli import group
from tests.kit.effort import thorough

pytestmark = pytest.mark.spark


def done(*words: str) -> None:
    ended = CliRunner().invoke(group, words)
    assert ended.exit_code == 0, ended.output


@thorough
def test_spark_reads_keys_and_values_without_imap_wal(spark: Any, tmp_path: Path) -> None:
    """Archives with and without these columns together, and a snapshot."""
    url = f"file://{tmp_path}/log"
    expected: dict[str, Any] = {"before": {"state": "old"}}

    def write(entries: dict[str, Any], *deleted: str) -> None:
        with imap_wal.open(url, preallocate=False, auto_rewrite_percentage=0) as store:
            store.map("orders").update(entries)
            for key in deleted:
                del store.map("orders")[key]
        done("archive", url)

    write(expected)
    done("decode", url, "--map", "orders")
    more = {"ü 日本": {"state": "open", "list": [1, None, "\n"]}, "text": "ü", "bytes": b"\xff"}
    write({**more, "gone": 1}, "gone")
    archives = str(tmp_path / "log/*/*/nodes/*/archive/orders/*.parquet")
    found = spark.read.option("mergeSchema", "true").parquet(archives)
    rows = found.select("key_text", "value_json", "deleted").collect()
    assert {json.loads(row[0]): json.loads(row[1]) for row in rows if row[0] and row[1]} == {
        **{key: plain(value) for key, value in more.items()},
        "gone": 1,
    }
    assert [tuple(row) for row in rows if row[1] is None] in (
        [('"gone"', None, True), (None, None, False)],
        [(None, None, False), ('"gone"', None, True)],
    )
    done("rewrite", url)
    snapshot = spark.read.parquet(str(tmp_path / "log/*/*/snapshot/orders/*/*.parquet"))
    live = snapshot.where("not deleted")
    assert {
        json.loads(row["key_text"]): json.loads(row["value_json"]) for row in live.collect()
    } == {key: plain(value) for key, value in {**expected, **more}.items()}
    states = live.selectExpr("get_json_object(value_json, '$.state')").collect()
    assert sorted(row[0] for row in states if row[0]) == ["old", "open"]
