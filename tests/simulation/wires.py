"""Between agents and members: messages are handed over in memory. A connection breaks when its
agent dies, or when an answer is lost on purpose."""

from __future__ import annotations

import collections
import itertools
import queue
from collections.abc import Sequence
from typing import Any

import msgpack
from greenlet import getcurrent

from imap_wal.agent.access.peers import LOCAL, Peer
from imap_wal.agent.requests import read
from imap_wal.agent.transport.endpoint import EndpointLock
from imap_wal.agent.transport.router import Message
from tests.agent.harness import identified, named
from tests.simulation import threads
from tests.simulation.actors import Actor
from tests.simulation.world import Process, Task

ALONE_ACTORS: list[Actor] = []
"""The actor when no task runs: before and after a run."""


def actor() -> Any:
    task = getcurrent()
    return task.process.memory["actor"] if isinstance(task, Task) else ALONE_ACTORS[-1]


def packed(kind: str, number: int, *fields: Any) -> bytes:
    """A header. The names of clusters, members and plug-ins are sent as UUIDs."""
    whole = map(identified, fields) if kind in ("hello", "view") else fields
    header: bytes = msgpack.packb([kind, number, *whole])
    return header


class Wires:
    """Endpoint → the router that listens there."""

    def __init__(self) -> None:
        self.routers: dict[str, SimRouter] = {}
        self._numbers = itertools.count(1)

    def broken(self, process: Process) -> None:
        """A process died: wake the tasks that wait for its answers."""
        for router in self.routers.values():
            if router.process is process:
                for connection in router.connections.values():
                    threads._wake(connection)

    def connect(self, endpoint: str) -> Connection | None:
        router = self.routers.get(endpoint)
        if router is None or router.closed or router.process.dead:
            return None
        return Connection(router, b"c%d" % next(self._numbers))


class Connection:
    """A member's side."""

    def __init__(self, router: SimRouter, name: bytes) -> None:
        self.router, self.name = router, name
        self.answers: collections.deque[tuple[list[Any], bytes]] = collections.deque()
        self.broken = False
        self._number = 0
        router.connections[name] = self

    @property
    def gone(self) -> bool:
        return self.broken or self.router.closed or self.router.process.dead

    def post(self, kind: str, *fields: Any, payload: bytes = b"") -> bool:
        """Send a request; False where the connection is broken."""
        self._number += 1
        if self.gone:
            return False
        self.router.inbox.append(
            Message(self.name, read(packed(kind, self._number, *fields)), payload)
        )
        threads._wake(self.router)
        return True

    def ask(self, kind: str, *fields: Any, payload: bytes = b"") -> tuple[list[Any], bytes] | None:
        """The answer; None when the connection broke first."""
        if not self.post(kind, *fields, payload=payload):
            return None
        while True:
            while self.answers:
                answer = self.answers.popleft()
                if answer[0][1] == self._number:
                    return answer
            if self.gone:
                return None
            threads._block(self)


class SimRouter:
    """A `Router` of the simulation, in which every process is admitted."""

    def __init__(self, lock: EndpointLock, *_: object) -> None:
        me, endpoint = actor(), lock.endpoint
        self.workers: list[Any] = []
        self.endpoint, self.process, self.closed = endpoint, me.process, False
        self.inbox: collections.deque[Message] = collections.deque()
        self.connections: dict[bytes, Connection] = {}
        self.sent = self.revoked = self.refused = 0
        self.statistics = None
        self._drops = me.spec.drops
        me.stage.wires.routers[endpoint] = self
        threads._wake(me.stage.wires)

    def outbox(self) -> SimRouter:
        return self

    def peer(self, user: str) -> Peer:
        return LOCAL

    def receive(self, timeout_ms: int, most: int = 1024) -> list[Message]:
        if not self.inbox and timeout_ms and isinstance(getcurrent(), Task):
            threads._block(self)
        return [self.inbox.popleft() for _ in range(min(most, len(self.inbox)))]

    def send(self, to: bytes, header: Sequence[Any], payload: bytes = b"") -> None:
        connection = self.connections.get(to)
        self.sent += 1
        if connection is None or connection.gone:
            return
        if self.sent in self._drops:
            connection.broken = True
        else:
            plain = msgpack.unpackb(msgpack.packb(list(header)), strict_map_key=False)
            connection.answers.append((named(plain), bytes(payload)))
        threads._wake(connection)

    def greeted(self, sender: bytes) -> None: ...

    def shut(self, sender: bytes, why: str) -> None: ...

    def gone(self) -> list[bytes]:
        return []

    def close(self, wait: bool = True) -> None:
        self.closed = True


class SimQueue:
    """In place of `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: collections.deque[Any] = collections.deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        threads._wake(self)

    def get(self, timeout: float | None = None) -> Any:
        if not self._items and timeout is not None:
            threads._pause()
            if not self._items:
                raise queue.Empty
        while not self._items:
            threads._block(self)
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Queues:
    """The module `queue`."""

    SimpleQueue, Empty = SimQueue, queue.Empty
