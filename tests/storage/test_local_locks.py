"""Locks of a local directory: the kernel frees them with their process, and never shares them."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from storage_backends import Locked, Unavailable
from storage_backends.local import LocalStore
from tests.kit.local import python

LOCKS = """
from storage_backends.local import LocalStore
lock = LocalStore(sys.argv[1]).lock("node/writer.lock", "agent pid 4711 on host b")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_killed_holder_frees_the_lock(
    tmp_path: Path,
) -> None:
    """A second process sees the holder of the lock, and gets the lock after the kill."""
    store = LocalStore(str(tmp_path))
    with python(LOCKS, tmp_path) as process:
        with pytest.raises(Locked, match="agent pid 4711 on host b") as caught:
            store.lock("node/writer.lock", "me")
        assert caught.value.holder == "agent pid 4711 on host b"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with store.lock("node/writer.lock", "me"), pytest.raises(Locked, match="held by me"):
            store.lock("node/writer.lock", "another")


def test_lock_taken_from_a_living_process_stays_taken(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with python(LOCKS, tmp_path) as process:
        taken = store.lock("node/writer.lock", "taker", take=True)
        process.kill()
        process.wait()
        with pytest.raises(Locked, match="held by taker"):
            store.lock("node/writer.lock", "third")
        taken.release()
        store.lock("node/writer.lock", "third").release()


def test_child_killed_after_fork_releases_its_lock(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        store.lock("writer.lock", f"child {os.getpid()}")
        os.write(write, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(read, 1)
    with pytest.raises(Locked, match=f"child {child}"):
        store.lock("writer.lock", "parent")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    store.lock("writer.lock", "parent").release()
    os.close(read)
    os.close(write)


FORKS = """
import os, time
from storage_backends.local import LocalStore
lock = LocalStore(sys.argv[1]).lock("writer.lock", "parent")
if os.fork() == 0:
    lock.release()  # the child's copy is not a lock: its release must not free the parent's
    print("ready", flush=True)
    time.sleep(60)
    os._exit(0)
sys.stdin.readline()
"""


def test_forked_child_leaves_its_parents_lock_alone(tmp_path: Path) -> None:
    """It neither keeps nor frees it."""
    store = LocalStore(str(tmp_path))
    with python(FORKS, tmp_path) as process:
        with pytest.raises(Locked, match="held by parent"):
            store.lock("writer.lock", "other")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        store.lock("writer.lock", "other").release()  # while the child lives on


def test_forked_child_cannot_write_into_the_segment_of_its_parent(tmp_path: Path) -> None:
    appender = LocalStore(str(tmp_path)).open_append("1.wal")
    appender.append(b"parent")
    child = os.fork()
    if child == 0:
        try:
            appender.append(b"child")
        except Unavailable:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    appender.append(b" again")
    assert (tmp_path / "1.wal").read_bytes() == b"parent again"
    appender.close()


def _race_for_lock(root: str, start: Any, results: Any) -> None:
    store = LocalStore(root)
    start.wait()
    for _ in range(50):
        try:
            lock = store.lock("writer.lock", f"pid {os.getpid()}")
        except Locked:
            continue
        marker = os.open(
            os.path.join(root, "inside"), os.O_CREAT | os.O_EXCL
        )  # a second holder at this moment would fail here
        os.close(marker)
        os.unlink(os.path.join(root, "inside"))
        lock.release()
        results.put(1)


def test_racing_processes_never_share_a_lock(tmp_path: Path) -> None:
    """One process at a time has it."""
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(4), context.SimpleQueue()
    processes = [
        context.Process(target=_race_for_lock, args=(str(tmp_path), start, results))
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert not results.empty()


def test_lock_file_exchanged_between_open_and_flock_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    real, taken = fcntl.flock, list[Any]()

    def flock(fd: int, operation: int) -> None:
        if not taken:
            taken.append(None)
            taken[0] = LocalStore(str(tmp_path)).lock("writer.lock", "quicker", take=True)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(Locked, match="held by quicker"):
        store.lock("writer.lock", "slower")
