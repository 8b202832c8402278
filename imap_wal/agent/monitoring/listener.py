"""A small HTTP server on its own thread, which answers GET with short texts.

    accept ─▶ at most CONNECTIONS_MAX, ACCEPTS_PER_S ─▶ request of REQUEST_BYTES ─▶ answer ─▶ close
                                                        all within DEADLINE_S

It shares nothing with the agent's loop but the interpreter. So its use of the processor is bounded:
few connections per second, and a page is made at most once in KEPT_S. If its address cannot be
used, it tries again, and the agent runs without it. See decision 48 in docs/decisions/agents.md.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.clock import Clock
from imap_wal.worker import Worker

CONNECTIONS_MAX = 16
"""Open connections. More wait in the kernel, where they take no descriptor of this process."""
BACKLOG = 64
CROWDED_S = 0.25
"""If all connections are in use, the oldest one is closed that has sent no request for this
time."""
ACCEPTS_PER_S = 50
REQUEST_BYTES = 8192
"""A longer request line with its headers is refused."""
DEADLINE_S = 5.0
"""A connection is closed this long after it was accepted, even if it is in use."""
TICK_S = 0.1
"""How often deadlines, and whether to stop, are checked."""
KEPT_S = 1.0
"""A page with `kept` is made at most once in this time."""

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    body: bytes
    status: int = 200
    content_type: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HttpPage:
    """`make` must not wait. `kept`: the answer is kept for `KEPT_S`. `others`: for clients that
    accept these media types."""

    make: Callable[[], HttpAnswer]
    kept: bool = False
    others: Mapping[str, HttpPage] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    since: float
    received: bytearray = field(default_factory=bytearray)
    unsent: bytes | None = None
    """The part of the answer that was not sent; None: the request has not arrived."""


class HttpListener:
    """`pages`: by path. The first turn of `worker` binds the address; `port` is known then."""

    def __init__(self, address: HttpAddress, pages: Mapping[str, HttpPage], clock: Clock) -> None:
        self._address, self._pages, self._clock = address, pages, clock
        self._selector = selectors.DefaultSelector()
        self._socket: socket.socket | None = None
        self._accepting = False
        self._open: list[_Connection] = []
        """The oldest first."""
        self._kept: dict[str, tuple[float, HttpAnswer]] = {}
        self._second, self._accepted = -1.0, 0
        """How many connections were accepted since `_second`."""
        self.port = 0
        """Where it listens; 0: not yet."""
        self.worker = Worker("imap-wal-http", self._turn)

    @property
    def address(self) -> str:
        """Where it listens; "": nowhere."""
        return str(HttpAddress(self._address.host, self.port)) if self.port else ""

    def close(self) -> None:
        """End the thread, and close all connections."""
        if not self.worker.stop(DEADLINE_S):
            return
        for connection in list(self._open):
            self._end(connection)
        if self._socket is not None:
            self._socket.close()
        self._selector.close()

    # ---- its thread ----

    def _turn(self, worker: Worker) -> bool:
        if self._socket is None:
            self._socket = self._listening()
            self.port = int(self._socket.getsockname()[1])
        self._make_room()
        self._accept_if(self._has_room())
        for key, _ in self._selector.select(TICK_S):
            if key.data is None:
                self._accept(self._socket)
            else:
                self._advance(key.data)
        return True

    def _listening(self) -> socket.socket:
        host, port = self._address.host, self._address.port
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setblocking(False)
            made.bind((host, port))
            made.listen(BACKLOG)
        except OSError as error:
            made.close()
            raise OSError(error.errno, f"{error.strerror}: http_address {self._address}") from error
        return made

    def _has_room(self) -> bool:
        now = self._clock.monotonic()
        if now - self._second >= 1.0:
            self._second, self._accepted = now, 0
        return len(self._open) < CONNECTIONS_MAX and self._accepted < ACCEPTS_PER_S

    def _make_room(self) -> None:
        """Close connections that have reached the deadline, and if there is no room, the oldest
        silent one."""
        now = self._clock.monotonic()
        for connection in [
            connection for connection in self._open if now - connection.since >= DEADLINE_S
        ]:
            self._end(connection)
        if len(self._open) >= CONNECTIONS_MAX:
            for connection in self._open:
                if connection.unsent is None and now - connection.since >= CROWDED_S:
                    self._end(connection)
                    return

    def _accept_if(self, room: bool) -> None:
        """Without room, the listening socket is not polled."""
        assert self._socket is not None
        if room and not self._accepting:
            self._selector.register(self._socket, selectors.EVENT_READ)
        elif self._accepting and not room:
            self._selector.unregister(self._socket)
        self._accepting = room

    def _accept(self, listening: socket.socket) -> None:
        """Raises OSError, for example if no descriptor is free: the next turn is later."""
        try:
            peer, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self._accepted += 1
        peer.setblocking(False)
        made = _Connection(peer, self._clock.monotonic())
        self._open.append(made)
        self._selector.register(peer, selectors.EVENT_READ, made)

    def _advance(self, connection: _Connection) -> None:
        try:
            if connection.unsent is None:
                data = connection.socket.recv(REQUEST_BYTES + 1 - len(connection.received))
                if not data:
                    self._end(connection)
                    return
                connection.received += data
                connection.unsent = self._answer(bytes(connection.received))
                if connection.unsent is None:
                    return
                self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
            sent = connection.socket.send(connection.unsent)
            connection.unsent = connection.unsent[sent:]
            if not connection.unsent:
                self._end(connection)
        except BlockingIOError:
            return
        except OSError:  # the peer has disconnected
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        self._open.remove(connection)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    # ---- requests ----

    def _answer(self, request: bytes) -> bytes | None:
        """The answer to a request; None: more of it must arrive."""
        if b"\r\n\r\n" not in request and b"\n\n" not in request:
            return None if len(request) <= REQUEST_BYTES else _sent(_refusal(431))
        words = request.splitlines()[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return _sent(_refusal(400))
        if words[0] not in (b"GET", b"HEAD"):
            return _sent(_refusal(405))
        path = words[1].partition(b"?")[0].decode("ascii", "replace")
        page = self._pages.get(path)
        if page is not None and page.others:
            path, page = _accepted(path, page, request)
        answer = _refusal(404) if page is None else self._made(path, page)
        return _sent(answer, body=words[0] == b"GET")

    def _made(self, path: str, page: HttpPage) -> HttpAnswer:
        now = self._clock.monotonic()
        at, answer = self._kept.get(path, (0.0, None))
        if answer is None or now - at >= KEPT_S:
            try:
                answer = page.make()
            except Exception as error:  # noqa: BLE001  # a bug: `stat` shows it, and others are served
                self.worker.failed(error)
                return _refusal(500)
            if page.kept:
                self._kept[path] = now, answer
        return answer


def _accepted(path: str, page: HttpPage, request: bytes) -> tuple[str, HttpPage]:
    """The page in the first form that the client accepts, and its key among the kept answers."""
    accepted = [
        line.partition(b":")[2].decode("ascii", "replace").lower()
        for line in request.splitlines()[1:]
        if line.lower().startswith(b"accept:")
    ]
    for kind, other in page.others.items():
        if any(kind in kinds for kinds in accepted):
            return f"{path} {kind}", other
    return path, page


def _refusal(status: int) -> HttpAnswer:
    return HttpAnswer(f"{REASONS[status]}\n".encode(), status)


def _sent(answer: HttpAnswer, *, body: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *(["Allow: GET, HEAD"] if answer.status == 405 else []),
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(f"{name}: {value}" for name, value in answer.headers),
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (answer.body if body else b"")
