"""docs/spark.md and examples/spark/ run as they are printed."""

from __future__ import annotations

import ast
import json
import re
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from tests.kit.effort import thorough

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "spark"
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with imap_wal.open(str(tmp_path / "log")) as store:
        orders = store.map("orders", raw=True)
        orders.update({b"k1": b"1", b"k2": b"1", b"k3": b"1"})
        del orders[b"k2"]
    return tmp_path / "log"


def entries(root: Path, name: str) -> dict[bytes, bytes]:
    with imap_wal.open(str(root)) as store:
        return dict(store.map(name, raw=True).items())


@thorough
def test_blocks_of_the_page_run_in_their_order(spark: Any, root: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    text = text.replace("/var/lib/maps", str(root)).replace("/tmp/lake", f"{tmp_path}/lake")
    found = BLOCK.findall(text)
    names: dict[str, Any] = {}
    try:
        for block in found:
            exec(compile(block, "docs/spark.md", "exec"), names)
    finally:
        spark.sql("drop table if exists orders")
    assert len(found) == 8
    assert names["raw"].where("map = 'orders'").count() == 4
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 4
    assert entries(root, "imported") == {b"k1": b"v1", b"k2": b"v2"}


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@thorough
def test_examples_copy_a_table_into_a_log_and_back(
    spark: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.createDataFrame([(1, "a"), (2, "b")], "id int, name string").write.parquet(
        f"{tmp_path}/customers"
    )
    run(monkeypatch, "backfill.py", tmp_path / "customers", root, "customers")
    there = entries(root, "customers")
    assert {key: json.loads(value) for key, value in there.items()} == {
        b"1": {"id": 1, "name": "a"},
        b"2": {"id": 2, "name": "b"},
    }
    run(monkeypatch, "stream_to_parquet.py", root, tmp_path / "changes")
    copied = spark.read.parquet(f"{tmp_path}/changes")
    assert copied.where("map = 'customers'").count() == 2 and copied.count() == 6


@thorough
def test_the_nightly_example_rewrites_and_prunes(
    spark: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with imap_wal.open(str(root)) as store:
        store.archive()
    before = entries(root, "orders")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        run(monkeypatch, "nightly_rewrite.py", root)
    finally:
        signal.signal(signal.SIGTERM, handler)  # the command line has its own
    names = [path.parts[-3] for path in root.rglob("*.parquet")]
    assert names == ["orders"], "a snapshot, and no archive"
    assert entries(root, "orders") == before


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_python(name: str) -> None:
    assert ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))
