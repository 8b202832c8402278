"""What a node's manifest promises of its segments: other logs have their acknowledged changes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.context import open_context
from imap_wal.entry import COPIES_MAX
from imap_wal.errors import MissingNode
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.segment.listing import SegmentFile, WalFolder
from imap_wal.settings import RecoveryPolicy
from tests.agent.harness import plugin, serving
from tests.kit.own_disks import own_disk_config
from tests.support import eventually

NODES = ("n1", "n2", "n3")
STEPS = (
    *("roll", "roll", "upload", "down", "lose", "start", "stop", "up", "up", "up"),
    *("late", "late", "late", "cut", "cut", "replace", "interrupt", "claim", "claim"),
)


@dataclass
class Node:
    """A node as its manifest, its disk, and the sessions that its agent has admitted."""

    name: str
    manifest: NodeManifest
    disk: dict[int, set[int]] = field(default_factory=dict)
    """Segment → its changes."""
    root: dict[int, set[int]] = field(default_factory=dict)
    sessions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Plug-in → acks, and the losses of other nodes at its last hello."""
    void: set[int] = field(default_factory=set)
    """Changes that a claim decided to ignore here."""
    current: int = 0
    up: bool = True

    def unseen(self) -> list[int]:
        return [number for number in range(1, self.manifest.newest + 1) if number not in self.root]

    def restart(self) -> None:
        self.up, self.current = True, 0
        self.sessions.clear()


class Model:
    """Agents, plug-ins with different `acks`, and disks that are lost; no processes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nodes = {
            name: Node(name, NodeManifest(directory=name, wal_id=name, address="tcp://a"))
            for name in NODES
        }
        self.cluster = ClusterManifest(nodes={name: name for name in NODES})
        self.plugins: dict[int, int] = {}
        """Plug-in → acks."""
        self.started = 0
        self.start()
        self.acknowledged: set[int] = set()
        self.changes = self.tolerated = 0
        self.slow: list[tuple[int, int, list[Node]]] = []
        """Changes that some agents have acknowledged: change, plug-in, agents that have not."""

    def start(self) -> None:
        self.started += 1
        self.plugins[self.started] = self.chance.choice((1,) + 7 * (2,) + (3,))

    def step(self) -> None:
        node = self.chance.choice(list(self.nodes.values()))
        match self.chance.choice(("append",) * 8 + STEPS):
            case "append" if self.plugins:
                self.append(self.chance.choice(list(self.plugins)))
            case "roll":
                node.current = 0
            case "upload":
                sealed = {n: each for n, each in node.disk.items() if n != node.current}
                node.root |= sealed if node.up else {}
            case "down":
                node.up = False
            case "lose":
                node.up = False
                node.disk.clear()
            case "start" if len(self.plugins) < 3:
                self.start()
            case "stop" if self.plugins:
                gone = self.chance.choice(list(self.plugins))
                del self.plugins[gone]
                for each in self.nodes.values():
                    each.sessions.pop(gone, None)
            case "up" if not node.up:
                self.open(node)
            case "late":
                self.late()
            case "cut" if not node.up and node.disk:
                self.cut(node)
            case "replace" if not node.up:
                self.replace(node)
            case "interrupt" if not node.up and not node.disk:
                self.open(node, ends=True)
            case "claim":
                self.claim()

    def append(self, plugin: int) -> None:
        """A change, sent to as many agents as the plug-in's `acks` says, or more. Some acknowledge
        it later."""
        acks, up = self.plugins[plugin], [each for each in self.nodes.values() if each.up]
        if len(up) < acks:
            return
        self.changes += 1
        chosen = self.chance.sample(up, self.chance.randint(acks, min(len(up), COPIES_MAX)))
        for node in chosen:
            if plugin not in node.sessions or self.chance.random() < 0.2:
                self.sent_again(plugin)
                node.manifest = node.manifest.with_writer(acks)
                node.sessions[plugin] = acks, self.cluster.losses_but(node.name)
        now = self.chance.choice((len(chosen), self.chance.randint(0, acks)))
        for node in chosen[:now]:
            self.log(node, self.changes)
        if now < acks:
            self.slow.append((self.changes, plugin, chosen[now:]))
        else:
            self.acknowledged.add(self.changes)

    def sent_again(self, plugin: int) -> None:
        """A plug-in greets all agents of an ensemble, or none. Appends without an outcome are then
        sent again: an acknowledgement from before does not count with one of the new ensemble."""
        self.slow = [append for append in self.slow if append[1] != plugin]

    def late(self) -> None:
        """The other agents acknowledge a change, if its ensemble is still whole for them. An agent
        that was ended has acknowledged it before, or never does."""
        while self.slow:
            change, plugin, agents = self.slow.pop(self.chance.randrange(len(self.slow)))
            if all(each.up and plugin in each.sessions for each in agents):
                for node in agents:
                    node.current *= self.chance.choice((0, 1))  # perhaps in a new segment
                    self.log(node, change)
                self.acknowledged.add(change)
                return

    def log(self, node: Node, change: int) -> None:
        if not node.current:
            node.current = node.manifest.newest + 1
            acks = min(acks for acks, _ in node.sessions.values())
            losses = min(losses for _, losses in node.sessions.values())
            manifest = node.manifest.with_copied(acks, node.current, losses)
            node.manifest = replace(node.manifest, newest=node.current, copied=manifest.copied)
            node.disk[node.current] = set()
        node.disk[node.current].add(change)

    def cut(self, node: Node) -> None:
        """A recovery cuts the end of the log on a disk, or all after a damaged segment. The agent
        logs what it gives up."""
        self.cluster = self.cluster.with_loss(node.name)
        first = self.chance.choice(sorted(node.disk))
        for number in node.disk:
            if number >= first and number not in node.root:
                kept = {each for each in node.disk[number] if self.chance.random() < 0.5}
                node.disk[number] = kept if number == first else set()
        node.restart()
        self.forgive()

    def replace(self, node: Node) -> None:
        """The disk and the folder in the root are lost, and recovery_policy is partial. All that
        it alone had is lost knowingly."""
        self.cluster = self.cluster.with_loss(node.name)
        node.disk.clear()
        node.root.clear()
        node.manifest = NodeManifest(directory=node.name, wal_id=node.name, address="tcp://a")
        node.restart()
        self.forgive()

    def forgive(self) -> None:
        """What a user gave up knowingly is not expected any more."""
        self.acknowledged &= self.known()

    def known(self) -> set[int]:
        found: set[int] = set()
        for node in self.nodes.values():
            found |= set().union(*node.root.values(), *node.disk.values()) - node.void
        return found

    def claim(self) -> None:
        """A view begins. What is slow gets no acknowledgement. The unseen changes of a node that
        is away are void if other logs have them."""
        self.slow.clear()
        covered = self.state().covered_by_copies
        for name in covered:
            node = self.nodes[name]
            node.void |= set().union(*node.disk.values()) - set().union(*node.root.values())
        self.cluster = self.cluster.with_loss(*covered)
        for node in self.nodes.values():
            node.sessions.clear()

    def open(self, node: Node, *, ends: bool = False) -> None:
        """The agent starts: with its disk, or with an empty one if the promise permits it. `ends`:
        it is interrupted after it has counted the loss."""
        unseen = node.unseen()
        if unseen and not node.disk:
            if self.cluster.acks_from(node.name, node.manifest, unseen[0]) < 2:
                return
            self.cluster = self.cluster.with_loss(node.name)
            if ends:
                return
            node.root |= {number: set() for number in unseen}
            node.restart()
            self.late()
        elif not ends:
            node.restart()

    def state(self) -> ClusterState:
        nodes, parts, missing = {}, {}, {}
        for name, node in self.nodes.items():
            seen = sorted(node.root)
            files = tuple(SegmentFile(1, number, f"{name}/{number}", 1) for number in seen)
            state = NodeState(name, name, node.manifest, WalFolder(files))
            if node.up or not node.unseen():
                nodes[name] = state
            else:
                parts[name], missing[name] = state, "away"
        return ClusterState(self.cluster, nodes, missing, parts=parts)

    def check(self) -> None:
        """A restore that is allowed lacks no acknowledged change."""
        state = self.state()
        try:
            state.demand(RecoveryPolicy.FULL)
        except MissingNode:
            return
        self.tolerated += bool(state.missing)
        found: set[int] = set()
        for name, node in self.nodes.items():
            disk = node.disk.values() if name in state.nodes else ()
            found |= set().union(*node.root.values(), *disk) - node.void
        assert self.acknowledged <= found


def test_a_restore_that_is_allowed_lacks_nothing(seed: int) -> None:
    tolerated = 0
    for run in range(250):
        model = Model(seed + run)
        for _ in range(50):
            model.step()
            model.check()
        tolerated += model.tolerated
    assert tolerated > 50, "the promises are of use"


def test_a_session_without_copies_ends_the_promise(tmp_path: Path) -> None:
    """Before its welcome; until a segment begins after it has stopped."""
    config = own_disk_config(tmp_path, "n1")
    log = ClusterLog(open_context(config.url), config.namespace, config.cluster)

    def copied() -> tuple[int, int, int]:
        return log.node("n1").manifest.copied

    def fill() -> None:
        """Begin another segment."""
        newest = log.node("n1").manifest.newest

        def begun() -> bool:
            member.put(k="x" * 30_000)
            return log.node("n1").manifest.newest > newest

        eventually(begun, "a new segment")

    with serving(config), plugin(config, greet=False) as member:
        member.hello(shared=True, acks=2)
        member.put(a="1")
        assert copied() == (2, 1, 0)
        with plugin(config, uuid="plugin-2", greet=False) as other:
            other.hello(shared=True, acks=3)
            assert copied() == (2, 1, 0)
            other.client.ask("bye")
        with plugin(config, uuid="plugin-3") as alone:
            assert copied() == (0, 0, 0)
            fill()
            assert copied() == (0, 0, 0)
            alone.client.ask("bye")
        fill()
        assert copied() == (2, log.node("n1").manifest.newest, 0)
        log.manifests.update(lambda manifest: manifest.with_loss("n2"))
        fill()
        assert copied()[2] == 0, "an acknowledgement of n2 may be older than the loss"
        member.hello(shared=True, acks=2)
        fill()
        assert copied() == (2, log.node("n1").manifest.newest, 1)


@pytest.mark.parametrize("acks", [0, 1])
def test_changes_that_one_agent_may_acknowledge_have_no_promise(tmp_path: Path, acks: int) -> None:
    config = own_disk_config(tmp_path, "n1")
    log = ClusterLog(open_context(config.url), config.namespace, config.cluster)
    with serving(config), plugin(config, greet=False) as member:
        member.hello(shared=True, acks=acks)
        member.put(a="1")
        assert log.node("n1").manifest.copied == (0, 0, 0)


def test_a_forgotten_node_ends_the_promises_of_others(tmp_path: Path) -> None:
    """Copies of their changes were in its log."""
    first, second = (own_disk_config(tmp_path, node) for node in ("n1", "n2"))
    log = ClusterLog(open_context(first.url), first.namespace, first.cluster)
    with serving(first), serving(second), plugin(first, greet=False) as member:
        member.hello(shared=True, acks=2)
        member.put(a="1")
    for losses, acks in ((0, 2), (1, 1)):
        manifest = log.node("n1").manifest
        assert log.manifest().acks_from("n1", manifest, 1) == acks
        if not losses:
            forget_node(log, "n2", lose=True)
    assert log.manifest().losses == {"n2": 1}
