"""A file of a store as a binary stream, for stores whose driver has none."""

from __future__ import annotations

import io
from typing import Any

from storage_backends.interface import SegmentStore


class RangedInput(io.RawIOBase):
    """Reads a file by ranges. `size`: of the file, if it is known: then nothing is read after its
    end."""

    def __init__(self, store: SegmentStore, path: str, size: int | None = None) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = 0 if whence == io.SEEK_SET else self._at
        if whence == io.SEEK_END:
            start = self._store.size(self._path) if self._size is None else self._size
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._size is not None and self._at >= self._size:
            return 0
        data = self._store.read(self._path, self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
