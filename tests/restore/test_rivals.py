"""Where several nodes claim one change of a key, every reader takes the same claim and reports the
same conflicts, in any order of reading, in memory or not, before and after a rewrite."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from imap_wal.entry import DELETED, KEY, VALUE, Row
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import NAMED_MAX, Noted, RivalClaims
from imap_wal.read.newest.table import Table
from imap_wal.rewrite import conflicts
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.effort import share
from tests.kit.logs import append, cluster, node, view
from tests.kit.rivals import (
    NODES,
    SPILLED,
    as_rows,
    changes,
    check_readers,
    expected,
    logs,
    reported,
)


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1])
@settings(deadline=None, max_examples=share(60))
@given(history=st.lists(changes, max_size=30), order=st.randoms(use_true_random=False))
def test_index_has_same_winners_and_conflicts_in_any_order(
    memory_bytes: int,
    history: list[tuple[str, str, int, int, int, str | None, int]],
    order: random.Random,
) -> None:
    claims = as_rows(history)
    winners, rivals = expected(claims)
    for _ in range(3):
        order.shuffle(claims)
        index, table = NewestIndex(memory_bytes), Table()
        for row, writer in [
            *claims,
            *claims[:3],
        ]:  # some appear twice, as from an archive and a segment
            index.add(writer, [row])
            table.offer(row[KEY], (*row, writer))
        found = {
            row[KEY]: (row, writer)
            for rows, nodes in index.batches_with_nodes("orders", 2)
            for row, writer in zip(rows, nodes, strict=True)
        }
        assert found == winners
        assert reported(list(index.conflicts())) == rivals
        assert list(index.get("orders", sorted(winners))) == [
            winners[key][0] for key in sorted(winners)
        ]
        assert reported(list(index.conflicts())) == rivals
        assert {state[0]: state[1] for states in index.keys("orders") for state in states} == {
            key: row[DELETED] for key, (row, _) in winners.items()
        }
        assert reported(list(index.conflicts())) == rivals
        pages = list(index.batches_with_rivals("orders"))
        assert reported([each for *_, here in pages for each in here.values()]) == rivals
        assert {key: table.claim(row) for key, row in table.rows.items()} == winners
        assert (
            reported([each for key in table.rivals if (each := table.conflict("orders", key))])
            == rivals
        )
        elsewhere = NewestIndex(1 << 30)  # a merge of merges
        for rows, nodes in index.every("orders"):
            for row, writer in zip(rows, nodes, strict=True):
                elsewhere.add(writer, [row])
        again = {
            row[KEY]: (row, writer)
            for rows, nodes in elsewhere.batches_with_nodes("orders")
            for row, writer in zip(rows, nodes, strict=True)
        }
        assert again == winners
        assert reported(list(elsewhere.conflicts())) == rivals
        assert index.count("orders") == len(winners)
        index.close()
        elsewhere.close()


@settings(deadline=None, max_examples=share(40))
@given(history=st.lists(changes, max_size=25), order=st.randoms(use_true_random=False))
def test_readers_agree_before_and_after_a_rewrite(
    history: list[tuple[str, str, int, int, int, str | None, int]], order: random.Random
) -> None:
    """Every reader of a log agrees before and after a rewrite."""
    claims = as_rows(history)
    winners, rivals = expected(claims)
    with logs(claims, order) as store:
        log = cluster(store)
        check_readers(log, winners, rivals)
        for options in (Settings(), SPILLED):
            report = rewrite(log, LocalEngine(options), skew_ms_max=2**60)
            assert sum(each.undecided for each in report.maps) == len(rivals)
            check_readers(log, winners, rivals)
        prune(log)
        check_readers(log, winners, rivals)


def test_value_wins_over_tombstone_then_first_name(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(
        first,
        put("a", None, (1, 1, 9, 9)),
        put("b", "1", (1, 1, 1, 1), timestamp_ms=1),
        put("c", None, (1, 1, 1, 2)),
    )
    append(
        second,
        put("a", "2", (1, 1, 1, 1)),
        put("b", "2", (1, 1, 9, 9), timestamp_ms=9),
        put("c", None, (1, 1, 9, 9)),
    )
    found = {row[KEY]: row[VALUE] for rows in view(memory).rows("orders") for row in rows}
    assert found == {b"a": b"2", b"b": b"1"}
    assert [each.key for each in conflicts.find(cluster(memory))] == [b"a", b"b"], (
        "two tombstones mean the same"
    )


def test_one_change_in_two_logs_is_no_conflict(memory: MemoryStore) -> None:
    for name in NODES:
        append(node(memory, name), put("a", "1", (1, 1, 1, 1)))
    assert list(conflicts.find(cluster(memory))) == []
    assert view(memory).statistics.conflicts == 0


def test_reader_names_each_conflicting_key_once_up_to_hundred(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = node(memory), node(memory, "n2")
    for log, value in ((first, "1"), (second, "2")):
        append(
            log, *(put(f"k{number}", value, (1, 1, 1, number)) for number in range(NAMED_MAX + 20))
        )
    made = view(memory)
    for _ in range(2):
        assert sum(len(rows) for rows in made.rows("orders")) == NAMED_MAX + 20
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == NAMED_MAX + 1 == len(set(said))
    assert (
        "map 'orders', key b'k0': node 'n1'" in said[0]
        and "and node 'n2'" in said[0]
        and "imap-wal verify" in said[0]
    )
    assert said[-1].startswith(f"more than {NAMED_MAX} keys")
    assert made.statistics.conflicts == NAMED_MAX + 20, "all are counted"


def test_a_long_key_is_not_named_whole(caplog: pytest.LogCaptureFixture) -> None:
    row: Row = put("k" * 100_000, "1", (1, 1, 1, 1))
    other: Row = put("k" * 100_000, "2", (1, 1, 1, 1))
    Noted().note([RivalClaims("orders", row[KEY], ((row, "n1"), (other, "n2")))])
    assert len(caplog.messages[0]) < 1000


def test_a_spilled_merge_leaves_no_file(tmp_path: Path) -> None:
    index = NewestIndex(1, tmp_path)
    for writer in NODES:
        index.add(writer, [put("a", writer, (1, 1, 1, 1))])
    assert [row[VALUE] for rows in index.batches("orders") for row in rows] == [b"n1"]
    index.close()
    assert list(tmp_path.iterdir()) == []


def test_large_conflicting_values_are_not_all_in_memory(tmp_path: Path) -> None:
    index = NewestIndex(1_000_000, tmp_path)
    for number in range(60):
        for writer, size in (("n1", 10), ("n2", 100_000), ("n3", 100_000)):
            index.add(writer, [put(f"k{number}", writer * (size // 2), (1, 1, 1, 1))])
    index.get("orders", [b"k0"])  # merges the runs, which takes memory of its own
    assert len(list(index.conflicts())) == 1
    tracemalloc.start()
    try:
        found = 0
        for _ in index.keys("orders"):
            found += sum(1 for _ in index.conflicts())
        assert found == 60
        assert sum(len(here) for *_, here in index.batches_with_rivals("orders")) == 60
        assert tracemalloc.get_traced_memory()[1] < 4_000_000, "of 12,000,000"
    finally:
        tracemalloc.stop()
    index.close()
