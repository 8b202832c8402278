"""Archives and snapshots as Parquet files. Nothing else in `imap_wal` needs pyarrow to write or
read a file."""
