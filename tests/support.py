"""Helpers for tests of several folders."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import imap_wal
from imap_wal import entry
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.entry import DataEntry
from imap_wal.format import SegmentHeader
from imap_wal.layout import Identity
from imap_wal.security.encryption_keys import NO_KEYS, Keys
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore

IDENTITY = Identity("default", "embedded", "n1")
_names = itertools.count(1)


class FakeClock:
    """A clock that changes only by `advance`."""

    def __init__(self, now_ms: int = 1_763_720_000_000) -> None:
        self._now_ms, self._seconds = now_ms, 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)
        self._seconds += seconds


def copy_files(source: SegmentStore) -> MemoryStore:
    """A copy of what remains if the process that writes `source` is killed now: its files, without
    its locks."""
    left = MemoryStore(f"copy-{next(_names)}")
    for file in source.list(""):
        left.create(file.path, source.read(file.path))
    return left


def segments(store: SegmentStore) -> list[str]:
    """Paths of all segments, in log order."""
    return [file.path for file in store.list("") if file.path.endswith(".wal")]


def overwrite(store: SegmentStore, path: str, data: bytes) -> None:
    """Replace a file's content without notice to its writer or readers."""
    store.delete(path)
    store.create(path, data)


def header(**changes: Any) -> SegmentHeader:
    fields: dict[str, Any] = {
        "segment_id": bytes(range(16)),
        "namespace": "default",
        "cluster": "embedded",
        "node": "n1",
        "epoch": 1,
        "number": 1,
        "previous_checksum": 0,
        "created_ms": 1_763_720_000_000,
        "directory": "00000000-0000-4000-8000-000000000001",
    }
    return SegmentHeader(**{**fields, **changes})


def row(key: str, value: str | None, request: int = 1, session: int = 1) -> bytes:
    """A packed entry."""
    data = None if value is None else value.encode()
    return entry.pack(
        DataEntry(
            "m",
            key.encode(),
            "raw",
            data,
            "raw",
            value is None,
            1_763_720_000_000,
            0,
            0,
            (1, 0, session, request),
        )
    )


def node_log(
    store: SegmentStore,
    *,
    takeover: bool = False,
    seed: int = 1,
    keys: Keys = NO_KEYS,
    **settings: Any,
) -> NodeLog:
    """The log of n1 of the embedded cluster, opened for writing."""
    settings = {"segment_bytes": 64 * 1024, "preallocate": False, **settings}
    return open_node_log(
        LogContext(
            Context(store, keys, FakeClock(), SeededRandomness(seed)),
            IDENTITY,
            Settings(**settings),
        ),
        holder="the test",
        takeover=takeover,
    )


def embedded(store: SegmentStore, **options: Any) -> imap_wal.Store:
    """An embedded store of node n1 over `store`, with small segments."""
    options = {"segment_bytes": 64 * 1024, "preallocate": False, **options}
    return imap_wal.open(store.url, node="n1", storage=store, **options)


def contents(store: SegmentStore, name: str = "m", **options: Any) -> dict[Any, Any]:
    """The contents of a map after all writers of `store` were killed."""
    with embedded(copy_files(store), **options) as opened:
        return dict(opened.map(name).items())


def eventually(condition: Callable[[], Any], what: str, seconds: float = 20) -> Any:
    """Wait up to `seconds` for a condition and return its value. On timeout, fail with `what`."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.002)
    return answer


class Threads:
    """Threads that start together; `join` raises what one of them raised."""

    def __init__(self, *works: Callable[[], Any]) -> None:
        self._errors: list[BaseException] = []
        self._gate = threading.Barrier(len(works))
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True) for work in works
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._gate.wait()
            work()
        except BaseException as error:
            self._errors.append(error)

    def join(self, seconds: float = 60) -> None:
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), "a thread hangs"
        if self._errors:
            raise self._errors[0]
