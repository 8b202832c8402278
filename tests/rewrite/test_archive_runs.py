"""Archives that are sorted by key are runs of a rewrite in tasks: nothing of them is written
again."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal.errors import CorruptLog, StorageUnavailable
from imap_wal.format import Position
from imap_wal.parquet import archive_rows
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.rewrite import part_writer, sorted_runs, task_engine
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.columns.sources import Sources
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import RewritePlan
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.sorted_runs import Sizes, read_directly
from imap_wal.settings import Settings
from pyspark_imap_wal import rewrite_engine
from storage_backends.memory import MemoryStore
from tests import histories
from tests.histories import put
from tests.kit import rivals
from tests.kit.effort import share, thorough
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.reading_threads import reading_threads
from tests.kit.rewrites import archive, members, snapshot
from tests.kit.row_engine import ComparedEngine
from tests.kit.task_engine import ComparedTasks, TaskEngine
from tests.kit.wrong_order import break_order

_numbers = itertools.count()
SMALL = Settings(preallocate=False, segment_bytes=1 << 20)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small archives are runs too, and files have few rows."""
    monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    monkeypatch.setattr(sorted_runs, "is_absorbable", lambda *_: False)
    monkeypatch.setattr(archive_rows, "GROUP_ROWS", 2)
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 2)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """The row groups of archives that a range reads."""
    found: list[tuple[str, tuple[int, ...]]] = []

    class Watched(merge.ColumnMerge):
        def read_runs(self, runs: Iterable[tuple[FileScan, Any, bool]]) -> None:
            every = [*runs]
            found.extend(
                (scan.path, tuple(groups)) for scan, groups, _ in every if scan.kind == ARCHIVE
            )
            super().read_runs(every)

    monkeypatch.setattr(task_engine, "ColumnMerge", Watched)
    return found


@settings(
    max_examples=share(25),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=histories.steps, tight=st.booleans())
def test_archives_as_runs_agree_with_rows(
    monkeypatch: pytest.MonkeyPatch, history: list[tuple[str, int, int, int]], tight: bool
) -> None:
    """Tombstones, expiry, clears, two nodes, partitions that move, lifetimes, archives, drops."""
    memory = Settings(restore_memory_bytes=4000) if tight else Settings()
    monkeypatch.setattr(rewrite_engine, "SETTINGS", memory)
    monkeypatch.setattr(histories, "LocalEngine", ComparedTasks)
    histories.play_and_maintain(f"runs-{next(_numbers)}", history, SMALL)


@settings(
    deadline=None,
    max_examples=share(25),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    history=st.lists(rivals.changes, min_size=2, max_size=25),
    order=st.randoms(use_true_random=False),
    names_one=st.booleans(),
)
def test_archives_as_runs_agree_if_nodes_conflict(
    history: list[Any], order: random.Random, names_one: bool
) -> None:
    claims = rivals.as_rows(history)
    winners, in_conflict = rivals.expected(claims)
    with rivals.logs(claims, order) as store:
        log = cluster(store)
        for _ in range(2):
            report = rewrite(log, ComparedTasks(), skew_ms_max=2**60)
            assert sum(each.undecided for each in report.maps) == len(in_conflict)
            rivals.check_readers(log, winners, in_conflict)
    with rivals.logs(claims, order) as store:
        resolution = Resolution("n2") if names_one else Resolution()
        report = rewrite(cluster(store), ComparedTasks(), skew_ms_max=2**60, resolve=resolution)
        assert sum(each.undecided for each in report.maps) == 0


def filled(memory: MemoryStore) -> dict[str, str]:
    """Two archives of other keys of the same range, and a segment."""
    log, expected = node(memory), {}
    requests = itertools.count(1)
    for first in (0, 1, 2):
        rows = [
            put(f"k{key:03d}", f"{first}", (1, 1, 1, next(requests))) for key in range(first, 60, 3)
        ]
        append(log, *rows)
        expected |= {f"k{key:03d}": f"{first}" for key in range(first, 60, 3)}
        if first < 2:
            archive(memory, log)
    return expected


def test_an_archive_is_not_written_again(memory: MemoryStore, read: list[Any]) -> None:
    expected = filled(memory)
    report = rewrite(cluster(memory), TaskEngine())
    assert report.steps[0].records_read == 60
    assert report.steps[0].records_written == 20, "only the segment was sorted"
    assert {path for path, _ in read} == set(archives(memory))
    assert values(view(memory)) == expected


@thorough
def test_a_range_reads_only_row_groups_that_overlap_it(
    memory: MemoryStore, read: list[Any]
) -> None:
    filled(memory)
    rewrite(cluster(memory), TaskEngine())
    assert len(read) > 6
    assert all(len(groups) < 10 for _, groups in read), "an archive has ten"


def test_archives_are_there_after_the_rewrite(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    filled(memory)
    before = archives(memory)
    rewrite(cluster(memory), TaskEngine())
    assert "is to be deleted" not in caplog.text
    assert archives(memory) == before and len(before) == 2
    assert not [file for file in memory.list("") if "/run-" in file.path]


def archives(memory: MemoryStore) -> list[str]:
    return sorted(file.path for file in memory.list("") if "/archive/" in file.path)


def test_a_wrong_promise_of_an_order_loses_nothing(memory: MemoryStore) -> None:
    """An archive says that it is sorted by key, and it is in the order of the log."""
    log = node(memory)
    keys = [f"k{(key * 7) % 20:03d}" for key in range(20)]
    append(log, *(put(key, "1", (1, 1, 1, number)) for number, key in enumerate(keys, 1)))
    archive(memory, log)
    path = break_order(memory, log.manifests)
    with pytest.raises(CorruptLog, match="not sorted by key") as raised:
        rewrite(cluster(memory), TaskEngine())
    assert path in str(raised.value)
    rewrite(cluster(memory), ComparedEngine(SMALL))
    assert values(view(memory)) == dict.fromkeys(keys, "1")


@pytest.mark.parametrize("engine", [LocalEngine, TaskEngine])
def test_an_error_between_two_batches_leaves_no_thread(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    """A thread that reads ahead would keep the process from ending."""
    log = node(memory)
    append(log, *(put(f"k{key:03d}", "1", (1, 1, 1, key)) for key in range(1, 21)))
    archive(memory, log)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for where, name in ((Sources, "add_columns"), (sorted_runs, "_decrease")):
        monkeypatch.setattr(where, name, full)
    with pytest.raises(StorageUnavailable):
        rewrite(cluster(memory), engine())
    assert not reading_threads()


def test_late_rows_of_an_archive_keep_their_tombstones(memory: MemoryStore) -> None:
    """An older change may follow a tombstone that was appended after the first look at the ends."""
    members(memory)
    log = node(memory)
    keys = range(1, 21)
    append(log, *(put(f"k{key:03d}", "1", (1, 1, 1, key)) for key in keys), frames=1)
    append(log, *(put(f"k{key:03d}", None, (1, 1, 1, 20 + key)) for key in keys), frames=1)
    archive(memory, log)
    (found,) = log.manifests.read()[1].archives
    early = Position(found.last.epoch, found.last.segment, found.last.frame, 0)

    class Early(TaskEngine):
        settled = early

        def run(self, plan: RewritePlan, log: Any) -> Any:
            return super().run(replace(plan, settled={"n1": self.settled}), log)

    rewrite(cluster(memory), Early())
    assert snapshot(memory).tombstones == 20
    Early.settled = found.last
    rewrite(cluster(memory), Early())
    assert snapshot(memory).tombstones == 0


@thorough
def test_rows_that_a_former_snapshot_covers_do_not_count(memory: MemoryStore) -> None:
    """One archive has rows below and above the mark: only those above are new."""
    log = node(memory)
    append(log, *(put(f"k{key:03d}", "1", (1, 1, 1, key)) for key in range(40)))
    rewrite(cluster(memory), TaskEngine())
    append(log, put("k001", "2", (1, 1, 1, 41)), put("k002", None, (1, 1, 1, 42)))
    archive(memory, log)
    report = rewrite(cluster(memory), ComparedTasks()).maps[0]
    assert report.records_kept >= 30, "ranges without new rows are kept"
    assert values(view(memory))["k001"] == "2" and "k002" not in values(view(memory))


def test_a_decision_about_a_conflict_counts_in_archives(memory: MemoryStore) -> None:
    for name, value in (("n1", "x"), ("n2", "y"), ("n3", "z")):
        log = node(memory, name)
        append(log, put("a", value, (1, 1, 1, 1)), put(f"of {name}", "1", (1, 1, 1, 2)))
        archive(memory, log)
    report = rewrite(cluster(memory), TaskEngine(), resolve=Resolution("n2"))
    assert report.maps[0].undecided == 0 and report.steps[0].records_written == 0
    assert values(view(memory))["a"] == "y"


def test_only_large_sorted_archives_of_small_maps_are_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    full = FileScan(ARCHIVE, "n1", "a", "m", bytes=30 << 20, records=60_000, unpacked=64 << 20)

    def chosen(*scans: FileScan, ranges_max: int = 32) -> set[str]:
        return set(read_directly(scans, Sizes(ranges_max=ranges_max)))

    assert chosen(full) == {"a"}
    assert chosen(replace(full, unpacked=0)) == set(), "its size is unknown"
    assert chosen(replace(full, unpacked=31 << 20)) == set(), "it may be absorbed"
    assert chosen(replace(full, kind="segment")) == set()
    others = [replace(full, path=f"b{number}", map="other") for number in range(65)]
    assert chosen(full, *others, ranges_max=1) == {"a"}, "too many ranges"


BOUND = 32 << 20
WORK = f"""
import sys
from imap_wal.context import Context, open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite import sorted_runs
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.columns.sources import Sources
from imap_wal.rewrite.report import memory_max_bytes
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.sorted_runs import Sizes
from imap_wal.settings import Settings
from pyspark_imap_wal import rewrite_engine
from imap_wal.placement import open_store
from tests.kit.task_engine import TaskEngine

merge.COLUMN_ROWS = 1
sorted_runs.is_absorbable = lambda *_: False
rewrite_engine.SETTINGS = Settings(restore_memory_bytes={BOUND})
log = ClusterLog(open_context(sys.argv[1]), "default", "embedded")
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")  # reset the peak
base = memory_max_bytes()
size = {BOUND} * int(sys.argv[2]) // 2
report = rewrite(log, TaskEngine(Sizes(range_bytes_min=size, range_bytes=size, ranges_max=64)))
sorting, merging = report.steps
assert sorting.records_written == 0 and merging.tasks > 8 // int(sys.argv[2])
print(report.maps[0].live, memory_max_bytes() - base)
"""


@thorough
@pytest.mark.parametrize("halves", [1, 8])
def test_the_memory_of_a_task_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halves: int
) -> None:
    """Archives, each with keys of all ranges, have several times as many bytes as a task may have
    in memory. So has a range, or it has half as many."""
    monkeypatch.undo()  # row groups as usual
    value, rounds, keys = "v" * 16_384, 24, 1_000
    with imap_wal.open(str(tmp_path), auto_rewrite_percentage=0, durability="os") as store:
        for turn in range(rounds):
            store.map("big").update({f"{key:06d}-{turn}": value + str(key) for key in range(keys)})
            store.archive()
    done = subprocess.run(
        [sys.executable, "-c", WORK, tmp_path.as_uri(), str(halves)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    live, used = map(int, done.stdout.split())
    assert live == rounds * keys
    assert used < BOUND + (192 << 20), f"{used >> 20} MiB of {rounds * keys * len(value) >> 20}"
