"""Attack: requests of other types and shapes. Each is answered, and the log remains readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent import requests
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.transport.router import parts
from imap_wal.entry import ORDER, PARTITION
from tests.agent.harness import Plugin, config, entry, identified, plugin, serving
from tests.kit.effort import every
from tests.kit.malformed import nested, pack


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


def sent(member: Plugin, header: bytes, payload: bytes = b"") -> list[Any]:
    """The answer's header to these bytes."""
    socket = member.client._socket
    socket.send_multipart([header, payload])
    assert socket.poll(20_000), "no answer"
    answer: list[Any] = parts(socket.recv())[0]
    return answer


HEADERS = {
    "a hello nested 1,000 deep": b"\x93" + pack("hello") + b"\x01" + nested(1000),
    "a hello nested 1,000,000 deep": b"\x93" + pack("hello") + b"\x01" + nested(1_000_000),
    "a protocol nested 900 deep": b"\x93"
    + pack("hello")
    + b"\x01\x81"
    + pack("protocol")
    + nested(900),
    "a cluster id nested 900 deep": b"\x93"
    + pack("hello")
    + b"\x01\x82"
    + pack("protocol")
    + b"\x01"
    + pack("cluster_id")
    + nested(900),
    "an unknown field nested 100,000 deep": b"\x93"
    + pack("hello")
    + b"\x01\x81"
    + pack("x")
    + nested(100_000, b"\x81\x01"),
    "an append nested 1,000 deep": b"\x95" + pack("append") + b"\x01" + nested(1000) + b"\x01\x01",
    "a cursor nested 900 deep": b"\x95"
    + pack("keys")
    + b"\x01"
    + pack("m")
    + nested(900)
    + b"\x01",
    "a number nested 900 deep": b"\x92" + pack("stat") + nested(900),
    "a kind nested 1,000,000 deep": b"\x92" + nested(1_000_000) + b"\x01",
    "nested and nothing else": nested(1_000_000),
    "2^32 - 1 fields announced": b"\xdd\xff\xff\xff\xff" + pack("stat") + b"\x01",
    "a text of 4 GiB announced": b"\x92\xdb\xff\xff\xff\xff",
    "a map of 2^32 - 1 announced": b"\x93" + pack("hello") + b"\x01\xdf\xff\xff\xff\xff",
    "2^24 changes": pack(["append", 1, 1, 1, 2**24]),
    "2^24 metadata": pack(["metadata", 1, 1, 2**24]),
    "a count of 2^64 - 1": pack(["append", 1, 1, 1, 2**64 - 1]),
    "a number of 2^64 - 1": pack(["append", 2**64 - 1, 1, 1, 1]),
    "a session of 1.0": pack(["append", 1, 1.0, 1, 1]),
    "a session of true": pack(["append", 1, True, 1, 1]),
    "a first request of 1.0": pack(["append", 1, 1, 1.0, 1]),
    "a count of true": pack(["append", 1, 1, 1, True]),
    "a kind of no UTF-8": b"\x92\xa2\xff\xfe\x01",
    "a map of no UTF-8": b"\x95" + pack("keys") + b"\x01\xa2\xff\xfe\xc0\x01",
    "a limit of NaN": pack(["keys", 1, "m", None, float("nan")]),
    "a timestamp for a number": b"\x92" + pack("stat") + b"\xd6\xff\x00\x00\x00\x01",
}


@every(11)
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_of_another_shape_is_answered(settings: AgentConfig, header: bytes) -> None:
    """The agent's loop continues."""
    with serving(settings), plugin(settings) as member, plugin(settings, uuid="other") as other:
        kind, number, code, text = sent(other, header)
        assert (kind, code) == ("error", "bad-request"), text
        assert number in (0, 1, 2**64 - 1)
        assert len(text) < 500
        assert member.put(a="1")[0] == "ack"
        other.hello()
        assert other.put(b="2")[0] == "ack"
    with serving(settings), plugin(settings) as member:
        assert member.values() == {"a": "1", "b": "2"}


def test_the_refusal_of_a_header_names_the_field(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        assert (
            "Expected `int`, got `float` - at `$[2]` (session)"
            in sent(member, pack(["append", 1, 1.0, 1, 1]))[3]
        )
        assert (
            "`$[2].purpose` (about)"
            in sent(member, pack(["hello", 1, identified(member.about(purpose="both"))]))[3]
        )


def test_a_session_of_a_fraction_does_not_reach_the_manifest(settings: AgentConfig) -> None:
    """The agent took it for 1 and wrote "1.0". After the next clean stop, neither an open nor
    `repair` could read the log."""
    with serving(settings), plugin(settings) as member:
        assert (
            sent(
                member,
                pack(["append", 1, float(member.session), 1, 1]),
                member.payload(1, {"a": "1"}),
            )[2]
            == "bad-request"
        )
        member.hello()
        row = entry("a", "1", member.order(1))
        for order in (
            [float(row[ORDER][0]), *row[ORDER][1:]],
            [*row[ORDER][:2], float(row[ORDER][2]), 1],
            [*row[ORDER][:2], True, 1],
        ):
            header, _ = member.client.ask(
                "append", member.session, 1, 1, payload=pack([*row[:9], order])
            )
            assert header[2] == "bad-request"
            member.hello()
        assert member.put(a="1")[0] == "ack"
    manifests = sorted(Path(settings.url.removeprefix("file://")).rglob("nodes/n1/manifest/*.json"))
    assert json.loads(manifests[-1].read_bytes())["requests"] == {"1": 1}
    with serving(settings), plugin(settings) as member:
        assert member.values() == {"a": "1"}


@pytest.mark.parametrize(
    "keys",
    [
        b"",
        pack("a"),
        pack(7),
        pack(["a"]),
        pack(b"a") * 2,
        pack(b"a")[:-1],
        nested(1000),
        b"\xc1",
        pack({1: 2}),
    ],
    ids=repr,
)
def test_a_load_needs_a_list_of_keys(settings: AgentConfig, keys: bytes) -> None:
    """Other payloads are refused."""
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        header = sent(member, pack(["load", 1, "orders", 1]), keys)
        assert header[:3] == ["error", 1, "bad-request"]
        assert "1 keys" in header[3]
        assert member.stat()["healthy"]


def test_an_error_without_a_text_is_answered(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of the error cannot be made, because that raises another one."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RecursionError("no words")

        __repr__ = __str__

    def raises(*_: Any) -> None:
        raise Unspeakable

    with serving(settings) as agent, plugin(settings) as member:
        with monkeypatch.context() as patch:
            patch.setattr(agent._log.sessions, "claim", raises)
            header, _ = member.client.ask("stat")
            assert header[2] == "not-ready" and "cannot be shown" in header[3]
        with monkeypatch.context() as patch:
            patch.setattr(
                agent._log.sessions,
                "claim",
                lambda: {"cluster_id": "\udc80", "incarnation": 1, "alive": False},
            )
            header, _ = member.client.ask("stat")
            assert header[0] == "stat"
        assert member.hello()["session"] == 1


@pytest.mark.parametrize("partition", [-(2**63), -1, 2**31 - 1, 2**63 - 1, 2**64 - 1])
def test_a_partition_that_no_cluster_has_is_refused(settings: AgentConfig, partition: int) -> None:
    with serving(settings), plugin(settings) as member:
        row = entry("a", "1", member.order(1))
        row[PARTITION] = partition
        header, _ = member.client.ask("append", member.session, 1, 1, payload=pack(row))
        assert header[2] == "bad-request" and f"partition is {partition}; it takes" in header[3]
        member.hello()
        assert member.put(a="1")[0] == "ack"


@pytest.mark.parametrize("size", [1, 60, 64, 65, 1000])
def test_reading_a_random_header_raises_nothing(size: int, seed: int) -> None:
    """Whatever its bytes are."""
    from random import Random

    chance = Random(seed)
    for _ in range(2000):
        requests.read(chance.randbytes(chance.randrange(size)))
