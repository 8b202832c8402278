"""The connected members, with the incarnation of their cluster and the session that numbers their
changes, and the connected clients that only read.

    hello of a peer that may write   a `Connection` of a member, with a `Session`; it may claim
    hello of any other peer          a `ReadSession`: nothing is stored; not a sign of life
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from imap_wal.agent.access.peers import LOCAL, Peer
from imap_wal.agent.membership.claims import ClaimedView, Claims, Greeting
from imap_wal.agent.membership.clocks import Clocks
from imap_wal.agent.membership.liveness import SignOfLife, SignWatch
from imap_wal.agent.membership.reader_stalls import ReaderStalls
from imap_wal.agent.membership.reports import Reports
from imap_wal.agent.membership.start import AT_ONCE, Belonging, Start, StartPolicy, StartRules
from imap_wal.agent.membership.upkeep import Upkeep
from imap_wal.agent.requests import About, Beat, Wish
from imap_wal.clock import Clock
from imap_wal.entry import COPIES_MAX, ORDER, shared_session
from imap_wal.errors import LogError, NotAllowed, NotAppended, OutcomeUnknown
from imap_wal.format import START, Position
from imap_wal.manifest.node import UNKNOWN
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import CutBack, read_scan
from imap_wal.read.scan_list import node_scans
from imap_wal.read.state import ClusterState
from imap_wal.write.node_log import PLUGINS_KEPT, NodeLog
from imap_wal.write.ring import CommitRequest
from storage_backends import NotFound, StorageError


@dataclass(slots=True)
class Session:
    """One start of a plug-in. `writer`: the connection that may append, which is the last one that
    said hello with purpose `write`. `acks`: how many logs acknowledge each of its changes.
    `losses`: how many losses of other nodes were known when it last said hello. If another log
    acknowledged a change before a later loss, the loss may include that change. None: it appends
    nothing more."""

    number: int
    incarnation: int
    cluster_id: str
    plugin: str
    writer: bytes = b""
    acks: int = 1
    losses: int | None = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of a member, with the content of its hello."""

    who: Greeting
    partition_count: int


@dataclass(frozen=True, slots=True)
class ReadSession:
    """A connection of a client without the right to write. It is not a member, even if its hello
    names one: it has no session number, so it cannot append; it gets no view, and is not a sign of
    life. `incarnation`: the newest one when it said hello."""

    incarnation: int
    partition_count: int


IDLE_SESSIONS_KEPT = PLUGINS_KEPT
"""Sessions without a connection that are kept; `NodeManifest.plugins` keeps as many."""


class SessionRegistry:
    """All sessions of one run of an agent on one `NodeLog`. Used by the serving thread."""

    def __init__(
        self,
        log: NodeLog,
        cluster: ClusterLog,
        rules: StartRules = AT_ONCE,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """`look`: notices between commits that the log was lost (`Committer.look`). It is called
        whenever a sign is due."""
        self._log, self._cluster, self._look = log, cluster, look
        folder, node, timeout_s = (
            log.identity.cluster_folder,
            log.identity.node,
            rules.lifetime_timeout_s,
        )
        waits = rules.policy is not StartPolicy.PARTIAL
        self._belonging = Belonging(cluster) if waits else None
        watch = SignWatch(log.store, folder, timeout_s, log.clock, self._belonging)
        self.sign = (
            SignOfLife(
                log.store,
                folder,
                node,
                log.epoch,
                timeout_s,
                watch,
                log.clock,
                claimed_by=lambda: log.claims.read()[1].cluster_id,
                due=self._sign_due,
            )
            if timeout_s
            else None
        )
        self.clocks = Clocks(log.store, folder, node, rules.clock_skew_ms_max, log.clock)
        self.absent: tuple[str, ...] = ()
        """Nodes for which the next start of all members would wait, because they have no running
        agent now; none with `start_policy` partial. Replaced as a whole."""
        self.upkeep = Upkeep()
        """Replaced as a whole."""
        self.stalls = ReaderStalls()
        """Replaced as a whole."""
        self.start = Start(node, rules, watch, log.clock)
        self.claims = Claims(log, cluster, self.start)
        self._by_plugin: dict[tuple[str, int], Session] = {}
        self._by_number: dict[int, Session] = {}
        self._connections: dict[bytes, Connection] = {}
        self._readers: dict[bytes, ReadSession] = {}
        self.settling = Settling(log.clock)
        self.reports = Reports()
        self._shut: set[bytes] = set()
        """Connections with a refused append, until they say hello again."""

    def hello(
        self, sender: bytes, about: About, look: int = 0, peer: Peer = LOCAL
    ) -> tuple[Session, bool]:
        """The session of a plug-in that says hello, and whether it is new here. Claims an
        incarnation for a cluster id that has none, or has only an older one. `look`: see
        `Start.demand`. `peer`: the sender. Raises the errors of `Claims.enter`, and `NotAppended`
        if another claim was made meanwhile.

        A plug-in has a session for each incarnation: requests of an older incarnation may be void,
        and must not be treated as requests that are in the log."""
        plugin = about.plugin_uuid
        who = Greeting(about.cluster_id, about.member_uuid, plugin, about.view, about.token, peer)
        if self.sign is not None and self.claims.may_count(who):
            self.sign.greeted(who.cluster_id)
        incarnation = self.claims.enter(
            who, not any(uuid == plugin for uuid, _ in self._by_plugin), look
        )
        session = self._by_plugin.get((plugin, incarnation))
        new = session is None
        acks = max(1, about.acks) if about.shared else 1
        if session is None or acks < session.acks:
            shared = shared_session(plugin, incarnation) if about.shared else 0
            number = self._log.new_session(
                f"{plugin}/{incarnation}", self._ended(incarnation), shared, acks
            )
            if session is None:
                session = Session(number, incarnation, who.cluster_id, plugin)
            session.acks = acks
            self._by_plugin[plugin, incarnation] = self._by_number[session.number] = session
        self._readers.pop(sender, None)
        if about.purpose == "write":
            if session.writer != sender:
                self._connections.pop(session.writer, None)
                self._shut.discard(session.writer)
                self.settling.gone(session.writer)
                self.reports.gone(session.writer)
            session.writer = sender
        if self._log.context.address and (new or about.purpose == "write"):
            # After the claim, which may have counted losses, and before the welcome. Only logs on
            # own disks make promises.
            manifest = self._log.clusters.read()[1]
            session.losses = manifest.losses_but(self._log.identity.node)
        self._connections[sender] = Connection(who, about.partition_count or 0)
        self._shut.discard(sender)
        self._forget_old()
        return session, new

    def _sign_due(self) -> None:
        """On the thread of the sign. Raises StorageError."""
        self._look()
        if not self.clocks.look():
            return
        self.upkeep = self.upkeep.newer(self._cluster)
        if self._belonging is not None:
            running = self.clocks.seen | {self._log.identity.node}
            self.absent = tuple(node for node in self._belonging() if node not in running)
        self.stalls = self.stalls.newer(self._cluster, self._log.identity.node)

    def writers(self, losses: int) -> tuple[int, int]:
        """The fewest acknowledging logs and the fewest losses among the sessions that may append,
        see `LogContext.writers`. Sessions without a connection count too: what they sent may still
        be written, and acknowledged after their next hello. Losses count only in the newest
        incarnation: nothing of older ones is acknowledged any more."""
        newest, sessions = self.claims.known.newest, list(self._by_number.values())
        all_losses = [
            session.losses
            for session in sessions
            if session.losses is not None and session.incarnation >= newest
        ]
        acks = min((session.acks for session in sessions), default=COPIES_MAX)
        return acks, min(all_losses, default=losses)

    def hello_to_read(self, sender: bytes, about: About, peer: Peer) -> ReadSession:
        """The session of a client that may not write. Changes nothing outside this object, and only
        reads the storage. Raises `NotAllowed` if its cluster does not have the log, and
        `VoidIncarnation` if another cluster followed it."""
        who = Greeting(
            about.cluster_id, about.member_uuid, about.plugin_uuid, about.view, about.token, peer
        )
        read_session = ReadSession(self.claims.of_reader(who), about.partition_count or 0)
        self.gone(sender)
        self._readers[sender] = read_session
        return read_session

    def demote(self, sender: bytes) -> None:
        """The peer of this connection has lost the right to write: it is no longer a member."""
        if sender in self._connections:
            self.gone(sender)

    def _forget_old(self) -> None:
        """Keep only the newest sessions without a connection. The others have no uncommitted
        requests, because a hello commits first."""
        if len(self._by_number) <= IDLE_SESSIONS_KEPT:
            return
        connected = {connection.who.plugin for connection in self._connections.values()}
        idle = [
            session
            for number, session in sorted(self._by_number.items())
            if session.plugin not in connected
        ]
        for session in idle[:-IDLE_SESSIONS_KEPT]:
            del (
                self._by_number[session.number],
                self._by_plugin[session.plugin, session.incarnation],
            )

    def _ended(self, incarnation: int) -> dict[int, int]:
        """Session of an earlier incarnation → its last request that counts, without the sessions
        for which the node's manifest already has this. Raises `NotAppended`."""
        manifest = self._log.manifests.read()[1]
        incarnations = {
            number: int(entered.rpartition("/")[2]) for entered, number in manifest.plugins.items()
        }
        ended = {
            number: own
            for number, own in incarnations.items()
            if own < incarnation and number not in manifest.former
        }
        last_requests = last_that_count(self._log, self._cluster, ended) if ended else {}
        if last_requests and self.claims.newest() != incarnation:
            raise NotAppended(
                f"incarnation {incarnation} was followed by another one during this hello; the "
                "plug-in has to say hello again"
            )
        return last_requests

    def former(self, plugin: str) -> list[tuple[int, int]]:
        """(session, last request that counts) of the earlier sessions of a plug-in."""
        manifest = self._log.manifests.read()[1]
        numbers = sorted(
            number
            for entered, number in manifest.plugins.items()
            if entered.rpartition("/")[0] == plugin
        )
        return [
            (number, last)
            for number in numbers
            if (last := manifest.former.get(number, UNKNOWN)) != UNKNOWN
        ]

    def view(self, sender: bytes, wish: Wish, peer: Peer = LOCAL) -> ClaimedView:
        """The view that a member requests, without the lost members. `peer`: the sender, with its
        current rights. Raises `NotAllowed`, `VoidIncarnation`, and ValueError for a request that
        contradicts the hello."""
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
        """Which cluster may write, in which incarnation, and whether its members may be alive; the
        last known state if the storage cannot be reached."""
        with suppress(StorageError):
            self.claims.newest()
        claims, alive = self.claims.known, self.start.alive()
        if alive:  # a member that was left out asks again until it is not
            self.start.look_again()
        return {"cluster_id": claims.cluster_id, "incarnation": claims.newest, "alive": alive}

    def members(self) -> list[dict[str, Any]]:
        """The members that are connected and have said hello, for `stat`: UUID, name of the peer,
        number of connections, the session in which it may append here (0: in none), how many
        partitions it still compares with the log, whether another cluster has claimed the log, and
        which of its maps are durable (None: it has not reported that)."""
        members_by_plugin: dict[str, dict[str, Any]] = {}
        lost = self._superseded()
        for sender, connection in list(self._connections.items()):
            who = connection.who
            about = {
                "member": who.member,
                "peer": who.peer.name,
                "session": 0,
                "connections": 0,
                "settling": 0,
                "superseded": lost.get(who.plugin, False),
                "maps": None,
            }
            member = members_by_plugin.setdefault(who.plugin, about)
            member["connections"] += 1
            member["settling"] += self.settling.of(sender)
            member["maps"] = self.reports.of(sender) or member["maps"]
        for session in list(self._by_number.values()):
            if session.writer and session.plugin in members_by_plugin:
                members_by_plugin[session.plugin]["session"] = session.number
        return list(members_by_plugin.values())

    def connected(self) -> tuple[int, int]:
        """How many members are connected, and how many of them have lost the log to another
        cluster. Safe to call from any thread; asks nothing of the storage."""
        by_plugin = self._superseded()
        return len(by_plugin), sum(by_plugin.values())

    def _superseded(self) -> dict[str, bool]:
        """Of each connected plug-in, whether another cluster has claimed the log, as far as is
        known: all its connections are of a former one. Its member cannot change the log any more.
        Without changes it does not notice that."""
        cluster_id, newest = self.claims.known.cluster_id, self.claims.known.newest
        followed = self.sign.followed if self.sign is not None else None
        if followed is not None and followed[0] == newest:  # else it is older than the known claims
            cluster_id = followed[1]
        by_plugin: dict[str, bool] = {}
        for connection in list(self._connections.values()):
            is_former = connection.who.cluster_id != cluster_id
            by_plugin[connection.who.plugin] = (
                by_plugin.get(connection.who.plugin, True) and is_former
            )
        return by_plugin

    def shut(self, sender: bytes) -> None:
        """Refuse all appends of this connection until its next hello. A plug-in may have sent a
        second append before it learns that the first one was refused; if the second one were
        logged, `last_request` would say that both are in the log."""
        if sender in self._connections:
            self._shut.add(sender)

    def heard(self, sender: bytes) -> None:
        """A request arrived from this connection. If it is a member's, its cluster is alive."""
        connection = self._connections.get(sender)
        if self.sign is not None and connection is not None:
            self.sign.greeted(connection.who.cluster_id)
            if self._is_alive(connection):
                self.sign.heard(self.claims.known.newest)

    def beat(self, sender: bytes, beat: Beat) -> None:
        """A beat of a member says how many of its partitions are not yet compared with the log, and
        which of its maps and structures are durable."""
        if sender in self._connections:
            self.settling.told(sender, beat.settling)
            if beat.report is not None:
                self.reports.told(sender, beat.report)

    def connection(self, sender: bytes) -> Connection | ReadSession | None:
        """The connection of this sender; None: it has not said hello."""
        return self._connections.get(sender) or self._readers.get(sender)

    def bye(self, sender: bytes) -> None:
        """The plug-in of this connection has stopped: remove all its connections. For a client that
        only reads, remove this connection."""
        if sender not in self._connections:
            self._readers.pop(sender, None)
            return
        plugin = self._connections[sender].who.plugin
        for ended in [
            connected
            for connected, connection in self._connections.items()
            if connection.who.plugin == plugin
        ]:
            del self._connections[ended]
            self._shut.discard(ended)
            self.settling.gone(ended)
            self.reports.gone(ended)
        for session in self._by_number.values():
            if session.plugin == plugin:
                session.writer = b""
                # It appends nothing more without a hello.
                session.acks, session.losses = COPIES_MAX, None
        if self.sign is not None and not self._connections:
            self.sign.silent()

    def gone(self, sender: bytes) -> None:
        """This connection has ended: remove it. Its member may be alive and connect again."""
        connection = self._connections.pop(sender, None)
        self._readers.pop(sender, None)
        self._shut.discard(sender)
        self.settling.gone(sender)
        self.reports.gone(sender)
        if connection is not None:
            for session in self._by_number.values():
                if session.writer == sender:
                    session.writer = b""
            if (
                self.sign is not None
                and self._is_alive(connection)
                and not any(map(self._is_alive, self._connections.values()))
            ):
                self.sign.left(connection.who.cluster_id)

    def _is_alive(self, connection: Connection) -> bool:
        """Whether it is a member of the newest incarnation."""
        return (connection.who.plugin, self.claims.known.newest) in self._by_plugin

    def refusal(self, sender: bytes, number: int) -> tuple[str, str] | None:
        """Why this connection may not append for the session, as (code, text); None: it may."""
        session = self._by_number.get(number)
        if session is None or not session.writer:
            return "not-ready", "send hello first"
        if session.writer != sender:
            return "superseded", "a later connection of this plug-in has taken over"
        newest = self.claims.known.newest
        if session.incarnation != newest:
            reason = f"this cluster's incarnation {session.incarnation} was followed by {newest}"
            return "void-incarnation", f"{reason}; the plug-in has to say hello again"
        if sender in self._shut:
            refused = "an earlier append of this connection was refused"
            return "not-ready", f"{refused}; the plug-in has to say hello again"
        return None

    def session(self, number: int) -> Session:
        return self._by_number[number]

    def check_newest(self, batches: Sequence[CommitRequest]) -> None:
        """Called between sync and acknowledgement. If the log was claimed meanwhile, by another
        cluster or for a newer view of this one, older batches get an error. This costs one stat on
        a local file system."""
        current = self.claims.newest()
        for batch in batches:
            own = self._by_number[batch.session].incarnation if batch.session else current
            if own != current:
                reason = (
                    f"this log was claimed after incarnation {own}, by another cluster or for a "
                    "newer view of this one"
                )
                batch.error = OutcomeUnknown(reason)


# How many partitions the connected members have not yet compared with the log, as their beats say.
# Until then, operations on them wait.


class Settling:
    """Used by the serving thread; `partitions`, `seconds` and `running_s` by any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_sender: dict[bytes, int] = {}
        self._time: tuple[float, float | None] = (0.0, None)
        """Seconds until the last time when there were none, and since when there are some. Replaced
        as a whole."""

    @property
    def partitions(self) -> int:
        return sum(list(self._by_sender.values()))

    @property
    def running_s(self) -> float:
        """For how long there have been any without a break; 0: there are none."""
        _, since = self._time
        return 0.0 if since is None else max(0.0, self._clock.monotonic() - since)

    @property
    def seconds(self) -> float:
        """For how long there were any, since the log was opened."""
        before, since = self._time
        return before if since is None else before + max(0.0, self._clock.monotonic() - since)

    def of(self, sender: bytes) -> int:
        return self._by_sender.get(sender, 0)

    def told(self, sender: bytes, partitions: int) -> None:
        """A beat of this connection said how many."""
        if partitions:
            self._by_sender[sender] = partitions
        else:
            self._by_sender.pop(sender, None)
        _, since = self._time
        if self._by_sender and since is None:
            self._time = self._time[0], self._clock.monotonic()
        elif not self._by_sender and since is not None:
            self._time = self.seconds, None

    def gone(self, sender: bytes) -> None:
        self.told(sender, 0)


# Which requests of a session count after its incarnation was followed by another one: those up to a
# cutoff.
#
# A member of the old view that is also in the new one gets this in the answer to its hello. It
# acknowledges the requests that count, and sends the others again. So this answer must never
# change. It depends on the cutoffs of the lifetimes that have begun. The caller checks afterwards
# that the newest of them still has its permit: then every later cutoff is above what was read here.


def last_that_count(
    log: NodeLog, cluster: ClusterLog, sessions: Mapping[int, int]
) -> dict[int, int]:
    """Session → its last request that counts; 0: none; or `UNKNOWN`. `sessions`: of this node, with
    their incarnations, all of which were followed by others. Nothing is appended for them
    meanwhile."""
    last = {session: log.requests.get(session, 0) for session in sessions}
    if not any(last.values()):
        return last
    number, manifest = cluster.manifests.read()
    node = log.identity.node
    cuts = {
        session: min(
            lifetime.cuts.get(node, START)
            for lifetime in manifest.lifetimes
            if lifetime.incarnation > incarnation
        )
        for session, incarnation in sessions.items()
    }
    first_cut = min(cuts.values())
    if first_cut >= log.end:
        return last
    for _ in range(ATTEMPTS):
        state = cluster.node(node)
        removed = state.manifest.removed
        if first_cut == START:
            break
        scans = node_scans(
            ClusterState(manifest, {node: state}, {}, number), node, since=first_cut, covered=True
        )
        try:
            above = _first_above(cluster, scans, cuts)
        except NotFound:
            continue  # it was archived or removed after it was listed
        except LogError:
            break
        return {
            session: UNKNOWN
            if removed > cuts[session]
            else min(request, above.get(session, request + 1) - 1)
            for session, request in last.items()
        }
    return {session: UNKNOWN if request else 0 for session, request in last.items()}


def _first_above(
    cluster: ClusterLog, scans: Iterable[FileScan], cuts: Mapping[int, Position]
) -> dict[int, int]:
    """Session → its first request in an entry above its cutoff."""
    firsts: dict[int, int] = {}
    for scan in scans:
        raw = replace(scan, cuts=())
        try:
            _look(cluster, raw, cuts, firsts)
        except CutBack:  # an open removed the frame that was the last one at the cutoff
            _look(cluster, replace(raw, since=None), cuts, firsts)
    return firsts


def _look(
    cluster: ClusterLog, scan: FileScan, cuts: Mapping[int, Position], firsts: dict[int, int]
) -> None:
    for changes in read_scan(cluster.context, scan, positions=True):
        for row, place in zip(changes.rows, changes.positions or (), strict=True):
            _, _, session, request = row[ORDER]
            if session in cuts and place > cuts[session]:
                firsts[session] = min(request, firsts.get(session, request))
