"""Spark looks into every installed module whose name begins with `pyspark_` for a `DefaultSource`:
this makes `spark.read.format("imap_wal")` work."""

from storage_backends.extras import needs

with needs("spark"):
    from pyspark_imap_wal.data_source import ImapWalDataSource as DefaultSource

__all__ = ["DefaultSource"]
