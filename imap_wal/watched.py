"""A value from a file that can change while the process runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from imap_wal.errors import InvalidSetting

T = TypeVar("T")
_Sign: TypeAlias = tuple[int, ...]


class Watched(Generic[T]):
    """A value that is read from a file, and again when the file has changed. While the file cannot
    be read, the last value stays valid, and every `look` tries again. Thread-safe.

    `path`: None if the source is not a file; then only `read_again` reads it again. `read` may
    raise `InvalidSetting`; `on_error` is called with that error, once for each state of the file.
    `value`: the first value, if it is known; otherwise it is read now, which may raise
    `InvalidSetting`."""

    def __init__(
        self,
        path: str | Path | None,
        read: Callable[[], T],
        on_error: Callable[[InvalidSetting], None],
        value: T | None = None,
    ) -> None:
        self._path, self._read, self._on_error = path, read, on_error
        self._reading = threading.Lock()
        # Taken before the file is read, so that the next look notices a change during the read.
        self._sign = self._sign_now()
        self._refused: _Sign | None = None
        """The state of the file whose error was reported."""
        self._value = read() if value is None else value

    @property
    def last(self) -> T:
        """The value of the last look."""
        return self._value

    def look(self) -> T:
        """The current value. While another thread reads the file, which may take long, this returns
        the last value."""
        if self._path is not None and self._reading.acquire(blocking=False):
            try:
                if self._sign_now() != self._sign:
                    self._read_now()
            finally:
                self._reading.release()
        return self._value

    def read_again(self) -> T:
        """The value, read now."""
        with self._reading:
            self._read_now()
        return self._value

    def _read_now(self) -> None:
        sign = self._sign_now()
        try:
            value = self._read()
        except InvalidSetting as error:
            if sign != self._refused:
                self._refused = sign
                self._on_error(error)
        else:
            self._value, self._sign, self._refused = value, sign, None

    def _sign_now(self) -> _Sign:
        if self._path is None:
            return ()
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode, status.st_uid
