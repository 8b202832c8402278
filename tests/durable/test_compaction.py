"""A store compacts its log: the size on disk follows the live entries, not the changes."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import imap_wal
from imap_wal import context
from imap_wal.errors import Closed
from imap_wal.placement import Placed
from imap_wal.retention.other_process import ProcessDied
from imap_wal.rewrite.compaction import Compactor
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.compactions import SMALL, overwrite, size
from tests.kit.effort import every, share, thorough
from tests.kit.local import temporaries
from tests.support import FakeClock, embedded, eventually


def test_compact_leaves_only_the_newest_changes(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        expected = overwrite(store, 300)
        before = size(tmp_path)
        done = store.compact()
        assert done.removed_bytes > before / 2 and done.records_read >= 30_000
        assert size(tmp_path) < 60_000 < before
        store.map("orders")["later"] = 1
    with imap_wal.open(tmp_path, node="n1") as store:
        assert dict(store.map("orders").items()) == {**expected, "later": 1}


@thorough
def test_compact_removes_deleted_keys(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        overwrite(store, 2)
        for key in list(store.map("orders")):
            del store.map("orders")[key]
        done = store.compact()
        assert done.snapshot_bytes == 0
    with imap_wal.open(tmp_path, node="n1") as store:
        assert not store.map("orders")


def test_a_store_in_memory_compacts_in_this_process(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        expected = overwrite(store, 50)
        store.compact()
    with embedded(memory) as store:
        assert dict(store.map("orders").items()) == expected


@every(2)
@pytest.mark.parametrize("here", [True, False], ids=["this process", "another process"])
def test_a_compaction_says_how_much_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    reached = Compactor._reached
    seen: list[float] = []

    def noted(compactor: Compactor, part: float) -> None:
        reached(compactor, part)
        seen.append(compactor.part or 0)

    monkeypatch.setattr(Compactor, "_reached", noted)
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        if here:
            store._compactor._process = None
        overwrite(store, 300)
        assert store._compactor.part is None
        store.compact()
        assert store._compactor.part is None
    assert seen and all(0 < part <= 1 for part in seen)
    assert not here or (seen == sorted(seen) and seen[-1] == 1)


def test_changes_during_a_compaction_are_kept(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        overwrite(store, 50)
        orders, stop = store.map("orders"), threading.Event()

        def change() -> None:
            while not stop.is_set():
                key = f"k{chance.randrange(150)}"
                if chance.random() < 0.3:
                    orders.pop(key, None)
                else:
                    orders[key] = chance.random()

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(share(3, ci=34)):
                store.compact()
        finally:
            stop.set()
            thread.join()
        expected = dict(orders.items())
    with imap_wal.open(tmp_path, node="n1") as store:
        assert dict(store.map("orders").items()) == expected


def test_a_killed_compaction_is_reported_and_the_next_one_succeeds(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        expected = overwrite(store, 100)
        process = store._compactor._process
        assert process is not None
        killing = threading.Thread(
            target=lambda: eventually(lambda: process._process, "a process").kill()
        )
        killing.start()
        with pytest.raises(ProcessDied, match="ended with exit code -9; nothing is lost"):
            store.compact()
        killing.join()
        assert dict(store.map("orders").items()) == expected
        store.compact()
    with imap_wal.open(tmp_path, node="n1") as store:
        assert dict(store.map("orders").items()) == expected


def test_close_ends_a_compaction(tmp_path: Path) -> None:
    store = imap_wal.open(tmp_path, node="n1", **SMALL)
    expected = overwrite(store, 100)
    process = store._compactor._process
    assert process is not None
    closing = threading.Thread(
        target=lambda: (eventually(lambda: process._process, "a process"), store.close())
    )
    closing.start()
    with pytest.raises(Closed):
        store.compact()
    closing.join()
    with imap_wal.open(tmp_path, node="n1") as store:
        assert dict(store.map("orders").items()) == expected


@thorough
def test_a_compaction_that_was_ended_leaves_no_file(tmp_path: Path) -> None:
    """Its unfinished file is in the folder of a generation that is not written again."""
    snapshots = tmp_path / "default" / "embedded" / "snapshot"
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        value = os.urandom(1_000_000)
        for key in range(20):
            store.map("m", raw=True)[b"%d" % key] = value
        process = store._compactor._process
        assert process is not None

        def kill() -> None:
            eventually(lambda: temporaries(snapshots), "a file is written", 60)
            assert process._process is not None
            process._process.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        with pytest.raises(ProcessDied):
            store.compact()
        killing.join()
        assert temporaries(snapshots)
        store.compact()
        assert not temporaries(snapshots)


@thorough
def test_compactions_after_another_use_the_same_process(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        other = store._compactor._process
        assert other is not None
        pids = set()
        for _ in range(2):
            overwrite(store, 2)
            store.compact()
            process = other._process
            assert process is not None
            pids.add(process.pid)
        assert len(pids) == 1
    assert process is not None and process.poll() is not None, "it ends with the store"


def children() -> set[int]:
    """The processes that this one has started and not waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@thorough
def test_nothing_is_left_of_an_idle_process(tmp_path: Path) -> None:
    """Not even a zombie is left, although no other task comes."""
    before = children()
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        other = store._compactor._process
        assert other is not None
        other._keep_s = 0.01
        for _ in range(2):
            overwrite(store, 2)
            assert store.compact().records_read >= 200
            eventually(lambda: children() <= before, "nothing is left of the process", 30)


def test_a_compaction_keeps_covered_files_for_their_time(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **SMALL, wal_ttl_seconds=3600) as store:
        overwrite(store, 50)
        before = size(tmp_path)
        assert store.compact().removed_bytes == 0 and size(tmp_path) > before


@thorough
@pytest.mark.parametrize("by_itself", [False, True])
def test_a_program_killed_during_a_compaction_loses_nothing(
    tmp_path: Path, by_itself: bool
) -> None:
    """Two keys get new values, and the log is compacted all the time, until `kill -9`."""
    code = f"""
import threading, imap_wal
from imap_wal.rewrite import compaction
compaction.FIRST_LOOK_S = 0
store = imap_wal.open({str(tmp_path)!r}, node="n1", segment_bytes=64 * 1024, preallocate=False,
                      auto_rewrite_percentage={100 * by_itself}, auto_rewrite_min_bytes=20_000)
orders = store.map("orders")
compact = lambda: [store.compact() for _ in range(1000)]
if not {by_itself}:
    threading.Thread(target=compact, daemon=True).start()
for number in range(10**9):
    orders[number % 2] = number
    print(number, flush=True)
"""
    for wait in (1000, 3000, 5000):
        program = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert program.stdout is not None
        last = -1
        for _ in range(wait):
            last = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGKILL)
        for line in program.stdout:
            if line.endswith(b"\n"):
                last = int(line)
        program.wait()
        with imap_wal.open(tmp_path, node="n1") as store:
            found = dict(store.map("orders").items())
        assert max(found.values()) - last in (0, 1)
        assert sorted(found) == [0, 1] and abs(found[0] - found[1]) == 1


def test_the_other_process_gets_the_options_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of objects does not show them in its `url`."""
    objects = LocalObjects(str(tmp_path))
    monkeypatch.setattr(context, "open_place", lambda place, **_: Placed(objects, place))
    with imap_wal.open("s3://bucket/root", node="n1", storage_options={"key": "k"}) as store:
        assert store._compactor._process is not None
        place = pickle.loads(pickle.dumps(store._compactor._process._place))
        assert (str(place), place.options) == ("s3://bucket/root", {"key": "k"})


@thorough
def test_relative_paths_survive_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with imap_wal.open("root", node="n1", wal_dir="wal", **SMALL) as store:
        overwrite(store, 2)
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        assert store.compact().records_read == 200
        assert not os.listdir(tmp_path / "other")


def test_a_frozen_program_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        overwrite(store, 2)
        assert store.compact().records_read == 200


def wait_for_a_file(scratch: Path) -> None:
    eventually(lambda: any(scratch.rglob("*.parquet")), "a temporary file", 60)


@thorough
def test_close_during_a_compaction_leaves_no_temporary_files(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    store = imap_wal.open(tmp_path / "log", node="n1", scratch=scratch, durability="os")
    overwrite(store, 1, keys=100_000)

    def close() -> None:
        wait_for_a_file(scratch)
        store.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(Closed):
        store.compact()
    closing.join()
    assert not os.listdir(scratch)


@thorough
def test_a_killed_program_leaves_no_temporary_files(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = f"""
import imap_wal
with imap_wal.open({str(tmp_path / "log")!r}, scratch={str(scratch)!r}, durability="os") as store:
    store.map("orders").update({{key: key for key in range(100_000)}})
    store.compact()
"""
    program = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for_a_file(scratch)
    finally:
        program.kill()
        program.wait()
    eventually(lambda: not os.listdir(scratch), "the other process removes its files", 60)


def test_compaction_in_this_process_uses_the_clock_of_the_store(memory: MemoryStore) -> None:
    """By that clock it may be long ago, so nothing has expired."""
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        store.map("orders").put("k", "v", ttl=60)
        store.compact()
    with embedded(memory, clock=clock) as store:
        assert dict(store.map("orders").items()) == {"k": "v"}
