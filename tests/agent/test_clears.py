"""A member clears partitions: one entry each, for listings, loads, resends and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal import format
from imap_wal.agent.config import AgentConfig
from imap_wal.partitions import partition_id
from imap_wal.segment.reader import SegmentReader
from storage_backends import open_store
from tests.agent.harness import Plugin, config, plugin, serving
from tests.support import segments

HEAD = "\0" * 8
"""The first bytes of a Hazelcast key: no partition hash, no serializer."""
COUNT = 271
KEYS = [f"{HEAD}k{number}" for number in range(2000)]


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


def partition_of(key: str) -> int:
    return partition_id(key.encode(), COUNT)


def clear(
    member: Plugin, request: int, *partitions: int, count: int = COUNT, **changed: Any
) -> list[Any]:
    """The answer to an append of clears."""
    fields = {
        "key": None,
        "key_class": "",
        "deleted": True,
        "value": None,
        "value_class": "",
        **changed,
    }
    rows = [
        [
            "orders",
            fields["key"],
            fields["key_class"],
            fields["value"],
            fields["value_class"],
            fields["deleted"],
            1_763_720_000_000,
            count,
            partition,
            list(member.order(request + index)),
        ]
        for index, partition in enumerate(partitions)
    ]
    header, _ = member.client.ask(
        "append", member.session, request, len(rows), payload=b"".join(map(msgpack.packb, rows))
    )
    return [header[0], *header[2:]]


def test_a_clear_deletes_all_keys_of_its_partitions(settings: AgentConfig) -> None:
    """Listings and loads do not return them, also after a restart; a later put counts."""
    cleared = {0, 7, 100}
    left = {key for key in KEYS if partition_of(key) not in cleared}
    with serving(settings), plugin(settings) as member:
        member.send(1, dict.fromkeys(KEYS, "v"))
        assert sorted(member.keys(limit=100)) == sorted(KEYS)
        assert clear(member, 2001, *cleared) == ["ack", 2001, 3]
        assert sorted(member.keys(limit=100)) == sorted(left)
        assert set(member.load(*KEYS)) == left
        assert clear(member, 2001, *cleared) == ["ack", 2001, 3], "sent again"
        back = next(key for key in KEYS if partition_of(key) == 7)
        member.send(2004, {back: "again"})
        header, payload = member.client.ask("list", "orders", None, 100, [7, 8])
        unpacker = msgpack.Unpacker()
        unpacker.feed(payload)
        assert header[0] == "list" and {key.decode() for key, _, _ in unpacker} == {
            key for key in left if partition_of(key) == 8
        } | {back}
    with serving(settings), plugin(settings) as member:
        assert (member.session, member.request) == (1, 2004)
        assert set(member.keys()) == left | {back}
        assert clear(member, 2005, *range(COUNT)) == ["ack", 2005, COUNT]
        assert member.keys() == []
    store = open_store(settings.url)
    frames = [
        frame
        for path in segments(store)
        for frame in SegmentReader(store, path).whole_frames()
        if frame.kind == format.CLEARS
    ]
    assert [frame.count for frame in frames] == [3, COUNT]


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": -1},
        {"partition": COUNT},
        {"count": 0},
        {"count": 2**31, "partition": 5},
        {"deleted": False},
        {"value": b"v"},
        {"partition": "7"},
        {"count": None},
        {"key_class": "k"},
        {"value_class": "v"},
    ],
    ids=str,
)
def test_a_clear_of_no_partition_is_refused(settings: AgentConfig, wrong: dict[str, Any]) -> None:
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        answer = clear(member, 2, wrong.pop("partition", 7), **wrong)
        assert answer[:2] == ["error", "bad-request"]
        assert member.hello()["last_request"] == 1
        assert member.values() == {"a": "1"}


@pytest.mark.parametrize("count", [1, COUNT - 1, COUNT + 1])
def test_a_clear_for_another_partition_count_is_refused(settings: AgentConfig, count: int) -> None:
    """The count must be that of the member's hello. With 1, a clear deleted the whole map."""
    with serving(settings), plugin(settings) as member:
        member.put(a="1")
        answer = clear(member, 2, 0, count=count)
        assert answer[:2] == ["error", "bad-request"]
        assert (
            f"a clear is for one of {count} partitions; the hello of this connection gave "
            f"partition_count {COUNT}" in answer[2]
        )
        assert member.hello()["last_request"] == 1
        assert member.values() == {"a": "1"}
        assert clear(member, 2, *range(COUNT)) == ["ack", 2, COUNT]
        assert member.keys() == []


@pytest.mark.parametrize("given", [None, 0])
def test_a_clear_needs_a_partition_count_in_the_hello(
    settings: AgentConfig, given: int | None
) -> None:
    """Without it, or with 0, a clear is refused."""
    with serving(settings), plugin(settings, greet=False) as member:
        member.hello(partition_count=given)
        member.put(a="1")
        answer = clear(member, 2, 0, count=1)
        assert answer[:2] == ["error", "bad-request"]
        assert "send hello with partition_count" in answer[2]
        assert member.hello()["last_request"] == 1
        assert member.values() == {"a": "1"}
