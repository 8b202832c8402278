"""Attack: SQL of another author reads or writes files, opens connections or loads libraries
with the rights of the operator who runs it with `imap-wal query`."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

import imap_wal
from rewrite_cli.cli import group
from tests.kit.effort import every

SECRET = "the operator's secret"
STATEMENTS = [
    "from read_csv('{file}', header=false)",
    "from '{file}'",
    "from read_text('{file}')",
    "from read_blob('{folder}/*')",
    "from read_json('{file}')",
    "from read_parquet('{file}')",
    "from parquet_metadata('{file}')",
    "from sniff_csv('{file}')",
    "from glob('{folder}/*')",
    "select * from orders, read_text('{file}')",
    "from query('select * from read_text(''{file}'')')",
    "from query_table('{file}')",
    "from json_execute_serialized_sql(json_serialize_sql('from read_text(''{file}'')'))",
    "copy orders to '{new}'",
    "copy (from orders) to '{new}' (format csv)",
    "copy orders from '{file}'",
    "explain analyze copy orders to '{new}'",
    "export database '{new}'",
    "import database '{folder}'",
    "attach '{new}'",
    "attach '{new}' as other; create table other.x as from orders",
    "install httpfs",
    "load httpfs",
    "from 'https://localhost:1/x.csv'",
    "create persistent secret s (type s3)",
    "call enable_logging('QueryLog', storage='file', storage_path='{new}')",
    "from enable_logging('QueryLog', storage='file', storage_path='{new}')",
    "pragma profiling_output='{new}'",
    "set enable_external_access=true",
    "set lock_configuration=false",
    "set allowed_paths=['{file}']; from read_text('{file}')",
    "set python_enable_replacements=true",
    "select getenv('HOME')",
    "from database",
    "from progress",
    "create table kept as from orders",
    "insert into orders from orders",
    "delete from orders",
    "drop table orders",
    "begin",
]


def ask(url: str, sql: str, *options: str) -> Result:
    return CliRunner().invoke(group, ["query", url, sql, *options])


@every(13)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_sql_reaches_nothing_but_the_maps(tmp_path: Path, statement: str) -> None:
    with imap_wal.open(f"file://{tmp_path}/log") as store:
        store.map("orders")["k"] = 1
    (tmp_path / "secret").mkdir()
    file, new = tmp_path / "secret" / "file.txt", tmp_path / "new"
    file.write_text(SECRET)
    before = {path.name for path in tmp_path.iterdir()}
    sql = statement.format(file=file, folder=file.parent, new=new)
    ended = ask(f"file://{tmp_path}/log", sql, "-o", "json")
    assert ended.exit_code == 2, ended.output
    assert ended.stdout == ""
    assert SECRET not in ended.output
    assert {path.name for path in tmp_path.iterdir()} == before


def test_stored_secrets_of_duckdb_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB keeps them in the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with duckdb.connect() as connection:
        connection.execute("create persistent secret mine (type http, bearer_token 'x')")
        assert connection.execute("select name from duckdb_secrets()").fetchall() == [("mine",)]
    with imap_wal.open(f"file://{tmp_path}/log") as store:
        store.map("orders")["k"] = 1
    ended = ask(f"file://{tmp_path}/log", "from duckdb_secrets()", "-o", "json")
    assert ended.stdout == ""
    assert "mine" not in ended.output


def test_settings_stay_locked_where_only_reading_is_possible(tmp_path: Path) -> None:
    with imap_wal.open(f"file://{tmp_path}/log") as store:
        store.map("orders")["k"] = 1
    ended = ask(
        f"file://{tmp_path}/log",
        "select name, value from duckdb_settings() where name in ('enable_external_access', "
        "'lock_configuration', 'autoload_known_extensions', 'python_enable_replacements') "
        "order by name",
        "-o", "csv",
    )  # fmt: skip
    assert ended.stdout.split() == [
        "name,value", "autoload_known_extensions,false", "enable_external_access,false",
        "lock_configuration,true", "python_enable_replacements,false",
    ]  # fmt: skip
