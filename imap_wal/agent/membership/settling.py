"""How many partitions the connected members have not yet compared with the log, as their beats say.
Until then, operations on them wait."""

from __future__ import annotations

from imap_wal.clock import Clock


class Settling:
    """Used by the serving thread; `partitions`, `seconds` and `running_s` by any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_sender: dict[bytes, int] = {}
        self._time: tuple[float, float | None] = (0.0, None)
        """Seconds until the last time when there were none, and since when there are some. Replaced
        as a whole."""

    @property
    def partitions(self) -> int:
        return sum(list(self._by_sender.values()))

    @property
    def running_s(self) -> float:
        """For how long there have been any without a break; 0: there are none."""
        _, since = self._time
        return 0.0 if since is None else max(0.0, self._clock.monotonic() - since)

    @property
    def seconds(self) -> float:
        """For how long there were any, since the log was opened."""
        before, since = self._time
        return before if since is None else before + max(0.0, self._clock.monotonic() - since)

    def of(self, sender: bytes) -> int:
        return self._by_sender.get(sender, 0)

    def told(self, sender: bytes, partitions: int) -> None:
        """A beat of this connection said how many."""
        if partitions:
            self._by_sender[sender] = partitions
        else:
            self._by_sender.pop(sender, None)
        _, since = self._time
        if self._by_sender and since is None:
            self._time = self._time[0], self._clock.monotonic()
        elif not self._by_sender and since is not None:
            self._time = self.seconds, None

    def gone(self, sender: bytes) -> None:
        self.told(sender, 0)
