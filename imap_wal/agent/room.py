"""The memory of the waiting requests of all connections together."""

from __future__ import annotations

import threading

from imap_wal.agent.bounds import SMALL_BYTES, WAITING_BYTES_MAX


class Room:
    """Counts bytes, up to `most`. Used by the serving thread and the thread of reads."""

    def __init__(self, most: int = WAITING_BYTES_MAX) -> None:
        self._mutex = threading.Lock()
        self._most = most
        self.bytes = 0

    def enter(self, size: int) -> bool:
        """Count these bytes if there is room; returns whether there is. A small request always has
        room: its connection has its own limits, and large requests of others must not block it."""
        with self._mutex:
            if size > SMALL_BYTES and self.bytes + size > self._most:
                return False
            self.bytes += size
            return True

    def leave(self, size: int) -> None:
        """A request that entered with this size no longer waits."""
        with self._mutex:
            self.bytes -= size
