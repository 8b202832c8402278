"""Columns have the rows that every other reader reads. Without Spark's JVM."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import datasource as spark_filters

from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.entry import KEY, MAP, ORDER, is_clear
from imap_wal.errors import InvalidSetting, ShortLog
from imap_wal.format import Position
from imap_wal.manifest import readers
from imap_wal.parquet.reader import batches
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.retention.archive import archive_sealed
from imap_wal.retention.history import keep_history
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.write.node_log import NodeLog
from pyspark_imap_wal import columns as columns_module
from pyspark_imap_wal.batch import ImapWalReader, by_bytes, schema_of
from pyspark_imap_wal.columns import EntryQuery, read_columns
from pyspark_imap_wal.data_source import ImapWalDataSource
from pyspark_imap_wal.filters import Filters
from pyspark_imap_wal.options import AsOf, Options
from pyspark_imap_wal.tables.schemas import ENTRY_COLUMNS, POSITION_COLUMNS
from storage_backends import NotFound, open_store
from storage_backends.memory import MemoryStore, forget
from tests.histories import KEYS, MAPS, NODES, Cluster, put, steps
from tests.kit.examples import OF_HISTORIES
from tests.kit.logs import SMALL, append, cluster, node
from tests.support import FakeClock

pytestmark = pytest.mark.spark

KINDS = ENTRY_COLUMNS | POSITION_COLUMNS
ALL = EntryQuery(schema_of(KINDS))
_numbers = itertools.count()


def archive(log: NodeLog) -> None:
    """Turn the sealed segments of a node into archives."""
    who = log.identity
    archive_sealed(
        Context(log.store), who.node_folder, who.node, log.manifests, writing=log.unsealed
    )


def found(log: ClusterLog, scans: list[FileScan], wanted: EntryQuery = ALL) -> list[dict[str, Any]]:
    return [
        line
        for scan in scans
        for batch in read_columns(log, scan, wanted)
        for line in batch.to_pylist()
    ]


def expected(log: ClusterLog, scans: list[FileScan]) -> list[dict[str, Any]]:
    """The rows that the reader of rows returns."""
    lines = []
    for scan in scans:
        for changes in read_scan(Context(log.store), scan, positions=True):
            places: Any = changes.positions or [(None,) * 4] * len(changes.rows)
            for row, place in zip(changes.rows, places, strict=True):
                key = b"" if is_clear(row) else row[KEY]
                of_log = (log.namespace, log.cluster)
                values = (*of_log, row[MAP], key, *row[2:9], *row[ORDER], changes.node, *place)
                lines.append(dict(zip(KINDS, values, strict=True)))
    return lines


def in_order(lines: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, lines))


VALUES = {
    "key": st.sampled_from((*KEYS, b"none")),
    "map": st.sampled_from((*MAPS, "none")),
    "node": st.sampled_from((*NODES, "none")),
    "deleted": st.booleans(),
    "partition": st.integers(0, 2),
    "epoch": st.integers(0, 3),
    "segment": st.integers(0, 6),
    "frame": st.sampled_from((0, 100, 300)),
    "timestamp_ms": st.integers(0, 50).map(lambda n: 1_700_000_000_000 + n * 600_000),
    "request": st.integers(0, 30),
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda a, b: a == b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
}


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives have several row groups."""
    monkeypatch.setattr("imap_wal.parquet.archive_rows.GROUP_ROWS", 2)


@st.composite
def pushed(draw: st.DrawFn) -> tuple[Any, Callable[[dict[str, Any]], bool | None]]:
    """A filter of Spark, and what SQL says of a row: None for NULL."""
    name = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from((*COMPARE, "In", "IsNull", "IsNotNull")))
    if kind in ("IsNull", "IsNotNull"):
        made = getattr(spark_filters, kind)((name,))
        rule: Any = lambda line: (line[name] is None) == (kind == "IsNull")  # noqa: E731
    elif kind == "In":
        among = tuple(draw(st.lists(VALUES[name], min_size=1, max_size=3)))
        made = spark_filters.In((name,), among)
        rule = lambda line: None if line[name] is None else line[name] in among  # noqa: E731
    else:
        value = draw(VALUES[name])
        made = getattr(spark_filters, kind)((name,), value)
        compare = COMPARE[kind]
        rule = lambda line: None if line[name] is None else compare(line[name], value)  # noqa: E731
    if draw(st.booleans()):
        positive = rule
        made = spark_filters.Not(made)
        rule = lambda line: None if positive(line) is None else not positive(line)  # noqa: E731
    return made, rule


@OF_HISTORIES
@given(history=steps, filters=st.lists(pushed(), max_size=3), seed=st.integers(0, 2**16))
def test_columns_have_the_rows_of_every_other_reader(
    history: list[tuple[str, int, int, int]], filters: list[Any], seed: int
) -> None:
    name = f"columns-{next(_numbers)}"
    played = Cluster(MemoryStore(name))
    try:
        played.play(history)
        log, state = played.log, played.log.state()
        rng = random.Random(seed)
        for covered in (False, True):
            whole = cluster_scans(state, covered=covered)
            rows = expected(log, whole)
            assert in_order(found(log, whole)) == in_order(rows)
            placed = [line for line in rows if line["epoch"] is not None]
            places = {
                of: sorted(
                    Position(*(line[each] for each in POSITION_COLUMNS))
                    for line in placed
                    if line["node"] == of
                )
                for of in NODES
            }
            since, until = (
                {of: rng.choice(some) for of, some in places.items() if some} for _ in range(2)
            )
            part = cluster_scans(state, since=since, until=until, covered=covered, snapshots=False)
            assert in_order(found(log, part)) == in_order(expected(log, part))
            assert found(log, part, replace(ALL, in_order=True)) == expected(log, part)
            asked = Filters()
            asked.push([made for made, _ in filters])
            wanted = EntryQuery(
                schema_of(KINDS), asked.only("map", ()), asked.only("node", ()), asked
            )
            scans = [scan for scan in asked.narrowed(whole) if asked.wants(scan)]
            kept = [line for line in rows if all(rule(line) for _, rule in filters)]
            assert in_order(found(log, scans, wanted)) == in_order(kept)
            three = {each: KINDS[each] for each in rng.sample(sorted(KINDS), 3)}
            few = replace(wanted, schema=schema_of(three))
            assert in_order(found(log, scans, few)) == in_order(
                [{each: line[each] for each in three} for line in kept]
            )
    finally:
        played.close()
        forget(name)


@pytest.mark.parametrize("stop", range(7))
def test_segment_archived_while_read_is_read_once(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """The archiver works before the first batch of a segment, or between two."""
    log = node(memory)
    for part in range(6):
        name = "orders" if part % 2 else "other"
        append(log, *(put(f"k{part}-{at}", at, (1, 1, 1, 10 * part + at), name) for at in range(3)))
    log.rotate()
    append(log, put("last", "1", (1, 1, 1, 99)))
    monkeypatch.setattr("imap_wal.read.scan.ROWS_MAX", 3)
    monkeypatch.setattr("imap_wal.segment.reader.WINDOW_BYTES", 128)
    logs, keys = cluster(memory), []
    for scan in cluster_scans(logs.state()):
        read = read_columns(logs, scan, ALL)
        for number in itertools.count():
            if number == stop and scan.number == 1:
                archive(log)
            batch = next(read, None)
            if batch is None:
                break
            keys += [line["key"] for line in batch.to_pylist()]
    assert sorted(keys) == sorted({*keys}) and len(keys) == 19


@pytest.mark.parametrize(
    "more", [{}, {"mode": "latest"}, {"table": "history"}, {"changes": "images"}]
)
def test_a_plan_that_meets_an_archiver_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    """Decoding needs the schemas that segments have, so the plan reads them."""
    log = node(open_store(str(tmp_path)))
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    append(log, put("b", "1", (1, 1, 1, 2)))

    def beside_an_archiver(*given: Any) -> Any:
        archive(log)
        return read_scan(*given)

    monkeypatch.setattr("imap_wal.read.schemas.read_scan", beside_an_archiver)
    source = ImapWalDataSource({"path": str(tmp_path), "decode": "true", **more})
    reader: Any = source.reader(source.schema())
    lines = [
        line
        for task in reader.partitions()
        for batch in reader.read(task)
        for line in batch.to_pylist()
    ]
    assert sorted(line["key"] for line in lines) == [b"a", b"b"]


def test_a_deleted_archive_is_an_error_after_its_first_rows(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not known which rows came before: they must not come twice."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    archive(log)
    (scan,) = (each for each in cluster_scans(cluster(memory).state()) if each.kind == ARCHIVE)

    def torn(*given: Any, **more: Any) -> Any:
        yield from itertools.islice(batches(*given, **more), 1)
        raise NotFound("it was deleted", scan.path)

    monkeypatch.setattr(columns_module, "batches", torn)
    with pytest.raises(ShortLog, match="missing"):
        found(cluster(memory), [scan])


def test_a_pruned_segment_is_an_error(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 2)))
    log.rotate()
    append(log, put("b", "1", (1, 1, 1, 3)))
    scans = cluster_scans(cluster(memory).state())
    rewrite(cluster(memory), LocalEngine(SMALL), skew_ms_max=2**60)
    prune(cluster(memory))
    with pytest.raises(NotFound, match="begin again"):
        found(cluster(memory), scans)


def test_files_outside_a_range_of_time_are_not_read(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node(memory)
    for number in (1, 2, 3):
        append(log, put("a", number, (1, 1, 1, number), timestamp_ms=number * 1000))
        log.rotate()
        archive(log)
    filters = Filters()
    filters.push([spark_filters.GreaterThan(("timestamp_ms",), 2500)])
    read: list[str] = []
    monkeypatch.setattr(
        columns_module,
        "batches",
        lambda store, path, *given, **more: (
            read.append(path) or batches(store, path, *given, **more)
        ),
    )
    logs = cluster(memory)
    lines = found(logs, cluster_scans(logs.state()), replace(ALL, filters=filters))
    assert [line["request"] for line in lines] == [3] and len(read) == 1


def test_neither_in_nor_not_in_holds_for_null() -> None:
    frames = pa.table({"frame": pa.array([None, 0, 5], pa.int64())})
    among = spark_filters.In(("frame",), (0, 7))
    for asked, left in ((among, [0]), (spark_filters.Not(among), [5])):
        filters = Filters()
        filters.push([asked])
        assert frames.filter(filters.condition)["frame"].to_pylist() == left
    filters = Filters()
    filters.push([spark_filters.In(("frame",), (0, None))])
    assert filters.condition is None, "Spark knows what it means"


def test_a_reader_pushes_filters_with_both_settings_of_spark() -> None:
    reader = ImapWalReader(Options.parse({"path": "x"}))
    none = spark_filters.DataSourceReader.pushFilters
    assert vars(reader.pushFilters)["__func__"] is none, "Spark would refuse it"
    asked = [spark_filters.EqualTo(("map",), "orders")]
    assert list(reader.pushFilters(asked)) == asked, "Spark checks them again"
    assert reader._filters.only("map", ()) == ("orders",)
    assert reader._filters.only("map", ("other",)) == ("",)


def test_small_files_share_a_task() -> None:
    scans = [FileScan(ARCHIVE, "n", str(size), bytes=size) for size in (1, 2, 3, 10, 1)]
    assert [[scan.bytes for scan in part] for part in by_bytes(scans, 6)] == [[1, 2, 3], [10], [1]]
    assert list(by_bytes([], 6)) == []


def read(path: Path, **options: str) -> list[dict[str, Any]]:
    """A read of all partitions, in this process."""
    reader = ImapWalReader(Options.parse({"path": str(path), **options}))
    return [
        line
        for part in reader.partitions()
        for batch in reader.read(part)
        for line in batch.to_pylist()
    ]


def test_as_of_a_time_or_positions(tmp_path: Path) -> None:
    log = node(open_store(str(tmp_path)))
    places = []
    for number in (1, 2, 3):
        append(log, put("a", number, (1, 1, 1, number), timestamp_ms=number * 1000))
        places.append(str(log.end))
    for mode in ("raw", "latest"):
        for as_of in ("2500", "1970-01-01T00:00:02.500Z", f'{{"n1": "{places[1]}"}}'):
            lines = read(tmp_path, as_of=as_of, mode=mode, columns="request")
            assert [line["request"] for line in lines] == ([1, 2] if mode == "raw" else [2])
    log.rotate()
    rewrite(cluster(open_store(str(tmp_path))), LocalEngine(SMALL), skew_ms_max=2**60)
    with pytest.raises(InvalidSetting, match="no longer known"):
        read(tmp_path, as_of=f'{{"n1": "{places[1]}"}}')
    with pytest.raises(InvalidSetting, match="no longer known"):
        read(tmp_path, as_of="2500")
    assert len(read(tmp_path, as_of=f'{{"n1": "{places[2]}"}}')) == 1


def test_as_of_reads_what_the_history_keeps(tmp_path: Path) -> None:
    """By a time and by positions, and beside a map that was rewritten less often."""
    logs, clock = open_store(str(tmp_path)), FakeClock(1000)
    log, places = node(logs), []
    for number in (1, 2, 3):
        now_ms = clock.now_ms()
        append(log, put("a", number, (1, 1, 1, number), "orders", now_ms))
        append(log, put("x", number, (1, 1, 1, number + 10), "other", now_ms))
        places.append(str(log.end))
        log.rotate()
        keep_history(cluster(logs, clock), 3600, 2**60)
        only = ["orders"] if number == 2 else None
        rewrite(cluster(logs, clock), LocalEngine(SMALL), maps=only, skew_ms_max=2**60)
        prune(cluster(logs, clock))
        clock.advance(1800)
    for number, place in enumerate(places, 1):
        time_ms = 1000 + (number - 1) * 1_800_000
        for as_of in (str(time_ms + 900_000), f'{{"n1": "{place}"}}'):
            lines = read(tmp_path, as_of=as_of, mode="latest", columns="map,request")
            assert {line["map"]: line["request"] for line in lines} == {
                "orders": number,
                "other": number + 10,
            }
            assert len(read(tmp_path, as_of=as_of, map="orders")) >= 1
    readers.forget(
        Context(logs, clock=clock, randomness=SeededRandomness(1)), cluster(logs).folder, "history"
    )
    with pytest.raises(InvalidSetting, match="no longer known"):
        read(tmp_path, as_of=str(1000 + 900_000))


def test_a_stream_cannot_take_the_name_of_the_history() -> None:
    with pytest.raises(InvalidSetting, match="own history; choose another name"):
        Options.parse({"path": "memory://none", "reader": "history"})


@pytest.mark.parametrize("text", ["yesterday", "{", '{"n1": "x"}', "[]", '{"n1": 5}'])
def test_a_wrong_moment_is_named(text: str) -> None:
    with pytest.raises(InvalidSetting, match="as_of"):
        AsOf.parse(text)


def test_latest_reads_wanted_keys_and_columns_only(tmp_path: Path) -> None:
    log = node(open_store(str(tmp_path)))
    append(log, *(put(f"k{at}", at, (1, 1, 1, at)) for at in range(1, 9)))
    options = Options.parse({"path": str(tmp_path), "mode": "latest", "columns": "value,key"})
    reader = ImapWalReader(options)
    reader.pushFilters([spark_filters.In(("key",), (b"k3", bytearray(b"k5")))])
    (part,) = reader.partitions()
    lines = [line for batch in reader.read(part) for line in batch.to_pylist()]
    assert sorted(lines, key=repr) == [{"value": b"3", "key": b"k3"}, {"value": b"5", "key": b"k5"}]
