"""A stream has every entry exactly once. Without Spark's JVM: the tests are the engine that calls
the reader. `test_streaming.py` has Spark itself."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.entry import ORDER
from imap_wal.errors import CorruptLog, InvalidSetting, MissingNode, PositionGone
from imap_wal.format import Position
from imap_wal.manifest import readers
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import Scope
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.offsets import Offset
from storage_backends import SegmentStore, open_store
from storage_backends.memory import MemoryStore, forget
from tests.histories import Cluster, put, steps
from tests.kit.effort import share
from tests.kit.logs import SMALL, append, cluster, node
from tests.kit.stream_engine import Engine, Line, archive, reader

pytestmark = pytest.mark.spark
_numbers = itertools.count()


def everything(log: ClusterLog) -> set[Line]:
    """All entries that are there, by place."""
    return {
        (changes.node, *place, row[ORDER][3])
        for changes in log.changes(scope=Scope(snapshots=False, covered=True), positions=True)
        for row, place in zip(changes.rows, changes.positions or (), strict=True)
    }


@settings(
    max_examples=share(30),
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(history=steps)
def test_a_stream_has_every_entry_once_over_random_histories(
    history: list[tuple[str, int, int, int]],
) -> None:
    """Beside archive runs, rewrites, prunes and restarts, with limits of rows."""
    name = f"stream-{next(_numbers)}"
    played = Cluster(MemoryStore(name))
    engine = Engine(f"memory://{name}", reader="test")
    played.play([("put", 0, 0, 0)])
    found = engine.batch()  # before any snapshot, which has the newest of each key only
    there = everything(played.log)
    try:
        for number, (kind, at, of, key) in enumerate(history):
            if kind in ("lifetime", "drop"):
                continue
            there |= everything(played.log)
            played.play([(kind, at, of, key)])
            if number % 7 == 3:
                found += engine.batch(rows_max=number % 4)
            if number % 31 == 30:
                found += engine.rest(rows_max=2)
        there |= everything(played.log)
        found += engine.rest()
        assert len(found) == len({*found}), "an entry came twice"
        assert {*found} == there
        for kind in ("rewrite", "prune"):
            played.step(kind, "n1", "orders", b"k0")
        assert engine.rest() == []
    finally:
        engine.reader.stop()
        played.close()
        forget(name)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return open_store(str(tmp_path))


def requests(lines: list[Line]) -> list[int]:
    return sorted(line[-1] for line in lines)


def test_a_first_batch_is_the_snapshot_and_what_follows_it(store: SegmentStore) -> None:
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    log.rotate()
    append(log, put("a", "2", (1, 1, 1, 3)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    prune(cluster(store))
    append(log, put("c", "1", (1, 1, 1, 4)))
    engine = Engine(store.url)
    assert requests(engine.batch(rows_max=1)) == [2, 3, 4]
    append(log, put("a", "3", (1, 1, 1, 5)))
    assert requests(engine.rest()) == [5]


def test_progress_has_the_end_of_the_log(store: SegmentStore) -> None:
    """Not that of the batch, which may have a limit."""
    log = node(store)
    stream = reader(store.url)
    start = stream.initialOffset()
    assert stream.reportLatestOffset() is None, "no batch was planned"
    for request in range(1, 6):
        append(log, put("a", str(request), (1, 1, 1, request)))
    planned = Offset.from_json(stream.latestOffset(start, ReadMaxRows(2)))
    reported = stream.reportLatestOffset()
    assert reported is not None
    assert Offset.from_json(reported).nodes == {"n1": log.end}
    assert planned.nodes["n1"] < log.end
    stream.prepareForTriggerAvailableNow()
    append(log, put("a", "6", (1, 1, 1, 6)))
    assert Offset.from_json(stream.latestOffset(start)).nodes["n1"] < log.end
    reported = stream.reportLatestOffset()
    assert reported is not None and Offset.from_json(reported).nodes == {"n1": log.end}


def test_a_stream_of_a_wholly_pruned_log_continues(store: SegmentStore) -> None:
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.close()
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    prune(cluster(store), unsealed={"n1": 2**62})
    engines = [Engine(store.url), Engine(store.url, starting="latest")]
    assert [requests(engine.rest()) for engine in engines] == [[1], []]
    append(node(store), put("a", "2", (1, 1, 1, 2)))
    assert [requests(engine.rest()) for engine in engines] == [[2], [2]]


def test_a_crash_in_the_first_batch_of_latest_skips_nothing(store: SegmentStore) -> None:
    """Spark does not keep the offset of a new query, and asks for it again."""
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    engine = Engine(store.url, starting="latest")
    end = engine.reader.latestOffset(engine.start, None)
    append(log, put("a", "2", (1, 1, 1, 2)))
    again = Engine(store.url, starting="latest")
    assert again.start == engine.start and again.lines(end) == []
    again.start = end
    assert requests(again.rest()) == [2]


def test_a_first_batch_is_not_read_from_other_snapshots(store: SegmentStore) -> None:
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    engine = Engine(store.url)
    end = engine.reader.latestOffset(engine.start)
    append(log, put("a", "2", (1, 1, 1, 2)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    with pytest.raises(InvalidSetting, match="start the query again"):
        engine.lines(end)


def test_a_batch_follows_a_segment_into_its_archive(store: SegmentStore) -> None:
    log = node(store)
    engine = Engine(store.url)
    append(log, *(put(f"k{at}", at, (1, 1, 1, at)) for at in range(10)), frames=5)
    log.rotate()
    assert len(engine.batch(rows_max=4, between=lambda: archive(log))) == 4
    assert len(engine.batch(rows_max=4)) == 4
    assert len(engine.rest()) == 2


def test_a_batch_has_about_as_many_bytes_as_it_may(store: SegmentStore) -> None:
    """Stored bytes count, so those of an archive are compressed. A batch has at least a commit."""
    log, engine = node(store), Engine(store.url)
    assert reader(store.url, bytes_per_batch="7").getDefaultReadLimit() == ReadMaxBytes(7)
    for request in range(1, 7):
        append(log, put(f"k{request}", "x" * 500, (1, 1, 1, request)))
    one = (log.unsealed_bytes) // 6
    assert requests(engine.batch(bytes_max=2 * one + one // 2)) == [1, 2]
    assert requests(engine.batch(bytes_max=1)) == [3]
    log.rotate()
    archive(log)
    (archived,) = log.manifests.read()[1].archives
    assert requests(engine.batch(bytes_max=archived.bytes // 6)) == [4]
    assert requests(engine.batch(bytes_max=archived.bytes // 2)) == [5, 6]


def test_a_pruned_stream_fails_and_names_the_remedy(store: SegmentStore) -> None:
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    engine = Engine(store.url)
    assert len(engine.batch()) == 1
    for number in (2, 3):
        append(log, put("a", number, (1, 1, 1, number)))
        log.rotate()
    append(log, put("b", "1", (1, 1, 1, 9)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    prune(cluster(store))
    with pytest.raises(PositionGone, match="option `reader`"):
        engine.batch()


def test_prune_keeps_what_a_registered_stream_has_not_read(store: SegmentStore) -> None:
    log = node(store)
    engine = Engine(store.url, reader="daily")
    for number in (1, 2, 3):
        append(log, put("a", number, (1, 1, 1, number)))
        log.rotate()
    append(log, put("b", "1", (1, 1, 1, 9)))
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    assert prune(cluster(store)).segments == ()
    assert requests(engine.batch(rows_max=1)) == [3, 9], "the snapshot"
    assert len(prune(cluster(store)).segments) == 3
    readers.forget(
        cluster(store).context,
        "ns/c",
        "daily",
    )
    with pytest.raises(InvalidSetting, match="forgotten"):
        engine.batch()


def test_available_now_ends_where_the_log_ended(store: SegmentStore) -> None:
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    engine = Engine(store.url)
    engine.reader.prepareForTriggerAvailableNow()
    append(log, put("a", "2", (1, 1, 1, 2)))
    end = engine.reader.latestOffset(engine.start, None)
    assert requests(engine.lines(end)) == [1]
    assert engine.reader.latestOffset(end, None) == end


def test_entries_voided_after_they_were_read_are_named(store: SegmentStore) -> None:
    """A lifetime whose cut is before what the stream has read."""
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    cuts = find_cutoffs(cluster(store)).cuts
    append(log, put("a", "2", (1, 1, 1, 2)), put("b", "1", (1, 1, 1, 3)))
    engine = Engine(store.url)
    assert len(engine.batch()) == 3
    born = IncarnationRecord("id", 2, cuts)
    cluster(store).manifests.update(lambda now: replace(now, lifetimes=(born,)))
    append(log, put("c", "1", (2, 1, 1, 1)))
    with pytest.raises(CorruptLog, match=r"2 entries that this stream has read.*voided=ignore"):
        engine.batch()
    going_on = Engine(store.url, voided="ignore")
    going_on.start = engine.start
    assert len(going_on.batch()) == 1


def test_another_log_under_a_node_s_name_ends_a_stream(store: SegmentStore) -> None:
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    engine = Engine(store.url)
    engine.batch()
    engine.start["directories"]["n1"] = "another"
    with pytest.raises(MissingNode, match="log directory another"):
        engine.batch()


def test_a_stream_starts_at_given_positions(store: SegmentStore) -> None:
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    place = log.end
    append(log, put("a", "2", (1, 1, 1, 2)))
    assert requests(Engine(store.url, starting=json.dumps({"n1": str(place)})).rest()) == [2]
    assert isinstance(place, Position)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"starting": "now"}, "starting"),
        ({"rows_per_batch": "none"}, "rows_per_batch"),
        ({"bytes_per_batch": "1MB"}, "bytes_per_batch"),
        ({"rows_per_batch": "1", "bytes_per_batch": "1"}, "exclude each other"),
        ({"voided": "maybe"}, "voided"),
        ({"mode": "latest"}, "no mode"),
        ({"node": "n1"}, "no node"),
        (
            {"namespace": "other"},
            r"select no log under .*; found: ns/c",
        ),
    ],
)
def test_wrong_options_of_a_stream_are_named(
    store: SegmentStore, options: dict[str, str], word: str
) -> None:
    append(node(store), put("a", "1", (1, 1, 1, 1)))
    with pytest.raises(InvalidSetting, match=word):
        reader(store.url, **options).initialOffset()


def test_an_empty_log_gives_an_empty_batch(store: SegmentStore) -> None:
    log = node(store)
    engine = Engine(store.url)
    assert engine.batch() == [] and engine.start["start"] == "earliest"
    append(log, put("a", "1", (1, 1, 1, 1)))
    assert len(engine.rest()) == 1
