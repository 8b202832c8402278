"""Python's garbage collector in processes of imap-wal's own: the command line, and the process that
maintains an open log. A library must not change its program's collector, so nothing else calls it.
"""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 20)
"""A merge makes millions of tuples and no cycles: with the default thresholds, the collector takes
a third of the time or more."""


def collect_rarely() -> None:
    """Set the thresholds of this process's collector. Not for a program of a user."""
    gc.set_threshold(*THRESHOLDS)
