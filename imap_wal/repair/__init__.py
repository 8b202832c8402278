"""TODO imap_wal/repair."""
