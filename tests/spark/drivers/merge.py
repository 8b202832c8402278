"""A driver of Spark that merges a map into a table with the program of docs/how-to/merge.md.

merge.py JARS KIND LOG FOLDER [BATCH MOMENT]

JARS: with commas. KIND: delta or iceberg. FOLDER: has the program, and gets table and checkpoint.
With BATCH, it kills itself there: before, within or after the merge. Without, it ends when it has
read everything, and writes the rows of the table as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

COLUMNS = "(key BINARY, id BIGINT, status STRING, rescued STRING)"


def session(jars: str, folder: Path) -> SparkSession:
    builder: Any = SparkSession.builder
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def main(jars: str, kind: str, log: str, place: str, fatal: str = "-1", moment: str = "") -> None:
    folder = Path(place)
    sys.path.insert(0, place)
    import merge as program  # type: ignore[import-not-found]

    spark = session(jars, folder)
    table = f"delta.`{folder}/lake/orders`" if kind == "delta" else "lake.shop.orders"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} {COLUMNS} USING {kind}")

    def die() -> None:
        """End like a machine that loses power: neither process does anything more."""
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        os.kill(gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def die_when_a_file_is_new() -> None:
        before = {*folder.glob("lake/**/*.parquet")}
        while not {*folder.glob("lake/**/*.parquet")} - before:
            pass
        die()

    def take(images: DataFrame, batch: int) -> None:
        here = moment if batch == int(fatal) else ""
        if here == "before":
            die()
        if here == "within":
            threading.Thread(target=die_when_a_file_is_new, daemon=True).start()
        program.merge(images, table)
        if here:
            die()

    stream = program.changes_of(spark, log).writeStream.foreachBatch(take)
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).start()
    if moment:
        query.awaitTermination()
    query.processAllAvailable()
    query.stop()
    rows = spark.sql(f"SELECT key, id, status, rescued FROM {table}").collect()
    found = [[bytes(key).hex(), *others] for key, *others in rows]
    (folder / "table.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
