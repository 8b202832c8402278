"""The newest live entry of each key, from the archives of a log whose keys each have one writer: as
a user of DuckDB or Spark SQL would write it. `python -m benchmarks.peers.newest HOW LOG OUT`"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

ORDER = "incarnation, partition_version, session, request"
COLUMNS = (
    *("map", "key", "key_class", "value", "value_class", "deleted", "timestamp_ms"),
    *("expires_at_ms", "partition", *ORDER.split(", "), "node"),
)
ENTRY = ", ".join(COLUMNS)
ONE_PASS = f"""
copy (
    select * from (
        select unnest(max_by(struct_pack({", ".join(f"{name} := {name}" for name in COLUMNS)}),
            ({ORDER})))
        from read_parquet('{{files}}') group by map, key
    ) where not deleted and (expires_at_ms = 0 or expires_at_ms > epoch_ms(now()))
    order by map, key
) to '{{out}}/newest.parquet' (format parquet, compression zstd)"""
KEYS_FIRST = f"""
create temp table winners as
select place.file as file, place.row as row from (
    select max_by((filename, file_row_number, deleted, expires_at_ms)::struct(
        file varchar, row bigint, deleted boolean, expires_at_ms bigint), ({ORDER})) as place
    from read_parquet('{{files}}', filename = true, file_row_number = true) group by map, key
) where not place.deleted
    and (place.expires_at_ms = 0 or place.expires_at_ms > epoch_ms(now()));
copy (
    select {ENTRY} from read_parquet('{{files}}', filename = true, file_row_number = true) as log
    semi join winners on log.filename = winners.file and log.file_row_number = winners.row
    order by map, key
) to '{{out}}/newest.parquet' (format parquet, compression zstd)"""


def spark_sql(files: str, out: Path) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.parquet.compression.codec", "zstd")
        .getOrCreate()
    )
    spark.read.parquet(files).createOrReplaceTempView("entries")
    spark.sql(
        f"select newest.* from (select max_by(struct({ENTRY}), struct({ORDER})) as newest "
        "from entries group by map, key) where not newest.deleted and (newest.expires_at_ms = 0 "
        "or newest.expires_at_ms > unix_millis(now())) order by map, key"
    ).write.parquet(str(out))
    spark.stop()


def main(how: str, log: str, to: str) -> None:
    files, out = f"{log}/default/log/nodes/*/archive/*/*.parquet", Path(to)
    if how == "spark-sql":
        spark_sql(files, out)
        return
    out.mkdir()
    for statement in {"keys-first": KEYS_FIRST, "one-pass": ONE_PASS}[how].split(";"):
        duckdb.execute(statement.format(files=files, out=out))


if __name__ == "__main__":
    main(*sys.argv[1:])
