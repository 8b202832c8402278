"""A transaction of several changes is in effect as a whole or not at all, on live maps and after a
restart, whichever process fails in the middle of its commit."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hazelcast
import pytest
from hazelcast.errors import HazelcastError
from hazelcast.proxy.map import BlockingMap
from hazelcast.transaction import ONE_PHASE, TWO_PHASE

from imap_wal.errors import NotAppended, OutcomeUnknown
from imap_wal.hazelcast import error_of
from tests.cluster.cluster import Cluster, connect
from tests.cluster.configuration import logged_map
from tests.cluster.waiting import until
from tests.kit.disks import needed_disk
from tests.kit.effort import thorough

SILENT = "tests.cluster.silent_agent"
BEFORE = {f"k{number}": "old" for number in range(60)}
AFTER = dict.fromkeys(list(BEFORE)[:50], "new") | {"more": "unanswered-1"}
"""Fifty keys are set, ten are removed, one is added. A silent agent does not answer its value."""


class Scene:
    """Members with an agent each. The first member commits the transactions."""

    def __init__(self, folder: Path, classpath: str, members: int = 3, **properties: str) -> None:
        def maps(endpoint: str) -> Mapping[str, Any]:
            patient = {"settle-timeout-ms": "60000", "timeout-ms": "5000", **properties}
            offloading = logged_map(endpoint, patient, store={"offload": True})
            return {"default": logged_map(endpoint, patient), "stock-*": offloading}

        self._members = members
        self.cluster = Cluster(folder, classpath, maps)
        self._reader: hazelcast.HazelcastClient | None = None

    def start(self, module: str = "") -> None:
        self.cluster.agents[0].launch(module)
        self.cluster.start(self._members)
        self.cluster.wait_safe(self._members)

    def fill(self, *names: str) -> None:
        for name in names:
            self.map(name).put_all(BEFORE)
        self.cluster.wait_safe(self._members)

    def map(self, name: str) -> BlockingMap:
        """The map, by a client of the last member, which no test kills."""
        if self._reader is None:
            self._reader = self._client(self._members - 1)
        return self._reader.get_map(name).blocking()

    def _client(self, member: int) -> hazelcast.HazelcastClient:
        """A client of this member alone."""
        address = self.cluster.members[member].address
        return self.cluster.keep(
            connect([address], self.cluster.name, smart_routing=False, invocation_timeout=60)
        )

    def contents(self, name: str) -> dict[Any, Any]:
        return dict(self.map(name).entry_set())

    def commit(self, name: str, kind: int = TWO_PHASE, to: Mapping[str, str] = AFTER) -> None:
        """The whole transaction, by the first member."""
        _commit(self._client(0), name, kind, to)

    def placed(self) -> int:
        """Keys whose change has a place in the order, while the owner does not know the outcome."""
        return sum(member.ask("placed") for member in self.cluster.running)

    def restart(self) -> None:
        """After everything was killed."""
        self.cluster.kill_everything()
        self._reader = None
        self.cluster.start(self._members)

    def restarted(self, name: str) -> dict[Any, Any]:
        self.restart()
        return self.contents(name)


def _commit(client: hazelcast.HazelcastClient, name: str, kind: int, to: Mapping[str, str]) -> None:
    transaction = client.new_transaction(timeout=60, durability=1, type=kind)
    transaction.begin()
    changed = transaction.get_map(name)
    for key in BEFORE.keys() - to.keys():
        changed.remove(key)
    for key, value in to.items():
        changed.set(key, value)
    transaction.commit()


@pytest.fixture
def scene(tmp_path: Path, classpath: str) -> Iterator[Scene]:
    scene = Scene(tmp_path, classpath)
    with scene.cluster:
        yield scene


@pytest.fixture
def pair(tmp_path: Path, classpath: str) -> Iterator[Scene]:
    """Two members, for tests in which only agents fail."""
    scene = Scene(tmp_path, classpath, 2)
    with scene.cluster:
        yield scene


@contextlib.contextmanager
def frozen(child: Any) -> Iterator[None]:
    child.send(signal.SIGSTOP)
    try:
        yield
    finally:
        child.send(signal.SIGCONT)


KINDS = {"two-phases": TWO_PHASE, "one-phase": ONE_PHASE}
OFFLOADED = {f"stock-{name}": kind for name, kind in KINDS.items()}
"""Maps with offload, and how their transactions are committed."""


@thorough
def test_the_agent_of_one_owner_is_dead(pair: Scene) -> None:
    """Only the agent of the member that commits is needed."""
    pair.start()
    kinds = KINDS | OFFLOADED
    pair.fill(*kinds)
    pair.cluster.agents[1].kill()
    for name, kind in kinds.items():
        pair.commit(name, kind)
        assert pair.contents(name) == AFTER
        assert pair.placed() == 0
    pair.cluster.agents[1].start()
    for name in kinds:
        pair.map(name).set("k1", "later")
    pair.restart()
    for name in kinds:
        assert pair.contents(name) == {**AFTER, "k1": "later"}, name


@pytest.mark.thorough
def test_the_agent_of_the_transactions_member_is_dead(pair: Scene) -> None:
    pair.start()
    pair.fill(*KINDS)
    pair.cluster.agents[0].kill()
    for name, kind in KINDS.items():
        with pytest.raises(HazelcastError) as caught:
            pair.commit(name, kind)
        assert isinstance(error_of(caught.value), NotAppended)
        assert pair.contents(name) == BEFORE
    pair.cluster.agents[0].start()
    for name in KINDS:
        # One that was to be set and one that was to be removed: neither is locked.
        for key in ("k0", "k55"):
            pair.map(name).set(key, "later")
    assert pair.placed() == 0
    pair.restart()
    for name in KINDS:
        assert pair.contents(name) == {**BEFORE, "k0": "later", "k55": "later"}, name


@pytest.mark.thorough
def test_a_logged_transaction_without_an_answer(pair: Scene) -> None:
    """The caller gets `OutcomeUnknown`, and the transaction counts."""
    pair.start()
    pair.fill("orders")
    pair.cluster.agents[0].kill()
    pair.cluster.agents[0].start(SILENT)
    with pytest.raises(HazelcastError) as caught:
        pair.commit("orders")
    assert isinstance(error_of(caught.value), OutcomeUnknown)
    pair.cluster.agents[0].kill()
    pair.cluster.agents[0].start()
    until("memory has the transaction", lambda: pair.contents("orders") == AFTER)
    until("no key waits", lambda: pair.placed() == 0)
    assert pair.restarted("orders") == AFTER


@pytest.mark.thorough
def test_the_member_dies_after_its_agent_has_logged_the_transaction(scene: Scene) -> None:
    """Its locks expire with its time-out, 60 s; until then memory has the former values."""
    scene.start()
    scene.fill("orders")
    agent = scene.cluster.agents[0]
    agent.kill()
    agent.start(SILENT)
    before = (agent.stat(5000) or {})["appends"]
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(scene.commit, "orders")
        until(
            "the transaction is in the log", lambda: (agent.stat() or {}).get("appends", 0) > before
        )
        assert agent.stat(5000)  # it has committed what it received before it answers this
        scene.cluster.members[0].kill()
        with contextlib.suppress(HazelcastError):
            committing.result()
    until("memory has the transaction", lambda: scene.contents("orders") == AFTER, 120)
    scene.map("orders").set("k1", "later")
    assert scene.restarted("orders") == {**AFTER, "k1": "later"}


@pytest.mark.thorough
def test_the_member_dies_before_its_agent_has_logged_the_transaction(scene: Scene) -> None:
    scene.start()
    scene.fill("orders")
    agent = scene.cluster.agents[0]
    with ThreadPoolExecutor(1) as pool:
        agent.send(signal.SIGSTOP)
        committing = pool.submit(scene.commit, "orders")
        until("all keys have a place", lambda: scene.placed() > 0)
        scene.cluster.members[0].kill()
        agent.kill()
        with contextlib.suppress(HazelcastError):
            committing.result()
    until("no key waits", lambda: scene.placed() == 0, 120)
    assert scene.contents("orders") == BEFORE
    scene.map("orders").set("k1", "later")
    assert scene.restarted("orders") == {**BEFORE, "k1": "later"}


@pytest.mark.thorough
def test_an_owner_dies_while_the_transaction_is_logged(tmp_path: Path, classpath: str) -> None:
    patient = {"timeout-ms": "60000", "agent-timeout-ms": "60000"}
    scene = Scene(tmp_path, classpath, 3, **patient)
    with scene.cluster, ThreadPoolExecutor(1) as pool:
        scene.start()
        scene.fill("orders")
        with frozen(scene.cluster.agents[0]):
            committing = pool.submit(scene.commit, "orders")
            until("all keys have a place", lambda: scene.placed() == 61)
            scene.cluster.members[1].kill()
        with contextlib.suppress(HazelcastError):
            committing.result()
        until("no key waits", lambda: scene.placed() == 0, 120)
        held = scene.contents("orders")
        assert held in (BEFORE, AFTER)
        assert scene.restarted("orders") == held


@pytest.mark.thorough
def test_a_later_change_of_a_key_is_not_overwritten(pair: Scene) -> None:
    """The agent hangs, so the outcome is not known, and the transaction's locks have been
    released."""
    pair.start()
    pair.fill("orders")
    with ThreadPoolExecutor(2) as pool:
        with frozen(pair.cluster.agents[0]):
            with pytest.raises(HazelcastError) as caught:
                pool.submit(pair.commit, "orders").result()
            assert isinstance(error_of(caught.value), OutcomeUnknown)
            later = [pool.submit(pair.map("orders").set, key, "later") for key in ("k1", "k55")]
        for each in later:
            each.result()
    until("no key waits", lambda: pair.placed() == 0)
    changed = {"k1": "later", "k55": "later"}

    def held() -> dict[Any, Any]:
        contents = pair.contents("orders")
        assert contents.items() >= changed.items()
        return contents

    until("all or none", lambda: held() in ({**BEFORE, **changed}, {**AFTER, **changed}))
    contents = held()
    assert pair.restarted("orders") == contents


@pytest.mark.thorough
def test_the_disk_of_the_transactions_member_is_full(tmp_path: Path, classpath: str) -> None:
    nodes = tmp_path / "logs" / "default" / "dev" / "nodes"
    nodes.mkdir(parents=True)
    with needed_disk(nodes / "node-1") as disk:
        scene = Scene(tmp_path, classpath)
        with scene.cluster:
            scene.start()
            scene.fill("orders")
            filler = disk / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as full:
                while full.write(bytes(4096)):
                    pass
            before, after, error = BEFORE, BEFORE, None
            for number in range(100):  # until what the log had reserved is used up
                before, after = after, dict.fromkeys(AFTER, f"{number}" * 2000)
                try:
                    scene.commit("orders", to=after)
                except HazelcastError as caught:
                    error = error_of(caught)
                    break
            assert isinstance(error, NotAppended | OutcomeUnknown)
            filler.unlink()
            scene.cluster.agents[0].wait()
            until("no key waits", lambda: scene.placed() == 0)
            held = scene.contents("orders")
            assert held == before or (held == after and isinstance(error, OutcomeUnknown))
            assert scene.restarted("orders") == held
