"""Requests to the process that serves, and the maps of the others: a `DurableMap` over a state and
a writer that ask."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Any, cast

from imap_wal.clock import Clock, Randomness, SystemClock
from imap_wal.embedded.changes import NOTHING, MapState, WriteBatch
from imap_wal.embedded.decisions import Choice, Decision, OutlookOf
from imap_wal.embedded.held_keys import AsBytes
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.embedded.sorted_keys import EVERYTHING, Span
from imap_wal.errors import (
    Fenced,
    ImapWalError,
    InvalidSetting,
    LostRace,
    OutcomeUnknown,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.forked import Openness
from imap_wal.serializer import Serializer
from imap_wal.workers.endpoint import Endpoint
from imap_wal.workers.messages import (
    ANSWER_BYTES_MAX,
    HELLO_BYTES_MAX,
    NO_RECORD,
    VERSION,
    Acknowledged,
    NotUnderstood,
    error_of,
    map_of,
    receive,
    send,
    set_result,
    written,
)
from imap_wal.write.node_log import NodeLog
from imap_wal.write.ring import CommitRequest

PAUSE_S, PAUSE_S_MAX = 0.005, 0.1
OPERATIONS_MAX = 4096
"""How many operations of one process share a request."""


class _Line:
    """One connection, for one request at a time. Its requests are numbered across reconnections."""

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.numbers = itertools.count(1)
        self.connection: socket.socket | None = None
        self.has_record = False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class Client:
    """Thread-safe. `timeout_s`: how long a request may take, with all its repetitions. `elect`:
    called while no process serves; it may make this process serve. `patience_s`: how long it may
    raise an error until the request does."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_s: float,
        patience_s: float,
        elect: Callable[[], object],
        randomness: Randomness,
    ) -> None:
        self._patience_s, self._randomness = patience_s, randomness
        self._endpoint, self._timeout_s, self._elect = endpoint, timeout_s, elect
        self._free: list[_Line] = []
        self._mutex = threading.Lock()
        self.max_value_bytes = 0
        self._largest = HELLO_BYTES_MAX
        self.openness = Openness("store")
        self._acknowledged: Acknowledged = NO_RECORD
        """The last record in the log of a change that any line was answered."""
        self._fenced: Fenced | None = None

    def ask(self, kind: str, *fields: Any, changes: bool = False) -> Any:
        """The answer; of an answer in parts, the list of all. If the connection is lost, the
        request is sent again; `changes`: it counts once.

        Raises:
            OutcomeUnknown: a change was sent, and there was no answer in time.
            StorageUnavailable: there was no answer in time; nothing was changed.
            Fenced: the log lacks changes that it acknowledged to this process.
        """
        self.openness.check()
        if self._fenced is not None:
            raise self._fenced
        with self._mutex:
            line = self._free.pop() if self._free else _Line(self._randomness.token())
        try:
            return self._asked(line, [next(line.numbers), kind, *fields], changes)
        except BaseException as error:
            if not isinstance(error, Exception):
                line.close()  # its answer may still come
            raise
        finally:
            with self._mutex:
                self._free.append(line)
            if self.openness.closed:
                self.close()

    def _asked(self, line: _Line, request: list[Any], changes: bool) -> Any:
        begin = time.monotonic()
        pause, sent = PAUSE_S, False
        refused_since = 0.0
        failure: Exception | None = None
        while (left := begin + self._timeout_s - time.monotonic()) > 0:
            try:
                connection = self._connected(line, left)
                refused_since = 0.0
                connection.settimeout(left)
                sent = True
                line.has_record |= changes
                send(connection, request, self._largest)
                answer = self._answer(connection, request[0])
                if not changes:
                    return answer
                place, results = answer
                with self._mutex:
                    record = place, line.client, request[0]
                    self._acknowledged = max(self._acknowledged, record)
                return results
            except _Replaced as error:
                self._fenced = Fenced(str(error))
                if sent and changes:
                    text = f"the change may be in the log: {error}"
                    raise OutcomeUnknown(text) from self._fenced
                raise self._fenced from None
            except OSError as error:
                failure = error
                line.close()
            except _Refused as error:
                failure = error.cause
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since >= self._patience_s or not error.may_pass:
                    break
            except NotUnderstood:
                line.close()
                raise
            time.sleep(min(pause, max(left, 0)))
            pause = min(2 * pause, PAUSE_S_MAX)
        raise self._late(failure, sent=sent and changes) from failure

    def _late(self, failure: Exception | None, *, sent: bool) -> ImapWalError:
        if isinstance(failure, ImapWalError) and not sent:
            return failure
        text = f"no process serves the store at {self._endpoint.path}: {failure}"
        if isinstance(failure, TimeoutError):
            text = (
                f"the process that serves the store at {self._endpoint.path} did not answer within "
                f"{self._timeout_s:g} s"
            )
        if sent:
            return OutcomeUnknown(f"{text}; the change may be in the log")
        return StorageUnavailable(f"{text}; nothing was changed by this request")

    def _connected(self, line: _Line, left_s: float) -> socket.socket:
        if line.connection is not None:
            return line.connection
        try:
            connection = self._endpoint.connect(left_s)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            try:
                self._elect()
            except ImapWalError as refused:
                raise _Refused(refused) from refused
            raise error
        try:
            hello = ["hello", VERSION, line.client, self._acknowledged]
            send(connection, hello, HELLO_BYTES_MAX)
            kind, *fields = receive(connection, ANSWER_BYTES_MAX)
            if kind == "replaced":
                raise _Replaced(fields[0])
            _, _, largest, max_value = fields
            self._largest, self.max_value_bytes = largest, max_value
        except BaseException:
            connection.close()
            raise
        line.connection = connection
        return connection

    def _answer(self, connection: socket.socket, number: int) -> Any:
        parts: list[Any] = []
        while True:
            answered, kind, *fields = receive(connection, ANSWER_BYTES_MAX)
            if answered != number:
                continue  # of a request that was interrupted
            if kind == "part":
                parts += fields[0]
            elif kind == "ok":
                return [*parts, *fields[0]] if parts else fields[0]
            else:
                raise error_of(*fields)

    def change(self, changes: Sequence[WriteBatch]) -> None:
        """Make all changes in one commit, once. A decision among them gets its answer."""
        results = self.ask("change", *written(changes), changes=True)
        for change, result in zip(changes, results, strict=True):
            if isinstance(change, Decision):
                set_result(change, result)

    def read(self, reads: Sequence[WriteBatch]) -> list[Any]:
        """The results of `reading`."""
        return list(self.ask("read", *written(reads)))

    @property
    def bounds(self) -> tuple[int, int]:
        """How many operations and how many bytes one request should have. It also has their
        frames."""
        return OPERATIONS_MAX, self._largest // 4

    def close(self) -> None:
        """Close all connections. Safe to call twice. The records of its requests are removed from
        the log, if a process serves it; nothing waits for that."""
        self.openness.end()
        with self._mutex:
            lines, self._free = self._free, []
        clients = [line.client for line in lines if line.has_record]
        for line in lines:
            if clients and line.connection is not None:
                with suppress(OSError, NotUnderstood):
                    send(line.connection, [next(line.numbers), "forget", clients], self._largest)
                    clients = []
            with suppress(OSError):
                line.close()


class _Replaced(Exception):  # an answer, never shown
    """The log that is served lacks changes that it acknowledged to this process."""


class _Refused(Exception):  # an answer, never shown
    """This process could not open the log to serve it. `may_pass`: perhaps it can soon."""

    def __init__(self, cause: ImapWalError) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.may_pass = isinstance(cause, WriterLocked | LostRace | Fenced | StorageUnavailable)


def reading(state: MapState, *call: Any) -> Decision:
    """A read, for another process: "get" or "expiry" with a key, or "size"."""

    def choose(outlook_of: OutlookOf) -> Choice:
        raise NotImplementedError

    return Decision(state, choose, sum(map(len, call)), call)


class RemoteState(MapState):
    """A map in the process that serves."""

    __slots__ = ("_client",)

    def __init__(self, name: str, serializer: Serializer[Any, Any], client: Client) -> None:
        # Without the content that `MapState` has: whoever uses it here must fail.
        self.name, self.serializer, self.logged, self.opened = name, serializer, True, True
        self.order, self.held, self.quick = None, AsBytes(serializer), NOTHING
        self._client = client

    def find(self, key: bytes, now_ms: int) -> bytes | None:
        value: bytes | None = self._read("get", key)
        return value

    def expiry(self, key: bytes, now_ms: int) -> int | None:
        expires: int | None = self._read("expiry", key)
        return expires

    def purge(self, now_ms: int) -> None:
        pass

    def size(self, now_ms: int) -> int:
        return int(self._read("size"))

    def _read(self, *call: Any) -> Any:
        return self._client.read([reading(self, *call)])[0]

    def keys(self, now_ms: int, span: Span = EVERYTHING) -> list[bytes]:
        return list(self._client.ask("keys", map_of(self)))

    def pairs(self, now_ms: int, span: Span = EVERYTHING) -> tuple[list[bytes], list[bytes]]:
        pairs = list(self._client.ask("pairs", map_of(self)))
        return pairs[::2], pairs[1::2]

    def end(
        self, now_ms: int, besides: Container[bytes], *, last: bool
    ) -> tuple[bytes, bytes] | None:
        raise NotImplementedError


class RemoteWriter(MapWriter):
    """Takes the place of the writer of a store's maps."""

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self._client, self._clock = client, clock or SystemClock()
        self.openness = client.openness
        self.knows_all, self.some_unlogged = True, False
        self.order_lock = threading.Lock()

    @property
    def log(self) -> NodeLog:  # type: ignore[override]
        """Raises `InvalidSetting`."""
        raise InvalidSetting(
            "a store of `connect` has no watches and no queues: the log is in the process that "
            "serves it; use them in a program that opens the log with imap_wal.open"
        )

    @property
    def max_value_bytes(self) -> int:  # type: ignore[override]
        return self._client.max_value_bytes

    def change(self, batches: Sequence[WriteBatch]) -> None:
        self._client.change(batches)

    def evaluate(self, steps: Sequence[WriteBatch]) -> None:
        self._client.change(steps)

    @property
    def bounds(self) -> tuple[int, int]:
        return self._client.bounds

    def submit(self, batches: Sequence[WriteBatch]) -> CommitRequest:
        raise NotImplementedError


class RemoteReads(RemoteWriter):
    """The same for `reading`."""

    def evaluate(self, steps: Sequence[WriteBatch]) -> None:
        for step, answer in zip(steps, self._client.read(steps), strict=True):
            cast("Decision", step).answered(answer)
