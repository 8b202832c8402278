"""`make bench`: imap-wal measured against peers in the same run, as ratios."""
