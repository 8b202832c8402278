"""A map as an Iceberg table of a catalog."""

from __future__ import annotations

import importlib
import itertools
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
from imap_wal.publish.recorded import default_name, record, text_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from rewrite_cli.cli import group
from storage_backends import NotFound, SegmentStore, open_store
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.kit.logs import cluster, node
from tests.kit.rewrites import ENGINE, run
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


seeds = itertools.count(1000)  # none is that of `cluster`: a file would get the name of another one


def now() -> FakeClock:
    """The storage is a real disk, with its own clock."""
    return FakeClock(int(time.time() * 1000))


def published(store: SegmentStore, *, table: str = "", **options: Any) -> PublishedTable:
    from imap_wal.publish.iceberg import IcebergTable

    log = log_of(store)
    target = IcebergTable(log, "orders", "lake", table or default_name(log, "orders"))
    return publish(log, "orders", target, **options)


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
    snapshots = table(catalog).snapshots()
    assert [snapshot.sequence_number for snapshot in snapshots] == [4, 5]
    read = [rows(catalog, snapshot_id=snapshot.snapshot_id) for snapshot in snapshots]
    assert read == [{"a": "3"}, {"a": "4"}]


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


def test_a_commit_that_is_made_and_refused_is_found(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver sent it again after a lost answer, and the catalog refused the second one."""
    written(node(store), 1, a="1")
    run(store, now())
    calls = []

    def twice(real: Commit, *words: Any) -> Any:
        calls.append(real(*words))
        if len(calls) == 1:
            raise exceptions().CommitFailedException("the table has changed")
        return calls[-1]

    replaced(catalog, monkeypatch, twice)
    assert published(store).is_new
    assert rows(catalog) == {"a": "1"}
    assert len(table(catalog).snapshots()) == 1


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


def test_tables_with_one_name_keep_their_own_files(
    catalog: Catalog, store: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two machines, one name of a catalog may mean two catalogs."""
    log = node(store)
    following = written(log, 1, a="1")
    run(store, now())
    published(store)
    written(log, following, a="2")
    run(store, now())
    (tmp_path / "other").mkdir()
    with monkeypatch.context() as patch:
        other = iceberg_catalog(tmp_path / "other", patch)
        published(store)
    prune(cluster(store, now()))
    assert rows(catalog) == {"a": "1"}
    assert rows(other) == {"a": "2"}


def test_a_tag_in_the_table_ends_no_publication(catalog: Catalog, store: SegmentStore) -> None:
    log, following = node(store), 1
    for number in range(4):
        following = written(log, following, a=str(number))
        run(store, now())
        published(store, keep=1)
        if number == 0:
            (first,) = table(catalog).snapshots()
            table(catalog).manage_snapshots().create_tag(first.snapshot_id, "first").commit()
    assert [one.sequence_number for one in table(catalog).snapshots()] == [1, 4]
    assert rows(catalog) == {"a": "3"}


def test_manifests_of_removed_files_do_not_accumulate(
    catalog: Catalog, store: SegmentStore
) -> None:
    log, following = node(store), 1
    for number in range(5):
        following = written(log, following, a=str(number))
        run(store, now())
        published(store)
    snapshot = table(catalog).current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table(catalog).io)) == 2, "one file was added and one removed"


def metadata_files(catalog: Catalog, suffix: str) -> set[str]:
    folder = Path(table(catalog).location().removeprefix("file://")) / "metadata"
    return {path.name for path in folder.iterdir() if path.name.endswith(suffix)}


def test_metadata_of_removed_versions_is_deleted(catalog: Catalog, store: SegmentStore) -> None:
    """Nothing else deletes it, as `gc.enabled` is false. A tag keeps its snapshot readable."""
    log, following = node(store), 1
    counts = []
    for number in range(7):
        following = written(log, following, a=str(number))
        run(store, now())
        published(store, keep=2)
        if number == 0:
            (first,) = table(catalog).snapshots()
            table(catalog).manage_snapshots().create_tag(first.snapshot_id, "first").commit()
            with table(catalog).transaction() as change:
                change.set_properties({"write.metadata.previous-versions-max": "3"})
        counts.append(len(metadata_files(catalog, ".avro")))
    assert counts[3:] == [counts[3]] * 4
    assert len(metadata_files(catalog, ".metadata.json")) == 4, "the present and three former ones"
    for snapshot in table(catalog).snapshots():
        for manifest in snapshot.manifests(table(catalog).io):
            manifest.fetch_manifest_entry(table(catalog).io)


def test_metadata_that_cannot_be_deleted_stays(
    catalog: Catalog,
    store: SegmentStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = node(store)
    written(log, 1, a="1")
    run(store, now())
    published(store, keep=1)
    written(log, 2, a="2")
    run(store, now())

    def refused(*_: object) -> None:
        raise ValueError("the credentials do not allow it")

    monkeypatch.setattr("imap_wal.publish.iceberg.delete_files", refused)
    assert published(store, keep=1).version == 2
    assert len(table(catalog).snapshots()) == 1 and rows(catalog) == {"a": "2"}
    (said,) = caplog.messages
    assert said.startswith("old metadata files of lake.c.orders stay: the credentials do not")


def test_properties_that_protect_the_log_are_set_again(
    catalog: Catalog, store: SegmentStore
) -> None:
    log = node(store)
    written(log, 1, a="1")
    run(store, now())
    published(store)
    with table(catalog).transaction() as change:
        change.remove_properties("gc.enabled", "schema.name-mapping.default")
    written(log, 2, a="2")
    run(store, now())
    published(store)
    assert table(catalog).properties["gc.enabled"] == "false"
    assert rows(catalog) == {"a": "2"}


def test_copies_that_were_deleted_are_made_again(catalog: Catalog, store: SegmentStore) -> None:
    """With the folder of another table of the map, or because no backup has them."""
    written(tombstoned(store), 2, c="3")
    run(store, now())
    published(store)
    for file in store.list("ns/c/snapshot/orders/published"):
        store.delete(file.path)
    assert published(store).is_new
    assert rows(catalog) == {"b": "1", "c": "3"}
    assert not published(store).is_new


def test_another_history_with_the_same_generation_is_refused(
    catalog: Catalog, store: SegmentStore
) -> None:
    """A backup was restored into the log's place, and the map was rewritten again."""
    log = node(store)
    written(log, 1, a="1")
    run(store, now())
    backup = {file.path: store.read(file.path) for file in store.list("")}
    written(log, 2, a="2")
    run(store, now())
    published(store)
    log.close()
    for file in store.list(""):
        store.delete(file.path)
    for path, content in backup.items():
        store.create(path, content)
    restored = node(store)
    written(restored, 2, a="other")
    restored.close()
    rewrite(log_of(store), ENGINE)  # the names of its files are others
    assert log_of(store).manifest().snapshots["orders"].generation == 2
    with pytest.raises(InvalidSetting, match=r"newer copy of the log .*this one has 2, with other"):
        published(store)


def test_a_rewrite_makes_no_second_table(
    catalog: Catalog, store: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog is another one, or was lost: only a person knows. By hand it is made anew."""
    log = node(store)
    written(log, 1, a="1")
    record(cluster(store, now()), "orders", "iceberg lake.c.orders", 3)
    (first,) = run(store, now()).tables
    assert (first.version, first.error) == (1, "")
    written(log, 2, a="2")
    (tmp_path / "other").mkdir()
    with monkeypatch.context() as patch:
        other = iceberg_catalog(tmp_path / "other", patch)
        (failed,) = run(store, now()).tables
        assert "was published before" in failed.error
        assert "--forget-reader 'iceberg lake.c.orders " in failed.error
        assert not other.table_exists("c.orders")
        published(store)
        assert rows(other) == {"a": "2"}
    written(log, 3, a="3")
    (second,) = run(store, now()).tables
    assert (second.version, second.error) == (2, "")


def test_a_long_name_is_known_again(
    catalog: Catalog, store: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of its reader is shortened, and has the id."""
    long = ".".join(letter * 100 for letter in "abc")
    written(node(store), 1, a="1")
    record(cluster(store, now()), "orders", f"iceberg lake.{long}", 3)
    (first,) = run(store, now()).tables
    assert first.error == ""
    (tmp_path / "other").mkdir()
    with monkeypatch.context() as patch:
        iceberg_catalog(tmp_path / "other", patch)
        (failed,) = run(store, now()).tables
    assert "was published before" in failed.error


def test_a_namespace_that_cannot_be_made_is_named(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*words: Any) -> Any:
        raise exceptions().ForbiddenError("no right to make c")

    written(node(store), 1, a="1")
    run(store, now())
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "create_namespace", forbidden)
        with pytest.raises(InvalidSetting, match="no right to make c"):
            published(store)
    made = catalog.create_namespace

    def beaten(*words: Any) -> Any:
        made(*words)
        raise RuntimeError("a key is not unique")

    monkeypatch.setattr(catalog, "create_namespace", beaten)
    assert published(store).version == 1


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
            raise NotFound("removed", words["file_path"])
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
        ("c.foreign", "it was not made by imap-wal. Choose another table with --table$"),
        ("c.other", "it is of map 'customers'"),
        ("orders", "has no namespace: write NAMESPACE.NAME"),
    ):
        with pytest.raises(InvalidSetting, match=why):
            published(store, table=name)
    with table(catalog).update_schema() as change:
        change.delete_column("partition")
    with pytest.raises(InvalidSetting, match="another program has changed its columns"):
        published(store)
    catalog.drop_table("c.orders")
    published(store)
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
    with pytest.raises(InvalidSetting, match=r"it is of the log in file:.*and this one is in"):
        published(copy)


def test_a_log_in_memory_is_refused(catalog: Catalog, memory: MemoryStore) -> None:
    with pytest.raises(InvalidSetting, match="cannot read a log that is in such a storage: mem"):
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
        (["--delta", "--iceberg", "lake"], "exclude each other"),
        (["--delta", "--table", "a.b"], "--table needs a name"),
        (["--iceberg", "lake", "--table", ""], "--table needs a name"),
    ):
        refused = CliRunner().invoke(group, [*words, *wrong])
        assert (refused.exit_code, why in refused.output) == (2, True), refused.output


def test_a_catalog_that_reads_another_storage_is_named(
    catalog: Catalog, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**words: Any) -> Any:
        raise FileNotFoundError(words["file_path"])

    written(node(store), 1, a="1")
    run(store, now())
    monkeypatch.setattr("imap_wal.publish.iceberg.parquet_file_to_data_file", missing)
    with pytest.raises(InvalidSetting, match="its storage settings differ from those of"):
        published(store)


@pytest.mark.parametrize("folder", ["a#b", "a?b"])
def test_a_path_that_iceberg_reads_otherwise_is_refused(
    catalog: Catalog, tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    store = LocalStore(str(tmp_path / folder))
    with pytest.raises(InvalidSetting, match=r"cannot read a log that has a \? or # in its path"):
        published(store)


def test_a_password_in_an_address_is_not_shown(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str) -> Any:
        raise ValueError("no catalog at postgres://me:secret@host/lake")

    monkeypatch.setattr("imap_wal.publish.iceberg.load_catalog", refused)
    with pytest.raises(InvalidSetting, match=r"cannot be opened: .*host/lake") as error:
        published(store)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("name", ["lake.eu", "my lake"])
def test_a_name_of_a_catalog_that_would_be_read_otherwise(store: SegmentStore, name: str) -> None:
    with pytest.raises(InvalidSetting, match="has a dot or a space: give it another name"):
        text_of(log_of(store), "orders", name)


def test_a_catalog_that_is_not_configured_is_named(store: SegmentStore) -> None:
    with pytest.raises(
        InvalidSetting, match=r"no Iceberg catalog 'lake' is configured: set PYICEBERG"
    ):
        published(store)
