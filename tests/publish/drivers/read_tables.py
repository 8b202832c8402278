"""A driver of Spark that reads published tables, and tries what would delete files of the log.

read_tables.py JARS CATALOG WAREHOUSE DELTA    JARS: with commas; CATALOG: a file of SQLite;
                                               DELTA: the folder of the Delta table
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

TABLE = "lake.embedded.orders"


def session(jars: str, catalog: str, warehouse: str) -> SparkSession:
    builder: Any = SparkSession.builder
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{catalog}",
        "spark.sql.catalog.lake.warehouse": warehouse,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def main(jars: str, catalog: str, warehouse: str, delta: str) -> None:
    spark = session(jars, catalog, warehouse)

    def rows(source: str, version: str = "") -> dict[str, str]:
        read = spark.sql(f"SELECT key_text, value_json FROM {source} {version}")
        return {row[0]: row[1] for row in read.collect()}

    def refusal(statement: str) -> str:
        try:
            spark.sql(statement).collect()
        except Exception as error:
            return str(error)
        return ""

    numbers = [
        row[0]
        for row in spark.sql(
            f"SELECT snapshot_id FROM {TABLE}.snapshots ORDER BY committed_at"
        ).toLocalIterator()
    ]
    expire = f"CALL lake.system.expire_snapshots(table => '{TABLE}', retain_last => 1)"
    print(
        json.dumps(
            {
                "iceberg": [rows(TABLE, f"VERSION AS OF {number}") for number in numbers],
                "delta": [rows(f"delta.`{delta}`", f"VERSION AS OF {at}") for at in range(2)],
                "expire": refusal(expire),
                "purge": refusal(f"DROP TABLE {TABLE} PURGE"),
                "vacuum": refusal(f"VACUUM delta.`{delta}` DRY RUN"),
                "delete": refusal(f"DELETE FROM delta.`{delta}`"),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
