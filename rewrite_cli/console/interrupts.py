"""Ctrl-C during imports, which take most of the first half second of a command.

An exception in the middle of an import can be printed with a traceback, or be treated as another
error by a module. Nothing is open yet, so the process ends at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


@contextmanager
def ends_the_process() -> Iterator[None]:
    """Within this, Ctrl-C ends the process, unless the program has a handler of its own."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    os.write(2, b"error: stopped\n")
    os._exit(INTERRUPTED)
