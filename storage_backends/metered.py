"""A store that reports how many bytes are read and written through it."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, TypeAlias, cast

from storage_backends.gated import GatedStore
from storage_backends.interface import SegmentStore

BUFFER_BYTES = 128 * 1024
Tell: TypeAlias = Callable[[int], None]


class MeteredStore(GatedStore):
    """Counts the bytes of files that are read, and of whole files that are written, but not of
    appends, of which logs consist. `read`, `written`: called with a number of bytes, from any
    thread."""

    def __init__(self, inner: SegmentStore, read: Tell, written: Tell) -> None:
        super().__init__(inner)
        self._read, self._written = read, written

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(path, offset, length)
        self._read(len(data))
        return data

    def open_input(self, path: str) -> BinaryIO:
        inner = super().open_input(path)
        metered = _MeteredInput(inner, self._read)
        # Readers keep a copy of what is not local.
        is_local = isinstance(inner, io.BufferedReader)
        return cast(BinaryIO, io.BufferedReader(metered, BUFFER_BYTES) if is_local else metered)

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self._written(len(data))

    def create_from(self, path: str, local_file: str) -> None:
        super().create_from(path, local_file)
        self._written(self.size(path))


class Meter:
    """The bytes that were read and written through stores. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.read_bytes = self.written_bytes = 0

    def on(self, store: SegmentStore) -> MeteredStore:
        """The store, with its bytes counted here."""
        return MeteredStore(store, self._read, self._written)

    def _read(self, count: int) -> None:
        with self._mutex:
            self.read_bytes += count

    def _written(self, count: int) -> None:
        with self._mutex:
            self.written_bytes += count


class _MeteredInput(io.RawIOBase):
    def __init__(self, inner: BinaryIO, read: Tell) -> None:
        self._inner, self._count = inner, read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self._count(len(data))
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        self._inner.close()
        super().close()


# A store that reads and writes at most a given number of bytes per second, for work that must leave
# most of the disk and the network to others.

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
