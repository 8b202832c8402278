"""Registers `spark.read.format("imap_wal")`: Spark looks for a `DefaultSource` in every installed
module whose name begins with `pyspark_`."""

from storage_backends.extras import needs

with needs("spark"):
    from pyspark_imap_wal.data_source import ImapWalDataSource as DefaultSource

__all__ = ["DefaultSource"]
