"""The background work on a log: archives by time and by size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

import imap_wal
from imap_wal.segment.listing import SegmentFile
from imap_wal.write import maintenance
from imap_wal.write.node_log import NodeLog
from imap_wal.write.object_segment import RecentObjects
from storage_backends import SegmentStore, open_store
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.gated import GatedStore
from storage_backends.memory import MemoryStore
from tests.support import contents, copy_files, embedded, eventually, overwrite

T = TypeVar("T")


def archives(root: Path) -> list[Path]:
    return sorted(root.rglob("archive/*/*.parquet"))


def test_sealed_segments_are_archived_by_time_without_loss(tmp_path: Path) -> None:
    """Sealed segments are archived by time, and no entry is lost."""
    with imap_wal.open(tmp_path.as_uri(), node="n", archive_interval_s=0.1) as store:
        store.map("m").update({"a": 1, "b": 2})
        eventually(lambda: len(archives(tmp_path)) == 1, "an archive")
        eventually(lambda: not list(tmp_path.rglob("*.wal")), "the segment is removed")
        store.map("m")["a"] = 3
        eventually(lambda: len(archives(tmp_path)) == 2, "a second archive")
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert dict(store.map("m")) == {"a": 3, "b": 2}


def test_sealed_segments_are_archived_by_size_and_not_before(tmp_path: Path) -> None:
    with imap_wal.open(
        tmp_path.as_uri(), node="n", segment_bytes=4096, max_total_wal_size=3 * 4096
    ) as store:
        entries = store.map("m", raw=True)
        for number in range(2):
            entries[b"key%d" % number] = b"x" * 4096  # each seals a segment
        assert archives(tmp_path) == []
        entries[b"third"] = b"x" * 4096
        eventually(lambda: len(archives(tmp_path)) >= 1, "an archive")
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert len(store.map("m", raw=True)) == 3


def segment_bytes(root: Path) -> int:
    """The size of all segments; no archive runs meanwhile."""
    return sum(path.stat().st_size for path in root.rglob("*.wal"))


def test_max_total_wal_size_archives_object_commits(
    tmp_path: Path,
) -> None:
    """`max_total_wal_size` forces an archive where every commit is an object."""
    with imap_wal.open(f"objects+file://{tmp_path}", node="n", max_total_wal_size=20_000) as store:
        entries = store.map("m", raw=True)
        number = 0
        while segment_bytes(tmp_path) < 19_000:
            entries[b"key%d" % number] = b"x" * 100
            number += 1
        assert number > 50 and archives(tmp_path) == []
        for _ in range(5):  # headers count: they are nearly half of it
            entries[b"key%d" % number] = b"x" * 100
            number += 1
        eventually(lambda: archives(tmp_path), "an archive")
    with imap_wal.open(f"objects+file://{tmp_path}", node="n") as store:
        assert len(store.map("m", raw=True)) == number


class Counted(GatedStore):
    """Counts the objects with entries that are read."""

    def __init__(self, inner: SegmentStore) -> None:
        super().__init__(inner)
        self.reads = 0

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads += path.endswith(".wal")
        return super().read(path, offset, length)


def test_many_objects_are_archived_without_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.01)
    objects = Counted(open_store(f"objects+file://{tmp_path}"))
    with imap_wal.open(objects.url, storage=objects, node="n", archive_objects=50) as store:
        before = objects.reads
        for number in range(49):
            store.map("m")[number] = number
        assert archives(tmp_path) == []
        store.map("m")[49] = 49
        eventually(lambda: store.statistics.maintenance.archives, "an archive")
        assert objects.reads == before
        first = len(archives(tmp_path))
        assert first == 1
        for number in range(50, 130):
            store.map("m")[number] = number
        eventually(lambda: store.statistics.maintenance.archives > 1, "another one")
    assert objects_left(tmp_path) < 130
    with imap_wal.open(objects.url, storage=objects, node="n", archive_objects=0) as store:
        assert dict(store.map("m")) == {number: number for number in range(130)}


def objects_left(root: Path) -> int:
    return len(list(root.rglob("*.wal")))


def test_objects_that_an_earlier_run_left_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.01)
    url = f"objects+file://{tmp_path}"
    with imap_wal.open(url, node="n", archive_objects=0) as store:
        for number in range(60):
            store.map("m")[number] = number
    assert objects_left(tmp_path) >= 60
    with imap_wal.open(url, node="n", archive_objects=80) as store:
        for number in range(60, 85):
            store.map("m")[number] = number
        eventually(lambda: objects_left(tmp_path) < 40, "an archive")
        assert store.statistics.maintenance.archive_error == ""
        assert dict(store.map("m")) == {number: number for number in range(85)}


def test_large_objects_are_not_archived_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.01)
    looks = threading.Semaphore(0)

    def counted(log: NodeLog) -> Sequence[SegmentFile]:
        looks.release()
        return maintenance_left(log)

    maintenance_left = maintenance._left
    monkeypatch.setattr(maintenance, "_left", counted)
    url = f"objects+file://{tmp_path}"
    with imap_wal.open(url, node="n", archive_objects=10, auto_rewrite_percentage=0) as store:
        for number in range(30):
            store.map("m", raw=True)[b"%d" % number] = bytes(20_000)
        for _ in range(2):
            assert looks.acquire(timeout=60)
            for number in range(11):  # the next look is after `archive_objects` more
                store.map("m", raw=True)[b"%d" % number] = bytes(20_000)
    assert archives(tmp_path) == []


def test_recent_objects_are_bounded_and_the_oldest_go_first(memory: MemoryStore) -> None:
    recent = RecentObjects(bytes_max=10)
    for path in ("a", "b", "c"):
        memory.create(path, b"12345")
        recent.add(path, b"12345")
    store = recent.over(memory)
    assert recent.get("a") is None
    assert store.read("a", 1, 2) == b"23"
    memory.delete("c")
    assert [store.read("c"), store.read("c", 2), store.read("c", 1, 2)] == [b"12345", b"345", b"23"]
    recent.add("d", b"x" * 11)
    assert [recent.get(path) for path in "abcd"] == [None, b"12345", b"12345", None]
    for _ in range(3):
        recent.add("b", b"12345")
    assert [recent.get(path) for path in "bc"] == [b"12345", b"12345"]


def test_max_total_wal_size_counts_bytes_and_not_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.002)
    with imap_wal.open(
        tmp_path.as_uri(), node="n", max_total_wal_size=4 << 20, segment_bytes=1 << 20
    ) as store:
        for number in range(8):
            store.map("m")[number] = 1
            store.committer.rotate()
        time.sleep(0.1)
        assert archives(tmp_path) == [], "eight segments of a few hundred bytes"


def test_max_total_wal_size_counts_the_open_segment(
    tmp_path: Path,
) -> None:
    """`max_total_wal_size` counts the open segment too, and the archive seals it."""
    with imap_wal.open(tmp_path.as_uri(), node="n", max_total_wal_size=10_000) as store:
        store.map("m", raw=True)[b"a"] = b"x" * 9_000
        assert not store.writer.maintenance._full.wake.is_set()
        store.map("m", raw=True)[b"b"] = b"x" * 900
        eventually(
            lambda: archives(tmp_path) and not list(tmp_path.rglob("*.wal")), "an archive of all"
        )


def test_max_total_wal_size_counts_from_the_last_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_total_wal_size` counts from the last archive on, also from a manual one."""
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.002)
    with imap_wal.open(tmp_path.as_uri(), node="n", max_total_wal_size=10_000) as store:
        for number in range(4):
            store.map("m", raw=True)[b"%d" % number] = b"x" * 8_000
            store.archive()
            assert len(archives(tmp_path)) == number + 1
        store.map("m", raw=True)[b"4"] = b"x" * 8_000
        time.sleep(0.05)
        assert len(archives(tmp_path)) == 4
        store.map("m", raw=True)[b"5"] = b"x" * 8_000
        eventually(lambda: len(archives(tmp_path)) == 5, "an archive by size")


def test_avoid_flush_delays_archive_of_earlier_excess_wal(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `avoid_flush_during_recovery`, segments of an earlier run above `max_total_wal_size`
    wait for a commit."""
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.002)
    with embedded(memory) as store:
        store.map("m", raw=True)[b"a"] = b"x" * 5000
    with embedded(memory, max_total_wal_size=1000, avoid_flush_during_recovery=True) as store:
        time.sleep(0.05)
        assert not archives_in(memory)
        store.map("m", raw=True)[b"b"] = b"x"
        eventually(lambda: archives_in(memory), "an archive by size")


def test_failed_archive_is_retried_without_new_writes(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed archive is tried again, although nothing more is written."""
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.02)
    monkeypatch.setattr(maintenance, "PAUSE_S", 0.05)
    faulty = FaultyStore(memory, Plan((Fault("error", kind="create_from", times=2),)))
    with embedded(faulty, max_total_wal_size=1000) as store:
        store.map("m", raw=True)[b"a"] = b"x" * 1000
        eventually(lambda: store.writer.maintenance.archive_error, "an archive fails")
        eventually(
            lambda: archives_in(memory) and not store.writer.maintenance.archive_error,
            "a later one succeeds",
        )
        assert len(faulty.fired) == 2


def test_unsynced_tail_is_rewritten_before_it_counts(
    tmp_path: Path,
) -> None:
    """A tail that may be only in the page cache is written again before it counts."""
    store = imap_wal.open(tmp_path.as_uri(), node="n", durability="os", preallocate=False)
    store.map("m")["a"] = 1
    store.committer.log.close(clean=False)  # as if it were killed: nothing is synced
    (segment,) = tmp_path.rglob("*.wal")
    before = segment.stat()
    with imap_wal.open(tmp_path.as_uri(), node="n") as again:
        assert dict(again.map("m")) == {"a": 1}
        (copy,) = tmp_path.rglob("*.wal")
        assert copy != segment, "the same file: a power loss could still remove what was just read"
        assert copy.stat().st_size == before.st_size


class LongArchives(FaultyStore):
    """A storage on which an archive takes until `finish` is set. Records the threads that sync."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.archiving, self.finish = threading.Event(), threading.Event()
        self.syncing_threads: set[str] = set()

    def create_from(self, path: str, local_file: str) -> None:
        self.archiving.set()
        assert self.finish.wait(60)
        super().create_from(path, local_file)

    def _run(self, kind: str, path: str, action: Callable[[], T]) -> T:
        if kind == "sync":
            self.syncing_threads.add(threading.current_thread().name)
        return super()._run(kind, path, action)

    def all_synced(self) -> bool:
        return all(appender._synced == appender.size for appender in self._appenders)

    def after_a_power_loss(self) -> MemoryStore:
        """The files after a power loss now, in the worst case."""
        left = copy_files(self.inner)
        for appender in self._appenders:
            overwrite(left, appender.path, left.read(appender.path, 0, appender._synced))
        return left


def test_interval_syncs_while_a_long_archive_runs(memory: MemoryStore) -> None:
    storage = LongArchives(memory)
    store = embedded(storage, durability="interval", sync_interval_ms=40, archive_interval_s=0.001)
    m = store.map("m")
    m["sealed"] = 0
    try:
        eventually(storage.archiving.is_set, "an archive begins")
        storage.syncing_threads.clear()
        for number in range(10):
            m["first"] = number
            m["last"] = number  # no later commit that would sync it too
            eventually(
                storage.all_synced,
                f"the sync of change {number}, without an acknowledgement that waits for it",
            )
            assert contents(storage.after_a_power_loss()) == {
                "sealed": 0,
                "first": number,
                "last": number,
            }
        assert "imap-wal-maintenance" in storage.syncing_threads
        assert not archives_in(memory), "the archive was to last longer than all this"
    finally:
        storage.finish.set()
    eventually(lambda: archives_in(memory), "the archive ends")
    store.close()
    assert contents(memory) == {"sealed": 0, "first": 9, "last": 9}


def archives_in(memory: MemoryStore) -> list[str]:
    return [file.path for file in memory.list("") if file.path.endswith(".parquet")]


def test_embedded_store_refuses_a_log_of_hazelcast_members(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        log = store.committer.log
        log.clusters.update(lambda manifest: replace(manifest, incarnation=2))
        log.claims.update(lambda now: now.with_claim("a cluster's id", 2))
    with pytest.raises(imap_wal.InvalidSetting, match="belongs to Hazelcast members"):
        imap_wal.open(tmp_path.as_uri(), node="other")
