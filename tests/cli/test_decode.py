"""Values that a member wrote, decoded without a member: every type of the Python client, Compact
too, and unknown bytes."""

from __future__ import annotations

import datetime as dt
import json
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hazelcast.config import Config
from hazelcast.core import HazelcastJsonValue
from hazelcast.serialization.api import CompactReader, CompactSerializer, CompactWriter, FieldKind
from hazelcast.serialization.compact import FieldDescriptor, Schema
from hazelcast.serialization.service import SerializationServiceV1

from examples.demo.cluster import free_ports
from imap_wal.decoder import Decoder, Opaque
from imap_wal.encoder import plain, text
from imap_wal.sql.columns import TypedColumns, cells_of
from imap_wal.sql.types import parsed
from tests.cli.conftest import Run
from tests.kit.effort import thorough


def row(value: bytes, label: str = "java.lang.String", partition_version: int = 1) -> Any:
    return ("m", value, label, value, label, False, 0, 0, 0, (1, partition_version, 1, 1))


@dataclass
class Order:
    number: int
    state: str
    paid: bool


class OrderSerializer(CompactSerializer[Order]):
    def read(self, reader: CompactReader) -> Order:
        return Order(
            reader.read_int64("number"),
            reader.read_string("state") or "",
            reader.read_boolean("paid"),
        )

    def write(self, writer: CompactWriter, obj: Order) -> None:
        writer.write_int64("number", obj.number)
        writer.write_string("state", obj.state)
        writer.write_boolean("paid", obj.paid)

    def get_class(self) -> type[Order]:
        return Order

    def get_type_name(self) -> str:
        return "order"


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "žluť",
        7,
        1.5,
        True,
        b"bytes",
        [1, "a", 2.5],
        dt.date(2026, 11, 21),
        Decimal("1.50"),
        UUID(int=7),
        [[1], ["x"]],
    ],
)
def test_values_that_the_client_writes_are_decoded(value: Any) -> None:
    data = SerializationServiceV1(Config()).to_data(value).buffer
    assert Decoder().value(row(data)) == value
    json.dumps(plain(value))


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, {"b": None}]},
        (1, "zwei"),
        {1, 2},
        frozenset({"x"}),
        [1, ("a", {"b": 2.5})],
        1 + 2j,
    ],
)
def test_values_that_the_client_pickles_are_decoded(value: Any) -> None:
    assert Decoder().value(row(SerializationServiceV1(Config()).to_data(value).buffer)) == value


class Trap:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("trap-was-sprung"),)


def test_a_pickle_that_would_run_code_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (Trap(), [1, Trap()], {"a": Trap()}):
        data = bytes(SerializationServiceV1(Config()).to_data(value).buffer)
        assert Decoder().value(row(data, "pickle")) == Opaque("pickle", data)
    assert not Path("trap-was-sprung").exists()


def test_json_values_are_decoded() -> None:
    data = SerializationServiceV1(Config()).to_data(HazelcastJsonValue({"state": "paid"})).buffer
    assert Decoder().value(row(data)) == {"state": "paid"}


def test_compact_values_become_dicts_with_the_schema_of_the_log() -> None:
    config = Config()
    config.compact_serializers = [OrderSerializer()]
    service = SerializationServiceV1(config)
    schema = Schema(
        "order",
        [
            FieldDescriptor(name, kind)
            for name, kind in (
                ("number", FieldKind.INT64),
                ("paid", FieldKind.BOOLEAN),
                ("state", FieldKind.STRING),
            )
        ],
    )
    service.compact_stream_serializer.register_schema_to_type(schema, Order)
    data = service.to_data(Order(42, "paid", True)).buffer
    assert Decoder().value(row(data, "order")) == Opaque("order", data)
    decoder = Decoder([("schema", schema.schema_id, schema_bytes(schema))])
    assert decoder.value(row(data, "order")) == {"number": 42, "paid": True, "state": "paid"}
    later = Decoder()
    later.add_metadata([("schema", schema.schema_id, schema_bytes(schema))])
    assert later.value(row(data, "order"))["number"] == 42
    found = Decoder(lambda: [("schema", schema.schema_id, schema_bytes(schema))])
    typed = TypedColumns(parsed("number int, state string, paid boolean"), found)
    columns = [column.to_pylist() for column in typed.of(cells_of([row(bytes(data), "order")]))]
    assert columns == [[42], ["paid"], [True], [None]]


def schema_bytes(schema: Schema) -> bytes:
    """As a member writes it: an IdentifiedDataSerializable."""

    def string(value: str) -> bytes:
        return struct.pack(">i", len(value.encode())) + value.encode()

    fields = b"".join(string(field.name) + struct.pack(">i", field.kind) for field in schema.fields)
    return (
        struct.pack(">ii?ii", 0, -2, True, -42, 1)
        + string(schema.type_name)
        + struct.pack(">i", len(schema.fields))
        + fields
    )


def test_unreadable_values_keep_their_label_and_bytes() -> None:
    value = Decoder().value(row(struct.pack(">ii", 0, -100) + b"\xac\xed java", "com.acme.Order"))
    assert isinstance(value, Opaque)
    assert text(value) == "<com.acme.Order, 15 bytes>"
    assert plain(value)["class"] == "com.acme.Order"
    assert isinstance(Decoder().value(row(b"\xc1", "msgpack", 0)), Opaque)
    assert isinstance(Decoder().value(row(b"x", "my-serializer", 0)), Opaque)
    assert Decoder().value(row(b"x", "raw", 0)) == b"x"


@thorough
@pytest.mark.cluster
def test_members_compact_and_json_values_are_decoded(run: Run, tmp_path: Path) -> None:
    """A real member wrote the values."""
    import hazelcast

    port = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "rewrite_cli.cli",
        "node",
        "start",
        "--port",
        str(port),
        "--url",
        f"file://{tmp_path}/maps",
        "-o",
        "json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"]
        client = hazelcast.HazelcastClient(
            cluster_members=[f"127.0.0.1:{port}"], compact_serializers=[OrderSerializer()]
        )
        orders = client.get_map("orders").blocking()
        orders.set(1, Order(42, "paid", True))
        orders.set(2, HazelcastJsonValue({"a": [1]}))
        orders.set("three", [1, "x"])
        client.shutdown()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
    lines = {line["key"]: line["value"] for line in run("export", tmp_path / "maps").lines}
    assert lines == {
        1: {"number": 42, "paid": True, "state": "paid"},
        2: {"a": [1]},
        "three": [1, "x"],
    }
    assert run("ls", tmp_path / "maps", "-o", "json").json["nodes"][0]["state"] == "closed"


def test_a_missing_client_is_not_reported_as_unreadable_values(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the Hazelcast client is missing: a member's values are not reported as unreadable."""
    assert run("dump", url).code == 0, "embedded maps need no client"
    monkeypatch.setitem(sys.modules, "hazelcast.config", None)
    with pytest.raises(ModuleNotFoundError):
        Decoder().value(row(b"x"))
