"""archive, rewrite, prune, drop: the log becomes smaller, and the maps do not change."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import imap_wal
from storage_backends.paths import TEMPORARY_PREFIX
from tests.cli.conftest import Run
from tests.kit.effort import thorough
from tests.kit.orders import LIVE


def live(run: Run, url: str) -> dict[str, object]:
    return {line["key"]: line["value"] for line in run("export", url, "--map", "orders").lines}


def test_archive_moves_sealed_segments_to_parquet(run: Run, url: str, root: Path) -> None:
    planned = run("archive", url, "--dry-run", "-o", "json").json
    assert planned["dry_run"]
    assert sum(node["segments"] for node in planned["nodes"]) == 2
    done = run("archive", url, "-o", "json").json
    assert sum(node["records"] for node in done["nodes"]) == 3
    assert list(root.rglob("*.wal")) == []
    assert live(run, url) == LIVE


def test_rewrite_keeps_the_newest_and_prune_frees_the_space(run: Run, url: str, root: Path) -> None:
    tried = run("rewrite", url, "--dry-run", "-o", "json").json["clusters"][0]
    assert tried["dry_run"]
    assert not (root / "prod/eu/snapshot").exists()
    done = run("rewrite", url, "-o", "json").json["clusters"][0]
    orders = next(each for each in done["maps"] if each["map"] == "orders")
    assert (orders["records_read"], orders["live"]) == (14, 9)
    assert live(run, url) == LIVE
    before = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert run("prune", url).code == 2, "no terminal to answer"
    assert run("prune", url, "--dry-run").code == 0
    pruned = run("prune", url, "--yes", "-o", "json").json["clusters"][0]
    assert pruned["archives"]
    assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) < before
    assert live(run, url) == LIVE
    assert run("verify", url).code == 0
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1") as store:
        assert dict(store.map("orders")) == LIVE


def test_what_a_killed_rewrite_left_is_named_and_removed(run: Run, url: str, root: Path) -> None:
    """By prune and verify; it is removed after a day, or when asked for."""
    assert run("rewrite", url).code == 0
    assert run("prune", url, "--yes").code == 0
    left = root / "prod/eu/snapshot/orders/00000077/part-00000-00000-x.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"0" * 5000)
    advice = "imap-wal prune --orphans-older-than 1m"
    for command in (("verify", url), ("prune", url, "--dry-run"), ("prune", url, "--yes")):
        done = run(*command)
        assert done.code == 0
        assert "1 snapshot file with 4.9 KiB" in done.err, command
        assert advice in done.err
    assert run("verify", url, "-o", "json").json["unfinished"]
    kept = run("prune", url, "--dry-run", "-o", "json").json["clusters"][0]["unfinished"]
    assert (kept["files"], kept["bytes"]) == (1, 5000)
    assert run("prune", url, "--orphans-older-than", "1h", "--yes").code == 0
    assert left.exists()
    os.utime(left, (time.time() - 90,) * 2)
    done = run("prune", url, "--orphans-older-than", "1m", "--yes", "-o", "json")
    assert done.json["clusters"][0]["bytes"] == 5000
    assert not left.exists()
    assert advice not in run("verify", url).err
    assert live(run, url) == LIVE


def test_the_unfinished_file_of_a_killed_rewrite_is_not_needed(
    run: Run, url: str, root: Path
) -> None:
    """No listing shows it, and a prune that had nothing else to remove left it there, silently."""
    assert run("rewrite", url).code == 0
    assert run("prune", url, "--yes").code == 0
    left = root / f"prod/eu/snapshot/orders/00000077/{TEMPORARY_PREFIX}0123"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"0" * 5000)
    assert "1 snapshot file with 4.9 KiB" in run("verify", url).err
    for removes in (("--dry-run",), ("--yes",)):
        pruned = run("prune", url, *removes, "-o", "json").json["clusters"][0]
        assert (len(pruned["snapshot_files"]), pruned["bytes"]) == (1, 5000)
        assert left.exists() == ("--dry-run" in removes)
    assert "snapshot file" not in run("verify", url).err
    left.parent.mkdir(parents=True)
    with left.open("wb") as file:  # of a rewrite that runs
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run("prune", url, "--yes", "-o", "json").json["clusters"][0]["bytes"] == 0
        assert left.exists()


def test_rewrite_of_one_map_leaves_the_others(run: Run, url: str) -> None:
    done = run("rewrite", url, "--map", "sessions", "-o", "json").json["clusters"][0]
    assert [each["map"] for each in done["maps"]] == ["sessions"]
    assert live(run, url) == LIVE


def test_drop_forgets_a_map_and_only_that(run: Run, url: str) -> None:
    assert "would forget" in run("drop", url, "--map", "orders", "--dry-run").out
    assert live(run, url) == LIVE
    assert run("drop", url, "--map", "orders", "--yes").code == 0
    assert live(run, url) == {}
    assert len(run("export", url, "--map", "sessions").lines) == 1
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1") as store:
        assert dict(store.map("orders")) == {}
        store.map("orders")["new"] = 1
    assert live(run, url) == {"new": 1}
    assert run("drop", url, "--map", "nosuch", "--yes").code == 1
    assert run("drop", url, "--yes").code == 2


def test_a_map_whose_snapshot_is_damaged_can_be_dropped(run: Run, url: str, root: Path) -> None:
    assert run("rewrite", url).code == 0
    assert run("prune", url, "--yes").code == 0
    for file in root.rglob("snapshot/orders/*/*.parquet"):
        file.write_bytes(b"")
    assert run("drop", url, "--map", "orders", "--yes").code == 0
    assert run("drop", url, "--map", "orders", "--yes").code == 1
    assert run("verify", url).code == 0


def test_a_map_whose_only_file_is_damaged_can_be_dropped(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "log"
    with imap_wal.open(str(url), node="n1") as store:
        store.map("orders")["a"] = 1
        store.map("sessions")["s"] = 1
        store.archive()
    (path,) = url.rglob("archive/orders/*.parquet")
    path.write_bytes(bytes(path.stat().st_size))
    asked = run("drop", url, "--map", "orders")
    assert asked.code == 2
    assert "an unknown number of entries (1 file is damaged:" in " ".join(asked.err.split())
    done = run("drop", url, "--map", "orders", "--yes", "-o", "json")
    assert done.code == 0, done.err
    assert done.json["dropped"][0]["damaged"] == [path.relative_to(url).as_posix()]
    assert live(run, str(url)) == {}
    assert len(run("export", url, "--map", "sessions").lines) == 1


@pytest.mark.parametrize("damaged", [0, 1])
def test_drop_names_no_damaged_file_of_a_map_with_entries(
    run: Run, tmp_path: Path, damaged: int
) -> None:
    """Whichever file is damaged: the map has entries in any case."""
    url = tmp_path / "log"
    with imap_wal.open(str(url), node="n1") as store:
        for key in "ab":
            store.map("orders")[key] = 1
            store.archive()
    path = sorted(url.rglob("archive/orders/*.parquet"))[damaged]
    path.write_bytes(bytes(path.stat().st_size))
    done = run("drop", url, "--map", "orders", "--dry-run", "-o", "json")
    assert done.code == 0, done.err
    assert done.json["dropped"][0]["damaged"] == []


def test_drop_refuses_while_a_node_is_missing(run: Run, url: str, root: Path) -> None:
    (root / "prod/eu/nodes/n2").rename(root / "elsewhere")
    ended = run("drop", url, "--map", "orders", "--yes")
    assert ended.code == 1
    assert "'n2'" in ended.err


@thorough
@pytest.mark.spark
def test_both_engines_are_reached_from_the_command_line(url: str) -> None:
    command = [
        sys.executable,
        "-m",
        "rewrite_cli.cli",
        "rewrite",
        url,
        "--engine",
        "spark",
        "-o",
        "json",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert '"engine": "spark"' in ended.stdout


def test_maps_with_the_longest_names_are_rewritten_and_pruned(run: Run, tmp_path: Path) -> None:
    names = ["m" * 1024, "." * 1024, "🙂" * 256]
    with imap_wal.open(tmp_path / "maps") as store:
        for name in names:
            store.map(name)["a"] = 1
        store.archive()
    assert run("rewrite", tmp_path / "maps").code == 0
    assert run("prune", tmp_path / "maps", "--yes").code == 0
    with imap_wal.open(tmp_path / "maps") as store:
        assert {name: dict(store.map(name)) for name in store.maps()} == {
            name: {"a": 1} for name in names
        }


def test_a_dry_run_of_prune_refuses_what_the_run_refuses(run: Run, url: str, root: Path) -> None:
    assert run("rewrite", url).code == 0
    (part,) = (root / "prod/eu/snapshot/orders").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    dry, ended = run("prune", url, "--dry-run"), run("prune", url, "--yes")
    assert (dry.code, dry.err) == (ended.code, ended.err)
    assert (dry.code, part.name in dry.err) == (1, True), dry.err
