"""Limits on what each new change may add to a log for all who read it: maps cost files in archives
and snapshots, and different partition counts of clears make each lookup of a restore longer."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

from imap_wal.errors import NotAppended

T = TypeVar("T", str, int)

CLEAR_COUNTS_MAX = 8
"""How many different partition counts the clears of a log may have. A cluster has one. A reader
refuses a map with more than `clears.COUNTS_MAX`. Each agent counts for itself, and learns at its
next merge what other agents have admitted."""


class TooMany(NotAppended):
    """A change would add something new, such as a map, to a log that already has as many as are
    allowed."""


class Limit(Generic[T]):
    """Used by the serving thread. `of_log`: what the logs had when they were last read; None: they
    have not been read since the start. `what`, `advice`: for the text of the error."""

    def __init__(
        self, noun: str, most: int, of_log: Callable[[], AbstractSet[T] | None], advice: str
    ) -> None:
        self._what, self._most, self._advice = noun, most, advice
        self._of_log: Callable[[], AbstractSet[T] | None] = of_log
        self._known: set[T] = set()

    def demand(self, values: AbstractSet[T]) -> None:
        """Admit changes with these values. Raises `TooMany` if one of them is new and the limit is
        reached; what the log already has is always admitted."""
        if values <= self._known:
            return
        of_log = self._of_log()
        if of_log is not None:
            self._known |= of_log
        new = values - self._known
        if new and len(self._known) + len(new) > self._most:
            value = f"{self._what} {min(new)!r}"
            reason = (
                f"{value} is new, and there are {len(self._known)} others"
                if of_log is not None
                else f"{value} may be new: the logs have not been read since the start"
            )
            raise TooMany(f"{reason}; the limit is {self._most}. {self._advice}")
        self._known |= new
