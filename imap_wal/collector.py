"""How often Python's garbage collector runs while millions of rows are read.

In imap-wal's own processes (the command line, and the process that maintains an open log) it runs
rarely all the time. In a user's program only while a store is opened: a library must not change the
collector of its program for longer.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 20, 20)
"""A merge makes millions of tuples and no cycles: with the default thresholds, the collector takes
a third of the time or more."""

_lock = threading.Lock()
_blocks = 0
_former = _set = (0, 0, 0)
"""The thresholds before the first block, and those that were set then. Python 3.14 returns 0 as the
third one."""


def collect_rarely() -> None:
    """Set the thresholds of this process's collector. Not for a program of a user."""
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """The same within the block; several threads may be in such blocks. Then the former thresholds
    are restored, unless other code changed them meanwhile. Nothing changes in a program that
    collects even more rarely, or never."""
    global _blocks, _former, _set  # the collector is the process's
    with _lock:
        if not _blocks:
            _former = gc.get_threshold()
            if 0 < _former[0] < THRESHOLDS[0]:
                collect_rarely()
            _set = gc.get_threshold()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and gc.get_threshold() == _set:
                gc.set_threshold(*_former)
