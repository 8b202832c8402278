"""Tables beside other processes that publish, rewrite and prune, and that are killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import pytest

from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import Reader, with_base
from imap_wal.publish import delta_log
from imap_wal.retention.kept import DAY_MS
from imap_wal.rewrite.prune import prune
from imap_wal.write.node_log import NodeLog
from storage_backends import AlreadyExists, SegmentStore, Unavailable
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.effort import step, thorough
from tests.kit.logs import append, cluster, node
from tests.kit.rewrites import run, snapshot
from tests.kit.tables import (
    FOLDER,
    committed,
    kept,
    plain,
    published,
    rows,
    table,
    tombstoned,
    written,
)

T = TypeVar("T")


Begin: TypeAlias = Callable[[SegmentStore], NodeLog]


each_kind = pytest.mark.parametrize("begin", [plain, tombstoned])
"""Whether the table names the files of snapshots, or copies of them."""


plain_and_thorough = pytest.mark.parametrize(
    "begin", [plain, pytest.param(tombstoned, marks=thorough)]
)


def sparse(quick: int) -> int:
    """The step from one place of a fault to the next: each in `make test-all`."""
    return 1 if step(1) < 4 else quick


class _SlowPrune(FaultyStore):
    """A prune that waits before it deletes."""

    def __init__(self, inner: SegmentStore) -> None:
        super().__init__(inner, Plan())
        self._waits, self._goes_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._prune)
        self._thread.start()
        assert self._waits.wait(60)

    def _prune(self) -> None:
        try:
            prune(cluster(self))
        finally:
            self._waits.set()

    def _run(self, kind: str, path: str, action: Callable[[], T]) -> T:
        if kind in ("delete", "discard"):
            self._waits.set()
            assert self._goes_on.wait(60)
        return super()._run(kind, path, action)

    def end(self) -> None:
        self._goes_on.set()
        self._thread.join(60)


class _Between(FaultyStore):
    """Before its operation number `at`, another process changes, rewrites, and does `more`."""

    def __init__(
        self, inner: SegmentStore, at: int, log: NodeLog, more: Callable[[SegmentStore], object]
    ) -> None:
        super().__init__(inner, Plan())
        self._at, self._log, self._more, self.ran = at, log, more, False

    def _run(self, kind: str, path: str, action: Callable[[], T]) -> T:
        if self.count + 1 == self._at and not self.ran:
            self.ran = True
            written(self._log, 3, b="3")
            run(self.inner)
            self._more(self.inner)
        return super()._run(kind, path, action)


@each_kind
def test_a_killed_publication_is_repeated(memory: MemoryStore, begin: Begin) -> None:
    """After a kill at any storage operation, each version of the table is whole, and the next run
    ends at the newest snapshot."""
    for at in range(1, 60, sparse(3)):
        store = MemoryStore(f"{memory.url}-{at}")
        second = begin(store)
        run(store)
        published(store)
        append(second, put("b", "2", (1, 0, 1, 2)))
        run(store)
        faulty = FaultyStore(store, Plan((Fault("kill", at),)))
        try:
            published(faulty, keep=1)
            ended = True
        except Killed:
            ended = False
        prune(cluster(store))
        assert rows(store) in ({"b": "1"}, {"b": "2"})
        assert published(store, keep=1).version == 1
        assert rows(store) == {"b": "2"}
        if ended:
            break
    else:
        pytest.fail("a publication makes more operations")


@each_kind
def test_two_publications_at_once_make_one_version_each(memory: MemoryStore, begin: Begin) -> None:
    """Another process rewrites and publishes at any operation of a publication: the table never
    goes back to an older snapshot."""
    for at in range(1, 80):
        store = MemoryStore(f"{memory.url}-{at}")
        log = begin(store)
        run(store)
        published(store)
        written(log, 2, b="2")
        run(store)
        between = _Between(store, at, log, published)
        published(between)
        assert rows(store) == {"b": "3" if between.ran else "2"}
        assert table(store).generation == snapshot(store).generation
        published(store)
        assert rows(store) == {"b": "3" if between.ran else "2"}
        assert table(store).version in ((1, 2) if between.ran else (1,))
        generations = [base.snapshots["orders"].generation for base in kept(store)]
        assert generations == committed(store), "what was only proposed takes no place"
        if not between.ran:
            break
    else:
        pytest.fail("a publication makes more operations")


@plain_and_thorough
def test_a_publication_beside_a_prune_names_no_missing_file(
    memory: MemoryStore, begin: Begin
) -> None:
    """At any operation of a publication, another process rewrites, and a prune has decided what to
    delete. It deletes at the end of the publication."""
    for at in range(1, 80):
        store = MemoryStore(f"{memory.url}-{at}")
        log = begin(store)
        run(store)
        published(store)
        written(log, 2, b="2")
        run(store)
        prunes: list[_SlowPrune] = []
        between = _Between(store, at, log, lambda inner, to=prunes: to.append(_SlowPrune(inner)))
        published(between)
        for slow_prune in prunes:
            slow_prune.end()
        assert rows(store) in ({"b": "2"}, {"b": "3"})
        if not between.ran:
            break
    else:
        pytest.fail("a publication makes more operations")


@plain_and_thorough
def test_a_proposed_snapshot_displaces_no_published_one(memory: MemoryStore, begin: Begin) -> None:
    """At any operation of a publication, another process rewrites, proposes, and is killed. Then
    all is deleted that may be."""
    for at in range(1, 60, sparse(3)):
        store = MemoryStore(f"{memory.url}-{at}")
        log = begin(store)
        run(store)
        published(store)
        written(log, 2, b="2")
        run(store)

        def propose(inner: SegmentStore) -> None:
            seen = cluster(inner)
            newest = Base({}, {}, {"orders": snapshot(inner)}, {}, ("orders",), {})
            reader = Reader(
                seen.context,
                seen.folder,
                "delta orders",
            )
            reader.keep(with_base(newest), DAY_MS, files_only=True)

        between = _Between(store, at, log, propose)
        published(between, keep=1)
        prune(cluster(store))
        assert rows(store) in ({"b": "2"}, {"b": "3"})
        published(store, keep=1)
        assert len(kept(store)) == 1
        if not between.ran:
            break
    else:
        pytest.fail("a publication makes more operations")


@plain_and_thorough
def test_a_published_snapshot_stays_until_the_next_one_is_published(
    memory: MemoryStore, begin: Begin
) -> None:
    """A rewrite at any operation of a publication that finds nothing new, which is then killed."""
    for at in range(1, 12):
        for later in range(1, 12, sparse(4)):
            store = MemoryStore(f"{memory.url}-{at}-{later}")
            log = begin(store)
            run(store)
            published(store)
            between = _Between(store, at, log, lambda inner: None)
            with suppress(Killed):
                published(FaultyStore(between, Plan((Fault("kill", at + later),))))
            prune(cluster(store))
            assert rows(store) in ({"b": "1"}, {"b": "3"})


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_found(memory: MemoryStore, when: Any) -> None:
    """Also if a driver sends it twice, and so finds its own."""
    written(node(memory), 1, a="1")
    run(memory)
    error = Unavailable if when == "before" else AlreadyExists
    fault = Fault("error", kind="create", path="*/_delta_log/*", when=when, error=error)
    faulty = FaultyStore(memory, Plan((fault,)))
    if when == "before":
        with pytest.raises(Unavailable):
            published(faulty)
        assert table(memory).version == -1
        assert published(memory).is_new
    else:
        assert published(faulty).is_new
    assert faulty.fired
    assert table(memory).version == 0


def test_a_commit_below_the_newest_versions_is_repeated(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication is paused before it commits a version, until others have published so many that
    their clean-up deleted it."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 2)
    log = tombstoned(memory)
    run(memory)
    published(memory)
    written(log, 2, b="2")
    run(memory)

    def more(inner: SegmentStore) -> None:
        for number in range(4, 10):
            published(inner, keep=1)
            written(log, number, b=str(number))
            run(inner)

    class Paused(_Between):
        def _run(self, kind: str, path: str, action: Callable[[], T]) -> T:
            if (kind, path) == ("create", f"{FOLDER}/_delta_log/{1:020d}.json") and not self.ran:
                self._at = self.count + 1
            return super()._run(kind, path, action)

    paused = Paused(memory, -1, log, more)
    report = published(paused, keep=1)
    assert paused.ran
    state = table(memory)
    assert report.version == state.version > 4
    assert rows(memory) == {"b": "9"}
    checkpoints = memory.list(f"{FOLDER}/_delta_log")
    pointer = json.loads(memory.read(f"{FOLDER}/_delta_log/_last_checkpoint"))
    assert f"{pointer['version']:020d}.checkpoint.parquet" in {
        file.path.rpartition("/")[2] for file in checkpoints
    }
