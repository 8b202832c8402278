"""Which process applies which partitions, when several run one consumer.

    each process, every second   what it applies now ─▶ the process that serves ─▶ what it may apply
    too much                     it ends the batch, and says next time that it applies less
    too little                   it gets partitions that no process applies

The shares are in memory. If two processes apply one partition for a moment, because a process was
stopped or another one serves now, marks in a database or a map let each transaction count once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from imap_wal.clock import Clock

LEASE_S = 5.0
"""A process that has not asked for this long loses its partitions."""
ASK_S = 1.0
"""The interval in seconds at which a process asks."""


class Shares:
    """The shares of the processes that run one consumer. Thread-safe."""

    def __init__(self, partitions: int, clock: Clock) -> None:
        self._partitions, self._clock = range(partitions), clock
        self._mutex = threading.Lock()
        self._seen: dict[bytes, float] = {}
        """Process → when it has asked."""
        self._owners: dict[int, bytes] = {}

    def ask(self, process: bytes, applied: Iterable[int]) -> list[int]:
        """The partitions that a process may apply. `applied`: those that it applies now."""
        now, applied = self._clock.monotonic(), {*applied}
        with self._mutex:
            self._seen[process] = now
            for other, seen in list(self._seen.items()):
                if now - seen >= LEASE_S:
                    self._forget(other)
            for number in applied & {*self._partitions}:
                self._owners.setdefault(number, process)  # the former server gave it this partition
            own = [number for number in self._partitions if self._owners.get(number) == process]
            most = -(-len(self._partitions) // len(self._seen))
            for number in own[most:]:
                if number not in applied:
                    del self._owners[number]
            free = [number for number in self._partitions if number not in self._owners]
            for number in free[: max(0, most - len(own))]:
                self._owners[number] = process
                own.append(number)
            return sorted(own[:most])

    def leave(self, process: bytes) -> None:
        """A process applies nothing any more."""
        with self._mutex:
            self._forget(process)

    def _forget(self, process: bytes) -> None:
        self._seen.pop(process, None)
        for number in [of for of, owner in self._owners.items() if owner == process]:
            del self._owners[number]
