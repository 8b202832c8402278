"""A background thread whose failures are recorded and shown.

Every background thread of an open log (reads, keeper, archiver, mender) is a `Worker`: it calls one
function, the turn, again and again. What a turn raises is logged, counted and kept in `state` until
a later turn succeeds; then the next turn is tried, after a pause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

PAUSE_S, PAUSE_S_MAX = 0.1, 5.0
"""After a turn that raised, the next one waits this long; the pause doubles each time."""

_log = logging.getLogger("imap_wal")


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A snapshot. `error`: what the last turn raised, "" after one that succeeded. `failures`: how
    many turns raised. `alive`: whether the thread still runs."""

    alive: bool
    error: str
    failures: int


class Worker:
    """Calls `turn` with itself on a thread of its own until `stop`. A turn that has nothing to do
    waits. It returns whether it did its work: only that clears the error of an earlier turn."""

    def __init__(self, name: str, turn: Turn) -> None:
        self.name, self._turn = name, turn
        self.stopping = threading.Event()
        self.state = WorkerState(alive=True, error="", failures=0)
        """Replaced as a whole: safe to read from any thread."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def failed(self, error: BaseException, *, alive: bool = True) -> None:
        """Record an error; a turn may call this for one that it has handled itself."""
        text = f"{type(error).__name__}: {error}"
        if text != self.state.error:
            _log.error("thread %s: %s", self.name, text, exc_info=error)
        self.state = WorkerState(alive, text, self.state.failures + 1)

    @property
    def trouble(self) -> str:
        """Why this thread is not healthy; "" while it is."""
        return f"thread {self.name}: {self.state.error}" if self.state.error else ""

    def stop(self, timeout_s: float | None = None) -> bool:
        """Have it end after the turn under way, and wait for that; whether it ended. What a turn
        waits for must be woken before."""
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


Turn: TypeAlias = Callable[[Worker], bool]
