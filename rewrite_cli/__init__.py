"""The command line `imap-wal`, the rewrite engines behind it, and the demo."""
