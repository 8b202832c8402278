"""`imap-wal prune` and the readers that follow a log."""

from __future__ import annotations

from pathlib import Path

import imap_wal
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.layout import cluster_folder
from imap_wal.manifest import readers
from storage_backends import open_store
from tests.cli.conftest import Run


def test_prune_names_readers_and_forgets_them(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "log"
    for number in range(3):
        with imap_wal.open(str(url), node="n1") as store:
            store.map("orders")["k"] = number
    folder = cluster_folder("default", "embedded")
    storage = open_store(str(url))
    readers.Reader(storage, folder, "copy", SystemClock(), SystemRandomness()).begin({})
    assert run("rewrite", url).code == 0
    kept = run("prune", url, "--yes", "-o", "json")
    assert kept.code == 0 and kept.json["clusters"][0]["segments"] == []
    assert "what reader 'copy' has not read is kept" in run("prune", url, "--yes").err
    wrong = run("prune", url, "--yes", "--forget-reader", "other")
    assert wrong.code != 0 and "there is no reader 'other'; there is copy" in wrong.err
    done = run("prune", url, "--yes", "-o", "json", "--forget-reader", "copy")
    assert len(done.json["clusters"][0]["segments"]) == 2
    assert "audit: reader forgotten" in done.err
