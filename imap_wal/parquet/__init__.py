"""Archives and snapshots as Parquet files. Only this part of `imap_wal` needs pyarrow to write or
read a file."""
