"""Rewrite, prune and drop, promise by promise."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal import entry
from imap_wal.clock import SystemClock
from imap_wal.entry import TURNS, Row
from imap_wal.errors import (
    CorruptLog,
    ImapWalError,
    InvalidSetting,
    LogError,
    LostRace,
    MissingNode,
    ShortLog,
)
from imap_wal.format import ENTRIES, START, Position
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.manifest.store import KEEP
from imap_wal.read import scan
from imap_wal.read.cluster import ClusterLog, pin_cuts
from imap_wal.retention.archive import archive_sealed
from imap_wal.retention.policy import remove_expired
from imap_wal.retention.snapshots import ORPHAN_MS, demand_whole
from imap_wal.rewrite import local_engine
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Result, RewritePlan, prepare
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.publish import confirm, publish
from imap_wal.rewrite.report import RewriteReport
from imap_wal.rewrite.run import rewrite
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import RecoveryPolicy, Settings
from imap_wal.storage_clock import SKEW_MS_MAX
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from storage_backends import NotFound, SegmentStore, StorageError, open_store
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.support import FakeClock, contents, embedded, overwrite, segments

ENGINE = LocalEngine(SMALL)


def run(store: MemoryStore, clock: FakeClock | None = None, **options: Any) -> RewriteReport:
    return rewrite(cluster(store, clock), ENGINE, **options)


def snapshot(store: MemoryStore, name: str = "orders") -> Any:
    return cluster(store).manifest().snapshots[name]


def archive(store: MemoryStore, log: NodeLog, writing: int | None = None) -> None:
    log.rotate()
    folder, name = log.identity.node_folder, log.identity.node
    archive_sealed(store, folder, name, log.manifests, writing=writing or log.unsealed)


def rows_of(store: MemoryStore, name: str = "orders") -> list[Any]:
    return [
        row for changes in cluster(store).changes(maps=[name], until={}) for row in changes.rows
    ]


def test_snapshot_has_newest_values_without_touching_the_service(
    memory: MemoryStore,
) -> None:
    """The snapshot holds the newest of every key and the service is untouched."""
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
    assert [row[1] for row in rows_of(memory)] == sorted(
        f"k{number}".encode() for number in range(1, 10)
    )
    append(log, put("k1", "after", (1, 1, 1, 200)))
    assert values(view(memory)) == {
        **{f"k{number}": str(90 + number) for number in range(2, 10)},
        "k1": "after",
    }


def test_a_dry_run_says_the_same_and_publishes_nothing(memory: MemoryStore) -> None:
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
    assert snapshot(memory).marks["n1"].position == log.end, "but its mark moves on"
    assert values(view(memory)) == {"a": "1"} and values(view(memory), "other") == {"a": "2"}


def test_one_of_two_rewriters_publishes(memory: MemoryStore) -> None:
    """Of two rewriters one publishes and the other loses the race."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    gate = threading.Event()

    class Slow(LocalEngine):
        def run(self, job: RewritePlan, log: ClusterLog) -> Result:
            merged = super().run(job, log)
            run(memory)
            gate.set()
            return merged

    with pytest.raises(LostRace, match="'orders'"):
        rewrite(cluster(memory), Slow(SMALL))
    assert gate.is_set()
    published = snapshot(memory).files
    assert [file.path for file in memory.list("ns/c/snapshot")] == list(published), (
        "the loser leaves nothing behind"
    )


@pytest.mark.parametrize("meanwhile", ["lifetime", "node", "drop"])
def test_what_no_longer_fits_is_not_published(memory: MemoryStore, meanwhile: str) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))

    class Disturbed(LocalEngine):
        def run(self, job: RewritePlan, log: ClusterLog) -> Result:
            merged = super().run(job, log)
            if meanwhile == "lifetime":
                cuts = pin_cuts(log)
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
        def run(self, job: RewritePlan, log: ClusterLog) -> Result:
            super().run(job, log)
            assert memory.list("ns/c/snapshot")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(cluster(memory), Failing(SMALL))
    assert memory.list("ns/c/snapshot") == []


def members(store: MemoryStore, incarnation: int = 1) -> None:
    """From here on the log is one of Hazelcast members, in a new lifetime of their cluster."""
    cuts = pin_cuts(cluster(store))
    born = IncarnationRecord(f"id-{incarnation}", incarnation, cuts)
    cluster(store).manifests.update(lambda now: replace(now, lifetimes=(*now.lifetimes, born)))


HOUR_MS = 3_600_000


@pytest.mark.parametrize("history", ["clock late", "commit stuck", "resend after a pause"])
def test_replaced_owner_does_not_undo_a_deletion(memory: MemoryStore, history: str) -> None:
    """A deletion is not undone by a change of an owner that was replaced.
    n1 owns the partition (version 1) and its change is under way; the partition moves to n2
    (version 2), which deletes the key; a rewrite drops the tombstone; only then the change arrives.
    It is never acknowledged, and must not come back: whatever the clocks say, however long it
    took."""
    clock = FakeClock()
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(first, put("a", "old", (1, 1, 1, 1)))
    # The node that deletes has a clock that is an hour late, or the change is stuck for an hour.
    wrote_ms = clock.now_ms() - (2 * HOUR_MS if history == "clock late" else 0)
    append(second, put("a", None, (1, 2, 1, 1), timestamp_ms=wrote_ms))
    if history != "clock late":
        clock.advance(2 * HOUR_MS / 1000)
    report = run(memory, clock)
    assert report.maps[0].tombstones == 0, "the tombstone is dropped at once"
    prune(cluster(memory, clock))
    if history == "resend after a pause":  # another key, and then the request that was in doubt
        append(first, put("b", "late too", (1, 1, 1, 2)))
    append(first, put("a", "late", (1, 1, 1, 3)))
    assert values(view(memory, clock)) == {}
    archive(memory, first)
    assert values(view(memory, clock)) == {}, "nor from an archive"
    append(second, put("a", "new", (1, 2, 1, 2)))
    assert values(view(memory, clock)) == {"a": "new"}
    run(memory, clock)
    prune(cluster(memory, clock))
    append(first, put("a", "late again", (1, 1, 1, 4)))
    assert values(view(memory, clock)) == {"a": "new"}


def in_partition(partition: int, row: Row) -> Row:
    return (*row[:8], partition, row[9])


def test_tombstone_unseen_by_later_rewrite_still_voids_older(
    memory: MemoryStore,
) -> None:
    """A tombstone that a later rewrite no longer sees still voids what is older.
    The table is carried on: the rewrite after the one that dropped the tombstone reads nothing
    of version 2, and neither does one that reads another map, or that covers a part of the
    nodes."""
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(second, put("a", None, (1, 2, 1, 1)), put("x", "1", (1, 2, 1, 2), "other"))
    run(memory)
    prune(cluster(memory))
    append(first, in_partition(7, put("c", "of another", (1, 1, 1, 1))))
    run(memory, maps=["orders"])
    prune(cluster(memory))
    append(first, put("a", "late", (1, 1, 1, 2)))
    assert values(view(memory)) == {"c": "of another"}
    assert len(cluster(memory).manifest().versions) <= 2, "old tables go"


def test_transaction_logged_after_later_turns_counts(
    memory: MemoryStore,
) -> None:
    """A transaction that is logged after later turns of the same owner counts.
    The owner, n1, gave a transaction its turn (1) in the partition's version 5. n2 logs the
    transaction, after a rewrite that has read n1's later turn (2) of another key."""
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(first, put("b", "later turn", (1, 5 * TURNS + 2, 1, 1)))
    run(memory)
    prune(cluster(memory))
    append(second, put("a", "of the transaction", (1, 5 * TURNS + 1, 1, 1)))
    append(second, put("c", "of a former owner", (1, 4 * TURNS + 9, 1, 2)))
    assert values(view(memory)) == {"a": "of the transaction", "b": "later turn"}
    append(first, put("a", "later turn", (1, 5 * TURNS + 2, 1, 2)))
    assert values(view(memory)) == {"a": "later turn", "b": "later turn"}
    run(memory)
    assert values(view(memory)) == {"a": "later turn", "b": "later turn"}


@pytest.mark.parametrize("kept_because", ["a node is missing", "as of a time", "it came late"])
def test_tombstone_dropped_by_second_rewrite_still_voids_older(
    memory: MemoryStore, kept_because: str
) -> None:
    """A tombstone that one rewrite kept and the next drops still voids what is older.
    The second rewrite finds the tombstone in the first one's snapshot and in no log. It
    must learn the partition version from there."""
    first, second, clock = node(memory), node(memory, "n2"), FakeClock()
    node(memory, "n3").close()
    members(memory)
    deletion = put("a", None, (1, 2, 1, 1), timestamp_ms=clock.now_ms())
    if kept_because == "it came late":
        job = prepare(cluster(memory, clock))
        append(second, deletion)
        now = cluster(memory, clock).ends()
        job = replace(job, until=now, state=cluster(memory, clock).state())
        publish(cluster(memory, clock), job, ENGINE.run(job, cluster(memory, clock)))
    elif kept_because == "as of a time":
        append(second, deletion)
        clock.advance(2)
        run(memory, clock, as_of_ms=clock.now_ms() - 1000)
    else:
        append(second, deletion)
        hidden = {file.path: memory.read(file.path) for file in memory.list("ns/c/nodes/n3")}
        for path in hidden:
            memory.delete(path)
        run(memory, clock, policy=RecoveryPolicy.PARTIAL)
        for path, data in hidden.items():
            memory.create(path, data)
    assert snapshot(memory).tombstones == 1
    prune(cluster(memory, clock))
    run(memory, clock)
    assert snapshot(memory).tombstones == 0
    prune(cluster(memory, clock))
    append(first, put("a", "late", (1, 1, 1, 1)))
    assert values(view(memory, clock)) == {}


@pytest.mark.parametrize("found_in", ["a log", "an archive", "a snapshot"])
def test_replaced_owners_change_stays_void_after_drop(memory: MemoryStore, found_in: str) -> None:
    """A change of an owner that was replaced does not come back after a drop.
    A drop covers the entry that hid that change, so it must keep the partition version."""
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(second, put("a", None, (1, 2, 1, 1)), put("b", "newer", (1, 2, 1, 2)))
    if found_in == "an archive":
        archive(memory, second)
    elif found_in == "a snapshot":
        job = prepare(cluster(memory))  # one that knows nothing of partitions
        late = replace(job, settled=dict.fromkeys(job.settled, START), versions=None)
        publish(cluster(memory), late, ENGINE.run(late, cluster(memory)))
        assert snapshot(memory).tombstones == 1 and cluster(memory).manifest().versions == {}
    drop_map(cluster(memory), "orders")
    prune(cluster(memory))
    append(first, put("a", "late", (1, 1, 1, 1)), put("b", "late", (1, 1, 1, 2)))
    assert values(view(memory)) == {}
    append(second, put("b", "after the drop", (1, 2, 1, 3)))
    assert values(view(memory)) == {"b": "after the drop"}
    run(memory)
    assert values(view(memory)) == {"b": "after the drop"}


def test_map_with_a_damaged_file_can_be_dropped(memory: MemoryStore) -> None:
    """A map of which a file is damaged can be dropped."""
    first = node(memory)
    members(memory)
    append(first, put("a", "1", (1, 1, 1, 1)))
    archive(memory, first)
    (path,) = [file.path for file in memory.list("ns/c/nodes/n1/archive")]
    overwrite(memory, path, bytes(memory.size(path)))
    drop_map(cluster(memory), "orders")
    assert values(view(memory)) == {}


def test_map_without_snapshot_keeps_lower_version_changes(
    memory: MemoryStore,
) -> None:
    """A map without a snapshot keeps what owners of lower versions wrote.
    What a rewrite of one map learns of a partition says nothing of another map's log, which may
    hold older changes of the same partition that were acknowledged in their time."""
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(first, put("x", "1", (1, 1, 1, 1), "other"))
    append(second, put("a", "1", (1, 2, 1, 1)))
    run(memory, maps=["orders"])
    assert values(view(memory), "other") == {"x": "1"}
    drop_map(cluster(memory), "third")
    assert values(view(memory), "other") == {"x": "1"}


def test_a_rewrite_without_a_missing_node_learns_nothing_of_partitions(memory: MemoryStore) -> None:
    """The missing node may hold acknowledged changes of an older owner."""
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(first, put("a", "1", (1, 1, 1, 1)))
    append(second, put("b", "1", (1, 2, 1, 1)))
    hidden = {file.path: memory.read(file.path) for file in memory.list("ns/c/nodes/n1")}
    for path in hidden:
        memory.delete(path)
    run(memory, policy=RecoveryPolicy.PARTIAL)
    for path, data in hidden.items():
        memory.create(path, data)
    assert values(view(memory)) == {"a": "1", "b": "1"}


def test_shared_log_keeps_later_writes_of_earlier_open(
    memory: MemoryStore,
) -> None:
    """Embedded stores that share a log keep what an earlier open writes later.
    Each open has an incarnation of its own, and all may be writing: none is replaced by another.
    A tombstone is then kept until no node but its own is open."""
    first, second = node(memory), node(memory, "n2")
    append(second, put("a", None, (2, 0, 1, 1)))
    append(first, put("a", "older than the tombstone", (1, 0, 1, 1)))
    assert run(memory).maps[0].tombstones == 1
    append(first, put("b", "acknowledged", (1, 0, 1, 2)), put("a", "older", (1, 0, 1, 3)))
    assert values(view(memory)) == {"b": "acknowledged"}
    first.close()
    assert run(memory).maps[0].tombstones == 0, "n2 itself numbers its later changes higher"
    assert values(view(memory)) == {"b": "acknowledged"}
    assert cluster(memory).manifest().versions == {}


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
    members(memory, 2)
    assert run(memory).maps[0].tombstones == 0
    append(second, put("a", "late", (1, 1, 1, 1)))
    assert values(view(memory)) == {}


def test_tombstones_stay_while_a_node_is_missing(
    memory: MemoryStore,
) -> None:
    """Tombstones stay when a node is missing and what it covered stays covered."""
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


def test_entries_are_removed_when_expired_by_every_clock(
    memory: MemoryStore,
) -> None:
    """Expired entries go when they are over by every clock that is allowed."""
    clock = FakeClock()
    soon = clock.now_ms() + 1000
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1), expires_at_ms=soon), put("b", "1", (1, 1, 1, 2)))
    clock.advance(10)
    assert run(memory, clock).maps[0].live == 2, "the clock of this machine may be ahead"
    clock.advance(SKEW_MS_MAX / 1000)
    append(log, put("b", "2", (1, 1, 1, 3)))
    assert run(memory, clock).maps[0].live == 1


def test_unwritten_map_is_removed_when_all_has_expired(memory: MemoryStore) -> None:
    """A map that no one writes goes when all of it has expired."""
    clock = FakeClock()
    soon = clock.now_ms() + 1000
    log = node(memory)
    append(
        log, put("a", "1", (1, 1, 1, 1), expires_at_ms=soon), put("b", "1", (1, 1, 1, 2), "kept")
    )
    append(log, put("c", "1", (1, 1, 1, 3), "kept", expires_at_ms=soon))
    run(memory, clock)
    assert [item.unchanged for item in run(memory, clock).maps] == [True, True]
    clock.advance(1 + SKEW_MS_MAX / 1000)
    kept, orders = run(memory, clock).maps
    assert (orders.map, orders.live, orders.unchanged) == ("orders", 0, False)
    assert snapshot(memory).files == () and kept.unchanged


def test_rewrite_with_a_wrong_clock_is_refused(tmp_path: Path) -> None:
    """A rewrite by a machine whose clock is wrong is refused.
    It would drop entries that live, for good."""
    store = open_store(str(tmp_path))
    real = SystemClock()
    soon = real.now_ms() + HOUR_MS
    append(node(store), put("a", "1", (1, 1, 1, 1), expires_at_ms=soon))
    for offset_ms in (2 * HOUR_MS, -2 * HOUR_MS):
        wrong = ClusterLog(store, "ns", "c", SystemClock(offset_ms))
        with pytest.raises(InvalidSetting, match=r"clock is 7,200 s .*--max-clock-skew"):
            rewrite(wrong, ENGINE)
        with pytest.raises(InvalidSetting, match="7,200 s"):
            prune(wrong, ttl_s=60)
    assert store.list("ns/c/snapshot") == [] and store.list("ns/c/clock") == []
    log = ClusterLog(store, "ns", "c", real)
    report = rewrite(log, ENGINE)
    assert report.maps[0].live == 1
    assert report.clock_skew_ms is not None and abs(report.clock_skew_ms) < 5000
    rewrite(ClusterLog(store, "ns", "c", SystemClock(2 * HOUR_MS)), ENGINE, skew_ms_max=3 * HOUR_MS)


def node_again(store: MemoryStore) -> NodeLog:
    from imap_wal.clock import SeededRandomness
    from imap_wal.layout import Identity
    from imap_wal.write.opening import open_node_log

    return open_node_log(
        LogContext(store, Identity("ns", "c", "n1"), SMALL, FakeClock(), SeededRandomness(77)),
        what="the test",
        takeover=True,
    )


def test_as_of_covers_only_what_was_written_until_then(memory: MemoryStore) -> None:
    """As of covers what was written until then and leaves the rest."""
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
    with pytest.raises(InvalidSetting, match="is no longer known"):
        run(memory, clock, as_of_ms=start + 3000)
    prune(cluster(memory, clock))
    assert values(view(memory, clock)) == {"a": "9"}


def test_prune_removes_what_is_covered_and_nothing_else(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(3):
        append(
            log,
            put("a", number, (1, 1, 5, number + 1)),
            put("a", number, (1, 1, 5, 10 + number), "other"),
        )
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
    assert (
        replace(dry, dry_run=False) == report
        and len(report.archives) == 1
        and len(report.segments) == 2
    )
    assert {path for path in files - left if "manifest" not in path} == {
        *report.archives,
        *report.segments,
    }
    assert len(segments(memory)) == 1, "the newest segment is its owner's"
    assert values(view(memory)) == {"a": "2", "b": "3"} and values(view(memory), "other") == {
        "a": "2"
    }
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
        append(
            log,
            put("a", number, (1, 1, 1, number + 1)),
            *([put("x", "1", (1, 1, 1, 9), "other")] if number == 1 else []),
        )
        log.rotate()
    append(log, put("a", "3", (1, 1, 1, 4)))
    run(memory, maps=["orders"])
    assert len(prune(cluster(memory)).segments) == 1
    assert values(view(memory)) == {"a": "3"} and values(view(memory), "other") == {"x": "1"}


def goes_now(store: MemoryStore) -> set[str]:
    """What may go, told from the bytes of the files and the marks alone: an archive at or below its
    map's mark; a sealed segment of which every map is covered, if none before it stays."""
    state = cluster(store).state()
    node_state, marks = state.nodes["n1"], state.covered("n1")
    found = {
        archive.path
        for archive in node_state.manifest.archives
        if archive.last <= marks.get(archive.map, START)
    }
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
def test_log_file_is_removed_once_snapshots_cover_every_map(
    memory: MemoryStore, history: int, seed: int
) -> None:
    """A file of the log goes when snapshots cover every map in it and not before.
    Low-water marks are a map's: one that is rewritten often does not take the others' entries
    along, one that never is keeps its segments."""
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
            run(
                memory,
                maps=sorted(known)
                if step == 24
                else chance.sample(sorted(known), chance.randrange(1, len(known) + 1)),
            )
            before, due = (
                {
                    file.path
                    for file in memory.list("ns/c/nodes/n1")
                    if file.path.endswith((".wal", ".parquet"))
                },
                goes_now(memory),
            )
            prune(cluster(memory))
            assert before - {file.path for file in memory.list("")} == due, f"step {step}"
            pruned += len(due)
            made = view(memory)
            assert {name: values(made, name) for name in "abc"} == expected, f"step {step}"
    assert pruned > 0


def aged(store: SegmentStore, path: str, seconds: float) -> None:
    """Make a file that much older."""
    file = Path(store.url.removeprefix("file://")) / path
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


def real_log(store: SegmentStore, offset_ms: int = 0) -> ClusterLog:
    return ClusterLog(store, "ns", "c", SystemClock(offset_ms))


def test_prune_removes_only_rewrites_that_died(tmp_path: Path) -> None:
    """Prune leaves a rewrite under way alone and removes one that died."""
    store = open_store(str(tmp_path))
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    rewrite(real_log(store), ENGINE)
    first = real_log(store).manifest().snapshots["orders"].files
    append(log, put("a", "2", (1, 1, 1, 2)))
    rewrite(real_log(store), ENGINE)
    young = "ns/c/snapshot/orders/00000077/part-00000-00000-x.parquet"
    store.create(young, b"unfinished")
    # A pruner's own clock does not matter.
    assert prune(real_log(store, 48 * HOUR_MS)).snapshot_files == first
    aged(store, young, ORPHAN_MS / 1000 + 60)
    assert prune(real_log(store, -48 * HOUR_MS), dry_run=False).snapshot_files == (young,)
    append(log, put("a", "3", (1, 1, 1, 3)))
    rewrite(real_log(store), ENGINE)
    assert values(view(store)) == {"a": "3"}, "later rewrites are not below the floor"


def test_a_rewrite_that_a_prune_took_for_dead_publishes_nothing(tmp_path: Path) -> None:
    """It took more than a day: its files are deleted, and it must not name them."""
    store = open_store(str(tmp_path))
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))
    log.rotate()
    append(log, put("c", "1", (1, 1, 1, 3)))

    class Slow(LocalEngine):
        def run(self, job: RewritePlan, log: ClusterLog) -> Result:
            result = super().run(job, log)
            for file in store.list("ns/c/snapshot"):
                aged(store, file.path, ORPHAN_MS / 1000 + 60)
            assert len(prune(real_log(store)).snapshot_files) == 2
            return result

    with pytest.raises(LostRace, match=r"treated this rewrite .* as dead"):
        rewrite(real_log(store), Slow(SMALL))
    assert real_log(store).manifest().snapshots == {}
    prune(real_log(store))
    assert values(view(store)) == {"a": "1", "c": "1"}


def test_the_floor_is_checked_in_the_compare_and_swap(tmp_path: Path) -> None:
    """The prune comes after the parts were looked at, and before the manifest is published."""
    store = open_store(str(tmp_path))
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    log = real_log(store)
    job = prepare(log)
    result = ENGINE.run(job, log)
    confirm(log, job, result)
    for file in store.list("ns/c/snapshot"):
        aged(store, file.path, ORPHAN_MS / 1000 + 60)
    prune(real_log(store))
    with pytest.raises(LostRace):
        publish(log, job, result)
    assert real_log(store).manifest().snapshots == {}


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "another"])
def test_rewrite_with_a_changed_part_publishes_nothing(memory: MemoryStore, damage: str) -> None:
    """A rewrite whose part is not what was written publishes nothing."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))

    class Losing(LocalEngine):
        def run(self, job: RewritePlan, log: ClusterLog) -> Result:
            result = super().run(job, log)
            spoil(memory, result.maps[0].parts[0].path, damage, result.maps[1].parts[0].path)
            return result

    with pytest.raises(LogError, match="part-00000-00000-"):
        rewrite(cluster(memory), Losing(SMALL))
    assert cluster(memory).manifest().snapshots == {}
    assert values(view(memory)) == {"a": "1"} and values(view(memory), "other") == {"b": "1"}


def spoil(store: SegmentStore, path: str, damage: str, other: str) -> None:
    data = store.read(path)
    store.delete(path)
    if damage == "cut":
        store.create(path, data[:-1])
    elif damage == "changed":
        store.create(path, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    elif damage == "another":  # whole, and not ours
        store.create(path, store.read(other))


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "another"])
def test_covered_files_stay_while_their_snapshot_is_damaged(
    memory: MemoryStore, damage: str
) -> None:
    """Nothing that a snapshot covers is removed while a file of it is not whole."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))
    archive(memory, log)
    run(memory)
    spoil(memory, snapshot(memory).files[0], damage, snapshot(memory, "other").files[0])
    before = {file.path for file in memory.list("ns/c/nodes")}
    with pytest.raises(CorruptLog, match="snapshot/orders/"):
        prune(cluster(memory))
    with pytest.raises(CorruptLog, match="snapshot/orders/"):
        remove_expired(cluster(memory), "n1", Settings(wal_ttl_seconds=1), log.unsealed)
    assert {file.path for file in memory.list("ns/c/nodes")} == before
    with pytest.raises((CorruptLog, ShortLog)):
        view(memory)


def test_snapshot_replaced_during_a_read_is_no_damage(
    memory: MemoryStore,
) -> None:
    """A snapshot that was replaced since the manifest was read is no damage."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    run(memory)
    before = cluster(memory).manifest()
    append(log, put("a", "2", (1, 1, 1, 2)))
    run(memory)
    prune(cluster(memory))
    demand_whole(cluster(memory), before, ["orders"])
    memory.delete(snapshot(memory).files[0])
    with pytest.raises(CorruptLog, match="is not there"):
        demand_whole(cluster(memory), before, ["orders"])


def test_snapshot_of_another_map_or_with_missing_rows_is_refused(memory: MemoryStore) -> None:
    """A snapshot of another map or with rows missing is not served.
    The manifest has the number of rows too: a file that agrees with itself is not enough."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    run(memory)
    kept = snapshot(memory)
    wrong = replace(kept, rows=(3,))
    cluster(memory).manifests.update(lambda now: now.with_snapshot("orders", wrong))
    with pytest.raises(CorruptLog, match="holds 2 rows, the manifest says 3"):
        view(memory)


def test_an_archive_that_was_exchanged_is_not_served(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))
    archive(memory, log)
    paths = {each.map: each.path for each in cluster(memory).node("n1").manifest.archives}
    overwrite(memory, paths["orders"], memory.read(paths["other"]))
    with pytest.raises(CorruptLog, match=r"archive/orders/.*checksum that the manifest has"):
        view(memory)


def test_the_owner_removes_former_snapshots_by_itself(memory: MemoryStore) -> None:
    log = node(memory)
    for number in range(4):
        append(log, put("a", number, (1, 1, 1, number + 1)))
        run(memory)
    assert len(memory.list("ns/c/snapshot")) == 4
    remove_expired(cluster(memory), "n1", Settings(), log.unsealed)
    assert len(memory.list("ns/c/snapshot")) == 4, "not unless a setting asks for it"
    remove_expired(cluster(memory), "n1", Settings(wal_size_limit_mb=1), log.unsealed)
    assert [file.path for file in memory.list("ns/c/snapshot")] == list(snapshot(memory).files)
    assert values(view(memory)) == {"a": "3"}


def test_unnamed_file_of_the_current_generation_is_removed(memory: MemoryStore) -> None:
    """A file of the current generation that no manifest names goes.
    What a second attempt of a Spark task left."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    run(memory)
    (path,) = snapshot(memory).files
    left = path.replace("part-00000-00000-", "part-00000-00000-f")
    memory.create(left, memory.read(path))
    assert prune(cluster(memory)).snapshot_files == (left,)
    assert values(view(memory)) == {"a": "1"}


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
        def run(self, job: RewritePlan, log: ClusterLog) -> Result:
            attempts.append(job)
            slow.armed = True
            result = super().run(job, log)
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
    """A rewrite under which another one and a prune took the log away begins again."""
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

    job = prepare(cluster(memory))
    slow = Between(name, 3, other)
    slow.armed = True
    with pytest.raises(NotFound, match="newer snapshot covers"):
        ENGINE.run(job, cluster(slow))
    assert done
    append(log, put("k9", 9, (1, 1, 1, 9)))
    run(memory)
    assert len(values(view(memory))) == 6


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


def test_many_parts_are_one_snapshot_in_key_order(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(local_engine, "PART_ROWS_MAX", 100)
    random_ = random.Random(seed)
    keys = [f"k{number:05d}" for number in range(25_000)]
    random_.shuffle(keys)
    append(node(memory), *(put(key, key, (1, 1, 1, number)) for number, key in enumerate(keys)))
    report = run(memory)
    assert len(report.maps[0].files) == 3
    assert [row[1].decode() for row in rows_of(memory)] == sorted(keys)


def test_a_rewrite_keeps_within_its_memory(memory: MemoryStore, tmp_path: Path) -> None:
    append(
        node(memory),
        *(put(f"k{number}", "v" * 100, (1, 1, 1, number)) for number in range(5000)),
        frames=50,
    )
    tight = LocalEngine(Settings(restore_memory_bytes=500_000, scratch=tmp_path))
    rewrite(cluster(memory), tight)
    assert len(values(view(memory))) == 5000 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["create", "list", "read", "delete"])
def test_failed_publishing_leaves_a_restorable_log(kind: str, when: Any) -> None:
    """A rewrite whose publishing fails at any operation leaves a log that restores.
    Whether the manifest names the new files is not known then: they must stay, or a published
    snapshot would name files that are gone."""
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
        assert not (failed and kind == "delete"), "a clean-up that fails is nobody's concern"
    assert at > 1


def cluster_of(store: SegmentStore) -> ClusterLog:
    return ClusterLog(store, "default", "embedded", FakeClock())
