"""Reads with the Spark data source in this process, without a session of Spark: by the calls that
Spark makes. That rows and errors pass through Spark is what `tests/spark/test_spark.py` tests."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from pyspark_imap_wal.data_source import ImapWalDataSource


def rows_of(
    source: ImapWalDataSource, *filters: Any, schema: StructType | None = None
) -> list[dict[str, Any]]:
    """The rows of a batch read. `schema`: the one that the user passes, if any."""
    reader: Any = source.reader(schema or source.schema())
    if filters:
        reader.pushFilters(list(filters))
    found: list[dict[str, Any]] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def read(path: object, **options: str) -> list[dict[str, Any]]:
    """What a batch with these options reads."""
    return rows_of(ImapWalDataSource({"path": str(path), **options}))
