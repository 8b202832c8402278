"""`imap_wal.scan`: a map as a table of Arrow has what a restart would load."""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import imap_wal
from imap_wal.errors import InvalidSetting, MissingLibrary, NoSuchLog, NotReadable
from tests.kit.effort import every
from tests.support import FakeClock

SCHEMA = "id bigint, status string, amount double"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders, and one value that does not fit."""
    root = tmp_path_factory.mktemp("orders")
    with imap_wal.open(root) as store:
        orders = store.map("orders")
        orders.update(
            (f"o{number}", {"id": number, "status": "open", "amount": number / 2})
            for number in range(100)
        )
        orders["other"] = {"id": "seven"}
        store.map("counts")["a"] = 1
    return root


def rows(table: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = pa.table(table).to_pylist()
    return listed


@every(2)
@pytest.mark.parametrize("seed", range(3))
def test_a_table_has_what_a_restart_loads(tmp_path: Path, seed: int) -> None:
    """Deleted, cleared and expired entries are left out, whatever was archived and rewritten."""
    rng = random.Random(seed)
    with imap_wal.open(tmp_path, clock=FakeClock(), segment_bytes=64 * 1024) as store:
        many = store.map("m")
        for _ in range(6):
            many.update((rng.randrange(40), {"n": rng.randrange(9)}) for _ in range(30))
            for key in rng.sample([*many], 5):
                del many[key]
            many.put(rng.randrange(40), {"n": 100}, ttl=1)  # of a clock that is long past
            rng.choice((many.clear, store.archive, store.compact, lambda: None))()
    with imap_wal.open(tmp_path, read_only=True) as store:
        expected = dict(store.map("m").items())
    table = imap_wal.scan(tmp_path, map="m", schema="n bigint")
    assert {json.loads(row["key_text"]): {"n": row["n"]} for row in rows(table)} == expected
    plain = rows(imap_wal.scan(tmp_path, map="m"))
    assert {int(row["key_text"]): json.loads(row["value_json"]) for row in plain} == expected


def test_libraries_read_the_table_without_files(url: Path) -> None:
    orders = imap_wal.scan(url, map="orders", schema=SCHEMA)
    totals = duckdb.execute(
        "select status, count(*), sum(amount) from orders group by all order by all nulls last"
    )
    assert totals.fetchall() == [("open", 100, 2475.0), (None, 1, None)]
    both = duckdb.execute("select count(*) from orders a join orders b using (id)")  # two reads
    assert both.fetchall() == [(100,)]
    frame = pd.DataFrame.from_arrow(orders)
    assert frame["amount"].sum() == 2475.0
    assert pa.schema(orders) == orders.schema


def test_rescued_values_are_in_their_column(url: Path) -> None:
    table = imap_wal.scan(url, map="orders", schema=SCHEMA)
    assert table.schema.names == ["key_text", "id", "status", "amount", "_rescued"]
    assert [row for row in rows(table) if row["_rescued"]] == [
        {
            **dict.fromkeys(table.schema.names),
            "key_text": '"other"',
            "_rescued": '{"id": "seven"}',
        }
    ]
    failing = imap_wal.scan(url, map="orders", schema=SCHEMA, misfits="fail")
    with pytest.raises(NotReadable, match=r"key .other. .* column id: 'seven' is no bigint"):
        failing.reader().read_all()


def test_columns_are_chosen_and_hidden_by_the_schema(url: Path) -> None:
    names = ("node", "key", "key_text", "value_json", "timestamp_ms")
    table = imap_wal.scan(url, map="counts", columns=names, schema='"key" string, node text')
    assert table.schema.names == [*names[2:], "key", "node", "_rescued"]
    (row,) = rows(imap_wal.scan(url, map="counts", columns=names[1:4], schema="value bigint"))
    assert row == {
        "key": imap_wal.MsgpackSerializer().dump_key("a"),
        "key_text": '"a"',
        "value_json": "1",
        "value": 1,
        "_rescued": None,
    }


def test_batches_have_at_most_the_given_rows(url: Path) -> None:
    table = imap_wal.scan(url, map="orders", schema=SCHEMA, batch_rows=30, memory_bytes=1000)
    sizes = [batch.num_rows for batch in table.reader()]
    assert sum(sizes) == 101
    assert max(sizes) <= 30


def test_each_read_has_the_entries_of_its_time(tmp_path: Path) -> None:
    """A writer is open. With `as_of`, all reads are of one moment."""
    clock = FakeClock()
    with imap_wal.open(tmp_path, clock=clock) as store:
        counts = store.map("counts")
        counts["a"] = 1
        table = imap_wal.scan(tmp_path, map="counts", schema="value bigint", columns=[])
        then = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
        clock.advance(60)
        counts["a"] = 2
        assert rows(table) == [{"value": 2, "_rescued": None}]
        counts["b"] = 3
        assert len(rows(table)) == 2
        for moment in (then, then.isoformat(), clock.now_ms() - 60_000):
            past = imap_wal.scan(
                tmp_path, map="counts", schema="value int", columns=[], as_of=moment
            )
            assert rows(past) == [{"value": 1, "_rescued": None}]


def test_typed_maps_have_their_fields_as_columns(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path) as store:
        seen = store.map("seen", key=UUID, value=dt.datetime)
        seen[UUID(int=7)] = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    (row,) = rows(imap_wal.scan(tmp_path, map="seen", schema="value timestamp"))
    assert row["value"] == dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"map": "order"}, "no map 'order'; found: .*did you mean 'orders'"),
        ({"columns": ["id"]}, "there is no column 'id'; columns takes map, key"),
        ({"schema": "id"}, "a schema is columns with their types"),
        ({"schema": "id int", "misfits": "drop"}, "it takes rescue or fail"),
        ({"as_of": "noon"}, "it takes a datetime"),
        ({"as_of": 0}, "has no entry of 1970-01-01"),
        ({"as_of": "9000-01-01"}, "is in the future"),
        ({"batch_rows": 0}, "batch_rows is 0"),
    ],
)
def test_a_mistake_is_named_before_a_read(url: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidSetting, match=error):
        imap_wal.scan(url, **{"map": "orders", **arguments})


def test_the_cluster_of_a_table_is_not_guessed(tmp_path: Path) -> None:
    for cluster in ("one", "two"):
        with imap_wal.open(tmp_path, cluster=cluster) as store:
            store.map("m")[cluster] = 1
    with pytest.raises(InvalidSetting, match="has several logs: default/one, default/two"):
        imap_wal.scan(tmp_path, map="m")
    assert rows(imap_wal.scan(tmp_path, map="m", cluster="two"))[0]["key_text"] == '"two"'
    with pytest.raises(NoSuchLog, match="has no such log; found: default/one"):
        imap_wal.scan(tmp_path, map="m", cluster="three")
    with pytest.raises(NoSuchLog, match="is the folder of one namespace"):
        imap_wal.scan(tmp_path / "default", map="m")


def test_without_pyarrow_the_error_names_the_extra(
    url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("imap_wal.sql.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingLibrary, match=r"imap_wal.scan .* pip install 'imap-wal\[archive\]'"):
        imap_wal.scan(url, map="orders")
