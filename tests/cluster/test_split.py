"""A split network within one lifetime of a cluster, under load: one half continues to write, the
other one acknowledges nothing and joins again. Nothing acknowledged is lost, neither then nor after
a restart of everything."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hazelcast
import pytest

from tests.cluster.cluster import Cluster, connect
from tests.cluster.configuration import logged_map
from tests.cluster.load import PAUSE_S
from tests.cluster.network import QUICK_LOSS, Network
from tests.cluster.processes import Member
from tests.cluster.waiting import until
from tests.kit.effort import thorough

KEYS = 40
OUT = "is not in the newest view"


class Writer:
    """Writes increasing numbers to its own keys through one member. For each key it knows the last
    number that was acknowledged, and the last one that was tried."""

    def __init__(self, cluster: Cluster, member: Member) -> None:
        self.member = member
        self._cluster = cluster
        self.acknowledged: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.total = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), f"the writer through {self.member.name} hangs"

    def _run(self) -> None:
        client: hazelcast.HazelcastClient | None = None
        number = 0
        while not self._stop.is_set():
            number += 1
            key = f"{self.member.node}-{number % KEYS}"
            try:
                if client is None or not client.lifecycle_service.is_running():
                    client = connect(
                        [self.member.address],
                        self._cluster.name,
                        cluster_connect_timeout=3,
                        smart_routing=False,
                        invocation_timeout=10,
                    )
                self.tried[key] = number
                client.get_map("orders").blocking().set(key, number)
                self.acknowledged[key] = number
                self.total += 1
                self._stop.wait(PAUSE_S)
            except Exception:
                self._stop.wait(0.05)
        if client is not None:
            client.shutdown()

    def differences(self, contents: dict[str, int]) -> list[str]:
        return [
            f"{key} is {contents.get(key)}, acknowledged was {number}, tried {self.tried[key]}"
            for key, number in self.acknowledged.items()
            if not number <= contents.get(key, 0) <= self.tried[key]
        ]


@contextmanager
def members_that_can_split(
    folder: Path, classpath: str, count: int
) -> Iterator[tuple[Network, Cluster]]:
    """Members with their agents, in a network that can be cut."""
    with (
        Network() as network,
        Cluster(
            folder,
            classpath,
            lambda endpoint: {"default": logged_map(endpoint)},
            network=network,
            properties=QUICK_LOSS,
        ) as cluster,
    ):
        cluster.start(count)
        cluster.wait_safe(count)
        yield network, cluster


@contextmanager
def frozen(cluster: Cluster, nodes: Sequence[int]) -> Iterator[None]:
    for node in nodes:
        cluster.agents[node - 1].send(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            cluster.agents[node - 1].send(signal.SIGCONT)


def is_out(member: Member) -> bool:
    return OUT in member.log.read_text(errors="replace")


def contents(cluster: Cluster) -> dict[str, int]:
    client = cluster.client()
    found: Any = until(
        "the map can be read", lambda: client.get_map("orders").blocking().entry_set() or None
    )
    return dict(found)


@thorough
@pytest.mark.parametrize(
    ("winners", "losers"),
    # In the first and the last case Hazelcast may merge the winner into the losers. Then all form a
    # new cluster.
    [
        pytest.param((1,), (2, 3), marks=pytest.mark.thorough),
        pytest.param((2, 3), (1,), marks=pytest.mark.thorough),
        ((1,), (2,)),
    ],
    ids=["the smaller half claims", "the larger half claims", "one and one"],
)
def test_of_two_halves_one_acknowledges_and_nothing_acknowledged_is_lost(
    winners: tuple[int, ...], losers: tuple[int, ...], tmp_path: Path, classpath: str
) -> None:
    nodes = sorted((*winners, *losers))
    with members_that_can_split(tmp_path, classpath, len(nodes)) as (network, cluster):
        members = {member.node: member for member in cluster.members}
        writers = {node: Writer(cluster, members[node]) for node in nodes}
        until(
            "all writers are heard", lambda: all(writer.total > KEYS for writer in writers.values())
        )

        with frozen(cluster, losers):
            network.split(winners, losers)
            until(
                "the winners have a view",
                lambda: all(members[node].ask("members") == len(winners) for node in winners),
            )
            before = sum(writers[node].total for node in winners)
            until(
                "the winners write",
                lambda: sum(writers[node].total for node in winners) > before + 3 * KEYS,
            )
        until("the losers know it", lambda: all(is_out(members[node]) for node in losers))
        assert not any(is_out(members[node]) for node in winners)
        lost = {node: writers[node].total for node in losers}
        before = sum(writers[node].total for node in winners)
        until(
            "the winners continue to write",
            lambda: sum(writers[node].total for node in winners) > before + 3 * KEYS,
        )
        assert {node: writers[node].total for node in losers} == lost, (
            "a loser acknowledged a change"
        )

        network.heal()
        until(
            "all are one cluster",
            lambda: all(member.ask("members") == len(nodes) for member in cluster.members),
            120,
        )
        before_healed = {node: writers[node].total for node in nodes}
        until(
            "all write",
            lambda: all(writers[node].total > before_healed[node] + KEYS for node in nodes),
            120,
        )
        for writer in writers.values():
            writer.stop()
        live = contents(cluster)
        assert [each for writer in writers.values() for each in writer.differences(live)] == []

        cluster.kill_everything()
        cluster.start(len(nodes))
        restored = contents(cluster)
        assert [each for writer in writers.values() for each in writer.differences(restored)] == []


@pytest.mark.thorough
def test_excluded_members_continue_when_the_view_is_lost(tmp_path: Path, classpath: str) -> None:
    """The member that claimed the view is killed before the others could join it. What replaces it
    has another port, so none of the lost members ever returns."""
    with members_that_can_split(tmp_path, classpath, 3) as (network, cluster):
        winner, *losers = cluster.members
        writers = [Writer(cluster, member) for member in cluster.members]
        until("all writers are heard", lambda: all(writer.total > KEYS for writer in writers))
        with frozen(cluster, [member.node for member in losers]):
            network.split([winner.node], [member.node for member in losers])
            until("the winner has a view", lambda: winner.ask("members") == 1)
            before = writers[0].total
            until("the winner writes", lambda: writers[0].total > before + 3 * KEYS)
        until("the losers know it", lambda: all(is_out(member) for member in losers))

        winner.kill()
        network.heal()
        cluster.join(winner.node)
        before_all = [writer.total for writer in writers[1:]]
        until(
            "the others write again",
            lambda: all(
                now.total > was + KEYS for now, was in zip(writers[1:], before_all, strict=True)
            ),
            60,
        )
        for writer in writers:
            writer.stop()
        live = contents(cluster)
        assert [each for writer in writers for each in writer.differences(live)] == []
