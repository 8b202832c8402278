"""Images of changes: a dict that takes those after each change is the map, and those before each
change are what the dict has. Without Spark's JVM; `test_streaming.py` has Spark itself."""

from __future__ import annotations

import itertools
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pyspark.sql import datasource as spark_filters

from imap_wal import format
from imap_wal.entry import KEY, ORDER, SHARED_SESSIONS, VALUE, clear_of, pack
from imap_wal.errors import InvalidSetting
from imap_wal.manifest import readers
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.changes import images, sorter
from pyspark_imap_wal.changes.batch import ImagesReader
from pyspark_imap_wal.options import Options
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget
from tests.histories import KEYS, Cluster, put, steps
from tests.kit.effort import share
from tests.kit.examples import OF_HISTORIES
from tests.kit.image_streams import ImageEngine, compacted, shown
from tests.kit.logs import SMALL, append, cluster, node
from tests.kit.stream_engine import Engine, archive, reader

pytestmark = pytest.mark.spark
_numbers = itertools.count()
Table = dict[tuple[str, bytes], dict[str, Any]]
ORDER_FIELDS = ("incarnation", "partition_version", "session", "request")
OF_CHANGES = ("_change_type", "_commit_version", "_commit_timestamp")


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
    """Batches have any size, and archive runs, rewrites and restarts of the reader happen between
    them. With prunes, the reader has read the log before each rewrite; without, it may have missed
    any number of rewrites."""
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
@settings(OF_HISTORIES, max_examples=share(15))  # each compacts for each batch
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
        named = {path for each in played.log.manifest().snapshots.values() for path in each.paths}
        assert kept <= named, "a reader that has read everything needs nothing that was replaced"
    finally:
        engine.reader.stop()
        played.close()
        forget(name)


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
    with pytest.raises(InvalidSetting, match=r"map 'orders'.*a rewrite covered.*Start the query"):
        engines[0].images()


def test_older_spark_keeps_the_snapshots_of_a_first_batch(store: SegmentStore) -> None:
    """Before Spark 4.2, Spark asks for the end of a batch first, without its start. A query that
    dies in the batch reads it again."""
    log = node(store)
    append(log, put("a", 1, (1, 1, 1, 1)))
    compacted(store)
    options = {"changes": "images", "reader": "images", "available_now": "unused"}
    first = reader(store.url, **options)
    end = first.latestOffset()
    start = first.initialOffset()
    parts = first.partitions(start, end)
    log.rotate()
    append(log, put("a", 2, (1, 1, 1, 2)))
    compacted(store)
    again = reader(store.url, **options)
    assert again.initialOffset() == start
    for stream, tasks in ((first, parts), (again, again.partitions(start, end))):
        lines = [
            line for part in tasks for batch in stream.read(part) for line in batch.to_pylist()
        ]
        assert shown(lines) == [("insert", "a", "1", 1)]
    again.commit(end)
    following = again.latestOffset()
    lines = [
        line
        for part in again.partitions(end, following)
        for batch in again.read(part)
        for line in batch.to_pylist()
    ]
    assert [kind for kind, *_ in shown(lines)] == ["update_preimage", "update_postimage"]


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
