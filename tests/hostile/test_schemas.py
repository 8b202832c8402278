"""Attack: other bytes, another schema, or too many bytes in place of a Compact schema."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hazelcast.config import Config
from hazelcast.serialization.api import FieldKind
from hazelcast.serialization.compact import FieldDescriptor
from hazelcast.serialization.compact import Schema as ClientSchema
from hazelcast.serialization.service import SerializationServiceV1

from imap_wal import format, schemas
from imap_wal.agent.config import AgentConfig
from imap_wal.context import Context
from imap_wal.decoder import Decoder, Opaque
from imap_wal.layout import Identity
from imap_wal.schemas import SCHEMA_BYTES_MAX, BadSchema, Schema, read_schema, sound_schemas
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from storage_backends import open_store
from tests.agent.harness import config, plugin, serving

ORDER = Schema("order", (("number", 11), ("paid", 1), ("state", 17)))
OTHER = Schema("other", (("n", 9),))
GADGET = struct.pack(">ii", 0, -100) + b"\xac\xed\x00\x05sr\x00\x0ecom.acme.Gadget"
"""A value in Java's own serialisation: reading it runs code of its class."""
NAMED = struct.pack(">ii?i", 0, -2, False, 15) + b"com.acme.Gadget"
"""A DataSerializable that names its class."""


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


def put(member: Any, *schemas: tuple[int, bytes]) -> list[Any]:
    payload = b"".join(msgpack.packb(["schema", *schema]) for schema in schemas)
    header, _ = member.client.ask("metadata", member.session, len(schemas), payload=payload)
    return list(header)


def read(member: Any) -> dict[int, bytes]:
    _, payload = member.client.ask("schemas")
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload)
    return dict(unpacker)


def collision() -> Schema:
    """Another schema with the id of ORDER: the fingerprint is linear, so eight letters of the type
    name times 64 bits solve it."""
    places = 80

    def of(letters: int) -> Schema:
        return Schema("".join("ab"[letters >> at & 1] for at in range(places)), (("x", 9),))

    base = of(0).id % 2**64
    rows: list[tuple[int, int]] = []
    for at in range(places):
        value, mask = (of(1 << at).id % 2**64) ^ base, 1 << at
        for pivot, taken in rows:
            if value ^ pivot < value:
                value, mask = value ^ pivot, mask ^ taken
        if value:
            rows.append((value, mask))
            rows.sort(reverse=True)
    wanted, letters = (ORDER.id % 2**64) ^ base, 0
    for pivot, taken in rows:
        if wanted ^ pivot < wanted:
            wanted, letters = wanted ^ pivot, letters ^ taken
    assert wanted == 0
    return of(letters)


def test_the_form_and_the_id_are_those_of_hazelcast() -> None:
    for schema in (ORDER, OTHER, Schema("", ()), Schema("größe", (("a", 46), ("ä", 30)))):
        client = ClientSchema(
            schema.type_name,
            [FieldDescriptor(name, FieldKind(kind)) for name, kind in schema.fields],
        )
        assert schema.id == client.schema_id
        assert read_schema(schema.id, schema.to_bytes()) == schema


@pytest.mark.parametrize(
    "data",
    [
        GADGET,
        NAMED,
        b"",
        b"\x00",
        struct.pack(">ii?ii", 0, -2, True, -42, 5),
        struct.pack(">ii?ii", 0, -2, True, 1, 1),
    ],
)
def test_bytes_of_another_class_are_refused(data: bytes, settings: AgentConfig) -> None:
    with pytest.raises(BadSchema):
        read_schema(ORDER.id, data)
    with serving(settings), plugin(settings) as member:
        assert put(member, (ORDER.id, data))[2] == "schema-refused"
        assert put(member, (ORDER.id, ORDER.to_bytes()))[0] == "ack"
        assert member.put(a="1") == ["ack", 1, 1], "the connection remains"
        assert read(member) == {ORDER.id: ORDER.to_bytes()}


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    sound = ORDER.to_bytes()
    for length in range(len(sound)):
        with pytest.raises(BadSchema):
            read_schema(ORDER.id, sound[:length])
    for bit in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSchema):
            read_schema(ORDER.id, bytes(flipped))
    for wrong in (sound + b"\x00", sound + bytes(SCHEMA_BYTES_MAX)):
        with pytest.raises(BadSchema):
            read_schema(ORDER.id, wrong)
    with pytest.raises(BadSchema, match=f"have the id {ORDER.id}"):
        read_schema(OTHER.id, sound)


@pytest.mark.parametrize(
    "fields",
    [
        (("b", 9), ("a", 9)),
        (("a", 9), ("a", 9)),
        (("a", 0),),
        (("a", 5),),
        (("a", 31),),
        (("a", 47),),
        (("a", -1),),
    ],
)
def test_fields_that_hazelcast_would_not_write_are_refused(
    fields: tuple[tuple[str, int], ...],
) -> None:
    schema = Schema("t", fields)
    with pytest.raises(BadSchema):
        read_schema(schema.id, schema.to_bytes())


def test_a_count_of_fields_allocates_nothing() -> None:
    """The count in the bytes is compared with what follows before any memory is taken."""
    data = Schema("t", ()).to_bytes()[:-4] + struct.pack(">i", 2**31 - 1)
    with pytest.raises(BadSchema, match="2147483647 fields"):
        read_schema(1, data)


def test_random_bytes_after_a_valid_header_are_refused() -> None:
    """They raise nothing but the refusal."""
    source = random.Random(11)
    for _ in range(2000):
        data = ORDER.to_bytes()[:17] + source.randbytes(source.randrange(60))
        with pytest.raises(BadSchema):
            read_schema(ORDER.id, data)


def test_another_schema_under_a_known_id_is_refused(settings: AgentConfig) -> None:
    """Also after a restart and an archive."""
    forged = collision()
    assert forged.id == ORDER.id and forged != ORDER
    with serving(settings), plugin(settings) as member:
        assert put(member, (ORDER.id, ORDER.to_bytes()))[0] == "ack"
        answer = put(member, (OTHER.id, OTHER.to_bytes()), (ORDER.id, forged.to_bytes()))
        assert answer[2] == "schema-refused"
        assert "another schema has that id: type 'order'" in answer[3]
        assert put(member, (ORDER.id, ORDER.to_bytes()))[0] == "ack", "the same one again"
        assert member.put(a="1") == ["ack", 1, 1]
        assert read(member) == {ORDER.id: ORDER.to_bytes()}, (
            "nothing of a refused message is in the log"
        )
    with serving(settings) as agent, plugin(settings) as member:
        agent._log.archive()
        assert put(member, (OTHER.id, forged.to_bytes()))[2] == "schema-refused"
        read(member)
        assert put(member, (ORDER.id, forged.to_bytes()))[2] == "schema-refused"
    with serving(settings), plugin(settings) as member:
        assert put(member, (ORDER.id, forged.to_bytes()))[2] == "schema-refused"


def test_a_bad_schema_in_a_log_is_named(
    settings: AgentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are in the answer."""
    store = open_store(settings.url)
    try:
        identity = Identity(settings.namespace, settings.cluster, settings.node)
        log = open_node_log(
            LogContext(
                Context(store),
                identity,
                Settings(preallocate=False),
            ),
            holder="test",
        )
        items = [
            ["schema", ORDER.id, GADGET],
            ["schema", 7, b""],
            ["schema", ORDER.id, ORDER.to_bytes()],
            ["schema", OTHER.id, OTHER.to_bytes()],
        ]
        log.write(format.METADATA, len(items), [msgpack.packb(item) for item in items])
        log.sync()
        log.close()
    finally:
        store.close()
    with serving(settings), plugin(settings) as member:
        assert read(member) == {ORDER.id: ORDER.to_bytes(), OTHER.id: OTHER.to_bytes()}


def test_of_two_schemas_with_one_id_neither_counts() -> None:
    """Both are named, and other schemas count."""
    forged = collision()
    both = [
        ("schema", ORDER.id, ORDER.to_bytes()),
        ("schema", ORDER.id, forged.to_bytes()),
        ("schema", OTHER.id, OTHER.to_bytes()),
        ("member", "c"),
    ]
    for metadata in (both, both[::-1]):
        sound, bad = sound_schemas(metadata)
        assert sound == {OTHER.id: OTHER}
        assert len(bad) == 1
        assert str(ORDER.id) in bad[0]
    sound, bad = sound_schemas(
        [
            ("schema",),
            ("schema", "1", b""),
            ("schema", 1.0, b""),
            ("schema", True, b""),
            ("schema", 1, 5),
        ]
    )
    assert sound == {}
    assert len(bad) == 5


def test_a_bad_schema_leaves_other_values_readable() -> None:
    """It is named, and values of other schemas are decoded."""
    service = SerializationServiceV1(Config())
    text = service.to_data("text").buffer
    notes: list[str] = []
    decoder = Decoder(
        [
            ("schema", ORDER.id, GADGET),
            ("schema", 7, b"\xff"),
            ("schema", OTHER.id, OTHER.to_bytes()),
        ],
        notes.append,
    )
    row: tuple[Any, ...] = ("m", text, "", text, "", False, 0, 0, 0, (1, 1, 1, 1))
    assert not isinstance(decoder.value(row), Opaque)
    assert decoder.value(row) == "text"
    assert len(notes) == 2 and str(ORDER.id) in notes[0]


def test_the_cache_of_schemas_is_bounded() -> None:
    """A client that sends many schemas does not fill the memory of the agent."""
    large = [Schema(f"{number:08d}" + "x" * 200_000, (("a", 1),)) for number in range(12)]
    for schema in large:
        assert read_schema(schema.id, schema.to_bytes()) == schema
    assert 0 < schemas._read.bytes <= schemas.READ_BYTES_MAX
    assert schemas._read.bytes == sum(len(data) for _, data in schemas._read._found)
    last = large[-1]
    assert read_schema(last.id, last.to_bytes()) is read_schema(last.id, last.to_bytes())
    assert schemas._read.get((large[0].id, large[0].to_bytes())) is None
