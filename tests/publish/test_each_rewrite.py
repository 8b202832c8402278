"""Tables that each rewrite publishes at its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.publish.delta_log import DeltaLog
from imap_wal.publish.recorded import RewrittenTable, record
from rewrite_cli.cli import group
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.kit.logs import cluster, node
from tests.kit.rewrites import run
from tests.kit.tables import rows, table, written

FOLDER = "default/embedded/snapshot/orders"


def version(root: Path) -> int:
    return DeltaLog(open_store(str(root)), FOLDER).read().version


def command(*words: str) -> str:
    """What it writes; with JSON, only that."""
    ended = CliRunner().invoke(group, list(words))
    assert ended.exit_code == 0, ended.output
    return ended.stdout if "json" in words else ended.output


def test_a_recorded_table_is_published_by_each_rewrite(memory: MemoryStore) -> None:
    log = node(memory)
    following = written(log, 1, a="1")
    record(cluster(memory), "orders", "delta", 3)
    assert run(memory, dry_run=True).tables == ()
    assert table(memory).version == -1
    assert run(memory).tables == (RewrittenTable("orders", "delta", 0, is_new=True),)
    assert run(memory).tables == (RewrittenTable("orders", "delta", 0),), "nothing has changed"
    written(log, following, a="2")
    assert run(memory).tables == (RewrittenTable("orders", "delta", 1, is_new=True),)
    assert rows(memory) == {"a": "2"}
    assert run(memory, maps=["other"]).tables == ()
    record(cluster(memory), "orders", "delta", 0)
    assert cluster(memory).manifest().tables == {}
    written(log, 3, a="3")
    assert run(memory).tables == ()
    assert rows(memory) == {"a": "2"}


def test_a_table_that_cannot_be_published_ends_no_rewrite(memory: MemoryStore) -> None:
    """The error is in the report, and the other table is published."""
    written(node(memory), 1, a="1")

    record(cluster(memory), "orders", "iceberg lake.shop.orders", 3)
    record(cluster(memory), "orders", "delta", 3)
    failed, published = sorted(run(memory).tables, key=lambda each: each.version)
    assert failed.table == "iceberg lake.shop.orders"
    assert failed.error.startswith("programs of Iceberg cannot read a log that ")
    assert published == RewrittenTable("orders", "delta", 0, is_new=True)
    assert cluster(memory).manifest().snapshots["orders"].generation == 1


def test_a_rewrite_without_the_library_is_whole(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in an install without pyarrow compacts a log that is published elsewhere."""
    written(node(memory), 1, a="1")
    record(cluster(memory), "orders", "delta", 3)
    monkeypatch.setitem(sys.modules, "imap_wal.publish.publication", None)
    (failed,) = run(memory).tables
    assert failed.error.startswith("ModuleNotFoundError: ")
    assert cluster(memory).manifest().snapshots["orders"].generation == 1


def test_a_store_that_compacts_publishes(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 1
        store.compact()
        command("publish", str(tmp_path), "--map", "orders", "--delta", "--each-rewrite")
        assert version(tmp_path) == 0
        store.map("orders")["a"] = 2
        store.compact()
        assert version(tmp_path) == 1
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 3
    shown = command("rewrite", str(tmp_path))
    assert "map 'orders' is published as delta: version 2" in shown
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 4
    read = json.loads(command("rewrite", str(tmp_path), "-o", "json"))
    assert read["clusters"][0]["tables"] == [
        {"map": "orders", "table": "delta", "version": 3, "error": "", "is_new": True}
    ]
    of_map = ["publish", str(tmp_path), "--map", "orders"]
    other = CliRunner().invoke(group, [*of_map, "--iceberg", "gone", "--by-hand"])
    said = "do not publish iceberg gone.embedded.orders; what they publish: delta"
    assert said in str(other.exception), "no catalog is needed to say so"
    by_hand = [*of_map, "--delta", "--by-hand", "-o", "json"]
    expected = [{"cluster": "default/embedded", "map": "orders", "table": "delta"}]
    assert json.loads(command(*by_hand, "--dry-run")) == {"dry_run": True, "by_hand": expected}
    recorded = json.loads(command("publish", str(tmp_path), "-o", "json"))
    assert recorded == {"each_rewrite": [{**expected[0], "keep": 3}]}
    assert "delta" in command("publish", str(tmp_path))
    assert json.loads(command(*by_hand)) == {"dry_run": False, "by_hand": expected}
    assert "rewrites publish no table" in command("publish", str(tmp_path))
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 5
    assert "is published" not in command("rewrite", str(tmp_path))
    assert version(tmp_path) == 3


def test_a_tiny_log_that_is_closed_publishes(tmp_path: Path) -> None:
    """Its compaction writes no segment snapshot, which no table could have."""
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 0
        store.compact()
    command("publish", str(tmp_path), "--map", "orders", "--delta", "--each-rewrite")
    for number in range(10):
        with imap_wal.open(tmp_path) as store:
            store.map("orders")["a"] = number
    assert version(tmp_path) > 0
    assert [*(tmp_path / FOLDER).rglob("*.wal")] == []


def test_an_error_of_a_table_is_shown(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 1
    command("rewrite", str(tmp_path))
    command("publish", str(tmp_path), "--map", "orders", "--delta", "--each-rewrite")
    log = open_store(str(tmp_path))
    log.replace(f"{FOLDER}/_delta_log/{0:020d}.json", b"damaged")
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 2
    shown = command("rewrite", str(tmp_path))
    assert "map 'orders' was not published as delta: " in shown
