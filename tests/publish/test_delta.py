"""A map as a Delta table, as its log says; `test_readers.py` reads it with other programs."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest

from imap_wal.errors import CorruptLog, InvalidSetting
from imap_wal.manifest import readers
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import Reader, with_base
from imap_wal.publish import delta_log
from imap_wal.publish.delta import PublishedTable, publish
from imap_wal.publish.delta_log import DeltaLog, TableState
from imap_wal.retention.kept import DAY_MS
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.prune import prune
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.effort import step
from tests.kit.logs import append, cluster, node
from tests.kit.rewrites import run, snapshot

FOLDER = "ns/c/snapshot/orders"
T = TypeVar("T")


def written(log: NodeLog, request: int, **entries: str | None) -> int:
    """Append changes; None: a deletion. Returns the next request."""
    for number, (key, value) in enumerate(entries.items(), request):
        append(log, put(key, value, (1, 0, 1, number)))
    return request + len(entries)


def table(store: SegmentStore) -> TableState:
    return DeltaLog(store, FOLDER).read()


def rows(store: SegmentStore) -> dict[str, str]:
    """Key → value of the rows of the table."""
    found: list[tuple[str, str]] = []
    for path, content in table(store).files.items():
        data = store.read(f"{FOLDER}/{path}")
        assert len(data) == content["size"]
        read = pq.read_table(io.BytesIO(data)).to_pylist()
        assert len(read) == json.loads(content["stats"])["numRecords"]
        found += [(row["key"].decode(), row["value"].decode()) for row in read]
    assert len(dict(found)) == len(found)
    return dict(found)


def sparse(quick: int) -> int:
    """The step from one place of a fault to the next: each in `make test-all`."""
    return 1 if step(1) < 4 else quick


def kept(store: SegmentStore) -> list[Base]:
    """What the reader keeps for the table."""
    states = readers.readers_of(store, "ns/c").values()
    return [base for state in states for base in state.bases]


def published(store: SegmentStore, **options: Any) -> PublishedTable:
    return publish(cluster(store), "orders", **options)


def test_a_table_has_the_live_entries_of_each_rewrite(memory: MemoryStore) -> None:
    """It is published without a copy. A second publication of a snapshot changes nothing."""
    log = node(memory)
    following = written(log, 1, a="1", b="2", c="3")
    run(memory)
    first = published(memory)
    assert (first.version, first.rows, first.added, first.copied) == (0, 3, 1, 0)
    assert rows(memory) == {"a": "1", "b": "2", "c": "3"}
    assert [*table(memory).files] == [snapshot(memory).paths[0].removeprefix(f"{FOLDER}/")]
    assert published(memory) == replace(first, is_new=False, added=0, kept=1)
    following = written(log, following, a=None, b="new", d="4")
    assert rows(memory) == {"a": "1", "b": "2", "c": "3"}, "the state of the last rewrite"
    run(memory)
    second = published(memory)
    assert (second.version, second.generation) == (1, first.generation + 1)
    assert rows(memory) == {"b": "new", "c": "3", "d": "4"}
    actions = [json.loads(line) for line in commit(memory, 1).splitlines()]
    assert actions[0]["commitInfo"]["operationParameters"] == {
        "generation": "2",
        "position of n1": str(snapshot(memory).marks["n1"].position),
    }
    drop_map(cluster(memory), "orders")
    run(memory)
    assert published(memory).rows == 0


def commit(store: SegmentStore, version: int) -> str:
    return store.read(f"{FOLDER}/_delta_log/{version:020d}.json").decode()


def test_tombstones_are_no_rows(memory: MemoryStore) -> None:
    """A file that has some is copied without them. The copy stays as long as the file is kept."""
    first, second = node(memory), node(memory, "n2")
    append(second, put("b", "1", (1, 0, 1, 1)))
    append(first, put("a", "2", (2, 0, 2, 1)), put("a", None, (2, 0, 2, 2)))
    assert run(memory).maps[0].tombstones == 1
    assert published(memory).copied == 1
    assert rows(memory) == {"b": "1"}
    (copy,) = memory.list(f"{FOLDER}/published")
    for number in range(2, 5):
        append(second, put("b", str(number), (1, 0, 1, number)))
        run(memory)
        published(memory, keep=2)
        assert rows(memory) == {"b": str(number)}
    assert copy not in memory.list(f"{FOLDER}/published")
    assert len(memory.list(f"{FOLDER}/published")) == 2


def test_files_of_the_last_published_snapshots_stay(memory: MemoryStore) -> None:
    """`keep` of them, and no log for them, whichever rewrites and prunes run."""
    log, following = node(memory), 1
    versions = []
    for number in range(5):
        following = written(log, following, a=str(number))
        log.rotate()
        run(memory)
        published(memory, keep=2)
        versions.append([f"{FOLDER}/{path}" for path in table(memory).files])
        prune(cluster(memory))
    following = written(log, following, a="last")
    log.rotate()
    run(memory)
    report = prune(cluster(memory))
    there = [all(map(memory.exists, paths)) for paths in versions]
    assert there == [False, False, False, True, True]
    assert report.segments
    assert [kept.log_bytes for kept in report.kept] == [0]


def test_a_long_history_of_versions_is_read_from_a_checkpoint(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert delta_log.CHECKPOINT_EVERY == 10
    log, following = node(memory), 1
    for number in range(25):
        following = written(log, following, **{f"k{number}": str(number)})
        run(memory)
        published(memory)
    names = [file.path.rpartition("/")[2] for file in memory.list(f"{FOLDER}/_delta_log")]
    assert names[0] == f"{10:020d}.checkpoint.parquet"
    assert len(names) == 2 + 15 + 1, "version 10 to 24, two checkpoints, _last_checkpoint"
    assert rows(memory) == {f"k{number}": str(number) for number in range(25)}
    state = table(memory)
    assert (state.version, state.generation) == (24, 25)
    assert state.metadata is not None
    assert state.metadata["configuration"]["delta.deletedFileRetentionDuration"]
    monkeypatch.setattr(DeltaLog, "_checkpoint", lambda *_: pytest.fail("not needed"))
    memory.delete(f"{FOLDER}/_delta_log/{20:020d}.checkpoint.parquet")
    with pytest.raises(pytest.fail.Exception):
        table(memory)


def test_what_cannot_be_a_table_is_refused(memory: MemoryStore) -> None:
    """Nothing is written then."""
    log = node(memory)
    written(log, 1, a="1")
    with pytest.raises(InvalidSetting, match="no snapshot yet: run `imap-wal rewrite` first"):
        published(memory)
    run(memory)

    def change(**changed: Any) -> None:
        def with_changed(manifest: Any) -> Any:
            new = replace(manifest.snapshots["orders"], **changed)
            return replace(manifest, snapshots={"orders": new})

        cluster(memory).manifests.update(with_changed)

    before = [file.path for file in memory.list(FOLDER)]
    sound = snapshot(memory)
    change(mixed=True)
    with pytest.raises(InvalidSetting, match="is of a repair"):
        published(memory)
    change(mixed=False)
    name = sound.files[0].path
    change(files=Listed((sound.files[0]._replace(path=f"{name[:-7]}wal"),)))
    with pytest.raises(InvalidSetting, match="is no Parquet file"):
        published(memory)
    change(files=sound.files)
    assert [file.path for file in memory.list(FOLDER)] == before
    assert published(memory).version == 0


def test_a_key_that_two_nodes_claim_is_refused(memory: MemoryStore) -> None:
    """Until it is decided: it would have two rows."""
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    append(second, put("b", "2", (1, 1, 2, 1)), put("c", "2", (1, 1, 2, 2)))
    run(memory)
    with pytest.raises(InvalidSetting, match=r"keys that two nodes claim.*--resolve"):
        published(memory)
    run(memory, resolve=Resolution.parse("newest"))
    published(memory)
    assert [*rows(memory)] == ["a", "b", "c"]


def test_a_table_that_others_changed_is_refused(memory: MemoryStore) -> None:
    """Also one whose log is damaged, or that has what this log has not written yet."""
    log = node(memory)
    written(log, 1, a="1")
    run(memory)
    published(memory)
    first = commit(memory, 0)
    second = f"{FOLDER}/_delta_log/{1:020d}.json"
    memory.create(second, json.dumps({"commitInfo": {"engineInfo": "Spark/4"}}).encode())
    with pytest.raises(InvalidSetting, match=r"was written by Spark/4.*Delete the folder"):
        published(memory)
    memory.replace(second, first.replace('"version":1', '"version":9').encode())
    with pytest.raises(InvalidSetting, match="the log is an older copy"):
        published(memory)
    for damage in (b"[]", b"{", b'{"commitInfo": 1}', b"\xff", b'{"add": {"path": 1}}'):
        memory.replace(second, damage)
        with pytest.raises(CorruptLog, match="no commit of a Delta table"):
            published(memory)


def test_a_dry_run_publishes_nothing(memory: MemoryStore) -> None:
    written(node(memory), 1, a="1", b="2")
    run(memory)
    before = [file.path for file in memory.list("")]
    report = published(memory, dry_run=True)
    assert (report.version, report.rows, report.is_new) == (0, 2, True)
    assert [file.path for file in memory.list("")] == before


def test_a_killed_publication_is_repeated(memory: MemoryStore) -> None:
    """After a kill at any storage operation, each version of the table is whole, and the next run
    ends at the newest snapshot."""
    for at in range(1, 60, sparse(3)):
        store = MemoryStore(f"{memory.url}-{at}")
        first, second = node(store), node(store, "n2")
        append(second, put("b", "1", (1, 0, 1, 1)))
        append(first, put("a", "2", (2, 0, 2, 1)), put("a", None, (2, 0, 2, 2)))
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


def test_two_publications_at_once_make_one_version_each(memory: MemoryStore) -> None:
    """Another process rewrites and publishes at any operation of a publication: the table never
    goes back to an older snapshot."""
    for at in range(1, 60):
        store = MemoryStore(f"{memory.url}-{at}")
        log = node(store)
        written(log, 1, a="1")
        run(store)
        published(store)
        written(log, 2, a="2")
        run(store)
        between = _Between(store, at, log, published)
        published(between)
        assert rows(store) == {"a": "3" if between.ran else "2"}
        assert table(store).generation == snapshot(store).generation
        published(store)
        assert rows(store) == {"a": "3" if between.ran else "2"}
        assert table(store).version in ((1, 2) if between.ran else (1,))
        if not between.ran:
            break
    else:
        pytest.fail("a publication makes more operations")


def test_a_publication_beside_a_prune_names_no_missing_file(memory: MemoryStore) -> None:
    """At any operation of a publication, another process rewrites, and a prune has decided what to
    delete. It deletes at the end of the publication."""
    for at in range(1, 60):
        store = MemoryStore(f"{memory.url}-{at}")
        log = node(store)
        written(log, 1, a="1")
        run(store)
        published(store)
        written(log, 2, a="2")
        run(store)
        prunes: list[_SlowPrune] = []
        between = _Between(store, at, log, lambda inner, to=prunes: to.append(_SlowPrune(inner)))
        published(between)
        for slow_prune in prunes:
            slow_prune.end()
        assert rows(store) in ({"a": "2"}, {"a": "3"})
        if not between.ran:
            break
    else:
        pytest.fail("a publication makes more operations")


def test_a_proposed_snapshot_displaces_no_published_one(memory: MemoryStore) -> None:
    """At any operation of a publication, another process rewrites, proposes, and is killed. Then
    all is deleted that may be."""
    for at in range(1, 60, sparse(3)):
        store = MemoryStore(f"{memory.url}-{at}")
        log = node(store)
        written(log, 1, a="1")
        run(store)
        published(store)
        written(log, 2, a="2")
        run(store)

        def propose(inner: SegmentStore) -> None:
            seen = cluster(inner)
            newest = Base({}, {}, {"orders": snapshot(inner)}, {}, ("orders",), {})
            reader = Reader(inner, seen.folder, "delta orders", seen.clock, seen.randomness)
            reader.keep(with_base(newest), DAY_MS, files_only=True)

        between = _Between(store, at, log, propose)
        published(between, keep=1)
        prune(cluster(store))
        assert rows(store) in ({"a": "2"}, {"a": "3"})
        published(store, keep=1)
        assert len(kept(store)) == 1
        if not between.ran:
            break
    else:
        pytest.fail("a publication makes more operations")


def test_a_published_snapshot_stays_until_the_next_one_is_published(memory: MemoryStore) -> None:
    """A rewrite at any operation of a publication that finds nothing new, which is then killed."""
    for at in range(1, 12):
        for later in range(1, 12, sparse(4)):
            store = MemoryStore(f"{memory.url}-{at}-{later}")
            log = node(store)
            written(log, 1, a="1")
            run(store)
            published(store)
            between = _Between(store, at, log, lambda inner: None)
            with suppress(Killed):
                published(FaultyStore(between, Plan((Fault("kill", at + later),))))
            prune(cluster(store))
            assert rows(store) in ({"a": "1"}, {"a": "3"})


def test_snapshots_that_are_refused_are_not_kept(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    for number in range(1, 4):
        append(first, put("a", "1", (1, 0, 1, number)))
        append(second, put("a", "2", (1, 0, 1, number)))
        run(memory)
        with pytest.raises(InvalidSetting, match="two nodes claim"):
            published(memory)
    assert not kept(memory)


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
            written(self._log, 3, a="3")
            run(self.inner)
            self._more(self.inner)
        return super()._run(kind, path, action)


def test_a_reader_of_tables_is_registered_by_its_map(memory: MemoryStore) -> None:
    """After it was forgotten, nothing is kept; the next publication registers it again."""
    log = node(memory)
    written(log, 1, a="1")
    run(memory)
    published(memory)
    reader = "delta orders"
    made = cluster(memory)
    assert [*readers.readers_of(memory, made.folder)] == [reader]
    assert readers.forget(memory, made.folder, reader, made.clock, made.randomness)
    assert [*readers.readers_of(memory, made.folder)] == []
    written(log, 2, a="2")
    run(memory)
    published(memory)
    (found,) = readers.readers_of(memory, made.folder).values()
    assert [base.snapshots["orders"].generation for base in found.bases] == [2]
