"""TODO imap_wal/rewrite."""
