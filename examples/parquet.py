"""Archives are Parquet: pandas and DuckDB read them without imap-wal.

python examples/parquet.py [FOLDER]
"""

import sys

import duckdb
import pandas as pd

import imap_wal

folder = sys.argv[1] if len(sys.argv) > 1 else "/tmp/imap-wal-example-parquet"

with imap_wal.open(f"file://{folder}", node="example") as store:
    store.map("prices").update({f"item-{number}": number * 1.5 for number in range(1000)})
    store.archive()

files = f"{folder}/default/embedded/nodes/example/archive/prices/*.parquet"
print(
    duckdb.sql(
        f"select count(*) as entries, min(timestamp_ms) as first from '{files}' where not deleted"
    )
)
newest = duckdb.execute(
    "select parquet_file.file from (select max(filename) as file from "
    f"read_parquet('{files}', filename = true)) as parquet_file"
).fetchall()
print(
    pd.read_parquet(
        newest[0][0], columns=["map", "key_class", "deleted", "session", "request"]
    ).tail(3)
)
