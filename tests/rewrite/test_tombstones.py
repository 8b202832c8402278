"""A rewrite drops tombstones and expired entries, and no older change of their keys returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imap_wal.clock import SKEW_MS_MAX, SystemClock
from imap_wal.context import Context
from imap_wal.entry import ORDER, TURNS, Row
from imap_wal.errors import (
    InvalidSetting,
    MissingNode,
)
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.plan import prepare
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.publish import publish
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import RecoveryPolicy
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.rewrites import ENGINE, HOUR_MS, archive, members, run, snapshot
from tests.support import FakeClock


@pytest.mark.parametrize("history", ["clock late", "commit stuck", "resend after a pause"])
def test_replaced_owner_does_not_undo_a_deletion(memory: MemoryStore, history: str) -> None:
    """n1 owns the partition (version 1) and its change is in progress; the partition moves to n2
    (version 2), which deletes the key; a rewrite drops the tombstone; only then the change arrives.
    It is never acknowledged, and must not count, with any clocks and after any time."""
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


def test_a_tombstone_stays_while_another_store_may_append(memory: MemoryStore) -> None:
    """An older change of the key may come late, in the log of another embedded store."""
    first, second = node(memory), node(memory, "n2")
    append(second, put("b", "1", (1, 0, 1, 1)))
    append(first, put("a", "2", (2, 0, 2, 1)), put("a", None, (2, 0, 2, 2)))
    assert run(memory).maps[0].tombstones == 1
    prune(cluster(memory))
    append(second, put("a", "1", (1, 0, 1, 2)))
    assert values(view(memory)) == {"b": "1"}


def in_partition(partition: int, row: Row) -> Row:
    return (*row[:8], partition, row[ORDER])


def test_tombstone_unseen_by_later_rewrite_still_voids_older(
    memory: MemoryStore,
) -> None:
    """The rewrite that drops the tombstone records the partition version. Later rewrites must keep
    the record: one that reads nothing of version 2, one of another map, and one that covers a part
    of the nodes."""
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
    assert len(cluster(memory).manifest().versions) <= 2, "old tables are removed"


def test_transaction_logged_after_later_turns_counts(
    memory: MemoryStore,
) -> None:
    """The owner, n1, gave a transaction its turn (1) in the partition's version 5. n2 logs the
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
    """The second rewrite finds the tombstone in the first one's snapshot and in no log. It must
    learn the partition version from there."""
    first, second, clock = node(memory), node(memory, "n2"), FakeClock()
    node(memory, "n3").close()
    members(memory)
    deletion = put("a", None, (1, 2, 1, 1), timestamp_ms=clock.now_ms())
    if kept_because == "it came late":
        plan = prepare(cluster(memory, clock))
        append(second, deletion)
        now = cluster(memory, clock).ends()
        plan = replace(plan, until=now, state=cluster(memory, clock).state())
        publish(cluster(memory, clock), plan, ENGINE.run(plan, cluster(memory, clock)))
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


def test_map_without_snapshot_keeps_lower_version_changes(
    memory: MemoryStore,
) -> None:
    """The facts that a rewrite of one map learns about a partition do not apply to another map's
    log. That log may have older changes of the same partition, which were acknowledged in their
    time."""
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(first, put("x", "1", (1, 1, 1, 1), "other"))
    append(second, put("a", "1", (1, 2, 1, 1)))
    run(memory, maps=["orders"])
    assert values(view(memory), "other") == {"x": "1"}
    drop_map(cluster(memory), "third")
    assert values(view(memory), "other") == {"x": "1"}


def test_a_rewrite_without_a_missing_node_learns_nothing_of_partitions(memory: MemoryStore) -> None:
    """The missing node may have acknowledged changes of an older owner."""
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
    """Each open has an incarnation of its own, and all may be writing: none is replaced by another.
    A tombstone is then kept until no other node is open."""
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


def test_a_tombstone_is_dropped_when_all_other_logs_are_closed(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(second, put("a", "old", (1, 1, 1, 1)))
    append(first, put("a", None, (1, 2, 1, 1)))
    assert run(memory).maps[0].tombstones == 1
    second.close()
    assert run(memory).maps[0].tombstones == 0 and snapshot(memory).paths == ()
    prune(cluster(memory))
    assert values(view(memory)) == {}


def test_a_tombstone_of_a_former_lifetime_is_dropped(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", None, (1, 2, 1, 1)))
    members(memory, 2)
    assert run(memory).maps[0].tombstones == 0
    append(second, put("a", "late", (1, 1, 1, 1)))
    assert values(view(memory)) == {}


def test_tombstones_are_kept_while_a_node_is_missing(
    memory: MemoryStore,
) -> None:
    """Entries of that node that a snapshot covers remain covered."""
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
    """Every clock that is allowed: the bound on their difference is added."""
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
    """No entry of the map is live any more."""
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
    assert snapshot(memory).paths == () and kept.unchanged


def test_rewrite_with_a_wrong_clock_is_refused(tmp_path: Path) -> None:
    """It would drop live entries permanently."""
    store = open_store(str(tmp_path))
    real = SystemClock()
    soon = real.now_ms() + HOUR_MS
    append(node(store), put("a", "1", (1, 1, 1, 1), expires_at_ms=soon))
    for offset_ms in (2 * HOUR_MS, -2 * HOUR_MS):
        wrong = ClusterLog(Context(store, clock=SystemClock(offset_ms)), "ns", "c")
        with pytest.raises(InvalidSetting, match=r"clock is 7,200 s .*--max-clock-skew"):
            rewrite(wrong, ENGINE)
        with pytest.raises(InvalidSetting, match="7,200 s"):
            prune(wrong, ttl_s=60)
    assert store.list("ns/c/snapshot") == [] and store.list("ns/c/clock") == []
    log = ClusterLog(Context(store, clock=real), "ns", "c")
    report = rewrite(log, ENGINE)
    assert report.maps[0].live == 1
    assert report.clock_skew_ms is not None and abs(report.clock_skew_ms) < 5000
    rewrite(
        ClusterLog(Context(store, clock=SystemClock(2 * HOUR_MS)), "ns", "c"),
        ENGINE,
        skew_ms_max=3 * HOUR_MS,
    )
