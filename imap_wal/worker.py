"""A background thread that records its failures.

Every background thread of an open log is a `Worker`: those of `imap_wal.write.maintenance`; in an
agent also those of reads, mender, signs of life, and its sockets. Only the timer that ends an idle
process (`imap_wal.retention.other_process`) is not one. A worker calls one function, the turn,
repeatedly. An exception of a turn is logged, counted and kept in `state` until a later turn
succeeds. After a pause, the next turn is tried.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from imap_wal.errors import InvalidSetting

PAUSE_S, PAUSE_S_MAX = 0.1, 5.0
"""The pause after a turn that raised; it doubles each time, up to the maximum."""

_log = logging.getLogger("imap_wal")


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A snapshot of a worker's state. `error`: the error of the last turn; "" if it succeeded.
    `failures`: the number of turns that raised. `alive`: whether the thread still runs."""

    alive: bool
    error: str
    failures: int


class Worker:
    """Calls `turn(worker)` repeatedly on its own thread until `stop`. A turn without work waits. It
    returns whether it did its work; only True clears the error of an earlier turn."""

    def __init__(self, name: str, turn: Turn) -> None:
        self.name, self._turn = name, turn
        self.stopping = threading.Event()
        self.state = WorkerState(alive=True, error="", failures=0)
        """Replaced as a whole: safe to read from any thread."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def failed(self, error: BaseException, *, alive: bool = True) -> None:
        """Record an error. A turn may call this for an error that it handles itself."""
        text = f"{type(error).__name__}: {error}"
        if text != self.state.error:
            _log.error("thread %s: %s", self.name, text, exc_info=error)
        self.state = WorkerState(alive, text, self.state.failures + 1)

    @property
    def trouble(self) -> str:
        """Why this thread is not healthy; "" if it is."""
        return trouble(self.name, self.state)

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the thread after the current turn, and wait for that. Returns whether it has ended.
        The caller must first wake the turn if it waits."""
        self.stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self.stopping.is_set():
                before = self.state.failures
                try:
                    done = self._turn(self)
                except Exception as error:  # noqa: BLE001  # whatever it is, this thread must continue
                    self.failed(error)
                    pause = min(2 * pause or PAUSE_S, PAUSE_S_MAX)
                    self.stopping.wait(pause)
                else:
                    pause = 0.0
                    if done and self.state.error and self.state.failures == before:
                        self.state = replace(self.state, error="")
        except BaseException as error:
            self.failed(error, alive=False)
            raise


def trouble(name: str, state: WorkerState) -> str:
    """Why a thread is not healthy; "" if it is."""
    return f"thread {name}: {state.error}" if state.error else ""


Turn: TypeAlias = Callable[[Worker], bool]


# A value from a file that can change while the process runs.

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
