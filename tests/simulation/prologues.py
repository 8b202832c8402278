"""Logs as they may be when a run begins; each is made once and then copied."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import imap_wal
from imap_wal.context import Context
from imap_wal.manifest import store
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from tests.simulation import threads
from tests.simulation.actors import (
    CLUSTER,
    KEYS,
    MAP,
    MEMORY,
    NAMESPACE,
    SETTINGS,
    Spec,
    Stage,
    key_of,
)  # fmt: skip
from tests.simulation.agents import Alone
from tests.simulation.history import ACKED, History
from tests.simulation.medium import Medium, open_sim
from tests.simulation.wires import Wires
from tests.simulation.world import World


class _Nobody:
    def choose(self, *_: Any) -> Any:
        raise AssertionError("one actor alone")


class _Past:
    """One process that makes a log, step by step."""

    def __init__(self, kind: str) -> None:
        self.world = World(_Nobody())
        self.kind = kind
        self.process = self.world.process("before", "a", 0, 10**9)
        self.media = {"root": Medium()}
        self.history = History()
        self._count = 0
        self._at = -10_000.0
        self.store: Any = None
        self.spec = Spec("before", ())
        self.stage = Stage(self.world, kind, self.media, self.history)
        self.stage.wires = Wires()

    def storage(self) -> Any:
        return open_sim(self.world, self.process, self.media, self.kind)

    def context(self) -> Context:
        clock, randomness = self.process.clock, self.process.randomness
        return Context(self.storage(), clock=clock, randomness=randomness)

    def cluster(self) -> ClusterLog:
        return ClusterLog(self.context(), NAMESPACE, CLUSTER)

    def open(self, node: str = "n1") -> None:
        self.world.extra_ms += 60_000
        self.store = imap_wal.open(
            "sim://", namespace=NAMESPACE, cluster=CLUSTER, node=node, clock=self.process.clock,
            randomness=self.process.randomness, storage=self.storage(), takeover=True, **SETTINGS,
        )  # fmt: skip

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self._count += 1
            self._set(key_of(number), b"before.%d" % self._count)

    def delete(self, *numbers: int) -> None:
        for number in numbers:
            self._set(key_of(number), None)

    def _set(self, key: bytes, value: bytes | None) -> None:
        self._at += 1
        write = self.history.begin(key, value, "before", self._at)
        map = self.store.map(MAP, raw=True)
        if value is None:
            del map[key]
        else:
            map.put(key, value)
        self._at += 1
        self.history.finish(write, ACKED, self._at)

    def archive(self) -> None:
        self.store.writer.archive()

    def rewrite(self) -> None:
        rewrite(self.cluster(), LocalEngine(MEMORY))

    def prune(self) -> None:
        prune(self.cluster())

    def close(self) -> None:
        self.store.close()

    def serve(self, node: str, *, archive: bool = False) -> None:
        """Changes of members, through an agent."""
        agent = Alone(self, node)
        agent.hello()
        for number in range(KEYS) if node == "n1" else (0, 1):
            self._count += 1
            self._at += 1
            value = b"before.%d" % self._count
            write = self.history.begin(key_of(number), value, "before", self._at)
            agent.change(key_of(number), value)
            self._at += 1
            self.history.finish(write, ACKED, self._at)
        if archive:
            agent.archive()
        agent.close()


def _empty(past: _Past) -> None:
    """An empty storage."""


def _some(past: _Past) -> None:
    past.open()
    past.put(*range(KEYS))
    past.delete(KEYS - 1)
    past.close()


def _crashed(past: _Past) -> None:
    past.open()
    past.put(*range(KEYS))
    past.delete(KEYS - 1)


def _archived(past: _Past) -> None:
    past.open()
    past.put(*range(KEYS))
    past.archive()
    past.put(0)
    past.delete(KEYS - 1)
    past.close()


def _snapshot(past: _Past) -> None:
    past.open()
    past.put(*range(KEYS))
    past.archive()
    past.rewrite()
    past.put(0, 1)
    past.archive()
    past.put(2)
    past.delete(KEYS - 1)
    past.close()


def _pruned(past: _Past) -> None:
    _snapshot(past)
    past.rewrite()
    past.prune()


def _two_nodes(past: _Past) -> None:
    past.open("n1")
    past.put(0, 1)
    past.close()
    past.open("n2")
    past.put(2, 3)
    past.delete(0)
    past.close()


def _members(past: _Past) -> None:
    past.serve("n1")


def _members_archived(past: _Past) -> None:
    past.serve("n1", archive=True)
    past.rewrite()


PROLOGUES: dict[str, Callable[[_Past], None]] = {
    "empty": _empty,
    "some": _some,
    "crashed": _crashed,
    "archived": _archived,
    "snapshot": _snapshot,
    "pruned": _pruned,
    "two nodes": _two_nodes,
    "members": _members,
    "members archived": _members_archived,
}


@cache
def _made(kind: str, name: str) -> _Past:
    past = _Past(kind)
    threads.enter(past.world)
    kept, store.KEEP = store.KEEP, 1  # every listing of a run would show the others
    try:
        PROLOGUES[name](past)
    finally:
        store.KEEP = kept
    for medium in past.media.values():
        medium.locks.clear()
    return past


def prepared(kind: str, name: str) -> tuple[dict[str, Medium], History]:
    past = _made(kind, name)
    return {name: medium.copy() for name, medium in past.media.items()}, past.history.copy()
