"""Handles requests, one at a time: each is answered, or put in the ring and answered after its
commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgpack

from imap_wal import tracing
from imap_wal.agent.access.peers import Peer, Right, demand
from imap_wal.agent.bounds import Bounds
from imap_wal.agent.commit_spans import trace_commit
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.lane import TURN_S, Lane
from imap_wal.agent.lines import Lines
from imap_wal.agent.membership.claims import VoidIncarnation
from imap_wal.agent.membership.sessions import Connection, SessionRegistry
from imap_wal.agent.membership.start import NotLooked, Waits
from imap_wal.agent.mender import AgentLog
from imap_wal.agent.node_schemas import NodeSchemas
from imap_wal.agent.payloads import check_entries, without_front
from imap_wal.agent.pending import Pending
from imap_wal.agent.reads.reads import Reads
from imap_wal.agent.requests import (
    Append,
    Beat,
    Bye,
    Hello,
    Malformed,
    Metadata,
    OfDisk,
    Stat,
    View,
    Wish,
    version_of,
)
from imap_wal.agent.room import Room
from imap_wal.agent.transport.router import Message, Router
from imap_wal.clock import Clock
from imap_wal.errors import (
    Fenced,
    ImapWalError,
    NotAllowed,
    NotAppended,
    TooLarge,
)
from imap_wal.format import CLEARS, ENTRIES, METADATA
from imap_wal.schemas import BadSchema
from imap_wal.settings import Durability
from imap_wal.version import VERSION
from imap_wal.write.committer import Committer
from imap_wal.write.ring import CommitRequest
from storage_backends import StorageError

READS = ("keys", "list", "digests", "load", "maps", "schemas", "tail", "tail-read")

MALFORMED = (TypeError, ValueError, LookupError, AttributeError, msgpack.UnpackException)
"""The errors that reading a payload can raise if it is not as `docs/protocol.md` says."""


class RequestHandler:
    """Used by the serving thread."""

    def __init__(
        self,
        config: AgentConfig,
        bounds: Bounds,
        clock: Clock,
        lane: Lane,
        room: Room,
        lines: Lines,
        log: AgentLog,
        router: Router,
        reads: Reads,
        statistics: Callable[[], dict[str, Any]],
    ) -> None:
        """`router`: where requests come from; `reads` answers read requests, and `statistics`
        those for statistics."""
        self._config, self._bounds, self._clock = config, bounds, clock
        self._lane, self._lines, self._log = lane, lines, log
        self._router, self._reads, self._statistics = router, reads, statistics
        self.appends = self.duplicates = 0
        self.errors: dict[str, int] = {}
        """How many requests were answered with each code of an error."""
        self.kept = KeptHellos(clock, room)
        # All that a log opened later has is from this process.
        self._schemas = NodeSchemas(log.now.node_log.metadata)
        self._maps = Limit(
            "map",
            config.max_maps,
            lambda: reads.merges.maps,
            "Raise max_maps in the agent's configuration, or remove maps with `imap-wal drop` and "
            "start the agent again",
        )
        self._clear_counts = Limit(
            "partition count",
            CLEAR_COUNTS_MAX,
            lambda: reads.merges.clear_counts,
            "A cluster has one partition count; each one in the log's clears makes a restore "
            "slower. `imap-wal rewrite` and `prune` remove old clears",
        )

    @property
    def _sessions(self) -> SessionRegistry:
        return self._log.now.sessions

    @property
    def _committer(self) -> Committer:
        return self._log.now.writer.committer

    def take_up(self, pending: list[Pending]) -> None:
        """Serve the hellos whose look is done or takes too long, as many as fit into a turn."""
        until = self._clock.monotonic() + TURN_S
        for hello in self.kept.take_due(self._sessions.start.looked):
            self.handle(hello.message, pending, hello)
            if self._clock.monotonic() >= until:
                return

    def _keep(
        self, message: Message, before: KeptHello | None, error: NotLooked, pending: list[Pending]
    ) -> None:
        """Keep a hello until the next look is done, or refuse it if it has waited too long."""
        if before is not None and self.kept.is_late(before):
            trouble = self._sessions.sign.worker.trouble if self._sessions.sign is not None else ""
            self.refuse(message, "not-ready", f"{error}{trouble and f': {trouble}'}", pending)
        elif not self.kept.keep(message, error.look, before):
            self.refuse(
                message, "not-ready", "requests of other connections use all the memory", pending
            )

    def commit(self, pending: list[Pending]) -> None:
        """Commit the content of the ring, and answer."""
        if not pending:
            return
        tracer = tracing.current()
        began = self._clock.monotonic() if tracer is not None else 0.0
        acks_before = self._config.log.durability is Durability.ASYNC
        if acks_before:
            self._answer(pending)
        self._log.commit_ready()
        if not acks_before:
            self._answer(pending)
        if tracer is not None:
            trace_commit(tracer, self._committer, self._clock, began, pending)

    def handle(
        self, message: Message, pending: list[Pending], kept_hello: KeptHello | None = None
    ) -> None:
        """Answer a request, or queue it for its answer. Never raises, whatever the message is."""
        try:
            self._serve(message, pending, kept_hello)
            self._sessions.heard(message.sender)
        except TooLarge as error:
            self.refuse(message, "too-large", _text(error), pending)
        except TooMany as error:
            self._lines.warning("change refused", str(error), error=str(error))
            self.refuse(message, "full", str(error), pending)
        except BadSchema as error:  # the connection stays usable: no change was refused
            self._lines.warning(
                "schema refused",
                (self._router.peer(message.user).name, _text(error)),
                error=_text(error),
            )
            pending.append(
                Pending(
                    message.sender, message.request.number, refusal=("schema-refused", _text(error))
                )
            )
        except NotLooked as error:
            self._keep(message, kept_hello, error, pending)
        except Waits as error:
            self.refuse(message, "not-ready", _text(error), pending)
        except NotAllowed as error:
            peer, reason = self._router.peer(message.user).name, _text(error)
            self._lines.warning(
                "request refused",
                (message.kind, peer, reason),
                kind=message.kind,
                peer=peer,
                reason=reason,
            )
            self.refuse(message, "not-allowed", _text(error), pending)
        except VoidIncarnation as error:
            self.refuse(message, "void-incarnation", _text(error), pending)
        except MALFORMED as error:
            self.refuse(message, "bad-request", f"{message.kind}: {_text(error)}", pending)
        except (ImapWalError, StorageError) as error:
            self._lines.error(
                "request failed",
                (message.kind, _text(error)),
                kind=message.kind,
                error=_text(error),
            )
            self.refuse(message, "not-ready", _text(error), pending)
        except Exception as error:  # noqa: BLE001  # from a storage driver or a bug: other requests must be served
            self._lines.exception("request failed", (message.kind, _text(error)), kind=message.kind)
            self.refuse(message, "not-ready", f"{type(error).__name__}: {_text(error)}", pending)

    def _serve(
        self, message: Message, pending: list[Pending], kept_hello: KeptHello | None
    ) -> None:
        sender, request, peer = message.sender, message.request, self._router.peer(message.user)
        demand(peer, request)
        if Right.WRITE not in peer.rights:
            self._sessions.demote(sender)
        if isinstance(request, Malformed):
            self._malformed(message, request, pending)
        elif isinstance(request, Append | Metadata):
            self._append(message, request, pending)
        elif isinstance(request, Hello):
            self._hello(
                message, request, peer, look=kept_hello.number if kept_hello is not None else 0
            )
        elif isinstance(request, Stat):
            self._router.send(sender, ["stat", request.number, self._statistics()])
        elif isinstance(request, OfDisk):
            self.error(
                sender,
                request.number,
                "bad-request",
                f"{message.kind}: send this request to the agent's tail_endpoint",
            )
        elif (connection := self._sessions.connection(sender)) is None:
            self.error(sender, request.number, "not-ready", "send hello first")
        elif isinstance(request, View):
            self._view(sender, request.number, request.about, peer)
        elif isinstance(request, Beat):
            self._sessions.beat(sender, request)
            self._router.send(sender, ["beat", request.number, self._reads.work.parts])
        elif isinstance(request, Bye):
            self._log.commit_ready()  # so that nothing it sent is written after it was forgotten
            self._sessions.bye(sender)
            self._router.send(sender, ["bye", request.number])
        elif why := self._reads.ask(
            message, connection.partition_count, isinstance(connection, Connection)
        ):
            self.error(sender, request.number, "not-ready", why)

    def _malformed(self, message: Message, request: Malformed, pending: list[Pending]) -> None:
        if request.code != "bad-request":  # a hello: no append of this connection is waiting
            self.error(message.sender, request.number, request.code, request.text)
            return
        self.refuse(message, "bad-request", request.text, pending)

    def _hello(self, message: Message, request: Hello, peer: Peer, *, look: int) -> None:
        sender, number, about = message.sender, request.number, request.about
        if sender in self.kept:
            self.error(
                sender,
                number,
                "not-ready",
                "an earlier hello of this connection waits for its answer",
            )
            return
        if Right.WRITE not in peer.rights:
            reading = self._sessions.hello_to_read(sender, about, peer)
            self._welcome(sender, request, 0, reading.incarnation)
            return
        # Commit the earlier appends: `last_request` must be correct, and a new incarnation
        # begins after them.
        self._log.commit_ready()
        if self._committer.failure is not None:
            self.error(sender, number, "not-ready", str(self._committer.failure))
            return
        session, new = self._sessions.hello(sender, about, look, peer)
        if new:
            member = [
                "member",
                session.cluster_id,
                about.member_uuid,
                self._config.node,
                session.number,
                session.incarnation,
            ]
            batch = CommitRequest([msgpack.packb(member)], 1, kind=METADATA)
            self._committer.submit(batch)
            self._committer.wait(batch)
            batch.result()
            about_whom = {
                "cluster": session.cluster_id,
                "member": about.member_uuid,
                "peer": peer.name,
            }
            self._lines.info(
                "plug-in connected",
                session.number,
                session=session.number,
                incarnation=session.incarnation,
                **about_whom,
            )
        self._welcome(
            sender,
            request,
            session.number,
            session.incarnation,
            self._sessions.former(session.plugin),
        )

    def _welcome(
        self,
        sender: bytes,
        hello: Hello,
        session: int,
        incarnation: int,
        former: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`session` 0: none, because the peer may only read."""
        welcome = {
            "protocol": version_of(hello.about),
            "node": self._config.node,
            "session": session,
            "incarnation": incarnation,
            "last_request": self._log.now.node_log.requests.get(session, 0),
            "max_value_bytes": self._config.log.max_value_bytes,
            "max_message_bytes": self._bounds.message_bytes,
            "agent_version": VERSION,
            "former": former,
            "durable": self._config.log.durability == "always",
            "settling": True,
            "reports": True,
        }
        self._router.greeted(sender)
        self._router.send(sender, ["welcome", hello.number, welcome])

    def _view(self, sender: bytes, number: int, wish: Wish, peer: Peer) -> None:
        # Appends that arrived before this request belong to the view that it ends.
        self._log.commit_ready()
        if self._committer.failure is not None:
            self.error(sender, number, "not-ready", str(self._committer.failure))
            return
        view = self._sessions.view(sender, wish, peer)
        self._router.send(sender, ["view", number, view.incarnation, view.members])

    def _append(self, message: Message, request: Append | Metadata, pending: list[Pending]) -> None:
        sender, payload = message.sender, message.payload
        number, session, count = request.number, request.session, request.count
        failure = self._committer.failure
        refusal = (
            self._sessions.refusal(sender, session)
            if failure is None
            else ("not-ready", str(failure))
        )
        if refusal is not None:
            self.refuse(message, *refusal, pending)
            return
        if isinstance(request, Metadata):
            first = 0
            self._schemas.take(payload, count, self._reads.merges.schemas)
            batch = CommitRequest([payload], count, kind=METADATA)
        else:
            first, last = request.first, request.first + count - 1
            last_logged = self._log.now.node_log.requests.get(session, 0)
            if last <= last_logged:
                self.duplicates += count
                pending.append(Pending(sender, number, first, count))
                return
            connection = self._sessions.connection(sender)
            checked = check_entries(
                payload,
                count,
                (self._sessions.session(session).incarnation, session, first),
                self._config.log.max_value_bytes,
                connection.partition_count if connection is not None else 0,
            )
            self._maps.demand(checked.maps)
            if checked.clears and connection is not None:
                self._clear_counts.demand({connection.partition_count})
            entries = count
            if first <= last_logged:  # its first changes are in the log already
                payload, entries = (
                    without_front(payload, last_logged - first + 1),
                    last - last_logged,
                )
                self.duplicates += count - entries
            batch = CommitRequest(
                [payload],
                entries,
                kind=CLEARS if checked.clears else ENTRIES,
                session=session,
                request=last,
            )
        self._committer.submit(batch)
        self._lane.changes()
        self.appends += count
        pending.append(Pending(sender, number, first, count, batch))

    def _answer(self, pending: list[Pending]) -> None:
        for waiting in pending:
            error = None if waiting.batch is None else waiting.batch.error
            if waiting.refusal[0]:
                self.error(waiting.sender, waiting.number, *waiting.refusal)
            elif error is None:
                self._router.send(
                    waiting.sender, ["ack", waiting.number, waiting.first, waiting.count]
                )
            else:
                self._sessions.shut(waiting.sender)
                self.error(
                    waiting.sender,
                    waiting.number,
                    "full" if isinstance(error, NotAppended | Fenced) else "outcome-unknown",
                    str(error),
                )

    def refuse(self, message: Message, code: str, text: str, pending: list[Pending]) -> None:
        """Answer with an error, after the earlier answers. The log must always have a prefix of a
        session's changes: so after a refused append, all later ones of the connection are
        refused."""
        if message.kind not in READS:
            self._sessions.shut(message.sender)
        pending.append(Pending(message.sender, message.request.number, refusal=(code, text)))

    def error(self, to: bytes, number: int, code: str, text: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1
        self._router.send(
            to,
            [
                "error",
                number,
                code,
                f"{text} (agent of node {self._config.node!r} at {self._config.endpoint})",
            ],
        )


def _text(error: Exception) -> str:
    """The text of an error. It may quote a value from a peer, and then creating the text can
    fail."""
    try:
        return (
            str(error)
            if isinstance(error, ImapWalError | StorageError | ValueError)
            else repr(error)
        )
    except Exception as another:  # noqa: BLE001  # a __str__ may raise anything
        return f"{type(error).__name__}, which cannot be shown ({type(another).__name__})"


# Hellos whose answers need a look at the signs of other agents: they are kept until the look is
# done.

LOOK_S = 1.0
"""A hello that claims the log waits for a look at most for this time, which is shorter than the
wait of a plug-in."""


@dataclass(frozen=True, slots=True)
class KeptHello:
    """A hello whose answer depends on look `number`. `until`: when it is answered at the latest
    (monotonic seconds)."""

    message: Message
    number: int
    until: float


class KeptHellos:
    """At most one of each connection. Used by the serving thread."""

    def __init__(self, clock: Clock, room: Room) -> None:
        self._clock, self._room = clock, room
        self._kept: dict[bytes, KeptHello] = {}
        """By sender."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def __contains__(self, sender: bytes) -> bool:
        return sender in self._kept

    def __iter__(self) -> Iterator[KeptHello]:
        return iter(list(self._kept.values()))

    def is_late(self, hello: KeptHello) -> bool:
        """Whether it has waited for too long."""
        return self._clock.monotonic() >= hello.until

    def keep(self, message: Message, number: int, before: KeptHello | None) -> bool:
        """Keep a hello until the look with this number has ended. `before`: how it was kept until
        now. False if requests of other connections use all the memory."""
        if not self._room.enter(message.memory):
            return False
        until = self._clock.monotonic() + LOOK_S if before is None else before.until
        self._kept[message.sender] = KeptHello(message, number, until)
        return True

    def take(self, sender: bytes) -> KeptHello | None:
        """Remove and return the hello of this connection; None: there is none."""
        hello = self._kept.pop(sender, None)
        if hello is not None:
            self._room.leave(hello.message.memory)
        return hello

    def take_all(self) -> list[Message]:
        """Remove and return all of them."""
        return [hello.message for hello in self if self.take(hello.message.sender)]

    def take_due(self, looked: Callable[[int], bool]) -> Iterator[KeptHello]:
        """Remove and return, one after the other, those whose look is done, and those that have
        waited for too long."""
        for hello in self:
            if looked(hello.number) or self.is_late(hello):
                self.take(hello.message.sender)
                yield hello


# Limits on what a change may add to the work of every reader. Maps cost files in archives and
# snapshots; different partition counts of clears make each lookup of a restore longer.

T = TypeVar("T", str, int)

CLEAR_COUNTS_MAX = 8
"""How many different partition counts the clears of a log may have. A cluster has one. A reader
refuses a map with more than `clears.COUNTS_MAX`. Each agent counts for itself, and learns at its
next merge what other agents have admitted."""


class TooMany(NotAppended):
    """A change would add something new, such as a map, to a log that already has as many as are
    allowed."""


class Limit(Generic[T]):
    """Used by the serving thread. `of_log`: what the logs had when they were last read; None: they
    have not been read since the start. `what`, `advice`: for the text of the error."""

    def __init__(
        self, noun: str, most: int, of_log: Callable[[], AbstractSet[T] | None], advice: str
    ) -> None:
        self._what, self._most, self._advice = noun, most, advice
        self._of_log: Callable[[], AbstractSet[T] | None] = of_log
        self._known: set[T] = set()

    def demand(self, values: AbstractSet[T]) -> None:
        """Admit changes with these values. Raises `TooMany` if one of them is new and the limit is
        reached; what the log already has is always admitted."""
        if values <= self._known:
            return
        of_log = self._of_log()
        if of_log is not None:
            self._known |= of_log
        new = values - self._known
        if new and len(self._known) + len(new) > self._most:
            value = f"{self._what} {min(new)!r}"
            reason = (
                f"{value} is new, and there are {len(self._known)} others"
                if of_log is not None
                else f"{value} may be new: the logs have not been read since the start"
            )
            raise TooMany(f"{reason}; the limit is {self._most}. {self._advice}")
        self._known |= new
