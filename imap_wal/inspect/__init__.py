"""TODO imap_wal/inspect."""
