"""Spark looks into every installed module whose name begins with `pyspark_` for a `DefaultSource`: this makes `spark.read.format("imap_wal")` work."""

from rewrite_cli.spark import ImapWalDataSource as DefaultSource

__all__ = ["DefaultSource"]
