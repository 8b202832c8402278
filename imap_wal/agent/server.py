"""The agent's loop: receive all that waits, put the appends in the ring, commit once, answer.

While a commit is under way, requests gather in the socket; so the busier the members, the larger the commits. No thread is handed anything on the
write path.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import FrameType, NoneType
from typing import Any

import msgpack
import structlog

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.reads import Reads
from imap_wal.agent.sessions import Sessions, VoidIncarnation
from imap_wal.agent.transport import Message, Router
from imap_wal.archive import archive_sealed
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.committer import Batch, Committer
from imap_wal.errors import Fenced, ImapWalError, NotAppended, StorageUnavailable, TooLarge
from imap_wal.format import BODY_BYTES_MAX, FRAME_OVERHEAD_BYTES, METADATA
from imap_wal.keeper import Keeper
from imap_wal.restore import ClusterLog, LiveView
from imap_wal.retention import remove_outlived
from imap_wal.ring import RingBuffer
from imap_wal.settings import Durability
from imap_wal.writer import Identity, open_node_log
from storage_backends import StorageError, open_store

PROTOCOL = 1
VERSION = "0.1.0"
TICK_MS = 200
REOPEN_S = 1.0
"""How long a poisoned log rests before it is opened again with a new epoch."""

READS = ("keys", "load", "schemas")

MALFORMED = (TypeError, ValueError, LookupError, AttributeError, msgpack.UnpackException)
"""What reading a request that is not as `docs/protocol.md` draws it can raise."""

_log = structlog.get_logger("imap_wal.agent")


@dataclass(frozen=True, slots=True)
class Pending:
    """An append that is in the ring: whom to answer, and how. Or, without a batch, an answer that must not overtake those before it."""

    sender: bytes
    number: int
    first: int = 0
    count: int = 0
    batch: Batch | None = None
    refusal: tuple[str, str] = ("", "")


class Agent:
    """One run of the agent. `serve` returns after `stop`."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self._clock = SystemClock(config.clock_offset_ms)
        self._randomness = SystemRandomness()
        self._identity = Identity(config.namespace, config.cluster, config.node)
        self._store = open_store(config.url, wal_dir=config.wal_dir)
        self._all_logs = ClusterLog(self._store, config.namespace, config.cluster, self._clock, self._randomness)
        self._stopping = False
        self._appends = self._duplicates = 0
        self._started = self._clock.monotonic()
        self._failed_at: float | None = None
        self._open(config.takeover)
        try:
            self._router = Router(config.endpoint)
        except ImapWalError:
            self._keeper.stop()
            self._committer.close()
            self._store.close()
            raise
        self._reads = Reads(LiveView(self._all_logs, config.log), self._router.outbox, config.restore_at_start)

    def _open(self, takeover: bool = False) -> None:
        settings = self.config.log
        what = f"imap-wal agent at {self.config.endpoint}"
        self._node_log = open_node_log(self._store, self._identity, settings, self._clock, self._randomness, what=what, takeover=takeover)
        try:
            self._sessions = Sessions(self._node_log, self._all_logs)
        except BaseException:
            self._node_log.close(clean=False)  # else its lock would keep ourselves out
            raise
        self._ring: RingBuffer[Batch] = RingBuffer(settings.ring_slots, settings.ring_bytes)
        self._keeper = Keeper(settings, self._clock)
        self._committer = Committer(self._ring, self._node_log, settings, self._clock, self._keeper.committed, self._sessions.check_newest)
        self._keeper.start(self._committer, self._archive, self._remove_outlived)
        recovery = self._node_log.recovery
        lost = recovery.lost
        _log.info(
            "log open",
            node=self.config.node,
            epoch=self._node_log.epoch,
            clean=recovery.clean,
            frames=recovery.frames,
            torn_bytes=recovery.torn_bytes,
            lost=""
            if lost is None
            else f"{lost.frames} frames, {lost.records} entries from {lost.first} to {lost.last}, put aside: {', '.join(lost.put_aside)}",
        )

    def stop(self) -> None:
        """Have `serve` return after the commit under way. Safe from a signal handler."""
        self._stopping = True

    def serve(self, ready: Callable[[], None] | None = None) -> None:
        """Answer until `stop`; then commit what waits and write the clean-shutdown frame."""
        if ready is not None:
            ready()
        clean = False
        try:
            while not self._stopping:
                self._turn(TICK_MS)
            self._turn(0)  # what arrived before the signal
            clean = True
        finally:
            self._reads.close()
            self._keeper.stop()
            self._committer.close(clean)
            self._router.close()
            self._store.close()
        _log.info("stopped", node=self.config.node, appends=self._appends)

    # ---- one turn ----

    def _turn(self, timeout_ms: int) -> None:
        pending: list[Pending] = []
        for message in self._router.receive(timeout_ms):
            self._handle(message, pending)
        if pending:
            acks_before = self.config.log.durability is Durability.ASYNC
            if acks_before:
                self._answer(pending)
            self._committer.commit_ready()
            if not acks_before:
                self._answer(pending)
        self._mend()

    def _handle(self, message: Message, pending: list[Pending]) -> None:
        if message.header is None:
            self._sessions.shut(message.sender)
            self._router.send(message.sender, ["error", 0, "bad-request", "a message has a header [kind, number, ...] and a payload"])
            return
        kind, number, *fields = message.header
        try:
            if kind == "hello":
                self._hello(message.sender, number, *fields)
            elif kind == "stat":
                self._router.send(message.sender, ["stat", number, self.statistics()])
            elif kind in ("append", "metadata"):
                self._append(message, kind, pending)
            elif kind not in READS:
                self._refuse(message, "bad-request", f"unknown request {kind!r}", pending)
            elif not self._sessions.knows(message.sender):
                self._error(message.sender, number, "not-ready", "say hello first")
            else:
                self._reads.ask(message)
        except TooLarge as error:
            self._refuse(message, "too-large", str(error), pending)
        except VoidIncarnation as error:
            self._refuse(message, "void-incarnation", str(error), pending)
        except MALFORMED as error:
            self._refuse(message, "bad-request", f"{kind}: {error!r}", pending)
        except (ImapWalError, StorageError) as error:
            _log.error("request failed", kind=kind, error=str(error))
            self._refuse(message, "not-ready", str(error), pending)

    def _hello(self, sender: bytes, number: int, about: dict[str, Any]) -> None:
        if about.get("protocol") != PROTOCOL:
            self._error(
                sender,
                number,
                "unsupported-version",
                f"this agent speaks protocol {PROTOCOL}, not {about.get('protocol')!r}; use plug-in and agent of one release",
            )
            return
        self._committer.commit_ready()  # what came before it: `last_request` must tell the truth, and a new incarnation begins behind it
        if self._committer.failure is not None:
            self._error(sender, number, "not-ready", str(self._committer.failure))
            return
        session, new = self._sessions.hello(sender, about)
        if new:
            member = ["member", session.cluster_id, str(about.get("member_uuid", "")), self.config.node, session.number, session.incarnation]
            batch = Batch([msgpack.packb(member)], 1, kind=METADATA)
            self._committer.submit(batch)
            self._committer.wait(batch)
            batch.result()
            _log.info("plug-in connected", session=session.number, incarnation=session.incarnation, cluster=session.cluster_id)
        welcome = {
            "protocol": PROTOCOL,
            "node": self.config.node,
            "session": session.number,
            "incarnation": session.incarnation,
            "last_request": self._node_log.requests.get(session.number, 0),
            "max_value_bytes": self.config.log.max_value_bytes,
            "agent_version": VERSION,
        }
        self._router.send(sender, ["welcome", number, welcome])

    def _append(self, message: Message, kind: str, pending: list[Pending]) -> None:
        assert message.header is not None
        if kind == "append":
            _, number, session, first, count = message.header
        else:
            (_, number, session, count), first = message.header, 0
        refusal = self._sessions.refusal(message.sender, session)
        if refusal is None and self._committer.failure is not None:
            refusal = "not-ready", str(self._committer.failure)
        if refusal is not None:
            self._refuse(message, *refusal, pending)
            return
        if count < 1 or (kind == "append" and first < 1):
            raise ValueError(f"{count} changes from request {first}; both begin at 1")
        if len(message.payload) > BODY_BYTES_MAX - FRAME_OVERHEAD_BYTES:
            raise TooLarge(f"one message of {len(message.payload)} bytes; it takes less than 2 GiB")
        if kind == "metadata":
            _check_metadata(message.payload, count)
            batch = Batch([message.payload], count, kind=METADATA)
        else:
            last = first + count - 1
            known = self._node_log.requests.get(session, 0)
            if last <= known:
                self._duplicates += count
                pending.append(Pending(message.sender, number, first, count))
                return
            _check_entries(message.payload, count, (self._sessions.session(session).incarnation, session, first), self.config.log.max_value_bytes)
            payload, entries = message.payload, count
            if first <= known:  # the front of it is in the log already
                payload, entries = _without_front(payload, known - first + 1), last - known
                self._duplicates += count - entries
            batch = Batch([payload], entries, session=session, request=last)
        self._committer.submit(batch)
        self._appends += count
        pending.append(Pending(message.sender, number, first, count, batch))

    def _answer(self, pending: list[Pending]) -> None:
        for each in pending:
            error = None if each.batch is None else each.batch.error
            if each.refusal[0]:
                self._error(each.sender, each.number, *each.refusal)
            elif error is None:
                self._router.send(each.sender, ["ack", each.number, each.first, each.count])
            else:
                self._sessions.shut(each.sender)
                self._error(each.sender, each.number, "full" if isinstance(error, NotAppended) else "outcome-unknown", str(error))

    def _refuse(self, message: Message, code: str, text: str, pending: list[Pending]) -> None:
        """Answer an error, behind what is answered before it. Of the changes of a session the log has a prefix, always: after an append was refused nothing more comes
        from that connection."""
        assert message.header is not None
        kind, number, *_ = message.header
        if kind not in READS:
            self._sessions.shut(message.sender)
        pending.append(Pending(message.sender, number, refusal=(code, text)))

    def _error(self, to: bytes, number: int, code: str, text: str) -> None:
        self._router.send(to, ["error", number, code, f"{text} (agent of node {self.config.node!r} at {self.config.endpoint})"])

    # ---- keeping ----

    def _mend(self) -> None:
        """After a failed write or sync: let the failed epoch go and open the next, as soon as the storage lets us."""
        failure = self._committer.failure
        if failure is None:
            return
        if isinstance(failure, Fenced):
            raise failure
        now = self._clock.monotonic()
        if self._failed_at is None:
            _log.error("log failed", node=self.config.node, error=str(failure))
            self._failed_at = now
            self._keeper.stop()
            self._committer.close(clean=False)
        if now - self._failed_at < REOPEN_S:
            return
        self._failed_at = now
        try:
            self._open()
        except (ImapWalError, StorageError) as error:
            _log.error("log still fails", node=self.config.node, error=str(error))
            return
        self._failed_at = None

    def _archive(self) -> None:
        """Seal, and turn what is sealed into archives; on the keeper's thread."""
        written = self._keeper.written(self._node_log)
        self._committer.rotate()
        log = self._node_log
        done = archive_sealed(self._store, self._identity.node_folder, self.config.node, log.manifests, epoch=log.epoch, writing=log.unsealed)
        self._keeper.count_from(written)
        _log.info("archived", records=done.records)

    def _remove_outlived(self) -> None:
        """Remove what is covered and has outlived its time or its room; on the keeper's thread."""
        removed = remove_outlived(self._all_logs, self.config.node, self.config.log, self._node_log.unsealed)
        files = len(removed.archives) + len(removed.segments)
        if files:
            _log.info("covered files removed", files=files, bytes=removed.bytes)

    def statistics(self) -> dict[str, Any]:
        """What `stat` answers: plain values, a snapshot."""
        return {
            "healthy": self._committer.failure is None,
            "failure": str(self._committer.failure or ""),
            "node": self.config.node,
            "epoch": self._node_log.epoch,
            "durability": str(self.config.log.durability),
            "uptime_seconds": self._clock.monotonic() - self._started,
            "appends": self._appends,
            "duplicates": self._duplicates,
            "reads": self._reads.served,
            "position": str(self._node_log.end),
            "archive_error": self._keeper.archive_error,
            "retention_error": self._keeper.retention_error,
            "commit": asdict(self._committer.statistics),
            "ring": asdict(self._ring.statistics),
        }


def _values(payload: bytes, count: int) -> Iterator[Any]:
    """The values of a stream of exactly so many."""
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=2**32 - 1, strict_map_key=False)
    unpacker.feed(payload)
    for _ in range(count):
        yield unpacker.unpack()
    if unpacker.tell() != len(payload):
        raise ValueError(f"{count} values announced, the payload holds more")


def _check_entries(payload: bytes, count: int, first: tuple[int, int, int], value_bytes_max: int) -> None:
    """Every value is a DataEntry, of this incarnation and session, numbered from the request on: what is in the log must be readable for ever."""
    incarnation, session, request = first
    for entry in _values(payload, count):
        kinds = tuple(map(type, entry))  # in one go: this is done for every entry of every commit
        if (kinds != _UPSERT and kinds != _TOMBSTONE) or entry[5] is not (entry[3] is None) or not entry[0]:
            raise ValueError(f"request {request} is not a DataEntry")
        order = entry[9]
        if order != (incarnation, order[1], session, request) or type(order[1]) is not int:
            raise ValueError(f"an entry has order {order} where ({incarnation}, partition version, {session}, {request}) belongs")
        if kinds == _UPSERT and len(entry[1]) + len(entry[3]) > value_bytes_max:
            raise TooLarge(f"map {entry[0]!r}: key and value take {len(entry[1]) + len(entry[3])} bytes, max_value_bytes is {value_bytes_max}")
        request += 1


_UPSERT = (str, bytes, str, bytes, str, bool, int, int, int, tuple)
_TOMBSTONE = (str, bytes, str, NoneType, str, bool, int, int, int, tuple)


def _check_metadata(payload: bytes, count: int) -> None:
    for kind, number, content in _values(payload, count):
        if kind != "schema" or type(number) is not int or type(content) is not bytes:
            raise ValueError(f"{kind!r} is not a metadata array")


def _without_front(payload: bytes, count: int) -> bytes:
    unpacker = msgpack.Unpacker(max_buffer_size=2**32 - 1)
    unpacker.feed(payload)
    for _ in range(count):
        unpacker.skip()
    return payload[unpacker.tell() :]


def run(config: AgentConfig, ready: Callable[[Agent], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises what opening the log raises; `StorageUnavailable` when the storage fails."""
    try:
        agent = Agent(config)
    except StorageError as error:
        raise StorageUnavailable(f"{config.url}: {error}") from error

    def on_signal(number: int, frame: FrameType | None) -> None:
        agent.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    agent.serve(lambda: ready(agent) if ready else None)
