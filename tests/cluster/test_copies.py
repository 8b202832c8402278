"""Each change in the logs of two nodes: agents die, freeze and return, a node is lost
permanently."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hazelcast.proxy.map import BlockingMap

from imap_wal.context import open_context
from imap_wal.entry import KEY, MAP, ORDER, is_shared
from imap_wal.read.cluster import ClusterLog
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.contents import contents, refusal_for_a_disk
from tests.cluster.load import PAUSE_S
from tests.cluster.processes import Agent
from tests.cluster.waiting import until

NAME = "orders"
GAP_S = 5.0
"""No write may take longer, on a machine with much other work. The tests print the longest. The
goal is 1 s: docs/how-to/copies.md has what was measured."""


def with_copies(
    folder: Path, classpath: str, *, own_disks: bool = False, **properties: Any
) -> Cluster:
    agents = ",".join(f"ipc://{folder}/node-{number}.sock" for number in (1, 2, 3))
    some = {"copies": "2", "copy-agents": agents, **properties}
    return Cluster(
        folder, classpath, lambda own: {"default": logged_map(own, some)}, own_disks=own_disks
    )


@pytest.fixture
def cluster(tmp_path: Path, classpath: str) -> Iterator[Cluster]:
    with with_copies(tmp_path, classpath) as made:
        made.start(3)
        yield made


class Writer:
    """Puts keys in a thread of its own, one after the other, and expects each put to succeed."""

    def __init__(self, orders: BlockingMap[Any, Any], prefix: str) -> None:
        self._orders, self._prefix = orders, prefix
        self.put: dict[str, int] = {}
        self.longest_s = 0.0
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            number = 0
            while not self._stopping.is_set():
                began = time.monotonic()
                self._orders.set(f"{self._prefix}{number % 300}", number)
                self.put[f"{self._prefix}{number % 300}"] = number
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                number += 1
                self._stopping.wait(PAUSE_S)
        except BaseException as error:
            self._error = error

    def wait(self, more: int) -> None:
        """Wait until this many more puts were acknowledged."""
        before = self.longest_s, sum(1 for _ in self.put), max(self.put.values(), default=-1)

        def done() -> bool:
            if self._error is not None:
                raise AssertionError("a put failed") from self._error
            return max(list(self.put.values()), default=-1) >= before[2] + more

        until(f"{more} puts", done)

    def stop(self) -> dict[str, int]:
        self._stopping.set()
        self._thread.join(60)
        if self._error is not None:
            raise AssertionError("a put failed") from self._error
        print(f"longest wait of a put, {self._prefix!r}: {self.longest_s:.3f} s")
        assert self.longest_s < GAP_S
        return self.put


def logs_of(cluster: Cluster) -> dict[tuple[int, ...], set[str]]:
    """Order of a change → the nodes whose log has it, for the newest change of each key."""
    log = ClusterLog(open_context(cluster.url), "default", "dev")
    newest: dict[bytes, tuple[int, ...]] = {}
    found: dict[tuple[int, ...], set[str]] = {}
    for changes in log.changes():
        for row in changes.rows:
            if row[MAP] == NAME:
                newest[row[KEY]] = max(newest.get(row[KEY], ()), row[ORDER])
                found.setdefault(row[ORDER], set()).add(changes.node)
    return {order: found[order] for order in newest.values()}


def appends(agent: Agent) -> int:
    stat = agent.stat(5000)
    assert stat is not None
    return int(stat["appends"])


def forget(cluster: Cluster, gone: Agent) -> None:
    """Delete the log of a node whose agent does not run, and continue without the node."""
    root = Path(cluster.url.removeprefix("file://"))
    shutil.rmtree(root / "default" / "dev" / "nodes" / gone.node)
    command = ["forget-node", cluster.url, "--node", gone.node, "--lose", "--yes"]
    done = subprocess.run(
        [sys.executable, "-m", "rewrite_cli.cli", *command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    cluster.agents.remove(gone)


@pytest.mark.thorough
def test_a_node_gone_for_good_loses_nothing(cluster: Cluster) -> None:
    """The agent of a node is killed under load, and its log deleted. Then everything is killed and
    started without it."""
    orders = cluster.client().get_map(NAME).blocking()
    writers = [Writer(orders, prefix) for prefix in "abc"]
    for writer in writers:
        writer.wait(300)
    gone = cluster.agents[2]
    gone.kill()
    for writer in writers:
        writer.wait(300)
    expected = {key: value for writer in writers for key, value in writer.stop().items()}
    assert len(expected) == 900
    copied = logs_of(cluster)
    assert len(copied) == 900 and all(is_shared(order) for order in copied)  # type: ignore[arg-type]
    assert all(len(nodes) > 1 for nodes in copied.values())
    assert dict(orders.entry_set()) == expected
    cluster.kill_everything()

    forget(cluster, gone)
    cluster.start(2)
    found = cluster.client().get_map(NAME).blocking()
    restored = dict(until("the map is there", lambda: found.entry_set()))
    lost = {key for key, value in expected.items() if restored.get(key) != value}
    print(f"{len(lost)} of {len(expected)} lost")
    assert not lost and restored == expected
    found.set("after", 1)


def lose_disk(cluster: Cluster, number: int) -> None:
    """Remove the agent and its disk permanently."""
    agent = cluster.agents[number - 1]
    agent.kill()
    shutil.rmtree(cluster.folder / f"disk-{agent.node}")


@pytest.mark.thorough
def test_a_start_without_one_of_three_disks_loses_nothing(tmp_path: Path, classpath: str) -> None:
    """No disk can see another one, and nothing was uploaded."""
    with with_copies(tmp_path, classpath, own_disks=True) as cluster:
        cluster.start(3)
        expected = {f"k{n}": n for n in range(300)}
        cluster.client().get_map(NAME).blocking().put_all(expected)
        cluster.kill_everything()
        lose_disk(cluster, 3)
        assert not list((tmp_path / "logs").rglob("*.wal"))
        cluster.start(2, "wait-most")
        assert contents(cluster, NAME) == expected


@pytest.mark.thorough
def test_the_loss_of_an_own_disk_loses_nothing(tmp_path: Path, classpath: str) -> None:
    """Disks that cannot see each other. An agent and its disk are lost under load, and everything
    is started without them, and with an empty disk."""
    with with_copies(tmp_path, classpath, own_disks=True) as cluster:
        cluster.start(3)
        orders = cluster.client().get_map(NAME).blocking()
        writers = [Writer(orders, prefix) for prefix in "abc"]
        for writer in writers:
            writer.wait(300)
        lose_disk(cluster, 3)
        assert not list((tmp_path / "logs").rglob("*.wal")), "nothing was uploaded"
        for writer in writers:
            writer.wait(300)
        expected = {key: value for writer in writers for key, value in writer.stop().items()}
        assert contents(cluster, NAME) == expected and len(expected) == 900
        cluster.kill_everything()

        cluster.start(2, "wait-most")
        restored = contents(cluster, NAME)
        lost = {key for key, value in expected.items() if restored.get(key) != value}
        print(f"{len(lost)} of {len(expected)} lost")
        assert restored == expected
        stat = cluster.agents[0].stat(5000) or {}
        assert (
            not stat["left_out"] and "own disk of this node" in stat["read_from_copies"]["node-3"]
        )

        # Its node begins again with an empty disk: `recovery_policy` is full.
        cluster.join(3)
        assert "other logs have each acknowledged change" in cluster.agents[2].log.read_text()
        cluster.client().get_map(NAME).blocking().put_all({f"d{n}": n for n in range(300)})
        expected |= {f"d{n}": n for n in range(300)}
        assert contents(cluster, NAME) == expected

        # A machine is lost while the cluster runs: its partitions are settled from the copies.
        cluster.members[2].kill()
        lose_disk(cluster, 3)
        began = time.monotonic()
        assert contents(cluster, NAME) == expected
        print(f"settled after {time.monotonic() - began:.3f} s")


@pytest.mark.thorough
def test_a_second_lost_disk_stops_restores(tmp_path: Path, classpath: str) -> None:
    """Changes with a copy on a disk that was lost have only one, until they are uploaded."""
    with with_copies(tmp_path, classpath, own_disks=True) as cluster:
        cluster.start(3)
        cluster.client().get_map(NAME).blocking().put_all({f"k{n}": n for n in range(300)})
        lose_disk(cluster, 3)
        cluster.agents[2].start()
        cluster.kill_everything()
        lose_disk(cluster, 1)
        cluster.agents.reverse()
        cluster.start(2, "wait-most")
        text = refusal_for_a_disk(cluster, NAME)
        assert "node 'node-1': all entries in segments" in text, text


@pytest.mark.thorough
def test_every_key_stays_writable_while_one_agent_is_away(cluster: Cluster) -> None:
    """One agent after the other is killed, or frozen, and returns."""
    writer = Writer(cluster.client().get_map(NAME).blocking(), "k")
    writer.wait(300)
    for agent in cluster.agents:
        agent.kill()
        writer.wait(600)
        agent.start()
        before = appends(agent)
        until("it is used again", lambda agent=agent, before=before: appends(agent) > before)
    frozen = cluster.agents[1]
    frozen.send(signal.SIGSTOP)
    writer.wait(600)
    frozen.send(signal.SIGCONT)
    writer.wait(300)
    expected = writer.stop()
    assert dict(cluster.client().get_map(NAME).blocking().entry_set()) == expected
    copied = logs_of(cluster)
    assert all(len(nodes) > 1 for nodes in copied.values())
    cluster.kill_everything()
    cluster.start(3)
    found = cluster.client().get_map(NAME).blocking()
    assert dict(until("the map is there", lambda: found.entry_set())) == expected


@pytest.mark.thorough
def test_one_log_is_enough_if_acks_say_so(tmp_path: Path, classpath: str) -> None:
    with with_copies(tmp_path, classpath, acks="1") as cluster:
        cluster.start(3)
        writer = Writer(cluster.client().get_map(NAME).blocking(), "k")
        writer.wait(300)
        for agent in cluster.agents[1:]:
            agent.kill()
        writer.wait(600)
        expected = writer.stop()
        cluster.kill_everything()
        cluster.start(3)
        found = cluster.client().get_map(NAME).blocking()
        assert dict(until("the map is there", lambda: found.entry_set())) == expected


def orders_of(cluster: Cluster) -> dict[str, set[tuple[int, ...]]]:
    """Node → the orders of all changes in its log."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for changes in ClusterLog(open_context(cluster.url), "default", "dev").changes():
        some = found.setdefault(changes.node, set())
        some |= {row[ORDER] for row in changes.rows if row[MAP] == NAME}
    return found


@pytest.mark.thorough
def test_a_returned_agent_gets_what_it_lacks(tmp_path: Path, classpath: str) -> None:
    """With acks = 1, one of two agents is killed under load and returns. Its log gets what was
    acknowledged meanwhile: nothing is missing when the other node is lost."""
    agents: dict[str, Any] = {
        "copy-agents": ",".join(f"ipc://{tmp_path}/node-{number}.sock" for number in (1, 2))
    }
    with with_copies(tmp_path, classpath, acks="1", **agents) as cluster:
        cluster.start(2)
        orders = cluster.client().get_map(NAME).blocking()
        writers = [Writer(orders, prefix) for prefix in "ab"]
        for writer in writers:
            writer.wait(300)
        cluster.agents[1].kill()
        for writer in writers:
            writer.wait(600)
        lacks = {node: len(found) for node, found in orders_of(cluster).items()}
        assert lacks["node-2"] < lacks["node-1"] - 900, lacks
        cluster.agents[1].start()
        for writer in writers:
            writer.wait(100)
        expected = {key: value for writer in writers for key, value in writer.stop().items()}

        def equal() -> bool:
            found = orders_of(cluster)
            return found["node-1"] == found["node-2"]

        until("both logs have all changes", equal)
        cluster.kill_everything()
        forget(cluster, cluster.agents[0])
        cluster.start(1)
        assert contents(cluster, NAME) == expected


def acknowledged(writers: list[Writer]) -> int:
    return sum(max(list(writer.put.values()), default=-1) + 1 for writer in writers)


@pytest.mark.thorough
def test_a_returned_disk_has_everything_alone(tmp_path: Path, classpath: str) -> None:
    """With copies = 3 and acks = 2 on own disks, an agent is killed under load and returns. Then
    both other disks are lost."""
    agents = ",".join(f"ipc://{tmp_path}/node-{number}.sock" for number in (1, 2, 3))
    some = {"copies": "3", "acks": "2", "copy-agents": agents}
    with Cluster(
        tmp_path,
        classpath,
        lambda own: {"default": logged_map(own, some)},
        own_disks=True,
        recovery_policy="full",
    ) as cluster:
        cluster.start(3)
        orders = cluster.client().get_map(NAME).blocking()
        writers = [Writer(orders, prefix) for prefix in "abc"]
        for writer in writers:
            writer.wait(200)
        cluster.agents[2].kill()
        before = acknowledged(writers) + len(writers)  # of each, one may have no answer yet
        for writer in writers:
            writer.wait(400)
        orders.put_all({f"only{number}": number for number in range(300)})
        cluster.agents[2].start()
        for writer in writers:
            writer.wait(100)
        expected = {key: value for writer in writers for key, value in writer.stop().items()}
        expected |= {f"only{number}": number for number in range(300)}
        missing = acknowledged(writers) + 300 - before
        until("it has what it lacked", lambda: appends(cluster.agents[2]) >= missing)
        cluster.kill_everything()

        assert not list((tmp_path / "logs").rglob("nodes/node-[12]/wal/*.wal"))
        lose_disk(cluster, 1)
        lose_disk(cluster, 2)
        for agent in cluster.agents:
            agent.configure(recovery_policy="partial")
        cluster.agents.reverse()
        cluster.start(2, "wait-most")
        assert contents(cluster, NAME) == expected
