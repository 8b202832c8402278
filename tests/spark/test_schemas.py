"""The option `schema`: values as typed columns, in each kind of read. All but one test do without
Spark's JVM."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, In, Not
from pyspark.sql.types import StructType

import imap_wal
from imap_wal.errors import InvalidSetting, NotReadable
from imap_wal.sql.types import parsed
from pyspark_imap_wal.data_source import ImapWalDataSource
from pyspark_imap_wal.tables.catalog import columns_of
from tests.kit.spark_reads import rows_of

pytestmark = pytest.mark.spark
SCHEMA = "id bigint, node string, paid decimal(9,2), at timestamp, tags array<string>"
FIELDS = ("id", "node", "paid", "at", "tags", "_rescued")
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part of the entries are in a snapshot, others in an archive and in segments."""
    folder = tmp_path_factory.mktemp("orders")
    with imap_wal.open(folder) as store:
        orders = store.map("orders")
        orders["o1"] = {"id": 1, "node": "x", "paid": Decimal("12.5")}
        orders["gone"] = {"id": 0}
        store.map("other")["o"] = 1
        store.compact()
        orders["o2"] = {"id": 2, "at": NOON, "tags": {"b", "a"}}
        del orders["gone"]
        store.archive()
        orders["o1"] = {"id": 11, "node": "y"}
        orders["o3"] = "three"
    return folder


def source(root: Path, **options: str) -> ImapWalDataSource:
    return ImapWalDataSource({"path": str(root), "map": "orders", "schema": SCHEMA, **options})


def streamed(made: ImapWalDataSource, schema: StructType | None = None) -> list[dict[str, Any]]:
    """What a stream has from its start until now. `schema`: of the user."""
    stream: Any = made.streamReader(schema or made.schema())
    start = stream.initialOffset()
    parts = stream.partitions(start, stream.latestOffset(start, None))
    lines = [line for part in parts for batch in stream.read(part) for line in batch.to_pylist()]
    stream.stop()
    return lines


def values(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(line[name] for name in FIELDS) for line in lines), key=repr)


O1, O2 = (11, "y", None, None, None, None), (2, None, None, NOON, ["a", "b"], None)
O3, GONE = (None,) * 5 + ('"three"',), (None,) * 6
O1_BEFORE = (1, "x", Decimal("12.50"), None, None, None)


def test_each_kind_of_read_has_typed_columns(root: Path) -> None:
    latest = rows_of(source(root, mode="latest"))
    assert [*latest[0]] == ["key", *FIELDS]
    assert values(latest) == sorted([O1, O2, O3], key=repr)
    some_keys = rows_of(source(root, mode="latest", buckets="3"), EqualTo(("key",), b"\xa2o1"))
    assert values(some_keys) == [O1]
    raw = rows_of(source(root))
    assert [*raw[0]] == ["key", "deleted", *FIELDS]
    untagged = [line for line in raw if line["tags"] is None]
    assert {O1, O3, GONE, O1_BEFORE} <= {*values(untagged)}
    images = rows_of(source(root, changes="images"))
    assert [*images[0]][:3] == ["key", "_change_type", "_commit_version"]
    assert O1 in values([each for each in images if each["_change_type"] == "update_postimage"])
    assert O1_BEFORE in values([each for each in images if each["_change_type"] == "insert"])
    history = rows_of(source(root, table="history"), EqualTo(("key",), b"\xa2o1"))
    assert values(history) == sorted([O1, O1_BEFORE], key=repr)


def test_streams_have_typed_columns(root: Path) -> None:
    for options in ({}, {"changes": "images"}):
        lines = streamed(source(root, available_now="unused", **options))
        assert O1 in values(lines)
        assert O3 in values(lines)


def test_named_columns_are_read_beside_typed_ones(root: Path) -> None:
    made = source(root, mode="latest", columns="id,map,_rescued,key_text", decode="true")
    lines = rows_of(made)
    assert {"id": 11, "map": "orders", "_rescued": None, "key_text": '"o1"'} in lines
    made = source(root, mode="latest", schema="Key string", columns="map,Key,partition")
    assert [field.name for field in made.schema().fields] == ["map", "Key", "partition"]


def test_a_filter_on_a_typed_column_hides_no_row(root: Path) -> None:
    """The log has a column `node` of its own."""
    for pushed in (EqualTo(("node",), "y"), Not(EqualTo(("node",), "embedded"))):
        assert len(rows_of(source(root, mode="latest"), pushed)) == 3
        assert len(rows_of(source(root), pushed)) == 6


def test_a_filter_by_text_of_a_key_is_pushed(root: Path) -> None:
    """Only files and row groups that may have the key are read."""
    for mode in ("latest", "raw"):
        made = source(root, mode=mode, decode="true", columns="key,key_text,id")
        for pushed in (EqualTo(("key_text",), '"o1"'), In(("key_text",), ('"o1"', "7", None))):
            reader = made.reader(made.schema())
            reader.pushFilters([pushed])
            scans = [scan for part in reader.partitions() for scan in part.scans]  # type: ignore[attr-defined]
            assert all(b"\xa2o1" in scan.keys and b"\xa2o2" not in scan.keys for scan in scans)
            assert {line["id"] for line in rows_of(made, pushed) if line["key_text"] == '"o1"'} >= {
                11
            }
        assert rows_of(made, EqualTo(("key_text",), '"o1"'), EqualTo(("key",), b"\xa2o2")) == []
        assert rows_of(made, EqualTo(("key_text",), "o1")) == []
        assert len(rows_of(made, Not(EqualTo(("key_text",), '"o1"')))) >= 3


@pytest.mark.parametrize("key", ["o1", '"o1"', f"hex:{imap_wal.key_bytes('o1').hex()}"])
def test_a_read_of_one_key_has_no_other(root: Path, key: str) -> None:
    assert values(rows_of(source(root, mode="latest", key=key))) == [O1]
    assert len(rows_of(source(root, mode="latest", key=key), EqualTo(("key",), b"\xa2o2"))) == 0
    assert O1 in values(rows_of(source(root, key=key)))
    assert {line["key"] for line in rows_of(source(root, key=key))} == {b"\xa2o1"}
    assert {line["key"] for line in rows_of(source(root, key=key, changes="images"))} == {b"\xa2o1"}
    history = rows_of(source(root, key=key, table="history"))
    assert {line["key"] for line in history} == {b"\xa2o1"}
    made = source(root, available_now="unused", key=key)
    assert {line["key"] for line in streamed(made)} == {b"\xa2o1"}


def test_a_key_may_be_a_number_or_a_word(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path) as store:
        store.map("m").update({7: "number", "7": "word", 7.5: "float", ("a", 1): "tuple", b"7": 0})

    def found(key: str) -> set[bytes]:
        options = {"path": str(tmp_path), "mode": "latest", "columns": "key", "key": key}
        return {line["key"] for line in rows_of(ImapWalDataSource(options))}

    assert found("7") == {imap_wal.key_bytes(7), imap_wal.key_bytes("7")}
    assert found("7.5") == {imap_wal.key_bytes(7.5)}
    assert found('["a", 1]') == {imap_wal.key_bytes(("a", 1))}
    assert found('{"hex": "37"}') == {imap_wal.key_bytes(b"7")}
    assert found(str(2**64 + 7)) == set()
    with pytest.raises(InvalidSetting, match="it takes pairs of hexadecimal digits"):
        found("hex:7")


def test_spark_has_the_types_of_the_schema(root: Path) -> None:
    types = (
        "a boolean, b tinyint, c smallint, d int, e float, f double, g binary, h date, i json, "
        "j timestamp_ntz, k map<string,decimal(5,1)>, l struct<x:int,y:array<timestamp>>"
    )
    schema = source(root, schema=types).schema()
    assert isinstance(schema, StructType)
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    assert {name: found[name] for name in parsed(types)} == {
        name: kind.name for name, kind in parsed(types).items()
    }
    assert len(rows_of(source(root, schema=types))) == 6


def test_misfits_fail_if_asked(root: Path) -> None:
    with pytest.raises(NotReadable, match='the value of key "o3" does not fit the schema'):
        rows_of(source(root, misfits="fail"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"map": ""}, "name it in the option map"),
        ({"map": "orders,other"}, "name it in the option map"),
        ({"schema": "id"}, "a schema is columns with their types"),
        ({"misfits": "skip"}, "it takes rescue or fail"),
        ({"columns": "idd"}, "there is no column 'idd' here; columns takes .*id, node"),
        ({"table": "files"}, "takes no option"),
    ],
)
def test_a_mistake_is_named_on_the_driver(root: Path, options: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidSetting, match=error):
        source(root, **options).schema()


def test_a_query_of_spark_has_typed_columns(spark: Any, root: Path) -> None:
    def table(**options: str) -> Any:
        made = spark.read.format("imap_wal").options(map="orders", schema=SCHEMA, **options)
        return made.load(str(root))

    rows = table(mode="latest").orderBy("id").collect()
    assert [row["id"] for row in rows] == [None, 2, 11]
    assert rows[1]["tags"] == ["a", "b"]
    assert rows[0]["_rescued"] == '"three"'
    assert table(mode="latest").where("node = 'y' and id > 1").count() == 1
    moment = table(mode="latest").where("at = timestamp'2026-01-02 12:00:00Z'")
    assert [row["id"] for row in moment.collect()] == [2]
    by_text = table(mode="latest", decode="true").where("key_text = '\"o1\"'").collect()
    assert [(row["key_text"], row["id"]) for row in by_text] == [('"o1"', 11)]
    assert [row["id"] for row in table(mode="latest", key="o2").collect()] == [2]
    assert table(changes="images").groupBy("_change_type").count().count() >= 2
    asked_for = spark.read.schema("paid decimal(9,2), id bigint").format("imap_wal")
    lines = asked_for.options(mode="latest", map="orders").load(str(root)).where("id > 2")
    assert [tuple(line) for line in lines.collect()] == [(None, 11)]


def asked(root: Path, columns: str, **options: str) -> list[dict[str, Any]]:
    """What a batch reads for a schema of the user."""
    made = ImapWalDataSource({"path": str(root), "map": "orders", **options})
    return rows_of(made, schema=of_text(columns))


def of_text(columns: str) -> StructType:
    """A schema as Spark passes it. Spark's own parser needs a session."""
    own, _, rescued = columns.partition(", _rescued")
    types = parsed(own)
    made = columns_of({name: kind.name for name, kind in types.items()}, types)
    return made.add("_rescued", "string") if rescued else made


def test_fields_in_a_schema_of_the_user_are_typed_columns(root: Path) -> None:
    """In its order, beside columns of the log; `node` is one of those, and not a field."""
    lines = asked(root, "paid decimal(9,2), key binary, id bigint, node string", mode="latest")
    assert {"paid": None, "key": b"\xa2o1", "id": 11, "node": "embedded"} in lines
    assert [*lines[0]] == ["paid", "key", "id", "node"]
    lines = asked(root, "id bigint, _rescued string", mode="latest")
    assert {"id": None, "_rescued": '"three"'} in lines
    lines = asked(root, "deleted boolean, id bigint, tags array<string>")
    assert {"deleted": False, "id": 2, "tags": ["a", "b"]} in lines
    assert {"deleted": True, "id": None, "tags": None} in lines
    made = ImapWalDataSource({"path": str(root), "map": "orders", "available_now": "unused"})
    assert {"id": 11} in streamed(made, of_text("id bigint"))


def test_a_field_without_one_named_map_is_refused(root: Path) -> None:
    """Nor is a column of the log with another type taken for a field."""
    for options in ({"map": "orders,other"}, {"map": ""}, {"schema": "id bigint"}):
        with pytest.raises(InvalidSetting, match=r"no column paid double here.*names one map"):
            asked(root, "paid double", **options)
    for column in ("key string", "KEY binary"):
        with pytest.raises(InvalidSetting, match=f"no column {column} here"):
            asked(root, f"{column}, id bigint")
    with pytest.raises(InvalidSetting, match="'void' is no type"):
        asked_void = StructType().add("id", "void")
        ImapWalDataSource({"path": str(root), "map": "orders"}).reader(asked_void)
