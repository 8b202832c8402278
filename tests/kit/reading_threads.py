"""Threads that read ahead."""

from __future__ import annotations

import re
import threading


def reading_threads() -> list[threading.Thread]:
    """Those of an archive run, a rewrite or a reader. `imap-wal-reads` is another one, of an agent,
    which a test before this one may have started."""
    return [
        thread
        for thread in threading.enumerate()
        if re.fullmatch(r"imap-wal-read(er)?_\d+", thread.name)
    ]
