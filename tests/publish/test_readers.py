"""Programs of others read a published table: delta-rs, pyiceberg, Polars, and DuckDB over Arrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.publish import delta_log
from rewrite_cli.cli import group
from tests.cluster.processes import ROOT
from tests.kit import releases
from tests.kit.effort import thorough

LIBRARIES = ("deltalake==1.6.6", "polars==2.1.0")
DRIVER = Path(__file__).parent / "drivers" / "read_tables.py"
READER = """
import json, sys
import duckdb, polars
from deltalake import DeltaTable, write_deltalake

place, version = sys.argv[1], int(sys.argv[2])
table = DeltaTable(place, version=version)
rows = table.to_pyarrow_table(columns=["key_text", "value_json", "deleted"])
seen = {row["key_text"]: row["value_json"] for row in rows.to_pylist()}
by_polars = polars.scan_delta(place, version=version).select("key_text", "value_json").collect()
assert dict(by_polars.iter_rows()) == seen
data = table.to_pyarrow_dataset()
counted = duckdb.sql("select count(*), count(*) filter (deleted) from data").fetchall()
assert counted == [(len(seen), 0)], counted
try:
    write_deltalake(place, table.to_pyarrow_table().slice(0, 1), mode="append")
    raise SystemExit("another program could write")
except Exception as error:
    assert "imapWalPublished" in str(error), error
print(json.dumps(seen))
"""


ICEBERG_READER = """
import json, sys
import duckdb, polars
from pyiceberg.catalog import load_catalog

table = load_catalog("lake").load_table("embedded.orders")
number = table.snapshots()[int(sys.argv[1])].snapshot_id
names = ("key_text", "value_json")
data = table.scan(snapshot_id=number).to_arrow()
seen = dict(zip(*(data[name].to_pylist() for name in names)))
by_polars = polars.scan_iceberg(table, snapshot_id=number).select(names).collect()
assert dict(by_polars.iter_rows()) == seen
counted = duckdb.sql("select count(*), count(*) filter (deleted) from data").fetchall()
assert counted == [(len(seen), 0)], counted
(one,) = table.scan(snapshot_id=number, row_filter="key_text = '\\"o1\\"'").to_arrow().to_pylist()
assert one["value_json"] == seen['"o1"']
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def libraries() -> Path:
    """A folder with these releases; installed once."""
    if not (releases.LAKEHOUSE / "polars").is_dir():
        releases.into(
            [*LIBRARIES, "polars-runtime-32==2.1.0", "arro3-core==0.9.1"],
            releases.LAKEHOUSE,
            "--no-deps",
        )
    return releases.LAKEHOUSE


def published(root: Path, name: str = "orders") -> tuple[str, int]:
    """The folder of the table, and its version."""
    for words in (["rewrite", str(root)], ["publish", str(root), "--map", name, "--delta"]):
        ended = CliRunner().invoke(group, [*words, "-o", "json"])
        assert ended.exit_code == 0, ended.output
    (table,) = json.loads(ended.stdout)["tables"]
    return table["place"], table["version"]


@thorough
def test_other_programs_read_each_version(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a former one, after a rewrite and a prune. None of them can write."""

    def read(place: str, version: int) -> dict[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", READER, place, str(version)],
            env={**os.environ, "PYTHONPATH": str(libraries)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen: dict[str, str] = json.loads(done.stdout)
        return seen

    root = tmp_path / "log"
    with imap_wal.open(root) as store:
        store.map("orders").update({f"o{number}": {"id": number} for number in range(100)})
    assert CliRunner().invoke(group, ["decode", str(root), "--map", "orders"]).exit_code == 0
    place, first = published(root)
    before = {json.dumps(f"o{number}"): json.dumps({"id": number}) for number in range(100)}
    assert read(place, first) == before
    with imap_wal.open(root) as store:
        orders = store.map("orders")
        del orders["o0"]
        orders["o1"] = {"id": -1}
    place, second = published(root)
    assert CliRunner().invoke(group, ["prune", str(root), "--yes"]).exit_code == 0
    after = {**before, '"o1"': json.dumps({"id": -1})}
    del after['"o0"']
    assert read(place, second) == after
    assert read(place, first) == before
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 1)
    for number in range(5):
        with imap_wal.open(root) as store:
            store.map("orders")["o1"] = number
        _, version = published(root)
    assert len(list(Path(place, "_delta_log").glob("*.json"))) < version, "older ones are deleted"
    assert read(place, version) == {**after, '"o1"': "4"}
    with imap_wal.open(root) as store:
        store.map("orders")["o1"] = 1
    assert CliRunner().invoke(group, ["rewrite", str(root)]).exit_code == 0  # not published
    vacuum = "import sys; from deltalake import DeltaTable as T; T(sys.argv[1]).vacuum(None, False)"
    files = sorted(Path(place).rglob("*.parquet"))
    for file in files:  # the default retention is a week
        os.utime(file, (1e9, 1e9))
    subprocess.run(
        [sys.executable, "-c", vacuum, place],
        env={**os.environ, "PYTHONPATH": str(libraries)},
        check=True,
    )
    assert len(files) == 8 + 4, "snapshots, and checkpoints of the table"
    assert sorted(Path(place).rglob("*.parquet")) == files


def test_the_command_says_where_the_table_is(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with imap_wal.open(root) as store:
        store.map("orders")["a"] = 1
    run = CliRunner()
    for words, why in (
        (["--delta"], "name what to publish: --map"),
        (["--map", "orders"], "name the kind of the table: --delta"),
        (["--map", "orders", "--delta"], "has no snapshot to publish"),
    ):
        ended = run.invoke(group, ["publish", str(root), *words])
        assert ended.exit_code
        assert why in str(ended.exception) + ended.output
    place, version = published(root)
    assert version == 0
    assert Path(place, "_delta_log").is_dir()
    ended = run.invoke(group, ["publish", str(root), "--map", "orders", "--delta"])
    assert "orders (unchanged)" in ended.stdout
    assert f"table: {place}\n" in ended.stdout
    with imap_wal.open(root) as store:
        store.map("b")["a"] = 1
    ended = run.invoke(group, ["publish", str(root), "--map", "orders", "--map", "b", "--delta"])
    assert "orders (unchanged)" in ended.stdout
    assert ended.exit_code == 1
    assert "map 'b' has no snapshot to publish" in ended.output


@pytest.mark.parametrize("name", ["orders.v2 è/b", "карта заказов " * 25])
def test_a_map_of_any_name_is_published(tmp_path: Path, name: str) -> None:
    """Its folder is percent-encoded. A long name is shortened, also in the name of the reader."""
    root = tmp_path / "log"
    with imap_wal.open(root) as store:
        store.map(name)["a"] = 1
    place, _ = published(root, name)
    assert Path(place, "_delta_log").is_dir()
    ended = CliRunner().invoke(group, ["publish", str(root), "--map", name, "--delta"])
    assert f"table: {place}\n" in ended.stdout
    assert "cannot read a Delta table whose path has a `%`" in ended.stderr


class Lake:
    """A log with two rewrites that were published to a catalog in SQLite, and what is in the table
    after each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "log"
        self.catalog, self.warehouse = folder / "lake.db", f"file://{folder}/lake"
        with imap_wal.open(self.root) as store:
            store.map("orders").update({f"o{number}": {"id": number} for number in range(100)})
        ended = CliRunner().invoke(group, ["decode", str(self.root), "--map", "orders"])
        assert ended.exit_code == 0
        self.publish()
        with imap_wal.open(self.root) as store:
            orders = store.map("orders")
            del orders["o0"]
            orders["o1"] = {"id": -1}
        self.publish()
        before = {json.dumps(f"o{number}"): json.dumps({"id": number}) for number in range(100)}
        after = {**before, '"o1"': json.dumps({"id": -1})}
        del after['"o0"']
        self.versions = [before, after]

    def publish(self) -> None:
        root, of = str(self.root), ["--map", "orders"]
        for words in (
            ["rewrite", root],
            ["prune", root, "--yes"],
            ["publish", root, *of, "--delta"],
        ):
            assert CliRunner().invoke(group, words).exit_code == 0
        self.run("-m", "rewrite_cli", "publish", root, *of, "--iceberg", "lake", path=str(ROOT))

    def run(self, *words: str, path: str, **variables: str) -> str:
        """What a program of Python writes. `path`: its modules."""
        settings = {"URI": f"sqlite:///{self.catalog}", "WAREHOUSE": self.warehouse}
        done = subprocess.run(
            [sys.executable, *words],
            env={
                **os.environ,
                "PYTHONPATH": path,
                **{f"PYICEBERG_CATALOG__LAKE__{name}": value for name, value in settings.items()},
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout


@thorough
def test_other_programs_read_an_iceberg_table(tmp_path: Path, libraries: Path) -> None:
    """Also its former snapshot, after a rewrite and a prune."""
    lake = Lake(tmp_path)
    for number, rows in enumerate(lake.versions):
        read = lake.run("-c", ICEBERG_READER, str(number), path=str(libraries))
        assert json.loads(read) == rows


@thorough
@pytest.mark.timeout(600)
def test_spark_reads_both_tables_and_deletes_no_file(tmp_path: Path) -> None:
    """With the jars of Iceberg and Delta: each version; what would delete files is refused."""
    lake, spark = Lake(tmp_path), releases.spark("4.0")
    delta = f"{lake.root}/default/embedded/snapshot/orders"
    read = lake.run(
        *(str(DRIVER), releases.lake_jars(), str(lake.catalog), lake.warehouse, delta),
        path=str(spark),
        PYSPARK_PYTHON=sys.executable,
        SPARK_HOME=str(spark / "pyspark"),
    )
    (line,) = (line for line in read.splitlines() if line.startswith("{"))  # Spark writes too
    seen = json.loads(line)
    assert (seen["iceberg"], seen["delta"]) == (lake.versions, lake.versions)
    assert "GC is disabled" in seen["expire"]
    assert "GC is disabled" in seen["purge"]
    assert "imapWalPublished" in seen["vacuum"], seen["vacuum"]
    assert "imapWalPublished" in seen["delete"]
