"""The progress of a long operation as text: log lines with its name, progress and rate; sizes."""

from __future__ import annotations

import logging

from imap_wal.clock import Clock

_log = logging.getLogger("imap_wal")

EVERY_S = 5.0


class Progress:
    """The progress of one operation. An operation shorter than `EVERY_S` writes no line."""

    def __init__(self, clock: Clock, subject: str) -> None:
        self._clock, self._what = clock, subject
        self._start = self._reported_at = clock.monotonic()
        self._reported = False

    def reached(self, changes: int, part: float | None = None) -> None:
        """Write a line if it is due. `changes`: how many so far. `part`: the fraction of the whole,
        if it is known."""
        now = self._clock.monotonic()
        if now - self._reported_at >= EVERY_S:
            self._reported_at, self._reported = now, True
            of_all = "" if part is None else f", {part:.0%}"
            _log.info("%s: %s%s", self._what, self._rate(changes), of_all)

    def over(self, changes: int, advice: str = "") -> None:
        """The operation has ended: write a last line if there was an earlier one."""
        if self._reported:
            then = f"; {advice}" if advice else ""
            _log.info("%s: done, %s%s", self._what, self._rate(changes), then)

    def _rate(self, changes: int) -> str:
        seconds = self._clock.monotonic() - self._start
        rate = changes / seconds if seconds else 0
        return f"{changes:,} changes in {seconds:.0f} s, {rate:,.0f} a second"


def size(count: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
