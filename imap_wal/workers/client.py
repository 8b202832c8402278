"""Requests to the process that serves: sent again when the connection was lost."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from imap_wal.clock import Randomness
from imap_wal.errors import (
    Fenced,
    ImapWalError,
    InvalidSetting,
    LostRace,
    NotAllowed,
    OutcomeUnknown,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.forked import Openness
from imap_wal.workers.endpoint import Endpoint
from imap_wal.workers.messages import (
    ANSWER_BYTES_MAX,
    HELLO_BYTES_MAX,
    VERSION,
    NotUnderstood,
    error_of,
    receive,
    send,
)

PAUSE_S, PAUSE_S_MAX = 0.005, 0.1
TELL_S = 1.0
UNFIT_MAX = 8
"""How many servers that cannot serve this process are tried, if there are several addresses."""


class ClientLine:
    """One connection, for one request at a time. Its requests are numbered across reconnections."""

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.numbers = itertools.count(1)
        self.connection: socket.socket | None = None
        self.has_record = False
        self.server = 0
        """The number of the server to which it is connected."""

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


@dataclass(eq=False)
class Client:
    """Thread-safe. `timeout_s`: how long a request may take, with all its repetitions.
    `patience_s`: how long errors of `elect` that may pass are retried. `elect`: called while no
    process serves; it may make this process serve."""

    kind: ClassVar[str]
    """What it expects at the socket."""
    noun: ClassVar[str] = "store"
    """What it is, in errors."""

    endpoint: Endpoint
    timeout_s: float
    patience_s: float
    elect: Callable[[], bool]
    randomness: Randomness
    max_value_bytes: int = field(default=0, init=False)
    _free: list[ClientLine] = field(default_factory=list, init=False)
    _busy: set[ClientLine] = field(default_factory=set, init=False)
    _mutex: threading.Lock = field(default_factory=threading.Lock, init=False)
    _largest: int = field(default=HELLO_BYTES_MAX, init=False)
    _fenced: Fenced | None = field(default=None, init=False)
    _server: int = field(default=0, init=False)
    """The number of the server that has welcomed this process last."""

    def __post_init__(self) -> None:
        self.openness = Openness(self.noun)

    def acknowledged(self) -> Any:
        """What the log must have."""
        return None

    def noted(self, client: bytes, number: int, answer: Any) -> Any:
        """The result in the answer to a change. The log must have it from now on."""
        return answer

    def ask(self, kind: str, *fields: Any, changes: bool = False, once: bool = False) -> Any:
        """The answer; of an answer in parts, the list of all. If the connection is lost, the
        request is sent again; `changes`: it counts once. `once`: a change that would count twice,
        so it is not sent again.

        Raises:
            OutcomeUnknown: a change was sent, and there was no answer in time; with `once`, the
                connection was lost.
            StorageUnavailable: there was no answer in time; nothing was changed.
            Fenced: the log lacks changes that it acknowledged to this process.
        """
        if self._fenced is not None:
            self.openness.check()
            raise self._fenced
        with self._mutex:
            self.openness.check()  # with the lock: `end` sees each busy connection
            line = self._free.pop() if self._free else ClientLine(self.randomness.token())
            self._busy.add(line)
        try:
            return self._asked(line, [next(line.numbers), kind, *fields], changes, once)
        except BaseException as error:
            if not isinstance(error, Exception):
                line.close()  # its answer may still come
            raise
        finally:
            with self._mutex:
                self._busy.discard(line)
                self._free.append(line)
            if self.openness.closed:
                self.close()

    def tell(self, kind: str, *fields: Any) -> None:
        """Send a request if there is a connection now. Nothing waits for the answer."""
        told = False
        while not told:
            with self._mutex:
                line = next((line for line in self._free if line.connection is not None), None)
                if line is None:
                    return
                self._free.remove(line)
            try:
                assert line.connection is not None
                line.connection.settimeout(TELL_S)
                send(line.connection, [next(line.numbers), kind, *fields], self._largest)
                told = line.server == self._server
            except OSError:
                pass
            finally:
                if not told:  # of a process that does not serve any more
                    line.close()
                with self._mutex:
                    self._free.append(line)

    def end(self) -> None:
        """Requests that wait fail soon, also if the process that serves does not answer."""
        self.openness.end()
        with self._mutex:
            connections = [line.connection for line in self._busy]
        for connection in connections:
            if connection is not None:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _asked(self, line: ClientLine, request: list[Any], changes: bool, once: bool) -> Any:
        end = time.monotonic() + self.timeout_s
        pause, sent = PAUSE_S, False
        refused_since, unfit = 0.0, 0
        failure: Exception | None = None
        while (left := end - time.monotonic()) > 0:
            if not (sent and changes):
                self.openness.check()
            elif self.openness.closed:
                break
            try:
                connection = self._connected(line, left)
                refused_since = 0.0
                connection.settimeout(left)
                line.has_record |= changes
                # After an error here, the process that serves has not got the whole message.
                send(connection, request, self._largest)
                sent = True
                answer = self._answer(connection, request[0])
                if not changes:
                    return answer
                with self._mutex:
                    return self.noted(line.client, request[0], answer)
            except _Unfit as error:
                unfit += 1
                if unfit < UNFIT_MAX and self.endpoint.skip():
                    time.sleep(min(pause, max(left, 0)))
                    continue
                if isinstance(error.cause, Fenced):
                    self._fenced = error.cause
                if sent and changes:
                    text = f"the change may be in the log: {error.cause}"
                    raise OutcomeUnknown(text) from error.cause
                raise error.cause from None
            except _Elected as elected:
                end += elected.seconds
                continue
            except OSError as error:
                failure = error
                if line.connection is None:
                    self.endpoint.skip()
                line.close()
                if once and sent:
                    break
            except _Refused as error:
                failure = error.cause
                self.endpoint.skip()
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since >= self.patience_s or not error.may_pass:
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
        text = f"no process serves at {self.endpoint.name}: {failure}"
        if isinstance(failure, OSError):
            text += self.endpoint.advice(failure)
        if isinstance(failure, TimeoutError):
            text = (
                f"the process that serves at {self.endpoint.name} did not answer within "
                f"{self.timeout_s:g} s"
            )
        if sent:
            return OutcomeUnknown(f"{text}; the change may be in the log")
        return StorageUnavailable(f"{text}; nothing was changed by this request")

    def _connected(self, line: ClientLine, left_s: float) -> socket.socket:
        if line.connection is not None:
            return line.connection
        try:
            connection = self.endpoint.connect(left_s)
        except NotAllowed as error:
            raise _Unfit(error) from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            begin = time.monotonic()
            try:
                if self.elect():
                    raise _Elected(time.monotonic() - begin) from None
            except ImapWalError as refused:
                raise _Refused(refused) from refused
            raise error
        try:
            hello = ["hello", VERSION, line.client, self.kind, self.acknowledged()]
            try:
                send(connection, hello, HELLO_BYTES_MAX)
                kind, *fields = receive(connection, ANSWER_BYTES_MAX)
            except OSError as error:
                if refusal := self.endpoint.refusal(error):
                    raise _Unfit(refusal) from error
                raise
            if kind == "replaced":
                raise _Unfit(Fenced(fields[0]))
            if kind == "other":
                raise _Unfit(InvalidSetting(fields[0]))
            if kind == "failed":
                reason = error_of(*fields)
                if not isinstance(reason, ImapWalError):
                    reason = StorageUnavailable(str(reason))
                raise _Refused(reason)
            _, line.server, largest, max_value = fields
            self._largest, self.max_value_bytes = largest, max_value
            self._server = line.server
        except BaseException:
            connection.close()
            raise
        with self._mutex:
            if self.openness.closed:
                connection.close()
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

    def close(self) -> None:
        """Close all connections. Safe to call twice."""
        self.openness.end()
        with self._mutex:
            lines, self._free = self._free, []
        for line in lines:
            with suppress(OSError):
                line.close()


class _Elected(Exception):  # never shown
    """This process serves now. Opening the log took so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _Unfit(Exception):  # never shown
    """A server cannot serve this process: it does not admit it, or the log that it serves lacks
    changes that were acknowledged to this process. At another address there may be another one."""

    def __init__(self, cause: ImapWalError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Refused(Exception):  # an answer, never shown
    """This process could not open the log to serve it, or another one cannot serve this process.
    `may_pass`: perhaps it can soon."""

    def __init__(self, cause: ImapWalError) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.may_pass = isinstance(cause, WriterLocked | LostRace | Fenced | StorageUnavailable)
