"""`clear` and `destroy` are one entry for each partition in the log, and delete all keys: live, and
after everything was killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hazelcast.errors import HazelcastError
from hazelcast.proxy.map import BlockingMap

from imap_wal.entry import is_clear
from imap_wal.settings import RecoveryPolicy
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.history import log_view
from tests.cluster.waiting import until
from tests.kit.effort import thorough
from tests.kit.silent import SILENT, newest, wait_taken

PARTITIONS = 271
BOTH = pytest.mark.parametrize(
    "name", ["unheard", "offloaded-unheard"], ids=["offload off", "offload on"]
)


@pytest.fixture
def cluster(tmp_path: Path, classpath: str) -> Iterator[Cluster]:
    """A cluster that has not been started."""

    def maps(endpoint: str) -> Mapping[str, Any]:
        # A busy machine may need longer than a member waits by default.
        patient = {"settle-timeout-ms": "60000", "timeout-ms": "5000"}
        return {
            "default": logged_map(endpoint, patient),
            "offloaded-*": logged_map(endpoint, patient, store={"offload": True}),
        }

    with Cluster(tmp_path, classpath, maps) as made:
        yield made


def orders_of(cluster: Cluster, name: str) -> BlockingMap[Any, Any]:
    return cluster.client().get_map(name).blocking()


def after_a_restart(cluster: Cluster, *names: str) -> list[dict[Any, Any]]:
    cluster.kill_everything()
    cluster.start(2)
    return [dict(orders_of(cluster, name).entry_set()) for name in names]


def logged(cluster: Cluster, name: str) -> tuple[int, int]:
    """(clears, all entries) of a map in the log."""
    view = log_view(cluster.url)
    try:
        changes = view._merge._log.changes(maps=(name,), policy=RecoveryPolicy.FULL)
        rows = [row for batch in changes for row in batch.rows]
    finally:
        view.close()
    return sum(map(is_clear, rows)), len(rows)


@thorough
def test_a_clear_deletes_evicted_keys_too(cluster: Cluster) -> None:
    cluster.start(2)
    names = ("orders", "offloaded-orders")
    for name in names:
        orders = orders_of(cluster, name)
        orders.put_all({number: number for number in range(500)})
        for number in range(250):
            assert orders.evict(number)
        before = logged(cluster, name)[1]
        orders.clear()
        clears, entries = logged(cluster, name)
        assert clears == entries - before <= PARTITIONS
        assert (orders.size(), orders.get(1), orders.get(300)) == (0, None, None)
        orders.put_all({number: -number for number in range(0, 500, 50)})
        orders.evict_all()
        orders.clear()
        assert orders.get(50) is None
        orders.put(7, "after")
    assert after_a_restart(cluster, *names) == [{7: "after"}] * 2


@pytest.mark.thorough
def test_destroy_of_many_keys_is_one_entry_for_each_partition(cluster: Cluster) -> None:
    cluster.start(2)
    names = ("orders", "offloaded-orders")
    for name in names:
        orders = orders_of(cluster, name)
        orders.put_all({number: number for number in range(20_000)})
        cluster.client().get_map(name).destroy()
        assert logged(cluster, name) == (PARTITIONS, 20_000 + PARTITIONS)
        again = orders_of(cluster, name)
        assert (again.size(), again.get(1)) == (0, None)
        again.put(7, "after")
    assert after_a_restart(cluster, *names) == [{7: "after"}] * 2


@pytest.mark.thorough
@BOTH
def test_a_clear_at_an_owner_that_dies_before_it_answers(cluster: Cluster, name: str) -> None:
    """Its agent has logged clears that neither the client nor a backup knows."""
    cluster.agents[0].launch(SILENT)
    cluster.start(2)
    orders = orders_of(cluster, name)
    orders.put_all({f"k{number}": "old" for number in range(600)})
    cluster.wait_safe(2)
    owner = cluster.agents[0]
    before = (owner.stat(5000) or {})["appends"]
    with ThreadPoolExecutor(1) as caller:
        clearing = caller.submit(orders.clear)
        wait_taken(owner, before)
        cluster.members[0].kill()
        with contextlib.suppress(HazelcastError):
            clearing.result()
    assert logged(cluster, name)[0] > 0
    until(
        "memory equals the log",
        lambda: dict(orders.entry_set()) == newest(cluster, name),
        60,
    )
    held = dict(orders.entry_set())
    assert after_a_restart(cluster, name) == [held]
