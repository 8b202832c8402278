"""A listing of keys is complete, or it fails: it never ends early as if it were complete."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hazelcast.hash import hash_to_index
from hazelcast.serialization.data import Data

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.reads import listings
from imap_wal.agent.server import Agent
from imap_wal.clock import SeededRandomness
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.snapshots import Snapshot
from tests.agent.harness import Plugin, config, hazelcast_key, plugin, put_keys, serving

KEYS = [f"k{number:02d}" for number in range(30)]


@pytest.fixture
def settings(tmp_path: Path) -> AgentConfig:
    return config(tmp_path)


@pytest.fixture
def agent(settings: AgentConfig) -> Iterator[Agent]:
    with serving(settings) as agent, plugin(settings) as member:
        member.put(**dict.fromkeys(KEYS, "v"))
        yield agent


@pytest.fixture
def member(agent: Agent) -> Iterator[Plugin]:
    with plugin(agent.config, uuid="reader") as member:
        yield member


def page(
    member: Plugin, cursor: Any, limit: int = 10, name: str = "orders"
) -> tuple[list[Any], list[str]]:
    """The answer's header without its number, and the keys."""
    header, payload = member.client.ask("keys", name, cursor, limit)
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload)
    return [header[0], *header[2:]], [key.decode() for key in unpacker]


def refused(answer: tuple[list[Any], list[str]]) -> None:
    header, keys = answer
    assert header[:2] == ["error", "listing-gone"] and keys == []
    assert "begin again" in header[2]


def test_a_page_is_the_same_when_it_is_repeated(agent: Agent, member: Plugin) -> None:
    """Its answer was lost with the connection, and the page is requested again on another one."""
    first, keys = page(member, None)
    second, more = page(member, first[1])
    with plugin(agent.config, uuid="reader") as again:  # the answer was lost with its connection
        assert page(again, first[1]) == (second, more)
        assert page(again, first[1]) == (second, more)
        third, last = page(again, second[1])
        assert sorted(keys + more + last) == KEYS
        end = page(again, third[1])
        assert end == (["keys", None, 0, 30], [])
        assert page(again, third[1]) == end, "the end as well"


def test_a_page_that_is_not_the_next_one_is_refused(member: Plugin) -> None:
    first, _ = page(member, None)
    second, _ = page(member, first[1])
    third, _ = page(member, second[1])
    refused(page(member, first[1]))
    refused(page(member, [third[1][0], third[1][1] + 1]))
    refused(page(member, third[1], name="another map"))
    assert page(member, third[1])[0] == ["keys", None, 0, 30], "a refused request changes nothing"


def test_the_cursor_of_another_agent_run_is_refused(settings: AgentConfig) -> None:
    with serving(settings), plugin(settings) as member:
        member.put(**dict.fromkeys(KEYS, "v"))
        first, _ = page(member, None)
    with serving(settings), plugin(settings, uuid="another") as other, plugin(settings) as member:
        page(other, None)  # in the place that the first one had
        refused(page(member, first[1]))


def test_a_listing_ends_when_its_index_is_rebuilt(agent: Agent, member: Plugin) -> None:
    """The next page is refused with `listing-gone`, it does not count as the last one."""
    first, _ = page(member, None)
    agent._reads._view._merge._begin_again()
    refused(page(member, first[1]))
    assert member.keys() == KEYS


def test_a_listing_ends_when_its_map_is_dropped(agent: Agent, member: Plugin) -> None:
    """The next page is refused with `listing-gone`, it does not count as the last one."""
    first, _ = page(member, None)
    log = agent._all_logs
    marks = {"n1": _mark(agent)}
    log.manifests.update(
        lambda manifest: manifest.with_snapshot(
            "orders", Snapshot(1, Listed(), marks, 0, 0, 0, 0, dropped=1)
        )
    )
    member.load("k01")  # this read merges
    refused(page(member, first[1]))


def _mark(agent: Agent) -> Any:
    from imap_wal.manifest.snapshots import LowWaterMark

    return LowWaterMark(agent._log.node_log.directory, agent._log.node_log.end)


def test_a_page_that_failed_is_not_the_last_one(
    agent: Agent, member: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request for it is refused, so the listing begins again."""
    first, _ = page(member, None)
    listing = agent._reads._listings._listings[first[1][0]]
    monkeypatch.setattr(listing, "_batches", _failing())
    assert page(member, first[1])[0][:2] == ["error", "restore-failed"]
    refused(page(member, first[1]))
    assert member.keys() == KEYS


def _failing() -> Iterator[list[bytes]]:
    """A generator that has raised is at its end."""
    raise sqlite3.OperationalError("disk I/O error")
    yield


def test_a_malformed_cursor_is_a_bad_request(member: Plugin) -> None:
    """Cursors of other types or shapes."""
    for cursor in (1, "x", [1, "x"], [], {}):
        header, _ = member.client.ask("keys", "orders", cursor, 10)
        assert header[2] == "bad-request"


def test_a_page_is_bounded_by_bytes_too(
    agent: Agent, member: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "PAGE_BYTES", 12)
    header, keys = page(member, None)
    assert header[2] == len(keys) == 4
    assert member.keys() == KEYS


def listed(member: Plugin, wanted: list[int], limit: int = 10) -> list[bytes]:
    """All keys of some partitions, page by page."""
    found: list[bytes] = []
    cursor = None
    while True:
        header, payload = member.client.ask("list", "orders", cursor, limit, wanted)
        assert header[0] == "list", header
        count, total, loaded, live = header[3:]
        unpacker = msgpack.Unpacker()
        unpacker.feed(payload)
        stream = list(unpacker)
        assert loaded == live == count and all(value == b"v" for _, value, _ in stream)
        found += [key for key, _, _ in stream]
        assert total == len(found)
        cursor = header[2]
        if cursor is None:
            return found


def test_a_listing_has_only_keys_of_its_partitions(settings: AgentConfig) -> None:
    """It has all of them."""
    keys = [hazelcast_key(number) for number in range(500)]
    with serving(settings), plugin(settings) as member:
        put_keys(member, keys)
        place = {key: hash_to_index(Data(key).get_partition_hash(), 271) for key in keys}
        for wanted in ([], [0], [3, 7, 270], list(range(271))):
            assert sorted(listed(member, wanted)) == sorted(
                key for key in keys if place[key] in wanted
            )


def test_a_listing_cannot_change_its_partitions(settings: AgentConfig) -> None:
    """A page for other partitions, or for none, is refused; the listing itself continues."""
    with serving(settings), plugin(settings) as member:
        put_keys(member, [hazelcast_key(number) for number in range(500)])
        everything = list(range(271))
        header, _ = member.client.ask("list", "orders", None, 10, everything)
        assert member.client.ask("list", "orders", header[2], 10, [1, 2])[0][2] == "listing-gone"
        assert member.client.ask("keys", "orders", header[2], 10)[0][2] == "listing-gone"
        assert member.client.ask("list", "orders", header[2], 10, everything)[0][0] == "list"


def test_a_page_beyond_the_answer_size_ends_with_keys(
    settings: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first values are in the answer; for the others it has their keys."""
    monkeypatch.setattr("imap_wal.agent.reads.reads.ANSWER_BYTES", 5)
    keys = [hazelcast_key(number) for number in range(20)]
    with serving(settings), plugin(settings) as member:
        put_keys(member, keys)
        header, payload = member.client.ask("list", "orders", None, 100, list(range(271)))
        unpacker = msgpack.Unpacker()
        unpacker.feed(payload)
        stream = list(unpacker)
        assert header[3:] == [20, 20, 1, 1]
        assert sorted([key for key, _, _ in stream[:1]] + stream[1:]) == sorted(keys)


def test_impossible_partitions_are_a_bad_request(member: Plugin) -> None:
    """Numbers out of range, and other types."""
    for wanted in ([271], [-1], ["x"], [True], 7, "x"):
        header, _ = member.client.ask("list", "orders", None, 10, wanted)
        assert header[2] == "bad-request", wanted


@pytest.mark.parametrize("count", [-1, "271", 271.0, True, 2**31])
def test_an_invalid_partition_count_is_refused_in_the_hello(
    settings: AgentConfig, count: Any
) -> None:
    with serving(settings), plugin(settings, greet=False) as member:
        header, _ = member.client.ask("hello", member.about(partition_count=count))
        assert header[2] == "bad-request"
        assert "partition_count" in header[3]


@pytest.mark.parametrize("count", [None, 0])
def test_a_listing_of_partitions_needs_their_count(settings: AgentConfig, count: Any) -> None:
    """The hello did not say how many partitions there are, so the request is refused."""
    with serving(settings), plugin(settings, greet=False) as member:
        member.hello(partition_count=count)
        header, _ = member.client.ask("list", "orders", None, 10, [0])
        assert header[2] == "bad-request"
        assert "partition_count" in header[3]


class Pages:
    """A view with keys in batches of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.version = sizes, 0

    def catch_up(self) -> None:
        pass

    def keys(self, name: str, limit: int, partitions: None) -> Iterator[list[bytes]]:
        number = 0
        for size in self.sizes:
            yield [b"%d" % (number + index) for index in range(size)]
            number += size


@pytest.mark.parametrize("sizes", [[], [1], [10], [3, 10, 10], [10, 10], [1, 1, 1, 9]])
@pytest.mark.parametrize("limit", [1, 3, 10, 1000])
def test_a_listing_has_every_key_once(sizes: list[int], limit: int) -> None:
    """For all sizes of the index's batches and of pages."""
    found = listings.Listings(Pages(sizes), SeededRandomness(1))  # type: ignore[arg-type]
    cursor: Any = None
    keys: list[bytes] = []
    while True:
        answer = found.page("m", cursor, limit)
        keys += answer.keys
        assert len(answer.keys) <= limit and answer.total == len(keys)
        cursor = answer.cursor
        if cursor is None:
            break
        assert answer.keys
    assert keys == [b"%d" % number for number in range(sum(sizes))]
