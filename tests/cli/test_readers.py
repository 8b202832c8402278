"""`imap-wal prune` and the readers that follow a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.layout import cluster_folder
from imap_wal.manifest import readers
from imap_wal.manifest.reader_manifest import Base
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention import kept
from storage_backends import NotFound, open_store
from tests.cli.conftest import Run
from tests.kit.effort import thorough
from tests.support import FakeClock


def test_prune_names_readers_and_forgets_them(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "log"
    for number in range(3):
        with imap_wal.open(str(url), node="n1") as store:
            store.map("orders")["k"] = number
    folder = cluster_folder("default", "embedded")
    storage = open_store(str(url))
    readers.Reader(Context(storage), folder, "copy").begin({})
    assert run("rewrite", url).code == 0
    kept = run("prune", url, "--yes", "-o", "json")
    assert kept.code == 0 and kept.json["clusters"][0]["segments"] == []
    (copy,) = kept.json["clusters"][0]["kept"]
    assert copy["reader"] == "copy" and copy["log_bytes"] > 0 and not copy["is_stale"]
    assert "kept for reader 'copy', which is at the start" in run("prune", url, "--yes").err
    assert "reader 'copy' keeps" in run("doctor", url).out
    wrong = run("prune", url, "--yes", "--forget-reader", "other")
    assert wrong.code != 0 and "there is no reader 'other'; found: copy" in wrong.err
    done = run("prune", url, "--yes", "-o", "json", "--forget-reader", "copy")
    assert len(done.json["clusters"][0]["segments"]) == 2
    assert "audit: reader forgotten" in done.err and done.json["clusters"][0]["kept"] == []


def test_a_reader_that_may_be_gone_is_named(run: Run, tmp_path: Path) -> None:
    """The text says what it keeps, and what to do about it."""
    url = tmp_path / "log"
    folder = cluster_folder("default", "embedded")
    storage = open_store(str(url))
    for number in range(2):
        with imap_wal.open(str(url), node="n1") as store:
            store.map("orders")["k"] = number
    assert run("rewrite", url).code == 0
    old = FakeClock(SystemClock().now_ms() - 8 * 86_400_000)
    copy = readers.Reader(Context(storage, clock=old), folder, "copy")
    copy.begin({})
    manifest = ClusterLog(Context(storage), "default", "embedded").manifest()
    copy.propose(Base({}, {}, manifest.snapshots, manifest.versions))
    with imap_wal.open(str(url), node="n1") as store:
        store.map("orders")["k"] = 3
    assert run("rewrite", url).code == 0
    pruned = run("prune", url, "--yes")
    assert "1 file of former snapshots" in pruned.err
    assert "--forget-reader copy" in pruned.err
    assert "--forget-reader copy" in run("doctor", url).out
    kept = run("prune", url, "--yes", "-o", "json").json["clusters"][0]["kept"][0]
    assert kept["snapshot_bytes"] == manifest.snapshots["orders"].bytes > 0
    run("prune", url, "--yes", "--forget-reader", "copy")
    assert not any(storage.exists(path) for path in manifest.snapshots["orders"].paths)


@thorough
def test_a_reader_whose_manifest_is_damaged_can_be_forgotten(run: Run, tmp_path: Path) -> None:
    """Until then, every command that removes something refuses, and says what to do."""
    url = tmp_path / "log"
    with imap_wal.open(str(url), history_s=3600, auto_rewrite_percentage=0) as store:
        store.map("orders")["k"] = 1
        store.compact()
    (manifest,) = url.rglob("readers/history/manifest/*.json")
    manifest.write_bytes(manifest.read_bytes().replace(b"positions", b"pasitions"))
    for command in (("prune", url, "--yes"), ("doctor", url), ("verify", url)):
        refused = run(*command)
        assert refused.code != 0, command
        assert "--forget-reader history" in refused.out + refused.err, command
    wrong = run("prune", url, "--yes", "--forget-reader", "other")
    assert "there is no reader 'other'; found: history" in wrong.err
    assert run("prune", url, "--yes", "--forget-reader", "history").code == 0
    assert run("verify", url).code == 0
    again = run("prune", url, "--yes", "--forget-reader", "history")
    assert "there is no reader 'history'; found: none" in again.err
    with imap_wal.open(str(url), history_s=3600, auto_rewrite_percentage=0) as store:
        store.compact()
    assert run("prune", url, "--yes", "-o", "json").json["clusters"][0]["kept"]


def test_a_reader_is_forgotten_only_after_the_question(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "log"
    folder = cluster_folder("default", "embedded")
    with imap_wal.open(str(url), history_s=3600, auto_rewrite_percentage=0) as store:
        store.map("orders")["k"] = 1
        store.compact()
    storage = open_store(str(url))
    asked = run("prune", url, "--forget-reader", "history")
    assert asked.code == 2 and "Forget reader 'history'" in asked.err
    assert "history" in readers.readers_of(storage, folder)
    assert run("prune", url, "--yes", "--forget-reader", "history").code == 0
    assert not readers.readers_of(storage, folder)


def test_a_plan_shows_what_a_forgotten_reader_frees(run: Run, tmp_path: Path) -> None:
    """The question names it too, and a history is shortened only after the question."""
    url = tmp_path / "log"
    for number in range(3):
        with imap_wal.open(str(url), node="n1", auto_rewrite_percentage=0) as store:
            store.map("orders")["k"] = number
        assert run("rewrite", url, "--history", "1h").code == 0
    before = [path.read_bytes() for path in sorted(url.rglob("readers/history/manifest/*.json"))]
    planned = run("prune", url, "--dry-run", "--forget-reader", "history", "-o", "json")
    assert "would forget reader 'history'" in planned.err and "are kept for it" in planned.err
    (plan,) = planned.json["clusters"]
    assert plan["segments"] and plan["snapshot_files"] and plan["kept"] == []
    files = len(plan["segments"] + plan["archives"] + plan["snapshot_files"])
    asked = run("prune", url, "--forget-reader", "history")
    assert asked.code == 2 and f"remove {files} files" in " ".join(asked.err.split())
    shortened = run("prune", url, "--history", "1s", "--max-clock-skew", "1h")
    assert shortened.code == 2 and "Keep only the last 1.0 s of the history" in shortened.err
    left = [path.read_bytes() for path in sorted(url.rglob("readers/history/manifest/*.json"))]
    assert left == before
    (done,) = run("prune", url, "--yes", "--forget-reader", "history", "-o", "json").json[
        "clusters"
    ]
    assert done["segments"] == plan["segments"]
    assert done["snapshot_files"] == plan["snapshot_files"]


def test_a_rewrite_says_what_prune_will_keep(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "log"
    for number in range(2):
        with imap_wal.open(str(url), node="n1", auto_rewrite_percentage=0) as store:
            store.map("orders")["k"] = "x" * 10_000 * (number + 1)
    assert "less what" not in run("rewrite", url, "--dry-run").out
    planned = run("rewrite", url, "--history", "1h", "--dry-run")
    assert "KiB, less what is kept for the history\n" in planned.out
    done = run("rewrite", url, "--history", "1h")
    assert "KiB, less what is kept: about " in done.out and "for the history\n" in done.out
    (pruned,) = run("prune", url, "--yes", "-o", "json").json["clusters"]
    assert pruned["bytes"] == 0
    kept = run("rewrite", url, "-o", "json").json["clusters"][0]["kept"]
    assert [{**each, "idle_ms": 0} for each in kept] == [
        {**each, "idle_ms": 0} for each in pruned["kept"]
    ]


@pytest.mark.parametrize("failures", [1, 100])
def test_a_reader_that_publishes_meanwhile_fails_no_rewrite(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The lists that it replaces are deleted. What is kept for readers is read once more, and if
    that is not enough, the rewrite is done all the same."""
    url, left = tmp_path / "log", iter(range(failures))
    with imap_wal.open(str(url), auto_rewrite_percentage=0) as store:
        store.map("orders")["k"] = 1
    assert run("rewrite", url, "--history", "1h").code == 0

    def racing(*arguments: Any) -> Any:
        if next(left, None) is not None:
            raise NotFound("it was deleted", "readers/copy/list")
        return readers.readers_of(*arguments)

    monkeypatch.setattr(kept, "readers_of", racing)
    done = run("rewrite", url, "-o", "json")
    assert done.code == 0, done.err
    assert len(done.json["clusters"][0]["kept"]) == (failures == 1)
    assert ("it was deleted" in done.err) == (failures > 1)


@thorough
def test_a_repaired_copy_names_the_readers_it_lacks(run: Run, tmp_path: Path) -> None:
    url, folder = tmp_path / "log", cluster_folder("default", "embedded")
    with imap_wal.open(str(url), history_s=3600, auto_rewrite_percentage=0) as store:
        store.map("orders")["k"] = 1
        store.compact()
    storage = open_store(str(url))
    readers.Reader(Context(storage), folder, "copy").begin({})
    done = run("repair", url, "--to", tmp_path / "again")
    assert done.code == 0, done.err
    assert "no former moment" in done.err and "does not have reader 'copy'" in done.err
