"""TODO imap_wal/embedded."""
