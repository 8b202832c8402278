"""Two clusters, one after the other, on one log: the first one is frozen, the second one restores
and continues, and then the rest of what the first one has sent arrives. It is refused, or void;
after a restart, the map has what the second one acknowledged."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import hazelcast
import pytest
from hazelcast.errors import HazelcastError

from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.cluster.processes import Child
from tests.cluster.waiting import until
from tests.kit.effort import thorough

COUNT = 300
NAME = "through-late"
"""With read-through, keys that are not in memory are read from the log. Late bytes would be read
too if they counted."""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("late")


def cluster(folder: Path, classpath: str, timeout_ms: int, **more: Any) -> Cluster:
    properties = {
        "timeout-ms": f"{timeout_ms}",
        "connect-timeout-ms": "1000",
        "read-through": "true",
    }
    return Cluster(
        folder,
        classpath,
        lambda endpoint: {NAME: logged_map(endpoint, properties)},
        offsets_ms=(0, 0),
        lifetime_timeout_s=0,
        segment_bytes=1 << 20,
        **more,
    )


def send(children: Iterable[Child], number: signal.Signals) -> None:
    for child in children:
        child.send(number)


def put_without_waiting(
    client: hazelcast.HazelcastClient, word: str, count: int
) -> dict[str, Future[Any]]:
    """One change for each key."""
    entries = client.get_map(NAME)
    return {
        f"{word}-{number}": entries.set(f"{word}-{number}", f"said by {word} {number}")
        for number in range(count)
    }


def outcomes(changes: dict[str, Any]) -> dict[str, str]:
    """Key → why it failed; "" for an acknowledged one."""
    found = {}
    for key, change in changes.items():
        try:
            change.result()
            found[key] = ""
        except HazelcastError as error:
            found[key] = str(error)
    return found


class Second:
    """The cluster that restores, and what its map must contain: what it restored and what it
    acknowledged."""

    def __init__(self, cluster: Cluster, members: int) -> None:
        self.cluster = cluster
        cluster.start(members)
        self.map = cluster.client().get_map(NAME).blocking()
        self.restored = dict(self.map.entry_set())
        self.acknowledged = dict(self.restored)

    def write(self, *keys: str) -> None:
        """No change of it may be refused, whatever the first cluster does."""
        for key in keys:
            value = f"said by the second cluster {len(self.acknowledged)}"
            self.map.set(key, value)
            self.acknowledged[key] = value

    def check(self, late: Iterable[str]) -> None:
        """In memory, in the log where memory has nothing, and after everything was killed and
        started again."""
        self.compare(late)
        self.cluster.kill_everything()
        self.cluster.start(2)
        self.map = self.cluster.client().get_map(NAME).blocking()
        self.compare(late)

    def compare(self, late: Iterable[str]) -> None:
        assert dict(self.map.entry_set()) == self.acknowledged
        keys = {*late, *self.acknowledged}
        assert {key: self.map.get(key) for key in keys} == {
            key: self.acknowledged.get(key) for key in keys
        }


@pytest.mark.thorough
def test_changes_of_a_frozen_cluster_are_restored_or_refused(folder: Path, classpath: str) -> None:
    """What was under way when the members were frozen is acknowledged only if the next cluster has
    restored it."""
    # Long time-outs: a change that is under way when the members freeze is still waited for when
    # they continue.
    with (
        cluster(folder, classpath, 60_000) as first,
        cluster(folder, classpath, 60_000, url=first.url, agents=first.agents) as then,
    ):
        first.start(2)
        client = first.client(invocation_timeout=120)
        client.get_map(NAME).blocking().set("before", "said before")
        changes = put_without_waiting(client, "early", COUNT)
        until("some are acknowledged", lambda: any(change.done() for change in changes.values()))
        send(first.members, signal.SIGSTOP)
        changes |= put_without_waiting(
            client, "late", COUNT
        )  # as far as the sockets of members that do not read
        second = Second(then, 2)
        second.write("before", "early-1", "late-1", "new")
        send(first.members, signal.SIGCONT)
        why = outcomes(changes)
        acknowledged = {key for key, text in why.items() if not text}
        assert acknowledged
        assert acknowledged <= second.restored.keys(), (
            "acknowledged by the first cluster, and not restored by the second"
        )
        assert not any(key.startswith("late") for key in acknowledged)
        refused = {key: text for key, text in why.items() if "NotAppended" in text}
        assert any("void-incarnation" in text for text in refused.values())
        assert not refused.keys() & second.restored.keys(), (
            "refused as certainly not in the log, and restored from it"
        )
        first.close_clients()
        for member in first.members:
            member.kill()
        second.write("early-2", "late-2")
        second.check(changes)


@thorough
def test_a_replaced_cluster_is_never_acknowledged_again(folder: Path, classpath: str) -> None:
    """Each of its members tries many times."""
    with (
        cluster(folder, classpath, 2000) as first,
        cluster(folder, classpath, 2000, url=first.url, agents=first.agents) as then,
    ):
        first.start(2)
        old = first.client().get_map(NAME).blocking()
        old.set("before", "said before")
        send(first.members, signal.SIGSTOP)
        second = Second(then, 2)
        send(first.members, signal.SIGCONT)
        for number in range(
            20
            # More than once, by each member: what is refused the first time may be accepted after a
            # new hello.
        ):
            with pytest.raises(HazelcastError, match="void-incarnation"):
                old.set(f"late-{number}", "said by late")
            with pytest.raises(HazelcastError, match="void-incarnation"):
                old.set("before", "said by late")
            second.write("before", f"new-{number}")
        second.check([f"late-{number}" for number in range(20)])


@pytest.mark.thorough
def test_bytes_appended_after_the_next_restore_are_void(folder: Path, classpath: str) -> None:
    """The agent itself is frozen with a change in its socket, and writes the change into the log
    long after another cluster has begun."""
    with cluster(folder, classpath, 2000) as first:
        frozen, other = first.agents
        first.start(2)
        client = first.client()
        client.get_map(NAME).blocking().set("before", "said before")
        frozen.send(signal.SIGSTOP)
        why = outcomes(put_without_waiting(client, "late", 40))
        unknown = sorted(key for key, text in why.items() if "OutcomeUnknown" in text)
        assert unknown, "nothing was on its way to the frozen agent"
        for member in first.members:
            member.kill()  # only the bytes are left of it
        first.close_clients()
        with cluster(folder, classpath, 2000, url=first.url, agents=[other]) as alone:
            second = Second(alone, 1)
            assert second.restored == {
                "before": "said before",
                **{
                    key: f"said by {key.replace('-', ' ')}" for key, text in why.items() if not text
                },
            }
            second.write("before", unknown[0])
            assert not late_bytes(folder)
            frozen.send(signal.SIGCONT)
            until("the late bytes are in the log", lambda: late_bytes(folder))
            frozen.wait()
            second.write("after", *unknown[1:2])
            alone.agents.insert(0, frozen)  # killed and started again with the other
            second.check(why)


def late_bytes(folder: Path) -> bool:
    return any(
        b"said by late" in segment.read_bytes()
        for segment in (folder / "logs").rglob("node-1/wal/*.wal")
    )
