"""A driver of Spark that copies a log into Parquet files, and ends itself where WHEN says.

follow.py URL OUT CHECKPOINT BATCH WHEN    WHEN: before or after the batch is written
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def follow(
    spark: SparkSession,
    url: str,
    out: str,
    checkpoint: str,
    *,
    limit: tuple[str, int],
    before: Callable[[int], object] = lambda batch: None,
    after: Callable[[int], object] = lambda batch: None,
) -> Any:
    """A stream that is not started. `limit`: of a batch, the name and value of an option. `before`
    and `after` are called with the number of each batch, before and after it is written."""

    def write(rows: DataFrame, batch: int) -> None:
        """A batch that is written twice replaces itself."""
        before(batch)
        rows.write.mode("overwrite").parquet(f"{out}/batch={batch}")
        after(batch)

    changes = spark.readStream.format("imap_wal").option(*limit).option("reader", "copy").load(url)
    return changes.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)


def main(url: str, out: str, checkpoint: str, fatal: str, when: str) -> None:
    from pyspark_imap_wal.session import session

    spark = session(**{"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})

    def die(batch: int) -> None:
        """End like a machine that loses power: neither process does anything more."""
        if batch == int(fatal):
            gateway = spark.sparkContext._gateway
            assert gateway is not None
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    stream = follow(spark, url, out, checkpoint, limit=("rows_per_batch", 200), **{when: die})
    stream.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
