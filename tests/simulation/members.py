"""A cluster: agents that run their real loop, and members made of Python that resend what was not
answered. Messages are handed over in memory; a connection breaks when its agent dies, or when an
answer is lost on purpose.
"""

from __future__ import annotations

import builtins
import collections
import itertools
import queue
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
from greenlet import getcurrent

from imap_wal import entry
from imap_wal.agent import server
from imap_wal.agent.access.peers import LOCAL, Peer
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.start import StartPolicy
from imap_wal.agent.requests import read
from imap_wal.agent.transport.endpoint import EndpointLock
from imap_wal.agent.transport.router import Message
from imap_wal.entry import DataEntry
from imap_wal.errors import Fenced, ImapWalError, LostRace, WriterLocked
from imap_wal.settings import Settings
from storage_backends import StorageError
from tests.agent.harness import identified, named
from tests.simulation import history as outcomes
from tests.simulation import threads
from tests.simulation.actors import CLUSTER, MAP, NAMESPACE, SETTINGS, Actor, Stop, key_of
from tests.simulation.history import Write
from tests.simulation.world import BASE_MS, Killed, Process, Task, Violation

AGAIN = "sent again"
TRIES = 6
"""How often a member looks for its agent before it abandons a change."""
PATIENCE = 60
"""Steps between two tries: the agent opens a failed log again after a second."""

_here: list[Actor] = []
"""The actor when no task runs: before and after a run."""


def actor() -> Any:
    task = getcurrent()
    return task.process.memory["actor"] if isinstance(task, Task) else _here[-1]


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
    """In place of `imap_wal.agent.transport.router.Router`."""

    def __init__(self, lock: EndpointLock, *_: object) -> None:
        me, endpoint = actor(), lock.endpoint
        self.workers: list[Any] = []
        self.door: Any = Open()
        self.endpoint, self.process, self.closed = endpoint, me.process, False
        self.inbox: collections.deque[Message] = collections.deque()
        self.connections: dict[bytes, Connection] = {}
        self.sent = self.revoked = 0
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

    def gone(self) -> list[bytes]:
        return []

    def close(self, wait: bool = True) -> None:
        self.closed = True


class Open:
    """In place of a `Door`: nothing is closed here."""

    worker, statistics = None, None

    def greeted(self, sender: bytes) -> None: ...

    def shut(self, sender: bytes, why: str) -> None: ...


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


def patches() -> list[tuple[Any, str, Any]]:
    """What the agent's modules get in place of the network and of real clocks."""
    from imap_wal.agent import lane, lines, mender, open_log
    from imap_wal.agent.membership import claims
    from imap_wal.agent.reads import reads

    return [
        (server, "Router", SimRouter),
        (server, "open_store", lambda *_, **__: actor().storage()),
        (server, "SystemClock", lambda *_: actor().process.clock),
        (server, "SystemRandomness", lambda: actor().process.randomness),
        (server, "_log", _Silent()),
        (open_log, "_log", _Silent()),
        (mender, "_log", _Silent()),
        (reads, "_log", _Silent()),
        (claims, "_log", _Silent()),
        (lines, "_log", _Silent()),
        (reads, "queue", Queues),
        (lane, "PAUSE", 0),
        # Its periodic looks would be most of all steps.
        (reads, "FRESH_BYTES", 0),
    ]


class _Silent:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def endpoint_of(node: str) -> str:
    # A loopback address: others need keys. The port is the number of the node.
    return f"tcp://127.0.0.1:{int(node.removeprefix('n'))}"


def agent_config(node: str, takeover: bool, settings: dict[str, Any]) -> AgentConfig:
    return AgentConfig(
        url="sim://",
        namespace=NAMESPACE,
        cluster=CLUSTER,
        node=node,
        endpoint=endpoint_of(node),
        restore_at_start=False,
        takeover=takeover,
        lifetime_timeout_s=0,
        start_policy=StartPolicy.PARTIAL,
        log=Settings(**{**SETTINGS, **settings}),
    )


class AgentActor(Actor):
    """Serves until it is killed. Its second thread may be the timer of maintenance."""

    def serve(self, takeover: bool = False) -> None:
        self.process.memory["actor"] = self
        settings = dict(self.spec.settings)
        try:
            self.agent = server.Agent(agent_config(self.spec.node, takeover, settings))
        except (ImapWalError, StorageError) as error:
            from storage_backends import NotFound

            if not isinstance(error, NotFound):
                self._refused(error, WriterLocked, Fenced, LostRace)
            raise Stop from error
        self._opened.set()
        task = getcurrent()
        assert isinstance(task, Task)
        task.daemon = True
        try:
            self.agent.serve()
        except Fenced:
            pass
        except (ImapWalError, StorageError) as error:
            self._refused(error, Fenced, LostRace)
        finally:
            router: Any = self.agent._router  # a `SimRouter`
            router.closed = True
            for connection in list(router.connections.values()):
                threads._wake(connection)

    def archive(self) -> None:
        from tests.simulation.actors import KEEPER_ERRORS

        try:
            self.agent._log.archive()
        except (ImapWalError, StorageError) as error:
            self._refused(error, *KEEPER_ERRORS)

    def outlive(self) -> None:
        from tests.simulation.actors import KEEPER_ERRORS

        try:
            self.agent._log.remove_covered()
        except (ImapWalError, StorageError) as error:
            self._refused(error, *KEEPER_ERRORS)


class MemberActor(Actor):
    """One plug-in: changes of the keys it owns, listings and loads."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connection: Connection | None = None
        self._reading: dict[Any, Connection | None] = {}
        """Each thread that reads has its own connection."""
        self._former: dict[int, int] = {}
        """Session of an earlier view → the last request that counts."""
        self._lost: tuple[str, ...] = ()
        """Members without which this one has a view."""
        self._session = self._incarnation = self._request = 0
        self._opened.set()

    def _hello(self, purpose: str) -> tuple[Connection, dict[str, Any]] | None:
        """None: no agent answers; `Stop`: this cluster has been replaced."""
        world = self.world
        for attempt in range(TRIES):
            if attempt:
                world.sleep(PATIENCE, self.stage.wires)
            connection = self.stage.wires.connect(endpoint_of(self.spec.node))
            if connection is None:
                continue
            about = {
                "protocol": 1,
                "cluster_id": self.spec.cluster_id,
                "member_uuid": self.spec.name,
                "plugin_uuid": f"plugin of {self.spec.name}",
                "plugin_version": "0",
                "partition_count": 271,
                "purpose": purpose,
                "view": self._incarnation,
            }
            answer = connection.ask("hello", about)
            if answer is None:
                continue
            header, _ = answer
            if header[0] == "welcome":
                return connection, header[2]
            if header[2] == "void-incarnation":
                raise Stop
        return None

    def hello(self) -> bool:
        found = self._hello("write")
        if found is None:
            return False
        self._connection, welcome = found
        if welcome["session"] != self._session:
            self._session, self._request = welcome["session"], welcome["last_request"]
        self._incarnation, self._last = welcome["incarnation"], welcome["last_request"]
        self._former = dict(welcome["former"])
        return True

    def put(self, number: int) -> None:
        self._count += 1
        self._append(number, b"%s.%d" % (self.spec.name.encode(), self._count))

    def delete(self, number: int) -> None:
        self._append(number, None)

    def put_and_leave(self, number: int) -> None:
        """The member no longer waits for the answer: its time-out has passed, and the change may
        still be logged. (Its partition may migrate now.)"""
        place = self.spec.cluster_id, number
        owner, version = self.stage.owners.setdefault(place, (self.spec.name, 0))
        if owner != self.spec.name or (self._connection is None and not self.hello()):
            raise Stop
        self._count += 1
        self._request += 1
        value = b"%s.%d" % (self.spec.name.encode(), self._count)
        write = self.past.begin(key_of(number), value, self.spec.name, self.world.tick())
        write.order = (self._incarnation, version, self._session, self._request)
        row = self._row(number, value, write.order)
        assert self._connection is not None
        self._connection.post("append", self._session, self._request, 1, payload=entry.pack(row))
        raise Stop

    def take(self, number: int) -> None:
        """The partition of this key migrates to this member, if nothing is under way in it."""
        place = self.spec.cluster_id, number
        _, version = self.stage.owners.get(place, ("", 0))
        if not self.stage.busy.get(place):
            self.stage.owners[place] = self.spec.name, version + 1

    def _append(self, number: int, value: bytes | None) -> None:
        """A change of a key, if this member owns it."""
        place, version = self._place(number), 0
        owner, version = self.stage.owners.setdefault(place, (self.spec.name, self._gained(number)))
        if owner == self.spec.name:
            busy = self.stage.busy
            busy[place] = busy.get(place, 0) + 1
            try:
                self._append_own(number, version, value)
            finally:
                busy[place] -= 1

    def _place(self, number: int) -> tuple[str, int]:
        """A key, and the half of its cluster in which it has an owner: each half of a split network
        has its own opinion on keys whose owner it lost."""
        whole = self.spec.cluster_id, number
        owner, _ = self.stage.owners.get(whole, (self.spec.name, 0))
        return (f"{whole[0]} without {self._lost}", number) if owner in self._lost else whole

    def _gained(self, number: int) -> int:
        """The version of a partition that this member takes over from one that was lost."""
        return self.stage.owners.get((self.spec.cluster_id, number), ("", -1))[1] + 1

    def until(self, name: str) -> None:
        """Wait for the first acknowledged change of another member."""
        for _ in range(TRIES):
            writes = (write for writes in self.past.writes.values() for write in writes)
            if any(write.writer == name and write.outcome == outcomes.ACKED for write in writes):
                return
            self.world.sleep(PATIENCE, self.stage.wires)

    def lose(self, *names: str) -> None:
        """The network between this half and those members is cut: get a view without them, then
        read what they left."""
        gone = {*self._lost, *names}
        tasks = (task.process.memory["actor"].spec for task in self.world.tasks)
        members = sorted({each.name for each in tasks if each.role == "member"} - gone)
        about = {
            "cluster_id": self.spec.cluster_id,
            "member_uuid": self.spec.name,
            "members": members,
            "lost": list(names),
        }
        for _ in range(TRIES):
            if self._connection is None and not self.hello():
                raise Stop
            assert self._connection is not None
            answer = self._connection.ask("view", about)
            self._connection = None
            if answer is not None and answer[0][0] == "view":
                break
            if answer is not None and answer[0][2] == "void-incarnation":
                raise Stop
        else:
            raise Stop
        for name in names:
            self.stage.left_out.setdefault(name, self.world.tick())
        if not self.hello():
            raise Stop
        self._reading.clear()
        self._lost = (*self._lost, *names)

    def _append_own(self, number: int, version: int, value: bytes | None) -> None:
        past, world = self.past, self.world
        if self._connection is None and not self.hello():
            raise Stop
        write = past.begin(key_of(number), value, self.spec.name, world.tick())
        write.order = (self._incarnation, version, self._session, self._request + 1)
        try:
            outcome = self._send(number, version, value)
            while outcome == AGAIN:
                write.order = (self._incarnation, version, self._session, self._request + 1)
                outcome = self._send(number, version, value)
        except Stop:
            past.finish(write, outcomes.UNKNOWN, world.tick())
            raise
        except Killed:
            past.finish(write, outcomes.UNKNOWN, world.tick())
            raise
        past.finish(write, outcome, world.tick())
        if outcome == outcomes.ACKED:
            self._acknowledged(write)
            if write.start > self.stage.left_out.get(self.spec.name, write.start):
                what = f"{self.spec.name} was left out of a view, and then made {write}"
                raise Violation("two halves acknowledge", what)

    def _acknowledged(self, write: Write) -> None:
        """Nothing more is judged: the log itself decides which agent of a node may acknowledge."""

    def _send(self, number: int, version: int, value: bytes | None) -> str:
        self._request += 1
        request, session, incarnation = self._request, self._session, self._incarnation
        row = self._row(number, value, (incarnation, version, session, request))
        payload = entry.pack(row)
        for _ in range(TRIES):
            assert self._connection is not None
            answer = self._connection.ask("append", session, request, 1, payload=payload)
            if answer is not None:
                header, _ = answer
                if header[0] == "ack":
                    return outcomes.ACKED
                code = header[2]
                self._connection = None
                if not self.hello():
                    raise Stop
                if self._session != session and session in self._former:
                    return self._settled(session, request)
                if code == "outcome-unknown":
                    return outcomes.UNKNOWN
                if code in ("not-ready", "full", "superseded", "void-incarnation"):
                    return outcomes.FAILED
                raise Violation("an error without a cause", f"{self.spec.name}: {header}")
            if not self.hello():
                return outcomes.UNKNOWN
            if self._session != session:
                return self._settled(session, request)
            if self._last >= request:
                return outcomes.ACKED
        return outcomes.UNKNOWN

    def _settled(self, session: int, request: int) -> str:
        """Of a request of an earlier view: it counts, or it is sent again in this one."""
        if session not in self._former:
            return outcomes.UNKNOWN
        return outcomes.ACKED if request <= self._former[session] else AGAIN

    def _row(self, number: int, value: bytes | None, order: tuple[int, ...]) -> DataEntry:
        now_ms = BASE_MS + self.world.elapsed_ms
        deleted = value is None
        key = key_of(number)
        place: Any = order
        return DataEntry(MAP, key, "raw", value, "raw", deleted, now_ms, 0, number, place)

    def list(self, page: int = 2) -> None:
        """All keys by cursor, page by page, and the values of each page."""
        start = self.world.tick() - self.stage.stale_steps
        values: dict[bytes, bytes] = {}
        cursor = None
        while True:
            answer = self._read("keys", MAP, cursor, page)
            if answer is None:
                return  # reported
            header, payload = answer
            cursor = header[2]
            if cursor is None:
                break
            keys = entry.values(payload)
            answer = self._read("load", MAP, len(keys), payload=payload)
            if answer is None:
                return
            values.update((row[0], row[1]) for row in entry.values(answer[1]))
        self.past.check(values, start, self.world.tick(), f"the listing of {self.spec.name}")

    def _read(
        self, kind: str, *fields: Any, payload: bytes = b""
    ) -> tuple[builtins.list[Any], bytes] | None:
        """The answer, asked for again on a new connection if one broke; None: it was an error."""
        for _ in range(TRIES):
            connection = self._reading.get(getcurrent())
            if connection is None:
                found = self._hello("read")
                if found is None:
                    return None
                connection = self._reading[getcurrent()] = found[0]
            answer = connection.ask(kind, *fields, payload=payload)
            if answer is not None:
                return None if answer[0][0] == "error" else answer
            self._reading[getcurrent()] = None
        return None


class Alone:
    """An agent before or after a run, when no other task runs: one request, one turn, one answer.
    `me` has `process`, `stage`, `spec` and `storage()`, as an actor has."""

    def __init__(self, me: Any, node: str, cluster_id: str = "c1") -> None:
        self._me, self._cluster_id = me, cluster_id
        _here.append(me)
        try:
            self.agent = server.Agent(agent_config(node, True, {}))
        except BaseException:
            _here.pop()
            raise
        self._router: Any = self.agent._router
        router: Any = self.agent._router
        self._connection = Connection(router, b"alone")
        self._number = 0
        self._request = 0

    def ask(self, kind: str, *fields: Any, payload: bytes = b"") -> list[Any]:
        self._number += 1
        self._router.inbox.append(
            Message(b"alone", read(packed(kind, self._number, *fields)), payload)
        )
        self.agent._turn(0)
        header, _ = self._connection.answers.pop()
        if header[0] == "error":
            raise Violation("a lone agent refuses", f"{kind}: {header[2:]}")
        return header

    def hello(self) -> None:
        about = {
            "protocol": 1,
            "cluster_id": self._cluster_id,
            "member_uuid": "alone",
            "plugin_uuid": f"alone at {self.agent.config.node}",
            "plugin_version": "0",
            "partition_count": 271,
            "purpose": "write",
        }
        welcome = self.ask("hello", about)[2]
        self._session, self._incarnation = welcome["session"], welcome["incarnation"]
        self._request = welcome["last_request"]

    def change(self, key: bytes, value: bytes | None) -> None:
        self._request += 1
        order = (self._incarnation, 0, self._session, self._request)
        partition = int(key[1:])
        row = DataEntry(MAP, key, "raw", value, "raw", value is None, BASE_MS, 0, partition, order)
        self.ask("append", self._session, self._request, 1, payload=entry.pack(row))

    def archive(self) -> None:
        self.agent._log.archive()

    def close(self) -> None:
        agent = self.agent
        agent._reads.close()
        agent._log.close(True)
        agent._router.close()
        _here.pop()


__all__ = ["AgentActor", "Alone", "MemberActor", "Process", "Wires", "patches"]
