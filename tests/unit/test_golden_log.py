"""Whole logs, as they were on disk when their format was fixed.

    log-archives.zip    archives in the manifest and in list files, clears, a segment
    log-part-lists.zip  lists of files of snapshots, of the cluster and of the history

`python -m tests.unit.test_golden_log NAME` made each of them, once. While the format number is the
same, these files do not change (decision 82 in docs/decisions/files.md).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.clock import SeededRandomness
from imap_wal.context import open_context
from imap_wal.manifest import list_files
from imap_wal.manifest.readers import bases_of_history
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import LogReader
from rewrite_cli.cli import group
from tests.kit.golden_logs import CONTENTS, GOLDEN
from tests.support import FakeClock


def make(name: str, folder: Path) -> None:
    """Write a log, of which the last writer was killed."""
    fixed = {
        "node": "n1",
        "clock": FakeClock(),
        "randomness": SeededRandomness(7),
        "segment_bytes": 1000,
    }
    makers = {
        "log-archives": many_archives,
        "log-part-lists": many_parts,
    }
    store = makers[name](folder.as_uri(), fixed)
    copy = Path(tempfile.mkdtemp())
    shutil.copytree(folder, copy / "log")  # as after a kill
    store.close()
    with zipfile.ZipFile(GOLDEN / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((copy / "log").rglob("*")):
            if path.is_file() and path.name != "writer.lock":
                archive.writestr(
                    zipfile.ZipInfo(str(path.relative_to(copy / "log"))), path.read_bytes()
                )
    shutil.rmtree(copy)


def many_archives(url: str, fixed: dict[str, Any]) -> imap_wal.Store:
    """Made with short lists: readers accept any length (`NEWEST_MAX` and `LIST_MIN` of 3 and 4)."""
    list_files.NEWEST_MAX, list_files.LIST_MIN = 3, 4
    for turn in range(4):
        with imap_wal.open(url, **fixed) as store:
            for number in range(4):
                store.map(f"m{number}").update({str(turn): turn, "newest": turn})
            store.map("../a b", raw=True)[b"\x00\xff"] = b"raw"
            store.archive()
    store = imap_wal.open(url, **fixed)
    for number in range(19, -1, -1):  # positions rise while keys fall
        store.map("orders")[number] = "first"
    store.map("cleared").update(dict.fromkeys(range(20), "before"))
    store.archive()
    for number in range(4, -1, -1):
        store.map("orders")[number] = "second"
    del store.map("orders")[7]
    store.map("cleared").clear()
    store.map("cleared")["after"] = "the clear"
    store.archive()
    for value in ("before", "again"):
        store.map("in a segment").clear()
        for number in range(20):
            store.map("in a segment")[number] = value
    return store


def many_parts(url: str, fixed: dict[str, Any]) -> imap_wal.Store:
    """Made with small files and short lists (`PART_ROWS`, `PART_ROWS_MAX` and `LIST_MIN` of 4,
    `FILES_MAX` of 3)."""
    with imap_wal.open(url, **fixed) as store:
        store.map("orders").update({f"{number:02d}": "first" for number in range(40)})
        store.map("small")["only"] = 1
    assert CliRunner().invoke(group, ["rewrite", url]).exit_code == 0
    with imap_wal.open(url, **fixed) as store:
        store.map("orders")["07"] = "second"
    for command in (["rewrite", url, "--history", "1h"], ["prune", url, "--yes"]):
        assert CliRunner().invoke(group, command).exit_code == 0
    store = imap_wal.open(url, **fixed)
    store.map("in a segment")["key"] = "value"
    return store


@pytest.mark.parametrize("name", CONTENTS)
def test_a_golden_log_is_read_whole(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
        archive.extractall(tmp_path / "log")
    url = (tmp_path / "log").as_uri()
    kinds = {path.suffix for path in (tmp_path / "log").rglob("*") if path.is_file()}
    assert {".wal", ".parquet", ".json"} <= kinds
    checked = CliRunner().invoke(group, ["verify", url, "-o", "json"])
    assert checked.exit_code == 0, checked.output
    assert {file["status"] for file in json.loads(checked.stdout)["files"]} <= {
        "clean",
        "torn-tail",
    }
    for _ in range(2):  # as it was left, and after this version has written to it
        with imap_wal.open(url, node="n1") as store:
            assert not store.statistics.recovery.torn_bytes
            assert {each: dict(store.map(each)) for each in CONTENTS[name]} == CONTENTS[name]
            assert set(store.maps()) <= set(CONTENTS[name])


def test_a_golden_history_with_lists_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / "log-part-lists.zip") as archive:
        archive.extractall(tmp_path / "log")
    log = ClusterLog(open_context((tmp_path / "log").as_uri()), "default", "embedded")
    now = log.manifest().snapshots["orders"]
    (base,) = bases_of_history(log.store, log.folder)
    former = base.snapshots["orders"]
    assert now.files.lists and former.files.lists
    assert len(set(now.paths) & set(former.paths)) == len(now.files) - 1
    assert all(log.store.exists(path) for path in (*now.paths, *former.paths))


def test_golden_archives_are_read_in_the_order_of_the_log(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / "log-archives.zip") as archive:
        archive.extractall(tmp_path)
    reader = LogReader(tmp_path, cluster="embedded", node="n1")
    records = list(reader.read())
    assert [each.position for each in records] == sorted(each.position for each in records)
    orders = [each.entry for each in records if each.entry.map == "orders"]
    keys = [msgpack.unpackb(entry.key or b"") for entry in orders]
    assert keys == [*range(19, -1, -1), *range(4, -1, -1), 7]
    assert not orders[5].deleted and orders[-1].deleted


if __name__ == "__main__":
    root = Path(tempfile.mkdtemp())
    make(sys.argv[1], root / "log")
    shutil.rmtree(root)
