"""`imap-wal query`: the rows that SQL finds in a log, compared with dump, export and the maps."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hazelcast.config import Config
from hazelcast.core import HazelcastJsonValue
from hazelcast.serialization.service import SerializationServiceV1

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import EntryBatch
from rewrite_cli.entries.columns import LATEST, Change, batch, json_of
from rewrite_cli.entries.database import Database, Query
from storage_backends import NotFound, open_store
from tests.cli.conftest import Ended, Run
from tests.encrypted import key_file
from tests.kit.logs import append, node
from tests.kit.orders import LIVE
from tests.support import eventually

GOLDEN = Path(__file__).parents[1] / "golden"


def found(ended: Ended) -> dict[Any, Any]:
    """key_text → value_json of an answer in JSON."""
    assert ended.code == 0, ended.err
    return {row["key_text"]: row["value_json"] for row in ended.lines}


@pytest.fixture
def every_kind(run: Run, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Two nodes; a snapshot, archives and open segments; deletes, expired entries, a clear."""
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url, node="n1") as store:
        store.map("m").update({f"k{number}": number for number in range(50)})
        store.map("cleared").update({1: "gone", 2: "gone"})
        store.archive()
        del store.map("m")["k1"]
    assert run("rewrite", url).code == 0
    with imap_wal.open(url, node="n2") as store:
        store.map("m")["k2"] = "of n2"
        del store.map("m")["k3"]
        store.map("cleared").clear()
        store.map("cleared")[3] = "after"
        store.archive()
        store.map("m")["k4"] = "in a segment"
        del store.map("m")["k5"]
    with imap_wal.open(url, node="n1", clock=SystemClock(-10_000)) as store:
        store.map("m").put("short", "expired", ttl=5)
        store.map("m").put("k6", "expired", ttl=5)
        store.map("dead").put("k", "expired", ttl=5)
    with imap_wal.open(url, node="n3") as store:
        live = {str(key): value for key, value in store.map("m").items()}
    return url, live


def test_latest_has_what_the_map_has(run: Run, every_kind: tuple[str, dict[str, Any]]) -> None:
    url, live = every_kind
    assert not {"k1", "k3", "k5", "k6", "short"} & set(live), "deleted, or expired"
    assert found(run("query", url, "from m", "-o", "json")) == live
    assert found(run("query", url, "from latest.m", "-o", "json")) == live
    assert found(run("query", url, "from cleared", "-o", "json")) == {"3": "after"}
    assert found(run("query", url, "from dead", "-o", "json")) == {}, "known, but empty"


def comparable(row: dict[str, Any]) -> tuple[Any, ...]:
    """A change, from either command."""
    order = row.get("order") or [
        row[name] for name in ("incarnation", "partition_version", "session", "request")
    ]
    value = None if row["deleted"] else json.dumps(row.get("value_json", row.get("value")))
    key = row.get("key_text", row.get("key"))
    return (
        row["node"], None if key is None else str(key), value, row["deleted"], row["timestamp_ms"],
        row["expires_at_ms"], row["partition"], tuple(order),
    )  # fmt: skip


@pytest.mark.parametrize("pruned", [False, True])
def test_raw_has_each_change_of_dump_once(
    run: Run, every_kind: tuple[str, dict[str, Any]], pruned: bool
) -> None:
    """Dump shows a change again if it is also in a snapshot."""
    url, _ = every_kind
    if pruned:
        assert run("prune", url, "--yes").code == 0
    for name in ("m", "cleared", "dead"):
        dumped = run("dump", url, "--map", name, "-o", "json").lines
        rows = run("query", url, f"from raw.{name}", "-o", "json").lines
        assert len(rows) == len({comparable(row) for row in rows}) > 0
        assert {comparable(row) for row in rows} == {comparable(line) for line in dumped}
        assert {row["position"] for row in rows} == {
            line["position"] for line in dumped if line["position"]
        } | ({None} if name != "dead" and pruned else set())


@pytest.mark.parametrize("name", ["log-v1", "log-clears"])
def test_logs_of_all_versions_are_answered_like_export_and_dump(
    run: Run, tmp_path: Path, name: str
) -> None:
    with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
        archive.extractall(tmp_path / "log")
    exported = run("export", tmp_path / "log").lines
    dumped = run("dump", tmp_path / "log", "-o", "json").lines
    for map_name in {line["map"] for line in dumped}:
        quoted = '"' + map_name.replace('"', '""') + '"'
        latest = run("query", tmp_path / "log", f"from {quoted}", "-o", "json")
        assert list(found(latest).values()) == [
            line["value"] for line in exported if line["map"] == map_name
        ]
        raw = run("query", tmp_path / "log", f"from raw.{quoted}", "-o", "json").lines
        assert {comparable(row)[2:] for row in raw} == {
            comparable(line)[2:] for line in dumped if line["map"] == map_name
        }


def test_as_of_shows_both_views_as_they_were(run: Run, url: str) -> None:
    paid = run("dump", url, "--key", "o1", "-o", "json").lines[1]
    moment = paid["timestamp_ms"] - 1
    before = ("--as-of", f"@{moment}", "-o", "json")
    exported = run("export", url, "--map", "orders", "--as-of", f"@{moment}").lines
    live = {entry["key"]: entry["value"] for entry in exported}
    assert found(run("query", url, "from orders", *before)) == live != LIVE
    dumped = run("dump", url, "--map", "orders", "--until", f"@{moment + 1}", "-o", "json").lines
    raw = run("query", url, "from raw.orders", *before).lines
    assert {comparable(row) for row in raw} == {comparable(line) for line in dumped}
    assert run("query", url, "from orders", "--as-of", "2000-01-01").code == 1
    assert found(run("query", url, "from orders", "-o", "json")) == LIVE


def test_bytes_are_those_that_dump_takes(run: Run, url: str) -> None:
    (row,) = run("query", url, "select key from orders where key_text = 'o1'", "-o", "json").lines
    assert len(run("dump", url, "--key", row["key"], "-o", "json").lines) == 2


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
    assert "'orders'" in tables.err, "it names the one that is left out"


def test_a_name_of_the_query_hides_a_map(run: Run, url: str) -> None:
    sql = "with orders as (select 1 as n) select n from orders, raw.sessions"
    assert run("query", url, sql, "-o", "json").lines == [{"n": 1}]


def test_tables_named_in_texts_are_found(run: Run, url: str) -> None:
    for sql in ("from query_table('orders')", "from query('from orders')"):
        assert found(run("query", url, sql, "-o", "json")) == LIVE
    tables = run("query", url, "show tables", "-o", "csv").out.split()
    assert tables == ["name", "orders", "sessions"]


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
    ended = run("query", url, "select key_text::integer from orders")
    assert (ended.code, ended.out) == (2, "")
    assert "Could not convert string 'o0'" in ended.err
    ended = run("query", url, "select now() as t from orders")
    assert ended.code == 2 and "now()::TIMESTAMP" in ended.err


def test_sql_may_come_from_stdin(run: Run, url: str) -> None:
    ended = run("query", url, "-", "-o", "json", stdin="from orders\n-- all of them\n;\n")
    assert found(ended) == LIVE


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
        "where key_text = 'o1'"
    )
    (row,) = run("query", url, sql, "-o", "json").lines
    assert row["value_json"] == {"state": "paid"}
    assert (row["nothing"], row["yes"], row["s"], row["list"]) == (None, True, 9, [1, 2])
    assert row["inner"] == {"a": row["key"]} == {"a": "hex:a26f31"}
    (line,) = csv.DictReader(io.StringIO(run("query", url, sql, "-o", "csv").out))
    assert (line["key_text"], line["nothing"], line["list"]) == ("o1", "", "[1, 2]")
    table = run("query", url, sql).out
    assert "NULL" in table and "hex:a26f31" in table
    for name in ("o.json", "o.jsonl", "o.csv", "o.parquet", "o.dat"):
        to = ("--to", tmp_path / name, *(("-o", "csv") if name == "o.dat" else ()))
        ended = run("query", url, sql, *to)
        assert (ended.code, ended.out) == (0, ""), ended.err
    assert json.loads((tmp_path / "o.json").read_text()) == row
    assert (tmp_path / "o.dat").read_text() == (tmp_path / "o.csv").read_text()
    (stored,) = duckdb.execute(f"select key_text, key, s from '{tmp_path}/o.parquet'").fetchall()
    assert stored == ("o1", b"\xa2o1", 9)


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
    sql = "select (case when key_text = 'o9' then 'x' else '1' end)::integer from orders"
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


def test_a_damaged_log_is_named_not_half_answered(run: Run, url: str, root: Path) -> None:
    segment = min((root / "prod/eu/nodes/n1/wal").glob("*.wal"))
    data = bytearray(segment.read_bytes())
    data[120] ^= 1
    segment.write_bytes(data)
    for sql in ("from sessions", "from raw.orders"):
        ended = run("query", url, sql, "-o", "json")
        assert (ended.code, ended.out) == (1, "")
        assert segment.name in ended.err


def test_a_missing_node_stops_a_query_without_partial(run: Run, url: str, root: Path) -> None:
    (root / "prod/eu/nodes/n2").rename(root / "away")
    for sql in ("from orders", "from raw.orders"):
        ended = run("query", url, sql)
        assert ended.code == 1 and "n2" in ended.err
    assert found(run("query", url, "from orders", "-o", "json", "--partial"))["o4"] == {
        "state": "new"
    }
    assert len(run("query", url, "from raw.orders", "-o", "json", "--partial").lines) == 13


def test_raw_begins_again_if_files_are_removed(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune may run beside it."""
    before = run("query", url, "from raw.orders", "-o", "json").lines
    real, failures = ClusterLog.changes, iter([True])

    def changes(self: ClusterLog, *args: Any, **options: Any) -> Iterator[EntryBatch]:
        for each in real(self, *args, **options):
            yield each
            if options.get("covered") and next(failures, False):
                raise NotFound("removed", "x.wal")

    monkeypatch.setattr(ClusterLog, "changes", changes)
    assert run("query", url, "from raw.orders", "-o", "json").lines == before
    assert next(failures, None) is None


def test_values_of_members_are_decoded(run: Run, tmp_path: Path) -> None:
    """JSON and text; what Java alone can read has its class and bytes."""
    service = SerializationServiceV1(Config())

    def data(value: Any) -> bytes:
        return bytes(service.to_data(value).buffer)

    values = {"json": data(HazelcastJsonValue('{"n": 1}')), "text": data("Grüße"), "java": b"??"}
    store = open_store(tmp_path.as_uri())
    log = node(store)
    append(
        log,
        *(
            ("m", data(name), "java.lang.String", value, "a.B", False, 1, 0, 7, (1, 1, 1, number))
            for number, (name, value) in enumerate(values.items())
        ),
    )
    log.close()
    shown = {"json": {"n": 1}, "text": "Grüße", "java": {"class": "a.B", "hex": "3f3f"}}
    for view in ("m", "raw.m"):
        assert found(run("query", tmp_path, f"from {view}", "-o", "json")) == shown


def test_an_encrypted_log_is_asked_with_its_keys(run: Run, tmp_path: Path) -> None:
    keys, place = key_file(tmp_path, "a"), tmp_path / "log"
    with imap_wal.open(place.as_uri(), encryption_keys=keys) as store:
        store.map("m")["archived"] = 1
        store.archive()
        store.map("m")["in a segment"] = 2
    given = ("--encryption-keys", keys)
    ended = run(*given, "query", place, "from m", "-o", "json")
    assert found(ended) == {"archived": 1, "in a segment": 2}
    assert len(run(*given, "query", place, "from raw.m", "-o", "json").lines) == 2
    assert run("query", place, "from m").code == 1


def test_a_dropped_map_is_known_and_empty(run: Run, url: str) -> None:
    before = run("query", url, "from raw.orders", "-o", "json").lines
    assert run("drop", url, "--map", "orders", "--yes").code == 0
    assert found(run("query", url, "from orders", "-o", "json")) == {}
    assert len(run("query", url, "from raw.orders", "-o", "json").lines) == len(before), (
        "until its files are pruned"
    )


def test_ctrl_c_ends_a_query_that_would_take_hours(url: str) -> None:
    """And its temporary folder is removed."""
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


def test_clusters_with_the_same_map_are_distinguished(run: Run, tmp_path: Path) -> None:
    for cluster in ("eu", "us"):
        with imap_wal.open(tmp_path.as_uri(), cluster=cluster, node="n1") as store:
            store.map("m")["k"] = cluster
    sql = "select cluster, value_json from {} order by cluster"
    for view in ("m", "raw.m"):
        rows = run("query", tmp_path, sql.format(view), "-o", "json").lines
        assert rows == [{"cluster": name, "value_json": name} for name in ("eu", "us")]
    assert len(run("query", tmp_path, "from m", "-o", "json", "--cluster", "eu").lines) == 1


def test_rows_beyond_the_memory_are_kept_on_disk(tmp_path: Path) -> None:
    """Also for a sort."""
    from imap_wal.entry import DataEntry
    from imap_wal.inspect.decode import Decoder

    database = Database(tmp_path, 40 * 1024 * 1024)
    database.create("latest", "m", LATEST)
    for part in range(40):
        rows = [
            tuple(DataEntry("m", b"%08d" % (part * 100 + number), "raw", bytes(20_000), "raw",
                            False, 1, 0, 0, (1, 0, 1, 1)))
            for number in range(100)
        ]  # fmt: skip
        changes = [Change(row, Decoder(), "ns", "c") for row in rows]  # type: ignore[arg-type]
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
        ("\ud800", '"?"'),
        (2**70, str(2**70)),
        (None, "null"),
        (b"\x00", '{"hex": "00"}'),
    ],
)
def test_json_of_any_value_is_json_for_duckdb(value: Any, text: str) -> None:
    assert json_of(value) == text
    (row,) = duckdb.execute("select $1::json::varchar", [json_of(value)]).fetchall()
    assert row == (text,)
