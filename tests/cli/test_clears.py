"""A map that was cleared, in the commands that read and copy a log."""

from __future__ import annotations

from pathlib import Path

import pytest

import imap_wal
from tests.cli.conftest import Run
from tests.support import FakeClock

BEFORE = {f"k{number}": number for number in range(20)}
AFTER = {"k3": "after", "new": "after"}


@pytest.fixture(params=["segment", "archive"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    clock = FakeClock()
    with imap_wal.open(tmp_path / "maps", node="n1", clock=clock) as store:
        orders = store.map("orders")
        orders.update(BEFORE)
        store.map("other")["kept"] = 1
        clock.advance(60)
        orders.clear()
        clock.advance(60)
        orders.update(AFTER)
        if request.param == "archive":
            store.archive()
    return tmp_path / "maps"


def held(root: Path) -> dict[str, object]:
    with imap_wal.open(root, node="n1") as store:
        assert dict(store.map("other")) == {"kept": 1}
        return dict(store.map("orders"))


def test_export_shows_what_a_clear_left(run: Run, root: Path) -> None:
    """Now, and at an earlier time."""

    def exported(*more: str) -> dict[str, object]:
        return {
            line["key"]: line["value"]
            for line in run("export", root, "--map", "orders", *more).lines
        }

    start = FakeClock().now_ms()
    assert exported() == AFTER
    assert exported("--as-of", f"@{start + 59_999}") == BEFORE
    assert exported("--as-of", f"@{start + 60_000}") == {}


def test_dump_shows_a_clear_in_its_place(run: Run, root: Path) -> None:
    lines = run("dump", root, "--map", "orders", "-o", "json").lines
    assert [line["cleared"] for line in lines] == [None] * 20 + [[0, 1]] + [None] * 2
    assert (lines[20]["key"], lines[20]["key_bytes"], lines[20]["deleted"]) == (None, None, True)
    assert [line["position"] for line in lines] == sorted(line["position"] for line in lines)
    assert "orders cleared (partition 0 of 1)" in run("dump", root, "--key", "k3").out


def test_stat_counts_cleared_entries_as_dead(run: Run, root: Path) -> None:
    """`verify` finds no damage."""
    counts = {count["map"]: count for count in run("stat", root, "-o", "json").json["maps"]}
    assert (counts["orders"]["records"], counts["orders"]["live"], counts["orders"]["dead"]) == (
        23,
        2,
        21,
    )
    ended = run("verify", root, "-o", "json")
    assert ended.code == 0, ended.out


def test_repair_and_restore_keep_what_a_clear_left(run: Run, root: Path, tmp_path: Path) -> None:
    assert run("repair", root, "--to", tmp_path / "copy").code in (0, 3)
    assert held(tmp_path / "copy") == AFTER
    ended = run("restore", root, "--to", tmp_path / "restored")
    assert ended.code == 0, ended.err
    assert held(root) == AFTER


def test_a_rewrite_and_a_prune_leave_what_is_left(run: Run, root: Path) -> None:
    assert run("rewrite", root).code == 0
    assert run("prune", root, "--yes").code == 0
    (snapshot,) = [
        line for line in run("stat", root, "-o", "json").json["maps"] if line["map"] == "orders"
    ]
    assert (snapshot["records"], snapshot["live"]) == (2, 2)
    assert held(root) == AFTER
