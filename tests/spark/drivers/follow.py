"""A driver of Spark that copies a log into Parquet files, and ends itself where WHEN says.

follow.py URL OUT CHECKPOINT BATCH WHEN    WHEN: before or after the batch is written, or never
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import DataFrame

from pyspark_imap_wal.session import session

url, out, checkpoint, fatal, when = sys.argv[1:]
spark = session(**{"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})


def die() -> None:
    """End like a machine that loses power: neither process does anything more."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def write(rows: DataFrame, batch: int) -> None:
    """A batch that is written twice replaces itself."""
    if when == "before" and batch == int(fatal):
        die()
    rows.write.mode("overwrite").parquet(f"{out}/batch={batch}")
    if when == "after" and batch == int(fatal):
        die()


changes = (
    spark.readStream.format("imap_wal")
    .option("rows_per_batch", "200" if when != "never" else "5000")
    .option("reader", "copy")
    .load(url)
)
stream = changes.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
if when == "never":
    stream.trigger(availableNow=True).start().awaitTermination()
else:
    stream.start().awaitTermination()
