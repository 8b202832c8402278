"""A store that reads and writes at most a given number of bytes per second, for work that must
leave most of the disk and the network to others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from storage_backends.interface import SegmentStore
from storage_backends.metered import MeteredStore

BURST_S = 0.1
"""Up to this time's worth of bytes passes at once."""


class Rate:
    """Waits so that, on average, no more than `bytes_per_s` are spent. Thread-safe."""

    def __init__(
        self,
        bytes_per_s: int,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_s, self._now, self._sleep = bytes_per_s, now, sleep
        self._mutex = threading.Lock()
        self._paid_until = now()
        """The moment at which the bytes spent so far are paid for."""

    def spend(self, count: int) -> None:
        """Count these bytes, and wait until they are paid for."""
        with self._mutex:
            now = self._now()
            self._paid_until = max(self._paid_until, now - BURST_S) + count / self._bytes_per_s
            wait = self._paid_until - now
        if wait > 0:
            self._sleep(wait)


class LimitedStore(MeteredStore):
    """Limits the reading of files, and the writing of whole files. Appends, of which logs consist,
    are not limited. `sleep`: waits this number of seconds."""

    def __init__(
        self,
        inner: SegmentStore,
        bytes_per_s: int,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        rate = Rate(bytes_per_s, sleep=sleep)
        super().__init__(inner, rate.spend, rate.spend)
