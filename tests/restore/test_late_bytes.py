"""A reader beside a writer that does not sync: its bytes become visible late, and in any order."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from imap_wal import format
from imap_wal.context import Context
from imap_wal.entry import KEY, pack
from imap_wal.inspect.finding import CLEAN, Deadline
from imap_wal.inspect.inventory import take_inventory
from imap_wal.inspect.verify import check, plan
from imap_wal.read import scan as scan_module
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from storage_backends.gated import GatedStore
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.hooked import Hooked
from tests.kit.logs import append, cluster, node
from tests.support import segments


def written(log: NodeLog, count: int) -> list[int]:
    """Frames that are not synced; their offsets."""
    append(log, put("first", "1", (1, 1, 1, 1)))
    return [
        log.write(format.ENTRIES, 1, [pack(put(f"k{number}", "x" * 50, (1, 1, 1, number)))]).frame
        for number in range(2, count + 2)
    ]


def keys(store: SegmentStore) -> list[bytes]:
    made: ClusterLog = cluster(store)
    return [
        row[KEY]
        for scan in cluster_scans(made.state())
        for changes in read_scan(Context(made.store), scan)
        for row in changes.rows
    ]


class Late:
    """Shows a part of a frame as zeros, for some reads that include it."""

    def __init__(self, path: str, start: int, end: int, reads: int) -> None:
        self._path, self._start, self._end = path, start, end
        self.reads = reads

    def __call__(self, path: str, data: bytes, offset: int) -> bytes:
        start, end = max(self._start - offset, 0), min(self._end - offset, len(data))
        if path != self._path or start >= end or not self.reads:
            return data
        self.reads -= 1
        return data[:start] + bytes(end - start) + data[end:]


@pytest.mark.parametrize(("late", "reads"), [*itertools.product((0, 7, 18), (1, 2, 4, 6))])
def test_a_frame_that_is_whole_later_is_no_torn_commit(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture, late: int, reads: int
) -> None:
    """The reader warned that the next open cuts off this frame and all that follow."""
    log = node(memory)
    offsets = written(log, 20)
    store: Any = Hooked(memory)
    store.on_read = Late(segments(memory)[0], offsets[late] + 9, offsets[late] + 30, reads)
    with caplog.at_level(logging.WARNING):
        assert keys(store) == [b"first", *(b"k%d" % number for number in range(2, 22))]
    assert not store.on_read.reads and not caplog.messages


def test_a_torn_commit_is_named_once(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss left it: it is the same at every look."""
    pauses: list[float] = []
    monkeypatch.setattr("imap_wal.read.scan.time.sleep", pauses.append)
    log = node(memory)
    offsets = written(log, 20)
    store: Any = Hooked(memory)
    store.on_read = Late(segments(memory)[0], offsets[3] + 9, offsets[3] + 30, 10**9)
    with caplog.at_level(logging.WARNING):
        assert keys(store) == [b"first", b"k2", b"k3", b"k4"]
    (said,) = caplog.messages
    assert f"at byte {offsets[3]}: a torn commit with 16 whole frames after it" in said
    assert pauses == list(scan_module.PAUSES_S)


def test_a_busy_writer_keeps_no_reader(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """At each look, the next frame is half there."""
    log = node(memory)
    offsets = written(log, 60)
    store: Any = Hooked(memory)
    (path,) = segments(memory)
    looks = iter(offsets[3:-5])
    late: list[Late] = [Late(path, offsets[2] + 9, offsets[2] + 30, 2)]

    def on_read(name: str, data: bytes, offset: int) -> bytes:
        if not late[0].reads and (place := next(looks, None)) is not None:
            late[0] = Late(path, place + 9, place + 30, 2)
        return late[0](name, data, offset)

    store.on_read = on_read
    with caplog.at_level(logging.WARNING):
        found = keys(store)
    assert 3 < len(found) < 20 and not caplog.messages


class _Busy(GatedStore):
    """Its writer appends and syncs whenever a reader examines what follows the last frame."""

    def __init__(self, inner: SegmentStore, log: NodeLog) -> None:
        super().__init__(inner)
        self._log, self.looks, self._requests = log, 0, itertools.count(1)

    def size(self, path: str) -> int:
        self.looks += 1
        for number in itertools.islice(self._requests, 2 if self.looks < 50 else 0):
            append(self._log, put(f"k{number}", "1", (1, 1, 1, number)))
        return super().size(path)


def test_synced_frames_of_a_busy_writer_are_no_damage(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader finds after the end was written while it looked. It must not pause, and must
    not look until nothing is written any more."""
    pauses: list[float] = []
    monkeypatch.setattr("imap_wal.read.scan.time.sleep", pauses.append)
    log = node(memory)
    append(log, put("first", "1", (1, 1, 1, 0)))
    store = _Busy(memory, log)
    assert cluster(store).ends()["n1"].frame > 0
    assert store.looks == scan_module.LOOKS_MAX + 1 and not pauses


def test_a_verification_beside_a_busy_writer_ends(memory: MemoryStore) -> None:
    """It must not read the segment again until its writer begins the next one."""
    log = node(memory)
    append(log, put("first", "1", (1, 1, 1, 0)))
    store = _Busy(memory, log)
    context = Context(store)
    (view,) = take_inventory(context)
    findings, units = plan(context, view, lambda _: True)
    read, left = check(units, lambda _: None, Deadline(context.clock, None))
    assert store.looks < 5 and not left
    assert {finding.status for finding in [*findings, *read]} == {CLEAN}
