"""Python's garbage collector in imap-wal's own processes: the command line, and the process that
maintains an open log. A library must not change the collector of its program, so no other code
calls this module.
"""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 20, 20)
"""A merge makes millions of tuples and no cycles: with the default thresholds, the collector takes
a third of the time or more."""


def collect_rarely() -> None:
    """Set the thresholds of this process's collector. Not for a program of a user."""
    gc.set_threshold(*THRESHOLDS)
