"""Copy the changes of a log into Parquet files, each exactly once.

spark-submit stream_to_parquet.py file:///var/lib/maps /data/changes
"""

import sys

from pyspark_imap_wal.session import session

url, target = sys.argv[1:]
changes = (
    session()
    .readStream.format("imap_wal")
    .option("reader", "stream_to_parquet")
    .option("rows_per_batch", "1000000")
    .load(url)
)
(
    changes.writeStream.format("parquet")
    .partitionBy("map")
    .option("checkpointLocation", f"{target}.checkpoint")
    .trigger(availableNow=True)  # for a timer; processingTime="1 minute" follows without an end
    .start(target)
    .awaitTermination()
)
