"""Images of changes: a dict that takes those after each change is the map, and those before each
change are what the dict has. Without Spark's JVM; `test_streaming.py` has Spark itself."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pyspark.sql import datasource as spark_filters

from imap_wal import format
from imap_wal.entry import KEY, ORDER, SHARED_SESSIONS, VALUE, clear_of, pack
from imap_wal.errors import InvalidSetting
from imap_wal.manifest import readers
from imap_wal.manifest.feature_level import FeatureLevel
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.changes import images, sorter
from pyspark_imap_wal.changes.batch import ImagesReader
from pyspark_imap_wal.options import Options
from storage_backends import NotFound, SegmentStore, open_store
from storage_backends.memory import MemoryStore, forget
from tests.histories import KEYS, Cluster, put, steps
from tests.kit.examples import OF_HISTORIES
from tests.kit.logs import SMALL, append, cluster, node
from tests.kit.stream_engine import Engine, archive

pytestmark = pytest.mark.spark
_numbers = itertools.count()
Table = dict[tuple[str, bytes], dict[str, Any]]
ORDER_FIELDS = ("incarnation", "partition_version", "session", "request")
OF_CHANGES = ("_change_type", "_commit_version", "_commit_timestamp")


class ImageEngine(Engine):
    """The engine of streams, with images in the order in which they are read."""

    def __init__(self, url: str, **options: str) -> None:
        super().__init__(url, changes="images", **options)

    def images(self, rows_max: int = 0) -> list[dict[str, Any]]:
        """The next batch."""
        found: list[Any] = self.batch(rows_max)
        return found

    def lines(self, end: dict[str, Any]) -> list[Any]:
        return [
            line
            for part in self.reader.partitions(self.start, end)
            for batch in self.reader.read(part)
            for line in batch.to_pylist()
        ]


def between(url: str, *filters: Any, **options: str) -> list[dict[str, Any]]:
    """What a batch reads."""
    chosen = Options.parse({"path": url, "changes": "images", **options})
    reader = ImagesReader(chosen, chosen.kinds())
    assert reader.pushFilters(list(filters)) == list(filters)
    return [
        line
        for part in reader.partitions()
        for batch in reader.read(part)
        for line in batch.to_pylist()
    ]


def apply(table: Table, lines: list[dict[str, Any]]) -> None:
    """Change a dict, and compare what it had with the images."""
    for line in lines:
        place = line["map"], line["key"]
        image = {name: value for name, value in line.items() if name not in OF_CHANGES}
        known = table.get(place)
        match line["_change_type"]:
            case "insert":
                changed_ms = line["_commit_timestamp"].timestamp() * 1000
                assert known is None or 0 < known["expires_at_ms"] <= changed_ms, line
                table[place] = image
            case "update_preimage":
                assert known == image
            case "update_postimage":
                assert known is not None
                table[place] = image
            case "delete":
                assert table.pop(place) == image
            case kind:
                raise AssertionError(kind)


def live(table: Table, now_ms: int) -> dict[tuple[str, bytes], tuple[Any, ...]]:
    return {
        place: (image["value"], *(image[name] for name in ORDER_FIELDS))
        for place, image in table.items()
        if not 0 < image["expires_at_ms"] <= now_ms
    }


@pytest.mark.timeout(900)
@OF_HISTORIES
@given(
    history=steps,
    every=st.integers(1, 9),
    buckets=st.sampled_from(("1", "3")),
    rows_max=st.sampled_from((0, 0, 0, 3)),
    pruned=st.booleans(),
    memory=st.sampled_from((1, 2000, images.MEMORY_BYTES)),
    keys=st.sampled_from((1, images.KEYS_BYTES)),
)
def test_images_equal_a_dict_over_random_histories(
    monkeypatch: pytest.MonkeyPatch,
    history: list[tuple[str, int, int, int]],
    every: int,
    buckets: str,
    rows_max: int,
    pruned: bool,
    memory: int,
    keys: int,
) -> None:
    """In batches of any size, beside archive runs, rewrites and restarts of the reader. With
    prunes, the reader has read the log before each rewrite; without, it may have missed any number
    of rewrites."""
    monkeypatch.setattr(images, "MEMORY_BYTES", memory)
    monkeypatch.setattr(images, "KEYS_BYTES", keys)
    monkeypatch.setattr(sorter, "RUNS_MAX", 3)
    name = f"images-{next(_numbers)}"
    played = Cluster(MemoryStore(name))
    engine = ImageEngine(f"memory://{name}", buckets=buckets)
    table: Table = {}

    def follow() -> None:
        start = None
        while start != engine.start and (rows_max or start is None):
            start = engine.start
            lines = engine.images(rows_max)
            apply(table, lines)
            if start["start"] == "" and start != engine.start:
                places = {"starting": start, "as_of": engine.start}
                given = {each: json.dumps(place["nodes"]) for each, place in places.items()}
                assert between(f"memory://{name}", buckets=buckets, **given) == lines
        expected = {place: (row[VALUE], *row[ORDER]) for place, row in played.expected().items()}
        assert live(table, played.clock.now_ms()) == expected

    try:
        played.play([("put", 0, 0, 0)])
        follow()
        for number, (kind, at, of, key) in enumerate(history):
            if kind == "drop" or (kind == "prune" and not pruned):
                continue
            if kind.startswith("rewrite") and pruned:
                follow()
            played.play([(kind, at, of, key)])
            if number % every == 0:
                follow()
        follow()
    finally:
        engine.reader.stop()
        played.close()
        forget(name)


@pytest.mark.timeout(900)
@settings(OF_HISTORIES, max_examples=15)  # each compacts for each batch
@given(
    history=steps,
    every=st.integers(1, 12),
    rows_max=st.sampled_from((0, 0, 3)),
    compacts=st.booleans(),
)
def test_a_registered_reader_misses_no_image_over_random_histories(
    history: list[tuple[str, int, int, int]], every: int, rows_max: int, compacts: bool
) -> None:
    """Beside rewrites of all maps and of one, prunes and drops at any time, also between the two
    reads of a batch. Only a drop may end the query, and always does."""
    name = f"images-{next(_numbers)}"
    played = Cluster(MemoryStore(name))
    upkeep = [("rewrite", 0, 0, 0), ("prune", 0, 0, 0)]

    def begin() -> ImageEngine:
        return ImageEngine(f"memory://{name}", reader="images", rows_per_batch=str(rows_max or 9))

    def between() -> None:
        if compacts:
            played.play(upkeep)

    def follow() -> None:
        nonlocal engine, table
        if dropped:
            with pytest.raises(InvalidSetting, match="was dropped"):
                engine.batch(rows_max)
            dropped.clear()
            engine.reader.stop()
            engine, table = begin(), {}
        start = None
        while start != engine.start:
            start = engine.start
            lines: list[Any] = engine.batch(rows_max, between)
            apply(table, lines)
        expected = {place: (row[3], *row[9]) for place, row in played.expected().items()}
        assert live(table, played.clock.now_ms()) == expected

    played.play([("put", 0, 0, 0)])
    engine, table, dropped = begin(), Table(), set[int]()
    try:
        follow()
        for number, step in enumerate(history):
            played.play([step])
            if step[0] == "drop":
                dropped.add(step[2])
            if step[0] == "rotate" and compacts:
                played.play(upkeep)
            if number % every == 0:
                follow()
        follow()
        played.play(upkeep)
        follow()
        follow()
        kept = readers.kept_files(played.store, played.log.folder, played.log.manifest())
        named = {path for each in played.log.manifest().snapshots.values() for path in each.files}
        assert kept <= named, "a reader that has read everything needs nothing that was replaced"
    finally:
        engine.reader.stop()
        played.close()
        forget(name)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return open_store(str(tmp_path))


def shown(lines: list[dict[str, Any]]) -> list[tuple[str, str, str, int]]:
    return [
        (line["_change_type"], line["key"].decode(), line["value"].decode(), line["request"])
        for line in lines
    ]


def test_each_change_has_its_images(store: SegmentStore) -> None:
    log = node(store)
    engine = ImageEngine(store.url)
    append(log, put("a", 1, (1, 1, 1, 1)), put("a", 2, (1, 1, 1, 2)), put("b", 1, (1, 1, 1, 3)))
    assert shown(engine.images()) == [
        ("insert", "a", "1", 1),
        ("update_preimage", "a", "1", 1),
        ("update_postimage", "a", "2", 2),
        ("insert", "b", "1", 3),
    ]
    log.rotate()
    archive(log)
    append(log, put("a", None, (1, 1, 1, 4)), put("a", None, (1, 1, 1, 5)))
    (deleted,) = engine.images()
    assert shown([deleted]) == [("delete", "a", "2", 2)]
    assert deleted["_commit_version"].split(".")[-1] == "4".zfill(19)
    assert deleted["_commit_timestamp"].timestamp() == 1


def test_a_change_that_arrives_late_has_no_images(store: SegmentStore) -> None:
    """Another node has a newer one."""
    first, second = node(store), node(store, "n2")
    append(second, put("a", "new", (1, 2, 2, 9)))
    engine = ImageEngine(store.url)
    assert shown(engine.images()) == [("insert", "a", "new", 9)]
    append(first, put("a", "old", (1, 1, 1, 1)))
    append(second, put("a", None, (1, 2, 2, 10)))
    append(first, put("a", "older", (1, 1, 1, 2)))
    assert shown(engine.images()) == [("delete", "a", "new", 9)]


def test_copies_of_a_change_are_one_change(store: SegmentStore) -> None:
    """Whichever log is read first."""
    first, second = node(store), node(store, "n2")
    engine = ImageEngine(store.url)
    copies = [put("a", at, (1, 1, SHARED_SESSIONS, at)) for at in (1, 2)]
    append(second, copies[0])
    assert shown(engine.images()) == [("insert", "a", "1", 1)]
    append(first, *copies)
    assert [kind for kind, *_ in shown(engine.images())] == ["update_preimage", "update_postimage"]
    append(second, copies[1])
    assert engine.images() == []


def test_a_clear_deletes_every_key_that_there_was(store: SegmentStore) -> None:
    log = node(store)
    engine = ImageEngine(store.url)
    append(log, put("a", 1, (1, 1, 1, 1)), put("b", 1, (1, 1, 1, 2)), put("c", 1, (1, 1, 1, 9)))
    engine.images()
    clear = clear_of("orders", 0, 1, 1000, (1, 1, 1, 5))
    log.write(format.CLEARS, 1, [pack(clear)])
    append(log, put("b", 2, (1, 1, 1, 6)))
    assert shown(engine.images()) == [
        ("delete", "a", "1", 1),
        ("delete", "b", "1", 2),
        ("insert", "b", "2", 6),
    ]
    append(log, put("a", "late", (1, 1, 1, 4)))
    assert engine.images() == []


def test_an_expired_entry_is_not_updated(store: SegmentStore) -> None:
    log = node(store)
    engine = ImageEngine(store.url)
    append(log, put("a", 1, (1, 1, 1, 1), expires_at_ms=5000), put("b", 1, (1, 1, 1, 2)))
    engine.images()
    append(log, put("a", 2, (1, 1, 1, 3), timestamp_ms=4999, expires_at_ms=6000))
    assert [kind for kind, *_ in shown(engine.images())] == ["update_preimage", "update_postimage"]
    append(log, put("a", 3, (1, 1, 1, 4), timestamp_ms=6000))
    assert shown(engine.images()) == [("insert", "a", "3", 4)]


def test_only_wanted_keys_and_maps_are_read(store: SegmentStore) -> None:
    log = node(store)
    append(
        log, put("a", 1, (1, 1, 1, 1)), put("b", 1, (1, 1, 1, 2)), put("a", 1, (1, 1, 1, 3), "x")
    )
    start = json.dumps({"n1": str(log.end)})
    append(
        log, put("a", 2, (1, 1, 1, 4)), put("b", None, (1, 1, 1, 5)), put("a", 2, (1, 1, 1, 6), "x")
    )
    wanted = spark_filters.EqualTo(("key",), b"a")
    assert shown(between(store.url, wanted, starting=start, map="orders")) == [
        ("update_preimage", "a", "1", 1),
        ("update_postimage", "a", "2", 4),
    ]
    wanted = spark_filters.EqualTo(("map",), "orders")
    assert len(between(store.url, wanted, starting=start)) == 3
    assert [*between(store.url, columns="_change_type,key")[0]] == ["_change_type", "key"]


def test_a_map_without_a_former_snapshot_is_read_whole(store: SegmentStore) -> None:
    """Another map had one, and then all maps were rewritten before the reader read them."""
    log = node(store)
    engine = ImageEngine(store.url)
    append(log, put("a", 1, (1, 1, 1, 1)), put("x", 1, (1, 1, 1, 2), "other"))
    rewrite(cluster(store), LocalEngine(SMALL), maps=["other"], skew_ms_max=2**60)
    engine.images()
    append(log, put("a", 2, (1, 1, 1, 3)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    assert shown(engine.images()) == [
        ("update_preimage", "a", "1", 1),
        ("update_postimage", "a", "2", 3),
    ]


def test_images_that_a_prune_removed_are_an_error(store: SegmentStore) -> None:
    """Unless a registered reader needs them."""
    log = node(store)
    engines = ImageEngine(store.url), ImageEngine(store.url, reader="images")
    append(log, put("a", 1, (1, 1, 1, 1)), put("b", 1, (1, 1, 1, 2)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    log.rotate()
    for engine in engines:
        assert shown(engine.images()) == [("insert", "a", "1", 1), ("insert", "b", "1", 2)]
    for number in (2, 3):
        append(log, put("a", number, (1, 1, 1, number + 1)))
        rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
        prune(cluster(store))
    assert shown(engines[1].images()) == [
        ("update_preimage", "a", "1", 1),
        ("update_postimage", "a", "2", 3),
        ("update_preimage", "a", "2", 3),
        ("update_postimage", "a", "3", 4),
    ]
    assert engines[1].images() == []
    prune(cluster(store))
    with pytest.raises(InvalidSetting, match=r"map 'orders'.*a rewrite covered.*Begin anew"):
        engines[0].images()


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
    """Also what the reader has read: the state before its next batch is in it."""
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

    def propose(reader: readers.Reader, base: readers.Base | None) -> None:
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


def compacted(store: SegmentStore, *maps: str) -> None:
    rewrite(cluster(store), LocalEngine(SMALL), maps=list(maps) or None, skew_ms_max=2**60)
    prune(cluster(store))


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


def test_a_start_asked_again_keeps_the_base(store: SegmentStore) -> None:
    """Only the base has the state at the given positions, as the log above was compacted."""
    log = node(store)
    append(log, put("k", 1, (1, 1, 1, 1), "other"))
    rewrite(cluster(store), LocalEngine(SMALL), maps=["other"], skew_ms_max=2**60)
    append(log, put("k", 2, (1, 1, 1, 2), "other"), put("a", 3, (1, 1, 1, 3)))
    log.rotate()
    archive(log)
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
    log = node(store)
    append(log, put("k", 1, (1, 1, 1, 1), "other"))
    rewrite(cluster(store), LocalEngine(SMALL), maps=["other"], skew_ms_max=2**60)
    append(log, put("k", 2, (1, 1, 1, 2), "other"), put("a", 3, (1, 1, 1, 3)))
    log.rotate()
    archive(log)
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
    """Also a batch that is planned already. There is never a wrong image."""
    log = node(store)
    append(log, put("a", 1, (1, 1, 1, 1)), put("b", 1, (1, 1, 1, 2)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    begins, logs = log.end, cluster(store)
    append(log, put("a", 2, (1, 1, 1, 3)), put("b", None, (1, 1, 1, 4)))
    log.rotate()
    archive(log)
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    reader = readers.Reader(store, logs.folder, "images", logs.clock, logs.randomness)
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
        with pytest.raises(InvalidSetting, match=r"map 'orders'.*a rewrite covered.*Begin anew"):
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


def test_below_its_level_only_the_log_is_kept(
    store: SegmentStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = node(store)
    level = FeatureLevel.COPIES
    cluster(store).manifests.update(lambda now: replace(now, level=level))
    append(log, put("a", 1, (1, 1, 1, 1)))
    engine = ImageEngine(store.url, reader="images")
    engine.images()
    assert "imap-wal upgrade" in caplog.text
    folder = cluster(store).folder
    assert readers.readers_of(store, folder)["images"].base is None
    cluster(store).manifests.update(lambda now: replace(now, level=FeatureLevel.KEPT_SNAPSHOTS))
    append(log, put("a", 2, (1, 1, 1, 2)))
    engine.images()
    assert readers.readers_of(store, folder)["images"].base is not None


def test_a_drop_without_an_entry_ends_a_stream(store: SegmentStore) -> None:
    """Its marks are not above what the stream has read."""
    log = node(store)
    engine = ImageEngine(store.url)
    append(log, put("a", 1, (1, 1, 1, 1)))
    engine.images()
    drop_map(cluster(store), "orders")
    with pytest.raises(InvalidSetting, match=r"map 'orders' was dropped"):
        engine.images()


def test_images_of_a_dropped_map_are_an_error(store: SegmentStore) -> None:
    log = node(store)
    engine = ImageEngine(store.url)
    append(log, put("a", 1, (1, 1, 1, 1)))
    engine.images()
    append(log, put("a", 2, (1, 1, 1, 2)))
    drop_map(cluster(store), "orders")
    with pytest.raises(InvalidSetting, match=r"map 'orders' was dropped"):
        engine.images()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"changes": "all"}, "entries or images"),
        ({"changes": "images", "mode": "latest"}, "all nodes"),
        ({"changes": "images", "node": "n1"}, "all nodes"),
        ({"changes": "images", "columns": "epoch"}, "no column 'epoch'"),
        ({"changes": "images", "starting": "latest"}, "earliest or positions"),
        ({"changes": "images", "as_of": "1000"}, "last position of every node"),
    ],
)
def test_wrong_options_of_images_are_named(options: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidSetting, match=word):
        chosen = Options.parse({"path": "memory://none", **options})
        ImagesReader(chosen, chosen.kinds())


def test_an_entry_of_a_replaced_owner_has_no_images() -> None:
    """It was not repeated, and no restore has it. A stream without images has it: it reads what a
    snapshot covers, for which there is no table of owners any more."""
    name = f"images-{next(_numbers)}"
    played = Cluster(MemoryStore(name))
    url = f"memory://{name}"
    try:
        key = 0
        played.play([("put", 0, 0, key), ("delete", 0, 0, key), ("hold", 0, 0, key)])
        (late,) = played.held["n1"]
        played.play([("move", 0, 0, key), ("put", 0, 0, 2), ("rewrite", 0, 0, 0)])
        engines = Engine(url), ImageEngine(url)
        assert [len(engine.batch()) for engine in engines] == [1, 1]
        played.append("n1", late.row)  # and the operation is not repeated
        fresh = MaterializedView(played.log, played.settings)
        fresh.catch_up()
        assert [row[KEY] for rows in fresh.rows("orders") for row in rows] == [KEYS[2]]
        fresh.close()
        assert [len(engine.batch()) for engine in engines] == [1, 0]
        for engine in engines:
            engine.reader.stop()
    finally:
        played.close()
        forget(name)
