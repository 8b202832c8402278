"""The log as a table of Spark, in rows per second, alternately with plain Parquet files of the same
rows: a backfill, a read of all changes, and the newest entry of each key (with Spark SQL's
`max_by`). Two cores, one session of Spark. What is read is thrown away.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rows import compared

BACKFILL, RAW, LATEST = "backfill", "read of all changes", "read of the newest entries"
GOAL, UNIT = 300_000, "rows/s"
ORDER = "struct(incarnation, partition_version, session, request)"


def run(records: int, rounds: int, judged: bool = True) -> list[dict[str, Any]]:
    """Rows for a map of `records` changes of two thirds as many keys."""
    from pyspark_imap_wal.session import session

    spark = session(**{"spark.master": "local[2]"})
    try:
        with tempfile.TemporaryDirectory() as folder:
            _rounds(spark, Path(folder) / "first", 10_000, 1, judged=False)  # starts the workers
            return _rounds(spark, Path(folder) / "then", records, rounds, judged)
    finally:
        spark.stop()


def _rounds(
    spark: Any, folder: Path, records: int, rounds: int, judged: bool
) -> list[dict[str, Any]]:
    source, log, plain = (folder / name for name in ("source", "log", "plain"))
    spark.range(records).selectExpr(
        f"encode(format_string('key-%09d', (id * 7919) % {records * 2 // 3}), 'utf-8') as key",
        "encode(repeat(sha2(string(id), 256), 1 + int(id % 4)), 'utf-8') as value",
    ).write.parquet(str(source))
    changes = spark.read.parquet(str(source))
    ours: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    for _ in range(rounds):
        for each in (log, plain):
            shutil.rmtree(each, ignore_errors=True)

        def rate(found: dict[str, list[float]], name: str, work: Callable[[], None]) -> None:
            start = time.perf_counter()
            work()
            found.setdefault(name, []).append(records / (time.perf_counter() - start))

        table = changes.write.format("imap_wal").mode("append").option("map", "orders")
        rate(ours, BACKFILL, lambda table=table: table.save(str(log)))
        rate(others, BACKFILL, lambda: changes.write.parquet(str(plain)))
        raw = spark.read.format("imap_wal").load(str(log))
        rate(ours, RAW, lambda raw=raw: _taken(raw))
        archives = spark.read.option("recursiveFileLookup", "true").option(
            "pathGlobFilter", "*.parquet"
        )
        columns = archives.parquet(str(log))
        rate(others, RAW, lambda columns=columns: _taken(columns))
        latest = spark.read.format("imap_wal").option("mode", "latest").load(str(log))
        rate(ours, LATEST, lambda latest=latest: _taken(latest))
        newest = columns.groupBy("key").agg(_newest())
        rate(others, LATEST, lambda newest=newest: _taken(newest))
        _check(latest, newest)
    note = f"{records:,} rows; two tasks at a time"
    return [
        *(
            compared(name, ours[name], others[name], peer, note, UNIT)
            for name, peer in PEERS.items()
        ),
        {
            **compared(
                f"{BACKFILL}, goal", ours[BACKFILL], [GOAL] * rounds, f"{GOAL:,}/s", note, UNIT
            ),
            "target": 1.0 if judged else None,
        },
    ]


PEERS = {
    BACKFILL: "plain Parquet, not sorted",
    RAW: "plain Parquet",
    LATEST: "Spark SQL, max_by",
}


def _newest() -> Any:
    from pyspark.sql.functions import expr

    return expr(f"max_by(struct(value, deleted), {ORDER}) as newest")


def _taken(rows: Any) -> None:
    """Read all rows and columns."""
    rows.write.format("noop").mode("overwrite").save()


def _check(latest: Any, newest: Any) -> None:
    ours, theirs = (
        each.selectExpr("count(*)", f"bit_xor(xxhash64(key, {value}))").first()
        for each, value in ((latest, "value"), (newest, "newest.value"))
    )
    if ours != theirs:
        raise RuntimeError(f"the results differ: {ours}, {theirs}")
