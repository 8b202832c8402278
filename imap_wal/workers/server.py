"""Serves what this process has open to other processes: a thread for each connection, so all
changes that wait share a commit."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from imap_wal.errors import ImapWalError, StorageUnavailable
from imap_wal.workers.endpoint import Endpoint, ServerLock, Sockets
from imap_wal.workers.messages import (
    ANSWER_BYTES_MAX,
    HELLO_BYTES_MAX,
    PART_BYTES,
    SMALL_BYTES,
    VERSION,
    NotUnderstood,
    error_fields,
    read_hello,
    receive,
    send,
)

CONNECTIONS_MAX = 1000
"""A connection takes a thread, and a process one connection for each of its threads that wait."""
SLOW_S = 30.0
"""A connection that does not send or take the rest of a message in this time is closed."""
NOTE_S = 1.0
"""The shortest time between two log lines that peers cause, in seconds."""
BYTES_PER_S_MIN = 1024 * 1024
"""A large message may take longer, at this speed."""
STOP_S = 5.0
"""How long a stop waits for requests that are being served."""

_log = logging.getLogger("imap_wal")


Parts = Callable[[Iterable[Any]], list[Any]]
"""Sends the values of an answer in parts, except the last part, which it returns."""


class Served(Protocol):
    """What a process serves. Thread-safe. Methods may raise the errors of imap-wal."""

    kind: str
    """What a client must expect, as its hello says."""
    url: str
    limits: tuple[int, int]
    """The bytes of the largest request, and of the largest value."""

    def lacks(self, acknowledged: Any) -> bool:
        """Whether the log lacks what it acknowledged to a process. Raises `NotUnderstood`."""
        ...

    def prepare(self) -> object:
        """Called for each new connection."""
        ...

    def answer(self, client: bytes, number: int, request: list[Any], parts: Parts) -> Any:
        """The answer to a request of a client. Raises `NotUnderstood`."""
        ...

    @property
    def failure(self) -> Exception | None:
        """Why it can write no more."""
        ...

    @property
    def closed(self) -> bool: ...

    def end_waits(self) -> object:
        """Requests that wait for something are answered now."""
        ...

    def close(self) -> object: ...


class Server:
    """Serves at an endpoint whose lock it has, until `stop`, which also closes what is served. It
    stops by itself when that can write no more: then another process may serve."""

    def __init__(self, served: Served, endpoint: Endpoint, lock: ServerLock) -> None:
        """Raises `InvalidSetting` if it cannot listen there."""
        self.served, self._endpoint, self._lock = served, endpoint, lock
        self._room = _Room(served.limits[0])
        self._connections: dict[socket.socket, bool] = {}
        """The oldest first → whether it has said hello."""
        self._threads: set[threading.Thread] = set()
        self._mutex = threading.Lock()
        self._stopping: bool = False
        self._noted = -NOTE_S
        self._number = time.monotonic_ns()
        """Names this server to its clients. Processes of two machines may have one number."""
        self.stopped = threading.Event()
        """Set when it is closed."""
        self._listening = endpoint.listen()
        self._accepting = threading.Thread(target=self._accept, name="imap-wal-serve", daemon=True)
        self._accepting.start()

    @property
    def is_serving(self) -> bool:
        return not self._stopping

    def stop(self, *, wait: bool = True) -> None:
        """Answer the requests that are being served, close what is served, and let another process
        serve. Safe to call twice, and from any thread; `wait`: for another thread that does it.
        Raises the errors of closing it."""
        with self._mutex:
            first, self._stopping = not self._stopping, True
        if not first:
            if wait:
                self.stopped.wait()
            return
        try:
            self._endpoint.remove()
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            with self._mutex:
                connections, threads = list(self._connections), list(self._threads)
            for connection in connections:
                _shut(connection, socket.SHUT_RD)  # after the answer, it reads the end
            self.served.end_waits()
            end = time.monotonic() + STOP_S
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, end - time.monotonic()))
            self.served.close()
        finally:
            with suppress(Exception):
                self._lock.release()
            self.stopped.set()

    # ---- connections ----

    def _accept(self) -> None:
        while self.is_serving:
            try:
                accepted = Sockets.kept(self._listening.accept()[0])
            except OSError:
                self.stopped.wait(0.1)  # too many open files, or it stops
                continue
            try:
                connection = self._endpoint.admitted(accepted)
            except OSError:  # it has ended
                connection = None
            if connection is None:
                accepted.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="imap-wal-client", daemon=True
            )
            with self._mutex:
                full = self._stopping or not self._has_room()
                begun = False
                if not full:
                    self._connections[Sockets.kept(connection)] = False
                    self._threads.add(thread)
                    # With the lock: `stop` cannot join a thread before its start.
                    begun = self._started(thread, connection)
            if not begun:
                if full and not self._stopping and connection is accepted:
                    self._refuse(connection)  # with TLS, that would wait for the peer
                connection.close()

    def _has_room(self) -> bool:
        """Above the limit, the oldest connection that has said no hello makes room. The thread of
        such a connection ends soon."""
        if len(self._connections) < CONNECTIONS_MAX:
            return True
        silent = next((of for of, greeted in self._connections.items() if not greeted), None)
        if silent is None:
            return False
        del self._connections[silent]
        _shut(silent, socket.SHUT_RDWR)
        return True

    def _started(self, thread: threading.Thread, connection: socket.socket) -> bool:
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            _log.error("a connection was closed: %s", error)
            self._connections.pop(connection, None)
            self._threads.discard(thread)
            return False
        return True

    def _refuse(self, connection: socket.socket) -> None:
        text = f"the process that serves {self.served.url} has {CONNECTIONS_MAX} connections"
        connection.settimeout(1)
        with suppress(OSError):
            send(connection, ["failed", *error_fields(StorageUnavailable(text))], ANSWER_BYTES_MAX)

    def _forget(self, connection: socket.socket, thread: threading.Thread) -> None:
        connection.close()
        with self._mutex:
            self._connections.pop(connection, None)
            self._threads.discard(thread)

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._converse(connection)
        except (OSError, NotUnderstood) as error:
            if isinstance(error, NotUnderstood):
                self._note(f"a connection was closed: {error}")
        except Exception:  # noqa: BLE001  # it must not end the thread without a trace
            _log.exception("a connection was closed after an error that was not expected")
        finally:
            self._forget(connection, threading.current_thread())
            if self.served.failure is not None:
                self._give_up()

    def _note(self, text: str) -> None:
        """Log it, unless there was another line a moment ago: peers can cause any number."""
        now = time.monotonic()
        if now - self._noted >= NOTE_S:
            self._noted = now
            _log.warning("%s", text)

    def _give_up(self) -> None:
        """It can write no more. Another process opens the log again."""
        _log.error("this process serves %s no longer: %s", self.served.url, self.served.failure)
        with suppress(Exception):
            self.stop(wait=False)  # who stops it waits for this thread

    def _converse(self, connection: socket.socket) -> None:
        try:
            self._endpoint.greet(connection)
        except OSError as error:
            self._note(f"{self._endpoint.peer(connection)} was not admitted: {error}")
            return
        connection.settimeout(SLOW_S)
        served = self.served
        client, kind, acknowledged = read_hello(receive(connection, HELLO_BYTES_MAX))
        if kind != served.kind:
            text = f"this socket serves {served.kind}, not {kind}: use another socket"
            send(connection, ["other", text], ANSWER_BYTES_MAX)
            return
        largest, _ = served.limits
        try:
            lacks = served.lacks(acknowledged)
        except ImapWalError as error:
            if isinstance(error, NotUnderstood):
                raise
            send(connection, ["failed", *error_fields(error)], ANSWER_BYTES_MAX)
            return
        if lacks:
            text = (
                f"the log at {served.url} lacks changes that it acknowledged to this process: its "
                "folder was replaced by an older copy. Stop all processes, and restore the former "
                "folder; or close this, and connect again to continue without these changes"
            )
            send(connection, ["replaced", text], ANSWER_BYTES_MAX)
            return
        try:
            served.prepare()
        except ImapWalError as error:  # reads are served without it
            _log.warning("old records of requests were not removed: %s", error)
        send(connection, ["welcome", VERSION, self._number, *served.limits], ANSWER_BYTES_MAX)
        with self._mutex:
            if connection not in self._connections:
                return
            self._connections[connection] = True
        while self.is_serving:
            connection.settimeout(None)  # it may be idle
            with self._room.entered() as enter:

                def begun(size: int) -> float:
                    connection.settimeout(SLOW_S)
                    enter(size)
                    return time.monotonic() + SLOW_S + size / BYTES_PER_S_MIN

                request = receive(connection, largest, begun)
                connection.settimeout(SLOW_S)
                if not self._answer(connection, client, request):
                    return

    def _answer(self, connection: socket.socket, client: bytes, request: list[Any]) -> bool:
        """Whether the connection continues."""
        number, fields = request[0], request[1:]
        if type(number) is not int or not fields:
            raise NotUnderstood("a request does not begin with its number and kind")

        def in_parts(values: Iterable[Any]) -> list[Any]:
            part: list[Any] = []
            size = 0
            for value in values:
                if size >= PART_BYTES:
                    send(connection, [number, "part", part], ANSWER_BYTES_MAX)
                    part, size = [], 0
                part.append(value)
                size += 16 + (len(value) if isinstance(value, bytes) else 0)
            return part

        try:
            answer = self.served.answer(client, number, fields, in_parts)
        except NotUnderstood as error:
            send(connection, [number, "error", *error_fields(error)], ANSWER_BYTES_MAX)
            raise
        except Exception as error:  # noqa: BLE001  # the client gets it
            if self.served.failure is not None or self.served.closed:
                return False  # whether it is in the log is decided by the next open
            send(connection, [number, "error", *error_fields(error)], ANSWER_BYTES_MAX)
        else:
            send(connection, [number, "ok", answer], ANSWER_BYTES_MAX)
        return True


def _shut(connection: socket.socket, how: int) -> None:
    """Another thread may be reading. `SSLSocket.shutdown` would send the rest unencrypted."""
    with suppress(OSError):
        socket.socket.shutdown(connection, how)


class _Room:
    """Limits the memory of large requests of all connections together."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max
        self._changed = threading.Condition()

    @contextmanager
    def entered(self) -> Iterator[Any]:
        """Within this, a request may be read, when there is room for it."""
        taken = 0

        def enter(size: int) -> None:
            nonlocal taken
            if size <= SMALL_BYTES:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._free >= size)
                self._free -= size
            taken = size

        try:
            yield enter
        finally:
            if taken:
                with self._changed:
                    self._free += taken
                    self._changed.notify_all()
