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
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.embedded import opening
from imap_wal.errors import Closed, InvalidSetting, StorageUnavailable
from imap_wal.retention.other_process import ProcessDied
from imap_wal.rewrite import compaction
from imap_wal.rewrite.turn import turn
from storage_backends import SegmentStore
from storage_backends.limited import LimitedStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.local import temporaries
from tests.support import FakeClock, embedded, eventually

SMALL: dict[str, Any] = {"segment_bytes": 64 * 1024, "preallocate": False, "durability": "os"}


def size(folder: Path) -> int:
    """Bytes of all files; some may be removed at the same time."""
    found = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                found += os.stat(os.path.join(place, name)).st_size
    return found


def overwrite(store: imap_wal.Store, times: int, keys: int = 100) -> dict[str, int]:
    orders = store.map("orders")
    for number in range(times):
        orders.update({f"k{key}": number * keys + key for key in range(keys)})
    return dict(orders.items())


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
            for _ in range(3):
                store.compact()
        finally:
            stop.set()
            thread.join()
        expected = dict(orders.items())
    with imap_wal.open(tmp_path, node="n1") as store:
        assert dict(store.map("orders").items()) == expected


def test_the_log_of_few_keys_stays_small_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 200_000}
    with imap_wal.open(tmp_path, node="n1", **SMALL, **limits) as store:
        for _ in range(6):
            expected = overwrite(store, 100)
            eventually(lambda: size(tmp_path) < 400_000, "the log is compacted", 60)
        assert store.statistics.commits.bytes > 1_500_000
    with imap_wal.open(tmp_path, node="n1", **limits) as store:
        assert dict(store.map("orders").items()) == expected


def test_an_open_counts_what_earlier_runs_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        expected = overwrite(store, 300)
    assert size(tmp_path) > 500_000
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 200_000}
    with imap_wal.open(tmp_path, node="n1", **SMALL, **limits) as store:
        eventually(lambda: size(tmp_path) < 100_000, "the log is compacted", 60)
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
        with pytest.raises(ProcessDied, match="ended with -9; nothing is lost"):
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


def test_a_compaction_that_was_ended_leaves_no_file(tmp_path: Path) -> None:
    """Its unfinished file is in the folder of a generation that is not written again."""
    snapshots = tmp_path / "default" / "embedded" / "snapshot"
    with imap_wal.open(tmp_path, node="n1", auto_rewrite_percentage=0, **SMALL) as store:
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


def test_the_default_compacts_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    with imap_wal.open(tmp_path, durability="os", preallocate=False) as store:
        value = bytes(1000)
        for _ in range(300):
            store.map("m", raw=True).update({b"%d" % key: value for key in range(100)})
        eventually(lambda: size(tmp_path) < 10_000_000, "the log is compacted", 60)
        assert store.statistics.commits.bytes > 30_000_000
        eventually(lambda: store.statistics.compaction.runs, "a run", 60)
        assert store.statistics.compaction.removed_bytes > 8_000_000
    with imap_wal.open(tmp_path) as store:
        assert len(store.map("m", raw=True)) == 100


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


def ended_by_itself(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def test_a_process_that_had_no_work_is_started_again(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        other = store._compactor._process
        assert other is not None
        other._keep_s = 0.01
        for _ in range(2):
            overwrite(store, 2)
            assert store.compact().records_read >= 200
            process = other._process
            assert process is not None
            eventually(partial(ended_by_itself, process), "it ends by itself", 30)
            assert process.returncode == 0


def test_an_automatic_compaction_does_not_wait_for_a_rewrite(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(compaction, "OTHERS_S", 0.01)
    tries = threading.Semaphore(0)

    def tried(*arguments: Any) -> Any:
        tries.release()
        return turn(*arguments)

    monkeypatch.setattr(compaction, "turn", tried)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1}
    with embedded(memory, **limits) as store:
        with turn(store._compactor._logs, "the test"):
            overwrite(store, 2)
            for _ in range(3):
                assert tries.acquire(timeout=30)
                store.map("orders")["more"] = 1
            assert store.statistics.compaction == compaction.CompactionStatistics()
            assert store._log.unsealed == 1, "no segment is sealed for a run that does not begin"
        eventually(lambda: store.statistics.compaction.runs, "it runs afterwards")


def test_close_ends_a_compaction_that_waits_for_its_rate(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    waits = threading.Event()

    class Limited(LimitedStore):
        def __init__(self, inner: SegmentStore, bytes_per_s: int, sleep: Any = time.sleep) -> None:
            def noted(seconds: float) -> None:
                waits.set()
                sleep(seconds)

            super().__init__(inner, bytes_per_s, noted)

    monkeypatch.setattr(compaction, "LimitedStore", Limited)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1}
    with embedded(memory, **limits, auto_rewrite_bytes_per_second=1) as store:
        expected = overwrite(store, 2)
        assert waits.wait(60), "a manifest takes some minutes"
        closing = threading.Thread(target=store.close)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    with embedded(memory, auto_rewrite_percentage=0) as store:
        assert dict(store.map("orders").items()) == expected


def test_a_stop_is_not_missed_between_two_looks(memory: MemoryStore) -> None:
    """The thread was woken, and the stop comes before it waits again."""
    with embedded(memory, auto_rewrite_percentage=0) as store:
        compactor = store._compactor

        class Wake(threading.Event):
            """Set once by a commit; the stop comes while the thread examines why it was woken."""

            def __init__(self) -> None:
                super().__init__()
                self.stopped = False

            def wait(self, timeout: float | None = None) -> bool:
                return super().wait(30) or pytest.fail("nothing wakes the thread any more")

            def clear(self) -> None:
                if not self.stopped:
                    self.stopped = True
                    compactor._stop.set()
                    self.set()
                super().clear()

        compactor._growth.wake = Wake()
        compactor._growth.wake.set()
        assert compactor._turn(compactor.worker) is False


def test_a_compaction_keeps_covered_files_for_their_time(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **SMALL, wal_ttl_seconds=3600) as store:
        overwrite(store, 50)
        before = size(tmp_path)
        assert store.compact().removed_bytes == 0 and size(tmp_path) > before


def ended(store: imap_wal.Store) -> int:
    """How many compactions ended well."""
    done = store.statistics.compaction
    return done.runs - done.failures


def changed(orders: imap_wal.DurableMap, expected: dict[str, float], chance: random.Random) -> bool:
    """Some random changes."""
    for _ in range(20):
        key = f"k{chance.randrange(150)}"
        if chance.random() < 0.3:
            orders.pop(key, None)
            expected.pop(key, None)
        else:
            orders[key] = expected[key] = chance.random()
    return True


def test_a_killed_run_by_itself_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The other process is killed again and again, at any moment of its runs."""
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(compaction, "PAUSE_S", 0.01)
    monkeypatch.setattr(compaction, "PAUSE_S_MAX", 0.05)
    chance = random.Random(seed)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 50_000}
    with imap_wal.open(tmp_path, node="n1", **SMALL, **limits) as store:
        orders, other, expected = store.map("orders"), store._compactor._process, dict[str, float]()
        assert other is not None
        for _ in range(6):
            process = eventually(
                lambda: changed(orders, expected, chance) and other._process, "a process", 60
            )
            for _ in range(chance.randrange(100)):
                changed(orders, expected, chance)
            process.kill()
            assert dict(orders.items()) == expected
        good = ended(store)
        eventually(
            lambda: changed(orders, expected, chance) and ended(store) > good,
            "a run that ends",
            60,
        )
    with imap_wal.open(tmp_path, node="n1", auto_rewrite_percentage=0) as store:
        assert dict(store.map("orders").items()) == expected


def test_a_rewrite_by_hand_beside_automatic_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    chance = random.Random(seed)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 20_000}
    with imap_wal.open(tmp_path, node="n1", **SMALL, **limits) as store:
        orders, expected = store.map("orders"), dict[str, float]()
        eventually(
            lambda: changed(orders, expected, chance) and store.statistics.compaction.runs,
            "a run",
            60,
        )
        for _ in range(2):
            hand = subprocess.Popen(
                [sys.executable, "-m", "rewrite_cli.cli", "rewrite", str(tmp_path)],
                stdout=subprocess.DEVNULL,
            )
            while hand.poll() is None:
                changed(orders, expected, chance)
            assert hand.returncode == 0
        assert not store.statistics.compaction.error
        assert not store.statistics.compaction.failures
    with imap_wal.open(tmp_path, node="n1", auto_rewrite_percentage=0) as store:
        assert dict(store.map("orders").items()) == expected


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


def test_a_log_without_maps_refuses_automatic_compaction(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="auto_rewrite_percentage is for maps"):
        imap_wal.log.create(tmp_path, auto_rewrite_percentage=100)


def test_the_other_process_gets_the_options_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of objects does not show them in its `url`."""
    objects = LocalObjects(str(tmp_path))
    monkeypatch.setattr(objects, "url", "s3://bucket/root")
    monkeypatch.setattr(opening, "open_store", lambda *_, **__: objects)
    with imap_wal.open("s3://bucket/root", node="n1", storage_options={"key": "k"}) as store:
        assert store._compactor._process is not None
        url = pickle.loads(pickle.dumps(store._compactor._process._url))
        assert (str(url), url.options) == ("s3://bucket/root", {"key": "k"})


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


def test_close_does_not_wait_for_a_compaction_in_this_process(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, stopped = threading.Event(), threading.Event()

    def run(task: compaction.CompactionTask, store: SegmentStore, *_: Any) -> Any:
        began.set()
        try:
            eventually(lambda: store.exists("file"), "a file", 30)
        except Closed:
            stopped.set()
            raise

    monkeypatch.setattr(compaction.CompactionTask, "run", run)
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1}
    with embedded(memory, **limits) as store:
        overwrite(store, 2)
        assert began.wait(30)
    assert stopped.is_set()


def test_a_failed_automatic_compaction_is_logged_once(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    def run(*_: Any) -> Any:
        nonlocal tries
        tries += 1
        raise StorageUnavailable("no space")

    monkeypatch.setattr(compaction.CompactionTask, "run", run)
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(compaction, "PAUSE_S", 0.01)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1}
    with embedded(memory, **limits) as store:
        overwrite(store, 2)
        eventually(lambda: tries >= 3, "it is tried again")
    (line,) = [each.getMessage() for each in caplog.records if "not compacted" in each.msg]
    assert "default" in line and "StorageUnavailable: no space" in line


def test_the_pause_after_failed_compactions_grows(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt may read the whole log."""

    def run(*_: Any) -> Any:
        raise StorageUnavailable("no space")

    monkeypatch.setattr(compaction.CompactionTask, "run", run)
    monkeypatch.setattr(compaction, "PAUSE_S", 0.001)
    with embedded(memory, auto_rewrite_percentage=0, auto_rewrite_min_bytes=1) as store:
        overwrite(store, 2)
        compactor, pauses = store._compactor, []
        compactor._growth.at = -1
        for _ in range(4):
            assert not compactor._turn(compactor.worker)
            pauses.append(compactor._pause)
        assert pauses == [0.001, 0.002, 0.004, 0.008]


def test_compaction_in_this_process_uses_the_clock_of_the_store(memory: MemoryStore) -> None:
    """Its time may be long ago: nothing has expired by it."""
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        store.map("orders").put("k", "v", ttl=60)
        store.compact()
    with embedded(memory, clock=clock) as store:
        assert dict(store.map("orders").items()) == {"k": "v"}
