"""A storage whose syncs can be delayed."""

from __future__ import annotations

import threading
from typing import Any

from storage_backends import SegmentStore


class Gate:
    """A store whose appender waits at `sync` while the gate is shut."""

    def __init__(self, inner: SegmentStore) -> None:
        self._inner = inner
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Any:
        appender, gate = self._inner.open_append(path, preallocate_bytes), self

        class Waiting:
            def __getattr__(self, name: str) -> Any:
                return getattr(appender, name)

            def sync(self) -> None:
                gate.waiting.set()
                assert gate.open.wait(30)
                appender.sync()

        return Waiting()
