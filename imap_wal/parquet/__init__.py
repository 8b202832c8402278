"""TODO imap_wal/parquet."""
