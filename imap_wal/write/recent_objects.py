"""The objects that a writer created last. An archive run takes them from memory instead of
requesting each of them again."""

from __future__ import annotations

import threading

from storage_backends import SegmentStore
from storage_backends.gated import GatedStore

BYTES_MAX = 8 * 1024 * 1024
"""How much is kept. A larger object is not kept."""


class RecentObjects:
    """Thread-safe. The objects never change, so what is kept is what the storage has."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[str, bytes] = {}
        self._size = 0
        self._mutex = threading.Lock()

    def add(self, path: str, data: bytes) -> None:
        """An object was created. The oldest ones are forgotten when there are too many bytes."""
        if len(data) > self._bytes_max:
            return
        with self._mutex:
            self._size += len(data) - len(self._kept.pop(path, b""))
            self._kept[path] = data
            while self._size > self._bytes_max:
                self._size -= len(self._kept.pop(next(iter(self._kept))))

    def get(self, path: str) -> bytes | None:
        return self._kept.get(path)

    def over(self, store: SegmentStore) -> SegmentStore:
        """`store`, which reads these objects from memory."""
        return _FromMemory(store, self)


class _FromMemory(GatedStore):
    def __init__(self, inner: SegmentStore, recent: RecentObjects) -> None:
        super().__init__(inner)
        self._recent = recent

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        store = self.there(path)  # first: it may refuse
        data = self._recent.get(path)
        if data is None:
            return store.read(path, offset, length)
        return data[offset:] if length is None else data[offset : offset + length]
