"""TODO imap_wal/write."""
