"""Reads, on a thread of their own, so that a long merge never delays a commit: keys, load, schemas."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import structlog

from imap_wal import layout
from imap_wal.agent.listings import ListingGone, Listings
from imap_wal.agent.transport import Message, Outbox
from imap_wal.clock import Clock, Randomness
from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, values
from imap_wal.errors import ImapWalError, InvalidSetting
from imap_wal.partitions import Partitions
from imap_wal.restore import LiveView
from imap_wal.worker import Worker
from storage_backends import StorageError

ANSWER_BYTES = 16 * 1024 * 1024
LOAD_KEYS = 64
"""An answer to `load` ends with the key that takes it past this size: large values come in several
answers. So many keys are looked up at once."""
CLOSE_S = 5
AGAIN_S, AGAIN_S_MAX = 1.0, 600.0
"""A restore at start that failed is tried again after this long; the pause doubles each time, as it
may read all logs."""

_log = structlog.get_logger("imap_wal.agent")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, its number among all that arrived, and the `partition_count` of its connection."""

    arrived: int
    message: Message
    partition_count: int


class Reads:
    """Answers read requests from one LiveView, which merges all nodes' logs once and then reads only what was appended."""

    def __init__(self, view: LiveView, make_outbox: Callable[[], Outbox], at_once: bool, clock: Clock, randomness: Randomness) -> None:
        self._view, self._clock = view, clock
        self._make_outbox = make_outbox
        self._outbox: Outbox | None = None
        self._queue: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._arrived = 0
        """How many requests came; each is known by its number."""
        self._covered = (0, 0)
        """The view's version, and the last request that came before the last catch-up began: it
        sees what was acknowledged before it came."""
        self._taken: Message | None = None
        """The request that is being answered."""
        self._listings = Listings(view, randomness)
        self._restore_at: float | None = clock.monotonic() if at_once else None
        """When to merge all logs although no request asks for it; None: not any more."""
        self._pause = AGAIN_S
        self.served = 0
        self.worker = Worker("imap-wal-reads", self._turn)
        self.worker.start()

    def ask(self, message: Message, partition_count: int) -> None:
        """Have the message answered by this thread."""
        self._arrived += 1
        self._queue.put(_Asked(self._arrived, message, partition_count))

    def unanswered(self) -> list[Message]:
        """What a dead thread left; [] while it lives."""
        if self.worker.state.alive or self.worker.stopping.is_set():
            return []
        taken, self._taken = self._taken, None
        found = [] if taken is None else [taken]
        while not self._queue.empty():
            asked = self._queue.get()
            if asked is not None:
                found.append(asked.message)
        return found

    def close(self) -> bool:
        """End the thread, and a merge under way at its next batch. False: it waits for the storage,
        and ends with the process."""
        self.worker.stopping.set()
        self._view.interrupt()
        self._queue.put(None)
        ended = self.worker.stop(CLOSE_S)
        if ended:
            if self._outbox is not None:
                self._outbox.close()
            self._view.close()
        return ended

    def _turn(self, worker: Worker) -> bool:
        try:
            wait = None if self._restore_at is None else max(0.0, self._restore_at - self._clock.monotonic())
            asked = self._queue.get(timeout=wait)
        except queue.Empty:
            return self._restore()
        if asked is None:
            return True
        message = self._taken = asked.message
        header, payload = self._answer(asked)
        self.served += 1
        self._send(message, header, payload)
        self._taken = None
        return bool(header[0] != "error")

    def _restore(self) -> bool:
        """The merge at start. Requests that arrive during it wait; when it fails, they are answered
        with an error."""
        self._restore_at, self._pause = self._clock.monotonic() + self._pause, min(2 * self._pause, AGAIN_S_MAX)
        try:
            self._view.catch_up()
        except (ImapWalError, StorageError) as error:
            _log.warning("restore at start failed", error=str(error))
            return False
        self._restore_at = None
        return True

    def _send(self, message: Message, header: list[Any], payload: bytes) -> None:
        if self._outbox is None:
            self._outbox = self._make_outbox()
        try:
            self._outbox.send(message.sender, header, payload)
        except Exception as error:  # noqa: BLE001  # with this socket or with this answer: another socket, and an error that can be sent
            self.worker.failed(error)
            self._outbox.close()
            self._outbox = self._make_outbox()
            text = f"the answer could not be sent: {type(error).__name__}: {error}"
            self._outbox.send(message.sender, ["error", header[1], "restore-failed", text])

    def _catch_up(self, arrived: int) -> None:
        """What was acknowledged before this request came is in the view after this. Requests that
        waited together share one look at the storage."""
        version, covered = self._covered
        if arrived > covered or version != self._view.version:
            newest = self._arrived
            self._view.catch_up()
            self._covered = self._view.version, newest

    def _answer(self, asked: _Asked) -> tuple[list[Any], bytes]:
        arrived, message = asked.arrived, asked.message
        assert message.header is not None
        kind, number, *fields = message.header
        try:
            if kind == "keys":
                return self._keys(number, asked, *fields)
            if kind == "load":
                return self._load(number, arrived, message.payload, *fields)
            return self._schemas(number, arrived)
        except ListingGone as error:
            return ["error", number, "listing-gone", str(error)], b""
        except StorageError as error:
            _log.error("read failed", kind=kind, error=str(error))
            return ["error", number, "storage", str(error)], b""
        except InvalidSetting as error:
            return ["error", number, "bad-request", f"{kind}: {error}"], b""
        except ImapWalError as error:
            _log.error("read failed", kind=kind, error=str(error))
            return ["error", number, "restore-failed", f"{type(error).__name__}: {error}"], b""
        except (TypeError, ValueError) as error:
            return ["error", number, "bad-request", f"{kind}: {error}"], b""
        except Exception as error:  # noqa: BLE001  # not an error of ours (scratch is full, a bug): the request is answered with it, and `stat` shows it
            self.worker.failed(error)
            return ["error", number, "restore-failed", f"{type(error).__name__}: {error}"], b""

    def _keys(
        self, number: int, asked: _Asked, name: str, cursor: list[str | int] | None, limit: int, wanted: list[int] | None = None
    ) -> tuple[list[Any], bytes]:
        layout.check_name(name, "map")
        partitions = None if wanted is None else Partitions(frozenset(wanted), asked.partition_count)
        if cursor is None:
            self._catch_up(asked.arrived)
        page = self._listings.page(name, cursor, limit, partitions)
        pack = msgpack.Packer(use_bin_type=True).pack
        return ["keys", number, page.cursor, len(page.keys), page.total], b"".join([pack(key) for key in page.keys])

    def _load(self, number: int, arrived: int, payload: bytes, name: str, count: int) -> tuple[list[Any], bytes]:
        keys = values(payload)
        if len(keys) != count:
            raise ValueError(f"{count} keys announced, {len(keys)} sent")
        self._catch_up(arrived)
        pack = msgpack.Packer(use_bin_type=True).pack
        answer: list[bytes] = []
        size = taken = 0
        while taken < count and size < ANSWER_BYTES:
            some = keys[taken : taken + LOAD_KEYS]
            rows, done = self._view.load_some(name, some, ANSWER_BYTES - size)
            packed = [pack((row[KEY], row[VALUE], row[EXPIRES_AT_MS])) for row in rows]
            answer += packed
            size += sum(map(len, packed))
            taken += done
        return ["entries", number, len(answer), taken], b"".join(answer)

    def _schemas(self, number: int, arrived: int) -> tuple[list[Any], bytes]:
        self._catch_up(arrived)
        schemas = [(item[1], item[2]) for item in self._view.metadata() if item[0] == "schema"]
        return ["schemas", number, len(schemas)], b"".join([msgpack.packb(schema, use_bin_type=True) for schema in schemas])
