"""A map as a Delta table, as its log says; `test_readers.py` reads it with other programs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from imap_wal import format
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.entry import clear_of, pack
from imap_wal.errors import CorruptLog, InvalidSetting, ShortLog
from imap_wal.manifest import readers
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.readers import Reader
from imap_wal.publish import delta_log
from imap_wal.publish.delta_log import DeltaLog
from imap_wal.publish.lake_table import COLUMNS
from imap_wal.retention.kept import DAY_MS, kept_for_readers
from imap_wal.retention.snapshots import unfinished
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.prune import prune
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, node
from tests.kit.rewrites import run, snapshot
from tests.kit.tables import (
    FOLDER,
    commit,
    committed,
    kept,
    published,
    rows,
    table,
    tombstoned,
    written,
)
from tests.support import FakeClock


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
    prune(cluster(memory))
    assert rows(memory) == {"b": "new", "c": "3", "d": "4"}, "until the next publication"
    assert published(memory).rows == 0


def test_tombstones_are_no_rows(memory: MemoryStore) -> None:
    """A file that has some is copied without them. The copy stays as long as the file is kept. It
    is no file of a snapshot."""
    second = tombstoned(memory)
    assert run(memory).maps[0].tombstones == 1
    assert published(memory).copied == 1
    assert unfinished(cluster(memory)) is None
    assert not prune(cluster(memory), dry_run=True, orphan_ms=0).snapshot_files
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
    with pytest.raises(InvalidSetting, match="was written by a repair"):
        published(memory)
    change(mixed=False)
    name = sound.files[0].path
    change(files=Listed((sound.files[0]._replace(path=f"{name[:-7]}wal"),)))
    with pytest.raises(InvalidSetting, match="is no Parquet file"):
        published(memory)
    change(files=Listed((sound.files[0]._replace(rows=2),)))
    with pytest.raises(CorruptLog, match="has 2 rows, but its metadata has 1"):
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
    with pytest.raises(
        InvalidSetting, match=r"newer copy of the log .generation 9; this one has 1\). Drop"
    ):
        published(memory)
    for damage in (b"[]", b"{", b'{"commitInfo": 1}', b"\xff", b'{"add": {"path": 1}}'):
        memory.replace(second, damage)
        with pytest.raises(CorruptLog, match="not a readable commit of a Delta table"):
            published(memory)


def test_a_dry_run_publishes_nothing(memory: MemoryStore) -> None:
    written(node(memory), 1, a="1", b="2")
    run(memory)
    before = [file.path for file in memory.list("")]
    report = published(memory, dry_run=True)
    assert (report.version, report.rows, report.is_new) == (0, 2, True)
    assert [file.path for file in memory.list("")] == before


def test_snapshots_that_are_refused_are_not_kept(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    for number in range(1, 4):
        append(first, put("a", "1", (1, 0, 1, number)))
        append(second, put("a", "2", (1, 0, 1, number)))
        run(memory)
        with pytest.raises(InvalidSetting, match="two nodes claim"):
            published(memory)
    assert not kept(memory)


def test_a_reader_of_tables_is_registered_by_its_map(memory: MemoryStore) -> None:
    """After it was forgotten, nothing is kept; the next publication registers it again."""
    log = node(memory)
    written(log, 1, a="1")
    run(memory)
    published(memory)
    reader = "delta orders"
    made = cluster(memory)
    assert [*readers.readers_of(memory, made.folder)] == [reader]
    assert readers.forget(made.context, made.folder, reader)
    assert [*readers.readers_of(memory, made.folder)] == []
    written(log, 2, a="2")
    run(memory)
    published(memory)
    (found,) = readers.readers_of(memory, made.folder).values()
    assert [base.snapshots["orders"].generation for base in found.bases] == [2]


def test_a_table_is_no_query_that_may_be_gone(memory: MemoryStore) -> None:
    """It has no log to read, so it stops no node from being forgotten. What a report advises keeps
    the table; the names are quoted."""
    clock = FakeClock()
    log = tombstoned(memory)
    run(memory)
    published(memory)
    written(log, 2, b="2")
    run(memory)
    log.close()
    assert not forget_node(cluster(memory), "n2", lose=False, dry_run=True).refused
    clock.advance(8 * DAY_MS)
    (kept_for,) = kept_for_readers(cluster(memory, clock))
    assert kept_for.is_stale
    assert "run `imap-wal publish` again; only if nothing reads" in kept_for.advice
    assert "`imap-wal prune --forget-reader 'delta orders'`" in kept_for.advice
    reader = Reader(
        Context(memory, clock=clock, randomness=SeededRandomness(1)), "ns/c", "delta other"
    )
    reader.begin({})
    refused = forget_node(cluster(memory), "n2", lose=False, dry_run=True).refused
    assert "--forget-reader 'delta other'` if it will not return" in refused


def test_clears_are_not_claimed_by_two_nodes(memory: MemoryStore) -> None:
    """They all have the empty key."""
    first, second = node(memory), node(memory, "n2")
    clears = [clear_of("orders", part, 271, 1, (1, 0, 1, part + 1)) for part in range(3)]
    first.write(format.CLEARS, len(clears), [*map(pack, clears)])
    first.sync()
    append(second, put("a", "1", (1, 9, 2, 1)), put("", "2", (1, 9, 2, 2)))
    run(memory)
    published(memory)
    assert rows(memory) == {"a": "1", "": "2"}


@pytest.mark.parametrize("content", [None, b"", b"PAR1", "cut"])
def test_a_lost_or_damaged_file_is_named(memory: MemoryStore, content: bytes | str | None) -> None:
    """Nothing is registered then."""
    written(node(memory), 1, a="1")
    run(memory)
    (path,) = snapshot(memory).paths
    whole = memory.read(path)
    if content is None:
        memory.delete(path)
    else:
        memory.replace(path, whole[:-9] if isinstance(content, str) else content)
    with pytest.raises(ShortLog if content is None else CorruptLog, match=path):
        published(memory)
    assert not kept(memory)
    if content is None:
        memory.create(path, whole)
    else:
        memory.replace(path, whole)
    published(memory)


def test_rewrites_of_other_maps_displace_no_version(memory: MemoryStore) -> None:
    """They change the marks of the snapshot, so a publication finds nothing new."""
    log, following = node(memory), 1
    for number in range(3):
        following = written(log, following, a=str(number))
        run(memory)
        published(memory, keep=2)
        for _ in range(2):
            append(log, put("x", "1", (1, 0, 1, following), "other"))
            following += 1
            run(memory)
            assert not published(memory, keep=2).is_new
    generations = [base.snapshots["orders"].generation for base in kept(memory)]
    assert generations == committed(memory)[-2:]


def test_the_condition_of_live_entries_runs(memory: MemoryStore) -> None:
    """In DuckDB; `tests/spark` runs that of Spark."""
    first = node(memory)
    append(first, put("a", "1", (1, 0, 1, 1)), put("b", "1", (1, 0, 1, 2), expires_at_ms=1))
    append(first, put("c", "1", (1, 0, 1, 3), expires_at_ms=2**52))
    run(memory, clock=FakeClock(0))
    live = published(memory).live["DuckDB"]
    (path,) = table(memory).files
    data = pq.read_table(io.BytesIO(memory.read(f"{FOLDER}/{path}")))
    assert len(data) == 3
    keys = duckdb.execute(f"select key from data where {live} order by key").fetchall()
    assert keys == [(b"a",), (b"c",)]


def test_files_have_the_bounds_of_each_column_that_is_compared(memory: MemoryStore) -> None:
    """So other programs skip files and row groups. No query compares values."""
    written(node(memory), 1, a="1", b="2")
    run(memory)
    published(memory)
    (content,) = table(memory).files.values()
    said = json.loads(content["stats"])
    longs = {name for name, kind in COLUMNS.items() if kind == "long"}
    assert said["minValues"].keys() == said["maxValues"].keys() == longs
    assert (said["minValues"]["request"], said["maxValues"]["request"]) == (1, 2)
    (path,) = snapshot(memory).paths
    group = pq.read_metadata(io.BytesIO(memory.read(path))).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if not column.is_stats_set} == {"value"}
