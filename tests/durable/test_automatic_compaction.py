"""A store compacts its log automatically when it has grown."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.context import Context
from imap_wal.errors import Closed, InvalidSetting, StorageUnavailable
from imap_wal.rewrite import compaction
from imap_wal.rewrite.turn import turn
from imap_wal.worker import Worker
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from storage_backends.metered import LimitedStore
from tests.kit.compactions import AUTOMATIC, SMALL, overwrite, size
from tests.kit.effort import thorough
from tests.support import embedded, eventually

PATIENT: dict[str, Any] = {"auto_rewrite_close_s": 60}
"""On a busy machine, a compaction takes longer than a close waits for it by default."""


@thorough
def test_the_log_of_few_keys_stays_small_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 200_000}
    with imap_wal.open(tmp_path, node="n1", **AUTOMATIC, **limits) as store:
        for _ in range(6):
            expected = overwrite(store, 100)
            eventually(lambda: size(tmp_path) < 400_000, "the log is compacted", 60)
        assert store.statistics.commits.bytes > 1_500_000
    with imap_wal.open(tmp_path, node="n1", **limits) as store:
        assert dict(store.map("orders").items()) == expected


@thorough
def test_an_open_counts_what_earlier_runs_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    with imap_wal.open(tmp_path, node="n1", **SMALL) as store:
        expected = overwrite(store, 300)
    assert size(tmp_path) > 500_000
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 200_000}
    with imap_wal.open(tmp_path, node="n1", **AUTOMATIC, **limits) as store:
        eventually(lambda: size(tmp_path) < 100_000, "the log is compacted", 60)
        assert dict(store.map("orders").items()) == expected


def test_the_default_compacts_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    with imap_wal.open(tmp_path, durability="os", preallocate=False) as store:
        value = bytes(1000)
        for _ in range(300):
            store.map("m", raw=True).update({b"%d" % key: value for key in range(100)})
        eventually(lambda: size(tmp_path) < 10_000_000, "the log is compacted", 60)
        assert store.statistics.commits.bytes > 30_000_000
        # Files are removed before a run is counted, and the first run may find little.
        eventually(lambda: store.statistics.compaction.removed_bytes > 8_000_000, "runs", 60)
    with imap_wal.open(tmp_path) as store:
        assert len(store.map("m", raw=True)) == 100


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
    limits |= {"auto_rewrite_bytes_per_second": 1, "auto_rewrite_close_s": 0}
    with embedded(memory, **limits) as store:
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
                    compactor._closing.set()
                    self.set()
                super().clear()

        compactor._growth.wake = Wake()
        compactor._growth.wake.set()
        assert compactor._turn(compactor.worker) is False


def ended(store: imap_wal.Store) -> int:
    """How many compactions ended well."""
    done = store.statistics.compaction
    return done.runs - done.failures


def changed(
    orders: imap_wal.DurableMap[str, float], expected: dict[str, float], chance: random.Random
) -> bool:
    """Some random changes."""
    for _ in range(20):
        key = f"k{chance.randrange(150)}"
        if chance.random() < 0.3:
            orders.pop(key, None)
            expected.pop(key, None)
        else:
            orders[key] = expected[key] = chance.random()
    return True


@thorough
def test_a_killed_run_by_itself_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The other process is killed again and again, at any moment of its runs."""
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(compaction, "PAUSE_S", 0.01)
    monkeypatch.setattr(compaction, "PAUSE_S_MAX", 0.05)
    chance = random.Random(seed)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 50_000}
    with imap_wal.open(tmp_path, node="n1", **AUTOMATIC, **limits) as store:
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


@thorough
def test_a_rewrite_by_hand_beside_automatic_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    chance = random.Random(seed)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 20_000}
    with imap_wal.open(tmp_path, node="n1", **AUTOMATIC, **limits) as store:
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


def test_a_log_without_maps_refuses_automatic_compaction(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="auto_rewrite_percentage is for maps"):
        imap_wal.log.create(tmp_path, auto_rewrite_percentage=100)


@thorough
def test_a_close_leaves_a_small_log(tmp_path: Path) -> None:
    """Also of a program that ends before the first look of the compactor."""
    with imap_wal.open(tmp_path, durability="os", preallocate=False, **PATIENT) as store:
        items, value = store.map("m", raw=True), bytes(1000)
        for _ in range(200):
            items.update({b"%d" % key: value for key in range(100)})
        assert store.statistics.commits.bytes > 20_000_000
    assert size(tmp_path) < 1_000_000
    with imap_wal.open(tmp_path) as store:
        assert len(store.map("m", raw=True)) == 100


@thorough
def test_a_close_finds_what_earlier_runs_left(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path, node="n1", **AUTOMATIC) as store:
        expected = overwrite(store, 300)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 200_000}
    with imap_wal.open(tmp_path, node="n1", **AUTOMATIC, **limits, **PATIENT) as store:
        assert dict(store.map("orders").items()) == expected
    assert size(tmp_path) < 100_000


def test_a_close_before_the_first_look_compacts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, the thread has not begun when a short program closes its store."""
    run = Worker._run

    def late(worker: Worker) -> None:
        worker.stopping.wait(0.3 if worker.name == "imap-wal-compactor" else 0)
        run(worker)

    monkeypatch.setattr(Worker, "_run", late)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 10_000}
    with imap_wal.open(tmp_path, node="n1", **AUTOMATIC, **limits, **PATIENT) as store:
        overwrite(store, 50)
    assert size(tmp_path) < 50_000


@pytest.mark.parametrize("limits", [{"auto_rewrite_close_s": 0}, {"auto_rewrite_percentage": 0}])
def test_a_close_compacts_nothing_if_that_is_set(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    monkeypatch.setattr(compaction.CompactionTask, "run", lambda *_: pytest.fail("it runs"))
    with embedded(
        memory, **{"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1, **limits}
    ) as store:
        overwrite(store, 2)


def test_a_close_does_not_begin_what_would_take_long(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LAST_BYTES_PER_S", 1)
    monkeypatch.setattr(compaction.CompactionTask, "run", lambda *_: pytest.fail("it runs"))
    with embedded(memory, auto_rewrite_percentage=100, auto_rewrite_min_bytes=1) as store:
        overwrite(store, 2)


def without_end(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Compactions run until they are stopped. The events: one began, one was stopped."""
    began, stopped = threading.Event(), threading.Event()

    def run(task: compaction.CompactionTask, context: Context, *_: Any) -> Any:
        began.set()
        try:
            eventually(lambda: context.store.exists("file"), "a file", 30)
        except Closed:
            stopped.set()
            raise

    monkeypatch.setattr(compaction.CompactionTask, "run", run)
    return began, stopped


@pytest.mark.parametrize("first_look_s", [0.01, 60])
def test_a_close_ends_a_compaction_after_its_limit(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, first_look_s: float
) -> None:
    """Of a compaction that ran before, and of one that the close began."""
    _, stopped = without_end(monkeypatch)
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", first_look_s)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1}
    with embedded(memory, **limits, auto_rewrite_close_s=0.1) as store:
        expected = overwrite(store, 2)
    assert stopped.is_set()
    with embedded(memory, auto_rewrite_percentage=0) as store:
        assert dict(store.map("orders").items()) == expected


def test_a_failure_of_the_last_compaction_is_only_logged(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(*_: Any) -> Any:
        raise StorageUnavailable("no space")

    monkeypatch.setattr(compaction.CompactionTask, "run", run)
    with embedded(memory, auto_rewrite_percentage=100, auto_rewrite_min_bytes=1) as store:
        expected = overwrite(store, 2)
    assert "StorageUnavailable: no space" in caplog.text
    with embedded(memory, auto_rewrite_percentage=0) as store:
        assert dict(store.map("orders").items()) == expected


def test_close_does_not_wait_for_a_compaction_in_this_process(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, stopped = without_end(monkeypatch)
    monkeypatch.setattr(compaction, "FIRST_LOOK_S", 0.01)
    limits: dict[str, Any] = {"auto_rewrite_percentage": 100, "auto_rewrite_min_bytes": 1}
    with embedded(memory, **limits, auto_rewrite_close_s=0) as store:
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
