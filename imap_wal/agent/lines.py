"""Limits the log lines that peers can cause.

In each time window, an event has one line for each subject (`about`), and at most `ABOUT_MAX`
lines. So a flood of one event does not hide others. The omitted lines are counted; when the window
ends, one line reports their numbers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import structlog

from imap_wal.clock import Clock

WINDOW_S = 10.0
ABOUT_MAX = 20

_log = structlog.get_logger("imap_wal.agent")


class Lines:
    """Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._since = clock.monotonic()
        self._written: dict[str, set[Hashable]] = {}
        """In this window: event → subjects of its lines."""
        self._left_out: Counter[str] = Counter()

    def info(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """Write the line unless this window already has one with the same event and `about`."""
        self._write(_log.info, event, about, fields)

    def warning(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """As `info`."""
        self._write(_log.warning, event, about, fields)

    def error(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """As `info`."""
        self._write(_log.error, event, about, fields)

    def exception(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """As `info`, with the traceback of the exception that is being handled."""
        self._write(_log.exception, event, about, fields)

    def report_omitted(self) -> None:
        """If the window has ended, report the omitted lines and begin the next window. It must be
        called regularly."""
        with self._mutex:
            now = self._clock.monotonic()
            if now - self._since < WINDOW_S:
                return
            left_out, self._left_out = dict(self._left_out), Counter()
            self._written.clear()
            seconds, self._since = now - self._since, now
        if left_out:
            _log.warning("log lines left out", lines=left_out, seconds=round(seconds))

    def _write(
        self, write: Callable[..., Any], event: str, about: Hashable, fields: dict[str, Any]
    ) -> None:
        self.report_omitted()
        with self._mutex:
            written = self._written.setdefault(event, set())
            if about in written or len(written) >= ABOUT_MAX:
                self._left_out[event] += 1
                return
            written.add(about)
        write(event, **fields)
