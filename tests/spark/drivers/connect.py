"""A client of Spark Connect: reads a log, follows it, adds to another, and asks for a session of
ours. It prints what it has found as JSON.

connect.py ADDRESS URL TARGET FOLDER
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from imap_wal.errors import InvalidSetting
from pyspark_imap_wal.session import session

address, url, target, folder = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
spark.conf.set("spark.sql.connect.serverStacktrace.enabled", "false")
log = spark.read.format("imap_wal").load(url)
latest = spark.read.format("imap_wal").option("mode", "latest").load(url)
(
    spark.readStream.format("imap_wal")
    .load(url)
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{folder}/copy")
    .awaitTermination()
)
rows = spark.createDataFrame([(b"k1", b"v1"), (b"k2", b"v2")], "key binary, value binary")
rows.write.format("imap_wal").mode("append").option("map", "imported").save(target)
spark.sql(f"create table entries using imap_wal options (path '{url}', map 'orders')")
try:
    spark.read.format("imap_wal").option("colour", "red").load(url).count()
    mistake = ""
except PySparkException as error:
    mistake = str(error)
try:
    refused = type(session()).__name__
except InvalidSetting as error:
    refused = str(error)
print(
    json.dumps(
        {
            "client": type(spark).__module__,
            "raw": log.where("map = 'orders'").count(),
            "latest": sorted(row["key"].decode() for row in latest.collect()),
            "stream": spark.read.parquet(f"{folder}/copy").count(),
            "table": spark.table("entries").count(),
            "mistake": mistake,
            "refused": refused,
        }
    )
)
