"""The requests of a recovery on a storage where every commit is an object."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from imap_wal import format
from imap_wal.errors import Fenced
from imap_wal.write import committer as module
from imap_wal.write.committer import CHECKPOINT_S, Committer
from imap_wal.write.node_log import NodeLog
from imap_wal.write.ring import CommitRequest, RingBuffer
from storage_backends.gated import GatedStore
from storage_backends.interface import SegmentStore
from storage_backends.objects import LocalObjects
from tests.support import FakeClock, embedded, eventually, node_log, row


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


def test_recovery_reads_each_object_once_and_in_parallel(
    objects: SegmentStore,
) -> None:
    """A recovery reads each object with one request, and several objects at a time."""
    log = node_log(objects)
    commit(log, range(1, 41))
    counted = Counted(objects)
    taken = node_log(counted, takeover=True)
    assert taken.recovery.records == 40
    assert taken.requests[1] == 40
    # The takeover itself reads the fence of the former writer, too.
    assert [calls for path, calls in sorted(counted.calls.items())[:39]] == [1] * 39
    assert 1 < counted.at_most <= 8
    taken.close()


def committer(log: NodeLog) -> Committer:
    ring: RingBuffer[CommitRequest] = RingBuffer(log.settings.ring_slots, log.settings.ring_bytes)
    return Committer(ring, log)


def put(made: Committer, requests: range) -> None:
    for request in requests:
        batch = CommitRequest(
            [row(f"k{request}", "v", request=request)], 1, session=1, request=request
        )
        made.submit(batch)
        made.wait(batch)
        batch.result()
        made.checkpoint_if_due()  # as maintenance does


def test_a_crash_after_many_commits_reads_the_last_objects_only(
    objects: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.CHECKPOINT_COMMITS <= 1000
    monkeypatch.setattr(module, "CHECKPOINT_COMMITS", 50)
    log = node_log(objects)
    put(committer(log), range(1, 171))
    counted = Counted(objects)
    taken = node_log(counted, takeover=True)
    assert taken.recovery.records <= 50
    assert len(counted.calls) <= 50 + 2  # the frame of the checkpoint, and the fence
    assert taken.requests[1] == 170
    taken.close()


def test_the_checkpoint_of_an_open_store_follows_its_commits(
    objects: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_S", 0.0)
    with embedded(objects) as store:
        store.map("m")["k"] = 1
        log = store._log
        eventually(lambda: log.manifests.read()[1].checkpoint == log.end, "the checkpoint moves")


def test_checkpoint_advances_each_minute_if_needed(
    objects: SegmentStore,
) -> None:
    """The checkpoint moves after a minute if there is something new."""
    log = node_log(objects)
    made = committer(log)
    before = log.manifests.read()
    put(made, range(1, 4))
    assert log.manifests.read() == before
    cast(FakeClock, log.clock).advance(CHECKPOINT_S)
    made.checkpoint_if_due()
    moved = log.manifests.read()
    assert (moved[1].checkpoint, moved[1].requests, moved[1].clean) == (log.end, {1: 3}, False)
    cast(FakeClock, log.clock).advance(CHECKPOINT_S)
    made.checkpoint_if_due()
    assert log.manifests.read() == moved, "nothing new, so nothing is published"
    log.close()


def test_a_replaced_writer_moves_no_checkpoint(objects: SegmentStore) -> None:
    log = node_log(objects)
    made = committer(log)
    put(made, range(1, 4))
    taken = node_log(objects, takeover=True)
    before = taken.manifests.read()
    cast(FakeClock, log.clock).advance(CHECKPOINT_S)
    with pytest.raises(Fenced):
        made.checkpoint_if_due()
    assert taken.manifests.read() == before
    taken.close()


def test_a_late_checkpoint_lowers_nothing(objects: SegmentStore) -> None:
    log = node_log(objects)
    made = committer(log)
    put(made, range(1, 3))
    early, requests = log.end, dict(log.requests)
    put(made, range(3, 6))
    log.move_checkpoint(log.end, log.requests)
    moved = log.manifests.read()[1]
    log.move_checkpoint(early, requests)
    assert log.manifests.read()[1] == moved
    log.close()
    log.move_checkpoint(early, requests)
    assert log.manifests.read()[1].clean
    node_log(objects).close()
