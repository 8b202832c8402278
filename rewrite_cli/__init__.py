"""The command line `imap-wal`, its rewrite engines, and the demo."""
