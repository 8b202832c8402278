"""The tasks of a `latest` read have each key once: ranges of keys where a snapshot has several
files, and buckets elsewhere. Without Spark's JVM."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pyspark.sql import datasource as spark_filters

from imap_wal import format
from imap_wal.context import Context
from imap_wal.entry import ORDER, VALUE, clear_of, pack
from imap_wal.errors import InvalidSetting, ShortLog
from imap_wal.parquet.reader import groups_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SNAPSHOT
from imap_wal.read.scan import read_scan
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal import latest
from pyspark_imap_wal.batch import ImapWalReader
from pyspark_imap_wal.columns import EntryQuery
from pyspark_imap_wal.latest import LatestPartition
from pyspark_imap_wal.options import Options
from storage_backends.memory import MemoryStore, forget
from tests.histories import KEYS, Cluster, put, steps
from tests.kit.examples import OF_HISTORIES
from tests.kit.logs import SMALL, append, cluster, node
from tests.kit.stream_engine import archive

pytestmark = pytest.mark.spark
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a snapshot has one key, and a row group of an archive two rows. All files are read
    by columns."""
    monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    monkeypatch.setattr("imap_wal.rewrite.part_writer.PART_ROWS", 1)
    monkeypatch.setattr("imap_wal.parquet.archive_rows.GROUP_ROWS", 2)


def reader(url: str, *filters: Any, **options: str) -> ImapWalReader:
    chosen = Options.parse({"path": url, "mode": "latest", **options})
    made = ImapWalReader(chosen)
    made.pushFilters(list(filters))
    return made


def lines(made: ImapWalReader) -> list[dict[str, Any]]:
    return [
        line
        for part in made.partitions()
        for batch in made.read(part)
        for line in batch.to_pylist()
    ]


@contextmanager
def history_of(monkeypatch: pytest.MonkeyPatch, rows: int) -> Iterator[tuple[Cluster, str]]:
    """A cluster whose clock the reads have too, and its URL. `rows`: larger files are read by
    columns."""
    monkeypatch.setattr(merge, "COLUMN_ROWS", rows)
    name = f"latest-{next(_numbers)}"
    played = Cluster(MemoryStore(name))
    monkeypatch.setattr("imap_wal.clock.SystemClock.now_ms", lambda _: played.clock.now_ms())
    try:
        yield played, f"memory://{name}"
    finally:
        played.close()
        forget(name)


@OF_HISTORIES
@given(
    history=steps,
    task_bytes=st.sampled_from(("1", "4000")),
    buckets=st.sampled_from("12"),
    archived=st.booleans(),
    rows=st.sampled_from((1, 4096)),
)
def test_the_tasks_have_the_map_over_random_histories(
    monkeypatch: pytest.MonkeyPatch,
    history: list[tuple[str, int, int, int]],
    task_bytes: str,
    buckets: str,
    archived: bool,
    rows: int,
) -> None:
    with history_of(monkeypatch, rows) as (played, url):
        played.play([*history, ("rewrite", 0, 0, 0), *history[:20]])
        if archived:
            played.play([(step, at, 0, 0) for step in ("rotate", "archive") for at in (0, 1)])
        expected = {place: (row[VALUE], row[ORDER][3]) for place, row in played.expected().items()}
        some = {"task_bytes": task_bytes, "buckets": buckets}
        found = lines(reader(url, **some))
        assert len(found) == len(expected), "each key once"
        assert {(e["map"], e["key"]): (e["value"], e["request"]) for e in found} == expected
        wanted = spark_filters.EqualTo(("key",), KEYS[1])
        few = lines(reader(url, wanted, map="orders", **some))
        assert [(e["key"], e["request"]) for e in few] == [
            (key, request)
            for (of, key), (_, request) in expected.items()
            if of == "orders" and key == KEYS[1]
        ]


def rows_of(log: ClusterLog, task: LatestPartition, wanted: EntryQuery, time: int | None) -> Any:
    return latest._by_rows(log, task, wanted, 1, time, None)


@OF_HISTORIES
@given(history=steps, step=st.integers(0, 60), rows=st.sampled_from((1, 4096)))
def test_a_moment_is_the_same_by_columns_and_by_rows(
    monkeypatch: pytest.MonkeyPatch,
    history: list[tuple[str, int, int, int]],
    step: int,
    rows: int,
) -> None:
    """The moment is that of a step of the second half, which has no rewrites."""
    with history_of(monkeypatch, rows) as (played, url):
        half = len(history) // 2
        played.play([*history[:half], ("wait", 0, 0, 0)])
        times = []
        for each in history[half:]:
            if each[0] not in ("rewrite", "rewrite_one", "drop"):
                played.play([each, ("wait", 0, 0, 0)])
                times.append(str(played.clock.now_ms()))
        moment = times[step % len(times)]
        made = reader(url, task_bytes="1", as_of=moment)
        try:
            made.partitions()
        except InvalidSetting:
            return  # a rewrite has dropped that moment, or there was no entry yet
        found = lines(made)
        with pytest.MonkeyPatch.context() as by_rows:
            by_rows.setattr(latest, "_by_columns", rows_of)
            assert sorted(found, key=str) == sorted(lines(made), key=str)


def test_a_task_reads_only_its_range_of_keys(
    memory: MemoryStore,
) -> None:
    log = node(memory)
    append(log, *(put(f"k{at}", at, (1, 1, 1, at + 1)) for at in range(8)))
    append(log, *(put(f"o{at}", at, (1, 1, 1, at + 11), "other") for at in range(2)))
    rewrite(cluster(memory), LocalEngine(SMALL), maps=["orders"], skew_ms_max=2**60)
    append(log, *(put(f"k{at}", "new", (1, 1, 1, at + 21)) for at in range(8)))
    log.rotate()
    archive(log)
    parts = reader(memory.url, task_bytes="1").partitions()
    ranges = [part for part in parts if isinstance(part, LatestPartition) and part.span]
    assert len(ranges) == 8 and len(parts) == 9, "and one task for the map without a snapshot"
    for part in ranges:
        assert [scan.kind for scan in part.scans].count(SNAPSHOT) == 1
        (scan,) = (each for each in part.scans if each.kind == ARCHIVE)
        assert sum(len(batch.rows) for batch in read_scan(Context(memory), scan)) == 1, "of 8"
    found = lines(reader(memory.url, task_bytes="1"))
    assert sorted(line["key"] for line in found if line["value"] == b"new") == [
        b"k%d" % at for at in range(8)
    ]
    wanted = spark_filters.EqualTo(("key",), b"k5")
    assert len(reader(memory.url, wanted, task_bytes="1", map="orders").partitions()) == 1


def test_archives_of_a_map_without_a_snapshot_are_shared(memory: MemoryStore) -> None:
    """Each task reads the row groups of its range, and all that is not archived."""
    log = node(memory)
    append(log, *(put(f"k{at}", at, (1, 1, 1, at + 1)) for at in range(64)))
    log.rotate()
    archive(log)
    append(log, *(put(f"k{at}", "new", (1, 1, 1, at + 101)) for at in range(0, 64, 4)))
    made = reader(memory.url, task_bytes="1000")
    parts = made.partitions()
    ranges = [part for part in parts if isinstance(part, LatestPartition) and part.span]
    assert len(ranges) > 2
    assert [part.span[1] for part in ranges if part.span][:-1] == [
        part.span[0] for part in ranges if part.span
    ][1:], "there is no key between two ranges"
    for part in ranges:
        (scan,) = (each for each in part.scans if each.kind == ARCHIVE)
        assert sum(len(batch.rows) for batch in read_scan(Context(memory), scan)) < 40, "of 64"
        assert part.span is not None
        assert len(groups_of(Context(memory), scan.path, part.span, scan.directory)) < 20, "of 32"
    found = lines(made)
    assert sorted(line["key"] for line in found) == sorted(b"k%d" % at for at in range(64))
    assert len([line for line in found if line["value"] == b"new"]) == 16


def test_few_archived_rows_beside_a_large_segment_are_one_task(memory: MemoryStore) -> None:
    """Each task would decode the segment again."""
    log = node(memory)
    append(log, *(put(f"k{at}", at, (1, 1, 1, at + 1)) for at in range(8)))
    log.rotate()
    archive(log)
    append(log, *(put(f"k{at}", "v" * 900, (1, 1, 1, at + 101)) for at in range(8)))
    assert len(reader(memory.url, task_bytes="1").partitions()) == 1


def test_a_missing_file_of_a_snapshot_is_named(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, *(put(f"k{at}", at, (1, 1, 1, at + 1)) for at in range(2)))
    rewrite(cluster(memory), LocalEngine(SMALL), skew_ms_max=2**60)
    made = reader(memory.url, task_bytes="1")
    parts = made.partitions()
    path = cluster(memory).manifest().snapshots["orders"].paths[0]
    memory.delete(path)
    with pytest.raises(ShortLog, match="missing") as raised:
        for part in parts:
            list(made.read(part))
    assert raised.value.file == path


def test_each_task_knows_the_clears_of_its_snapshot(memory: MemoryStore) -> None:
    """They are in its first file only."""
    log, other = node(memory), node(memory, "n2")
    append(log, *(put(f"k{at}", at, (1, 1, 1, at + 11)) for at in range(8)))
    log.write(format.CLEARS, 1, [pack(clear_of("orders", 0, 1, 1000, (1, 1, 1, 5)))])
    log.sync()
    rewrite(cluster(memory), LocalEngine(SMALL), skew_ms_max=2**60)
    assert cluster(memory).manifest().clears, "it is kept while two nodes are open"
    append(other, put("k55", "late", (1, 1, 1, 4)), put("k66", "new", (1, 1, 1, 30)))
    keys = [line["key"].decode() for line in lines(reader(memory.url, task_bytes="1"))]
    assert sorted(keys) == ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k66", "k7"]
