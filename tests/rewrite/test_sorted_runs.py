"""A rewrite in tasks: files become sorted runs, ranges of runs become part files."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imap_wal.read.file_scan import SNAPSHOT, FileScan
from imap_wal.rewrite import part_writer
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.columns.merge import MergeSpan
from imap_wal.rewrite.plan import prepare
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.sorted_runs import SortedRun, grouped, touched_by
from imap_wal.settings import Settings
from pyspark_imap_wal import rewrite_engine
from storage_backends.memory import MemoryStore
from tests import histories
from tests.histories import put
from tests.kit.effort import share, thorough
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.rewrites import archive
from tests.kit.task_engine import TINY, ComparedTasks, TaskEngine

_numbers = itertools.count()
SMALL = Settings(preallocate=False, segment_bytes=1 << 20)


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have few rows."""
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 2)


@settings(
    max_examples=share(50),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=histories.steps, tight=st.booleans(), by_columns=st.booleans())
def test_tasks_agree_with_rows_over_random_histories(
    monkeypatch: pytest.MonkeyPatch,
    history: list[tuple[str, int, int, int]],
    tight: bool,
    by_columns: bool,
) -> None:
    """Tombstones, expiry, clears, two nodes, partitions that move, lifetimes, archives, drops."""
    monkeypatch.setattr(merge, "COLUMN_ROWS", 1 if by_columns else 4096)
    memory = Settings(restore_memory_bytes=4000) if tight else Settings()
    monkeypatch.setattr(rewrite_engine, "SETTINGS", memory)
    monkeypatch.setattr(histories, "LocalEngine", ComparedTasks)
    histories.play_and_maintain(f"tasks-{next(_numbers)}", history, SMALL)


def filled(memory: MemoryStore, seed: int, keys: int = 60) -> dict[str, str]:
    """A log of two nodes with archives and segments; returns what it has."""
    chance, expected = random.Random(seed), {}
    logs = [node(memory), node(memory, "n2")]
    for request in range(1, 200):
        key, at = f"k{chance.randrange(keys):03d}", chance.randrange(2)
        value = None if chance.random() < 0.2 else str(request)
        append(logs[at], put(key, value, (1, request, 1, request)))
        expected[key] = value
        if chance.random() < 0.05:
            archive(memory, logs[at])
    return {key: value for key, value in expected.items() if value is not None}


@thorough
def test_a_small_change_keeps_the_other_ranges(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, *(put(f"k{number:03d}", "1", (1, 1, 1, number)) for number in range(100)))
    rewrite(cluster(memory), TaskEngine())
    append(log, put("k050", "2", (1, 1, 1, 100)))
    report = rewrite(cluster(memory), TaskEngine()).maps[0]
    assert report.records_kept >= 90 and report.live == 100
    snapshot = cluster(memory).manifest().snapshots["orders"]
    lowers = [bytes.fromhex(file.border) for file in snapshot.files]
    assert lowers == sorted(set(lowers)) and len(lowers) == len(snapshot.files) > 10
    assert values(view(memory))["k050"] == "2" and len(values(view(memory))) == 100


@thorough
def test_parts_of_ranges_are_in_key_order(memory: MemoryStore, seed: int) -> None:
    expected = filled(memory, seed)
    report = rewrite(cluster(memory), TaskEngine())
    assert len(report.maps[0].files) > 5
    assert values(view(memory)) == expected


def test_a_dry_run_writes_nothing(memory: MemoryStore, seed: int) -> None:
    expected = filled(memory, seed)
    before = {file.path: file.size for file in memory.list("")}
    report = rewrite(cluster(memory), TaskEngine(), dry_run=True)
    assert {file.path: file.size for file in memory.list("")} == before
    assert report.maps[0].live == len(expected)


def test_runs_of_a_failed_rewrite_are_deleted(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    filled(memory, seed)

    def fails(*_: Any) -> None:
        assert [file for file in memory.list("") if "/run-" in file.path]
        raise RuntimeError("a defect")

    monkeypatch.setattr(TaskEngine, "_ranges", fails)
    with pytest.raises(RuntimeError, match="a defect"):
        rewrite(cluster(memory), TaskEngine())
    assert not list(memory.list("ns/c/snapshot"))


def test_each_file_is_sorted_by_one_task(memory: MemoryStore, seed: int) -> None:
    from imap_wal.read.scan_list import cluster_scans

    filled(memory, seed)
    scans = cluster_scans(prepare(cluster(memory), dry_run=True).state, snapshots=False)
    groups = grouped(scans, 2, TINY)
    assert len(groups) > 1
    assert sorted(scan.path for group in groups for scan in group) == sorted(
        scan.path for scan in scans
    )


@pytest.mark.parametrize(
    ("span", "groups"),
    [
        (MergeSpan(), (0, 1, 2)),
        (MergeSpan(b"", b"b"), ()),
        (MergeSpan(b"b", b"c"), (0,)),
        (
            MergeSpan(b"d", b"e"),
            (0, 1),
        ),  # a key may be at the end of one group and the start of the next
        (MergeSpan(b"e", b"g"), (1,)),
        (MergeSpan(b"h"), (2,)),
        (MergeSpan(b"i"), ()),
    ],
)
def test_groups_that_overlap_a_span_are_read(span: MergeSpan, groups: tuple[int, ...]) -> None:
    run = SortedRun(FileScan(SNAPSHOT, "", "run"), False, (b"b", b"d", b"g"), (1, 1, 1), b"h")
    assert run.groups(span) == groups


def test_touched_ranges_are_those_with_a_key() -> None:
    import pyarrow as pa

    lowers = [b"", b"c", b"f", b"k"]
    assert touched_by(lowers, pa.array([b"a", b"b"], pa.binary())) == {0}
    assert touched_by(lowers, pa.array([b"c", b"e", b"m"], pa.binary())) == {1, 3}
    assert touched_by(lowers, pa.array([], pa.binary())) == set()
