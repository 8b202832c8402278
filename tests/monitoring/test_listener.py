"""The HTTP server of an agent: what it answers, and what it does not let a peer do."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.agent.monitoring import listener
from imap_wal.agent.monitoring.listener import HttpAnswer, HttpListener, HttpPage
from imap_wal.clock import SystemClock
from imap_wal.errors import InvalidSetting
from tests.monitoring.http import ask, get
from tests.support import FakeClock, eventually


class Counted:
    """A page that counts how often it is made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> HttpAnswer:
        self.made += 1
        return HttpAnswer(f"{self.made}\n".encode())


def broken() -> HttpAnswer:
    raise KeyError("a bug")


def serving(stack: ExitStack, clock: FakeClock | SystemClock, **pages: HttpPage) -> HttpListener:
    made = HttpListener(
        HttpAddress("127.0.0.1", 0), {f"/{name}": page for name, page in pages.items()}, clock
    )
    made.worker.start()
    stack.callback(made.close)
    eventually(lambda: made.port, "it listens")
    return made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"GET /page?x=1 HTTP/1.0\n\n", 200),
        (b"HEAD /page HTTP/1.1\r\n\r\n", 200),
        (b"POST /page HTTP/1.1\r\nContent-Length: 9\r\n\r\n", 405),
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"GET /../page HTTP/1.1\r\n\r\n", 404),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 404),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /page\r\n\r\n", 400),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
        (b"GET /" + b"a" * (listener.REQUEST_BYTES - 4), 431),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_each_request_gets_its_status(stack: ExitStack, request_: bytes, status: int) -> None:
    server = serving(stack, SystemClock(), page=HttpPage(Counted()), broken=HttpPage(broken))
    answer = ask(server.port, request_)
    assert answer.status == status
    assert (answer.body != b"") == (not request_.startswith(b"HEAD"))
    assert ask(server.port, b"GET /page HTTP/1.1\r\n\r\n").status == 200, "it serves others"


def test_a_kept_page_is_made_once_a_second(stack: ExitStack) -> None:
    clock, kept, other = FakeClock(), Counted(), Counted()
    server = serving(stack, clock, kept=HttpPage(kept, kept=True), other=HttpPage(other))
    for _ in range(5):
        get(server.port, "/kept")
        get(server.port, "/other")
    assert (kept.made, other.made) == (1, 5)
    clock.advance(listener.KEPT_S)
    assert get(server.port, "/kept").body == b"2\n"


def test_a_silent_connection_ends_at_the_deadline(stack: ExitStack) -> None:
    clock = FakeClock()
    server = serving(stack, clock, page=HttpPage(Counted()))
    with closing(socket.create_connection(("127.0.0.1", server.port), 30)) as slow:
        slow.sendall(b"GET /page HT")
        eventually(lambda: server._open, "it was accepted")
        clock.advance(listener.DEADLINE_S)
        # The system says "reset" if the server had not read the bytes before the deadline.
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""


def test_no_more_connections_are_accepted_than_there_is_room(stack: ExitStack) -> None:
    """With a clock that does not move, no silent connection is closed, and the rest waits."""
    clock = FakeClock()
    server = serving(stack, clock, page=HttpPage(Counted()))
    for _ in range(listener.CONNECTIONS_MAX + 20):
        stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), 30)))
    eventually(lambda: len(server._open) == listener.CONNECTIONS_MAX, "all room is used")
    with closing(socket.create_connection(("127.0.0.1", server.port), 30)) as late:
        late.sendall(b"GET /page HTTP/1.1\r\n\r\n")

        def answered() -> bool:
            assert len(server._open) <= listener.CONNECTIONS_MAX
            clock.advance(listener.CROWDED_S)  # now the oldest silent ones are closed
            return bool(select.select([late], [], [], 0.05)[0])

        eventually(answered, "the silent ones make room")
        assert late.recv(64).startswith(b"HTTP/1.1 200")


def test_the_number_of_requests_in_a_second_is_limited(stack: ExitStack) -> None:
    clock, page = FakeClock(), Counted()
    server = serving(stack, clock, page=HttpPage(page))
    for _ in range(listener.ACCEPTS_PER_S):
        get(server.port, "/page")
    with closing(socket.create_connection(("127.0.0.1", server.port), 30)) as late:
        late.sendall(b"GET /page HTTP/1.1\r\n\r\n")
        eventually(lambda: not server._accepting, "it does not look at the socket")
        assert page.made == listener.ACCEPTS_PER_S
        clock.advance(1.0)
        assert late.recv(64).startswith(b"HTTP/1.1 200")


def test_an_address_in_use_is_tried_again(stack: ExitStack) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    server = HttpListener(
        HttpAddress("127.0.0.1", taken.getsockname()[1]),
        {"/page": HttpPage(Counted())},
        SystemClock(),
    )
    server.worker.start()
    stack.callback(server.close)
    eventually(lambda: "http_address" in server.worker.trouble, "the thread reports the address")
    assert server.address == ""
    taken.close()
    eventually(lambda: server.port, "it listens when the address is free")
    assert get(server.port, "/page").status == 200
    eventually(lambda: server.worker.trouble == "", "the thread reports no error any more")


def test_a_peer_that_disconnects_ends_nothing(stack: ExitStack) -> None:
    server = serving(stack, SystemClock(), page=HttpPage(lambda: HttpAnswer(b"x" * 20_000_000)))
    for _ in range(5):
        with closing(socket.create_connection(("127.0.0.1", server.port), 30)) as peer:
            peer.sendall(b"GET /page HTTP/1.1\r\n\r\n")
            with suppress(OSError):
                peer.recv(1)
    assert len(get(server.port, "/page").body) == 20_000_000
    assert not server.worker.trouble


@pytest.mark.parametrize(
    "text",
    [
        "9413",
        "localhost",
        "host.example:9413",
        "127.0.0.1:x",
        "127.0.0.1:99999",
        "a@127.0.0.1:1",
        "127.0.0.1:9413/metrics",
        "http://127.0.0.1:9413",
        "*:9413",
        "::1:9413",
    ],
)
def test_an_unclear_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="http_address"):
        HttpAddress.parse(text)


@pytest.mark.parametrize(
    ("text", "meant", "open_"),
    [
        ("127.0.0.1:9413", "127.0.0.1:9413", False),
        ("localhost:9413", "127.0.0.1:9413", False),
        ("[::1]:9413", "[::1]:9413", False),
        ("0.0.0.0:9413", "0.0.0.0:9413", True),
        ("[::]:9413", "[::]:9413", True),
        ("10.0.0.5:9413", "10.0.0.5:9413", True),
    ],
)
def test_an_address_for_others_gets_a_warning(text: str, meant: str, open_: bool) -> None:
    address = HttpAddress.parse(text)
    assert (str(address), bool(address.doubt)) == (meant, open_)
