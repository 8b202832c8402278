"""Standard streams that the caller has closed, as in `imap-wal ls >&-`.

Python sets such a stream to None, and the next file that the process opens has its descriptor: what
a library prints could then be written into a log.
"""

from __future__ import annotations

import io
import os
import sys


def replace_closed_streams() -> None:
    """Reads find the end, writes on the standard output fail, and errors are lost."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        # Open for reading only: a write fails as on a closed descriptor, so the command does too.
        unwritable = os.open(os.devnull, os.O_RDONLY)
        # Nothing is kept in a buffer, which Python would try to write again at the end.
        raw = os.fdopen(unwritable, "wb", buffering=0)
        sys.stdout = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
