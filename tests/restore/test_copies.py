"""Changes that are in the logs of one, two or three nodes, with one order: every reader counts each
of them once, also where a log lacks some of them."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from dataclasses import replace

import pytest

from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.clock import SeededRandomness, SystemClock
from imap_wal.context import Context
from imap_wal.entry import SHARED_SESSIONS, VALUE, is_shared, shared_session
from imap_wal.format import END, Position
from imap_wal.inspect.finding import Deadline, Finding
from imap_wal.inspect.inventory import take_inventory
from imap_wal.inspect.verify import check, plan
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.read.newest.index import NewestIndex
from imap_wal.rewrite import conflicts
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import first_unfinished
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.rules.dropped import TombstonePolicy
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from pyspark_imap_wal.changes.images import AFTER, BEFORE, DELETE, INSERT, KeyState
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget
from tests.histories import put
from tests.kit.copies import NODES, SESSION, Copying
from tests.kit.effort import every, share
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.kit.rewrites import archive, members, run, snapshot
from tests.support import FakeClock

SPILLED = Settings(preallocate=False, restore_memory_bytes=1)
names = itertools.count(1)


def _verified(store: SegmentStore) -> list[Finding]:
    """Findings of files with entries. (The manifest of claims is an agent's.)"""
    (view,) = take_inventory(Context(store))
    _, units = plan(Context(store), view, lambda _: True)
    return check(units, lambda _: None, Deadline(SystemClock(), None))[0]


@every(13)
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("seed", range(share(25, ci=20)))
def test_readers_equal_a_dict_wherever_the_copies_are(
    seed: int, columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seed` replays a history. With `columns`, files of any size are rewritten by columns."""
    if columns:
        monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    name = f"copies-{next(names)}"
    writer = Copying(random.Random(seed), MemoryStore(name))
    try:
        for _ in range(40):
            writer.write()
            if writer.chance.random() < 0.2:
                writer.maintain()
        writer.check()
        for log in writer.logs.values():
            archive(writer.store, log)
        writer.check()
        for options in (Settings(preallocate=False), SPILLED):
            report = rewrite(cluster(writer.store), LocalEngine(options))
            assert all(each.undecided == 0 for each in report.maps)
            writer.check()
        prune(cluster(writer.store))
        writer.check()
        writer.close()
        found = _verified(writer.store)
        assert not [each for each in found if each.status != "clean"]
    finally:
        forget(name)


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1])
def test_copies_that_differ_are_a_conflict(memory_bytes: int, memory: MemoryStore) -> None:
    order = (1, 1, SESSION, 5)
    logs = {name: node(memory, name) for name in NODES}
    for name, value in (("n1", "one"), ("n2", "another"), ("n3", "one")):
        append(logs[name], put("a", value, order))
    (found,) = conflicts.find(cluster(memory), settings=Settings(restore_memory_bytes=memory_bytes))
    assert {node for _, node in found.claims} == {"n1", "n2"}, "n3 has a copy of what n1 has"
    with closing(view(memory, restore_memory_bytes=memory_bytes)) as made:
        assert values(made) == {"a": "one"}
    append(logs["n3"], put("a", "later", (1, 1, SESSION, 6)))
    assert list(conflicts.find(cluster(memory))) == [], "a later change of the session is newer"


def test_the_order_of_reading_copies_does_not_matter() -> None:
    rows = [
        (name, put("a", request, (1, 1, SESSION, request)))
        for name, request in (("n1", 1), ("n2", 1), ("n2", 2), ("n3", 2), ("n1", 3), ("n3", 3))
    ]
    for order in itertools.permutations(rows):
        index = NewestIndex(1 << 30)
        for name, row in order:
            index.add(name, [row])
        ((found, owners),) = index.batches_with_nodes("orders")
        assert [row[VALUE] for row in found] == [b"3"] and owners == ["n1"]
        assert not list(index.conflicts())


@pytest.mark.parametrize("nodes", [NODES, NODES[::-1]])
def test_a_copy_of_a_change_has_no_image(nodes: tuple[str, ...]) -> None:
    state = KeyState()
    rows = [put("a", value, (1, 1, SESSION, at)) for at, value in enumerate(("1", "2", None), 1)]
    kinds = [image.kind for row in rows for node in nodes for image in state.images(row, node)]
    assert kinds == [INSERT, BEFORE, AFTER, DELETE]


def test_sessions_of_two_plugins_are_not_copies(memory: MemoryStore) -> None:
    """As without copies, neither is newer."""
    append(node(memory, "n1"), put("a", "1", (1, 1, SESSION, 1)))
    append(node(memory, "n2"), put("a", "2", (1, 1, shared_session("another", 1), 9)))
    assert [each.key for each in conflicts.find(cluster(memory))] == [b"a"]


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_a_copy_that_comes_late_does_not_undo_a_deletion(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, columns: bool
) -> None:
    """n2's agent was stopped with a change of the key in its socket; n1 and n3 have the deletion; a
    rewrite covers all logs; only then n2 appends the change, with the same partition version."""
    if columns:
        monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    logs = {name: node(memory, name) for name in NODES}
    members(memory)
    append(logs["n1"], put("a", "old", (1, 1, SESSION, 1)))
    for name in ("n1", "n3"):
        append(logs[name], put("a", None, (1, 1, SESSION, 2)), put("b", "1", (1, 1, SESSION, 3)))
        archive(memory, logs[name])
    run(memory)
    prune(cluster(memory))
    append(logs["n2"], put("a", "old", (1, 1, SESSION, 1)))
    assert values(view(memory)) == {"b": "1"}
    run(memory)
    assert values(view(memory)) == {"b": "1"}
    members(memory, 2)  # from now on, what belongs to incarnation 1 is void
    run(memory)
    prune(cluster(memory))
    append(logs["n2"], put("a", "old", (1, 1, SESSION, 1)))
    assert values(view(memory)) == {"b": "1"}
    assert cluster(memory).manifest().snapshots["orders"].tombstones == 0, "it was dropped"


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_late_copy_of_a_node_that_no_lifetime_cut(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, columns: bool
) -> None:
    """The disk of n2 could not be read when incarnation 2 began. So what n2 appends in incarnation
    1 still counts, and the tombstone must stay until a lifetime has cut the log of n2."""
    if columns:
        monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    logs = {name: node(memory, name) for name in NODES}
    members(memory)
    append(logs["n1"], put("a", "old", (1, 1, SESSION, 1)))
    for name in ("n1", "n3"):
        append(logs[name], put("a", None, (1, 1, SESSION, 2)), put("b", "1", (1, 1, SESSION, 3)))
        archive(memory, logs[name])
    cuts = {**find_cutoffs(cluster(memory)).cuts, "n2": END}
    second = IncarnationRecord("id-2", 2, cuts)
    cluster(memory).manifests.update(lambda now: replace(now, lifetimes=(*now.lifetimes, second)))
    run(memory)
    assert snapshot(memory).tombstones == 1
    append(logs["n2"], put("a", "old", (1, 1, SESSION, 1)))
    assert values(view(memory)) == {"b": "1"}
    members(memory, 3)
    run(memory)
    assert values(view(memory)) == {"b": "1"}
    assert snapshot(memory).tombstones == 0


def test_first_unfinished_incarnation_is_of_the_worst_node() -> None:
    cut = Position(1, 1, 1, 0)
    one = IncarnationRecord("id-1", 1, {"n1": cut})
    two = IncarnationRecord("id-2", 2, {"n1": cut, "n2": END})
    three = IncarnationRecord("id-3", 3, {"n1": END, "n2": cut})
    assert first_unfinished([one, two], ["n1"]) == 2
    assert first_unfinished([one, two], ["n1", "n2"]) == 1  # n2 had no log when 1 began
    assert first_unfinished([two], ["n1", "n2"]) == 0
    assert first_unfinished([one, two, three], ["n1", "n2"]) == 2
    assert first_unfinished([two], []) == 0


def test_numbers_of_shared_sessions() -> None:
    one = shared_session("a", 7)
    assert one == shared_session("a", 7) and one != shared_session("b", 7)
    assert SHARED_SESSIONS <= one < shared_session("a", 8) < 2**63
    assert is_shared((1, 1, one, 1)) and not is_shared((1, 1, 2**61, 1))
    with pytest.raises(ValueError, match="too high"):
        shared_session("a", 2**30)
    late = put("a", None, (3, 1, one, 1))
    assert not TombstonePolicy(0, True, current=3).drops(late, "n1", False)
    assert TombstonePolicy(0, True, current=4).drops(late, "n1", False)


@pytest.mark.parametrize("clean", [True, False])
def test_a_node_never_continues_the_numbers_of_shared_sessions(
    memory: MemoryStore, clean: bool
) -> None:
    """After an open, its next session follows its own sessions, and not the shared ones: otherwise
    its changes would count as copies."""
    first = node(memory)
    first.new_session("copying/1", shared=SESSION)
    own = first.new_session("own/1")
    append(first, put("k", "v", (1, 1, SESSION, 1)), put("j", "v", (1, 1, own, 1)))
    first.requests.update({SESSION: 1, own: 1})
    if clean:
        first.close()
    second = open_node_log(
        LogContext(
            Context(memory, clock=FakeClock(), randomness=SeededRandomness(5)),
            first.identity,
            SMALL,
        ),
        holder="a test",
        takeover=True,
    )
    assert second.manifests.read()[1].requests == {SESSION: 1, own: 1}
    assert second.new_session("next/1") == own + 1
