"""Reads segments before they are needed, several at a time, on a storage where each commit is an
object: there, every read is a request over a network, and most of its time is waiting.

    files, in order ─▶ up to READERS requests at a time, up to AHEAD_BYTES ─▶ the next file

Results arrive in the order of the files. The error of a request is raised when its file is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar, cast

from storage_backends import SegmentStore

READERS = 16
"""How many files are requested at the same time. 1: none before it is needed."""
AHEAD_BYTES = 64 * 1024 * 1024
"""No further file is requested while those that are not needed yet take this much."""

T = TypeVar("T")


class RequestedFile:
    """A store with one file. It is requested once, at the first read, and kept in memory."""

    def __init__(self, store: SegmentStore, request: Callable[[], bytes]) -> None:
        self.capabilities = store.capabilities
        self._request: Callable[[], bytes] | None = request
        self._data = b""

    def size(self, path: str) -> int:
        return len(self.read(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if self._request is not None:
            self._data, self._request = self._request(), None
        if offset == 0 and length is None:
            return self._data
        return self._data[offset:] if length is None else self._data[offset : offset + length]


def held(store: SegmentStore, path: str) -> SegmentStore:
    """The store to read a segment from, in one request if each read is one."""
    if store.capabilities.durable_append or isinstance(store, RequestedFile):
        return store
    return cast(SegmentStore, RequestedFile(store, partial(store.read, path)))


def read_ahead(
    store: SegmentStore, files: Iterable[tuple[T, str, int]]
) -> Generator[tuple[T, SegmentStore]]:
    """Each item with the store to read its file from.

    Args:
        store: The storage.
        files: (item, path of its segment, bytes). Path "": this file is read when it is needed.

    Closing the iterator early drops the requests that have not begun.
    """
    if store.capabilities.durable_append or READERS < 2:
        for item, path, _ in files:
            yield item, held(store, path) if path else store
        return
    upcoming = iter(files)
    waiting: deque[tuple[T, int, Future[bytes] | None]] = deque()
    requested = bytes_ahead = 0
    with ThreadPoolExecutor(READERS, "imap-wal-reader") as pool:
        try:
            while True:
                while requested < READERS and bytes_ahead < AHEAD_BYTES:
                    following = next(upcoming, None)
                    if following is None:
                        break
                    item, path, size = following
                    answer = pool.submit(store.read, path) if path else None
                    requested, bytes_ahead = requested + 1, bytes_ahead + (size if path else 0)
                    waiting.append((item, size if path else 0, answer))
                if not waiting:
                    return
                item, size, answer = waiting.popleft()
                if answer is None:
                    yield item, store
                else:
                    yield item, cast(SegmentStore, RequestedFile(store, answer.result))
                requested, bytes_ahead = requested - 1, bytes_ahead - size
        finally:
            for _, _, answer in waiting:
                if answer is not None:
                    answer.cancel()
