"""Signals that end a command.

Imports take most of the first half second of a command. Ctrl-C in the middle of an import could
print a traceback, or a module could treat the exception as another error. Nothing is open then, so
Ctrl-C ends the process at once.

Later, SIGTERM and SIGHUP end a command as Ctrl-C does: it removes its scratch files and releases
its locks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
_SIGNALLED = 128
_received: list[int] = []


class Terminated(KeyboardInterrupt):
    """A signal asks the process to end. Everything that handles Ctrl-C handles this."""


def as_ctrl_c() -> None:
    """From now on SIGTERM and SIGHUP have the effect of Ctrl-C, unless the program has handlers of
    its own or was started with `nohup`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def exit_code() -> int:
    """The exit code of a command that a signal has ended: 128 and the signal's number."""
    return _SIGNALLED + _received[0] if _received else INTERRUPTED


def _terminate(number: int, frame: object) -> None:
    _received.append(number)
    raise Terminated


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
