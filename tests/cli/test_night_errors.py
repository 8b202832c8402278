"""Mistakes that would look like an empty log: an unknown map, a time before the log; and what is
written of a log that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

import imap_wal
from tests.cli.conftest import Run

COMMANDS = ("dump", "export", "restore", "rewrite", "query", "stat", "drop")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_map_is_an_error(run: Run, url: str, name: str) -> None:
    """Also beside a map that there is; the error names the maps."""
    extra = ("--yes",) if name == "drop" else ()
    for words in (("--map", "oders"), ("--map", "oders", "--map", "orders")):
        ended = run(name, url, *words, *extra)
        assert (ended.code, ended.out) == (1, "")
        assert "no map 'oders'; did you mean 'orders'?; there is orders, sessions" in ended.err


def test_an_unknown_map_leaves_no_file(run: Run, url: str, tmp_path: Path) -> None:
    target = tmp_path / "backup.jsonl"
    assert run("export", url, "--map", "oders", "--to", target).code == 1
    assert run("restore", url, "--map", "oders", "--to", tmp_path / "copy").code == 1
    assert not target.exists()
    assert not (tmp_path / "copy").exists()


def test_a_map_is_known_by_any_entry_of_it(run: Run, tmp_path: Path) -> None:
    """In the last segment only, deleted, in an archive only, or in a snapshot only."""
    with imap_wal.open(tmp_path.as_uri(), node="n1", preallocate=False) as store:
        store.map("archived")["k"] = 1
        store.archive()
        store.map("deleted")["k"] = 1
        del store.map("deleted")["k"]
    with imap_wal.open(tmp_path.as_uri(), node="n2", preallocate=False) as store:
        store.map("last")["k"] = 1
    assert run("drop", tmp_path, "--map", "archived", "--yes").code == 0
    assert run("prune", tmp_path, "--yes").code == 0
    for name in ("archived", "deleted", "last"):
        assert run("export", tmp_path, "--map", name).code == 0
    ended = run("export", tmp_path, "--map", "other")
    assert ended.code == 1
    assert "there is archived, deleted, last" in ended.err
