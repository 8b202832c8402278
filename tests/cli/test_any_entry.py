"""Whatever bytes an entry has, every reader returns a row of it, in valid JSON, and says what JSON
cannot show exactly."""

from __future__ import annotations

import csv
import itertools
import json
import math
import struct
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hazelcast.config import Config, IntType
from hazelcast.core import HazelcastJsonValue
from hazelcast.serialization.service import SerializationServiceV1
from hypothesis import given
from hypothesis import strategies as st

import imap_wal
from imap_wal import seatunnel
from imap_wal.decoder import Decoder
from imap_wal.encoder import json_of, key_json, keys_of
from imap_wal.entry import MSGPACK, Row
from imap_wal.parquet.columns import to_batch
from imap_wal.parquet.decoded_columns import DecodedColumns
from imap_wal.read.scan_list import cluster_scans
from pyspark_imap_wal.batch import schema_of
from pyspark_imap_wal.columns import EntryQuery, read_columns
from pyspark_imap_wal.tables.schemas import DECODED_COLUMNS
from rewrite_cli.cli import group
from storage_backends import open_store
from tests.cli.conftest import Ended, Run
from tests.kit.effort import every
from tests.kit.examples import OF_HISTORIES
from tests.kit.logs import append, cluster, node

_numbers = itertools.count()
_config = Config()
_config.default_int_type = IntType.VAR
_client = SerializationServiceV1(_config)


def of_member(value: Any) -> bytes:
    return bytes(_client.to_data(value).buffer)


def row(key: bytes, value: bytes | None, label: str, version: int, number: int = 1) -> Row:
    return ("m", key, label, value, label, value is None, 1, 0, 0, (1, version, 1, number))


def strict_json(text: str) -> Any:
    """JSON as the standard has it: Python also reads NaN."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    text.encode()
    return json.loads(text, parse_constant=refuse)


JSON_VALUES = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(st.characters()) | st.just("\ud83d"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=5,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(2**63), 2**64 - 1) | st.binary()
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers(0, 3) | st.text("123"), inner),
    max_leaves=5,
)  # fmt: skip
TEXTS = st.sampled_from(
    [b"2026-01-01", b"2026-01-01T02:03:04+01:00[Europe/Paris]", b"1.50", b"NaN", b"P1DT2S", b"[[["]
)
SCALARS = st.builds(
    msgpack.ExtType, st.integers(0, 10), TEXTS | st.binary(max_size=17)
) | st.builds(msgpack.Timestamp, st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**9 - 1))
EXTENSIONS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(SCALARS, VALUES)
        | st.builds(
            lambda code, items: msgpack.ExtType(code, bytes(msgpack.packb(items))),
            st.integers(1, 3),
            st.lists(inner | VALUES),
        )
    ),
    max_leaves=5,
)
"""Of imap-wal and of others, whole and not; times of msgpack."""
DATA = (
    st.binary(max_size=20)
    | st.binary(max_size=20).map(lambda data: b"\0\0\0\0\xff\xff\xff" + data)
    | VALUES.map(lambda value: bytes(msgpack.packb(value)))
    | EXTENSIONS.map(lambda value: bytes(msgpack.packb(value)))
    | JSON_VALUES.map(lambda value: of_member(HazelcastJsonValue(json.dumps(value))))
    | st.sampled_from([1, 1.5, "a", True, [1, "x"], {"a"}, float("nan"), 2**80]).map(of_member)
)
LABELS = st.sampled_from(
    [
        "raw",
        MSGPACK,
        "msgpack[str, Order]",
        "pickle",
        "java.lang.String",
        "java.lang.Integer",
        "java.lang.Long",
        "",
        "com.acme.A",
    ]
)


def called(*words: object) -> Ended:
    ended = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


@OF_HISTORIES
@given(st.lists(st.tuples(DATA, DATA, LABELS, st.booleans()), min_size=1, max_size=8))
def test_any_bytes_are_a_row_of_every_reader(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[bytes, bytes, str, bool]]
) -> None:
    root = tmp_path_factory.mktemp("log")
    store = open_store(f"file://{root}/log")
    rows = [
        row(key, value, label, 5 if of_a_member else 0, number)
        for number, (key, value, label, of_a_member) in enumerate(entries, 1)
    ]
    log = node(store)
    append(log, *rows)
    keys = {each[1] for each in rows}
    url = f"file://{root}/log"

    def lines(*words: object) -> list[Any]:
        ended = called(words[0], url, *words[1:])
        assert ended.code == 0, ended.err
        return [strict_json(line) for line in ended.out.split("\n") if line]

    assert len(lines("export")) == len(keys)
    assert len(lines("dump", "-o", "json")) == len(lines("tail", "-o", "json")) == len(rows)
    assert called("dump", url).out.count("\n") == len(rows)
    for key in keys:
        (found,) = strict_json(
            called("get", url, "--map", "m", f"hex:{key.hex()}", "-o", "json").out
        )["keys"]
        assert found["key_bytes"] == f"hex:{key.hex()}" and found["state"] == "live"
    asked = lines("query", "select key_text, value_json, key from m", "-o", "json")
    assert {each["key"] for each in asked} == {f"hex:{key.hex()}" for key in keys}
    for name in ("m.csv", "m.parquet"):
        assert called("export", url, "--to", root / name).code == 0
    with (root / "m.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    stored = pq.read_table(root / "m.parquet").to_pylist()
    assert sorted(each["key"] for each in table) == sorted(each["key"] for each in stored)
    assert len(stored) == len(keys)
    made = cluster(store)
    columns = [
        each
        for scan in cluster_scans(made.state())
        for batch in read_columns(made, scan, EntryQuery(schema_of(DECODED_COLUMNS)))
        for each in batch.to_pylist()
    ]
    texts = DecodedColumns(["m"]).added(to_table(rows))
    for each, of_file in zip(columns, texts.to_pylist(), strict=True):
        strict_json(each["key_text"])
        strict_json(each["value_text"])
        assert of_file["key_text"] in (None, each["key_text"])
        assert of_file["value_json"] in (None, each["value_text"])
    shown = {each["key_text"] for each in columns} | {each["key"] for each in stored}
    assert shown == {each["key_text"] for each in columns}, "one text for one key"
    log.close(clean=False)


def to_table(rows: list[Row]) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([to_batch(rows, "n1")])


KEYS = (
    DATA
    | st.tuples(st.binary(min_size=4, max_size=4), st.sampled_from([1, "a", True])).map(
        lambda parts: parts[0] + of_member(parts[1])[4:]
    )
    | st.tuples(st.sampled_from([1, 2**40, "1", "a", 1.0]), st.binary(max_size=2)).map(
        lambda parts: of_member(parts[0]) + parts[1]
    )
    | st.sampled_from(
        [12, "12", 12.0, b"12", [12], ["12"], True, 1, 1.0, "true", None, "null"]
    ).map(lambda value: bytes(msgpack.packb(value)))
)


@given(st.lists(KEYS, min_size=2, max_size=40, unique=True), LABELS, st.booleans())
def test_two_keys_never_have_one_text(keys: list[bytes], label: str, of_a_member: bool) -> None:
    rows = [row(key, b"", label, 5 if of_a_member else 0) for key in keys]
    texts = [key_json(each, Decoder()) for each in rows]
    assert len(set(texts)) == len(keys)
    for key, text in zip(keys, texts, strict=True):
        assert text is not None
        strict_json(text)
        assert key in keys_of(text)


NUMBERS = {"Byte": "b", "Short": "h", "Integer": "i", "Long": "q", "Float": "f", "Double": "d"}


@every(3)
@pytest.mark.parametrize("name", [*NUMBERS, "String", "UUID"])
@given(data=st.data())
def test_a_java_key_is_found_by_its_text(name: str, data: st.DataObject) -> None:
    """So a filter on `key_text` reads only what may have this key, and finds it."""
    types = {"Byte": -3, "Short": -6, "Integer": -7, "Long": -8, "Float": -9, "Double": -10}
    if name == "String":
        words = data.draw(st.text()).encode("utf-8", "ignore")
        kind, content = -11, struct.pack(">i", len(words)) + words
    elif name == "UUID":
        kind, content = -21, data.draw(st.binary(min_size=16, max_size=16))
    else:
        size = struct.calcsize(NUMBERS[name])
        kind, content = types[name], data.draw(st.binary(min_size=size, max_size=size))
    label = f"java.{'util' if name == 'UUID' else 'lang'}.{name}"
    key = bytes(4) + struct.pack(">i", kind) + content
    text = key_json(row(key, b"", label, 1), Decoder())
    assert text is not None
    assert key in keys_of(text)


@given(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
)
def test_a_key_of_seatunnel_is_found_by_its_text(value: bool | float | str) -> None:
    for key in seatunnel.forms(value):
        label = key[2 : 2 + key[1]].decode()
        text = key_json(row(key, b"", label, 0), Decoder())
        assert text is not None
        assert key in keys_of(text)
        assert seatunnel.load(key, label) == value or value != value


@pytest.mark.parametrize(
    "text", ["sensor-0", "", "[" * 5000, "{}", '{"hex": 5}', "1" * 5000, '"\\ud800"']
)
def test_a_text_that_no_key_has_is_no_error(text: str) -> None:
    assert len(keys_of(text)) < 9


@every(3)
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (12, "12"),
        ("12", '"12"'),
        (12.5, "12.5"),
        (("a", 1), '["a", 1]'),
        (b"\xff", '{"hex": "ff"}'),
        (None, "null"),
        (math.inf, '{"key": "inf", "hex": "cb7ff0000000000000"}'),
    ],
)
def test_a_key_has_one_text_everywhere(run: Run, tmp_path: Path, key: Any, text: str) -> None:
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url) as store:
        store.map("m")[key] = "hello"
    (line,) = run("export", url).lines
    assert (json.dumps(line["key"]), line["value"]) == (text, "hello")
    (dumped,) = run("dump", url, "-o", "json").lines
    assert dumped["key"] == line["key"]
    (asked,) = run("query", url, "from m", "-o", "json").lines
    assert (asked["key_text"], asked["value_json"]) == (line["key"], "hello")
    assert run("export", url, "--to", "m.parquet").code == 0
    assert duckdb.execute("select key, value from 'm.parquet'").fetchall() == [(text, '"hello"')]
    found = run("get", url, "--map", "m", text, "-o", "json")
    assert found.json["keys"][0]["value"] == "hello"


LOSSY = {
    "NaN": ({"x": [math.nan, -math.inf]}, {"x": ["nan", "-inf"]}, "NaN, an infinity"),
    "keys": ({1: "a", "1": "b"}, {"pairs": [[1, "a"], ["1", "b"]]}, "keys of a dict"),
    "key": ({1: "a"}, {"1": "a"}, "keys of a dict"),
}
COMMANDS = [
    ("export",),
    ("dump", "-o", "json"),
    ("dump",),
    ("tail", "-o", "json"),
    ("get", "--map", "m", "k", "-o", "json"),
    ("query", "from m", "-o", "json"),
]


@every(3)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("case", LOSSY)
def test_a_lossy_conversion_is_reported(
    run: Run, tmp_path: Path, case: str, words: tuple[str, ...]
) -> None:
    """They printed NaN, which is not JSON, and lost an item without a note."""
    value, shown, what = LOSSY[case]
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url) as store:
        store.map("m").update({"k": value})
    ended = run(words[0], url, *words[1:])
    assert ended.code == 0, ended.err
    assert "".join(json.dumps(shown).split()) in "".join(ended.out.split())
    assert f"1 key or value: {what}" in ended.err and "--strict" in ended.err
    named = run(words[0], url, *words[1:], "--strict")
    assert (named.code, named.out) == (3, ended.out)
    assert "map 'm', value of hex:a16b: " in named.err and what in named.err


def test_exact_values_have_no_note(run: Run, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url) as store:
        store.map("m")["k"] = {"a": [1, 1.5, None, True, "ü", b"x"]}
    for words in COMMANDS:
        ended = run(words[0], url, *words[1:], "--strict")
        assert (ended.code, ended.err) == (0, ""), words


def test_a_lone_surrogate_ends_no_decoded_read() -> None:
    """Spark said `surrogates not allowed`, and the whole query ended."""
    value = of_member(HazelcastJsonValue('{"a":"\\ud83d", "\\ud83e": 1, "\\ud83d": 2}'))
    lost: set[str] = set()
    text = json_of(Decoder().value(row(b"k", value, "", 5)), lost)
    assert strict_json(text) == {"pairs": [["a", "\ufffd"], ["\ufffd", 1], ["\ufffd", 2]]}
    assert len(lost) == 2


def test_a_json_object_with_one_name_twice_loses_nothing() -> None:
    value = of_member(HazelcastJsonValue('{"a":1, "a":2}'))
    assert json_of(Decoder().value(row(b"k", value, "", 5))) == '{"pairs": [["a", 1], ["a", 2]]}'


class Own(imap_wal.RawSerializer):
    name = "own"


def test_a_key_without_text_is_no_missing_key(run: Run, tmp_path: Path) -> None:
    """`get` said that there is no such key."""
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url) as store:
        store.map("m", serializer=Own())[b"a"] = b"1"
    ended = run("get", url, "--map", "m", "a")
    assert ended.code == 2
    assert "keys of class own cannot be written as text; name the key by its bytes" in ended.err
    assert run("get", url, "--map", "m", "hex:61").code == 0
    assert run("get", url, "--map", "m", '{"class": "own", "hex": "61"}').code == 0
    absent = run("get", url, "--map", "m", "hex:62")
    assert absent.code == 1 and "has no key hex:62" in absent.err
    dumped = run("dump", url, "--map", "m", "--key", "a")
    assert dumped.out == "" and "keys of class own" in dumped.err
