"""What a recovery asks of a storage where every commit is an object and every call a request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from imap_wal import format
from imap_wal.writer import NodeLog
from storage_backends.gate import GatedStore
from storage_backends.interface import SegmentStore
from storage_backends.objects import LocalObjects
from tests.support import node_log, row


class Counted(GatedStore):
    """Counts the calls for each segment, and how many run at the same time."""

    def __init__(self, inner: SegmentStore) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.together = self.at_most = 0
        self.several = threading.Event()
        self._mutex = threading.Lock()

    def size(self, path: str) -> int:
        self._count(path)
        return super().size(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if not path.endswith(".wal"):
            return super().read(path, offset, length)
        self._count(path)
        with self._mutex:
            self.together += 1
            self.at_most = max(self.at_most, self.together)
            if self.together > 1:
                self.several.set()
        if threading.current_thread().name.startswith("imap-wal-reader"):
            self.several.wait(10)  # the first one waits for a second
        try:
            return super().read(path, offset, length)
        finally:
            with self._mutex:
                self.together -= 1

    def _count(self, path: str) -> None:
        if path.endswith(".wal"):
            with self._mutex:
                self.calls[path] += 1


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[SegmentStore]:
    store = LocalObjects(str(tmp_path))
    yield store
    store.close()


def commit(log: NodeLog, requests: range) -> None:
    for request in requests:
        log.write(format.ENTRIES, 1, [row(f"k{request}", "v", request=request)])
        log.sync()
        log.requests[1] = request


def test_a_recovery_reads_each_object_with_one_request_and_several_at_a_time(objects: SegmentStore) -> None:
    log = node_log(objects)
    commit(log, range(1, 41))
    counted = Counted(objects)
    taken = node_log(counted, takeover=True)
    assert taken.recovery.records == 40
    assert taken.requests[1] == 40
    # The fence that shuts the former writer out is looked at by the takeover itself, too.
    assert [calls for path, calls in sorted(counted.calls.items())[:39]] == [1] * 39
    assert 1 < counted.at_most <= 8
    taken.close()
