"""Syncs that can be delayed, so that several callers share a commit on any machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from storage_backends import SegmentStore, descriptors
from tests.support import eventually


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


@contextmanager
def first_sync_waits_until(enough: Callable[[], bool]) -> Iterator[None]:
    """The first sync of a local file waits for this, and no other one does."""
    sync, first = descriptors._sync_data, threading.Lock()

    def waiting(fd: int) -> None:
        if first.acquire(blocking=False):
            eventually(enough, "others have arrived while the first is synced")
        sync(fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptors, "_sync_data", waiting)
        yield
