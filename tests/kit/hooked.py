"""A storage that does something before certain reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from storage_backends import SegmentStore


class Hooked:
    """A store over another that counts what is read and may change it."""

    def __init__(self, inner: SegmentStore) -> None:
        self._inner = inner
        self.bytes_read = 0
        self.on_read: Callable[[str, bytes, int], bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._inner.read(path, offset, length)
        if self.on_read is not None:
            data = self.on_read(path, data, offset)
            data = self._inner.read(path, offset, length) if self.on_read is None else data
        self.bytes_read += len(data)
        return data
