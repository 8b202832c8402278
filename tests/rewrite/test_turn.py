"""Rewrites of one log run one after the other."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import imap_wal
from imap_wal import layout
from imap_wal.context import Context, open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite import turn as turns
from imap_wal.rewrite.turn import RewriteRunning, turn
from rewrite_cli.commands.upkeep import rewrite as command
from storage_backends import Locked, SegmentStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.logs import cluster
from tests.support import eventually


def is_held(log: ClusterLog) -> bool:
    try:
        log.store.lock(layout.rewrite_lock_path(log.folder), "the test").release()
    except Locked:
        return True
    return False


def test_a_second_rewrite_names_the_running_one(memory: MemoryStore) -> None:
    log = cluster(memory)
    with (
        turn(log, "the first"),
        pytest.raises(RewriteRunning, match=r"the first \(process \d+"),
        turn(log, "the second"),
    ):
        pass
    with turn(log, "the third"):
        pass


def test_a_second_rewrite_waits_if_it_may(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LOOK_S", 0.01)
    seen: list[str] = []
    done = threading.Event()

    def second() -> None:
        with turn(cluster(memory), "the second", seen.append):
            done.set()

    waiting = threading.Thread(target=second)
    with turn(cluster(memory), "the first"):
        waiting.start()
        eventually(lambda: seen, "it waits")
        assert not done.is_set()
    waiting.join(30)
    assert done.is_set() and len(seen) == 1 and seen[0].startswith("the first")


def test_the_lock_of_a_killed_rewrite_is_free(tmp_path: Path) -> None:
    code = f"""
from imap_wal.context import Context, open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.turn import turn
from storage_backends import open_store
with turn(ClusterLog(open_context("file://{tmp_path}"), "ns", "c"), "the other"):
    print("held", flush=True)
    input()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    log = ClusterLog(open_context(f"file://{tmp_path}"), "ns", "c")
    try:
        assert other.stdout.readline() == b"held\n"
        assert is_held(log)
    finally:
        other.kill()
        other.wait()
    assert not is_held(log)


def test_a_lease_is_renewed_while_the_rewrite_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RENEW_S", 0.01)
    now = [1_000_000]
    objects = LocalObjects(str(tmp_path), clock_ms=lambda: now[0])
    log = ClusterLog(Context(objects), "ns", "c")
    with turn(log, "the first"):
        for _ in range(4):
            now[0] += 20_000  # a lease of 30 s
            seen = now[0]
            eventually(lambda: expiry(objects, log) > seen + 29_000, "the lease is renewed")  # noqa: B023
            assert is_held(log)
    assert not is_held(log)


def expiry(store: SegmentStore, log: ClusterLog) -> int:
    import json

    files = sorted(file.path for file in store.list(layout.rewrite_lock_path(log.folder)))
    return int(json.loads(store.read(files[-1]))["expires_ms"])


def test_the_command_waits_for_a_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from click.testing import CliRunner

    monkeypatch.setattr(turns, "LOOK_S", 0.01)
    with imap_wal.open(tmp_path, node="n1") as store:
        store.map("m")["k"] = 1
    log = ClusterLog(open_context(f"file://{tmp_path}"), "default", "embedded")
    waits = threading.Event()
    monkeypatch.setattr(command, "_waits", lambda holder: waits.set())
    codes: list[int] = []
    running = threading.Thread(
        target=lambda: codes.append(CliRunner().invoke(command.command, [str(tmp_path)]).exit_code)
    )
    with turn(log, "the first"):
        running.start()
        assert waits.wait(30)
        assert not log.manifest().snapshots
    running.join(30)
    assert codes == [0] and log.manifest().snapshots
