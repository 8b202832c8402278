"""Faults 10, 11: clocks that are set back, several changes in one millisecond, duplicates and
reorderings."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from imap_wal.entry import Row
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from storage_backends.memory import MemoryStore, forget
from tests.faults.workload import Life, Reference
from tests.histories import put
from tests.kit.effort import brief, share, step, thorough
from tests.kit.faults import Cases
from tests.kit.logs import append, cluster, node, values, view
from tests.support import FakeClock, copy_files, segments

_names = itertools.count()

END = ("stop",)


class Wandering(FakeClock):
    """A wall clock that can be set to any time; durations stay right."""

    def set(self, now_ms: int) -> None:
        self._now_ms = now_ms


SHRINK = (("rotate",), ("archive",), ("rewrite",), ("prune",), ("reopen",), ("stop",))


def wander(seed: int, steps: int) -> None:
    chance = Random(seed)
    clock = Wandering()
    name = f"order-{next(_names)}"
    life = Life(MemoryStore(name), Reference(clock))
    life.open()
    start = clock.now_ms()
    for number in range(steps):
        if chance.random() < 0.5:
            clock.set(
                start
                + chance.choice(
                    (0, -1, 1, -86_400_000, -30 * 86_400_000, chance.randrange(-10_000, 10_000))
                )
            )
        key = chance.choice("abc")
        kind = chance.random()
        if kind < 0.15:
            life.step(*chance.choice(SHRINK))
        elif kind < 0.5:
            life.play((("put", key, number), ("delete", key)))  # in one millisecond
        elif kind < 0.7:
            life.play((("delete", key), ("put", key, number)))
        else:
            life.step("put", key, number)
        assert life.store is not None
        life.reference.settle(dict(life.store.map("m").items()), f"seed {seed}, step {number}")
    life.step("stop")
    for shrinking in SHRINK:
        life.step(*shrinking)
        life.step("stop")
    life.close()
    forget(name)


def test_the_last_change_wins_with_a_backward_clock(cases: Cases, seed: int) -> None:
    """Many changes are made in one millisecond.
    Fault 10."""
    for more in range(share(20, ci=5)):
        wander(seed + more, 40)
        cases(1)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_the_last_change_wins_in_many_histories(cases: Cases, seed: int) -> None:
    """The clock runs backward.
    Fault 10, long."""
    for more in range(brief(1000)):
        wander(seed + more, 80)
        cases(1)


@thorough
def test_put_and_delete_in_one_millisecond_keep_order(
    cases: Cases,
) -> None:
    """Both change one key. The order is kept through everything.
    Fault 10: all orders of three changes, before and after each way a log is changed; in `make
    test` every third of them."""
    change = (("put", "k", 1), ("put", "k", 2), ("delete", "k"))
    ways = itertools.product(change, change, change, (("rotate",), ("archive",), ("rewrite",), END))
    for *changes, between in itertools.islice(ways, 0, None, min(step(), 3)):
        name = f"order-{next(_names)}"
        life = Life(MemoryStore(name), Reference())
        after = (END, ("rewrite",), ("prune",), END, ("archive",), ("prune",), END)
        life.play((*changes, between, *changes[::-1], *after))
        life.close()
        forget(name)
        cases(1)


def shuffle(seed: int) -> None:
    """Changes of few keys, numbered; appended by two nodes in any order, some twice, some again
    much later; archived, rewritten, pruned at any time."""
    chance = Random(seed)
    name = f"order-{next(_names)}"
    store = MemoryStore(name)
    logs = [node(store), node(store, "n2")]
    rows: list[tuple[int, Row]] = []
    newest: dict[str, Any] = {}
    for number in range(1, 41):
        key, owner = chance.choice("abcd"), chance.randrange(2)
        value = None if chance.random() < 0.3 else number
        # One owner for each key and partition version, as in Hazelcast; clocks may show any time,
        # recent enough that every tombstone is kept.
        rows.append(
            (
                owner,
                put(
                    key,
                    value,
                    (1, number, 1 + owner, number),
                    timestamp_ms=FakeClock().now_ms() - chance.randrange(1000),
                ),
            )
        )
        newest[key] = value
    rows += chance.sample(rows, 15)
    chance.shuffle(rows)
    for owner, row in rows:
        append(logs[owner], row)
        kind = chance.random()
        if kind < 0.1:
            logs[owner].rotate()
        elif kind < 0.2:
            rewrite(cluster(store), LocalEngine(Settings(preallocate=False)))
        elif kind < 0.25:
            prune(cluster(store))
    expected = {key: str(value) for key, value in newest.items() if value is not None}
    assert values(view(store)) == expected, f"seed {seed}"
    rewrite(cluster(store), LocalEngine(Settings(preallocate=False)))
    prune(cluster(store))
    assert values(view(store)) == expected, f"seed {seed}, rewritten"
    forget(name)


def test_repeated_or_reordered_changes_give_the_same_state(cases: Cases, seed: int) -> None:
    """Fault 11."""
    for more in range(share(40, ci=5)):
        shuffle(seed + more)
        cases(1)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_repeated_or_reordered_changes_agree_in_many_histories(cases: Cases, seed: int) -> None:
    """The result is the same state.
    Fault 11, long."""
    for more in range(brief(2000)):
        shuffle(seed + more)
        cases(1)


def test_segments_beside_their_archive_count_once(
    cases: Cases,
) -> None:
    """No deleted key returns.
    Fault 11: a copy of every segment that was archived or pruned is restored, as after a crash
    before it was deleted."""
    name = f"order-{next(_names)}"
    store = MemoryStore(name)
    life = Life(store, Reference())
    life.play(
        (
            ("put", "a", 1),
            ("put", "b", 1),
            ("rotate",),
            ("delete", "a"),
            ("put", "b", 2),
            ("rotate",),
        )
    )
    kept = {path: store.read(path) for path in segments(store)}
    life.play((("archive",), ("rewrite",), ("prune",), ("put", "c", 1)))
    for count in range(1, len(kept) + 1):
        for paths in itertools.combinations(kept, count):
            left = copy_files(store)
            for path in paths:
                left.create(path, kept[path])
            again = Life(left, Reference(life.reference.clock, dict(life.reference.state)))
            again.open(f"{paths} came back")
            again.play((("archive",), ("rewrite",), ("prune",), ("stop",)))
            again.close()
            assert not set(segments(left)) & set(kept), "they are deleted"
            cases(1)
    life.close()
    forget(name)
