"""A whole log of version 1, as it stood on disk on the day the format was fixed: archives, a snapshot, a sealed and an unclosed segment. Every later version reads it.

`python -m tests.unit.test_golden_log` made `tests/golden/log-v1.zip`, once. When the format changes, this file stays and another one is added beside it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import imap_wal
from imap_wal.clock import SeededRandomness
from rewrite_cli.cli import group
from tests.support import FakeClock

ARCHIVE = Path(__file__).parents[1] / "golden" / "log-v1.zip"

CONTENTS: dict[str, dict[Any, Any]] = {
    "orders": {"1": {"state": "paid"}, "3": {"state": "new"}, "ü/%": {"state": "odd", "lines": [1, 2.5, None, b"\x00"]}, 7: "a number for a key"},
    "../a b": {b"\x00\xff": b"raw"},
    "after": {number: number * number for number in range(50)},
}


def make(folder: Path) -> None:
    """Write the log: every kind of file is in it, and the last writer was killed."""
    url, fixed = folder.as_uri(), {"node": "n1", "clock": FakeClock(), "randomness": SeededRandomness(7), "segment_bytes": 1000}
    with imap_wal.open(url, **fixed) as store:
        orders = store.map("orders")
        orders.update({"1": {"state": "new"}, "2": {"state": "new"}, "3": {"state": "new"}})
        orders["ü/%"] = CONTENTS["orders"]["ü/%"]
        store.map("../a b", raw=True)[b"\x00\xff"] = b"raw"
        store.archive()
        del orders["2"]
    assert CliRunner().invoke(group, ["rewrite", url]).exit_code == 0
    store = imap_wal.open(url, **fixed)
    store.map("orders")["1"] = {"state": "paid"}
    store.map("orders")[7] = "a number for a key"
    store.archive()
    for number in range(50):
        store.map("after")[number] = number * number
    copy = Path(tempfile.mkdtemp())
    shutil.copytree(folder, copy / "log")  # as a kill leaves it
    store.close()
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((copy / "log").rglob("*")):
            if path.is_file() and path.name != "writer.lock":
                archive.writestr(zipfile.ZipInfo(str(path.relative_to(copy / "log"))), path.read_bytes())
    shutil.rmtree(copy)


def test_a_log_of_version_1_is_read_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path / "log")
    url = (tmp_path / "log").as_uri()
    kinds = {path.suffix for path in (tmp_path / "log").rglob("*") if path.is_file()}
    assert {".wal", ".parquet", ".json"} <= kinds
    checked = CliRunner().invoke(group, ["verify", url, "-o", "json"])
    assert checked.exit_code == 0, checked.output
    assert {file["status"] for file in json.loads(checked.stdout)["files"]} <= {"clean", "torn-tail"}
    for _ in range(2):  # as it was left, and after this version has written to it
        with imap_wal.open(url, node="n1") as store:
            assert not store.statistics.recovery.torn_bytes
            assert {name: dict(store.map(name)) for name in store.maps()} == CONTENTS


if __name__ == "__main__":
    root = Path(tempfile.mkdtemp())
    make(root / "log")
    shutil.rmtree(root)
