"""Files that are identified by an id of the storage."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from storage_backends.errors import NotFound


class HeldByAnswer:
    """A file, and the identity that the storage reports for it. No two files have the same one."""

    def __init__(self, path: str, ask: Callable[[], Hashable]) -> None:
        """`ask` returns the identity of the file at `path` now. It raises `NotFound` if there is
        none; so does this."""
        self.path, self._ask, self._identity = path, ask, ask()
        self._closed = False

    def is_there(self) -> bool:
        if self._closed:
            return False
        try:
            return self._ask() == self._identity
        except NotFound:
            return False

    def close(self) -> None:
        self._closed = True
