"""A driver of an older release of Spark that copies a log into Parquet files.

available_now.py URL OUT CHECKPOINT OPTION WRAPPER BATCH

OPTION: `available_now` of the data source. WRAPPER: Spark's property, true or false. BATCH: end the
program when this batch was read and before it is written; -1: never.
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import DataFrame, SparkSession

url, out, checkpoint, option, wrapper, fatal = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.sql.streaming.triggerAvailableNowWrapper.enabled", wrapper)
    .getOrCreate()
)


def write(rows: DataFrame, batch: int) -> None:
    """A batch that is written twice replaces itself."""
    if batch == int(fatal):
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGKILL)
    rows.write.mode("overwrite").parquet(f"{out}/batch={batch}")


changes = spark.readStream.format("imap_wal")
if option:
    changes = changes.option("available_now", option)
stream = changes.load(url).writeStream.foreachBatch(write)
stream.option("checkpointLocation", checkpoint).trigger(
    availableNow=True
).start().awaitTermination()
