"""What happens while the survivors of a loss claim a view and settle partitions: maps are cleared,
destroyed and changed in transactions, and further members are lost. Clients then read what was
acknowledged, and so does a restart."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hazelcast.errors import HazelcastError
from hazelcast.proxy.map import BlockingMap

from imap_wal.layout import claim_path
from tests.cluster.cluster import Cluster, connect
from tests.cluster.configuration import logged_map
from tests.cluster.network import QUICK_LOSS, Network
from tests.cluster.waiting import until

KEYS = {f"k{number}": f"value {number}" for number in range(600)}
GROUP = [f"g{number}" for number in range(4)]


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture
def cluster(tmp_path: Path, classpath: str, network: Network) -> Iterator[Cluster]:
    """Three members with an agent each."""

    def maps(endpoint: str) -> dict[str, Any]:
        return {"default": logged_map(endpoint, {"settle-timeout-ms": "60000"})}

    with Cluster(tmp_path, classpath, maps, network=network, properties=QUICK_LOSS) as cluster:
        cluster.start(3)
        cluster.wait_safe(3)
        yield cluster


def _map(cluster: Cluster, name: str) -> BlockingMap:
    return cluster.client().get_map(name).blocking()


def _contents(cluster: Cluster, *names: str) -> dict[str, dict[Any, Any]]:
    client = cluster.client()
    return {name: dict(client.get_map(name).blocking().entry_set()) for name in names}


def _demand_kept(cluster: Cluster, expected: dict[str, dict[Any, Any]], count: int) -> None:
    """The maps are these, and a restart restores them."""
    until("live maps", lambda: _contents(cluster, *expected) == expected, 90, 0.2)
    cluster.kill_everything()
    cluster.start(count)
    assert _contents(cluster, *expected) == expected


def _insist(action: Callable[[], object]) -> None:
    """Repeat until it is acknowledged."""

    def done() -> bool:
        with contextlib.suppress(HazelcastError):
            action()
            return True
        return False

    until("it is acknowledged", done, 90, 0.1)


@pytest.mark.thorough
def test_maps_are_cleared_and_destroyed_during_a_claim(cluster: Cluster) -> None:
    """Transactions run at the same time. A key that was evicted is still found."""
    names = ("cleared", "destroyed", "kept")
    for name in names:
        _map(cluster, name).put_all(KEYS)
    _map(cluster, "kept").evict("k1")
    cluster.wait_safe(3)
    ended = threading.Event()
    committed, tried = [0], [0]

    def transact() -> None:
        client = connect([each.address for each in cluster.members[:2]], cluster.name)
        while not ended.is_set():
            tried[0] += 1
            # OSError: the client's rollback uses the connection, which is to the lost member.
            with contextlib.suppress(HazelcastError, OSError):
                with client.new_transaction(timeout=20) as transaction:
                    for key in GROUP:
                        transaction.get_map("groups").set(key, tried[0])
                committed[0] = tried[0]
        client.shutdown()

    transacting = threading.Thread(target=transact, daemon=True)
    transacting.start()
    until("a transaction is committed", lambda: committed[0])
    clients = [connect([each.address], cluster.name) for each in cluster.members[:2]]
    cleared, destroyed = clients[0].get_map("cleared"), clients[1].get_map("destroyed")
    acting = [
        threading.Thread(target=lambda: _insist(lambda: cleared.clear().result()), daemon=True),
        threading.Thread(target=lambda: _insist(lambda: destroyed.destroy()), daemon=True),
    ]
    cluster.members[2].kill()
    for each in acting:
        each.start()
    kept = _map(cluster, "kept")
    assert kept.put_if_absent("k1", "mine") == "value 1"
    assert {key: kept.get(key) for key in KEYS} == KEYS
    for each in acting:
        each.join(120)
    before = committed[0]
    until("transactions are committed again", lambda: committed[0] > before, 90)
    ended.set()
    transacting.join(60)
    for client in clients:
        client.shutdown()
    groups = _contents(cluster, "groups")["groups"]
    assert len(set(groups.values())) == 1 and set(groups) == set(GROUP), groups
    assert committed[0] <= groups[GROUP[0]] <= tried[0]
    # A client gets no error of a destroy that could not be logged: it is destroyed once more.
    _map(cluster, "destroyed").destroy()
    _demand_kept(cluster, {"cleared": {}, "destroyed": {}, "kept": KEYS, "groups": groups}, 3)


@pytest.mark.thorough
def test_a_second_member_is_lost_during_a_settlement(cluster: Cluster) -> None:
    orders = _map(cluster, "orders")
    orders.put_all(KEYS)
    orders.evict("k1")
    cluster.wait_safe(3)
    cluster.members[2].kill()
    until("the loss is noticed", lambda: cluster.members[0].ask("members") == 2, 60, 0.005)
    cluster.members[1].kill()
    orders = _map(cluster, "orders")
    assert orders.put_if_absent("k1", "mine") == "value 1"
    assert orders.put_if_absent("more", "new") is None
    _demand_kept(cluster, {"orders": KEYS | {"more": "new"}}, 3)


@pytest.mark.thorough
def test_a_member_is_killed_between_claim_and_cuts(cluster: Cluster) -> None:
    """The claim of its view exists, and its cuts do not: nothing may be in that view yet."""
    _map(cluster, "orders").put_all(KEYS)
    cluster.wait_safe(3)
    logs = Path(cluster.url.removeprefix("file://"))
    folder = next(logs.glob("*/dev"))
    incarnation = 1 + max(
        int(path.stem) for path in (folder / "claims").glob("*.claim") if path.stem.isdigit()
    )
    claim = folder / claim_path("", incarnation).lstrip("/")
    member, agent = cluster.members[0], cluster.agents[0]
    cluster.agents[1].send(signal.SIGSTOP)  # so that the first one claims
    try:
        cluster.members[2].kill()
        until("a view is being claimed", claim.exists, 60, 0.0005)
        agent.kill()
        member.kill()
    finally:
        cluster.agents[1].send(signal.SIGCONT)
    orders = _map(cluster, "orders")
    assert {key: orders.get(key) for key in KEYS} == KEYS
    orders.put("more", "new")
    _demand_kept(cluster, {"orders": KEYS | {"more": "new"}}, 3)


@pytest.mark.thorough
def test_a_lone_member_does_not_get_the_log(cluster: Cluster, network: Network) -> None:
    orders = _map(cluster, "orders")
    orders.put_all(KEYS)
    cluster.members[2].kill()
    cluster.agents[2].kill()
    network.split([3], [1, 2])
    until("the others continue", lambda: cluster.members[0].ask("members") == 2)
    cluster.agents[2].launch()
    alone = cluster._new_member(2)
    alone.launch()
    cluster.agents[2].wait()
    alone.wait()
    client = connect([alone.address], cluster.name)
    with pytest.raises(HazelcastError, match="LogUnavailable"):
        client.get_map("orders").blocking().put("mine", "alone")
    client.shutdown()
    healthy = connect([each.address for each in cluster.members[:2]], cluster.name)
    for key in list(KEYS)[:50]:
        healthy.get_map("orders").blocking().put(key, "later")
    healthy.shutdown()
    network.heal()
    until("all are one cluster", lambda: cluster.members[0].ask("members") == 3, 120, 0.1)
    _demand_kept(cluster, {"orders": KEYS | dict.fromkeys(list(KEYS)[:50], "later")}, 3)
