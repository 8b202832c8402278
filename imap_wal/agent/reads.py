"""Reads, on a thread of their own, so that a long merge never delays a commit: keys, load, schemas."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import structlog

from imap_wal.agent.transport import Message, Outbox
from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, values
from imap_wal.errors import ImapWalError
from imap_wal.restore import LiveView
from storage_backends import StorageError

ANSWER_BYTES = 16 * 1024 * 1024
LOAD_KEYS = 64
"""An answer to `load` ends with the first so many keys that take it past this size: large values come in several answers."""
CLOSE_S = 5
CURSORS_MAX = 64
"""Key listings under way; the oldest is forgotten beyond that, and its reader told to begin again."""

_log = structlog.get_logger("imap_wal.agent")


class Reads:
    """Answers read requests from one LiveView, which merges all nodes' logs once and then reads only what was appended."""

    def __init__(self, view: LiveView, make_outbox: Callable[[], Outbox], at_once: bool) -> None:
        self._view, self._at_once = view, at_once
        self._make_outbox = make_outbox
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._cursors: dict[int, Iterator[list[bytes]]] = {}
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._serve, name="imap-wal-reads", daemon=True)
        self.served = 0
        self._thread.start()

    def ask(self, message: Message) -> None:
        """Have the message answered by this thread."""
        self._queue.put(message)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():  # else it is in the middle of a merge, which ends with the process
            self._view.close()

    def _serve(self) -> None:
        outbox = self._make_outbox()
        if self._at_once:
            try:
                self._view.catch_up()
            except (ImapWalError, StorageError) as error:  # whoever asks is told; perhaps it is mended by then
                _log.warning("restore at start failed", error=str(error))
        try:
            while (message := self._queue.get()) is not None:
                header, payload = self._answer(message)
                self.served += 1
                outbox.send(message.sender, header, payload)
        finally:
            outbox.close()

    def _answer(self, message: Message) -> tuple[list[Any], bytes]:
        assert message.header is not None
        kind, number, *fields = message.header
        try:
            if kind == "keys":
                return self._keys(number, *fields)
            if kind == "load":
                return self._load(number, message.payload, *fields)
            return self._schemas(number)
        except StorageError as error:
            _log.error("read failed", kind=kind, error=str(error))
            return ["error", number, "storage", str(error)], b""
        except ImapWalError as error:
            _log.error("read failed", kind=kind, error=str(error))
            return ["error", number, "restore-failed", f"{type(error).__name__}: {error}"], b""
        except (TypeError, ValueError) as error:
            return ["error", number, "bad-request", f"{kind}: {error}"], b""
        except Exception as error:  # noqa: BLE001  # a bug; but without this thread every later read would wait in vain
            _log.exception("read failed", kind=kind)
            return ["error", number, "restore-failed", f"{type(error).__name__}: {error}"], b""

    def _keys(self, number: int, name: str, cursor: int | None, limit: int) -> tuple[list[Any], bytes]:
        if cursor is None:
            self._view.catch_up()
            cursor = next(self._numbers)
            self._cursors[cursor] = self._view.keys(name, max(1, min(limit, 100_000)))
            while len(self._cursors) > CURSORS_MAX:
                del self._cursors[min(self._cursors)]
        listing = self._cursors.get(cursor)
        if listing is None:
            return ["error", number, "restore-failed", f"the key listing {cursor} of map {name!r} was dropped; begin again"], b""
        keys = next(listing, None)
        if keys is None:
            del self._cursors[cursor]
            return ["keys", number, None, 0], b""
        pack = msgpack.Packer(use_bin_type=True).pack
        return ["keys", number, cursor, len(keys)], b"".join([pack(key) for key in keys])

    def _load(self, number: int, payload: bytes, name: str, count: int) -> tuple[list[Any], bytes]:
        keys = values(payload)
        if len(keys) != count:
            raise ValueError(f"{count} keys announced, {len(keys)} sent")
        self._view.catch_up()
        pack = msgpack.Packer(use_bin_type=True).pack
        answer: list[bytes] = []
        size = taken = 0
        while taken < count and size < ANSWER_BYTES:
            some = keys[taken : taken + LOAD_KEYS]
            packed = [pack((row[KEY], row[VALUE], row[EXPIRES_AT_MS])) for row in self._view.load(name, some)]
            answer += packed
            size += sum(map(len, packed))
            taken += len(some)
        return ["entries", number, len(answer), taken], b"".join(answer)

    def _schemas(self, number: int) -> tuple[list[Any], bytes]:
        self._view.catch_up()
        schemas = [(item[1], item[2]) for item in self._view.metadata() if item[0] == "schema"]
        return ["schemas", number, len(schemas)], b"".join([msgpack.packb(schema, use_bin_type=True) for schema in schemas])
