"""Wakes those that wait for the next commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from imap_wal.format import Position

Wake = Callable[[], object]


class CommitSignal:
    """The end of the log at the last acknowledged commit. Thread-safe. `position`: the end now."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.ended = False
        """The log was closed: there will be no more commits."""
        self._waiting: dict[object, Wake] = {}

    def reached(self, position: Position) -> None:
        """A commit up to there was acknowledged."""
        self.position = position
        if self._waiting:
            self.wake()

    def end(self) -> None:
        """The log was closed."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Call all that wait, once."""
        while self._waiting:
            with suppress(KeyError):  # another thread took the last one
                self._waiting.popitem()[1]()

    def add(self, wake: Wake) -> Callable[[], None]:
        """Call `wake` at the next commit. Returns a function that cancels this."""
        key = object()
        self._waiting[key] = wake

        def cancel() -> None:
            self._waiting.pop(key, None)

        return cancel

    def wait(
        self, seen: Position, seconds: float | None, stop: threading.Event | None = None
    ) -> None:
        """Return when there is a commit after `seen`, the log is closed, or `stop` is set: whoever
        sets it calls `wake`. Or after `seconds`; None: no limit."""
        woken = threading.Event()
        cancel = self._add(woken.set)  # before the look, so that no commit is missed
        try:
            if self._is_last(seen) and not (stop is not None and stop.is_set()):
                woken.wait(seconds)
        finally:
            cancel()

    async def wait_async(self, seen: Position, seconds: float) -> None:
        """The same in a task."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(woken.set)

        cancel = self._add(wake)
        try:
            if self._is_last(seen):
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), seconds)
        finally:
            cancel()

    def _is_last(self, seen: Position) -> bool:
        return self.position == seen and not self.ended

    def _add(self, wake: Wake) -> Callable[[], None]:
        """Call `wake` at the next commit. Returns a function that cancels this."""
        key = object()
        self._waiting[key] = wake
        return lambda: self._waiting.pop(key, None) and None
