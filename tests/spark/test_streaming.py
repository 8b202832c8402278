"""Spark itself follows a log."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.log import LogReader
from storage_backends import open_store
from tests.histories import put
from tests.kit.effort import share, thorough
from tests.kit.logs import append, node
from tests.spark.drivers.follow import follow

pytestmark = pytest.mark.spark
DRIVER = Path(__file__).parent / "drivers" / "follow.py"


def demand_death(*arguments: object) -> None:
    """Run the driver until it kills itself."""
    ended = subprocess.run(
        [sys.executable, str(DRIVER), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr[-4000:]


@pytest.mark.timeout(1500)
def test_a_killed_driver_loses_and_repeats_nothing(spark: Any, tmp_path: Path) -> None:
    """The driver dies after the sink has a batch and before the checkpoint says so, then (not in
    `make test`) before the sink has it. Another process appends and archives all the time. At the
    end, the driver of the other tests continues."""
    deaths = [(1, "after"), (3, "before")][: share(2, ci=50)]
    url, out, checkpoint = tmp_path / "log", tmp_path / "out", tmp_path / "checkpoint"
    stop = threading.Event()
    with imap_wal.open(str(url), node="n1", durability="os", auto_rewrite_percentage=0) as store:
        sensors, archived = store.map("sensors"), []

        def write() -> None:
            for number in itertools.count():
                sensors.update({f"k{number}-{at}": number for at in range(20)})
                if number % 10 == 9:
                    archived.append(store.archive())
                if stop.wait(0.02 if number < 60 else 2):
                    return

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for batch, moment in deaths:
                demand_death(url, out, checkpoint, batch, moment)
        finally:
            stop.set()
            writer.join()
        assert sum(archived) > 0
    limit = ("bytes_per_batch", 10_000)
    rest = follow(spark, str(url), str(out), str(checkpoint), limit=limit)
    query = rest.trigger(availableNow=True).start()
    query.awaitTermination()
    (source,) = query.lastProgress["sources"]
    assert source["latestOffset"] == source["endOffset"], "it has read everything"
    assert len(query.recentProgress) > 1
    reader = LogReader(str(url), cluster="embedded", node="n1")
    expected = [(*record.position, record.entry.order[3]) for record in reader.read()]
    assert sorted(written(out)) == expected
    assert len(list(out.glob("batch=*"))) >= 2 * len(deaths)


def written(out: Path) -> list[tuple[int, ...]]:
    from pyarrow import dataset

    columns = ["epoch", "segment", "frame", "index", "request"]
    lines = dataset.dataset(out, format="parquet").to_table(columns=columns).to_pylist()
    return [tuple(line[name] for name in columns) for line in lines]


@thorough
@pytest.mark.timeout(900)
def test_file_sink_with_available_now_continues_at_its_checkpoint(
    spark: Any, tmp_path: Path
) -> None:
    log = node(open_store(str(tmp_path / "log")))

    def follow() -> list[int]:
        changes = spark.readStream.format("imap_wal").option("columns", "request,map")
        (
            changes.load(str(tmp_path / "log"))
            .where("map = 'orders'")
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"), format="parquet")
            .awaitTermination()
        )
        return sorted(row["request"] for row in spark.read.parquet(str(tmp_path / "out")).collect())

    append(log, put("a", "1", (1, 1, 1, 1)), put("x", "1", (1, 1, 1, 2), "other"))
    assert follow() == [1]
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 3)))
    assert follow() == [1, 3]
    assert follow() == [1, 3]


@thorough
def test_images_of_a_stream_and_of_a_batch(spark: Any, tmp_path: Path) -> None:
    url, out = str(tmp_path / "log"), str(tmp_path / "out")
    log = node(open_store(url))

    def follow() -> list[tuple[str, ...]]:
        images = spark.readStream.format("imap_wal").options(changes="images", buckets="2")
        (
            images.load(url)
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(out, format="parquet")
            .awaitTermination()
        )
        return rows(spark.read.parquet(out))

    def rows(images: Any) -> list[tuple[str, ...]]:
        found = images.selectExpr("_commit_version", "_change_type", "string(value)").collect()
        return sorted((row[0][-2:], row[1], row[2]) for row in found)

    append(log, put("a", 1, (1, 1, 1, 1)), put("b", 1, (1, 1, 1, 2)))
    first = [("01", "insert", "1"), ("02", "insert", "1")]
    assert follow() == first
    place = json.dumps({"n1": str(log.end)})
    log.rotate()
    append(log, put("a", 2, (1, 1, 1, 3)), put("b", None, (1, 1, 1, 4)))
    changed = [
        ("03", "update_postimage", "2"),
        ("03", "update_preimage", "1"),
        ("04", "delete", "1"),
    ]
    assert follow() == first + changed
    batch = spark.read.format("imap_wal").options(changes="images", starting=place).load(url)
    assert rows(batch) == changed
    assert [row[0].isoformat() for row in batch.select("_commit_timestamp").distinct().collect()]
    only = batch.where("key = X'62' and _change_type = 'delete'")
    assert rows(only) == changed[2:]


@thorough
@pytest.mark.timeout(900)
def test_images_beside_a_store_that_compacts(spark: Any, tmp_path: Path) -> None:
    """The store rewrites and prunes all the time, also while a batch runs."""
    url = str(tmp_path / "log")
    table: dict[bytes, bytes] = {}
    batches: list[int] = []
    pause = threading.Event()

    def take(images: Any, number: int) -> None:
        rows = images.collect()
        batches.append(len(rows))
        # The image before an update sorts after that after it.
        rows.sort(key=lambda row: row["_change_type"], reverse=True)
        for row in sorted(rows, key=lambda row: row["_commit_version"]):
            key, value = bytes(row["key"]), bytes(row["value"])
            match row["_change_type"]:
                case "insert":
                    assert key not in table
                    table[key] = value
                case "update_preimage":
                    assert table[key] == value
                case "update_postimage":
                    table[key] = value
                case "delete":
                    assert table.pop(key) == value

    with imap_wal.open(
        url,
        serializer=imap_wal.RawSerializer(),
        durability="os",
        auto_rewrite_percentage=1,
        auto_rewrite_min_bytes=4096,
    ) as store:
        orders = store.map("orders")
        orders[b"0"] = b"0"
        images = spark.readStream.format("imap_wal").options(changes="images", reader="copy")
        query = (
            images.load(url)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            for number in itertools.count(1):
                orders.update({b"%d" % (number * at % 97): b"%d" % number for at in range(1, 9)})
                orders.pop(b"%d" % (number % 89), None)
                compacted = store.statistics.compaction
                if compacted.runs > 5 and len(batches) > 4:
                    break
                assert query.isActive, query.exception()
                pause.wait(0.02)
            query.processAllAvailable()
            assert table == dict(orders)
        finally:
            query.stop()
        assert compacted.removed_bytes > 0 and compacted.failures == 0
