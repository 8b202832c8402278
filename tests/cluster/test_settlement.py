"""After members were lost, or left with an outcome unknown, clients read what is in the log, and
the next restart restores the same."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hazelcast.errors import HazelcastError
from hazelcast.proxy.map import BlockingMap

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.network import Network
from tests.cluster.waiting import until
from tests.kit.effort import thorough
from tests.kit.silent import SILENT, newest, wait_taken

Start = Callable[..., Cluster]
RESTORED = re.compile(
    r'map "orders": \d+ of \d+ partition\(s\) (?:restored|settled) from .*: [\d,]+ entries '
    r"compared, ([\d,]+) set"
)


@pytest.fixture
def start(tmp_path: Path, classpath: str) -> Iterator[Start]:
    """A cluster of `count` members with their agents. `module` replaces the first agent's command;
    `properties` are the map store's."""
    with contextlib.ExitStack() as stack:

        def begin(
            count: int,
            *,
            module: str = "",
            properties: Mapping[str, str] | None = None,
            member_properties: Mapping[str, str] | None = None,
            store: Mapping[str, Any] | None = None,
            network: Network | None = None,
        ) -> Cluster:
            def maps(endpoint: str) -> Mapping[str, Any]:
                # A busy machine may need longer than a member waits by default.
                return {
                    "default": logged_map(
                        endpoint, {"settle-timeout-ms": "60000", **(properties or {})}, store=store
                    )
                }

            cluster = stack.enter_context(
                Cluster(
                    tmp_path,
                    classpath,
                    maps,
                    network=network,
                    properties=dict(member_properties or {}),
                )
            )
            cluster.agents[0].launch(module)
            cluster.start(count)
            return cluster

        yield begin


def contents(cluster: Cluster, name: str) -> dict[Any, Any]:
    return dict(_map(cluster, name).entry_set())


def after_a_restart(cluster: Cluster, name: str, count: int) -> dict[Any, Any]:
    cluster.kill_everything()
    cluster.start(count)
    return contents(cluster, name)


def _map(cluster: Cluster, name: str) -> BlockingMap:
    return cluster.client().get_map(name).blocking()


@thorough
@pytest.mark.parametrize(
    "offload",
    [False, pytest.param(True, marks=pytest.mark.thorough)],
    ids=["offload off", "offload on"],
)
def test_an_owner_that_died_before_it_answered(start: Start, offload: bool) -> None:
    """Its agent has logged changes that neither a client nor a backup knows."""
    cluster = start(2, module=SILENT, properties={"timeout-ms": "5000"}, store={"offload": offload})
    orders = _map(cluster, "orders")
    orders.put_all({f"k{number}": "old" for number in range(60)})
    cluster.wait_safe(2)
    owner = cluster.agents[0]
    before = (owner.stat(5000) or {})["appends"]
    with ThreadPoolExecutor(30) as callers:
        unheard = [
            callers.submit(orders.put, f"k{number}", f"unanswered-{number}") for number in range(30)
        ]
        wait_taken(owner, before)
        cluster.members[0].kill()
        logged = newest(cluster, "orders")
        for each in unheard:
            with contextlib.suppress(HazelcastError):
                each.result()
    assert any(value != "old" for value in logged.values())
    assert {key: orders.get(key) for key, value in logged.items() if value != "old"} == {
        key: value for key, value in logged.items() if value != "old"
    }
    until(
        "no outcome is unknown",
        lambda: contents(cluster, "orders") == newest(cluster, "orders"),
        60,
    )
    held = contents(cluster, "orders")
    assert after_a_restart(cluster, "orders", 2) == held


@pytest.mark.thorough
def test_changes_that_were_acknowledged_without_their_backup(start: Start) -> None:
    """The network between owner and backup is cut; the owner answers after the backup's time-out,
    and dies."""
    with Network() as network:
        # Members that cannot connect to each other for a moment are not split.
        waits = {
            "hazelcast.operation.backup.timeout.millis": "1000",
            "hazelcast.connection.monitor.max.faults": "10000",
        }
        cluster = start(2, network=network, member_properties=waits)
        orders = _map(cluster, "orders")
        orders.put_all({f"k{number}": "old" for number in range(80)})
        cluster.wait_safe(2)
        network.cut([(1, 2)])
        with ThreadPoolExecutor(80) as callers:
            list(callers.map(lambda number: orders.put(f"k{number}", f"new-{number}"), range(40)))
            list(callers.map(lambda number: orders.remove(f"k{number}"), range(40, 60)))
        cluster.members[0].kill()
        network.heal()
        expected = {
            f"k{number}": f"new-{number}" if number < 40 else "old"
            for number in [*range(40), *range(60, 80)]
        }
        for number in range(80):
            assert orders.get(f"k{number}") == expected.get(f"k{number}")
        assert contents(cluster, "orders") == expected
        assert not orders.contains_key("k41")
        assert orders.put_if_absent("k1", "mine") == "new-1"
        assert after_a_restart(cluster, "orders", 2) == expected


@pytest.mark.thorough
def test_two_of_three_members_die_at_once(start: Start) -> None:
    """Partitions whose owner and backup are lost are read from the log; keys that are removed then
    stay removed."""
    cluster = start(3)
    orders = _map(cluster, "orders")
    orders.put_all({number: f"v{number}" for number in range(600)})
    cluster.wait_safe(3)
    victims = cluster.members[:2]
    for member in victims:
        member.send(signal.SIGKILL)
    for member in victims:
        member.kill()
    # A client that has not noticed yet sends a change to a lost member: its outcome is unknown, not
    # wrong.
    orders = _map(cluster, "orders")
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(orders.remove, range(0, 600, 5))) == [
            f"v{number}" for number in range(0, 600, 5)
        ]
        assert list(callers.map(orders.get, range(600))) == [
            None if number % 5 == 0 else f"v{number}" for number in range(600)
        ]
    expected = {number: f"v{number}" for number in range(600) if number % 5}
    assert contents(cluster, "orders") == expected
    assert orders.size() == len(expected)
    assert after_a_restart(cluster, "orders", 3) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", [False, True], ids=["its agent answers", "its agent is frozen"])
def test_a_member_that_leaves_with_an_outcome_unknown(start: Start, frozen: bool) -> None:
    """What its agent has logged is in memory of the others, whether or not it could be asked in
    time."""
    cluster = start(
        2, module=SILENT, properties={"timeout-ms": "2000", "settle-timeout-ms": "5000"}
    )
    orders = _map(cluster, "orders")
    orders.put_all({f"k{number}": "old" for number in range(40)})
    cluster.wait_safe(2)
    agent = cluster.agents[0]
    before = (agent.stat(5000) or {})["appends"]
    with ThreadPoolExecutor(20) as callers:
        unheard = [
            callers.submit(orders.put, f"k{number}", f"unanswered-{number}") for number in range(20)
        ]
        wait_taken(agent, before)
        if frozen:
            agent.send(signal.SIGSTOP)
        for each in unheard:
            with contextlib.suppress(HazelcastError):
                each.result()
    cluster.members[0].leave()
    if frozen:
        agent.send(signal.SIGCONT)
    assert any(value != "old" for value in newest(cluster, "orders").values())
    until(
        "no outcome is unknown",
        lambda: contents(cluster, "orders") == newest(cluster, "orders"),
        60,
    )
    held = contents(cluster, "orders")
    assert after_a_restart(cluster, "orders", 2) == held


@pytest.mark.thorough
@pytest.mark.parametrize("offload", [False, True], ids=["offload off", "offload on"])
def test_evicted_keys_are_read_from_the_log(start: Start, offload: bool) -> None:
    """Also after the partition moved to another member."""
    cluster = start(2, store={"offload": offload})
    orders = _map(cluster, "orders")
    orders.put_all({number: f"v{number}" for number in range(100)})
    for number in range(50):
        assert orders.evict(number)
    orders.evict_all()
    assert orders.get(0) == "v0"
    assert orders.contains_key(1)
    assert orders.put_if_absent(2, "mine") == "v2"
    assert orders.remove(3) == "v3"
    assert orders.replace(4, "new") == "v4"
    assert orders.replace_if_same(5, "v5", "new")
    assert orders.remove_if_same(6, "v6")
    assert orders.get_all([7, 8, 3]) == {7: "v7", 8: "v8"}
    orders.evict_all()
    cluster.members[0].leave()
    expected = {number: f"v{number}" for number in range(100) if number not in (3, 6)} | {
        4: "new",
        5: "new",
    }
    got = {number: value for number in range(100) if (value := orders.get(number)) is not None}
    assert got == expected
    assert after_a_restart(cluster, "orders", 2) == expected


@pytest.mark.thorough
def test_each_member_restores_its_own_partitions_from_its_own_agent(start: Start) -> None:
    cluster = start(3)
    keys = {f"key-{number}": f"value-{number}" for number in range(3000)}
    _map(cluster, "orders").put_all(keys)
    assert after_a_restart(cluster, "orders", 3) == keys

    def shares() -> list[int]:
        found = [RESTORED.findall(member.log.read_text()) for member in cluster.members]
        return [sum(int(loaded.replace(",", "")) for loaded in each) for each in found]

    # A member logs this after its entries can be read. The first lifetime found nothing.
    until(f"each key is loaded once; {shares()}", lambda: sum(shares()) == len(keys))
    assert min(shares()) > len(keys) / 10, shares()
