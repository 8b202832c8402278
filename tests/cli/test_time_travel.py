"""Commands that read a former moment, and those that keep what they need."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.read.file_scan import SNAPSHOT, EntryBatch, FileScan
from imap_wal.read.scan import read_scan
from tests.cli.conftest import Run
from tests.kit.effort import thorough


def moment() -> str:
    """Between two changes: none before or after it has the same millisecond."""
    now = _later_than(SystemClock().now_ms())
    _later_than(now)
    return f"@{now}"


def _later_than(time_ms: int) -> int:
    while (now := SystemClock().now_ms()) <= time_ms:
        time.sleep(0.0005)
    return now


@pytest.fixture
def compacted(tmp_path: Path) -> list[str]:
    """The moments after the first, the second and the third value of a key."""
    then = []
    with imap_wal.open(tmp_path / "maps", history_s=3600, auto_rewrite_percentage=0) as store:
        orders = store.map("orders")
        for value in ("one", "two"):
            orders["a"] = value
            orders[value] = 1
            then.append(moment())
            store.compact()
        del orders["a"], orders["one"]
        then.append(moment())
        store.compact()
        orders["a"] = "four"
    return then


def test_every_command_reads_former_moments(run: Run, tmp_path: Path, compacted: list[str]) -> None:
    root = tmp_path / "maps"

    def exported(place: Path, *words: str) -> dict[str, object]:
        found = run("export", place, *words).lines
        return {line["key"]: line["value"] for line in found}

    states = [exported(root, "--as-of", each) for each in compacted]
    assert states == [{"a": "one", "one": 1}, {"a": "two", "one": 1, "two": 1}, {"two": 1}]
    assert run("get", root, "--map", "orders", "a", "--as-of", compacted[1]).out.count("two") == 1
    gone = run("get", root, "--map", "orders", "a", "--as-of", compacted[2])
    assert (gone.code, "was deleted" in gone.err) == (1, True)
    ended = run("diff", root, "--as-of", compacted[0], "--as-of", compacted[2], "-o", "json")
    assert [(each["added"], each["removed"]) for each in ended.json["maps"]] == [(1, 2)]
    sql = run("query", root, "from orders", "--as-of", compacted[0], "-o", "json").lines
    assert {line["key_text"] for line in sql} == {"a", "one"}
    assert run("restore", root, "--to", tmp_path / "old", "--as-of", compacted[1]).code == 0
    assert exported(tmp_path / "old") == states[1]
    refused = run("rewrite", root, "--as-of", compacted[0])
    assert (refused.code, "is no longer known" in refused.err) == (2, True)


@thorough
def test_prune_and_doctor_say_what_a_history_costs(
    run: Run, tmp_path: Path, compacted: list[str]
) -> None:
    root = tmp_path / "maps"
    pruned = run("prune", root, "--yes")
    assert "kept for the history, so that each moment since the start of the log" in pruned.err
    (kept,) = run("prune", root, "--yes", "-o", "json").json["clusters"][0]["kept"]
    assert (kept["reader"], kept["begins_ms"], kept["log_bytes"] > 0) == ("history", 0, True)
    assert "the history since the start of the log keeps" in run("doctor", root).out
    assert run("prune", root, "--forget-reader", "history", "--yes").code == 0
    assert "is no longer known" in run("export", root, "--as-of", compacted[0]).err
    assert run("get", root, "--map", "orders", "a", "--as-of", compacted[0]).code == 1


def test_offline_commands_keep_a_history(run: Run, tmp_path: Path) -> None:
    for command in ("rewrite", "prune"):
        root = tmp_path / command
        with imap_wal.open(root, auto_rewrite_percentage=0) as store:
            store.map("orders")["a"] = 1
            then = moment()
            store.map("orders")["a"] = 2
        assert run("rewrite", root, "--history", "7d", "--dry-run").code == 0
        assert not list(root.rglob("readers"))
        if command == "prune":
            assert run("prune", root, "--history", "7d").code == 0
            assert run("rewrite", root).code == 0
        else:
            assert run("rewrite", root, "--history", "7d").code == 0
        assert run("prune", root, "--yes").code == 0
        assert [each["value"] for each in run("export", root, "--as-of", then).lines] == [1]


@thorough
def test_former_moments_are_read_while_the_log_is_archived(
    run: Run, tmp_path: Path, compacted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: each archive run removes files that the reader has planned to read."""
    root, then = tmp_path / "maps", compacted[1]
    with imap_wal.open(root, history_s=3600, auto_rewrite_percentage=0) as store:

        def archiving(
            place: Context, scan: FileScan, *arguments: Any, **options: Any
        ) -> Iterator[EntryBatch]:
            if scan.kind != SNAPSHOT:
                store.archive()
                store.map("orders")["later"] = scan.path  # in a new segment
            return read_scan(place, scan, *arguments, **options)

        store.map("orders")["later"] = 1
        monkeypatch.setattr("imap_wal.read.cluster.read_scan", archiving)
        exported = run("export", root, "--as-of", then).lines
        got = run("get", root, "--map", "orders", "a", "--as-of", then)
    assert {line["key"]: line["value"] for line in exported} == {"a": "two", "one": 1, "two": 1}
    assert (got.code, got.out.count("two")) == (0, 1)


@thorough
def test_a_backup_has_the_former_moments(run: Run, tmp_path: Path) -> None:
    """Those that need a former snapshot too."""
    root, copy = tmp_path / "maps", tmp_path / "copy"
    with imap_wal.open(root, auto_rewrite_percentage=0) as store:
        store.map("orders")["a"] = "one"
        store.compact()
    with imap_wal.open(root, history_s=3600, auto_rewrite_percentage=0) as store:
        then = moment()
        store.map("orders")["a"] = "two"
        store.compact()
    assert run("backup", root, tmp_path / "backups").code == 0
    assert run("backup-restore", tmp_path / "backups", copy).code == 0
    for place in (root, copy):
        assert [each["value"] for each in run("export", place, "--as-of", then).lines] == ["one"]
