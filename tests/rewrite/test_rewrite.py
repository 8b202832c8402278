"""Rewrite, prune and drop, promise by promise."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal import entry
from imap_wal.archive import archive_sealed
from imap_wal.errors import ImapWalError, InvalidSetting, LostRace, MissingNode
from imap_wal.format import ENTRIES, START, Position
from imap_wal.manifest import KEEP, Lifetime
from imap_wal.restore import ClusterLog, pin_cuts
from imap_wal.segment import SegmentReader
from imap_wal.settings import RecoveryPolicy, Settings
from imap_wal.writer import NodeLog
from rewrite_cli import local
from rewrite_cli.local import LocalEngine
from rewrite_cli.prune import ORPHAN_MS, prune
from rewrite_cli.report import RewriteReport
from rewrite_cli.rewriter import GRACE_MS, Job, Merged, drop_map, rewrite
from storage_backends import SegmentStore, StorageError
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.restore.test_live_view import SMALL, append, cluster, node, values, view
from tests.support import FakeClock, contents, embedded, segments

ENGINE = LocalEngine(SMALL)


def run(store: MemoryStore, clock: FakeClock | None = None, **options: Any) -> RewriteReport:
    return rewrite(cluster(store, clock), ENGINE, **options)


def snapshot(store: MemoryStore, name: str = "orders") -> Any:
    return cluster(store).manifest().snapshots[name]


def archive(store: MemoryStore, log: NodeLog) -> None:
    log.rotate()
    archive_sealed(store, log.identity.node_folder, log.identity.node, log.manifests, writing=log.unsealed)


def rows_of(store: MemoryStore, name: str = "orders") -> list[Any]:
    return [row for changes in cluster(store).changes(maps=[name], until={}) for row in changes.rows]


def test_the_snapshot_holds_the_newest_of_every_key_and_the_service_is_untouched(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, *(put(f"k{number % 10}", number, (1, 1, 1, number + 1)) for number in range(100)))
    append(log, put("k0", None, (1, 1, 1, 101)), put("x", "1", (1, 1, 1, 102), "other"))
    before = {file.path: memory.read(file.path) for file in memory.list(log.identity.node_folder)}
    report = run(memory)
    assert {file.path: memory.read(file.path) for file in memory.list(log.identity.node_folder)} == before
    orders, other = report.maps
    assert (orders.map, orders.records_read, orders.live, orders.tombstones, orders.dropped) == ("orders", 101, 9, 0, 92)
    assert (other.map, other.live) == ("other", 1) and report.records_read == 102 and report.covered == {"n1": log.end}
    assert orders.bytes_before > orders.bytes_after > 0
    assert [row[1] for row in rows_of(memory)] == sorted(f"k{number}".encode() for number in range(1, 10))
    append(log, put("k1", "after", (1, 1, 1, 200)))
    assert values(view(memory)) == {**{f"k{number}": str(90 + number) for number in range(2, 10)}, "k1": "after"}


def test_a_dry_run_says_the_same_and_publishes_nothing(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, *(put(f"k{number % 10}", number, (1, 1, 1, number + 1)) for number in range(100)))
    before = [(file.path, file.size) for file in memory.list("")]
    dry = run(memory, dry_run=True)
    assert [(file.path, file.size) for file in memory.list("")] == before
    real = run(memory)
    assert [replace(item, generation=0, files=()) for item in dry.maps] == [replace(item, generation=0, files=()) for item in real.maps]
    assert dry.dry_run and not real.dry_run


def test_a_map_that_did_not_change_is_not_written_again(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("a", "1", (1, 1, 1, 2), "other"))
    run(memory)
    append(log, put("a", "2", (1, 1, 1, 3), "other"))
    report = run(memory)
    assert [(item.map, item.unchanged) for item in report.maps] == [("orders", True), ("other", False)]
    assert snapshot(memory).marks["n1"].position == log.end, "but its mark moves on"
    assert values(view(memory)) == {"a": "1"} and values(view(memory), "other") == {"a": "2"}


def test_of_two_rewriters_one_publishes_and_the_other_loses_the_race(memory: MemoryStore) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    gate = threading.Event()

    class Slow(LocalEngine):
        def run(self, job: Job, log: ClusterLog) -> list[Merged]:
            merged = super().run(job, log)
            run(memory)
            gate.set()
            return merged

    with pytest.raises(LostRace, match="'orders'"):
        rewrite(cluster(memory), Slow(SMALL))
    assert gate.is_set()
    published = snapshot(memory).files
    assert [file.path for file in memory.list("ns/c/snapshot")] == list(published), "the loser leaves nothing behind"


@pytest.mark.parametrize("meanwhile", ["lifetime", "node", "drop"])
def test_what_no_longer_fits_is_not_published(memory: MemoryStore, meanwhile: str) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))

    class Disturbed(LocalEngine):
        def run(self, job: Job, log: ClusterLog) -> list[Merged]:
            merged = super().run(job, log)
            if meanwhile == "lifetime":
                cuts = pin_cuts(log)
                log.manifests.update(lambda manifest: replace(manifest, lifetimes=(Lifetime("id", 2, cuts),)))
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
        def run(self, job: Job, log: ClusterLog) -> list[Merged]:
            super().run(job, log)
            assert memory.list("ns/c/snapshot")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(cluster(memory), Failing(SMALL))
    assert memory.list("ns/c/snapshot") == []


def test_a_tombstone_stays_while_another_open_node_may_hold_something_older(memory: MemoryStore) -> None:
    clock = FakeClock()
    first, second = node(memory), node(memory, "n2")
    log = cluster(memory)
    log.manifests.update(lambda manifest: replace(manifest, lifetimes=(Lifetime("id", 1, {}),)))
    append(first, put("a", None, (1, 2, 1, 1), timestamp_ms=clock.now_ms()))
    assert run(memory, clock).maps[0].tombstones == 1
    prune(cluster(memory, clock))
    append(second, put("a", "late", (1, 1, 1, 1)))
    assert values(view(memory)) == {}
    clock.advance(GRACE_MS / 1000)
    assert run(memory, clock).maps[0].tombstones == 0, "nothing is in flight for so long"
    assert values(view(memory)) == {}


def test_a_tombstone_goes_when_all_other_logs_are_closed(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(second, put("a", "old", (1, 1, 1, 1)))
    append(first, put("a", None, (1, 2, 1, 1)))
    assert run(memory).maps[0].tombstones == 1
    second.close()
    assert run(memory).maps[0].tombstones == 0 and snapshot(memory).files == ()
    prune(cluster(memory))
    assert values(view(memory)) == {}


def test_a_tombstone_of_a_lifetime_that_is_over_goes(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", None, (1, 2, 1, 1)))
    cuts = pin_cuts(cluster(memory))
    cluster(memory).manifests.update(lambda manifest: replace(manifest, lifetimes=(Lifetime("id", 2, cuts),)))
    assert run(memory).maps[0].tombstones == 0
    append(second, put("a", "late", (1, 1, 1, 1)))
    assert values(view(memory)) == {}


def test_tombstones_stay_when_a_node_is_missing_and_what_it_covered_stays_covered(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(second, put("b", "1", (1, 1, 1, 1)))
    run(memory)
    append(first, put("a", None, (1, 1, 1, 1)))
    first.close()
    second.close()
    for file in memory.list("ns/c/nodes/n2"):
        memory.delete(file.path)
    with pytest.raises(MissingNode):
        run(memory)
    report = run(memory, policy=RecoveryPolicy.PARTIAL)
    assert report.maps[0].tombstones == 1 and list(report.missing) == ["n2"]
    assert snapshot(memory).marks["n2"].directory == second.directory
    assert values(view(memory, recovery_policy=RecoveryPolicy.PARTIAL)) == {"b": "1"}


def test_expired_entries_go_an_hour_after_they_expired(memory: MemoryStore) -> None:
    clock = FakeClock()
    append(node(memory), put("a", "1", (1, 1, 1, 1), expires_at_ms=clock.now_ms() + 1000), put("b", "1", (1, 1, 1, 2)))
    clock.advance(10)
    assert run(memory, clock).maps[0].live == 2, "the clock of this machine may be ahead"
    clock.advance(3600)
    append(node_again(memory), put("b", "2", (1, 1, 1, 3)))
    assert run(memory, clock).maps[0].live == 1


def node_again(store: MemoryStore) -> NodeLog:
    from imap_wal.clock import SeededRandomness
    from imap_wal.writer import Identity, open_node_log

    return open_node_log(store, Identity("ns", "c", "n1"), SMALL, FakeClock(), SeededRandomness(77), what="the test", takeover=True)


def test_as_of_covers_what_was_written_until_then_and_leaves_the_rest(memory: MemoryStore) -> None:
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
    assert [row[3] for row in rows_of(memory)] == [b"6"]
    assert values(view(memory, clock)) == {"a": "9"}
    above = [row[3] for changes in cluster(memory).changes(snapshots=False) for row in changes.rows]
    assert above == [b"7", b"8", b"9"]
    with pytest.raises(InvalidSetting, match="can no longer be told"):
        run(memory, clock, as_of_ms=start + 3000)
    prune(cluster(memory, clock))
    assert values(view(memory, clock)) == {"a": "9"}


def test_prune_removes_what_is_covered_and_nothing_else(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(3):
        append(log, put("a", number, (1, 1, 5, number + 1)), put("a", number, (1, 1, 5, 10 + number), "other"))
        log.rotate()
    archive(memory, log)
    append(log, put("b", "1", (1, 1, 5, 20)))
    log.rotate()
    append(log, put("b", "2", (1, 1, 5, 21)))
    log.rotate()
    append(log, put("b", "3", (1, 1, 5, 22)))
    run(memory, maps=["orders"])
    dry = prune(cluster(memory), dry_run=True)
    files = {file.path for file in memory.list("")}
    report = prune(cluster(memory))
    left = {file.path for file in memory.list("")}
    assert replace(dry, dry_run=False) == report and len(report.archives) == 1 and len(report.segments) == 2
    assert {path for path in files - left if "manifest" not in path} == {*report.archives, *report.segments}
    assert len(segments(memory)) == 1, "the newest segment is its owner's"
    assert values(view(memory)) == {"a": "2", "b": "3"} and values(view(memory), "other") == {"a": "2"}
    log.close(clean=False)
    again = node_again(memory)
    assert again.requests[5] == 22
    append(again, put("b", "4", (1, 1, 6, 1)))
    assert len(prune(cluster(memory)).segments) == 1, "sealed by now"
    assert prune(cluster(memory)).bytes == 0
    assert values(view(memory))["b"] == "4"


def test_a_segment_with_an_entry_of_another_map_stays(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(3):
        append(log, put("a", number, (1, 1, 1, number + 1)), *([put("x", "1", (1, 1, 1, 9), "other")] if number == 1 else []))
        log.rotate()
    append(log, put("a", "3", (1, 1, 1, 4)))
    run(memory, maps=["orders"])
    assert len(prune(cluster(memory)).segments) == 1
    assert values(view(memory)) == {"a": "3"} and values(view(memory), "other") == {"x": "1"}


def goes_now(store: MemoryStore) -> set[str]:
    """What may go, told from the bytes of the files and the marks alone: an archive at or below its map's mark; a sealed segment of which every map is covered, if
    none before it stays."""
    state = cluster(store).state()
    node_state, marks = state.nodes["n1"], state.covered("n1")
    found = {archive.path for archive in node_state.manifest.archives if archive.last <= marks.get(archive.map, START)}
    for segment in node_state.segments[:-1]:
        lasts: dict[str, Position] = {}
        for frame in SegmentReader(store, segment.path).frames():
            for index, row in enumerate(entry.rows(frame.payload) if frame.kind == ENTRIES else ()):
                lasts[row[0]] = Position(segment.epoch, segment.number, frame.offset, index)
        if not lasts or any(last > marks.get(name, START) for name, last in lasts.items()):
            break
        found.add(segment.path)
    return found


@pytest.mark.parametrize("history", range(12))
def test_a_file_of_the_log_goes_when_snapshots_cover_every_map_in_it_and_not_before(memory: MemoryStore, history: int, seed: int) -> None:
    """Low-water marks are a map's: one that is rewritten often does not take the others' entries along, one that never is keeps its segments."""
    chance = random.Random(seed + history)
    log, request = node(memory), 0
    expected: dict[str, dict[str, str]] = {name: {} for name in "abc"}
    pruned = 0
    for step in range(25):
        rows = []
        for name in chance.sample("abc", chance.choice((1, 1, 2, 3))):
            request += 1
            key = f"k{request % 4}"
            rows.append(put(key, None if request % 7 == 0 else request, (1, 1, 1, request), name))
            expected[name].pop(key, None)
            if request % 7:
                expected[name][key] = str(request)
        append(log, *rows)
        if chance.random() < 0.6:
            log.rotate()
        if chance.random() < 0.1:
            archive(memory, log)
        if chance.random() < 0.1:
            log.close(clean=chance.random() < 0.5)
            log = node(memory)
        if chance.random() < 0.25 or step == 24:
            known = {row[0] for changes in cluster(memory).changes() for row in changes.rows}
            run(memory, maps=sorted(known) if step == 24 else chance.sample(sorted(known), chance.randrange(1, len(known) + 1)))
            before, due = {file.path for file in memory.list("ns/c/nodes/n1") if file.path.endswith((".wal", ".parquet"))}, goes_now(memory)
            prune(cluster(memory))
            assert before - {file.path for file in memory.list("")} == due, f"step {step}"
            pruned += len(due)
            made = view(memory)
            assert {name: values(made, name) for name in "abc"} == expected, f"step {step}"
    assert pruned > 0


def test_prune_leaves_a_rewrite_under_way_alone_and_removes_one_that_died(memory: MemoryStore) -> None:
    clock = FakeClock()
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    run(memory, clock)
    first = snapshot(memory).files
    append(node_again(memory), put("a", "2", (1, 1, 1, 2)))
    run(memory, clock)
    young = "ns/c/snapshot/orders/00000077/part-00000.parquet"
    memory.create(young, b"unfinished")
    modified = {file.path: file.modified_ms for file in memory.list("ns/c/snapshot")}[young]
    clock = FakeClock(max(modified, 1))
    assert prune(cluster(memory, clock)).snapshot_files == first
    clock.advance(ORPHAN_MS / 1000 + 1)
    assert prune(cluster(memory, clock)).snapshot_files == ((young,) if modified else ())


def test_drop_forgets_a_map_and_only_that(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("a", "1", (1, 1, 1, 2), "other"))
    drop_map(cluster(memory), "orders")
    assert view(memory).maps() == ["other"]
    append(log, put("a", None, (1, 1, 1, 3)), put("b", "1", (1, 1, 1, 4)))
    assert values(view(memory)) == {"b": "1"}
    run(memory)
    prune(cluster(memory))
    assert values(view(memory)) == {"b": "1"} and values(view(memory), "other") == {"a": "1"}


def test_many_parts_are_one_snapshot_in_key_order(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(local, "PART_ROWS_MAX", 100)
    random_ = random.Random(seed)
    keys = [f"k{number:05d}" for number in range(25_000)]
    random_.shuffle(keys)
    append(node(memory), *(put(key, key, (1, 1, 1, number)) for number, key in enumerate(keys)))
    report = run(memory)
    assert len(report.maps[0].files) == 3
    assert [row[1].decode() for row in rows_of(memory)] == sorted(keys)


def test_a_rewrite_keeps_within_its_memory(memory: MemoryStore, tmp_path: Path) -> None:
    append(node(memory), *(put(f"k{number}", "v" * 100, (1, 1, 1, number)) for number in range(5000)), frames=50)
    tight = LocalEngine(Settings(restore_memory_bytes=500_000, scratch=tmp_path))
    rewrite(cluster(memory), tight)
    assert len(values(view(memory))) == 5000 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["create", "list", "read", "delete"])
def test_a_rewrite_whose_publishing_fails_at_any_operation_leaves_a_log_that_restores(kind: str, when: Any) -> None:
    """Whether the manifest names the new files is not known then: they must stay, or a published snapshot would name files that are gone."""
    at = 0
    while True:
        at += 1
        memory = MemoryStore(f"publishing-{kind}-{when}-{at}")
        for name in list(memory._medium.files):
            memory.delete(name)
        with embedded(memory) as store:
            store.map("m").update({"a": 1, "b": 2})
            store.archive()
        for _ in range(KEEP + 1):  # old manifests stand there to be cleaned
            rewrite(cluster_of(memory), LocalEngine(Settings()))
        with embedded(memory) as store:
            store.map("m")["c"] = 3
        faulty = FaultyStore(memory, Plan((Fault("error", at=at, kind=kind, path="default/embedded/manifest*", when=when),)))
        try:
            rewrite(cluster_of(faulty), LocalEngine(Settings()))
            failed = False
        except (StorageError, ImapWalError):
            failed = True
        assert contents(memory) == {"a": 1, "b": 2, "c": 3}, f"operation {at}"
        if not faulty.fired:
            break
        assert not (failed and kind == "delete"), "a clean-up that fails is nobody's concern"
    assert at > 1


def cluster_of(store: SegmentStore) -> ClusterLog:
    return ClusterLog(store, "default", "embedded", FakeClock())
