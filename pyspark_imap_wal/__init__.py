"""Spark finds the data source `imap_wal` by the name of this package."""
