"""TODO imap_wal/retention."""
