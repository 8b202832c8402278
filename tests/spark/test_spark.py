"""Spark reads the log like every other reader, and rewrites it to the same snapshot."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE
from imap_wal.errors import CorruptLog, InvalidSetting, LostRace
from imap_wal.format import START
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Engine, prepare
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.publish import discard, publish
from imap_wal.rewrite.report import RewriteReport, StepReport
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.sorted_runs import Sizes
from imap_wal.rewrite.task_engine import Merging, TaskAnswer, report_of, taken
from pyspark_imap_wal.progress import StepProgress
from pyspark_imap_wal.rewrite_engine import SparkEngine
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.histories import Cluster, put, steps
from tests.kit import rivals
from tests.kit.effort import share, thorough
from tests.kit.logs import SMALL, append, cluster, node, parquet_rows, values, view
from tests.support import overwrite

pytestmark = pytest.mark.spark


def run(log: ClusterLog, engine: Engine, **options: Any) -> RewriteReport:
    """A rewrite with a stopped clock, over a storage with a running one."""
    return rewrite(log, engine, skew_ms_max=2**60, **options)


@settings(
    max_examples=share(6),
    deadline=None,
    print_blob=True,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # a second for each example: no shrinking of failures
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=steps)
def test_both_engines_give_the_same_snapshot(
    spark: Any, tmp_path: Path, history: list[tuple[str, int, int, int]]
) -> None:
    number = len(list(tmp_path.iterdir()))
    history_cluster = Cluster(open_store(str(tmp_path / f"log-{number}")), skew_ms_max=2**60)
    try:
        history_cluster.play(history)
        log = history_cluster.log
        found = []
        for engine in (LocalEngine(SMALL), SparkEngine(spark)):
            plan = prepare(log)
            result = engine.run(plan, log)
            merged = {item.map: item for item in result.maps}
            rows = {
                name: [parquet_rows(log.store, part.path) for part in item.parts]
                for name, item in merged.items()
            }
            counts = {name: (item.records, item.unchanged) for name, item in merged.items()}
            flat = {name: [row for part in parts for row in part] for name, parts in rows.items()}
            found.append((flat, counts, dict(result.pairs)))
            discard(log, plan)
        assert found[0] == found[1]
        run(log, SparkEngine(spark))
        prune(log)
        history_cluster.check()
    finally:
        history_cluster.close()


def test_raw_reads_every_entry_and_latest_the_live_view(spark: Any, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = node(store)
    append(
        log,
        put("a", "1", (1, 1, 1, 1)),
        put("b", "1", (1, 1, 1, 2)),
        put("x", "1", (1, 1, 1, 3), "other"),
    )
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 4)), put("b", None, (1, 1, 1, 5)))
    raw = spark.read.format("imap_wal").load(str(tmp_path))
    rows = raw.orderBy("epoch", "segment", "frame", "index").collect()
    assert [
        (
            row["map"],
            bytes(row["key"]),
            row["value"] and bytes(row["value"]),
            row["deleted"],
            row["request"],
        )
        for row in rows
    ] == [
        ("orders", b"a", b"1", False, 1),
        ("orders", b"b", b"1", False, 2),
        ("other", b"x", b"1", False, 3),
        ("orders", b"a", b"2", False, 4),
        ("orders", b"b", None, True, 5),
    ]
    assert {(row["namespace"], row["cluster"], row["node"]) for row in rows} == {("ns", "c", "n1")}
    assert raw.rdd.getNumPartitions() == 1, "small files share a task"

    for buckets in ("1", "3"):
        options = {"mode": "latest", "buckets": buckets}
        latest = spark.read.format("imap_wal").options(**options).load(str(tmp_path))
        assert sorted(
            (row["map"], bytes(row["key"]), bytes(row["value"])) for row in latest.collect()
        ) == [
            ("orders", b"a", b"2"),
            ("other", b"x", b"1"),
        ]
    options = {"map": "other", "namespace": "ns"}
    only = spark.read.format("imap_wal").options(**options).load(str(tmp_path))
    assert [row["map"] for row in only.collect()] == ["other"]

    run(cluster(store), SparkEngine(spark))
    append(log, put("c", "1", (1, 1, 1, 6)))
    raw = spark.read.format("imap_wal").load(str(tmp_path))
    assert sorted((bytes(row["key"]), row["epoch"]) for row in raw.collect()) == [
        (b"a", None),
        (b"c", 1),
        (b"x", None),
    ]


def test_keys_and_values_as_text(spark: Any, tmp_path: Path) -> None:
    import imap_wal

    with imap_wal.open(str(tmp_path), node="n1") as store:
        store.map("orders")["k"] = {"state": "paid"}
    read = spark.read.format("imap_wal").option("decode", "true")
    for frame in (read.load(str(tmp_path)), read.option("mode", "latest").load(str(tmp_path))):
        (row,) = frame.collect()
        assert row["key_text"] == '"k"' and "paid" in row["value_text"]


@settings(
    max_examples=share(3),
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=st.lists(rivals.changes, min_size=15, max_size=40))
def test_spark_resolves_claims_like_every_other_reader(
    spark: Any, tmp_path: Path, history: list[tuple[str, str, int, int, int, str | None, int]]
) -> None:
    """Spark takes the same claims as every other reader, and keeps the same ones."""
    claims = rivals.as_rows(history)
    winners, in_conflict = rivals.expected(claims)
    root = tmp_path / f"rivals-{len(list(tmp_path.iterdir()))}"
    store = open_store(str(root))
    for writer in rivals.NODES:
        writing = node(store, writer)
        for row in [row for row, of in claims if of == writer]:
            append(writing, row)
            writing.rotate()
        writing.close()
    log = cluster(store)
    found = []
    for engine in (LocalEngine(SMALL), SparkEngine(spark)):
        plan = prepare(log)
        result = engine.run(plan, log)
        parts = [part for item in result.maps for part in item.parts]
        counts = [
            sum(getattr(part, name) for part in parts)
            for name in ("live", "tombstones", "conflicts")
        ]
        found.append(([row for part in parts for row in parquet_rows(store, part.path)], counts))
        discard(log, plan)
    assert found[0] == found[1]
    assert found[0][1][2] == len(in_conflict)
    run(log, SparkEngine(spark))
    rivals.check_readers(log, winners, in_conflict)
    living = {
        (key, row[VALUE])
        for key, (row, _) in winners.items()
        if row[VALUE] is not None and not row[EXPIRES_AT_MS]
    }
    latest = (
        spark.read.format("imap_wal")
        .option("mode", "latest")
        .option("buckets", "2")
        .load(str(root))
    )
    assert {(bytes(row["key"]), bytes(row["value"])) for row in latest.collect()} == living


def test_conflicting_keys_do_not_stop_spark_jobs(spark: Any, tmp_path: Path) -> None:
    """Keys that two nodes claim stop no Spark job, and `resolve` decides them."""
    store = open_store(str(tmp_path))
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    append(node(store, "n2"), put("a", "2", (1, 1, 1, 2)))
    (done,) = run(cluster(store), SparkEngine(spark)).maps
    assert (done.live, done.tombstones, done.undecided) == (1, 1, 1)
    assert values(view(store)) == {"a": "1"}
    (done,) = run(cluster(store), SparkEngine(spark), resolve=Resolution("n2")).maps
    assert (done.live, done.tombstones, done.undecided, done.conflicts) == (1, 0, 0, 1)
    assert values(view(store)) == {"a": "2"}


def test_damage_is_raised_as_our_own_error(spark: Any, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "damage"))
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 2)))
    (first, *_) = sorted((tmp_path / "damage").rglob("*.wal"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(bytes(data))
    with pytest.raises(CorruptLog) as caught:
        run(cluster(store), SparkEngine(spark))
    assert caught.value.file.endswith("00000001-00000001.wal") and caught.value.offset > 0
    assert store.list("ns/c/snapshot") == []


def test_a_snapshot_with_a_damaged_part_is_not_rewritten(spark: Any, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    run(cluster(store), LocalEngine(SMALL))
    before = cluster(store).manifest().snapshots["orders"]
    (path,) = before.paths
    overwrite(store, path, bytes(store.size(path)))
    append(log, put("b", "1", (1, 1, 1, 2)))
    with pytest.raises(CorruptLog, match="snapshot"):
        run(cluster(store), SparkEngine(spark))
    assert cluster(store).manifest().snapshots["orders"] == before


def test_a_dropped_tombstone_of_a_snapshot_still_voids_older_changes(
    spark: Any, tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    first, second = node(store), node(store, "n2")
    born = IncarnationRecord("id", 1, find_cutoffs(cluster(store)).cuts)
    cluster(store).manifests.update(lambda now: replace(now, lifetimes=(born,)))
    append(second, put("a", None, (1, 2, 1, 1)))
    plan = prepare(cluster(store))  # a rewrite for which all changes are late
    late = replace(plan, settled=dict.fromkeys(plan.settled, START), versions=None)
    publish(cluster(store), late, LocalEngine(SMALL).run(late, cluster(store)))
    assert cluster(store).manifest().snapshots["orders"].tombstones == 1
    run(cluster(store), SparkEngine(spark))
    assert cluster(store).manifest().snapshots["orders"].tombstones == 0
    append(first, put("a", "late", (1, 1, 1, 1)))
    assert values(view(store)) == {}


def test_a_conflict_is_decided_as_the_local_engine_does(spark: Any, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    append(node(store), put("a", "1", (1, 1, 1, 1), timestamp_ms=2), put("b", "1", (1, 1, 1, 2)))
    append(node(store, "n2"), put("a", "2", (1, 1, 1, 2), timestamp_ms=1))
    report = run(cluster(store), SparkEngine(spark), resolve=Resolution())
    assert values(view(store)) == {"a": "1", "b": "1"}
    (lost,) = parquet_rows(store, report.maps[0].set_aside)
    assert (lost[0][3], lost[1]) == (b"2", "n2") and report.maps[0].conflicts == 1


def test_a_task_that_runs_twice_loses_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculation, or a stage that is tried again: two attempts at one range write at the same
    time; Spark takes the answer of one. Here the other one runs to its end after it, and before."""
    from pyspark_imap_wal import rewrite_engine

    store = open_store(str(tmp_path))
    log = node(store)
    append(log, *(put(f"k{number}", number, (1, 1, 1, number)) for number in range(20)))
    append(log, put("x", "1", (1, 1, 1, 99), "other"))
    once = rewrite_engine._answering

    def twice(*given: Any) -> Any:
        if not isinstance(given[1], Merging):
            return once(*given)

        def write(inputs: Any) -> Any:
            held = list(inputs)
            list(once(*given)(iter(held)))  # its answer is not used
            answer = list(once(*given)(iter(held)))
            list(once(*given)(iter(held)))
            yield from answer

        return write

    monkeypatch.setattr(rewrite_engine, "_answering", twice)
    report = run(cluster(store), SparkEngine(spark))
    assert {each.map: each.live for each in report.maps} == {"orders": 20, "other": 1}
    assert len(store.list("ns/c/snapshot")) > sum(len(each.files) for each in report.maps)
    left = prune(cluster(store)).snapshot_files
    assert left, "what the other attempts wrote"
    assert {file.path for file in store.list("ns/c/snapshot")} == {
        path for each in report.maps for path in each.files
    }
    assert len(values(view(store))) == 20 and values(view(store), "other") == {"x": "1"}


def test_two_answers_for_one_task_or_none_publish_nothing() -> None:
    answers = [TaskAnswer(1, "y", "b"), TaskAnswer(0, "x", "a")]
    assert taken(answers, 2) == ["a", "b"]
    with pytest.raises(LostRace, match="two attempts at task 0"):
        taken([*answers, TaskAnswer(0, "y", "a")], 2)
    with pytest.raises(LostRace, match=r"only tasks \[0, 1\] of 3 returned"):
        taken(answers, 3)


@thorough
def test_range_of_many_parts_is_complete_and_ordered(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of more than a thousand parts is whole and in key order. There are two ranges, of
    some 1,300 keys each."""
    from imap_wal.rewrite import part_writer
    from pyspark_imap_wal import rewrite_engine

    store = open_store(str(tmp_path))
    keys = [f"k{number:05d}" for number in range(2600)]
    append(node(store), *(put(key, key, (1, 1, 1, at)) for at, key in enumerate(keys)), frames=10)
    once = rewrite_engine._answering

    def small(*given: Any) -> Any:
        write = once(*given)

        def in_worker(inputs: Any) -> Any:
            from imap_wal.rewrite import part_writer

            part_writer.PART_ROWS_MAX, before = 1, part_writer.PART_ROWS_MAX
            try:
                yield from write(inputs)
            finally:
                part_writer.PART_ROWS_MAX = before

        return in_worker

    monkeypatch.setattr(rewrite_engine, "_answering", small)
    report = run(
        cluster(store), SparkEngine(spark, sizes=Sizes(range_bytes=100_000, group_rows=1300))
    )
    assert len(report.maps[0].files) == 2600 == report.maps[0].live
    ranges = Counter(path.split("part-")[1].split("-")[0] for path in report.maps[0].files)
    assert len(ranges) == 2 and min(ranges.values()) > 1000
    found = [
        row[KEY].decode() for path in report.maps[0].files for row, _ in parquet_rows(store, path)
    ]
    assert found == keys and part_writer.PART_ROWS_MAX > 1
    assert len(values(view(store))) == 2600


def test_a_rewrite_says_how_far_its_tasks_are(spark: Any, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    append(node(store), *(put(f"k{number}", "v", (1, 1, 1, number)) for number in range(100)))
    seen: list[StepProgress] = []
    run(cluster(store), SparkEngine(spark, progress=seen.append))
    last = {each.step: each for each in seen}
    assert list(last) == ["sorting", "merging"]
    assert all(each.tasks == each.tasks_total >= 1 for each in last.values())
    assert all(each.bytes == each.bytes_total > 0 for each in last.values())


def test_a_rewrite_reports_what_its_steps_read_and_wrote(spark: Any, tmp_path: Path) -> None:
    """Spark's page shows it, too, in the description of the jobs."""
    store = open_store(str(tmp_path))
    log = node(store)
    context = spark.sparkContext
    described: list[str] = []
    keep = context.setJobGroup
    context.setJobGroup = lambda group, what: (described.append(what), keep(group, what))
    try:
        for start in (0, 100):
            rows = (put(f"k{at}", "v" * 100, (1, 1, 1, start + at)) for at in range(1, 101))
            append(log, *rows)
            report = run(cluster(store), SparkEngine(spark))
    finally:
        del context.setJobGroup
    sorting, merging = report.steps
    assert (sorting.step, merging.step) == ("sorting", "merging")
    assert sorting.records_read == sorting.records_written == 100
    assert (merging.records_read, merging.records_written) == (200, 100), "with the former snapshot"
    written = sum(each.bytes_written for each in report.maps)
    assert merging.bytes_written == written > 0
    assert sorting.bytes_read > 100 * 100 and merging.bytes_read > written
    assert all(each.memory_max_bytes > 2**20 and each.tasks >= 1 for each in report.steps)
    assert described[-1].startswith("imap-wal: merging, 1 tasks, ")
    assert "; sorting read 100 records, " in described[-1]


def test_what_is_tried_again_counts_once() -> None:
    answers = [
        TaskAnswer(task, f"attempt {task}", bytes_read=5, bytes_written=3, memory_max_bytes=task)
        for task in (1, 0, 1)
    ]
    found = report_of("merging", answers, [(7, 2), (7, 2)], 1.5)
    assert found == StepReport("merging", 2, 1.5, 14, 10, 4, 6, 1)


def test_a_large_log_is_written_in_ranges_of_keys(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    log = node(store)
    keys = [f"k{number * 7919 % 3000:05d}" for number in range(3000)]
    append(log, *(put(key, key, (1, 1, 1, number)) for number, key in enumerate(keys)), frames=10)
    report = run(
        cluster(store), SparkEngine(spark, sizes=Sizes(range_bytes=50_000, group_rows=500))
    )
    assert len(report.maps[0].files) > 1 and report.maps[0].live == 3000
    found = [
        row[KEY].decode() for path in report.maps[0].files for row, _ in parquet_rows(store, path)
    ]
    assert found == sorted(keys)
    assert len(values(view(store))) == 3000


def test_memory_of_this_process_is_refused(memory: MemoryStore) -> None:
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    with pytest.raises(InvalidSetting, match="--engine local"):
        rewrite(cluster(memory), SparkEngine())


def test_workers_run_the_interpreter_of_this_process(spark: Any) -> None:
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    ours = Path(sys.executable).parent
    environment = spark._jvm.System.getenv()
    found = shutil.which(environment["PYSPARK_DRIVER_PYTHON"], path=environment["PATH"])
    assert found is not None and Path(found).parent == ours
    assert os.environ["PATH"] == environment["PATH"].removeprefix(f"{ours}{os.pathsep}")
