"""Cases that were found by hand: files of a log were restored from a copy, or are missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.context import open_context
from imap_wal.embedded.store import Store
from imap_wal.errors import CorruptLog, ImapWalError, LogError
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from storage_backends import open_store
from tests.kit.actors import NODE, compact, log_of
from tests.kit.effort import every


def written(root: Path, **options: Any) -> None:
    with imap_wal.open(str(root), node="n1", preallocate=False, **options) as store:
        for number in range(10):
            store.map("m").update({f"k{number}-{index}": index for index in range(10)})
            if number % 3 == 2:
                store.archive()


def test_an_older_manifest_of_a_node_is_refused(tmp_path: Path) -> None:
    """C5: it opened with fewer keys, and the next open ignored entries of a lower epoch. Now
    nothing is acknowledged."""
    root = tmp_path / "log"
    written(root)
    shutil.copytree(root / NODE / "manifest", tmp_path / "old")
    written(root)
    shutil.rmtree(root / NODE / "manifest")
    shutil.copytree(tmp_path / "old", root / NODE / "manifest")
    with pytest.raises(LogError, match=r"older than the files|missing"):
        imap_wal.open(str(root), node="n1")


def test_an_older_node_folder_below_a_snapshot_is_refused(tmp_path: Path) -> None:
    """A low-water mark of the snapshot has its next epoch, so what it acknowledged counted as
    covered."""
    root = tmp_path / "log"
    written(root)
    shutil.copytree(root / NODE, tmp_path / "old")
    written(root)
    rewrite(log_of(open_store(str(root))), LocalEngine())
    shutil.rmtree(root / NODE)
    shutil.copytree(tmp_path / "old", root / NODE)
    for node in ("n1", "n2"):
        with pytest.raises(LogError, match="older than the files"):
            imap_wal.open(str(root), node=node)


def test_an_older_manifest_of_a_cluster_is_refused(tmp_path: Path) -> None:
    """Otherwise an incarnation would be assigned twice."""
    root = tmp_path / "log"
    written(root)
    folder = root / "default/embedded/manifest"
    shutil.copytree(folder, tmp_path / "old")
    written(root)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "old", folder)
    for node in ("n1", "n2", "n1", "n2"):
        with pytest.raises(CorruptLog, match="older than the files"):
            imap_wal.open(str(root), node=node)
    with pytest.raises(CorruptLog, match="older than the files"):
        log_of(open_store(str(root))).state()


def test_a_log_with_a_missing_cluster_manifest_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "log"
    written(root)
    shutil.rmtree(root / "default/embedded/manifest")
    with pytest.raises(CorruptLog, match="older than the files"):
        imap_wal.open(str(root), node="n1")


@every(2)
@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_a_copy_of_an_archiving_log_is_whole_or_refused(tmp_path: Path, order: str) -> None:
    """C5: a list of files, then one file after the other; a file that is deleted by then is left
    out, as some tools do."""
    refused = whole = 0
    for at in range(0, 60, 3):
        root, copy = tmp_path / f"log{at}", tmp_path / f"copy{at}"
        store = imap_wal.open(str(root), node="n1", preallocate=False)
        kept = {}

        def work(start: int, store: Store = store, kept: dict[str, int] = kept) -> None:
            for number in range(start, start + 4):
                store.map("m")[f"k{number}"] = kept[f"k{number}"] = number
                store.committer.rotate()

        work(0)
        store.archive()
        work(4)
        before = dict(kept)
        files = sorted(
            (path for path in root.rglob("*") if path.is_file()), reverse=order == "backwards"
        )
        for number, path in enumerate(files):
            if number == at:
                store.archive()
                work(8)
                compact(open_store(str(root)))
                store.archive()
            target = copy / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                shutil.copyfile(path, target)
        store.close()
        try:
            with imap_wal.open(str(copy), node="n1") as opened:
                found = dict(opened.map("m"))
            whole += 1
        except ImapWalError:
            refused += 1
            continue
        assert {key: found.get(key) for key in before} == before, (
            f"the log moved on before file {at}"
        )
        if at >= len(files):
            break
    assert refused and whole


def test_a_nodes_folder_from_an_earlier_open_is_refused(tmp_path: Path) -> None:
    """Manifests and segments are both older: only the cluster's manifest knows of later opens."""
    root = tmp_path / "log"
    folder = root / "default/embedded/nodes/embedded"
    with imap_wal.open(root) as store:
        store.map("m")["old"] = 1
    shutil.copytree(folder, tmp_path / "copy")
    with imap_wal.open(root) as store:
        store.map("m")["new"] = 1
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    with pytest.raises(CorruptLog, match="epoch 2 of this log was opened"):
        imap_wal.open(root)
    with pytest.raises(CorruptLog, match="nodes/embedded/manifest"):
        ClusterLog(open_context(str(root)), "default", "embedded").state()


def test_a_cluster_without_its_manifests_is_not_empty(tmp_path: Path) -> None:
    """Readers refuse it."""
    with imap_wal.open(tmp_path) as store:
        store.map("m")["a"] = 1
    shutil.rmtree(tmp_path / "default/embedded/manifest")
    with pytest.raises(CorruptLog, match="has seen"):
        ClusterLog(open_context(str(tmp_path)), "default", "embedded").state()
