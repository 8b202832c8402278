"""`wal_ttl_seconds` and `wal_size_limit_mb`: how long covered files are kept, and that no other
files are removed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.context import Context
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention import removal
from imap_wal.retention.removal import MB, paths_to_remove, plan_covered
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from imap_wal.write import maintenance
from rewrite_cli.cli import group
from rewrite_cli.doctor.agent import agent_checks
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.interface import StoredFile
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, plugin, serving
from tests.kit.effort import every, thorough
from tests.support import FakeClock, contents, embedded, eventually

NOW = 1_763_720_000_000


def file(name: str, age_s: float, size: int = 100) -> StoredFile:
    return StoredFile(name, size, NOW - round(age_s * 1000))


def test_the_age_limit_removes_only_older_files() -> None:
    files = [file("a", 10), file("b", 60), file("c", 61)]
    assert paths_to_remove(files, NOW, 60, 0) == {"c"}
    assert paths_to_remove(files, NOW, 0, 0) == set()


def test_size_limit_removes_the_oldest_first() -> None:
    """The oldest files are removed until the rest is within the limit."""
    files = [file("new", 1, MB), file("middle", 2, MB), file("old", 3, MB), file("oldest", 4, 1)]
    assert paths_to_remove(files, NOW, 0, 2) == {"old", "oldest"}
    assert paths_to_remove(files, NOW, 0, 3) == {"oldest"}
    assert paths_to_remove(files, NOW, 2, 2) == {"old", "oldest"}
    assert paths_to_remove(files, NOW, 1, 4) == {"middle", "old", "oldest"}


def archived(root: Path, rounds: int, **settings: Any) -> dict[bytes, bytes]:
    """A log of this many archives, with a second map that is never rewritten. A compaction, which
    runs by itself when it is time, would remove some or all of them."""
    expected = {}
    settings = {"auto_rewrite_percentage": 0, **settings}
    with imap_wal.open(root.as_uri(), node="n", **settings) as store:
        for number in range(rounds):
            chance = Random(number)
            values = {b"%d" % key: chance.randbytes(1000) for key in range(200)}
            expected.update(values)
            store.map("m", raw=True).update(values)
            store.map("other")[number] = number
            store.archive()
    return expected


def run(*arguments: str) -> None:
    done = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def archives(root: Path, name: str) -> list[Path]:
    return sorted(root.glob(f"default/embedded/nodes/n/archive/{name}/*.parquet"))


@every(2)
@pytest.mark.parametrize("by", ["owner", "prune"])
def test_age_limit_removes_only_covered_archives(tmp_path: Path, by: str) -> None:
    """Covered archives are removed by age; uncovered ones are kept at any age."""
    expected = archived(tmp_path, 4)
    run("rewrite", tmp_path.as_uri(), "--map", "m")
    for path in [*archives(tmp_path, "m")[:2], *archives(tmp_path, "other")]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    if by == "owner":
        with imap_wal.open(tmp_path.as_uri(), node="n", wal_ttl_seconds=3600) as store:
            store.archive()
    else:
        run("prune", tmp_path.as_uri(), "--wal-ttl-seconds", "3600", "--yes")
    assert len(archives(tmp_path, "m")) == 2
    assert len(archives(tmp_path, "other")) == 4
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert dict(store.map("m", raw=True)) == expected
        assert dict(store.map("other")) == {number: number for number in range(4)}


@every(2)
@pytest.mark.parametrize("by", ["owner", "prune"])
def test_covered_archives_are_removed_by_size_oldest_first(tmp_path: Path, by: str) -> None:
    expected = archived(tmp_path, 12)  # some 200 kB each
    run("rewrite", tmp_path.as_uri(), "--map", "m")
    before = archives(tmp_path, "m")
    for age, path in enumerate(before):
        os.utime(path, (1_700_000_000 + age, 1_700_000_000 + age))
    if by == "owner":
        with imap_wal.open(tmp_path.as_uri(), node="n", wal_size_limit_mb=1) as store:
            store.archive()
    else:
        run("prune", tmp_path.as_uri(), "--wal-size-limit-mb", "1", "--yes")
    left = archives(tmp_path, "m")
    assert 0 < len(left) < len(before)
    assert left == before[-len(left) :]
    assert sum(path.stat().st_size for path in left) <= MB
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        assert dict(store.map("m", raw=True)) == expected


def test_without_a_limit_no_archive_is_removed(tmp_path: Path) -> None:
    archived(tmp_path, 3)
    run("rewrite", tmp_path.as_uri())
    for path in archives(tmp_path, "m"):
        os.utime(path, (1, 1))
    with imap_wal.open(tmp_path.as_uri(), node="n") as store:
        store.archive()
    assert len(archives(tmp_path, "m")) == 3


# ---- automatic -----------------------------------------------------------------------------------


@every(3)
@pytest.mark.parametrize("scheme", ["file", "objects+file"])
@pytest.mark.parametrize("settings", [{"wal_ttl_seconds": 1}, {"wal_size_limit_mb": 1}])
def test_limits_apply_without_automatic_archives(
    tmp_path: Path, scheme: str, settings: dict[str, Any]
) -> None:
    """Covered files are removed by age or size also without automatic archives."""
    url = f"{scheme}://{tmp_path}"
    for values in ({b"a": Random(1).randbytes(MB)}, {b"b": b"2"}):
        with imap_wal.open(url, node="n") as store:
            store.map("m", raw=True).update(values)
            store.archive()
    run("rewrite", url)
    before = archives(tmp_path, "m")
    for path in before:
        os.utime(path, (1, 1))
    with imap_wal.open(url, node="n", **settings):
        eventually(
            lambda: (
                archives(tmp_path, "m") == ([] if "wal_ttl_seconds" in settings else before[1:])
            ),
            "the covered archives are removed",
        )


def test_an_agent_removes_what_is_covered_by_itself(tmp_path: Path) -> None:
    with serving(config(tmp_path)) as agent, plugin(agent.config) as member:
        member.put(a="1")
        agent._log.archive()
    (path,) = tmp_path.rglob("*.parquet")
    run("rewrite", f"{tmp_path}/log")
    os.utime(path, (1, 1))
    with serving(config(tmp_path, wal_ttl_seconds=1)) as agent, plugin(agent.config) as member:
        eventually(lambda: not path.exists(), "the covered archive is removed")
        assert member.values() == {"a": "1"}
        assert member.stat()["retention_error"] == ""
        agent._log.writer.maintenance.retention_error = "Unavailable: the storage is away"
        checks = {check.name: check for check in agent_checks(agent.config.endpoint)}
        assert "the storage is away" in checks["agent's retention"].what


@thorough
def test_covered_files_are_checked_at_start_and_every_half_time(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner looks for covered files at the start, and after each half of the time limit."""
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.002)
    clock = FakeClock()

    def fill(store: imap_wal.Store, key: str) -> None:
        """A covered archive; this storage has no modification times, so it counts as old."""
        store.map("m")[key] = 1
        store.archive()
        rewrite(
            ClusterLog(Context(memory, clock=clock), "default", "embedded"), LocalEngine(Settings())
        )

    with embedded(memory) as store:
        fill(store, "a")
    for settings, seconds in (
        ({"wal_ttl_seconds": 100}, 50),
        ({"wal_ttl_seconds": 10_000}, 600),
        ({"wal_size_limit_mb": 1, "wal_ttl_seconds": 8}, 4),
    ):
        with embedded(memory, clock=clock, **settings) as store:
            eventually(lambda: not parquet(memory), "covered files are removed at the start")
            for key in ("b", "c"):
                fill(store, key)
                clock.advance(seconds - 1)
                time.sleep(0.05)
                assert parquet(memory), f"{settings}: too early"
                clock.advance(1)
                eventually(lambda: not parquet(memory), f"{settings}: removed after {seconds} s")
            fill(store, "d")
    assert contents(memory) == dict.fromkeys("abcd", 1)


def parquet(storage: MemoryStore) -> list[str]:
    return [file.path for file in storage.list("") if "/archive/" in file.path]


def test_failed_removal_is_reported_and_retried(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a failed removal is kept for reports, and the removal is tried again."""
    with embedded(memory) as store:
        store.map("m")["a"] = 1
        store.archive()
    rewrite(
        ClusterLog(Context(memory, clock=FakeClock()), "default", "embedded"),
        LocalEngine(Settings()),
    )
    monkeypatch.setattr(maintenance, "ARCHIVE_TICK_S", 0.1)
    faulty = FaultyStore(
        memory, Plan((Fault("error", kind="list", path="*/archive", at=2, times=1),))
    )
    with embedded(faulty, wal_ttl_seconds=1) as store:
        eventually(lambda: store.writer.maintenance.retention_error, "it fails")
        assert (
            "planned fault" in store.writer.maintenance.retention_error
            and not store.writer.maintenance.archive_error
        )
        eventually(
            lambda: not parquet(memory) and not store.writer.maintenance.retention_error,
            "it is tried again",
        )


@thorough
def test_removal_is_the_same_with_fewer_segments_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same files are removed if all segments are read, or only those that may be removed."""
    monkeypatch.setattr(removal, "MB", 1000)
    chance = Random(7)
    with imap_wal.open(
        f"{tmp_path.as_uri()}/log", node="n", preallocate=False, auto_rewrite_percentage=0
    ) as store:
        for number in range(14):
            store.map("m", raw=True)[b"%d" % number] = chance.randbytes(chance.randrange(1000))
            if number in (9, 12):
                store.map("other")[number] = number
            store.committer.rotate()
            if number in (1, 4):
                store.archive()
            if number == 12:
                run("rewrite", f"{tmp_path}/log", "--map", "m")
            if number == 10:
                run("rewrite", f"{tmp_path}/log", "--map", "other")
    now = FakeClock().now_ms() // 1000
    for age, path in enumerate(
        sorted(
            [*tmp_path.rglob("archive/*/*.parquet"), *tmp_path.rglob("*.wal")],
            key=lambda path: path.stat().st_mtime_ns,
        )
    ):
        os.utime(path, (now - 1000 + 10 * age, now - 1000 + 10 * age))
    seen = set()
    for ttl, limit in [(ttl, 0) for ttl in (1, 890, 930, 970, 2000)] + [
        (ttl, limit) for ttl in (0, 930) for limit in (1, 2, 3, 4, 9)
    ]:
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        storage = FaultyStore(LocalStore(str(tmp_path / "copy")))
        log = ClusterLog(Context(storage, clock=FakeClock()), "default", "embedded")
        state = log.state()
        expected = removal.part_to_remove(
            log, state.nodes["n"], plan_covered(Context(storage), state, "n", 2**62), ttl, limit
        )
        storage.operations.clear()
        removed = removal.remove_covered(
            log, "n", Settings(wal_ttl_seconds=ttl, wal_size_limit_mb=limit), 2**62
        )
        assert removed == expected, (ttl, limit)
        reads = {
            operation.path
            for operation in storage.operations
            if operation.kind == "read" and operation.path.endswith(".wal")
        }
        if not limit:
            assert len(reads) <= len(removed.segments) + 2, (
                "young segments are not read again and again"
            )
        seen.add((len(removed.archives), len(removed.segments)))
        shutil.rmtree(tmp_path / "copy")
    assert len(seen) > 4
