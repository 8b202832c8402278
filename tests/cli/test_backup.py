"""`imap-wal backup` and `imap-wal backup-restore`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import imap_wal
from imap_wal.backup import catalogue
from imap_wal.errors import CorruptLog
from imap_wal.placement import open_store
from tests.cli.conftest import Run
from tests.kit.effort import every
from tests.kit.orders import LIVE

CLI = [sys.executable, "-m", "rewrite_cli.cli"]


def entries(run: Run, url: object) -> dict[str, object]:
    return {line["key"]: line["value"] for line in run("export", url, "--map", "orders").lines}


@every(2)
@pytest.mark.parametrize("scheme", ["", "objects+file://", "memory://"])
def test_a_backup_is_restored_with_its_history(
    run: Run, url: str, tmp_path: Path, scheme: str
) -> None:
    target = f"{scheme}{tmp_path}/backups"
    made = run("backup", url, target, "-o", "json")
    assert (made.code, made.json["backup"], made.json["clusters"]) == (0, 1, ["prod/eu"])
    restored = run("backup-restore", target, tmp_path / "again")
    assert restored.code == 0, restored.err
    assert run("verify", tmp_path / "again").code == 0
    assert run("doctor", tmp_path / "again").code == 0
    assert (
        run("dump", tmp_path / "again", "-o", "json").lines == run("dump", url, "-o", "json").lines
    )
    with imap_wal.open(tmp_path / "again", namespace="prod", cluster="eu", node="n1") as store:
        store.map("orders")["new"] = 1
    assert entries(run, tmp_path / "again") == {**LIVE, "new": 1}


def test_only_new_content_is_copied(run: Run, url: str, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    first = run("backup", url, target, "-o", "json").json
    assert first["copied_bytes"] > 1000
    again = run("backup", url, target, "-o", "json").json
    assert (again["backup"], again["copied_bytes"]) == (2, 0)
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1") as store:
        store.map("orders")["o1"] = "x" * 100_000
    third = run("backup", url, target, "-o", "json").json
    assert 0 < third["copied_bytes"] < 110_000
    assert third["copied_chunks"] < third["files"]


def test_old_backups_are_removed_and_the_rest_stays_whole(
    run: Run, url: str, tmp_path: Path
) -> None:
    target = tmp_path / "backups"
    for number in range(4):
        with imap_wal.open(url, namespace="prod", cluster="eu", node="n1") as store:
            store.map("orders")["turn"] = os.urandom(1000) + bytes([number])
            store.archive()
        ended = run("backup", url, target, "--keep", 2, "-o", "json")
    assert ended.json["removed"] == [2]
    assert ended.json["freed_bytes"] > 1000
    kept = run("backup-restore", target, "-o", "json").json["backups"]
    assert [each["backup"] for each in kept] == [3, 4]
    for number in (3, 4):
        assert run("backup-restore", target, "--verify", "--backup", number).code == 0
    assert (
        "no backup 1; found: 3, 4"
        in run("backup-restore", target, tmp_path / "x", "--backup", 1).err
    )
    assert len(run("backup-restore", target).out.splitlines()) == 3
    assert "removed 1 old backup, which frees" in run("backup", url, target, "--keep", 2).out


def test_damage_of_a_backup_is_found_and_mended(run: Run, url: str, tmp_path: Path) -> None:
    """One chunk has another content, another one is too short, a third is missing."""
    target = tmp_path / "backups"
    assert run("backup", url, target).code == 0
    chunks = sorted((target / "chunks").rglob("*-*"))
    content = chunks[0].read_bytes()
    chunks[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    chunks[1].write_bytes(chunks[1].read_bytes()[:-1])
    chunks[2].unlink()
    found = run("backup-restore", target, "--verify", "-o", "json")
    assert (found.code, len(found.json["damaged"])) == (3, 3)
    refused = run("backup-restore", target, tmp_path / "again")
    assert refused.code == 1
    assert "part of a backup" in refused.err
    mended = run("backup", url, target, "--verify", "-o", "json").json
    assert (mended["replaced_chunks"], mended["copied_chunks"]) == (2, 2)
    assert run("backup-restore", target, "--verify", "--backup", 1).code == 0
    assert run("backup-restore", target, tmp_path / "again").code == 1, "it is of another backup"
    words = (tmp_path / "again", "--backup", 1, "--verify", "-o", "json")
    assert run("backup-restore", target, *words).json["to"], "one document"
    assert entries(run, tmp_path / "again") == LIVE


@every(2)
@pytest.mark.parametrize("kind", ["segment", "manifest", "archive"])
def test_a_failed_restore_is_not_taken_for_a_log(
    run: Run, url: str, root: Path, tmp_path: Path, kind: str
) -> None:
    """The advice is to run the restore again: a repair would accept the loss of what is missing."""
    target, again = tmp_path / "backups", tmp_path / "again"
    assert run("backup", url, target).code == 0
    files = catalogue.read(open_store(f"file://{target}"), 1).files
    fitting = {
        "segment": "nodes/n1/wal/0",
        "manifest": "prod/eu/manifest/",
        "archive": "/archive/",
    }
    lost = next(each for each in files if fitting[kind] in each.path and each.chunks)
    for name in lost.chunks:
        chunk = target / catalogue.chunk_path(name)
        chunk.rename(tmp_path / "kept")
    assert run("backup-restore", target, again).code == 1
    assert not list(again.glob("prod/eu/manifest/*"))
    with pytest.raises(CorruptLog, match="backup-restore` again"):
        imap_wal.open(again, namespace="prod", cluster="eu", node="n1")
    for command in (["ls"], ["verify"], ["restore"], ["prune", "--yes"]):
        said = run(command[0], again, *command[1:])
        assert "imap-wal-restore.txt" in said.err, command
        assert "run the same `imap-wal backup-restore` again" in said.err
    (tmp_path / "kept").rename(chunk)
    assert run("backup", url, target).code == 0
    refused = run("backup-restore", target, again)
    assert refused.code == 1
    assert "a restore of backup 1 into this place has not ended" in refused.err
    assert run("backup-restore", target, again, "--backup", 1).code == 0
    assert "imap-wal-restore.txt" not in run("ls", again).err
    assert entries(run, again) == LIVE


def test_two_runs_exclude_each_other(run: Run, url: str, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/backups")
    with store.lock("writer.lock", "the first run"):
        ended = run("backup", url, tmp_path / "backups")
    assert ended.code == 4
    assert "the first run" in ended.err
    assert run("backup", url, tmp_path / "backups").code == 0


def test_a_backup_is_neither_inside_nor_around_the_log(run: Run, url: str, root: Path) -> None:
    assert run("backup", url, root / "backups").code == 1
    assert run("backup", url, root.parent).code == 1
    assert run("backup", url, root.parent / "b").code == 0
    assert run("backup-restore", root.parent / "b", url).code == 1, "there is a log already"


def test_a_log_with_a_missing_node_is_not_backed_up(run: Run, url: str, root: Path) -> None:
    (root / "prod/eu/nodes/n2").rename(root.parent / "away")
    ended = run("backup", url, root.parent / "b")
    assert ended.code == 1
    assert "n2" in ended.err
    assert run("backup-restore", root.parent / "b").code == 1


def test_segments_on_another_disk_are_copied_too(run: Run, tmp_path: Path) -> None:
    root, fast = tmp_path / "log", tmp_path / "fast"
    with imap_wal.open(root, wal_dir=fast) as store:
        store.map("m")["k"] = 1
    assert run("backup", root, tmp_path / "b").code == 0
    assert run("backup-restore", tmp_path / "b", tmp_path / "again").code == 0
    assert run("export", tmp_path / "again").lines[0]["value"] == 1
    other = ("--wal-dir", tmp_path / "other")
    assert run("backup-restore", tmp_path / "b", tmp_path / "split", *other).code == 0
    assert not list((tmp_path / "split").rglob("*.wal"))
    assert run("export", tmp_path / "split", *other).lines[0]["value"] == 1


@every(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_is_completed_by_the_next(
    run: Run, url: str, tmp_path: Path, number: signal.Signals
) -> None:
    """The process ends while it writes its third chunk."""
    program = """
import os, sys
import imap_wal.backup.run as run
import rewrite_cli.cli

number, put, count = int(sys.argv.pop()), run._Chunks.put, []

def third(chunks, data):
    count.append(1)
    if len(count) == 3:
        os.kill(os.getpid(), number)
    return put(chunks, data)

run._Chunks.put = third
rewrite_cli.cli.main()
"""
    target = tmp_path / "backups"
    process = subprocess.run(
        [sys.executable, "-c", program, "backup", url, str(target), str(int(number))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert process.returncode == (-9 if number == signal.SIGKILL else 143), process.stderr
    assert run("backup-restore", target).code == 1, "nothing is visible"
    made = run("backup", url, target, "-o", "json").json
    assert made["backup"] == 1
    assert made["copied_chunks"] < made["files"]
    assert run("backup-restore", target, tmp_path / "again").code == 0
    assert entries(run, tmp_path / "again") == LIVE


def test_an_encrypted_log_is_copied_without_its_keys(run: Run, tmp_path: Path) -> None:
    key = run("encryption-key", "new").out.strip().splitlines()[-1]
    os.environ["NIGHT_KEY"] = key
    try:
        with imap_wal.open(tmp_path / "log", encryption_keys="env:NIGHT_KEY") as store:
            store.map("m")["k"] = 1
            store.archive()
        assert run("backup", tmp_path / "log", tmp_path / "b").code == 0
        assert run("backup-restore", tmp_path / "b", tmp_path / "again").code == 0
        with imap_wal.open(tmp_path / "again", encryption_keys="env:NIGHT_KEY") as store:
            assert store.map("m")["k"] == 1
    finally:
        del os.environ["NIGHT_KEY"]
