"""TODO imap_wal/segment."""
