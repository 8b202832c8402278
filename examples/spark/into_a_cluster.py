"""Put a table of Parquet files into a map of a running Hazelcast cluster. Each entry is in the log
before `put_all` returns, as with every other client.

    spark-submit into_a_cluster.py /data/customers customers member-1:5701
"""

import sys
from collections.abc import Iterable
from itertools import islice

from pyspark.sql import Row

from pyspark_imap_wal.session import session

ENTRIES = 1000


def put(rows: Iterable[Row], name: str, members: list[str]) -> None:
    import hazelcast

    client = hazelcast.HazelcastClient(cluster_members=members)
    try:
        target = client.get_map(name).blocking()
        left = iter(rows)
        while some := list(islice(left, ENTRIES)):
            target.put_all({row["id"]: row["value"] for row in some})
    finally:
        client.shutdown()


source, name, *members = sys.argv[1:]
table = session().read.parquet(source).select("id", "value")
# A task that is tried again puts the same entries again.
table.foreachPartition(lambda rows: put(rows, name, members))
