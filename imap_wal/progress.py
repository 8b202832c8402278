"""A line in the log now and then while something takes long: who waits wants to know for what, and
for how much longer."""

from __future__ import annotations

import logging

from imap_wal.clock import Clock

_log = logging.getLogger("imap_wal")

EVERY_S = 5.0


class Progress:
    """Of one work on so many changes. What is done sooner is not spoken of."""

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock, self._what = clock, what
        self._start = self._told_at = clock.monotonic()
        self._told = False

    def reached(self, changes: int, part: float | None = None) -> None:
        """So many changes until now, which is this part of all, if that is known."""
        now = self._clock.monotonic()
        if now - self._told_at >= EVERY_S:
            self._told_at, self._told = now, True
            of_all = "" if part is None else f", {part:.0%}"
            _log.info("%s: %s%s", self._what, self._rate(changes), of_all)

    def over(self, changes: int, advice: str = "") -> None:
        """The last line, if there was one before."""
        if self._told:
            _log.info("%s: done, %s%s", self._what, self._rate(changes), f"; {advice}" if advice else "")

    def _rate(self, changes: int) -> str:
        seconds = self._clock.monotonic() - self._start
        return f"{changes:,} changes in {seconds:.0f} s, {changes / seconds if seconds else 0:,.0f} a second"
