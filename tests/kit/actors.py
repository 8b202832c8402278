"""Actors that run between two calls of a storage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import imap_wal
from imap_wal.context import Context
from imap_wal.embedded.store import Store
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from storage_backends import SegmentStore
from storage_backends.interface import discard_each

NODE = "default/embedded/nodes/n1"


class Interrupted:
    """A storage that lets another actor run before (or after) one call."""

    def __init__(self, inner: SegmentStore) -> None:
        self._inner = inner
        self.capabilities, self.url = inner.capabilities, inner.url
        self.calls = 0
        self.at: int | None = None
        self.when: Callable[[str, str], bool] | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        if name == "discard_all":  # another actor may run between two of its deletions
            return partial(discard_each, self)
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*args: Any, **options: Any) -> Any:
            here, self.calls = self.calls, self.calls + 1
            path = args[0] if args and isinstance(args[0], str) else ""
            kind = "delete" if name == "discard" else name  # two ways to remove a file
            if here == self.at or (self.when is not None and self.when(kind, path)):
                self.at = self.when = None
                self.meanwhile()
            return method(*args, **options)

        return call


def embedded(store: Any, node: str = "n1", **options: Any) -> Store:
    return imap_wal.open("memory://", node=node, storage=store, preallocate=False, **options)


def log_of(store: Any) -> ClusterLog:
    return ClusterLog(Context(store), "default", "embedded")


def compact(store: Any) -> None:
    rewrite(log_of(store), LocalEngine())
    prune(log_of(store))
