"""Storages in which something happens before one of their operations."""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage_backends import SegmentStore
from storage_backends.gated import GatedStore

LATER = 2000
"""Operations after which `over` is set."""


class AtCall(GatedStore):
    """Before operation number `at`, counted from 0, `act` is called. `over` is set a while later,
    for readers that would wait without end. `close` does nothing: it is opened again."""

    def __init__(self, inner: SegmentStore, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.calls, self._at, self._act = 0, at, act
        self.over = threading.Event()

    def there(self, path: str = "") -> SegmentStore:
        self.calls += 1
        if self.calls == self._at + 1:
            self._act()
        if self.calls > self._at + LATER:
            self.over.set()
        return self.inner

    def close(self) -> None:
        """The next part of the test has it too."""


def replaced(first: SegmentStore, then: SegmentStore, at: int) -> AtCall:
    """`first`, in whose place is `then` from operation number `at` on."""

    def act() -> None:
        store.inner = then

    store = AtCall(first, at, act)
    return store


def counted(store: SegmentStore) -> AtCall:
    """A storage that only counts its operations."""
    return AtCall(store, -LATER, lambda: None)
