"""Answers the read requests keys, list, digests, load, maps and schemas, on its own thread, so that
a long merge never delays a commit."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack

from imap_wal.agent.bounds import UNSENT_BYTES
from imap_wal.agent.lines import Lines
from imap_wal.agent.reads.listings import ListingGone, Listings, Page
from imap_wal.agent.reads.merges import Merges
from imap_wal.agent.reads.work import Work
from imap_wal.agent.requests import Digests, List, ListKeys, Load, MapsRequest, Schemas, keys_of
from imap_wal.agent.room import Room
from imap_wal.agent.transport.payload import Payload
from imap_wal.agent.transport.router import Message, Outbox
from imap_wal.clock import Clock, Randomness
from imap_wal.entry import EXPIRES_AT_MS, KEY, KEY_CLASS, VALUE, Row
from imap_wal.errors import ImapWalError, InvalidSetting, NotAllowed
from imap_wal.names import check_map_name
from imap_wal.partitions import Partitions, is_count
from imap_wal.rules.valid import demand_of_members, is_of_programs
from imap_wal.tracing import span
from imap_wal.worker import Worker
from storage_backends import StorageError

ANSWER_BYTES = 16 * 1024 * 1024
"""An answer has at most this size, or one entry: large values need several answers."""
LOAD_KEYS = 64
"""How many keys are looked up at once."""
PART_S = 0.5
"""An answer to `load` or `digests` ends after this time, with what was looked up so far, because
other connections read on the same thread."""
STUCK_LOOK_S = 0.2
"""How often unsent answers are checked while there is no room for others."""
CLOSE_S = 5


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, its arrival number, and the `partition_count` of its connection."""

    arrived: int
    message: Message
    partition_count: int
    is_of_member: bool


@dataclass(frozen=True, slots=True)
class _Left:
    """The answer to this sender has left the agent. `number`: the request's arrival number."""

    sender: bytes
    number: int


@dataclass(frozen=True, slots=True)
class _Gone:
    """The connection of this sender has ended."""

    sender: bytes


@dataclass(frozen=True, slots=True)
class Connections:
    """What reads need from the connections of their clients. `make_outbox` opens a socket for
    answers. `disconnect` closes a connection and logs the reason. `demand` raises `NotAllowed`
    unless the sender still has the right to read."""

    make_outbox: Callable[[], Outbox]
    disconnect: Callable[[bytes, str], None]
    demand: Callable[[Message], None]


class Reads:
    """Answers read requests from the MaterializedView of `merges`. `work`: gets the progress of
    that view."""

    def __init__(
        self,
        merges: Merges,
        connections: Connections,
        *,
        clock: Clock,
        randomness: Randomness,
        room: Room,
        lines: Lines,
        work: Work,
    ) -> None:
        self.merges, self.work = merges, work
        self._view, self._clock, self._connections = merges.view, clock, connections
        self._outbox: Outbox | None = None
        self._room, self._lines = room, lines
        self._queue: queue.SimpleQueue[_Asked | _Left | _Gone | None] = queue.SimpleQueue()
        self._waiting: deque[_Asked] = deque()
        """Requests that wait because there is no room for their answers."""
        self._queued: set[bytes] = set()
        """Senders with a request in `_queue` or `_waiting`: one each."""
        self._unsent = Unsent(clock)
        self._arrived = 0
        """How many requests have arrived; the number of the last one."""
        self._taken: Message | None = None
        """The request that is being answered."""
        self._listings = Listings(self._view, randomness)
        self._readable: set[str] = set()
        """Maps that have an entry of a member, so they are not maps of programs."""
        self.served = 0
        self._ended = False
        self.worker = Worker("imap-wal-reads", self._turn)
        self.worker.start()

    def ask(self, message: Message, partition_count: int, is_of_member: bool) -> str:
        """Queue a request for this thread. Returns why it is refused; "": it is queued. Only
        members decide for which count of partitions keys are hashed in advance."""
        if message.sender in self._queued:
            return "another read of this connection waits for its answer"
        if not self._room.enter(message.memory):
            return "requests of other connections use all the memory"
        self._queued.add(message.sender)
        self._arrived += 1
        self._queue.put(_Asked(self._arrived, message, partition_count, is_of_member))
        return ""

    def forget(self, sender: bytes) -> None:
        """A connection has ended: drop its request and its listings."""
        self._queue.put(_Gone(sender))

    def unanswered(self) -> list[Message]:
        """The unanswered requests, if the thread is dead or closed; [] while it runs."""
        if not self._ended and (self.worker.state.alive or self.worker.stopping.is_set()):
            return []
        taken, self._taken = self._taken, None
        messages = [asked.message for asked in self._waiting]
        self._waiting.clear()
        while not self._queue.empty():
            asked = self._queue.get()
            if isinstance(asked, _Asked):
                messages.append(asked.message)
        for message in messages:
            self._room.leave(message.memory)
        self._queued.clear()
        return messages if taken is None else [taken, *messages]

    def close(self) -> bool:
        """End the thread; a running merge ends at its next batch. Returns False if the thread waits
        for the storage; then it ends with the process."""
        self.worker.stopping.set()
        self._view.interrupt()
        self._queue.put(None)
        ended = self._ended = self.worker.stop(CLOSE_S)
        if ended:
            if self._outbox is not None:
                self._outbox.close()
            self._view.close()
        return ended

    def _turn(self, worker: Worker) -> bool:
        asked = self._ready()
        if asked is None:
            return self._listen()
        message = self._taken = asked.message
        self._queued.discard(message.sender)
        self._room.leave(message.memory)
        header, payload = self._answer(asked)
        self.served += 1
        self.merges.was_read()
        self.work.done()
        self._send(message, asked.arrived, header, payload)
        self._taken = None
        return bool(header[0] != "error")

    def _ready(self) -> _Asked | None:
        """The oldest request that can be answered now."""
        if self._unsent.full:
            return None
        oldest = next(
            (asked for asked in self._waiting if asked.message.sender not in self._unsent), None
        )
        if oldest is not None:
            self._waiting.remove(oldest)
        return oldest

    def _listen(self) -> bool:
        """Wait for a request, for room, or until a merge is due."""
        wait = self._due_in_s()
        if self._unsent.full:
            wait = min(STUCK_LOOK_S, wait if wait is not None else STUCK_LOOK_S)
        try:
            item = self._queue.get(timeout=wait)
        except queue.Empty:
            return self._idle()
        if isinstance(item, _Asked):
            self._waiting.append(item)
        elif isinstance(item, _Left):
            self._unsent.left(item.sender, item.number)
        elif item is not None:
            self._drop(item.sender)
        return item is None

    def _drop(self, sender: bytes) -> None:
        """A connection has ended: drop its waiting requests."""
        for asked in [asked for asked in self._waiting if asked.message.sender == sender]:
            self._waiting.remove(asked)
            self._queued.discard(sender)
            self._room.leave(asked.message.memory)
        self._listings.forget(sender)

    def _idle(self) -> bool:
        if self._unsent.full and (stuck := self._unsent.stuck()) is not None:
            self._connections.disconnect(
                stuck, "a peer does not read its answer, and other answers need the room"
            )
        if self._due_in_s() != 0:
            return False
        return self.merges.without_request(
            self.worker.stopping, is_read=bool(self.served), pause=self._pause
        )

    def _pause(self) -> bool:
        """Between two parts of a release: whether a request waits."""
        self.work.done()
        return bool(self._queued) or self.worker.stopping.is_set()

    def _due_in_s(self) -> float | None:
        return self.merges.due_in_s(is_read=bool(self.served))

    def _send(
        self, message: Message, number: int, header: list[Any], payload: bytes | bytearray
    ) -> None:
        if self._outbox is None:
            self._outbox = self._connections.make_outbox()
        if isinstance(payload, Payload):
            self._unsent.add(message.sender, number, len(payload) + 2 * message.header_bytes)
        try:
            self._outbox.send(message.sender, header, payload)
        except Exception as error:  # noqa: BLE001  # with this socket or with this answer: another socket, and an error that can be sent
            self.worker.failed(error)
            self._unsent.left(message.sender, number)
            self._outbox.close()
            self._outbox = self._connections.make_outbox()
            text = f"the answer could not be sent: {type(error).__name__}: {error}"
            self._outbox.send(
                message.sender, ["error", message.request.number, "restore-failed", text]
            )

    def _catch_up(self, arrived: int) -> None:
        """After this, the view has everything that was acknowledged before this request."""
        self.merges.catch_up(arrived, self._arrived, self.worker.stopping)

    def _payload(self, asked: _Asked) -> Payload:
        """An empty payload for an answer, which is counted until it has left the agent."""
        return Payload(partial(self._queue.put, _Left(asked.message.sender, asked.arrived)))

    def _answer(self, asked: _Asked) -> tuple[list[Any], bytes | bytearray]:
        request, kind, number = (
            asked.message.request,
            asked.message.kind,
            asked.message.request.number,
        )
        try:
            self._connections.demand(asked.message)
            if asked.is_of_member and is_count(asked.partition_count):
                self.merges.partition_count = asked.partition_count
            if isinstance(request, ListKeys):
                return self._keys(asked, request)
            if isinstance(request, List):
                with span(self._clock, "list") as facts:
                    answer = self._list(asked, request)
                    facts |= {"partitions": len(request.partitions), "keys": answer[0][3]}
                return answer
            if isinstance(request, Digests):
                with span(self._clock, "digests"):
                    return self._digests(asked, request)
            if isinstance(request, Load):
                return self._load(asked, request)
            if isinstance(request, MapsRequest):
                return self._maps(asked, request)
            assert isinstance(request, Schemas)
            return self._schemas(asked, request)
        except NotAllowed as error:  # its key lost the right while it waited
            return ["error", number, "not-allowed", str(error)], b""
        except ListingGone as error:
            return ["error", number, "listing-gone", str(error)], b""
        except StorageError as error:
            self._lines.error("read failed", (kind, str(error)), kind=kind, error=str(error))
            return ["error", number, "storage", str(error)], b""
        except InvalidSetting as error:
            return ["error", number, "bad-request", f"{kind}: {error}"], b""
        except ImapWalError as error:
            self._lines.error("read failed", (kind, str(error)), kind=kind, error=str(error))
            return ["error", number, "restore-failed", f"{type(error).__name__}: {error}"], b""
        except (TypeError, ValueError) as error:
            return ["error", number, "bad-request", f"{kind}: {error}"], b""
        except Exception as error:  # noqa: BLE001  # such as a full scratch folder, or a bug: it becomes the answer, and `stat` shows it
            self.worker.failed(error)
            return ["error", number, "restore-failed", f"{type(error).__name__}: {error}"], b""

    def _keys(self, asked: _Asked, request: ListKeys) -> tuple[list[Any], bytearray]:
        page = self._page(asked, request, None)
        pack = msgpack.Packer(use_bin_type=True).pack
        payload = self._payload(asked)
        payload += b"".join([pack(key) for key in page.keys])
        return ["keys", request.number, page.cursor, len(page.keys), page.total], payload

    def _list(self, asked: _Asked, request: List) -> tuple[list[Any], bytearray]:
        """A page of the keys in some partitions, with as many entries of the first keys as fit into
        an answer."""
        page = self._page(
            asked,
            request,
            Partitions(frozenset(request.partitions), asked.partition_count, asked.is_of_member),
        )
        self._demand_readable(asked, request.map)
        rows, loaded = self._view.load_some(request.map, page.keys, ANSWER_BYTES)
        payload = self._payload(asked)
        payload += _packed(rows)
        pack = msgpack.Packer(use_bin_type=True).pack
        payload += b"".join([pack(key) for key in page.keys[loaded:]])
        return [
            "list",
            request.number,
            page.cursor,
            len(page.keys),
            page.total,
            loaded,
            len(rows),
        ], payload

    def _page(self, asked: _Asked, request: ListKeys | List, partitions: Partitions | None) -> Page:
        check_map_name(request.map)
        if request.cursor is None:
            self._catch_up(asked.arrived)
        return self._listings.page(
            request.map, request.cursor, request.limit, partitions, asked.message.sender
        )

    def _digests(self, asked: _Asked, request: Digests) -> tuple[list[Any], bytearray]:
        """The digests of the first partitions: as many as are ready in time, at least one."""
        name, numbers, count = request.map, request.partitions, asked.partition_count
        check_map_name(name)
        self._catch_up(asked.arrived)
        pack = msgpack.Packer(use_bin_type=True).pack
        payload = self._payload(asked)
        until = self._clock.monotonic() + PART_S
        taken = 0
        while taken < len(numbers) and (not taken or self._clock.monotonic() < until):
            one = Partitions(frozenset(numbers[taken : taken + 1]), count, asked.is_of_member)
            payload += pack(self._view.digest(name, request.salt, one))
            taken += 1
        return ["digests", request.number, taken], payload

    def _load(self, asked: _Asked, request: Load) -> tuple[list[Any], bytearray]:
        """The entries of the first keys: as many as fit into an answer and its time, at least of
        one key."""
        name, count = request.map, request.count
        check_map_name(name)
        keys = keys_of(asked.message.payload, count)
        self._catch_up(asked.arrived)
        self._demand_readable(asked, name)
        payload = self._payload(asked)
        entries = taken = 0
        until = self._clock.monotonic() + PART_S
        while (
            taken < count
            and len(payload) < ANSWER_BYTES
            and (not taken or self._clock.monotonic() < until)
        ):
            rows, done = self._view.load_some(
                name, keys[taken : taken + LOAD_KEYS], ANSWER_BYTES - len(payload)
            )
            packed = _packed(rows)
            if payload and len(payload) + len(packed) > ANSWER_BYTES:
                break  # an entry that does not fit is the first one of the next answer
            payload += packed
            entries += len(rows)
            taken += done
        return ["entries", request.number, entries, taken], payload

    def _demand_readable(self, asked: _Asked, name: str) -> None:
        """Raise `InvalidSetting` if a member asks for a map of a program: it would find none of the
        keys, and serve an empty map. A map has one class, so any of its keys decides. But members
        may use a map in which a program has deleted all keys."""
        if not asked.is_of_member or name in self._readable:
            return
        key_class = self._view.key_class(name)
        if key_class is not None and is_of_programs(key_class):
            key_class = next((rows[0][KEY_CLASS] for rows in self._view.rows(name)), None)
        if key_class is not None:
            demand_of_members(name, key_class)
            self._readable.add(name)

    def _maps(self, asked: _Asked, request: MapsRequest) -> tuple[list[Any], bytearray]:
        """The maps that have entries in the log. For an invalid name, the answer has the reason, so
        that the request for the other maps succeeds. The answer may be as large as the request, so
        its memory is counted, although its payload is empty."""
        wrong: dict[str, str] = {}
        for name in request.names:
            try:
                check_map_name(name)
            except InvalidSetting as error:
                wrong[name] = str(error)
        self._catch_up(asked.arrived)
        names = self._view.known([name for name in request.names if name not in wrong])
        return ["maps", request.number, names, wrong], self._payload(asked)

    def _schemas(self, asked: _Asked, request: Schemas) -> tuple[list[Any], bytearray]:
        """The schemas with the next higher ids, as many as fit into an answer, and the last of
        these ids; None: there are no more."""
        self._catch_up(asked.arrived)
        after, payload, count = request.after, self._payload(asked), 0
        left = sorted(
            schema_id for schema_id in self.merges.schemas if after is None or schema_id > after
        )
        for schema_id in left:
            payload += msgpack.packb(
                (schema_id, self.merges.schemas[schema_id].to_bytes()), use_bin_type=True
            )
            count += 1
            if len(payload) >= ANSWER_BYTES:
                break
        return [
            "schemas",
            request.number,
            count,
            left[count - 1] if count < len(left) else None,
        ], payload


def _packed(rows: list[Row]) -> bytes:
    """The msgpack stream of entries: key, value, expires_at_ms."""
    pack = msgpack.Packer(use_bin_type=True).pack
    return b"".join([pack((row[KEY], row[VALUE], row[EXPIRES_AT_MS])) for row in rows])


# Answers to reads that have not left the agent: their senders and their memory.
#
# A peer may send requests and never read the answers. Its answer stays in memory, so it gets no
# second one. When all such answers together take UNSENT_BYTES, no new answer is begun until one has
# left. If none leaves, the connection with the oldest answer is closed.

GRACE_S = 5.0
"""How long an answer may stay unsent while others need its room."""


class Unsent:
    """Counts the unsent answers. Used by the thread of reads. Each answer has its own number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[bytes, tuple[int, int, float]] = {}
        """Sender → number, size and time of its answer; the oldest first."""
        self.bytes = 0

    def __contains__(self, sender: bytes) -> bool:
        return sender in self._answers

    def add(self, sender: bytes, number: int, size: int) -> None:
        self._answers[sender] = number, size, self._clock.monotonic()
        self.bytes += size

    def left(self, sender: bytes, number: int) -> None:
        """This answer has left the agent, or was never sent."""
        if sender in self._answers and self._answers[sender][0] == number:
            self.bytes -= self._answers.pop(sender)[1]

    @property
    def full(self) -> bool:
        return self.bytes >= UNSENT_BYTES

    def stuck(self) -> bytes | None:
        """If `full`: the sender of an answer that has been unsent for too long, or None."""
        sender, (_, _, since) = next(iter(self._answers.items()))
        return sender if self._clock.monotonic() - since >= GRACE_S else None
