"""A low-water mark is of one history of a log: it covers no entry of another copy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal.entry import KEY
from imap_wal.errors import CorruptLog
from imap_wal.format import START, Position
from imap_wal.layout import cluster_of
from imap_wal.manifest import epochs
from imap_wal.manifest.cluster import ClusterManifest, IncarnationRecord
from imap_wal.manifest.epochs import EPOCHS_MAX, NAMES_MAX, Epoch, fork, named
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.older import opened_epochs
from imap_wal.manifest.snapshots import LowWaterMark, Snapshot
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from storage_backends.memory import MemoryStore
from tests.kit.actors import NODE, log_of
from tests.kit.effort import share, step
from tests.kit.nth_call import AtCall, counted
from tests.kit.repairs import repaired
from tests.support import copy_files

Names = Sequence[tuple[int, str]]
numbers = itertools.count(1)


def write(store: MemoryStore, *keys: str, archive: bool = True) -> None:
    with imap_wal.open(store.url, node="n1", auto_rewrite_percentage=0) as opened:
        for key in keys:
            opened.map("m")[key] = key
        if archive:
            opened.archive()


def compacted(store: MemoryStore) -> None:
    rewrite(log_of(store), LocalEngine())


def with_folder_of(store: MemoryStore, other: MemoryStore) -> MemoryStore:
    """A log, with the folder that its node has in another copy."""
    mixed = copy_files(store)
    for file in mixed.list(NODE):
        mixed.delete(file.path)
    for file in other.list(NODE):
        mixed.create(file.path, other.read(file.path))
    return mixed


def keys_of(store: MemoryStore) -> set[str]:
    with imap_wal.open(store.url, node="n1", auto_rewrite_percentage=0) as opened:
        return set(opened.map("m"))


def repaired_keys(store: MemoryStore) -> tuple[set[str], list[str]]:
    """The keys of a repaired copy, and what the repair says about whole folders."""
    target, items = repaired(copy_files(store), f"marks-of-copies-repaired-{next(numbers)}")
    found = keys_of(target)
    write(target, "new")
    compacted(target)
    assert keys_of(target) == found | {"new"}
    return found, [item["what"] for item in items if item["kind"] == "node"]


@pytest.fixture
def copies(memory: MemoryStore) -> tuple[MemoryStore, MemoryStore]:
    """A log with `ours`, and another copy with `theirs` instead, and more. Both were opened three
    times: a copy that was opened less often, or more often, was always noticed."""
    write(memory, "both")
    other = copy_files(memory)
    write(memory, "ours")
    write(memory)
    write(other, "theirs")
    write(other, "later", archive=False)
    return memory, other


def test_a_mark_covers_no_entry_of_another_copy(copies: tuple[MemoryStore, MemoryStore]) -> None:
    """The entries of the other copy are below the mark, but in no snapshot: they were left out
    without an error, and the next prune removed them."""
    compacted(copies[0])
    mixed = with_folder_of(*copies)
    for _ in range(2):
        with pytest.raises(CorruptLog, match="of another copy of this log"):
            keys_of(mixed)
    with pytest.raises(CorruptLog, match=r"only up to 00000001\."):
        log_of(mixed).state()
    found, said = repaired_keys(mixed)
    assert found == {"both", "ours", "theirs", "later"}
    assert ["another copy" in text for text in said] == [True]


def test_the_last_open_of_another_copy_wrote_nothing(memory: MemoryStore) -> None:
    """The mark of the repaired copy is not in a segment that was never written."""
    write(memory, "both")
    other = copy_files(memory)
    write(other, archive=False)
    write(memory, "ours")
    compacted(memory)
    found, said = repaired_keys(with_folder_of(memory, other))
    assert found == {"both", "ours"}
    assert [("only up to 00000001.00000001." in text) for text in said] == [True]


def test_a_repaired_copy_opens_if_a_lost_manifest_pruned(memory: MemoryStore) -> None:
    """The log forgets the epoch of the mark that is left, and shared no other one with it."""
    write(memory, "first")
    compacted(memory)
    folder = f"{log_of(memory).folder}/manifest"
    former = {file.path: memory.read(file.path) for file in memory.list(folder)}
    write(memory, "second")
    write(memory, "third")
    compacted(memory)
    prune(log_of(memory))
    for file in memory.list(folder):
        memory.delete(file.path)
    for path, content in former.items():
        memory.create(path, content)
    found, said = repaired_keys(memory)
    assert found <= {"first", "second", "third"}
    assert not said


def test_the_mark_of_a_drop_is_of_one_copy(copies: tuple[MemoryStore, MemoryStore]) -> None:
    drop_map(log_of(copies[0]), "m")
    mixed = with_folder_of(*copies)
    with pytest.raises(CorruptLog, match="of another copy of this log"):
        keys_of(mixed)
    assert repaired_keys(mixed)[0] == {"theirs", "later"}


def test_a_drop_keeps_no_mark_of_a_lost_log(memory: MemoryStore) -> None:
    """The node began a new log, whose positions are below that mark for a long time. The drop took
    the mark over, so that all that was written until then would have been covered."""
    for number in range(4):
        write(memory, f"lost-{number}")
    compacted(memory)
    for file in memory.list(NODE):
        memory.delete(file.path)
    with imap_wal.open(memory.url, node="n1", recovery_policy="partial") as opened:
        opened.map("m")["dropped"] = 1
    drop_map(log_of(memory), "m")
    write(memory, "after")
    write(memory)
    assert keys_of(memory) == {"after"}


def test_a_cut_of_another_copy_makes_nothing_void(
    copies: tuple[MemoryStore, MemoryStore],
) -> None:
    """A lifetime of a Hazelcast cluster cuts the log of each node at a position."""
    first = next(log_of(copies[0]).changes(positions=True)).last
    compacted(copies[0])
    lifetime = IncarnationRecord("c", 9, {"n1": first})
    log_of(copies[0]).manifests.update(lambda old: replace(old, lifetimes=(lifetime,)))
    target, _ = repaired(with_folder_of(*copies), f"marks-of-copies-cut-{next(numbers)}")
    rows = [row for batch in log_of(target).changes() for row in batch.rows]
    assert {msgpack.unpackb(row[KEY]) for row in rows} == {"both", "ours", "theirs", "later"}


def test_an_older_folder_is_below_the_mark(memory: MemoryStore) -> None:
    """It has the history of the mark, and less of it: what was deleted since stays deleted."""
    write(memory, "kept", "deleted")
    older = copy_files(memory)
    with imap_wal.open(memory.url, node="n1", auto_rewrite_percentage=0) as opened:
        del opened.map("m")["deleted"]
    compacted(memory)
    mixed = with_folder_of(memory, older)
    with pytest.raises(CorruptLog, match="older than the files"):
        keys_of(mixed)
    assert repaired_keys(mixed) == ({"kept"}, [])


def test_a_folder_of_another_copy_is_refused_without_snapshots(
    copies: tuple[MemoryStore, MemoryStore],
) -> None:
    """Both were opened equally often. It was opened, and the acknowledged entries of the log's own
    folder were gone without an error."""
    mixed = with_folder_of(*copies)
    with pytest.raises(CorruptLog, match="of another copy of this log"):
        keys_of(mixed)
    with pytest.raises(CorruptLog, match="of another copy of this log"):
        log_of(mixed).state()
    found, said = repaired_keys(mixed)
    assert found == {"both", "theirs", "later"}
    assert ["another copy" in text for text in said] == [True]


def test_opens_killed_at_any_call_open_again(memory: MemoryStore) -> None:
    """The manifest has the new epoch before this epoch is recorded as opened. However few epochs
    the manifest keeps, and however many opens are killed in between, it has the recorded epoch."""
    write(memory, "a")
    write(memory)
    whole = counted(copy_files(memory))

    def open_at(store: MemoryStore, at: int) -> MemoryStore:
        """What is left of an open that is killed before this call."""
        left: list[MemoryStore] = []
        gate = AtCall(store, at, lambda: left.append(copy_files(store)))
        imap_wal.open(store.url, node="n1", storage=gate, auto_rewrite_percentage=0).close()
        return left[0] if left else copy_files(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs, "EPOCHS_MAX", 2)
        imap_wal.open("memory://", node="n1", storage=whole).close()
        for at in range(0, whole.calls, min(step(), 3)):
            store = copy_files(memory)
            for _ in range(2):
                store = open_at(store, at)
            assert keys_of(store) == {"a"}, at


@settings(max_examples=share(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
@example(seed=828614)  # the last open of the other copy wrote nothing
def test_no_key_of_a_folder_or_snapshot_is_lost(seed: int) -> None:
    """Two copies of a log are written, and the folder of one is put into the other. If the other
    was opened since the copies parted, the folder is refused, with snapshots and without. If not,
    nothing is lost. A repaired copy has the keys of the folder and of the snapshot."""
    rng = random.Random(seed)

    def use(store: MemoryStore, name: str, keys: set[str], covered: set[str]) -> set[str]:
        """Random writes and rewrites; adds to `keys`. Returns what a snapshot has."""
        for _ in range(rng.randint(0, 3)):
            new = [f"{name}-{len(keys)}-{at}" for at in range(rng.randint(0, 3))]
            write(store, *new, archive=rng.random() < 0.5)
            keys |= set(new)
            if rng.random() < 0.4:
                compacted(store)
                covered = set(keys)
        return covered

    log, first = MemoryStore(f"marks-of-copies-log-{next(numbers)}"), set[str]()
    covered = use(log, "both", first, set())
    write(log, "first")
    other, theirs = copy_files(log), {*first, "first"}
    before = opened_epochs(log, cluster_of(NODE))
    covered = use(log, "ours", {*theirs}, covered)
    use(other, "theirs", theirs, set())
    mixed = with_folder_of(log, other)
    if opened_epochs(log, cluster_of(NODE)) == before:
        with suppress(CorruptLog):  # the folder may have seen a newer manifest of the cluster
            assert keys_of(copy_files(mixed)) == theirs | covered == theirs
    else:
        for read in (keys_of, lambda store: log_of(store).state().without_damage()):
            with pytest.raises(CorruptLog):
                read(copy_files(mixed))
    assert repaired_keys(mixed)[0] == theirs | covered


@settings(max_examples=share(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_log_is_never_taken_for_another_copy(seed: int) -> None:
    """After any kills, rewrites, prunes, repairs and returns to a former state of the whole log.
    Its manifests keep few epochs."""
    rng, store, keys = (
        random.Random(seed),
        MemoryStore(f"marks-of-copies-own-{next(numbers)}"),
        set[str](),
    )
    saved: tuple[MemoryStore, set[str]] = store, set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs, "EPOCHS_MAX", rng.choice((4, 8, 250)))
        patch.setattr(epochs, "NAMES_MAX", rng.choice((1, 2, 64)))
        for step in range(rng.randint(3, 14)):
            match rng.randint(0, 9):
                case 0 | 1:
                    compacted(store)
                case 2 | 3:
                    prune(log_of(store))
                case 4:
                    store, _ = repaired(
                        copy_files(store), f"marks-of-copies-own-repaired-{next(numbers)}"
                    )
                case 5:
                    saved = copy_files(store), {*keys}
                case 6 if saved[1]:
                    store, keys = copy_files(saved[0]), {*saved[1]}
                case _:
                    opened = imap_wal.open(store.url, node="n1", auto_rewrite_percentage=0)
                    for number in range(rng.randint(0, 3)):
                        opened.map("m")[f"{step}-{number}"] = number
                    keys = set(opened.map("m"))
                    if rng.random() < 0.4:
                        opened.archive()
                    killed = copy_files(store)
                    opened.close()
                    store = killed if rng.random() < 0.3 else store
            assert keys_of(copy_files(store)) == keys


# ---- the rule ----


def _epochs(names: Names) -> tuple[Epoch, ...]:
    """Each ends in its first segment."""
    return tuple(Epoch(number, id, Position(number, 1, 64, 0)) for number, id in names)


@pytest.mark.parametrize(
    ("names", "ours", "parts"),
    [
        ([], [(1, "a")], None),
        ([(1, "a")], [], None),
        ([(1, "a")], [(1, "a"), (2, "b")], None),
        ([(1, "a"), (2, "b")], [(1, "a")], None),
        ([(1, "a"), (2, "b")], [(1, "a"), (2, "c"), (3, "d")], 1),
        ([(2, "b"), (3, "c")], [(1, "a"), (2, "x"), (3, "y")], 1),
        ([(1, "a"), (2, "b")], [(5, "e"), (6, "f")], 0),
        ([(5, "e")], [(1, "a")], 0),
        ([(1, "a"), (1, "b")], [(1, "b"), (1, "a"), (2, "c")], None),
        ([(1, "a"), (1, "b")], [(1, "a"), (2, "c")], 0),
        ([(1, "a")], [(number, "x") for number in range(2, EPOCHS_MAX + 2)], None),
    ],
)
def test_copies_part_before_the_first_other_epoch(
    names: Names, ours: Names, parts: int | None
) -> None:
    """`parts`: the last epoch that both share."""
    end = Position(parts, 1, 64, 0) if parts else parts
    assert fork(names, _epochs(ours)) == (START if end == 0 else end)


def test_a_cluster_manifest_names_the_last_epochs_of_a_log() -> None:
    ours = _epochs([(number, f"{number}") for number in range(1, 200)] + [(199, "repaired")])
    names = named(ours)
    assert len(names) == NAMES_MAX + 1 and names[0] == (200 - NAMES_MAX, str(200 - NAMES_MAX))
    assert fork(names, ours) is None
    later = named(_epochs([(300, "c")]), names)
    assert later[-3:] == ((199, "199"), (199, "repaired"), (300, "c"))
    assert fork(later, ours) is None


def test_marks_cover_only_what_two_copies_share() -> None:
    """Every scan, of rows or columns, gets its marks from these two functions."""
    mark = LowWaterMark("d", Position(3, 8, 0, 0))
    cluster = ClusterManifest(
        nodes={"n1": "d"},
        snapshots={"m": Snapshot(1, Listed(), {"n1": mark}, 0, 0, 0, 0)},
        all_maps={"n1": mark},
        epochs={"d": ((2, "aa"), (3, "bb"))},
    )
    own = NodeManifest("d", epoch=4, epochs=_epochs([(2, "aa"), (3, "bb"), (4, "cc")]))
    assert cluster.marks("n1", own) == {"m": mark.position}
    assert cluster.complete("n1", own) == mark.position
    other = NodeManifest("d", epoch=4, epochs=_epochs([(2, "aa"), (3, "xx"), (4, "yy")]))
    assert cluster.marks("n1", other) == {"m": Position(2, 1, 64, 0)}
    assert cluster.complete("n1", other) == Position(2, 1, 64, 0)
    strange = NodeManifest("d", epoch=9, epochs=_epochs([(9, "zz")]))
    assert cluster.marks("n1", strange) == {"m": START}
    assert cluster.complete("n1", strange) == START
    assert cluster.marks("n1", NodeManifest("another")) == {}
