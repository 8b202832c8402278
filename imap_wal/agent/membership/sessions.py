"""Who is connected: members, with the incarnation of their cluster and the session that numbers
their changes, and clients that only read.

    hello of a peer that may write   a `Connection` of a member, with a `Session`; it may claim
    hello of any other peer          a `ReadSession`: nothing is stored, nobody counts as alive
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from imap_wal.agent.access.peers import LOCAL, Peer
from imap_wal.agent.membership import former
from imap_wal.agent.membership.claims import Claims, Greeting, View
from imap_wal.agent.membership.liveness import SignOfLife, Watch
from imap_wal.agent.membership.start import AT_ONCE, Belonging, Start, StartPolicy, StartRules
from imap_wal.agent.requests import About, Wish
from imap_wal.errors import NotAllowed, NotAppended, OutcomeUnknown
from imap_wal.read.cluster import ClusterLog
from imap_wal.write.committer import CommitRequest
from imap_wal.write.node_log import PLUGINS_KEPT, NodeLog
from storage_backends import StorageError


@dataclass(slots=True)
class Session:
    """One plug-in start. `writer` is the connection that may append: the last that said hello with
    purpose `write`."""

    number: int
    incarnation: int
    cluster_id: str
    plugin: str
    writer: bytes = b""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of a member, and what its hello gave."""

    who: Greeting
    partition_count: int


@dataclass(frozen=True, slots=True)
class ReadSession:
    """A connection of a client without the right to write. It is no member, whatever its hello
    says: it has no number, so it cannot append, and no member, so it gets no view and is no sign of
    life. `incarnation`: the newest one when it said hello."""

    incarnation: int
    partition_count: int


SESSIONS_KEPT = PLUGINS_KEPT
"""Sessions without a connection that are known here: the node's manifest has as many."""


class SessionRegistry:
    """All sessions of one agent run over one NodeLog. Used by the serving thread."""

    def __init__(self, log: NodeLog, view_of: ClusterLog, rules: StartRules = AT_ONCE) -> None:
        self._log, self._cluster = log, view_of
        folder, node, timeout_s = (
            log.identity.cluster_folder,
            log.identity.node,
            rules.lifetime_timeout_s,
        )
        waits = rules.policy is not StartPolicy.PARTIAL
        watch = Watch(
            log.store, folder, timeout_s, log.clock, Belonging(view_of) if waits else None
        )
        self.sign = (
            SignOfLife(log.store, folder, node, log.epoch, timeout_s, watch, log.clock)
            if timeout_s
            else None
        )
        self.start = Start(node, rules, watch, log.clock)
        self.claims = Claims(log, view_of, self.start)
        self._by_plugin: dict[tuple[str, int], Session] = {}
        self._by_number: dict[int, Session] = {}
        self._connections: dict[bytes, Connection] = {}
        self._readers: dict[bytes, ReadSession] = {}
        self._shut: set[bytes] = set()
        """Connections of which an append was refused, until they say hello again."""

    def hello(
        self, sender: bytes, about: About, look: int = 0, peer: Peer = LOCAL
    ) -> tuple[Session, bool]:
        """The session of a plug-in that says hello, and whether it is new here. Claims an
        incarnation for a cluster id that has none, or an older one than the newest. `look`: see
        `Start.demand`. `peer`: who says it.

        A plug-in has a session for each incarnation: what it sent in an older one may be void, and
        must not count as what is in the log."""
        plugin = about.plugin_uuid
        who = Greeting(about.cluster_id, about.member_uuid, plugin, about.view, about.token, peer)
        if self.sign is not None and self.claims.may_count(who):
            self.sign.greeted(who.cluster_id)
        incarnation = self.claims.enter(
            who, not any(known == plugin for known, _ in self._by_plugin), look
        )
        session = self._by_plugin.get((plugin, incarnation))
        new = session is None
        if session is None:
            number = self._log.new_session(f"{plugin}/{incarnation}", self._ended(incarnation))
            session = Session(number, incarnation, who.cluster_id, plugin)
            self._by_plugin[plugin, incarnation] = self._by_number[session.number] = session
        self._readers.pop(sender, None)
        if about.purpose == "write":
            if session.writer != sender:
                self._connections.pop(session.writer, None)
                self._shut.discard(session.writer)
            session.writer = sender
        self._connections[sender] = Connection(who, about.partition_count or 0)
        self._shut.discard(sender)
        self._forget_old()
        return session, new

    def hello_to_read(self, sender: bytes, about: About, peer: Peer) -> ReadSession:
        """The session of a client that may not write. Changes nothing outside this object, and only
        reads the storage. `NotAllowed` if its cluster does not have the log, `VoidIncarnation` if
        another cluster followed it."""
        who = Greeting(
            about.cluster_id, about.member_uuid, about.plugin_uuid, about.view, about.token, peer
        )
        found = ReadSession(self.claims.of_reader(who), about.partition_count or 0)
        self.gone(sender)
        self._readers[sender] = found
        return found

    def demote(self, sender: bytes) -> None:
        """The peer of this connection has no right to write any more: it is a member no longer."""
        if sender in self._connections:
            self.gone(sender)

    def _forget_old(self) -> None:
        """Of the sessions without a connection, keep the newest. Nothing of the others is under
        way: a hello commits first."""
        if len(self._by_number) <= SESSIONS_KEPT:
            return
        connected = {connection.who.plugin for connection in self._connections.values()}
        idle = [
            session
            for number, session in sorted(self._by_number.items())
            if session.plugin not in connected
        ]
        for session in idle[:-SESSIONS_KEPT]:
            del (
                self._by_number[session.number],
                self._by_plugin[session.plugin, session.incarnation],
            )

    def _ended(self, incarnation: int) -> dict[int, int]:
        """The last request that counts of each session of an earlier incarnation, except for those
        that the node's manifest has already."""
        manifest = self._log.manifests.read()[1]
        incarnations = {
            number: int(each.rpartition("/")[2]) for each, number in manifest.plugins.items()
        }
        ended = {
            number: own
            for number, own in incarnations.items()
            if own < incarnation and number not in manifest.former
        }
        found = former.last_that_count(self._log, self._cluster, ended) if ended else {}
        if found and self.claims.newest() != incarnation:
            raise NotAppended(
                f"incarnation {incarnation} was followed by another one during this hello; "
                "say hello again"
            )
        return found

    def former(self, plugin: str) -> list[tuple[int, int]]:
        """(session, last request that counts) of the earlier sessions of a plug-in."""
        manifest = self._log.manifests.read()[1]
        numbers = sorted(
            number for each, number in manifest.plugins.items() if each.rpartition("/")[0] == plugin
        )
        return [
            (number, last)
            for number in numbers
            if (last := manifest.former.get(number, former.UNKNOWN)) != former.UNKNOWN
        ]

    def view(self, sender: bytes, wish: Wish, peer: Peer = LOCAL) -> View:
        """The view that a member asks for: without the members that it lost. `peer`: who asks, with
        the rights of now. `NotAllowed`, `VoidIncarnation`; ValueError for a wish that contradicts
        the hello."""
        connection = self._connections.get(sender)
        if connection is None:
            raise NotAllowed(
                f"{peer.name} said hello without the right 'write': only members get a view"
            )
        who = replace(connection.who, peer=peer)
        if (wish.cluster_id, wish.member_uuid) != (who.cluster_id, who.member):
            raise ValueError(
                "cluster_id and member_uuid are not those of the connection's hello; say "
                "hello again"
            )
        members, lost = tuple(wish.members), frozenset(wish.lost)
        if who.member not in members or not lost.isdisjoint(members):
            raise ValueError("members must contain this member, and none of those in lost")
        return self.claims.view(who, members, lost)

    def claim(self) -> dict[str, Any]:
        """Which cluster may write, in which incarnation, and whether its members may be alive. If
        the storage cannot be reached, this is the last known state."""
        with suppress(StorageError):
            self.claims.newest()
        known = self.claims.known
        return {
            "cluster_id": known.cluster_id,
            "incarnation": known.newest,
            "alive": self.start.alive(),
        }

    def shut(self, sender: bytes) -> None:
        """Refuse whatever the connection sends from now on, until its next hello: a plug-in may
        have sent a second append before it hears that the first was refused, and `last_request`
        must not tell it one day that both are in the log."""
        if sender in self._connections:
            self._shut.add(sender)

    def heard(self, sender: bytes) -> None:
        """A request came from this connection: if it is a member's, its cluster is alive."""
        connection, newest = self._connections.get(sender), self.claims.known.newest
        if self.sign is not None and connection is not None:
            self.sign.greeted(connection.who.cluster_id)
            if (connection.who.plugin, newest) in self._by_plugin:
                self.sign.heard(newest)

    def connection(self, sender: bytes) -> Connection | ReadSession | None:
        """None if it has not said hello."""
        return self._connections.get(sender) or self._readers.get(sender)

    def bye(self, sender: bytes) -> None:
        """The plug-in of this connection has stopped: forget all its connections. A client that
        only reads ends only its own."""
        if sender not in self._connections:
            self._readers.pop(sender, None)
            return
        plugin = self._connections[sender].who.plugin
        for each in [
            each
            for each, connection in self._connections.items()
            if connection.who.plugin == plugin
        ]:
            del self._connections[each]
            self._shut.discard(each)
        for session in self._by_number.values():
            if session.plugin == plugin:
                session.writer = b""
        if self.sign is not None and not self._connections:
            self.sign.silent()

    def gone(self, sender: bytes) -> None:
        """This connection has ended: forget it. Its member may be alive, and connect again."""
        connection = self._connections.pop(sender, None)
        self._readers.pop(sender, None)
        self._shut.discard(sender)
        if connection is not None:
            for session in self._by_number.values():
                if session.writer == sender:
                    session.writer = b""

    def refusal(self, sender: bytes, number: int) -> tuple[str, str] | None:
        """Why this connection may not append for the session, as (code, text); None when it may."""
        session = self._by_number.get(number)
        if session is None or not session.writer:
            return "not-ready", "say hello first"
        if session.writer != sender:
            return "superseded", "a later connection of this plug-in has taken over"
        newest = self.claims.known.newest
        if session.incarnation != newest:
            return (
                "void-incarnation",
                f"this cluster's incarnation {session.incarnation} was followed by {newest}; "  # noqa: ISC004
                "say hello again",
            )
        if sender in self._shut:
            return "not-ready", "an earlier append of this connection was refused; say hello again"
        return None

    def session(self, number: int) -> Session:
        return self._by_number[number]

    def check_newest(self, batches: Sequence[CommitRequest]) -> None:
        """Called between sync and acknowledgement. If the log was claimed since, by another
        cluster or for a newer view of this one, older batches get an error. Costs one stat on a
        local file system."""
        current = self.claims.newest()
        for batch in batches:
            own = self._by_number[batch.session].incarnation if batch.session else current
            if own != current:
                what = (
                    f"this log was claimed after incarnation {own}, by another cluster or for a "
                    "newer view of this one"
                )
                batch.error = OutcomeUnknown(f"{what}; say hello again")
