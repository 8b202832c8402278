"""TODO imap_wal/manifest."""
