"""Requests that do not follow the protocol: each is answered, and nothing is appended."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.transport.router import parts
from imap_wal.context import Context
from imap_wal.layout import Identity
from imap_wal.placement import Placed
from imap_wal.retention.archive import archive_sealed
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from storage_backends import open_store
from storage_backends.faults import FaultyStore
from storage_backends.memory import MemoryStore
from tests.agent.harness import Plugin, config, entry, plugin, serving
from tests.kit.effort import every, thorough


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


def raw(member: Plugin, *frames: bytes) -> list[Any]:
    """Send frames as they are; the answer's header."""
    socket = member.client._socket
    socket.send_multipart(list(frames))
    assert socket.poll(20_000), "no answer"
    answer: list[Any] = parts(socket.recv())[0]
    return answer


HEADERS = [
    b"",
    b"\xc1",
    b"\x93",
    msgpack.packb(7),
    msgpack.packb("append"),
    msgpack.packb([]),
    msgpack.packb(["append"]),
    msgpack.packb([1, 1]),
    b"\x81\x90\x01",
    b"\x92\xa4stat\x81\x90\x01",
    msgpack.packb(["append", "one"]),
    msgpack.packb({"kind": "append"}),
    msgpack.packb([b"append", 1]),
    b"\xff" * 100,
]


@every(4)
@pytest.mark.parametrize("header", HEADERS, ids=repr)
def test_a_malformed_header_is_answered(settings: AgentConfig, header: bytes) -> None:
    """The agent answers with an error and continues."""
    with serving(settings), plugin(settings) as member:
        assert raw(member, header, b"")[:3] == ["error", 0, "bad-request"]
        assert member.put(a="1")[:2] == ["error", "not-ready"]  # it may have been an append
        member.hello()
        assert member.send(1, {"a": "1"})[0] == "ack"


def test_a_message_of_one_or_three_frames_is_answered(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        for frames in ((b"x",), (b"", b"", b""), (msgpack.packb(["stat", 1]),)):
            assert raw(member, *frames)[2] == "bad-request"
        assert member.put(a="1")[:2] == ["error", "not-ready"]  # it may have been an append
        member.hello()
        assert member.send(1, {"a": "1"})[0] == "ack"


REQUESTS: list[tuple[Any, ...]] = [
    ("dance",),
    ("dance", 1, 2, 3),
    ("hello",),
    ("hello", None),
    ("hello", 7),
    ("hello", "x"),
    ("hello", []),
    ("hello", {}),
    ("hello", {"protocol": 1}),
    ("hello", {"protocol": 1, "cluster_id": "c", "plugin_uuid": "p"}),
    ("hello", {"protocol": "1"}),
    ("hello", {}, {}),
    ("append",),
    ("append", 1),
    ("append", 1, 1),
    ("append", 1, 1, 1, 1),
    ("append", [], 1, 1),
    ("append", {}, 1, 1),
    ("append", None, None, None),
    ("append", 1, "x", 1),
    ("append", 1, 1, "x"),
    ("append", 1, None, 1),
    ("append", 1, 1, -1),
    ("append", 1, 1, 0),
    ("append", 1, 5, 0),
    ("append", 1, 0, 1),
    ("append", 1, -5, 2),
    ("append", 1, 1, 2**40),
    ("append", 99, 1, 1),
    ("metadata",),
    ("metadata", 1),
    ("metadata", 1, "x"),
    ("metadata", 1, 1),
    ("metadata", 1, 0),
    ("keys",),
    ("keys", "m"),
    ("keys", "m", "x", 10),
    ("keys", "m", [], 10),
    ("keys", "m", None, "x"),
    ("keys", "m", 12345, 10),
    ("keys", "m", None, 1, 2),
    ("load",),
    ("load", "m"),
    ("load", "m", "x"),
    ("load", "m", 5),
]


def test_requests_with_wrong_fields_are_answered_and_nothing_is_appended(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(watched, place))
    settings = config(tmp_path, url=memory.url)
    with serving(settings), plugin(settings) as member:
        before = [operation for operation in watched.operations if operation.kind == "append"]
        for request in REQUESTS:
            header, _ = member.client.ask(*request)
            assert header[0] == "error", request
            assert header[2] in (
                "bad-request",
                "unsupported-version",
                "not-ready",
                "restore-failed",
            ), (request, header)
            assert isinstance(header[3], str)
        assert [
            operation for operation in watched.operations if operation.kind == "append"
        ] == before
        member.hello()
        assert member.put(a="1") == ["ack", 1, 1]
        assert member.values() == {"a": "1"}


def bad_entries(member: Plugin) -> list[tuple[str, bytes, int]]:
    """(what is wrong, payload, count) of appends that begin with request 1."""
    good = entry("a", "1", member.order(1))
    pack = msgpack.packb

    def changed(index: int, value: Any) -> bytes:
        return pack([value if at == index else part for at, part in enumerate(good)])

    incarnation, version, session, _ = member.order(1)
    return [
        ("nothing", b"", 1),
        ("garbage", b"\xc1\xc1\xc1", 1),
        ("a number", pack(7), 1),
        ("a text", pack("entry"), 1),
        ("nil", pack(None), 1),
        ("cut off", pack(good)[:-3], 1),
        ("too few", pack(good), 2),
        ("too many", pack(good) + pack(entry("b", "2", member.order(2))), 1),
        ("bytes after it", pack(good) + b"\x01", 1),
        ("nine fields", pack(good[:9]), 1),
        ("eleven fields", pack([*good, 1]), 1),
        ("the second is no entry", pack(good) + pack(42), 2),
        ("the second has the first's number", pack(good) + pack(good), 2),
        ("a gap in the numbers", pack(good) + pack(entry("b", "2", member.order(3))), 2),
        ("another session", pack(entry("a", "1", (incarnation, version, session + 1, 1))), 1),
        ("another incarnation", pack(entry("a", "1", (incarnation + 1, version, session, 1))), 1),
        ("another request", pack(entry("a", "1", (incarnation, version, session, 9))), 1),
        ("an order of three", changed(9, [1, 1, 1]), 1),
        ("an order of five", changed(9, [incarnation, version, session, 1, 1]), 1),
        ("no order", changed(9, None), 1),
        ("an order of text", changed(9, "abcd"), 1),
        ("a version of text", changed(9, [incarnation, "1", session, 1]), 1),
        ("a map of bytes", changed(0, b"orders"), 1),
        ("no map", changed(0, ""), 1),
        ("a key of text", changed(1, "a"), 1),
        ("no key", changed(1, None), 1),
        ("a value of text", changed(3, "1"), 1),
        ("an upsert without a value", changed(3, None), 1),
        ("a tombstone with a value", changed(5, True), 1),
        ("deleted as a number", changed(5, 0), 1),
        ("a time of text", changed(6, "now"), 1),
        ("an expiry of half a millisecond", changed(7, 0.5), 1),
        ("a partition of nil", changed(8, None), 1),
    ]


def test_a_malformed_payload_is_refused_as_a_whole(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads that differ from their header are answered, and no byte of them is appended."""
    watched = FaultyStore(memory)
    monkeypatch.setattr("imap_wal.context.open_place", lambda place, **_: Placed(watched, place))
    settings = config(tmp_path, url=memory.url)
    with serving(settings), plugin(settings) as member:
        before = [operation for operation in watched.operations if operation.kind == "append"]
        for wrong, payload, count in bad_entries(member):
            header, _ = member.client.ask("append", member.session, 1, count, payload=payload)
            assert header[:1] + header[2:3] == ["error", "bad-request"], wrong
            member.hello()
        for sent in (
            b"",
            msgpack.packb(["member", 1, b""]),
            msgpack.packb(["schema", "1", b""]),
            msgpack.packb(["schema", 1]),
            b"\xc1",
        ):
            header, _ = member.client.ask("metadata", member.session, 1, payload=sent)
            assert header[:1] + header[2:3] == ["error", "bad-request"], sent
            member.hello()
        assert [
            operation for operation in watched.operations if operation.kind == "append"
        ] == before
        assert member.hello()["last_request"] == 0
        assert member.put(a="1") == ["ack", 1, 1]
    with serving(settings), plugin(settings) as member:
        assert member.values() == {"a": "1"}


NUMBERS = ["timestamp_ms", "expires_at_ms", "partition", "partition_version", "request"]


@every(4)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in NUMBERS for value in (2**63, 2**64 - 1)),
        ("partition_version", -1),
    ],
)
def test_a_number_beyond_an_archives_range_is_refused(
    settings: AgentConfig, field: str, value: int
) -> None:
    """The error names the field. Such an append was acknowledged, and then no segment could be
    archived."""
    with serving(settings), plugin(settings) as member:
        first = value if field == "request" else 1
        row = entry("a", "1", member.order(first, value if field == "partition_version" else 1))
        if field in NUMBERS[:3]:
            row[NUMBERS.index(field) + 6] = value
        header, _ = member.client.ask(
            "append", member.session, first, 1, payload=msgpack.packb(row)
        )
        assert header[:1] + header[2:3] == ["error", "bad-request"]
        assert f"{field} is {value}; it takes" in header[3]
        assert member.hello()["last_request"] == 0
        assert member.put(a="1") == ["ack", 1, 1]
    store = open_store(settings.url)
    log = open_node_log(
        LogContext(
            Context(store),
            Identity("default", "c", "n1"),
            Settings(),
        ),
        holder="the test",
    )
    assert (
        archive_sealed(Context(store), log.identity.node_folder, "n1", log.manifests).records == 1
    )
    log.close()


@pytest.mark.parametrize("key", ["", "a"])
def test_a_tombstone_with_an_expiry_is_refused(settings: AgentConfig, key: str) -> None:
    """With an empty key, it became a clear of the whole map when it was archived."""
    with serving(settings), plugin(settings) as member:
        member.put(b="1")
        payload = msgpack.packb(entry(key, None, member.order(2), expires_at_ms=1))
        header, _ = member.client.ask("append", member.session, 2, 1, payload=payload)
        assert header[:1] + header[2:3] == ["error", "bad-request"]
        assert "expires_at_ms of a tombstone is 1; it must be 0" in header[3]
        assert member.hello()["last_request"] == 1
        assert member.values() == {"b": "1"}


def test_random_bytes_neither_end_the_agent_nor_enter_the_log(
    settings: AgentConfig, seed: int
) -> None:
    """Changed payloads and random frames, as a broken client sends them."""
    chance = Random(seed)
    with serving(settings), plugin(settings) as member:
        good = member.payload(1, {"a": "1", "b": "2"})
        for _ in range(400):
            data = bytearray(good)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            header, _ = member.client.ask("append", member.session, 1, 2, payload=bytes(data))
            if header[0] == "ack":  # a value or a label changed: that is a valid message
                break
            assert header[2] == "bad-request"
            member.hello()
        for _ in range(100):
            assert (
                raw(
                    member,
                    chance.randbytes(chance.randrange(40)),
                    chance.randbytes(chance.randrange(40)),
                )[0]
                == "error"
            )
        assert member.stat()["healthy"]
    with serving(settings), plugin(settings) as member:
        assert len(member.keys()) <= 2


def test_a_value_above_the_limit_is_too_large(tmp_path: Path) -> None:
    settings = config(tmp_path, max_value_bytes=1000)
    with serving(settings), plugin(settings) as member:
        header, _ = member.client.ask(
            "append", member.session, 1, 1, payload=member.payload(1, {"a": "x" * 1000})
        )
        assert header[2] == "too-large"
        assert "more than max_value_bytes, 1000" in header[3]
        member.hello()
        assert member.send(1, {"a": "x" * 999})[0] == "ack"


@pytest.mark.parametrize("name", ["m" * 1025, "🙂" * 257])
def test_a_map_name_that_is_too_long_is_refused(settings: AgentConfig, name: str) -> None:
    """Appends and listings refuse it, with the limit."""
    with serving(settings), plugin(settings) as member:
        payload = msgpack.packb(entry("a", "1", member.order(1))) + msgpack.packb(
            entry("b", "2", member.order(2), name=name)
        )
        header, _ = member.client.ask("append", member.session, 1, 2, payload=payload)
        assert header[:1] + header[2:3] == ["error", "bad-request"]
        assert "append: the name of a map takes" in header[3]
        header, _ = member.client.ask("keys", name, None, 100)
        assert header[:1] + header[2:3] == ["error", "bad-request"]
        assert "at most 1024 are possible" in header[3]
        member.hello()
        assert member.put(a="1")[0] == "ack"
        assert member.values() == {"a": "1"}


@pytest.mark.parametrize("field", [0, 2, 4])
def test_text_that_is_no_utf8_is_refused_with_its_place(settings: AgentConfig, field: int) -> None:
    """A lone surrogate, as a program without checks encodes it: map name or a class."""
    with serving(settings), plugin(settings) as member:
        parts = list(map(msgpack.packb, entry("b", "2", member.order(2))))
        parts[field] = b"\xa5a\xed\xa0\x80b"
        payload = msgpack.packb(entry("a", "1", member.order(1))) + b"\x9a" + b"".join(parts)
        header, _ = member.client.ask("append", member.session, 1, 2, payload=payload)
        assert header[:1] + header[2:3] == ["error", "bad-request"]
        assert "value 2 of 2 has text that is not UTF-8, at byte 1 of it" in header[3]
        member.hello()
        assert member.put(a="1")[0] == "ack"
        assert member.values() == {"a": "1"}


@thorough
def test_a_value_of_64_megabytes_is_read_back(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        value = "x" * (64 * 1024 * 1024)
        assert member.put(big=value)[0] == "ack"
        assert member.load("big") == {"big": (value, 0)}
