"""TODO imap_wal/read."""
