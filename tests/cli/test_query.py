"""`imap-wal query`: which statements are answered, and in which form."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb
import pytest

import imap_wal
from imap_wal.encoder import json_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from rewrite_cli.entries.database import Database, Query
from rewrite_cli.entries.sql_columns import LATEST, FoundEntry, batch
from tests.cli.conftest import Run, found
from tests.kit.effort import every, thorough
from tests.kit.orders import LIVE
from tests.support import eventually


def test_without_sql_it_prints_views_and_columns(run: Run, url: str) -> None:
    printed = run("query", url)
    assert printed.code == 0
    assert "raw.sessions" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80
    views = run("query", url, "-o", "json").json
    assert [view["view"] for view in views["views"]] == [
        "orders", "raw.orders", "sessions", "raw.sessions",
    ]  # fmt: skip
    for view in ("orders", "raw.orders"):
        described = run("query", url, f"describe {view}", "-o", "json").lines
        assert [(row["column_name"], row["column_type"]) for row in described] == [
            (each["column"], each["type"])
            for each in views["columns"]
            if each["in"] == "both" or view == "raw.orders"
        ]


@every(13)
@pytest.mark.parametrize(
    "name",
    ['a "quoted" name', "a.b", "two words", "order", "raw", "latest", "é/%", "x;drop table y--",
     "main", "'", "Upper", "imap-wal batch"],
)  # fmt: skip
def test_any_name_of_a_map_can_be_asked(run: Run, tmp_path: Path, name: str) -> None:
    with imap_wal.open(tmp_path.as_uri()) as store:
        store.map(name).update({"k": name, "other": 1})
        store.map("beside")["k"] = 2
    views = run("query", tmp_path, "-o", "json").json["views"]
    latest, raw = (view["view"] for view in views if view["map"] == name)
    assert found(run("query", tmp_path, f"from {latest}", "-o", "json"))["k"] == name
    assert len(run("query", tmp_path, f"from {raw}", "-o", "json").lines) == 2
    both = run("query", tmp_path, f"from {latest} join beside using (key)", "-o", "json")
    assert len(both.lines) == 1, both.err


def test_names_that_differ_in_case_are_never_mixed_up(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(tmp_path.as_uri()) as store:
        store.map("orders")["k"] = "small"
        store.map("Orders")["k"] = "capital"
        store.map("other")["k"] = 1
    assert found(run("query", tmp_path, "from orders", "-o", "json")) == {"k": "small"}
    assert found(run("query", tmp_path, 'from "Orders"', "-o", "json")) == {"k": "capital"}
    assert found(run("query", tmp_path, "from OTHER", "-o", "json")) == {"k": 1}
    for sql in (
        "from ORDERS",
        'from orders a, "Orders" b',
        'select key from orders union select key from "ORDERS"',
    ):
        ended = run("query", tmp_path, sql)
        assert ended.code == 2
        assert "'Orders', 'orders'" in ended.err
    tables = run("query", tmp_path, "show tables", "-o", "json")
    assert [row["name"] for row in tables.lines] == ["Orders", "other"]
    assert "'orders'" in tables.err, "the error names the map that is left out"


def test_a_name_of_the_query_hides_a_map(run: Run, url: str) -> None:
    sql = "with orders as (select 1 as n) select n from orders, raw.sessions"
    assert run("query", url, sql, "-o", "json").lines == [{"n": 1}]


def test_tables_named_in_texts_are_found(run: Run, url: str) -> None:
    for sql in ("from query_table('orders')", "from query('from orders')"):
        assert found(run("query", url, sql, "-o", "json")) == LIVE
    tables = run("query", url, "show tables", "-o", "csv").out.split()
    assert tables == ["name", "orders", "sessions"]


@pytest.mark.parametrize("clusters", [1, 3])
def test_the_merge_and_the_tables_share_the_memory(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch, clusters: int
) -> None:
    """They exist at the same time, and so do the merges of all clusters."""
    for number in range(1, clusters):
        with imap_wal.open(url, namespace="prod", cluster=f"c{number}") as store:
            store.map("orders")["a"] = 1
    given: list[int] = []

    class Tables(Database):
        def __init__(self, scratch: Path, memory_bytes: int) -> None:
            given.append(memory_bytes)
            super().__init__(scratch, memory_bytes)

    class View(MaterializedView):
        def __init__(self, log: ClusterLog, settings: Settings, *more: Any) -> None:
            given.append(settings.restore_memory_bytes)
            super().__init__(log, settings, *more)

    monkeypatch.setattr("rewrite_cli.commands.reading.query.Database", Tables)
    monkeypatch.setattr("rewrite_cli.entries.live.MaterializedView", View)
    assert run("query", url, "from orders").code == 0
    assert len(given) == 1 + clusters and sum(given) <= Settings().restore_memory_bytes


def test_an_unknown_map_lists_those_there_are(run: Run, url: str) -> None:
    for sql in ("from ordres", "from raw.ordres", "from a.b", "from query_table('ordres')"):
        ended = run("query", url, sql)
        assert ended.code == 2
        assert "The maps are: orders, sessions." in ended.err


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("selec 1", "syntax error"),
        ("select nope from orders", "nope"),
        ("select key_text from orders o join raw.sessions s on o.nope = s.key", "nope"),
        ("", "one statement that reads"),
        ("from orders; from orders", "one statement that reads"),
        ("drop table orders", "found: DROP"),
        ("pivot orders on key_text using count(*)", "IN"),
        ("from orders where \0", "NUL"),
        ("from read_csv('/etc/passwd')", "disabled"),
    ],
)
def test_a_wrong_query_is_refused_before_the_log_is_read(
    run: Run, tmp_path: Path, sql: str, says: str
) -> None:
    """There is no log here."""
    ended = run("query", tmp_path / "nothing", sql)
    assert ended.code == 2, ended.err
    assert says in ended.err


def test_an_error_of_the_rows_is_wrong_usage(run: Run, url: str) -> None:
    ended = run("query", url, "select (key_text->>'$')::integer from orders")
    assert (ended.code, ended.out) == (2, "")
    assert "Could not convert string 'o0'" in ended.err
    ended = run("query", url, "select now() as t from orders")
    assert ended.code == 2 and "now()::TIMESTAMP" in ended.err


def test_sql_may_come_from_stdin(run: Run, url: str) -> None:
    ended = run("query", url, "-", "-o", "json", stdin="from orders\n-- all of them\n;\n")
    assert found(ended) == LIVE


@every(4)
@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("select 1 as x; -- the end", 1),
        ("select 1 as x -- the end;\n;;\n-- x", 1),
        ("select '; -- x' as x", "; -- x"),
        ("select 'a\n-- x;' as x ;", "a\n-- x;"),
        ("select $$;$$ as x", ";"),
        (f"select {'+'.join(['1'] * 900)} as x", 900),
    ],
)
def test_a_statement_may_end_in_any_way(run: Run, url: str, sql: str, answer: Any) -> None:
    assert run("query", url, sql, "-o", "json").lines == [{"x": answer}]


def test_json_that_python_cannot_read_stays_text(run: Run, url: str) -> None:
    digits = "1" * 5000
    sql = f"select '{digits}'::json as x, to_json('nan'::double) as y"
    (row,) = run("query", url, sql, "-o", "json").lines
    assert row["x"] == digits


def test_results_in_every_format(run: Run, url: str, tmp_path: Path) -> None:
    sql = (
        "select key_text, value_json, key, written, null as nothing, true as yes, 1.5 as n, "
        "9::hugeint as s, [1, 2] as list, {'a': key} as inner from orders "
        "where key_text = '\"o1\"'"
    )
    (row,) = run("query", url, sql, "-o", "json").lines
    assert row["value_json"] == {"state": "paid"}
    assert (row["nothing"], row["yes"], row["s"], row["list"]) == (None, True, 9, [1, 2])
    assert row["inner"] == {"a": row["key"]} == {"a": "hex:a26f31"}
    (line,) = csv.DictReader(io.StringIO(run("query", url, sql, "-o", "csv").out))
    assert (line["key_text"], line["nothing"], line["list"]) == ('"o1"', "", "[1, 2]")
    table = run("query", url, sql).out
    assert "NULL" in table and "hex:a26f31" in table
    for name in ("o.json", "o.jsonl", "o.csv", "o.parquet", "o.dat"):
        to = ("--to", tmp_path / name, *(("-o", "csv") if name == "o.dat" else ()))
        ended = run("query", url, sql, *to)
        assert (ended.code, ended.out) == (0, ""), ended.err
    assert json.loads((tmp_path / "o.json").read_text()) == row
    assert (tmp_path / "o.dat").read_text() == (tmp_path / "o.csv").read_text()
    (stored,) = duckdb.execute(f"select key_text, key, s from '{tmp_path}/o.parquet'").fetchall()
    assert stored == ('"o1"', b"\xa2o1", 9)


def test_columns_of_one_name_all_stay(run: Run, url: str, tmp_path: Path) -> None:
    sql = "select 1 as a, 2 as a, 3 as a_1"
    assert run("query", url, sql, "-o", "json").lines == [{"a": 1, "a_1": 2, "a_1_1": 3}]
    assert run("query", url, sql, "--to", tmp_path / "a.parquet").code == 0
    written = duckdb.execute(f"from '{tmp_path}/a.parquet'").description or []
    assert [column[0] for column in written] == ["a", "a_1", "a_1_1"]


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_a_query_that_fails_leaves_no_file(run: Run, url: str, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"o.{ending}"
    target.write_text("as it was")
    sql = "select (case when key_text->>'$' = 'o9' then 'x' else '1' end)::integer from orders"
    assert run("query", url, sql, "--to", target).code == 2
    assert target.read_text() == "as it was"
    assert [path.name for path in tmp_path.glob(".o.*")] == []
    ended = run("query", url, "from orders", "--to", tmp_path / "no" / f"o.{ending}")
    assert ended.code == 1 and "cannot be written" in ended.err


def test_a_target_needs_a_format(run: Run, url: str, tmp_path: Path) -> None:
    for words in (("--to", tmp_path / "o"), ("-o", "parquet"), ("--to", "")):
        assert run("query", url, "from orders", *words).code == 2
    ended = run("query", url, "select interval 1 day as i", "--to", tmp_path / "o.parquet")
    assert ended.code == 2 and "VARCHAR" in ended.err


def test_a_table_has_the_first_thousand_rows(run: Run, url: str) -> None:
    ended = run("query", url, "select r as n from range(1500) t(r)")
    assert len(ended.out.splitlines()) == 1 + 1000
    assert "-o csv" in ended.err
    assert len(run("query", url, "select r as n from range(1500) t(r)", "-o", "json").lines) == 1500


@thorough
def test_ctrl_c_ends_a_query_that_would_take_hours(url: str) -> None:
    """Its temporary folder is removed, too."""
    sql = "select count(*) from range(10000000) a(x), range(10000000) b(y) where x * y % 7 = 3"
    with subprocess.Popen(
        [sys.executable, "-m", "rewrite_cli.cli", "query", url, sql],
        env={**os.environ, "TMPDIR": url.removeprefix("file://")},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            root = Path(url.removeprefix("file://"))
            eventually(lambda: list(root.glob("imap-wal-query-*")), "the query's folder")
            busy = f"/proc/{process.pid}/stat"
            start = cpu(busy)
            eventually(lambda: cpu(busy) > start + 200, "a query that computes")
            process.send_signal(signal.SIGINT)
            _, printed = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, printed
    assert printed.strip().endswith("stopped")
    assert not list(root.glob("imap-wal-query-*"))


def test_no_statement_of_a_query_swallows_a_signal(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a signal comes during a call of DuckDB in the main thread, DuckDB raises a RuntimeError in
    place of KeyboardInterrupt, which was reported as a bug of imap-wal. So all run in another."""
    connect, calls = duckdb.connect, []

    class Connection:
        def __init__(self, *words: Any, **options: Any) -> None:
            self._connection = connect(*words, **options)

        def __getattr__(self, name: str) -> Any:
            def recorded(*words: Any) -> Any:
                calls.append((name, threading.current_thread() is threading.main_thread()))
                return getattr(self._connection, name)(*words)

            watched = name in ("execute", "sql", "register", "unregister")
            return recorded if watched else getattr(self._connection, name)

    monkeypatch.setattr(duckdb, "connect", Connection)
    assert run("query", url, "from raw.orders").code == 0
    assert {"execute", "sql", "register", "unregister"} == {name for name, _ in calls}
    assert not any(in_main for _, in_main in calls)


def cpu(stat: str) -> int:
    """Processor time of a process, in ticks."""
    fields = Path(stat).read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_control_characters_are_escaped(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(tmp_path.as_uri()) as store:
        store.map("m\x1b[2J")["k\x9b"] = "v\x1b[2J"
    for words in (
        (), ("from query_table('m\x1b[2J')",),
        ("from query_table('m\x1b[2J')", "-o", "json"), ("from nope",),
        ("select value_json::integer as \"\x1b\" from query_table('m\x1b[2J')",),
    ):  # fmt: skip
        ended = run("query", tmp_path, *words)
        printed = ended.out + ended.err
        assert {each for each in printed if not each.isprintable()} <= {"\n"}, words


def test_without_duckdb_the_error_names_the_extra(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    ended = run("query", url, "from orders")
    assert ended.code == 1
    assert "imap-wal[duckdb]" in ended.err


def test_rows_beyond_the_memory_are_kept_on_disk(tmp_path: Path) -> None:
    """A sort does the same."""
    from imap_wal.decoder import Decoder
    from imap_wal.entry import DataEntry

    database = Database(tmp_path, 40 * 1024 * 1024)
    database.create("latest", "m", LATEST)
    for part in range(40):
        rows = [
            tuple(DataEntry("m", b"%08d" % (part * 100 + number), "raw", bytes(20_000), "raw",
                            False, 1, 0, 0, (1, 0, 1, 1)))
            for number in range(100)
        ]  # fmt: skip
        changes = [FoundEntry(row, Decoder(), "ns", "c") for row in rows]  # type: ignore[arg-type]
        database.insert("latest", "m", batch(LATEST, changes))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 40 * 1024 * 1024
    query = Query("select key from m order by key desc", None)
    keys = [row[0] for rows in database.run(query, "").rows for row in rows]
    database.close()
    assert keys == [b"%08d" % number for number in reversed(range(4000))]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), '"nan"'),
        ({"a": [float("inf"), 1.5]}, '{"a": ["inf", 1.5]}'),
        ("\ud800", '"\ufffd"'),
        (2**70, str(2**70)),
        (None, "null"),
        (b"\x00", '{"hex": "00"}'),
    ],
)
def test_json_of_any_value_is_json_for_duckdb(value: Any, text: str) -> None:
    assert json_of(value) == text
    (row,) = duckdb.execute("select $1::json::varchar", [json_of(value)]).fetchall()
    assert row == (text,)
