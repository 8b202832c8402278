"""The local engine in several processes."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from imap_wal.errors import CorruptLog, StorageUnavailable
from imap_wal.parquet import archive_rows
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, FileScan
from imap_wal.retention.other_process import ProcessDied
from imap_wal.retention.processes import processes
from imap_wal.rewrite import local_engine, part_writer, sorted_runs
from imap_wal.rewrite.columns import merge
from imap_wal.rewrite.local_engine import LocalEngine, ProcessEngine, useful_processes
from imap_wal.rewrite.plan import Result, RewritePlan, prepare, rewrite_folder
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.task_engine import TaskAnswer, TaskWork
from imap_wal.settings import Settings
from storage_backends.local import LocalStore
from storage_backends.location import Location
from tests.histories import put
from tests.kit import process_works
from tests.kit.effort import every, thorough
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.process_works import Counted, Fails, Killed, Leaves
from tests.kit.rewrites import archive
from tests.kit.row_engine import RowEngine, compare
from tests.kit.task_engine import TINY, TaskEngine
from tests.kit.wrong_order import break_order
from tests.support import eventually

MIB = 1 << 20
NOW_MS = 1_700_000_000_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small archives are runs too, and files have few rows."""
    monkeypatch.setattr(merge, "COLUMN_ROWS", 1)
    monkeypatch.setattr(sorted_runs, "is_absorbable", lambda *_: False)
    monkeypatch.setattr(archive_rows, "GROUP_ROWS", 2)
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 2)


def filled(store: LocalStore, seed: int, requests: Iterator[int]) -> None:
    """Changes of three nodes and two maps, with tombstones and times to live, mostly archived."""
    chance = random.Random(seed)
    logs = [node(store, name) for name in ("n1", "n2", "n3")]
    for request in requests:
        key, name = f"k{chance.randrange(40):03d}", chance.choice(["orders", "items"])
        value = None if chance.random() < 0.2 else str(request)
        expires = chance.choice([0, 0, 0, 1000, 2**60]) if value else 0
        log = chance.choice(logs)
        append(log, put(key, value, (1, request, 1, request), name, expires_at_ms=expires))
        if chance.random() < 0.05 or request % 25 == 0:  # also with few changes more than one
            archive(store, log)
    for log in logs:
        log.close()


@thorough
@pytest.mark.parametrize("has_snapshot", [False, True])
def test_all_engines_agree(tmp_path: Path, small: None, seed: int, has_snapshot: bool) -> None:
    """Row by row, in one process, in tasks, and in tasks of two processes."""
    store = LocalStore(str(tmp_path))
    filled(store, seed, iter(range(1, 200)))
    log = cluster(store)
    if has_snapshot:
        rewrite(log, LocalEngine(), skew_ms_max=2**60)
        filled(store, seed + 1, iter(range(200, 260)))
    plan = prepare(log, maps=None, as_of_ms=None, dry_run=False, skew_ms_max=2**60)
    assert len([scan for scan in plan.log_scans() if scan.kind == ARCHIVE]) > 1
    expected = RowEngine().run(replace(plan, generation=plan.generation + 1000), log)

    class InTasks(TaskEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            return self._in_tasks(plan, log)

    engines: list[Any] = [LocalEngine(), InTasks(), ProcessEngine(Settings(), 2, sizes=TINY)]
    for number, engine in enumerate(engines, 2):
        result = engine.run(replace(plan, generation=plan.generation + 1000 * number), log)
        compare(result, expected, log)
        assert len(result.steps) == (0 if isinstance(engine, LocalEngine) else 2)
    assert not [file for file in store.list("") if "/run-" in file.path]


@thorough
def test_a_wrong_promise_of_an_order_is_a_clear_error(tmp_path: Path, small: None) -> None:
    store = LocalStore(str(tmp_path))
    log = node(store)
    keys = [f"k{(key * 7) % 20:03d}" for key in range(20)]
    append(log, *(put(key, "1", (1, 1, 1, number)) for number, key in enumerate(keys, 1)))
    archive(store, log)
    break_order(store, log.manifests)
    with pytest.raises(CorruptLog, match=r"not sorted by key.* --processes 1"):
        rewrite(cluster(store), _InTwo(), skew_ms_max=2**60)
    rewrite(cluster(store), LocalEngine(), skew_ms_max=2**60)
    assert values(view(store)) == dict.fromkeys(keys, "1")


class _InTwo(ProcessEngine):
    name = "local"

    def __init__(self) -> None:
        super().__init__(Settings(), 2, sizes=TINY)


@every(2)
@pytest.mark.parametrize("times", [1, 2])
def test_a_task_whose_process_is_killed_runs_once_more(tmp_path: Path, times: int) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    plan = _plan(tmp_path / "root")
    (tmp_path / "scratch").mkdir()
    settings = Settings(scratch=tmp_path / "scratch")
    with _tasks_in(plan, 1, settings) as two:
        work = Killed(str(gate), times)
        if times == 1:
            assert [each.result for each in two(work, ["a"])] == ["a"]
        else:
            error = r"ended with exit code -9; .*not used.*fewer --processes"
            with pytest.raises(ProcessDied, match=error):
                list(two(work, ["a"]))
    assert len(list(gate.iterdir())) == 2
    assert not list((tmp_path / "scratch").iterdir())


@thorough
def test_each_attempt_has_an_empty_folder(tmp_path: Path) -> None:
    """A killed attempt leaves files, which would take space until the end of the rewrite. A process
    that ends because no task comes may remove its folder."""
    gate = tmp_path / "gate"
    gate.mkdir()
    plan = _plan(tmp_path / "root")
    with _tasks_in(plan, 1, Settings(scratch=tmp_path)) as one:
        work = Leaves(str(gate))
        assert [each.result for each in one(work, ["a"])] == [0]
        assert len(list(gate.iterdir())) == 2, "the first attempt was killed"
        for folder in tmp_path.glob("imap-wal-rewrite-*/*"):
            shutil.rmtree(folder)
        assert [each.result for each in one(work, ["a"])] == [0]


@thorough
def test_tasks_of_a_step_read_one_plan(tmp_path: Path) -> None:
    """Each map has a task, and the plan has all maps."""
    gate = tmp_path / "gate"
    gate.mkdir()
    plan = _plan(tmp_path / "root")
    with _tasks_in(plan, 1, Settings(scratch=tmp_path)) as one:
        answers = one(Counted(str(gate)), list(range(20)))
        assert sorted(each.result for each in answers) == list(range(20))
    assert len(list(gate.iterdir())) == 1


def test_an_unusable_scratch_folder_is_a_clear_error(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "root")
    scratch = tmp_path / "missing"
    scratch.mkdir()
    settings = Settings(scratch=scratch)
    scratch.rmdir()
    log = cluster(LocalStore(str(tmp_path / "root")))
    with pytest.raises(StorageUnavailable, match=r"missing: .*; nothing was published"):
        ProcessEngine(settings, 2).run(plan, log)


def test_the_error_of_a_task_ends_the_others(tmp_path: Path) -> None:
    plan, gate = _plan(tmp_path / "root"), tmp_path / "gate"
    gate.mkdir()
    with (
        pytest.raises(CorruptLog, match="a defect"),
        _tasks_in(plan, 2, Settings(scratch=tmp_path)) as two,
    ):
        list(two(Fails(str(gate)), ["waits", "fails", "waits"]))
    assert not any(_is_alive(pid) for pid in _started(gate, 2))


@contextmanager
def _tasks_in(
    plan: RewritePlan, count: int, settings: Settings
) -> Iterator[Callable[[TaskWork, list[Any]], Iterator[TaskAnswer]]]:
    """Runs tasks of a plan in `count` processes, as a rewrite does."""

    def run(work: TaskWork, inputs: list[Any]) -> Iterator[TaskAnswer]:
        packed = pickle.dumps(work)
        tasks = [
            partial(local_engine._Task, plan.namespace, plan.cluster, packed, number, each)
            for number, each in enumerate(inputs)
        ]
        return (answer for _, answer in others.run(tasks))

    with (
        rewrite_folder(settings.scratch) as folder,
        processes(plan.place, count, Path(folder)) as others,
    ):
        yield run


def _plan(root: Path) -> RewritePlan:
    root.mkdir()
    store = LocalStore(str(root))
    log = node(store)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.close()
    return prepare(cluster(store), maps=None, as_of_ms=None, dry_run=False, skew_ms_max=2**60)


def _started(gate: Path, count: int) -> list[int]:
    """The processes that have begun a task, when there are so many."""
    eventually(lambda: len(list(gate.iterdir())) >= count, f"{count} tasks", 60)
    return [int(each.name) for each in gate.iterdir()]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@every(4)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_early_end_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    root, gate, scratch = (tmp_path / name for name in ("root", "gate", "scratch"))
    for folder in (gate, scratch):
        folder.mkdir()
    store = LocalStore(str(root))
    for name in ("n1", "n2"):
        log = node(store, name)
        append(log, put("a", "1", (1, 1, 1, 1)))
        log.close()
    before = {file.path for file in store.list("ns/c/snapshot")}
    command = subprocess.Popen(
        [sys.executable, "-m", process_works.__name__, str(root), str(gate)],
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        pids = _started(gate, 2)
        assert len(list(scratch.rglob("tmp*"))) >= 2
        command.send_signal(number)
        assert command.wait(60) != 0
    finally:
        command.kill()
        command.wait()
    eventually(lambda: not any(_is_alive(pid) for pid in pids), "the processes end", 60)
    files = [each for each in scratch.rglob("*") if not each.is_dir()]
    assert not files
    if number != signal.SIGKILL:
        assert not list(scratch.iterdir())
    assert {file.path for file in store.list("ns/c/snapshot")} == before


def test_processes_are_used_only_if_they_help(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "root")
    full = FileScan(ARCHIVE, "n1", "a", "m", bytes=30 * MIB, records=60_000, unpacked=64 * MIB)
    archives = [replace(full, path=str(number)) for number in range(8)]
    segment = FileScan(SEGMENT, "n1", "s", "", bytes=40 * MIB)

    def count(*scans: FileScan, wanted: int = 4, memory: int = 1024, **changes: Any) -> int:
        class Plan(RewritePlan):
            def log_scans(self) -> list[FileScan]:
                return list(scans)

        fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
        changed = Plan(**{**fields, **changes})
        return useful_processes(changed, Settings(restore_memory_bytes=memory * MIB), wanted)

    assert count(*archives, segment) == 4
    assert count(*archives, wanted=2) == 2
    assert count(*archives, wanted=1) == 1
    assert count(*archives, memory=600) == 2
    assert count(*archives, memory=500) == 1
    assert count(*archives[:7]) == 1, "little to do"
    assert count(*archives, segment, segment) == 1, "segments are decoded first"
    assert count(*archives, dry_run=True) == 1
    assert count(*archives, place=Location("memory://x")) == 1
