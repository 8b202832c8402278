"""A map as an Iceberg table of a catalog."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import InvalidSetting, StorageUnavailable
from imap_wal.publish.delta import DeltaTable
from imap_wal.publish.publication import PublishedTable, publish
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.prune import prune
from rewrite_cli.cli import group
from storage_backends import SegmentStore, open_store
from storage_backends.memory import MemoryStore
from tests.kit.logs import cluster, node
from tests.kit.rewrites import run
from tests.kit.tables import iceberg_catalog, tombstoned, written
from tests.support import FakeClock

if TYPE_CHECKING:  # the import takes a second
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    return iceberg_catalog(tmp_path, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return open_store(str(tmp_path / "log"))


seeds = iter(range(1, 1000))


def now() -> FakeClock:
    """The storage is a real disk, with its own clock."""
    return FakeClock(int(time.time() * 1000))


def published(store: SegmentStore, *, table: str = "", **options: Any) -> PublishedTable:
    from imap_wal.publish.iceberg import IcebergTable

    log = log_of(store)
    return publish(log, "orders", IcebergTable(log, "orders", "lake", table), **options)


def log_of(store: SegmentStore) -> ClusterLog:
    context = Context(store, clock=now(), randomness=SeededRandomness(next(seeds)))
    return ClusterLog(context, "ns", "c")


def table(catalog: Catalog) -> Table:
    return catalog.load_table("c.orders")


def rows(catalog: Catalog, **options: Any) -> dict[str, str]:
    """Key → value of the rows that pyiceberg reads."""
    read = table(catalog).scan(selected_fields=("key", "value"), **options).to_arrow().to_pylist()
    assert len({row["key"] for row in read}) == len(read)
    return {row["key"].decode(): row["value"].decode() for row in read}


def test_a_table_has_the_live_entries_of_each_rewrite(
    catalog: Catalog, store: SegmentStore
) -> None:
    log = node(store)
    following = written(log, 1, a="1", b="2", c="3")
    run(store, now())
    planned = published(store, dry_run=True)
    assert not catalog.namespace_exists("c")
    first = published(store)
    assert first == planned
    assert (first.place, first.version, first.added) == ("lake.c.orders", 1, 1)
    assert rows(catalog) == {"a": "1", "b": "2", "c": "3"}
    again = published(store)
    assert (again.is_new, again.version, again.kept) == (False, 1, 1)
    written(log, following, a=None, b="new", d="4")
    run(store, now())
    second = published(store)
    assert (second.version, second.generation, second.rows) == (2, 2, 3)
    assert rows(catalog) == {"b": "new", "c": "3", "d": "4"}
    snapshot = table(catalog).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    said = snapshot.summary.additional_properties
    assert said["imap-wal.generation"] == "2"
    assert "imap-wal.position of n1" in said
    assert table(catalog).properties["gc.enabled"] == "false"


def test_versions_that_are_kept_stay_readable(catalog: Catalog, store: SegmentStore) -> None:
    """A query that is under way reads the snapshot that it began with."""
    log, following = node(store), 1
    for number in range(5):
        following = written(log, following, a=str(number))
        run(store, now())
        published(store, keep=2)
        prune(cluster(store, now()))
    kept = table(catalog).snapshots()
    assert [snapshot.sequence_number for snapshot in kept] == [4, 5]
    assert [rows(catalog, snapshot_id=each.snapshot_id) for each in kept] == [
        {"a": "3"},
        {"a": "4"},
    ]


def test_copies_stay_while_any_table_of_the_map_needs_them(
    catalog: Catalog, store: SegmentStore
) -> None:
    """A Delta table and an Iceberg table of one map have copies in one folder."""
    written(tombstoned(store), 2, c="3")
    run(store, now())
    assert published(store).copied == 1
    log = log_of(store)
    for _ in range(2):
        publish(log, "orders", DeltaTable(log, "orders"))
        published(store)
        prune(cluster(store, now()))
        assert rows(catalog) == {"b": "1", "c": "3"}


def test_a_table_without_rows_is_published(catalog: Catalog, store: SegmentStore) -> None:
    log = node(store)
    written(log, written(log, 1, a="1"), a=None)
    run(store, now())
    assert published(store).rows == 0
    assert rows(catalog) == {}
    written(log, 3, b="1")
    run(store, now())
    published(store)
    assert rows(catalog) == {"b": "1"}


def exceptions() -> Any:
    return importlib.import_module("pyiceberg.exceptions")


class Interrupted(BaseException):
    """The process ended."""


Commit = Callable[..., Any]


def replaced(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, commit: Commit) -> None:
    """The next commits are made by `commit`, which gets the real one."""
    real = catalog.commit_table
    monkeypatch.setattr(catalog, "commit_table", lambda *words: commit(real, *words))


def test_a_publication_that_ended_early_is_repeated(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the table was made and before its first commit."""
    written(node(store), 1, a="1")
    run(store, now())

    def ended(real: Commit, *words: Any) -> Any:
        raise Interrupted

    with monkeypatch.context() as patch:
        replaced(catalog, patch, ended)
        with pytest.raises(Interrupted):
            published(store)
    assert published(store).version == 1
    assert rows(catalog) == {"a": "1"}


def test_a_commit_whose_answer_is_lost_is_found(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(node(store), 1, a="1")
    run(store, now())
    calls = []

    def lost(real: Commit, *words: Any) -> Any:
        answer = real(*words)
        calls.append(answer)
        if len(calls) == 1:
            raise exceptions().CommitStateUnknownException("no answer")
        return answer

    replaced(catalog, monkeypatch, lost)
    assert (published(store).version, len(calls)) == (1, 1)
    assert rows(catalog) == {"a": "1"}


def test_a_commit_that_is_perhaps_made_is_repeated(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was lost, and the commit was not made: the next publication makes it."""
    written(node(store), 1, a="1")
    run(store, now())

    def lost(real: Commit, *words: Any) -> Any:
        raise exceptions().CommitStateUnknownException("no answer")

    with monkeypatch.context() as patch:
        replaced(catalog, patch, lost)
        with pytest.raises(StorageUnavailable, match=r"lake.c.orders cannot be .*no answer"):
            published(store)
    assert published(store).version == 1


def test_two_publications_at_once_make_one_version(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one sees at its commit that another process was quicker, and has nothing to do."""
    written(node(store), 1, a="1")
    run(store, now())
    calls = []

    def beaten(real: Commit, *words: Any) -> Any:
        calls.append(words)
        if len(calls) == 1:
            assert published(store).is_new
        return real(*words)

    replaced(catalog, monkeypatch, beaten)
    assert not published(store).is_new
    assert len(table(catalog).snapshots()) == 1
    assert rows(catalog) == {"a": "1"}


def test_a_busy_catalog_keeps_old_snapshots_until_later(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node(store)
    written(log, 1, a="1")
    run(store, now())
    published(store, keep=1)
    calls = []

    def busy(real: Commit, *words: Any) -> Any:
        calls.append(words)
        if len(calls) == 2:  # the one that forgets old snapshots
            raise exceptions().CommitFailedException("another process")
        return real(*words)

    written(log, 2, a="2")
    run(store, now())
    with monkeypatch.context() as patch:
        replaced(catalog, patch, busy)
        assert published(store, keep=1).version == 2
    assert len(table(catalog).snapshots()) == 2
    written(log, 3, a="3")
    run(store, now())
    published(store, keep=1)
    assert len(table(catalog).snapshots()) == 1


def test_a_file_that_a_prune_removed_is_looked_for_again(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the examination and the commit, a rewrite and a prune that found nothing kept."""
    written(node(store), 1, a="1")
    run(store, now())
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    calls = []

    def missing(**words: Any) -> Any:
        calls.append(words)
        if len(calls) == 1:
            raise FileNotFoundError(words["file_path"])
        return parquet_file_to_data_file(**words)

    monkeypatch.setattr("imap_wal.publish.iceberg.parquet_file_to_data_file", missing)
    assert published(store).version == 1
    assert len(calls) == 2


def test_tables_that_are_not_of_this_map_are_refused(catalog: Catalog, store: SegmentStore) -> None:
    written(node(store), 1, a="1")
    run(store, now())
    published(store)
    schema = table(catalog).schema()
    catalog.create_table("c.foreign", schema)
    catalog.create_table("c.other", schema, properties={"imap-wal.map": "customers"})
    for name, why in (
        ("c.foreign", "it was not made by imap-wal. Drop it from its catalog without its files"),
        ("c.other", "it is of map 'customers'"),
        ("orders", "no table of Iceberg: write NAMESPACE.NAME"),
    ):
        with pytest.raises(InvalidSetting, match=why):
            published(store, table=name)
    content = table(catalog).scan().to_arrow()
    table(catalog).append(content)
    with pytest.raises(InvalidSetting, match="another program has changed it"):
        published(store)


def test_a_table_of_another_place_is_refused(
    catalog: Catalog, store: SegmentStore, tmp_path: Path
) -> None:
    """The log was copied, and the table has the files of the original."""
    written(node(store), 1, a="1")
    run(store, now())
    published(store)
    copy = open_store(str(tmp_path / "copy"))
    for file in store.list(""):
        copy.create(file.path, store.read(file.path))
    with pytest.raises(InvalidSetting, match="which is not in file://"):
        published(copy)


def test_a_log_in_memory_is_refused(catalog: Catalog, memory: MemoryStore) -> None:
    with pytest.raises(InvalidSetting, match="a log in memory cannot be published"):
        published(memory)


def test_the_command_publishes(catalog: Catalog, store: SegmentStore) -> None:
    written(node(store), 1, a="1")
    run(store, now())
    words = ["publish", store.url, "--map", "orders"]
    named = [*words, "--iceberg", "lake", "--table", "shop.sales"]
    ended = CliRunner().invoke(group, [*named, "--output", "json"])
    assert ended.exit_code == 0, ended.output
    (shown,) = json.loads(ended.stdout)["tables"]
    assert (shown["place"], shown["rows"]) == ("lake.shop.sales", 1)
    assert catalog.load_table("shop.sales").scan().to_arrow().num_rows == 1
    for wrong, why in (
        ([], "--delta or --iceberg"),
        (["--delta", "--iceberg", "lake"], "--delta or --iceberg"),
        (["--delta", "--table", "a.b"], "--table is the Iceberg table of one map"),
    ):
        refused = CliRunner().invoke(group, [*words, *wrong])
        assert (refused.exit_code, why in refused.output) == (2, True), refused.output


def test_a_catalog_that_is_not_configured_is_named(store: SegmentStore) -> None:
    with pytest.raises(InvalidSetting, match=r"catalog 'lake' cannot be opened.*PYICEBERG"):
        published(store)
