"""Reads what other libraries of Python store on disk, for `imap-wal import`. The libraries are not
needed, and their files are not changed."""
