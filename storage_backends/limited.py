"""A store that reads and writes no more than so many bytes in a second: for work that must leave
the disk and the network to others."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from storage_backends.gated import GatedStore
from storage_backends.interface import SegmentStore

BURST_S = 0.1
"""Up to this time's worth of bytes passes at once."""
BUFFER_BYTES = 128 * 1024


class Rate:
    """Waits so that, on average, no more than `bytes_per_s` are spent. Thread-safe."""

    def __init__(
        self,
        bytes_per_s: int,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s, self._now, self._sleep = bytes_per_s, now, sleep
        self._mutex = threading.Lock()
        self._paid_until = now()
        """When what was spent so far is paid for."""

    def spend(self, count: int) -> None:
        """Count these bytes, and wait until they are paid for."""
        with self._mutex:
            now = self._now()
            self._paid_until = max(self._paid_until, now - BURST_S) + count / self._bytes_per_s
            wait = self._paid_until - now
        if wait > 0:
            self._sleep(wait)


class LimitedStore(GatedStore):
    """The files that are read, and whole files that are written. Appends, of which logs consist,
    are not limited."""

    def __init__(self, inner: SegmentStore, bytes_per_s: int) -> None:
        super().__init__(inner)
        self._rate = Rate(bytes_per_s)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(path, offset, length)
        self._rate.spend(len(data))
        return data

    def open_input(self, path: str) -> BinaryIO:
        inner = super().open_input(path)
        limited = _LimitedInput(inner, self._rate)
        # Readers keep a copy of what is not local.
        is_local = isinstance(inner, io.BufferedReader)
        return cast(BinaryIO, io.BufferedReader(limited, BUFFER_BYTES) if is_local else limited)

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self._rate.spend(len(data))

    def create_from(self, path: str, local_file: str) -> None:
        super().create_from(path, local_file)
        self._rate.spend(os.path.getsize(local_file))


class _LimitedInput(io.RawIOBase):
    def __init__(self, inner: BinaryIO, rate: Rate) -> None:
        self._inner, self._rate = inner, rate

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self._rate.spend(len(data))
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        self._inner.close()
        super().close()
