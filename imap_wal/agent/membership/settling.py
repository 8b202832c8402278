"""How many partitions the connected members still compare with the log, as their beats say. Until
then, operations on them wait."""

from __future__ import annotations

from imap_wal.clock import Clock


class Settling:
    """Used by the serving thread; `partitions` and `seconds` by any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_sender: dict[bytes, int] = {}
        self._since = 0.0
        self._seconds = 0.0

    @property
    def partitions(self) -> int:
        return sum(list(self._by_sender.values()))

    @property
    def seconds(self) -> float:
        """For how long there have been any, since the log was opened."""
        running = self._clock.monotonic() - self._since if self._by_sender else 0.0
        return self._seconds + running

    def of(self, sender: bytes) -> int:
        return self._by_sender.get(sender, 0)

    def told(self, sender: bytes, partitions: int) -> None:
        """A beat of this connection said how many."""
        before, now = bool(self._by_sender), self._clock.monotonic()
        if partitions:
            self._by_sender[sender] = partitions
        else:
            self._by_sender.pop(sender, None)
        if before and not self._by_sender:
            self._seconds += now - self._since
        elif not before and self._by_sender:
            self._since = now

    def gone(self, sender: bytes) -> None:
        self.told(sender, 0)
