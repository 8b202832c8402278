"""A rewrite publishes the newest values of a log once, and leaves nothing when it fails."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.errors import (
    ImapWalError,
    InvalidSetting,
    LostRace,
)
from imap_wal.manifest import list_files
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.manifest.store import KEEP
from imap_wal.read import scan
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import Scope
from imap_wal.rewrite import part_writer
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Result, RewritePlan, prepare
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends import NotFound, SegmentStore, StorageError
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.gated import GatedStore
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.effort import every, step
from tests.kit.list_files import short_lists
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.kit.rewrites import ENGINE, archive, run, snapshot
from tests.support import FakeClock, contents, embedded


def rows_of(store: MemoryStore, name: str = "orders") -> list[Any]:
    return [
        row for changes in cluster(store).changes([name], Scope(until={})) for row in changes.rows
    ]


def test_the_report_of_a_rewrite_reads_no_list(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have replaced all lists while it merged. None is read for each map again."""
    short_lists(monkeypatch)
    log = node(memory)
    for turn in range(4):
        rows = [put("k", turn, (1, 1, 1, 10 * turn + each), f"m{each}") for each in range(9)]
        append(log, *rows)
        archive(memory, log)
    lists = [file.path for file in memory.list(f"{log.identity.node_folder}/lists")]
    assert len(lists) > 2
    monkeypatch.setattr(list_files, "KNOWN_MAX", 1)
    reads: Counter[str] = Counter()

    class Counting(GatedStore):
        def there(self, path: str = "") -> SegmentStore:
            reads[path] += 1
            return self.inner

    class Slow(LocalEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            result = super().run(plan, log)
            reads.clear()
            return result

    clock = FakeClock()
    found = rewrite(ClusterLog(Context(Counting(memory), clock=clock), "ns", "c"), Slow(Settings()))
    assert not [path for path in lists if reads[path]]
    assert len(found.maps) == 9 and all(each.bytes_before > 1000 for each in found.maps)


def test_snapshot_has_newest_values_without_touching_the_service(
    memory: MemoryStore,
) -> None:
    """The snapshot has the newest value of every key, and no file of a node changes."""
    log = node(memory)
    append(log, *(put(f"k{number % 10}", number, (1, 1, 1, number + 1)) for number in range(100)))
    append(log, put("k0", None, (1, 1, 1, 101)), put("x", "1", (1, 1, 1, 102), "other"))
    before = {file.path: memory.read(file.path) for file in memory.list(log.identity.node_folder)}
    report = run(memory)
    assert {
        file.path: memory.read(file.path) for file in memory.list(log.identity.node_folder)
    } == before
    orders, other = report.maps
    assert (orders.map, orders.records_read, orders.live, orders.tombstones, orders.dropped) == (
        "orders",
        101,
        9,
        0,
        92,
    )
    assert (
        (other.map, other.live) == ("other", 1)
        and report.records_read == 102
        and report.covered == {"n1": log.end}
    )
    assert orders.bytes_before > orders.bytes_after > 0
    assert [row[KEY] for row in rows_of(memory)] == sorted(
        f"k{number}".encode() for number in range(1, 10)
    )
    append(log, put("k1", "after", (1, 1, 1, 200)))
    assert values(view(memory)) == {
        **{f"k{number}": str(90 + number) for number in range(2, 10)},
        "k1": "after",
    }


def test_a_dry_run_reports_the_same_and_publishes_nothing(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, *(put(f"k{number % 10}", number, (1, 1, 1, number + 1)) for number in range(100)))
    before = [(file.path, file.size) for file in memory.list("")]
    dry = run(memory, dry_run=True)
    assert [(file.path, file.size) for file in memory.list("")] == before
    real = run(memory)
    assert [replace(item, generation=0, files=()) for item in dry.maps] == [
        replace(item, generation=0, files=()) for item in real.maps
    ]
    assert dry.dry_run and not real.dry_run


def test_a_map_that_did_not_change_is_not_written_again(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("a", "1", (1, 1, 1, 2), "other"))
    run(memory)
    append(log, put("a", "2", (1, 1, 1, 3), "other"))
    report = run(memory)
    assert [(item.map, item.unchanged) for item in report.maps] == [
        ("orders", True),
        ("other", False),
    ]
    assert snapshot(memory).marks["n1"].position == log.end, "but its mark advances"
    assert values(view(memory)) == {"a": "1"} and values(view(memory), "other") == {"a": "2"}


def test_one_of_two_rewriters_publishes(memory: MemoryStore) -> None:
    """The other one loses the race, and deletes its files."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    gate = threading.Event()

    class Slow(LocalEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            merged = super().run(plan, log)
            run(memory)
            gate.set()
            return merged

    with pytest.raises(LostRace, match="'orders'"):
        rewrite(cluster(memory), Slow(SMALL))
    assert gate.is_set()
    published = snapshot(memory).paths
    assert [file.path for file in memory.list("ns/c/snapshot")] == list(published), (
        "the loser leaves no files"
    )


@pytest.mark.parametrize("meanwhile", ["lifetime", "node", "drop"])
def test_a_rewrite_whose_plan_is_outdated_is_not_published(
    memory: MemoryStore, meanwhile: str
) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))

    class Disturbed(LocalEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            merged = super().run(plan, log)
            if meanwhile == "lifetime":
                cuts = find_cutoffs(log).cuts
                log.manifests.update(
                    lambda manifest: replace(
                        manifest, lifetimes=(IncarnationRecord("id", 2, cuts),)
                    )
                )
            elif meanwhile == "node":
                node(memory, "n2")
            else:
                drop_map(log, "orders")
            return merged

    with pytest.raises(LostRace):
        rewrite(cluster(memory), Disturbed(SMALL))
    assert memory.list("ns/c/snapshot") == []


def test_files_of_a_rewrite_that_failed_are_removed(memory: MemoryStore) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))

    class Failing(LocalEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            super().run(plan, log)
            assert memory.list("ns/c/snapshot")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(cluster(memory), Failing(SMALL))
    assert memory.list("ns/c/snapshot") == []


def test_as_of_covers_only_what_was_written_until_then(memory: MemoryStore) -> None:
    """Later entries are only in the log."""
    clock = FakeClock()
    log = node(memory)
    start = clock.now_ms()
    for second in range(10):
        append(log, put("a", second, (1, 1, 1, second + 1), timestamp_ms=start + second * 1000))
        if second == 4:
            archive(memory, log)
    clock.advance(60)
    report = run(memory, clock, as_of_ms=start + 6500)
    assert report.maps[0].records_read == 7
    assert [row[VALUE] for row in rows_of(memory)] == [b"6"]
    assert values(view(memory, clock)) == {"a": "9"}
    above = [
        row[VALUE]
        for changes in cluster(memory).changes(scope=Scope(snapshots=False))
        for row in changes.rows
    ]
    assert above == [b"7", b"8", b"9"]
    with pytest.raises(InvalidSetting, match="is no longer known"):
        run(memory, clock, as_of_ms=start + 3000)
    prune(cluster(memory, clock))
    assert values(view(memory, clock)) == {"a": "9"}


class Between(MemoryStore):
    """Does something before every k-th read of a segment, once `armed`."""

    def __init__(self, name: str, every: int, work: Callable[[], None]) -> None:
        super().__init__(name)
        self._every, self._work, self._count = every, work, 0
        self.armed = False

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path.endswith(".wal") and self.armed:
            self._count += 1
            if self._count % self._every == 0:
                self.armed = False
                self._work()
                self.armed = True
        return super().read(path, offset, length)


@every(5)
@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_rewrite_that_takes_longer_than_the_archive_interval_ends(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, every: int, at_once: int
) -> None:
    """Segments are archived while it reads them: it continues in the archive."""
    monkeypatch.setattr(scan, "ROWS_MAX", 1)  # a segment is read in many steps
    log = node(memory)
    expected = {}
    for number in range(30):
        append(log, put(f"k{number % 20}", number, (1, 1, 1, number + 1)))
        append(log, put(f"k{number % 20}", number, (1, 1, 1, 100 + number), "other"))
        expected[f"k{number % 20}"] = str(number)
        if number % 3 == 0:
            log.rotate()
    log.rotate()
    archived: list[int] = []

    def work() -> None:
        writing = min([len(archived) * at_once + at_once + 1, log.unsealed])
        if writing not in archived:
            archived.append(writing)
            archive(memory, log, writing)

    slow = Between(memory.url.removeprefix("memory://"), every, work)
    attempts = []

    class Counting(LocalEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            attempts.append(plan)
            slow.armed = True
            result = super().run(plan, log)
            slow.armed = False
            return result

    report = rewrite(cluster(slow), Counting(SMALL))
    assert len(attempts) == 1
    assert len(archived) >= (2 if at_once < 100 else 1), "it did not meet an archive run"
    assert [each.live for each in report.maps] == [20, 20]
    prune(cluster(memory))
    assert values(view(memory)) == expected and values(view(memory), "other") == expected


def test_rewrite_restarts_when_its_log_was_pruned(
    memory: MemoryStore,
) -> None:
    """Another rewrite and a prune removed the segments that it read."""
    log = node(memory)
    for number in range(5):
        append(log, put(f"k{number}", number, (1, 1, 1, number + 1)))
        log.rotate()
    name, done = memory.url.removeprefix("memory://"), []

    def other() -> None:
        if not done:
            done.append(1)
            archive(memory, log)
            run(memory)
            prune(cluster(memory))

    plan = prepare(cluster(memory))
    slow = Between(name, 3, other)
    slow.armed = True
    with pytest.raises(NotFound, match="newer snapshot covers"):
        ENGINE.run(plan, cluster(slow))
    assert done
    append(log, put("k9", 9, (1, 1, 1, 9)))
    run(memory)
    assert len(values(view(memory))) == 6


def test_many_parts_are_one_snapshot_in_key_order(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 10_000)
    random_ = random.Random(seed)
    keys = [f"k{number:05d}" for number in range(25_000)]
    random_.shuffle(keys)
    append(node(memory), *(put(key, key, (1, 1, 1, number)) for number, key in enumerate(keys)))
    report = run(memory)
    assert len(report.maps[0].files) == 3
    assert [row[KEY].decode() for row in rows_of(memory)] == sorted(keys)


def test_a_rewrite_keeps_within_its_memory(memory: MemoryStore, tmp_path: Path) -> None:
    append(
        node(memory),
        *(put(f"k{number}", "v" * 100, (1, 1, 1, number)) for number in range(5000)),
        frames=50,
    )
    tight = LocalEngine(Settings(restore_memory_bytes=500_000, scratch=tmp_path))
    rewrite(cluster(memory), tight)
    assert len(values(view(memory))) == 5000 and list(tmp_path.iterdir()) == []


@every(3)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["create", "list", "read", "delete"])
def test_failed_publishing_leaves_a_restorable_log(kind: str, when: Any) -> None:
    """Publishing fails at each operation, in `make test` at every fifth. Whether the manifest names
    the new files is not known then: they must be kept, or a published snapshot would name missing
    files."""
    between = min(step(), 5)
    at = 1 - between
    before = MemoryStore(f"before-publishing-{kind}-{when}")
    with embedded(before) as store:
        store.map("m").update({"a": 1, "b": 2})
        store.archive()
    for _ in range(KEEP + 1):  # old manifests are there to be removed
        rewrite(cluster_of(before), LocalEngine(Settings()))
    with embedded(before) as store:
        store.map("m")["c"] = 3
    while True:
        at += between
        memory = MemoryStore(f"publishing-{kind}-{when}-{at}")
        memory._medium.files = deepcopy(before._medium.files)
        faulty = FaultyStore(
            memory,
            Plan((Fault("error", at=at, kind=kind, path="default/embedded/manifest*", when=when),)),
        )
        try:
            rewrite(cluster_of(faulty), LocalEngine(Settings()))
            failed = False
        except (StorageError, ImapWalError):
            failed = True
        assert contents(memory) == {"a": 1, "b": 2, "c": 3}, f"operation {at}"
        if not faulty.fired:
            break
        assert not (failed and kind == "delete"), "a clean-up that fails is no error"
    assert at > 1


def cluster_of(store: SegmentStore) -> ClusterLog:
    return ClusterLog(Context(store, clock=FakeClock()), "default", "embedded")
