"""The limit of an agent's connections, with the two threads of the agent in a known order."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from imap_wal.agent.lines import Lines
from imap_wal.agent.transport.connection_limit import GREETING_S, ConnectionLimiter, SocketEvent
from tests.support import FakeClock

MOST = 2


@dataclass
class Entrance:
    """A limiter of two connections, and its listening socket. `turn` is one turn of its thread."""

    stack: ExitStack
    clock: FakeClock = field(default_factory=FakeClock)
    events: deque[SocketEvent] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.limiter = ConnectionLimiter(
            lambda: self.events.popleft() if self.events else None,
            self.listener.getsockname()[1],
            MOST,
            self.clock,
            Lines(self.clock),
        )
        self.stack.callback(self.limiter.close)

    def connect(self) -> int:
        """The accepted descriptor of a new connection, whose event waits for a turn."""
        self.stack.enter_context(socket.create_connection(self.listener.getsockname()))
        accepted = self.stack.enter_context(self.listener.accept()[0])
        self.events.append(SocketEvent(accepted=True, fd=accepted.fileno()))
        return accepted.fileno()

    def turn(self) -> None:
        self.limiter._turn(self.limiter.worker)

    def is_open(self, fd: int) -> bool:
        """Whether the limiter did not shut it down: then its peer would read an end."""
        with socket.socket(fileno=fd) as accepted:
            accepted.setblocking(False)
            try:
                return accepted.recv(1) != b""
            except BlockingIOError:
                return True
            finally:
                accepted.detach()


@pytest.fixture
def entrance() -> Iterator[Entrance]:
    with ExitStack() as stack:
        yield Entrance(stack)


def sender(number: int) -> bytes:
    """A routing id of libzmq."""
    return b"\0" + number.to_bytes(4, "big")


def test_a_welcomed_connection_is_not_closed_to_make_room(entrance: Entrance) -> None:
    """Its hello arrived before the event that says that it was accepted."""
    for _ in range(MOST):
        entrance.connect()
        entrance.turn()
    entrance.clock.advance(2 * GREETING_S)
    late = entrance.connect()
    assert entrance.limiter.first_message(sender(1), late)  # a silent connection made room
    entrance.limiter.greeted(sender(1))
    assert entrance.limiter.statistics.open == MOST
    entrance.turn()
    assert entrance.is_open(late)
    assert entrance.limiter.gone() == []


def test_a_hello_above_the_limit_is_refused(entrance: Entrance) -> None:
    """No other connection has been silent for long enough to make room."""
    for _ in range(MOST):
        entrance.connect()
        entrance.turn()
    late = entrance.connect()
    assert not entrance.limiter.first_message(sender(1), late)
    entrance.turn()
    assert not entrance.is_open(late)
    statistics = entrance.limiter.statistics
    assert (statistics.open, statistics.refused) == (MOST, 1)
