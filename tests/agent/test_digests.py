"""Digests of partitions: a member that has the same entries in memory need not read them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hazelcast.hash import hash_to_index
from hazelcast.serialization.data import Data

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.reads import reads
from imap_wal.read.view import digest
from tests.agent.harness import Plugin, config, hazelcast_key, plugin, put_keys, serving

SALT = bytes(range(16))
KEYS = [hazelcast_key(number) for number in range(500)]


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


def digests(member: Plugin, wanted: list[int]) -> list[bytes | None]:
    """The digests of all these partitions, in as many requests as needed."""
    found: list[bytes | None] = []
    while len(found) < len(wanted):
        header, payload = member.client.ask("digests", "orders", SALT, wanted[len(found) :])
        assert header[0] == "digests", header
        unpacker = msgpack.Unpacker()
        unpacker.feed(payload)
        some = list(unpacker)
        assert header[2] == len(some) > 0
        found += some
    return found


def of(partition: int, keys: list[bytes] = KEYS, value: bytes = b"v") -> bytes:
    """The digest of these keys' entries in a partition."""
    there = [key for key in keys if hash_to_index(Data(key).get_partition_hash(), 271) == partition]
    return digest(SALT, [("", key, "", value, "", False, 0, 0, 0, (1, 1, 1, 1)) for key in there])


def test_each_partition_has_the_digest_of_its_entries(settings: AgentConfig) -> None:
    """Deleted and expired entries do not count, and a restart of the agent changes nothing."""
    with serving(settings), plugin(settings) as member:
        put_keys(member, KEYS)
        wanted = [7, 0, 270]
        assert digests(member, wanted) == [of(each) for each in wanted]
        assert len(set(digests(member, list(range(271))))) > 200
        gone = [(KEYS[0], None, 0), (KEYS[1], b"x", int(time.time() * 1000) - 1)]
        payload = b"".join(
            msgpack.packb(
                ["orders", key, "", value, "", value is None, 1, expires, 0, member.order(at)]
            )
            for at, (key, value, expires) in enumerate(gone, 501)
        )
        assert member.client.ask("append", member.session, 501, 2, payload=payload)[0][0] == "ack"
        left = [of(each, KEYS[2:]) for each in range(271)]
        assert digests(member, list(range(271))) == left
    with serving(settings), plugin(settings) as member:
        assert digests(member, list(range(271))) == left


def test_an_answer_has_the_digests_that_are_ready_in_time(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others need another request."""
    monkeypatch.setattr(reads, "PART_S", 0.0)
    with serving(settings), plugin(settings) as member:
        put_keys(member, KEYS)
        header, _ = member.client.ask("digests", "orders", SALT, [1, 2, 3])
        assert header[2] == 1
        assert digests(member, [1, 2, 3]) == [of(1), of(2), of(3)]


def test_entries_on_disk_have_no_digest(tmp_path: Path) -> None:
    """It would take as long as reading them."""
    settings = config(tmp_path, restore_memory_bytes=1 << 20)
    with serving(settings), plugin(settings) as member:
        for number in range(40):
            member.put(**{f"k{number}-{at}": "v" * 1000 for at in range(50)})
        assert digests(member, [0, 1]) == [None, None]


def test_impossible_partitions_are_a_bad_request(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        wanted: Any
        for wanted in ([271], [-1], ["x"], [True], 7, "x"):
            header, _ = member.client.ask("digests", "orders", SALT, wanted)
            assert header[2] == "bad-request", wanted


def test_a_salt_of_another_size_is_a_bad_request(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        salt: Any
        for salt in (b"", SALT[1:], SALT + b"x", "x" * 16, None):
            header, _ = member.client.ask("digests", "orders", salt, [1])
            assert header[2] == "bad-request", salt
