"""Agents that run their real loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from imap_wal import entry
from imap_wal.agent import server
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.start import StartPolicy
from imap_wal.agent.requests import read
from imap_wal.agent.transport.router import Message
from imap_wal.entry import DataEntry
from imap_wal.errors import Fenced, ImapWalError, LostRace, WriterLocked
from imap_wal.settings import Settings
from storage_backends import StorageError
from tests.simulation import threads
from tests.simulation.actors import CLUSTER, MAP, MEMBERS_CLASS, NAMESPACE, SETTINGS, Actor, Stop
from tests.simulation.wires import ALONE_ACTORS, Connection, Queues, SimRouter, actor, packed
from tests.simulation.world import BASE_MS, Task, Violation


def patches() -> list[tuple[Any, str, Any]]:
    """What the agent's modules get in place of the network and of real clocks."""
    from imap_wal.agent import lane, lines, mender, open_log
    from imap_wal.agent.membership import claims
    from imap_wal.agent.reads import merges, reads

    return [
        (server, "listen", SimRouter),
        (server, "open_context", lambda *_, **__: actor().context()),
        (server, "SystemClock", lambda *_: actor().process.clock),
        (server, "SystemRandomness", lambda: actor().process.randomness),
        (server, "_log", _Silent()),
        (open_log, "_log", _Silent()),
        (mender, "_log", _Silent()),
        (merges, "_log", _Silent()),
        (claims, "_log", _Silent()),
        (lines, "_log", _Silent()),
        (reads, "queue", Queues),
        (lane, "PAUSE", 0),
        # Its periodic looks would be most of all steps.
        (merges, "FRESH_BYTES", 0),
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


class Alone:
    """An agent before or after a run, when no other task runs: one request, one turn, one answer.
    `me` has `process`, `stage`, `spec` and `storage()`, as an actor has."""

    def __init__(self, me: Any, node: str, cluster_id: str = "c1") -> None:
        self._me, self._cluster_id = me, cluster_id
        ALONE_ACTORS.append(me)
        try:
            self.agent = server.Agent(agent_config(node, True, {}))
        except BaseException:
            ALONE_ACTORS.pop()
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
        label, deleted = MEMBERS_CLASS, value is None
        row = DataEntry(MAP, key, label, value, label, deleted, BASE_MS, 0, partition, order)
        self.ask("append", self._session, self._request, 1, payload=entry.pack(row))

    def archive(self) -> None:
        self.agent._log.archive()

    def close(self) -> None:
        agent = self.agent
        agent._reads.close()
        agent._log.close(True)
        agent._router.close()
        ALONE_ACTORS.pop()
