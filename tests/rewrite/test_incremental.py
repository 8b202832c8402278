"""A rewrite reads and writes only the key ranges that have new entries."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imap_wal.errors import CorruptLog, ShortLog
from imap_wal.rewrite import part_writer, ranges
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.report import MapRewrite
from storage_backends.memory import MemoryStore, forget
from tests import histories
from tests.histories import put
from tests.kit.effort import share, thorough
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.repairs import repaired
from tests.kit.rewrites import HOUR_MS, archive, run, snapshot
from tests.support import FakeClock

ROWS_A_PART = 10


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", ROWS_A_PART)


class Keys:
    """One node's log of map "orders", with a dict of what it has. Each change is later than all
    before."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.log, self.live = store, node(store), dict[str, str]()
        self._request = itertools.count(1)

    def put(self, key: str, value: str | None, expires_at_ms: int = 0) -> None:
        order = (1, 1, 1, next(self._request))
        append(self.log, put(key, value, order, expires_at_ms=expires_at_ms))
        self.live.pop(key, None)
        if value is not None:
            self.live[key] = value

    def rewrite(self, clock: FakeClock | None = None) -> MapRewrite:
        (report,) = run(self.store, clock).maps
        assert values(view(self.store, clock)) == self.live
        return report


@pytest.fixture
def keys(memory: MemoryStore) -> Keys:
    """100 keys in 10 files."""
    found = Keys(memory)
    for number in range(100):
        found.put(f"k{number:03d}", "first")
    found.rewrite()
    assert len(snapshot(memory).paths) == 10
    return found


def test_only_the_range_with_a_new_entry_is_rewritten(keys: Keys) -> None:
    before = snapshot(keys.store)
    keys.put("k055", "second")
    report = keys.rewrite()
    after = snapshot(keys.store)
    assert [a == b for a, b in zip(before.paths, after.paths, strict=True)] == [
        number != 5 for number in range(10)
    ]
    assert [file.border for file in after.files] == [file.border for file in before.files]
    assert (report.records_kept, report.records_read, report.dropped) == (90, 11, 1)
    assert report.bytes_written == after.files[5].size
    assert (after.live, after.bytes) == (100, sum(file.size for file in after.files))


def test_a_rewrite_of_everything_keeps_nothing(keys: Keys) -> None:
    before = set(snapshot(keys.store).paths)
    for number in range(0, 100, 10):
        keys.put(f"k{number:03d}", "second")
    assert keys.rewrite().records_kept == 0
    assert not before & set(snapshot(keys.store).paths)


def test_keys_outside_of_all_ranges_get_files(keys: Keys) -> None:
    """A key before the first one belongs to the first range, one after the last to the last."""
    for key in ("a", "k0555", "z"):
        keys.put(key, "new")
    assert keys.rewrite().records_kept == 70
    keys.put("zz", "new")
    assert keys.rewrite().records_kept == 102


def test_a_range_may_become_empty(keys: Keys) -> None:
    for start in (0, 50, 90):
        for number in range(start, start + 10):
            keys.put(f"k{number:03d}", None)
        keys.rewrite()
    found = snapshot(keys.store)
    assert (len(found.files), found.tombstones, found.files[0].border) == (7, 0, "")
    keys.put("k000", "again")
    keys.put("k095", "again")
    assert keys.rewrite().records_kept == 50


def test_a_range_with_an_expired_entry_is_rewritten(memory: MemoryStore) -> None:
    clock, keys = FakeClock(), Keys(memory)
    soon = clock.now_ms() + HOUR_MS
    for number in range(30):
        keys.put(f"k{number:03d}", "first", soon if number == 15 else 0)
    keys.rewrite(clock)
    keys.put("k000", "second")
    assert keys.rewrite(clock).records_kept == 20
    clock.advance(2 * HOUR_MS / 1000)
    del keys.live["k015"]
    keys.put("k000", "third")
    assert keys.rewrite(clock).records_kept == 10
    assert snapshot(memory).live == 29


def test_prune_keeps_files_of_earlier_rewrites(keys: Keys) -> None:
    for turn in range(5):
        keys.put(f"k{turn * 10:03d}", f"turn {turn}")
        archive(keys.store, keys.log)
        keys.rewrite()
        prune(cluster(keys.store))
        assert values(view(keys.store)) == keys.live
    named = set(snapshot(keys.store).paths)
    assert {file.path for file in keys.store.list("ns/c/snapshot")} == named


def test_a_lost_file_of_the_former_snapshot_stops_the_rewrite(keys: Keys) -> None:
    before = snapshot(keys.store)
    keys.store.delete(before.paths[3])
    keys.put("k055", "second")
    with pytest.raises(ShortLog, match="disappeared"):
        run(keys.store)
    assert snapshot(keys.store) == before


def test_a_cut_file_of_the_former_snapshot_stops_the_rewrite(keys: Keys) -> None:
    before = snapshot(keys.store)
    data = keys.store.read(before.paths[3])
    keys.store.delete(before.paths[3])
    keys.store.create(before.paths[3], data[:-1])
    keys.put("k055", "second")
    with pytest.raises(CorruptLog, match="but was written with"):
        run(keys.store)
    assert snapshot(keys.store) == before


def test_a_snapshot_without_borders_is_read_whole(keys: Keys) -> None:
    """As a repair makes it."""
    cluster(keys.store).manifests.update(
        lambda now: now.with_snapshot("orders", replace(now.snapshots["orders"], mixed=True))
    )
    keys.put("k055", "second")
    assert keys.rewrite().records_kept == 0
    keys.put("k055", "third")
    assert keys.rewrite().records_kept == 90


def test_a_dry_run_says_what_would_be_kept(keys: Keys) -> None:
    keys.put("k055", "second")
    before = snapshot(keys.store)
    (report,) = run(keys.store, dry_run=True).maps
    assert (report.records_kept, snapshot(keys.store)) == (90, before)


def test_small_files_beside_a_rewritten_range_are_rewritten_too(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SMALL_PART", 0)
    keys.put("k055", "second")
    assert keys.rewrite().records_kept == 0


def test_random_changes_equal_a_dict(memory: MemoryStore, seed: int) -> None:
    chance, keys = random.Random(seed), Keys(memory)
    kept = 0
    for _ in range(share(40, least=10, ci=75)):
        start = chance.randrange(300)
        for _ in range(chance.randrange(1, 40)):
            number = chance.randrange(300) if chance.random() < 0.1 else start + chance.randrange(9)
            keys.put(f"k{number:03d}", None if chance.random() < 0.4 else str(chance.random()))
        if chance.random() < 0.5:
            archive(memory, keys.log)
        kept += keys.rewrite().records_kept
        found = snapshot(memory)
        borders = [file.border for file in found.files]
        assert borders == sorted(set(borders))
        if chance.random() < 0.3:
            prune(cluster(memory))
    assert kept > 0, "some files are kept"
    assert values(view(memory)) == keys.live


_numbers = itertools.count()


@thorough
@settings(
    max_examples=share(100),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=histories.steps)
def test_random_histories_with_one_key_a_file(
    monkeypatch: pytest.MonkeyPatch, history: list[tuple[str, int, int, int]]
) -> None:
    """Two nodes, deletions, clears, conflicts, new lifetimes."""
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 1)
    name = f"incremental-{next(_numbers)}"
    found = histories.Cluster(MemoryStore(name))
    try:
        found.play(history)
        found.check()
        for kind in ("rewrite", "put", "rewrite", "delete", "rewrite", "prune", "crash"):
            found.step(kind, "n1", "orders", histories.KEYS[0])
            found.check()
    finally:
        found.close()
        forget(name)


@given(first=st.binary(max_size=300), last=st.binary(max_size=300))
def test_a_border_separates_two_files(first: bytes, last: bytes) -> None:
    border = ranges.separator(last, first)
    if border is None:
        assert last >= first or len(first) > ranges.BORDER_BYTES_MAX
    else:
        assert last < border <= first


def test_a_repair_takes_in_files_of_all_lost_generations(keys: Keys) -> None:
    """Each generation may have some ranges only."""
    folder, store = f"{cluster(keys.store).folder}/manifest", keys.store
    known = {file.path for file in store.list(folder)}
    for number in (5, 15, 25):
        keys.put(f"k{number:03d}", "second")
        keys.rewrite()
        keys.log.rotate()
        keys.put("k099", f"after {number}")
        prune(cluster(store))
    for file in store.list(folder):
        if file.path not in known:
            store.delete(file.path)
            store.create(file.path, b"damaged")
    copy, _ = repaired(store, "copy")
    assert values(view(copy)) == keys.live
