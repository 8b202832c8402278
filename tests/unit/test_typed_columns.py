"""Values as typed columns: every value comes back, in its columns or in `_rescued`."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imap_wal.decoder import Decoder
from imap_wal.encoder import json_of
from imap_wal.errors import InvalidSetting, NotReadable
from imap_wal.serializer import MsgpackSerializer
from imap_wal.sql.columns import FAIL, RESCUE, Cell, TypedColumns
from imap_wal.sql.proposal import NAMES_MAX, proposed
from imap_wal.sql.types import RESCUED, parsed

pytest.importorskip("hazelcast")
pack = MsgpackSerializer().dump
UTC = dt.UTC

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal(9,3)": st.decimals(-999999, 999999, places=3),
    "string": TEXT,
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "array<int>": st.lists(st.integers(0, 9) | st.none(), max_size=3),
    "map<string,boolean>": st.dictionaries(TEXT, st.booleans(), max_size=3),
    "struct<a:bigint,b:array<string>>": st.fixed_dictionaries(
        {"a": st.integers(0, 9), "b": st.lists(TEXT, max_size=2)}
    ),
}
"""Type → values that come back equal."""
HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | TEXT
    | st.sampled_from(["2026-01-02", "2026-01-02T03:04:05+14:00", "12.50", "NaN", "1e999", "1_0"])
    | st.binary(max_size=4)
    | st.dates()
    | st.datetimes()
    | st.decimals()
    | st.uuids()
    | st.timedeltas()
    | st.builds(msgpack.Timestamp, st.integers(-(2**36), 2**33), st.integers(0, 10**9 - 1))
    | st.builds(msgpack.ExtType, st.integers(0, 12), st.binary(max_size=12)),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(TEXT | st.integers(0, 3), part, max_size=3)
        | st.lists(part, max_size=2).map(tuple)
    ),
    max_leaves=6,
)
schemas = st.lists(st.sampled_from([*FITTING, "json"]), min_size=1, max_size=5)


def cell(data: bytes | None, label: str = "msgpack", version: int = 0) -> Cell:
    return b"\x01", label, data, label, version


def of_member(text: bytes) -> Cell:
    """JSON as a member writes it: hash, type -130, length, text."""
    data = bytes(4) + (-130).to_bytes(4, "big", signed=True) + len(text).to_bytes(4, "big") + text
    return cell(data, "HazelcastJsonValue", 7)


def rows(columns: TypedColumns, cells: list[Cell]) -> list[dict[str, Any]]:
    made = pa.RecordBatch.from_arrays(columns.of(cells), schema=pa.schema(columns.fields))
    made.validate(full=True)
    listed: list[dict[str, Any]] = made.to_pylist()
    return listed


def typed(schema: str, misfits: str = RESCUE) -> TypedColumns:
    return TypedColumns(parsed(schema), Decoder(), misfits)


class Slow(TypedColumns):
    """Without msgspec."""

    def _quickly(self, cell: Cell) -> Any:
        raise ValueError


def read(value: Any, kind: str) -> Any:
    """What Arrow returns for a value of this type."""
    if kind.startswith("map") and value is not None:
        return list(value.items())
    return value


@given(st.data(), schemas)
def test_values_that_fit_come_back_equal(data: st.DataObject, kinds: list[str]) -> None:
    kinds = [kind for kind in kinds if kind != "json"] or ["bigint"]
    columns = typed(", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds)), FAIL)
    fields = {f"c{at}": FITTING[kind] | st.none() for at, kind in enumerate(kinds)}
    value = data.draw(st.fixed_dictionaries({}, optional=fields))
    (row,) = rows(columns, [cell(pack(value))])
    expected = {f"c{at}": read(value.get(f"c{at}"), kind) for at, kind in enumerate(kinds)}
    assert row == {**expected, RESCUED: None}


@example(["json"], [msgpack.Timestamp(0, 1)], b"", random.Random(0))
@given(schemas, st.lists(HOSTILE, max_size=5), st.binary(max_size=20), st.randoms())
def test_every_value_comes_back_typed_or_rescued(
    kinds: list[str], values: list[Any], bits: bytes, rng: random.Random
) -> None:
    """Also damaged bytes; and msgspec never takes what the decoder would refuse."""
    names = [f"c{at}" for at in range(len(kinds))]
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    whole = [msgpack.packb(value, default=_packed) for value in values]
    fields = [msgpack.packb(dict(zip(names, values, strict=False)), default=_packed)]
    cells = [cell(data) for data in (*whole, *fields, bits)]
    cells += [cell(data[: rng.randrange(len(data))]) for data in (*whole, *fields)]
    cells += [of_member(json_of(dict(zip(names, values, strict=False))).encode())]
    quick, slow = typed(schema), Slow(parsed(schema), Decoder())
    for one, found, other in zip(cells, rows(quick, cells), rows(slow, cells), strict=True):
        assert msgpack.packb(found, default=str) == msgpack.packb(other, default=str)
        row = ("", b"", "", one[2], one[3], False, 0, 0, 0, (0, one[4], 0, 0))
        value = Decoder().value(row)
        if found[RESCUED] is None:
            assert value is None or isinstance(value, dict)
        else:
            assert found[RESCUED] == json_of(value)
            assert not any(found[name] is not None for name in names)


def _packed(value: Any) -> Any:
    return msgpack.ExtType(*msgpack.unpackb(pack(value), ext_hook=lambda *parts: parts))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("id bigint", {"id": 2**63}),
        ("id bigint", {"id": 1.0}),
        ("id bigint", {"id": True}),
        ("id tinyint", {"id": 128}),
        ("x double", {"x": "1.5"}),
        ("x float", {"x": 1e300}),
        ("d decimal(4,2)", {"d": 1.005}),
        ("d decimal(4,2)", {"d": Decimal(100)}),
        ("d decimal(4,2)", {"d": Decimal("NaN")}),
        ("d decimal(38,20)", {"d": 0.1234567890123456}),
        ("d decimal(4,2)", {"d": "1_0"}),
        ("t string", {"t": 5}),
        ("t string", {"t": float("nan")}),
        ("at timestamp", {"at": "yesterday"}),
        ("at timestamp_ntz", {"at": dt.datetime(2026, 1, 2, tzinfo=UTC)}),
        ("at timestamp", {"at": "0001-01-01T00:00:00+01:00"}),
        ("on date", {"on": dt.datetime(2026, 1, 2)}),
        ("b binary", {"b": "aGk="}),
        ("l array<int>", {"l": [1, "2"]}),
        ("l array<string>", {"l": "text"}),
        ("m map<string,int>", {"m": {"1": 1, UUID(int=1): 2, None: 3}}),
        ("m map<string,int>", {"m": {str(UUID(int=1)): 1, UUID(int=1): 2}}),
        ("s struct<a int>", {"s": [1]}),
        ("id bigint", [1]),
        ("id bigint", 5),
        ("value bigint", "5"),
    ],
)
def test_a_misfit_is_rescued_whole_or_named(schema: str, value: Any) -> None:
    (row,) = rows(typed(schema), [cell(pack(value))])
    assert row.pop(RESCUED) == json_of(value)
    assert set(row.values()) == {None}
    with pytest.raises(NotReadable, match=r"key 1 does not fit the schema: .* is no |no fields"):
        typed(schema, FAIL).of([cell(pack(value))])


def test_what_fits_by_its_text_or_shape() -> None:
    moment, day, uuid = dt.datetime(2026, 1, 2, 3, tzinfo=UTC), dt.date(2026, 1, 2), UUID(int=7)
    schema = (
        "at timestamp, d decimal(6,2), t text, s array<string>, m map<bigint, int>, j json, x real"
    )
    values = [
        {"at": moment, "d": 1.25, "t": uuid, "s": {"b", "a"}, "m": {1: 2}, "j": {1: [uuid]}},
        {"at": "2026-01-02T04:00+01:00", "d": "1.250", "t": day, "s": ("x", None), "x": 2},
        {"at": day, "d": 7, 5: "other names", "more": {3: 4}},
    ]
    found = rows(typed(schema, FAIL), [cell(pack(value)) for value in values])
    midnight = dt.datetime(2026, 1, 2, tzinfo=UTC)
    assert [row["at"] for row in found] == [moment, moment, midnight]
    assert [row["d"] for row in found] == [Decimal("1.25"), Decimal("1.25"), 7]
    assert [row["t"] for row in found] == [str(uuid), "2026-01-02", None]
    assert [row["s"] for row in found] == [["a", "b"], ["x", None], None]
    assert found[0]["m"] == [(1, 2)]
    assert json.loads(found[0]["j"]) == {"1": [str(uuid)]}
    assert found[1]["x"] == 2.0


def test_values_of_typed_maps_and_members_fit() -> None:
    class Order(msgspec.Struct):
        id: int
        paid: Decimal
        at: dt.datetime

    order = Order(7, Decimal("1.50"), dt.datetime(2026, 1, 2, tzinfo=UTC))
    text = b'{"id": 7, "paid": 1.5, "at": "2026-01-02", "id2": 1, "id2": 2, "x": NaN}'
    cells = [cell(msgspec.msgpack.encode(order), "msgpack[str, Order]"), of_member(text)]
    found = rows(typed("id bigint, paid decimal(9,2), at timestamp", FAIL), cells)
    assert found[0] == found[1] == {**msgspec.structs.asdict(order), RESCUED: None}


def test_hostile_bytes_are_rescued() -> None:
    half, deep = b"\x81\xa1t\xa2\xed\xa0", b"\x81\xa1q" + b"\x91" * 5000 + b"\x01"
    cells = [
        cell(half),
        cell(deep),
        cell(b"\x81\xa1t"),
        cell(b""),
        cell(b"\xc1"),
        cell(b"x", "raw"),
    ]
    cells += [of_member(b'{"t": "\\ud800"}'), of_member(b'{"t": ' + b"[" * 5000), of_member(b"")]
    cells += [cell(bytes(4) + b"\xff\xff\xff\x7e" + b"\xff" * 4, "HazelcastJsonValue", 7)]
    found = rows(typed("t string"), cells)
    assert all(row["t"] is None and row[RESCUED] for row in found)
    assert json.loads(found[0][RESCUED]) == {"class": "msgpack", "hex": half.hex()}
    assert json.loads(found[6][RESCUED]) == {"t": "\ufffd"}


def test_one_column_value_is_the_whole_value() -> None:
    values = [5, -1, None, [1], {"value": 3}]
    found = rows(typed("value bigint"), [cell(pack(value)) for value in values] + [cell(None)])
    assert [row["value"] for row in found] == [5, -1, None, None, None, None]
    assert [row[RESCUED] for row in found] == [None, None, None, "[1]", '{"value": 3}', None]
    counts = {"a": 1, "b": 2}
    (row,) = rows(typed("value map<string, int>"), [cell(pack(counts))])
    assert row["value"] == list(counts.items())


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ('"a b" text', "a b"),
        ("`a``b` varchar(20)", "a`b"),
        ('größe: "int"', None),
        ("größe: INT8[][]", "größe"),
        ("a struct(b decimal, c: map<string,int[]>)", "a"),
        ("a decimal(38,38)", "a"),
        ("", None),
        ("a", None),
        ("a int,", None),
        ("a int b int", None),
        ("a int, A int", None),
        ("a decimal(39)", None),
        ("a decimal(0)", None),
        ("a decimal(4,5)", None),
        ("a interval", None),
        ("a array<int", None),
        ("a struct<int>", None),
        ("a map<int>", None),
        ("_rescued string", None),
        ("a " + "array<" * 40, None),
        ("a int; drop table", None),
    ],
)
def test_a_schema_is_read_or_refused_with_advice(schema: str, name: str | None) -> None:
    if name is not None:
        assert [*parsed(schema)] == [name]
        return
    with pytest.raises(InvalidSetting, match="a schema is columns with their types"):
        parsed(schema)


def test_an_unknown_mode_for_misfits_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="it takes rescue or fail"):
        typed("a int", "skip")


@example([{'"': 1, "\\": "x"}])
@example([{"a": ["", msgpack.Timestamp(0, 1)]}])
@given(st.lists(st.dictionaries(st.sampled_from("abcA") | TEXT, HOSTILE, max_size=4), max_size=5))
def test_all_values_of_a_sample_fit_the_proposal(values: list[dict[str, Any]]) -> None:
    """Whatever dicts there are; except for moments that no column has."""
    cells = [cell(msgpack.packb(value, default=_packed)) for value in values]
    decoded = [MsgpackSerializer().load(one[2]) for one in cells if one[2] is not None]
    found = proposed(decoded)
    if found.types:
        typed(str(found), FAIL).of(cells)


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([{"id": 1, "x": 1}, {"id": 2, "x": 1.5}, None], "id bigint, x double"),
        ([{"at": "2026-01-02"}, {"at": "2026-01-02T03:04:05Z"}], "at timestamp"),
        ([{"on": "2026-01-02"}, {"on": dt.date(2026, 1, 2)}], "on date"),
        ([{"t": "2026-01-02"}, {"t": "later"}], "t string"),
        ([{"d": Decimal("1.50")}, {"d": 7}, {"d": 2**70}], "d decimal(38,2)"),
        ([{"a": 1}, {"a": "x"}, {"b": None}], "a json, b json"),
        ([{"l": []}, {"l": [1]}, {"l": (2.5,)}], "l array<double>"),
        ([{"s": {"x": 1}}, {"s": {"y y": {True}}}], 's struct<x:bigint,"y y":array<boolean>>'),
        ([{"s": {"x": 1, "X": 2}}], "s json"),
        ([{f"u{n}": n for n in range(NAMES_MAX + 1)}], "value map<string,bigint>"),
        ([5, None, 2**80], "value decimal(38,0)"),
        ([{}, {}], "value json"),
        ([UUID(int=1)], "value string"),
        ([], ""),
    ],
)
def test_a_proposal_is_the_narrowest_schema(values: list[Any], schema: str) -> None:
    found = proposed(values)
    assert str(found) == schema
    if schema:
        packable = [value for value in values if str(2**70)[:5] not in str(value)]
        typed(schema, FAIL).of([cell(pack(value)) for value in packable if value != 2**80])


def test_names_that_sql_cannot_have_are_left_out() -> None:
    found = proposed([{"id": 1, "ID": 2, "_rescued": 3, "a\nb": 4, "a b": 5}])
    assert str(found) == 'id bigint, "a b" bigint'
    assert found.left_out == ("ID", "_rescued", "a\nb")


@pytest.mark.parametrize("seconds", [-5, 0, 5, 2**34])
@pytest.mark.parametrize("kind", ["json", "timestamp", "array<string>"])
def test_a_moment_finer_than_a_microsecond_is_not_rounded(seconds: int, kind: str) -> None:
    moment = msgpack.Timestamp(seconds, 123_456_789)
    value = {"a": [moment] if "array" in kind else moment}
    columns = TypedColumns(parsed(f"a {kind}"), Decoder())
    field, rescued = (
        each[0].as_py() for each in columns.of([(b"", "", pack(value), "msgpack", 0)])
    )
    if kind == "json":
        assert (field, rescued) == (json_of(moment), None)
    elif kind == "timestamp":  # later digits are left out, as of text
        assert (field.microsecond, rescued) == (123_456, None)
    else:
        assert (field, rescued) == (None, json_of(value))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_a_name_that_msgspec_does_not_take(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    cell = b"", "", pack({name: 1, "f0": 2}), "msgpack", 0
    field, rescued = TypedColumns(parsed(f"{quoted} bigint"), Decoder()).of([cell])
    assert (field.to_pylist(), rescued.to_pylist()) == ([1], [None])
