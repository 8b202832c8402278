"""`make bench`: what imap-wal exists for, measured against peers in the same run, as ratios."""
