"""The agent's loop: receive all waiting requests, put the appends in the ring, commit once, answer.

While a commit runs, requests collect in the socket: the higher the load, the larger the commits.
The write path uses only one thread.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import msgpack
import structlog

from imap_wal import entry, layout
from imap_wal.agent.bounds import bounds, raise_file_limit, wanted_files
from imap_wal.agent.claims import VoidIncarnation
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.endpoint import IPC, EndpointLock
from imap_wal.agent.gate import check_pair
from imap_wal.agent.lane import TURN_S, Lane
from imap_wal.agent.lines import Lines
from imap_wal.agent.mender import Mender
from imap_wal.agent.open_log import OpenLog
from imap_wal.agent.peers import Peer, Right, demand
from imap_wal.agent.reads import Reads
from imap_wal.agent.requests import (
    SUPPORTED,
    Append,
    Beat,
    Bye,
    Hello,
    Malformed,
    Metadata,
    Stat,
    View,
    Wish,
)
from imap_wal.agent.room import Room
from imap_wal.agent.start import NotLooked, Waits
from imap_wal.agent.transport import Message, Router
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.encryption import open_store
from imap_wal.entry import (
    HIGHEST,
    KEY,
    LOWEST,
    MAP,
    ORDER,
    PARTITION,
    PARTITION_COUNT,
    PARTITION_MAX,
    VALUE,
)
from imap_wal.errors import (
    Fenced,
    ImapWalError,
    NotAllowed,
    NotAppended,
    StorageUnavailable,
    TooLarge,
)
from imap_wal.format import CLEARS, ENTRIES, METADATA, PAYLOAD_BYTES_MAX
from imap_wal.read.cluster import ClusterLog, from_manifest
from imap_wal.read.view import MaterializedView
from imap_wal.schemas import BadSchema, Schema, check_known, read_schema, sound_schemas
from imap_wal.settings import Durability, mode
from imap_wal.version import VERSION
from imap_wal.worker import Worker
from imap_wal.write.committer import CommitRequest
from imap_wal.write.opening import holder_text
from storage_backends import StorageError
from storage_backends.ownership import doubts

TICK_MS = 200
LOOK_S, LOOK_TICK_MS = 1.0, 10
"""A hello that claims the log waits for a look at the signs of other agents, at most for this time,
which is shorter than a plug-in's connect-timeout-ms."""
STOP_S = 1.0
"""How long a stop serves waiting hellos and similar requests; the rest is refused."""
CLOSE_S = 5.0
"""How long a stop waits for a log that is being opened again."""

STOPS = "the agent stops"

READS = ("keys", "list", "load", "maps", "schemas")
SLOW = Hello | View | Stat | Bye | Malformed
"""Requests without changes, which may take as long as a commit: they wait in the lane."""

MALFORMED = (TypeError, ValueError, LookupError, AttributeError, msgpack.UnpackException)
"""What reading a payload can raise if it is not as in `docs/protocol.md`."""

_log = structlog.get_logger("imap_wal.agent")


@dataclass(frozen=True, slots=True)
class Pending:
    """An append in the ring, with the data for its answer. Without a batch: an answer that must
    stay after the earlier answers."""

    sender: bytes
    number: int
    first: int = 0
    count: int = 0
    batch: CommitRequest | None = None
    refusal: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Kept:
    """A hello whose answer depends on look `number`. `until`: when it is answered at the latest
    (monotonic seconds)."""

    message: Message
    number: int
    until: float


class Agent:
    """One run of the agent. `serve` returns after `stop`. Raises `InvalidSetting`, and the errors
    of `open_node_log`."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self._clock = SystemClock(config.clock_offset_ms)
        randomness = SystemRandomness()
        self._store = open_store(config.url, wal_dir=config.wal_dir)
        self._all_logs = ClusterLog(
            self._store, config.namespace, config.cluster, self._clock, randomness
        )
        self._stopping = False
        self._appends = self._duplicates = 0
        self._started = self._clock.monotonic()
        self._mender: Mender[OpenLog] | None = None
        self._kept: dict[bytes, Kept] = {}
        """By sender."""
        self._schemas: dict[int, Schema] = {}
        """The schemas that this agent wrote or found in its node's manifest. `Reads` has the
        others."""
        self._lines = Lines(self._clock)
        self._room = Room()
        self._lane = Lane(self._clock, self._room)
        self.bounds = bounds(
            config.connections_max,
            config.log.max_value_bytes,
            local=config.endpoint.startswith(IPC),
        )
        with ExitStack() as opened:
            opened.callback(self._store.close)
            owner = f"the agent of node {config.node!r} of {config.namespace}/{config.cluster}"
            # Before the log: an agent that is refused here must change nothing.
            endpoint = EndpointLock(
                config.endpoint,
                owner,
                holder_text(owner),
                takeover=config.takeover,
                mode=mode(config.endpoint_mode, "endpoint_mode"),
            )
            opened.callback(endpoint.release)
            rules = config.access.rules(self._clock)
            if rules is not None and rules.own is not None:
                check_pair(rules.own)
            self._use(OpenLog(config, self._all_logs, takeover=config.takeover))
            opened.callback(self._log.close, clean=True)
            self._router = Router(endpoint, self.bounds, rules, self._clock, self._lines)
            opened.pop_all()
        self._reads = Reads(
            MaterializedView(self._all_logs, config.log),
            self._router.outbox,
            lambda: self._committer.statistics.bytes,
            self._router.door.shut,
            lambda message: demand(self._router.peer(message.user), message.request),
            at_once=config.restore_at_start,
            clock=self._clock,
            randomness=randomness,
            room=self._room,
            lines=self._lines,
        )

    def _use(self, log: OpenLog) -> None:
        self._log = log
        self._node_log, self._sessions = log.node_log, log.sessions
        self._committer, self._maintenance = log.writer.committer, log.writer.maintenance
        sound, _ = sound_schemas(map(from_manifest, log.node_log.metadata))
        self._schemas = sound | self._schemas

    def stop(self) -> None:
        """Make `serve` return after the current commit. Safe in a signal handler."""
        self._stopping = True

    def serve(self, ready: Callable[[], None] | None = None) -> None:
        """Serve requests until `stop`; then commit what waits and write the clean-shutdown frame.
        Raises `Fenced` if another process takes over the log."""
        if ready is not None:
            ready()
        clean = False
        try:
            while not self._stopping:
                self._turn(TICK_MS)
            self._turn(0)  # requests that arrived before the signal
            self._end_lane()
            clean = True
        finally:
            with ExitStack() as closing:  # each callback runs, even if another one raises
                closing.callback(self._store.close)
                closing.callback(lambda: self._router.close(wait=self._reads.worker.stop(0)))
                closing.callback(self._close_log, clean)
                closing.callback(self._close_reads)
        _log.info("stopped", node=self.config.node, appends=self._appends)

    def _close_reads(self) -> None:
        self._reads.close()
        left = self._reads.unanswered()
        for message in left:
            self._error(message.sender, message.request.number, "not-ready", STOPS)

    def _close_log(self, clean: bool) -> None:
        if self._mender is not None:
            self._mender.stop(CLOSE_S)
            return
        try:
            self._log.close(clean)
        except StorageError as error:
            if clean:
                raise StorageUnavailable(
                    f"closing the log of node {self.config.node!r}: {error}; what was "
                    "acknowledged is in it"
                ) from error
            _log.warning("the log could not be closed", node=self.config.node, error=str(error))

    # ---- one turn ----

    def _turn(self, timeout_ms: int) -> None:
        pending: list[Pending] = []
        if self._kept:
            timeout_ms = min(timeout_ms, LOOK_TICK_MS)
        for message in self._router.receive(self._lane.wait_ms(timeout_ms)):
            if isinstance(message.request, SLOW):
                self._put_aside(message, pending)
            else:
                self._handle(message, pending)
        self._take_up(pending)
        self._commit(pending)
        for message in self._reads.unanswered():  # the thread of reads is dead
            self._read_refused(message)
        self._serve_lane()
        self._lines.settle()
        for sender in self._router.gone():
            self._forget(sender)
        self._mend()

    def _commit(self, pending: list[Pending]) -> None:
        """Commit the content of the ring, and answer."""
        if not pending:
            return
        acks_before = self.config.log.durability is Durability.ASYNC
        if acks_before:
            self._answer(pending)
        if (
            self._mender is None
        ):  # otherwise the ring is empty, and the mender may be waiting for the storage
            self._committer.commit_ready()
        if not acks_before:
            self._answer(pending)

    def _put_aside(self, message: Message, pending: list[Pending]) -> None:
        """Queue a request in the lane."""
        if isinstance(message.request, Malformed) and message.kind not in READS:
            self._sessions.shut(message.sender)  # at once, before the request is served
        if not self._lane.put(message):
            self._refuse(message, "not-ready", "too many requests wait for their answers", pending)

    def _serve_lane(self) -> None:
        """Serve due requests from the lane: only one while changes arrive."""
        until = self._clock.monotonic() + TURN_S
        while (message := self._lane.take()) is not None:
            began = self._clock.monotonic()
            self._serve_waiting(message)
            self._lane.took(began)
            if self._lane.busy or self._clock.monotonic() >= until:
                return

    def _end_lane(self) -> None:
        """At a stop: serve waiting requests for `STOP_S`, and refuse the rest."""
        until = self._clock.monotonic() + STOP_S
        while (message := self._lane.take(at_once=True)) is not None:
            if self._clock.monotonic() < until:
                self._serve_waiting(message)
            else:
                self._error(message.sender, message.request.number, "not-ready", STOPS)
        for sender in list(self._kept):
            if kept := self._unkeep(sender):
                self._error(sender, kept.message.request.number, "not-ready", STOPS)

    def _serve_waiting(self, message: Message) -> None:
        pending: list[Pending] = []
        self._handle(message, pending)
        self._commit(pending)

    def _forget(self, sender: bytes) -> None:
        """A connection has ended."""
        self._sessions.gone(sender)
        self._lane.forget(sender)
        self._reads.forget(sender)
        self._unkeep(sender)

    def _read_refused(self, message: Message) -> None:
        self._error(
            message.sender,
            message.request.number,
            "restore-failed",
            f"{self._reads.worker.trouble}; start the agent again",
        )

    def _take_up(self, pending: list[Pending]) -> None:
        """Serve the hellos whose look is done or takes too long, as many as fit into a turn."""
        until = self._clock.monotonic() + TURN_S
        for sender, kept in list(self._kept.items()):
            looked = self._sessions.start.looked(kept.number)
            if looked or self._clock.monotonic() >= kept.until:
                self._unkeep(sender)
                self._handle(kept.message, pending, kept)
                if self._clock.monotonic() >= until:
                    return

    def _keep(
        self, message: Message, before: Kept | None, error: NotLooked, pending: list[Pending]
    ) -> None:
        """Keep a hello until the next look is done, or refuse it if it has waited too long."""
        until = self._clock.monotonic() + LOOK_S if before is None else before.until
        if before is not None and self._clock.monotonic() >= until:
            trouble = self._sessions.sign.worker.trouble if self._sessions.sign is not None else ""
            self._refuse(message, "not-ready", f"{error}{trouble and f': {trouble}'}", pending)
            return
        if self._room.enter(message.memory):
            self._kept[message.sender] = Kept(message, error.look, until)
        else:
            self._refuse(
                message, "not-ready", "requests of other connections take all the room", pending
            )

    def _unkeep(self, sender: bytes) -> Kept | None:
        """Remove and return the hello of this connection that waits for a look; None: there is
        none."""
        kept = self._kept.pop(sender, None)
        if kept is not None:
            self._room.leave(kept.message.memory)
        return kept

    def _handle(self, message: Message, pending: list[Pending], kept: Kept | None = None) -> None:
        """Answer a request, or queue it for its answer. Raises nothing for any message."""
        try:
            self._serve(message, pending, kept)
            self._sessions.heard(message.sender)
        except TooLarge as error:
            self._refuse(message, "too-large", _text(error), pending)
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
            self._keep(message, kept, error, pending)
        except Waits as error:
            self._refuse(message, "not-ready", _text(error), pending)
        except NotAllowed as error:
            peer, reason = self._router.peer(message.user).name, _text(error)
            self._lines.warning(
                "request refused",
                (message.kind, peer, reason),
                kind=message.kind,
                peer=peer,
                reason=reason,
            )
            self._refuse(message, "not-allowed", _text(error), pending)
        except VoidIncarnation as error:
            self._refuse(message, "void-incarnation", _text(error), pending)
        except MALFORMED as error:
            self._refuse(message, "bad-request", f"{message.kind}: {_text(error)}", pending)
        except (ImapWalError, StorageError) as error:
            self._lines.error(
                "request failed",
                (message.kind, _text(error)),
                kind=message.kind,
                error=_text(error),
            )
            self._refuse(message, "not-ready", _text(error), pending)
        except Exception as error:  # noqa: BLE001  # from a storage driver or a bug: other requests must be served
            self._lines.exception("request failed", (message.kind, _text(error)), kind=message.kind)
            self._refuse(message, "not-ready", f"{type(error).__name__}: {_text(error)}", pending)

    def _serve(self, message: Message, pending: list[Pending], kept: Kept | None) -> None:
        sender, request, peer = message.sender, message.request, self._router.peer(message.user)
        demand(peer, request)
        if Right.WRITE not in peer.rights:
            self._sessions.demote(sender)
        if isinstance(request, Malformed):
            self._malformed(message, request, pending)
        elif isinstance(request, Append | Metadata):
            self._append(message, request, pending)
        elif isinstance(request, Hello):
            self._hello(message, request, peer, look=kept.number if kept is not None else 0)
        elif isinstance(request, Stat):
            self._router.send(sender, ["stat", request.number, self.statistics()])
        elif (connection := self._sessions.connection(sender)) is None:
            self._error(sender, request.number, "not-ready", "say hello first")
        elif isinstance(request, View):
            self._view(sender, request.number, request.about, peer)
        elif isinstance(request, Beat):
            self._router.send(sender, ["beat", request.number])
        elif isinstance(request, Bye):
            self._sessions.bye(sender)
            self._router.send(sender, ["bye", request.number])
        elif why := self._reads.ask(message, connection.partition_count):
            self._error(sender, request.number, "not-ready", why)

    def _malformed(self, message: Message, request: Malformed, pending: list[Pending]) -> None:
        if request.protocol:
            text = (
                f"this agent speaks protocol {SUPPORTED}, not {request.protocol}; use plug-in "
                "and agent of one release"
            )
            self._error(message.sender, request.number, "unsupported-version", text)
            return
        self._refuse(message, "bad-request", request.text, pending)

    def _hello(self, message: Message, request: Hello, peer: Peer, *, look: int) -> None:
        sender, number, about = message.sender, request.number, request.about
        if sender in self._kept:
            self._error(
                sender,
                number,
                "not-ready",
                "an earlier hello of this connection waits for its answer",
            )
            return
        if Right.WRITE not in peer.rights:
            reading = self._sessions.hello_to_read(sender, about, peer)
            self._welcome(sender, number, 0, reading.incarnation)
            return
        if self._mender is None:
            # Commit the earlier appends: `last_request` must be correct, and a new incarnation
            # begins after them.
            self._committer.commit_ready()
        if self._committer.failure is not None:
            self._error(sender, number, "not-ready", str(self._committer.failure))
            return
        session, new = self._sessions.hello(sender, about, look, peer)
        if new:
            member = [
                "member",
                session.cluster_id,
                about.member_uuid,
                self.config.node,
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
            number,
            session.number,
            session.incarnation,
            self._sessions.former(session.plugin),
        )

    def _welcome(
        self,
        sender: bytes,
        number: int,
        session: int,
        incarnation: int,
        former: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`session` 0: none, because the peer may only read."""
        welcome = {
            "protocol": SUPPORTED,
            "node": self.config.node,
            "session": session,
            "incarnation": incarnation,
            "last_request": self._node_log.requests.get(session, 0),
            "max_value_bytes": self.config.log.max_value_bytes,
            "max_message_bytes": self.bounds.message_bytes,
            "agent_version": VERSION,
            "former": former,
        }
        self._router.door.greeted(sender)
        self._router.send(sender, ["welcome", number, welcome])

    def _view(self, sender: bytes, number: int, wish: Wish, peer: Peer) -> None:
        if self._mender is None:
            # Appends that arrived before this request belong to the view that it ends.
            self._committer.commit_ready()
        if self._committer.failure is not None:
            self._error(sender, number, "not-ready", str(self._committer.failure))
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
            self._refuse(message, *refusal, pending)
            return
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise TooLarge(f"one message of {len(payload)} bytes; it takes less than 2 GiB")
        if isinstance(request, Metadata):
            first = 0
            self._schemas.update(_schemas(payload, count, self._reads.schemas | self._schemas))
            batch = CommitRequest([payload], count, kind=METADATA)
        else:
            first, last = request.first, request.first + count - 1
            known = self._node_log.requests.get(session, 0)
            if last <= known:
                self._duplicates += count
                pending.append(Pending(sender, number, first, count))
                return
            connection = self._sessions.connection(sender)
            clears = _check_entries(
                payload,
                count,
                (self._sessions.session(session).incarnation, session, first),
                self.config.log.max_value_bytes,
                connection.partition_count if connection is not None else 0,
            )
            entries = count
            if first <= known:  # its first changes are in the log already
                payload, entries = _without_front(payload, known - first + 1), last - known
                self._duplicates += count - entries
            batch = CommitRequest(
                [payload],
                entries,
                kind=CLEARS if clears else ENTRIES,
                session=session,
                request=last,
            )
        self._committer.submit(batch)
        self._lane.changes()
        self._appends += count
        pending.append(Pending(sender, number, first, count, batch))

    def _answer(self, pending: list[Pending]) -> None:
        for each in pending:
            error = None if each.batch is None else each.batch.error
            if each.refusal[0]:
                self._error(each.sender, each.number, *each.refusal)
            elif error is None:
                self._router.send(each.sender, ["ack", each.number, each.first, each.count])
            else:
                self._sessions.shut(each.sender)
                self._error(
                    each.sender,
                    each.number,
                    "full" if isinstance(error, NotAppended | Fenced) else "outcome-unknown",
                    str(error),
                )

    def _refuse(self, message: Message, code: str, text: str, pending: list[Pending]) -> None:
        """Answer with an error, after the earlier answers. The log must always have a prefix of a
        session's changes: so after a refused append, all later ones of the connection are
        refused."""
        if message.kind not in READS:
            self._sessions.shut(message.sender)
        pending.append(Pending(message.sender, message.request.number, refusal=(code, text)))

    def _error(self, to: bytes, number: int, code: str, text: str) -> None:
        self._router.send(
            to,
            [
                "error",
                number,
                code,
                f"{text} (agent of node {self.config.node!r} at {self.config.endpoint})",
            ],
        )

    # ---- maintenance ----

    def _mend(self) -> None:
        """After a failed write or sync: close the failed epoch, and open the next one when the
        storage can be reached. Until then every request is refused, with the reason."""
        failure = self._committer.failure
        if failure is None:
            return
        if isinstance(failure, Fenced):
            raise failure
        if self._mender is None:
            _log.error("log failed", node=self.config.node, error=str(failure))
            self._mender = Mender(
                self._log, lambda: OpenLog(self.config, self._all_logs), self.config.node
            )
        if self._mender.opened is not None:
            self._use(self._mender.opened)
            self._mender = None

    def _archive(self) -> None:
        self._log.archive()

    def _workers(self) -> list[Worker]:
        """The current background threads."""
        return [
            self._reads.worker,
            *self._router.workers,
            *self._log.workers,
            *([self._mender.worker] if self._mender is not None else []),
        ]

    def statistics(self) -> dict[str, Any]:
        """The answer to `stat`: a snapshot of plain values."""
        workers = self._workers()
        reasons = [str(self._committer.failure or ""), *(worker.trouble for worker in workers)]
        failure = "; ".join(reason for reason in reasons if reason)
        return {
            "healthy": not failure,
            "failure": failure,
            "threads": {worker.name: asdict(worker.state) for worker in workers},
            "node": self.config.node,
            "epoch": self._node_log.epoch,
            "durability": str(self.config.log.durability),
            "uptime_seconds": self._clock.monotonic() - self._started,
            "appends": self._appends,
            "duplicates": self._duplicates,
            "reads": self._reads.served,
            "unmerged_bytes": self._reads.unmerged_bytes,
            "position": str(self._node_log.end),
            "claim": self._sessions.claim(),
            "start": self._sessions.start.statistics(self._sessions.claims.known),
            "archive_error": self._maintenance.archive_error,
            "retention_error": self._maintenance.retention_error,
            "commit": asdict(self._committer.statistics),
            "ring": asdict(self._log.writer.ring.statistics),
            "connections": {
                **asdict(self._router.door.statistics),
                "revoked": self._router.revoked,
            },
        }


def _values(payload: bytes, count: int) -> Iterator[Any]:
    """The values of a stream of exactly `count` values. Raises ValueError."""
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=2**32 - 1, strict_map_key=False)
    unpacker.feed(payload)
    for number in range(count):
        try:
            yield unpacker.unpack()
        except UnicodeDecodeError as error:
            text = error.object[max(0, error.start - 20) : error.start + 20]
            raise ValueError(
                f"value {number + 1} of {count} has text that is no UTF-8, at byte "
                f"{error.start} of it: {text!r}"
            ) from error
    if unpacker.tell() != len(payload):
        raise ValueError(f"{count} values are announced, and the payload has more")


def _check_entries(
    payload: bytes,
    count: int,
    first: tuple[int, int, int],
    value_bytes_max: int,
    partition_count: int,
) -> bool:
    """Checks that every value is a DataEntry of this incarnation and session, numbered from the
    request on (`first`: these three), because the log must always be readable. Returns whether
    there is a clear. Raises ValueError and `TooLarge`."""
    incarnation, session, request = first
    name, clears = "", False
    for row in _entries(payload, count, request):
        key, value, order = row[KEY], row[VALUE], row[ORDER]
        if row[MAP] != name:
            name = row[MAP]
            layout.check_map_name(name)
        if not 0 <= row[PARTITION] <= PARTITION_MAX:
            raise ValueError(
                f"request {request}: partition is {row[PARTITION]}; it takes 0 to 2^31 - 2"
            )
        if order != (incarnation, order[1], session, request):
            raise ValueError(
                f"an entry has order {order} where ({incarnation}, partition version, "
                f"{session}, {request}) belongs"
            )
        if key is None:
            _check_count(row[PARTITION_COUNT], partition_count)
            clears = True
        elif value is not None and len(key) + len(value) > value_bytes_max:
            raise TooLarge(
                f"map {name!r}: key and value take {len(key) + len(value)} bytes, "
                f"max_value_bytes is {value_bytes_max}"
            )
        request += 1
    return clears


def _entries(payload: bytes, count: int, request: int) -> Sequence[tuple[Any, ...]]:
    """The entries of a payload of exactly `count` entries. Raises ValueError, which names the first
    invalid one."""
    try:
        return entry.decoded(payload, count)
    except ValueError:
        for number, row in enumerate(_values(payload, count)):
            try:
                entry.check(row)
            except ValueError as error:
                raise ValueError(f"request {request + number}: {error}") from error
        raise


def _check_count(count: int, of_hello: int) -> None:
    """A clear with a lower number of partitions would delete keys of other partitions."""
    if not of_hello:
        raise ValueError("a clear needs the number of partitions; say hello with partition_count")
    if count != of_hello:
        raise ValueError(
            f"a clear is for one of {count} partitions; the hello of this connection gave "
            f"partition_count {of_hello}"
        )


def _schemas(payload: bytes, count: int, known: Mapping[int, Schema]) -> dict[int, Schema]:
    """The schemas of a metadata message by their ids. Raises `BadSchema` if one is not valid, or if
    another schema is known by its id."""
    found: dict[int, Schema] = {}
    for kind, number, content in _values(payload, count):
        if (
            kind != "schema"
            or type(number) is not int
            or not LOWEST <= number <= HIGHEST
            or type(content) is not bytes
        ):
            raise ValueError('a metadata array is ["schema", a signed number of 64 bits, bytes]')
        try:
            schema = read_schema(number, content)
            check_known(number, schema, known)
            check_known(number, schema, found)
        except BadSchema as error:
            raise BadSchema(f"Compact schema {number}: {error}") from error
        found[number] = schema
    return found


def _without_front(payload: bytes, count: int) -> bytes:
    unpacker = msgpack.Unpacker(max_buffer_size=2**32 - 1)
    unpacker.feed(payload)
    for _ in range(count):
        unpacker.skip()
    return payload[unpacker.tell() :]


def run(config: AgentConfig, ready: Callable[[Agent], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises the errors of opening the log, and
    `StorageUnavailable` if the storage fails."""
    raise_file_limit(config.connections_max)
    try:
        agent = Agent(config)
    except StorageError as error:
        raise StorageUnavailable(f"{config.url}: {error}") from error
    for doubt in (*doubts(config.url), *doubts(config.wal_dir)):
        _log.warning("storage of another user", doubt=doubt)
    if config.access.doubt:
        _log.warning("open endpoint", doubt=config.access.doubt)
    if not agent.bounds.certain:
        doubt = (
            "many attempts to connect could use up all file descriptors, and the log would fail "
            "until they end; raise the limit (ulimit -n)"
        )
        limits = {
            "files": agent.bounds.files,
            "wanted": wanted_files(config.connections_max),
            "connections": agent.bounds.connections,
        }
        _log.warning("few open files are allowed", doubt=doubt, **limits)

    def on_signal(number: int, frame: FrameType | None) -> None:
        agent.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    agent.serve(lambda: ready(agent) if ready else None)


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
