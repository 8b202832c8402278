"""`imap-wal schema`, and `--schema` of `query` and `export`."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import imap_wal
from tests.cli.conftest import Run

ORDERS: dict[str, Any] = {
    "o1": {"id": 1, "status": "open", "paid": Decimal("12.50"), "tags": {"a", "b"}},
    "o2": {
        "id": 2,
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "more": {"x": 1.5},
        "key": b"\x01",
    },
    "o3": "closed",
}
SCHEMA = (
    "id bigint, status string, paid decimal(38,2), tags array<string>, at timestamp, "
    'more struct<x:double>, "key" binary'
).replace('"key"', "key")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with imap_wal.open(tmp_path / "maps") as store:
        store.map("orders").update(ORDERS)
        store.map("counts")["a"] = 1
        store.map("pickled", serializer="pickle")["a"] = 1
    return tmp_path / "maps"


def test_a_schema_is_proposed_and_can_be_pasted(run: Run, root: Path) -> None:
    printed = run("schema", root, "--map", "orders")
    assert (printed.code, printed.out) == (0, SCHEMA + "\n")
    assert "from 3 entries; 1 of them do not fit" in printed.err
    document = run("schema", root, "--map", "orders", "-o", "json").json
    assert document["schema"] == SCHEMA
    assert document["columns"][0] == {"name": "id", "type": "bigint"}
    assert (document["entries"], document["misfits"]) == (3, 1)
    pasted = run("query", root, "from orders", "--map", "orders", "--schema", SCHEMA, "-o", "json")
    assert pasted.code == 0
    assert len(imap_wal.scan(root, map="orders", schema=SCHEMA).reader().read_all()) == 3


def test_a_sample_may_be_small_and_values_plain(run: Run, root: Path) -> None:
    printed = run("schema", root, "--map", "orders", "--sample", 1)
    assert printed.out == "id bigint, status string, paid decimal(38,2), tags array<string>\n"
    assert run("schema", root, "--map", "counts").out == "value bigint\n"
    undecoded = run("schema", root, "--map", "pickled")
    assert (undecoded.code, undecoded.out) == (1, "")
    assert "can be decoded" in undecoded.err


def test_sql_has_typed_columns(run: Run, root: Path) -> None:
    sql = (
        'select sum(paid + id), max("at"), max(more.x), max(len(tags)), count(_rescued) from orders'
    )
    words = ("--map", "orders", "--schema", SCHEMA, "-o", "json")
    (row,) = run("query", root, sql, *words).lines
    assert [*row.values()] == ["13.50", "2026-01-02T00:00:00", 1.5, 2, 1]
    described = run("query", root, "describe orders", *words).lines
    names = [each["column_name"] for each in described]
    assert names[:8] == ["key_text", *(column.split()[0] for column in SCHEMA.split(", "))]
    assert names[8] == "_rescued"
    assert "value_json" not in names
    assert names.count("key") == 1
    raw = run("query", root, "select id from raw.orders order by 1", "--map", "orders",
              "--schema", "id int", "-o", "json")  # fmt: skip
    assert raw.lines == [{"id": 1}, {"id": 2}, {"id": None}]
    refused = run("query", root, "from raw.orders", *words)
    assert refused.code == 2
    assert "have a column key of their own" in refused.err


def test_rescued_values_are_counted_and_named(run: Run, root: Path) -> None:
    words = ("query", root, "select _rescued from orders", "--map", "orders", "--schema", "id int")
    printed = run(*words, "-o", "json")
    assert printed.code == 0
    assert {"_rescued": "closed"} in printed.lines
    assert "1 key or value: it does not fit the schema" in printed.err
    strict = run(*words, "--strict")
    assert strict.code == 3
    assert "a str has no fields" in strict.err


def test_exports_have_typed_columns(run: Run, root: Path) -> None:
    words = ("export", root, "--map", "orders", "--schema", SCHEMA)
    columns = ["key_text", *(column.split()[0] for column in SCHEMA.split(", ")), "_rescued",
               "written", "expires", "namespace", "cluster"]  # fmt: skip
    lines = {line["key_text"]: line for line in run(*words).lines}
    assert [*lines["o1"]] == columns
    assert (lines["o1"]["paid"], lines["o1"]["tags"]) == ("12.50", ["a", "b"])
    assert (lines["o2"]["at"], lines["o2"]["key"]) == ("2026-01-02T00:00:00", "hex:01")
    assert lines["o3"]["_rescued"] == "closed"
    cells = [*csv.DictReader(io.StringIO(run(*words, "--format", "csv").out))]
    assert [*cells[0]] == columns
    assert {row["key_text"]: row["more"] for row in cells}['"o2"'] == '{"x": 1.5}'
    assert run(*words, "--to", "orders.parquet").code == 0
    table = pq.read_table("orders.parquet")
    assert table.column_names == columns
    by_key = {json.loads(row["key_text"]): row for row in table.to_pylist()}
    assert by_key["o1"]["paid"] == Decimal("12.50")
    assert by_key["o2"]["at"] == dt.datetime(2026, 1, 2)


def test_an_empty_map_has_typed_columns_too(run: Run, root: Path) -> None:
    with imap_wal.open(root) as store:
        store.map("orders").clear()
    words = ("--map", "orders", "--schema", "id int, m map<string, int>")
    assert run("export", root, *words, "--to", "orders.parquet").code == 0
    assert pq.read_table("orders.parquet").column_names[:3] == ["key_text", "id", "m"]
    assert run("query", root, "from orders", *words, "-o", "json").out == ""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--schema", "id int"), "name it with --map"),
        (("--schema", "id int", "--map", "orders", "--map", "counts"), "name it with --map"),
        (("--schema", "id", "--map", "orders"), "a schema is columns with their types"),
    ],
)
def test_a_mistake_in_a_schema_is_named(
    run: Run, root: Path, words: tuple[str, ...], error: str
) -> None:
    for command in (("query", root, "from orders"), ("export", root)):
        ended = run(*command, *words)
        assert (ended.code, ended.out) == (2, "")
        assert error in " ".join(ended.err.split())
    assert run("schema", root).code == 2
