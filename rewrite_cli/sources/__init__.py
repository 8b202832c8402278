"""What other libraries of Python store on disk: `imap-wal import` reads it. None of them is needed,
and nothing of theirs is changed."""
