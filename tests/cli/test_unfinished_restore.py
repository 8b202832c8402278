"""`restore --to` that does not end leaves nothing that opens as a smaller log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import CorruptLog
from rewrite_cli.commands.copies import restore
from storage_backends import NoSpace
from tests.cli.conftest import Run

UNFINISHED = "a restore into this place has not ended"


def test_a_copy_that_did_not_end_cannot_be_opened(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk was full after the first map: the copy opened, and the second map was empty."""
    root, copy = tmp_path / "maps", tmp_path / "copy"
    for namespace in ("one", "two"):
        with imap_wal.open(root, namespace=namespace) as store:
            store.map("a")["k"] = 1
            store.map("b")["k"] = 2
    append, calls = restore._append, 0

    def full(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise NoSpace("the disk is full", "file")
        append(*arguments)

    monkeypatch.setattr(restore, "_append", full)
    assert run("restore", root, "--to", copy).code == 1
    for namespace in ("one", "two", "new"):
        with pytest.raises(CorruptLog, match=UNFINISHED):
            imap_wal.open(copy, namespace=namespace)
    again = run("restore", root, "--to", copy)
    assert again.code == 1 and UNFINISHED in again.err
    calls = 4
    whole = tmp_path / "whole"
    assert run("restore", root, "--to", whole).code == 0
    for namespace in ("one", "two"):
        with imap_wal.open(whole, namespace=namespace) as store:
            assert [dict(store.map(name).items()) for name in "ab"] == [{"k": 1}, {"k": 2}]
