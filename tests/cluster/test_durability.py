"""Durability is a property of the cluster, which a map opts out of by name; what is not durable is
named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hazelcast.errors import HazelcastError

from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.doctor.agent import agent_checks
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.contents import contents, refusal
from tests.cluster.waiting import until
from tests.kit.effort import thorough

ENTRIES = {f"k{number}": f"value {number}" for number in range(100)}
SECTION = {"indexes": [{"type": "SORTED", "attributes": ["this"]}]}
"""A section of a map that names no map store."""
PROPERTIES = {"imap-wal.agent": "{agent}", "imap-wal.transient-maps": "cache-*, *-tmp"}


def filled(cluster: Cluster, *names: str) -> None:
    client = cluster.client()
    for name in names:
        client.get_map(name).blocking().put_all(ENTRIES)


def checks(cluster: Cluster) -> dict[str, Check]:
    return {each.name: each for each in agent_checks(cluster.agents[0].endpoint)}


def lines(cluster: Cluster, text: str) -> list[str]:
    """The lines of the first member's log that have this text."""
    return [line for line in cluster.members[0].log.read_text().splitlines() if text in line]


@thorough
def test_a_map_with_a_section_of_its_own_is_restored(tmp_path: Path, classpath: str) -> None:
    """After `kill -9` of everything. A map that opted out by name is empty."""

    def maps(endpoint: str) -> Mapping[str, Any]:
        return {"orders": SECTION, "cache-own": logged_map(endpoint)}

    with Cluster(tmp_path, classpath, maps, offsets_ms=(0,), properties=PROPERTIES) as cluster:
        cluster.start(1)
        filled(cluster, "orders", "other", "cache-own", "orders-tmp")
        queue = cluster.client().get_queue("jobs").blocking()
        assert queue.offer("a job")
        assert cluster.client().get_queue("jobs").blocking().poll() == "a job"
        assert len(lines(cluster, 'queue "jobs" is not durable')) == 1
        assert lines(cluster, "durable maps: *; transient maps: cache-*, *-tmp")
        until("the agent knows", lambda: "agent's structures" in checks(cluster))
        maps_of = checks(cluster)["agent's maps"]
        assert (maps_of.status, maps_of.what) == (
            OK,
            "durable: orders, other; transient: cache-own, orders-tmp",
        )
        structures = checks(cluster)["agent's structures"]
        assert (structures.status, 'queue "jobs"' in structures.what) == (WARNING, True)
        cluster.kill_everything()
        cluster.start(1)
        assert contents(cluster, "orders") == ENTRIES
        assert contents(cluster, "other") == ENTRIES
        client = cluster.client()
        assert client.get_map("cache-own").blocking().size() == 0
        assert client.get_map("orders-tmp").blocking().size() == 0


@pytest.mark.thorough
def test_a_map_in_no_list_is_named(tmp_path: Path, classpath: str) -> None:
    """At the start, if it has a section; else at its first use; and by doctor."""
    properties = {**PROPERTIES, "imap-wal.durable-maps": "orders*"}
    with Cluster(
        tmp_path,
        classpath,
        lambda _endpoint: {"left": SECTION, "orders-eu": SECTION},
        offsets_ms=(0, 0),
        properties=properties,
    ) as cluster:
        cluster.start(2)
        assert len(lines(cluster, 'the maps of section "left" are not durable')) == 1
        assert not lines(cluster, '"orders-eu"')
        filled(cluster, "orders-eu", "cache-1", "another")
        until("it is named", lambda: lines(cluster, 'map "another" is not durable'))
        assert len(lines(cluster, 'map "another" is not durable')) == 1
        until("the agent knows", lambda: "another" in checks(cluster)["agent's maps"].what)
        assert checks(cluster)["agent's maps"].status == PROBLEM
        cluster.kill_everything()
        cluster.start(2)
        assert contents(cluster, "orders-eu") == ENTRIES
        assert cluster.client().get_map("another").blocking().size() == 0


@pytest.fixture
def older(classpath_of: str, tmp_path: Path) -> Iterator[Cluster]:
    """Older members, where the section of all maps has the map store."""
    with Cluster(
        tmp_path,
        classpath_of,
        lambda endpoint: {"default": logged_map(endpoint), "orders": SECTION},
        offsets_ms=(0, 0),
        properties={"imap-wal.durable-structures": "refuse"},
    ) as cluster:
        yield cluster


@pytest.mark.thorough
def test_older_members_keep_maps_and_refuse_structures(older: Cluster) -> None:
    older.start(2)
    filled(older, "orders", "other")
    with pytest.raises(HazelcastError, match='queue "jobs" is refused'):
        older.client().get_queue("jobs").blocking().offer("a job")
    older.kill_everything()
    older.start(2)
    assert contents(older, "orders") == contents(older, "other") == ENTRIES


@pytest.mark.thorough
def test_a_second_map_store_is_refused(tmp_path: Path, classpath: str) -> None:
    other = {"map-store": {"enabled": True, "class-name": "com.example.Store"}}
    with Cluster(
        tmp_path, classpath, lambda _: {"orders": other}, offsets_ms=(0,), properties=PROPERTIES
    ) as cluster:
        cluster.start(1)
        assert "another map store" in refusal(cluster, "orders")
