"""What the log keeps for a registered stream with images: the base of its next batch. Without
Spark's JVM."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from imap_wal.errors import InvalidSetting
from imap_wal.manifest import readers
from imap_wal.manifest.reader_manifest import Base
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.write.node_log import NodeLog
from storage_backends import NotFound, SegmentStore
from tests.histories import put
from tests.kit.image_streams import ImageEngine, compacted, shown
from tests.kit.logs import SMALL, append, cluster, node
from tests.kit.stream_engine import Engine, archive

pytestmark = pytest.mark.spark


def test_a_first_batch_of_a_registered_reader_survives_compaction(store: SegmentStore) -> None:
    """Between its plan and its tasks, and a crash in it; also without images."""
    log = node(store)
    append(log, put("a", 1, (1, 1, 1, 1)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    number = itertools.count(2)

    def compact() -> None:
        at = next(number)
        append(log, put("a", at, (1, 1, 1, at)))
        log.rotate()
        rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
        prune(cluster(store))

    engine, entries = ImageEngine(store.url, reader="images"), Engine(store.url, reader="entries")
    end, other = engine.reader.latestOffset(engine.start), entries.reader.latestOffset(engine.start)
    for each in (engine, entries):
        assert each.reader.initialOffset() == each.start, "Spark asks again before it reads"
    compact()
    assert shown(engine.lines(end)) == [("insert", "a", "1", 1)]
    assert [line[-1] for line in entries.lines(other)] == [1]
    compact()
    engine.restart()
    assert shown(engine.lines(end)) == [("insert", "a", "1", 1)]
    engine.start = end
    engine.reader.commit(end)
    assert shown(engine.images(1)) == [
        ("update_preimage", "a", "1", 1),
        ("update_postimage", "a", "2", 2),
    ]
    assert [kind for kind, *_ in shown(engine.images())] == ["update_preimage", "update_postimage"]


def test_the_log_above_a_base_is_kept(store: SegmentStore) -> None:
    """What the reader has read is kept, too: the state before its next batch is in it."""
    log = node(store)
    engine = ImageEngine(store.url, reader="images")
    for number in (1, 2):
        append(log, put("a", number, (1, 1, 1, number)))
        log.rotate()
        engine.images()
    append(log, put("a", 3, (1, 1, 1, 3)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    prune(cluster(store))
    assert shown(engine.images()) == [
        ("update_preimage", "a", "2", 2),
        ("update_postimage", "a", "3", 3),
    ]


def test_a_prune_that_did_not_see_a_proposal_is_noticed(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at the readers before, and deletes the proposed snapshot. The former base stays."""
    log = node(store)
    at = itertools.count(1)

    def change() -> None:
        number = next(at)
        append(log, put("a", number, (1, 1, 1, number)))
        rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)

    def propose(reader: readers.Reader, base: Base | None) -> None:
        folder, now = cluster(store).folder, cluster(store).manifest()
        seen = readers.kept_files(store, folder, now)
        proposing(reader, base)
        if base is not None and base.snapshots == now.snapshots:
            change()
            with monkeypatch.context() as before:
                before.setattr(readers, "kept_files", lambda *_: seen)
                prune(cluster(store))

    change()
    engine = ImageEngine(store.url, reader="images")
    assert shown(engine.images()) == [("insert", "a", "1", 1)]
    change()
    proposing = readers.Reader.propose
    with monkeypatch.context() as racing:
        racing.setattr(readers.Reader, "propose", propose)
        changed = shown(engine.images())
    for _ in range(3):
        change()
        prune(cluster(store))
        changed += shown(engine.images())
    after = [value for kind, _, value, _ in changed if kind == "update_postimage"]
    assert after == [str(number) for number in range(2, next(at))]


@pytest.mark.parametrize("maps", [{}, {"map": "orders,other"}])
def test_a_base_of_fewer_maps_is_of_no_use(store: SegmentStore, maps: dict[str, str]) -> None:
    """What the other map had before was removed: its key was updated, and not inserted."""
    log = node(store)
    append(log, put("k", "old", (1, 1, 1, 1), "other"), put("a", 1, (1, 1, 1, 2)))
    log.rotate()
    archive(log)
    compacted(store)
    former = {"map": "orders", "reader": "images"}
    engine = ImageEngine(store.url, **former)
    engine.images()
    append(log, put("k", "new", (1, 1, 1, 3), "other"), put("a", 2, (1, 1, 1, 4)))
    compacted(store)
    engine.options = {"changes": "images", "reader": "images", **maps}
    engine.restart()
    end = engine.reader.latestOffset(engine.start)
    with pytest.raises(InvalidSetting, match=r"map 'other' are no longer known"):
        engine.lines(end)
    engine.options = {"changes": "images", **former}
    engine.restart()
    assert shown(engine.images()) == [
        ("update_preimage", "a", "1", 2),
        ("update_postimage", "a", "2", 4),
    ]


def test_more_maps_may_be_followed_while_they_are_known(store: SegmentStore) -> None:
    """The log above the older snapshot of the other map is kept from then on."""
    log = node(store)
    append(log, put("k", 1, (1, 1, 1, 1), "other"), put("a", 1, (1, 1, 1, 2)))
    compacted(store)
    append(log, put("k", 2, (1, 1, 1, 3), "other"), put("a", 2, (1, 1, 1, 4)))
    log.rotate()
    archive(log)
    compacted(store, "orders")
    engine = ImageEngine(store.url, map="orders", reader="images")
    engine.images()
    engine.options = {"changes": "images", "reader": "images"}
    engine.restart()
    assert engine.images() == []
    append(log, put("k", 3, (1, 1, 1, 5), "other"))
    compacted(store, "other")
    assert shown(engine.images()) == [
        ("update_preimage", "k", "2", 3),
        ("update_postimage", "k", "3", 5),
    ]


def test_a_first_batch_cannot_follow_more_maps(store: SegmentStore) -> None:
    """It was planned with fewer, and their snapshots were replaced."""
    log = node(store)
    append(log, put("k", "old", (1, 1, 1, 1), "other"), put("a", 1, (1, 1, 1, 2)))
    log.rotate()
    archive(log)
    compacted(store)
    engine = Engine(store.url, map="orders", reader="entries")
    end = engine.reader.latestOffset(engine.start)
    append(log, put("a", 2, (1, 1, 1, 3)))
    compacted(store)
    assert [line[-1] for line in engine.lines(end)] == [2]
    engine.options = {"map": "orders,other", "reader": "entries"}
    engine.restart()
    with pytest.raises(InvalidSetting, match="first batch"):
        engine.lines(end)


def log_with_unlike_marks(store: SegmentStore) -> NodeLog:
    """Map `other` has a snapshot and changes above it, `orders` only changes."""
    log = node(store)
    append(log, put("k", 1, (1, 1, 1, 1), "other"))
    rewrite(cluster(store), LocalEngine(SMALL), maps=["other"], skew_ms_max=2**60)
    append(log, put("k", 2, (1, 1, 1, 2), "other"), put("a", 3, (1, 1, 1, 3)))
    log.rotate()
    archive(log)
    return log


def test_a_start_asked_again_keeps_the_base(store: SegmentStore) -> None:
    """Only the base has the state at the given positions, as the log above was compacted."""
    log = log_with_unlike_marks(store)
    compacted(store, "orders")
    start = json.dumps({"n1": str(log.end)})
    engine = ImageEngine(store.url, reader="images", starting=start)
    append(log, put("k", 4, (1, 1, 1, 4), "other"))
    compacted(store, "other")
    engine.restart()
    assert engine.reader.initialOffset() == engine.start
    assert shown(engine.images()) == [
        ("update_preimage", "k", "2", 2),
        ("update_postimage", "k", "4", 4),
    ]


def pruned_after(store: SegmentStore, monkeypatch: pytest.MonkeyPatch, begin: Any) -> Any:
    """What `begin` returns, which registers a reader when a prune has already read the readers."""
    folder, now = cluster(store).folder, cluster(store).manifest()
    seen = readers.readers_of(store, folder), readers.kept_files(store, folder, now)
    begun = begin()
    with monkeypatch.context() as before:
        before.setattr(readers, "readers_of", lambda *_: seen[0])
        before.setattr(readers, "kept_files", lambda *_: seen[1])
        prune(cluster(store))
    return begun


def test_a_first_base_that_a_prune_missed_is_replaced(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_with_unlike_marks(store)
    rewrite(cluster(store), LocalEngine(SMALL), maps=["orders"], skew_ms_max=2**60)

    def begin() -> ImageEngine:
        engine = ImageEngine(store.url, reader="images")
        assert len(engine.images()) == 4
        return engine

    engine = pruned_after(store, monkeypatch, begin)
    assert engine.images() == []
    for number in range(4, 7):
        append(log, put("k", number, (1, 1, 1, number), "other"))
        compacted(store, "other")
        compacted(store, "orders")
        changed = [value for kind, _, value, _ in shown(engine.images()) if "post" in kind]
        assert changed == [str(number)]


def test_a_prune_that_missed_former_snapshots_ends_the_query(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is already planned ends, too. There is never a wrong image."""
    log = node(store)
    append(log, put("a", 1, (1, 1, 1, 1)), put("b", 1, (1, 1, 1, 2)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    begins, logs = log.end, cluster(store)
    append(log, put("a", 2, (1, 1, 1, 3)), put("b", None, (1, 1, 1, 4)))
    log.rotate()
    archive(log)
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    reader = readers.Reader(logs.context, logs.folder, "images")
    reader.begin({"n1": begins})  # that is what the prune has seen: there is no base yet
    end: dict[str, Any] = {}
    tasks: list[Any] = []

    def begin() -> ImageEngine:
        start = json.dumps({"n1": str(begins)})
        engine = ImageEngine(store.url, reader="images", starting=start)
        end.update(engine.reader.latestOffset(engine.start))
        tasks.extend(engine.reader.partitions(engine.start, end))
        return engine

    engine = pruned_after(store, monkeypatch, begin)
    assert len(tasks) == 1
    with pytest.raises(NotFound):
        list(engine.reader.read(tasks[0]))
    for again in (lambda: engine.lines(end), engine.reader.initialOffset):
        with pytest.raises(
            InvalidSetting, match=r"map 'orders'.*a rewrite covered.*Start the query"
        ):
            again()


def test_a_proposal_of_a_replaced_registration_is_not_used(store: SegmentStore) -> None:
    """Another query has taken the name since, and nothing kept the files meanwhile."""
    log = node(store)
    folder, at = cluster(store).folder, itertools.count(1)

    def change() -> None:
        number = next(at)
        append(log, put("a", number, (1, 1, 1, number)))
        compacted(store)

    change()
    engine = ImageEngine(store.url, reader="images")
    end = engine.reader.latestOffset(engine.start)
    proposals = []
    for _ in range(2):
        change()
        engine.reader.commit(end)
        proposals.append(readers.readers_of(store, folder)["images"].proposed)
    assert proposals[0] is not None and proposals[1] == proposals[0], "until it is reached"
    place = json.dumps({"n1": str(log.end)})
    other = ImageEngine(store.url, reader="images", starting=place)
    change()
    assert len(other.images()) == 2
    change()
    engine.reader.commit(end)
    kept = readers.kept_files(store, folder, cluster(store).manifest())
    assert kept and all(store.exists(path) for path in kept)
