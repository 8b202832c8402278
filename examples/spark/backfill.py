"""Write a table of Parquet files into a closed log, as the entries of one map.

    spark-submit backfill.py /data/customers file:///var/lib/maps customers

The column `id` is the key; the value is the row as JSON. Read it with `store.map(name, raw=True)`.
"""

import sys

from pyspark.sql import functions

from pyspark_imap_wal.session import session

source, url, name = sys.argv[1:]
rows = session().read.parquet(source)
entries = rows.select(
    functions.col("id").cast("string").cast("binary").alias("key"),
    functions.to_json(functions.struct("*")).cast("binary").alias("value"),
)
entries.write.format("imap_wal").mode("append").option("map", name).save(url)
