"""The agent's Unix socket: what arrives in pieces, what leaves in pieces, and who is closed."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from imap_wal.agent.access.admission import Admission, Users
from imap_wal.agent.bounds import Bounds
from imap_wal.agent.lines import Lines
from imap_wal.agent.requests import Stat
from imap_wal.agent.transport import local
from imap_wal.agent.transport.endpoint import EndpointLock
from imap_wal.agent.transport.local import LocalRouter
from imap_wal.agent.transport.router import Message, parts
from tests.agent.harness import config, plugin, serving
from tests.hostile.peers import GREETING, RawPeer, connected, frame
from tests.kit.effort import share
from tests.support import FakeClock, Threads, eventually

READY = frame(b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER", 4)
FRAME_MAX = 400_000


class Socket:
    """A router without an agent, whose loop is the test, and connections to it."""

    def __init__(self, folder: Path, stack: ExitStack, most: int = 10) -> None:
        self.endpoint, self.clock = f"ipc://{folder}/a.sock", FakeClock()
        lock = EndpointLock(self.endpoint, "x", "x (process 1)")
        bounds = Bounds(most, message_bytes=FRAME_MAX)
        self.router = LocalRouter(lock, bounds, None, self.clock, Lines(self.clock))
        self._stack = stack
        stack.callback(self.router.close)

    def plain(self) -> socket.socket:
        return self._stack.enter_context(connected(self.endpoint))

    def greeted(self) -> socket.socket:
        """A connection after its handshake."""
        peer = self.plain()
        peer.sendall(GREETING + READY)
        self.turn()
        assert len(_read(peer, 64)) == 64
        flags, size = _read(peer, 2)
        assert flags == 4 and _read(peer, size).startswith(b"\x05READY")
        return peer

    def turn(self) -> list[Message]:
        """The messages of some turns of the loop, until nothing more arrives."""
        messages: list[Message] = []
        for _ in range(3):
            messages += self.router.receive(0)
        return messages

    def wanted(self, count: int) -> list[Message]:
        """The next messages, so many."""
        messages: list[Message] = []
        eventually(
            lambda: len(messages) >= count or messages.extend(self.router.receive(10)),
            "all have arrived",
        )
        return messages


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Socket]]:
    with ExitStack() as stack:
        yield lambda **options: Socket(tmp_path, stack, **options)


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _is_closed(peer: socket.socket) -> bool:
    peer.settimeout(5)
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def _stat(number: int) -> bytes:
    return frame(msgpack.packb(["stat", number]), 1) + frame(b"")


def _load(number: int, size: int) -> bytes:
    header = msgpack.packb(["load", number, "m", 1])
    return frame(header, 1) + frame(bytes([number % 251]) * size)


# ---- what arrives --------------------------------------------------------------------------------


def test_messages_arrive_whole_however_they_are_cut(make: Callable[..., Socket], seed: int) -> None:
    random = Random(seed)
    sizes = [0, 1, 255, 256, 5000, local.READ_BYTES, local.READ_BYTES + 1, 300_000]
    near = make()
    for _ in range(share(100, ci=20)):
        payloads = random.choices(sizes, k=random.randint(1, 5))
        data = b"".join(_load(number, size) for number, size in enumerate(payloads))
        peer, messages, at = near.greeted(), list[Message](), 0
        peer.settimeout(0)
        while at < len(data):
            step = random.choice([1, 2, 9, 70, 1000, 100_000, 2**20])
            with suppress(BlockingIOError):  # until the router has read more
                at += peer.send(data[at : at + step])
            messages += near.router.receive(0)
        messages += near.wanted(len(payloads) - len(messages))
        assert [message.payload for message in messages] == [
            bytes([number % 251]) * size for number, size in enumerate(payloads)
        ]
        assert {message.sender for message in messages} == {messages[0].sender}
        for message in messages:
            near.router.send(message.sender, ["ok", message.request.number])
        peer.close()
        near.turn()
        assert near.router.gone() == [messages[0].sender]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n".ljust(64),
        GREETING.replace(b"NULL\0", b"CURVE"),
        GREETING[:10] + b"\2" + GREETING[11:],
        GREETING + frame(b"\x05READY\x0bSocket-Type\0\0\0\3PUB", 4),
        GREETING + frame(b"\x05READY\x0bSocket-Type\xff\xff\xff\xffDEALER", 4),
        GREETING + frame(b"\x05READY\xff", 4),
        GREETING + frame(b"\x05OTHER", 4),
        GREETING + _stat(1),
        GREETING + frame(b"\x05READY" + bytes(5000), 4),
        GREETING + READY + b"\2" + struct.pack(">Q", FRAME_MAX + 1),
        GREETING + READY + b"\2" + b"\xff" * 8,
        GREETING + READY + b"\6" + struct.pack(">Q", 5000),
    ],
    ids=lambda sent: repr(sent[64:])[:40],
)
def test_what_is_not_the_protocol_ends_only_its_connection(
    make: Callable[..., Socket], sent: bytes
) -> None:
    near = make()
    other = near.greeted()
    peer = near.plain()
    peer.sendall(sent)
    near.turn()
    assert _is_closed(peer)
    other.sendall(_stat(1))
    (message,) = near.turn()
    assert isinstance(message.request, Stat)
    assert near.router.statistics.refused == 1


def test_random_bytes_end_at_most_their_connection(make: Callable[..., Socket], seed: int) -> None:
    random = Random(seed)
    near = make()
    for _ in range(share(2000, ci=10)):
        peer = near.plain()
        before = random.choice([b"", GREETING, GREETING + READY, GREETING + READY + _stat(1)])
        peer.sendall(before + random.randbytes(random.randint(0, 200)))
        near.turn()
        peer.close()
        near.turn()
    assert near.router.statistics.open == 0


def test_the_size_in_a_frame_takes_no_memory(make: Callable[..., Socket]) -> None:
    near = make()
    near.router._frame_max = 2**40
    peer = near.greeted()
    peer.sendall(b"\1\1x" + b"\2" + struct.pack(">Q", 2**39) + b"x" * local.READ_BYTES)
    near.turn()
    (connection,) = near.router._by_sender.values()
    assert connection.body is not None and len(connection.body) == local.BODY_BYTES


def test_a_ping_gets_its_context_back(make: Callable[..., Socket]) -> None:
    near = make()
    peer = near.greeted()
    peer.sendall(frame(b"\x04PING\0\x09context", 4) + frame(b"\x07UNKNOWN", 4))
    near.turn()
    assert _read(peer, 14) == b"\x04\x0c\x04PONGcontext"


def test_a_message_of_many_frames_ends_its_connection(make: Callable[..., Socket]) -> None:
    """So do many commands at once: they would take the time of all."""
    near = make()
    for flood in (frame(b"", 1) * (local.FRAMES_MAX + 1), frame(b"", 4) * (local.COMMANDS_MAX + 1)):
        peer = near.greeted()
        peer.sendall(flood)
        near.turn()
        assert _is_closed(peer)


def test_messages_that_wait_take_bounded_memory(
    make: Callable[..., Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RECEIVED_BYTES", 1_000_000)
    near = make(most=20)
    peers = [near.greeted() for _ in range(20)]
    for peer in peers:
        peer.sendall(_load(1, 100_000))
    messages = []
    while len(messages) < len(peers):
        messages += near.router.receive(0, most=1)
        assert near.router._ready_bytes < 1_000_000 + FRAME_MAX


def test_the_last_messages_of_a_connection_come_before_its_end(make: Callable[..., Socket]) -> None:
    """The helper may read both while the loop is busy."""
    near = make()
    peer = near.greeted()
    peer.sendall(_stat(1))
    peer.close()
    for _ in range(2):
        near.router._serve(near.router._epoll.poll(0))
    assert near.router.statistics.open == 0
    assert near.router.gone() == []
    (message,) = near.turn()
    assert near.router.gone() == [message.sender]


def test_messages_before_an_end_are_read_after_a_failed_answer(
    make: Callable[..., Socket],
) -> None:
    near = make()
    peer = near.greeted()
    peer.sendall(_stat(1))
    (message,) = near.turn()
    peer.sendall(_stat(2))
    peer.close()
    near.router.send(message.sender, ["stat", 1])
    assert [message.request.number for message in near.turn()] == [2]
    assert near.router.gone() == [message.sender]


def test_a_loop_that_waits_gets_a_large_request(make: Callable[..., Socket]) -> None:
    near = make()
    peer = near.greeted()
    data = _load(1, 300_000)
    peer.sendall(data[:200_000])
    assert near.turn() == []
    received: list[Message] = []
    waits = Threads(lambda: received.extend(near.router.receive(60_000)))
    eventually(lambda: near.router._waits, "the loop waits")
    begin = time.monotonic()
    peer.sendall(data[200_000:])
    waits.join()
    assert len(received[0].payload) == 300_000
    assert time.monotonic() - begin < 30


def test_a_loop_does_not_wake_itself(make: Callable[..., Socket]) -> None:
    """Otherwise each of its waits ends at once."""
    near = make()
    peer = near.greeted()
    peer.sendall(_stat(1))
    assert len(near.router.receive(10_000)) == 1
    with pytest.raises(BlockingIOError):
        os.eventfd_read(near.router._wake)


# ---- what leaves ---------------------------------------------------------------------------------


def test_answers_leave_whole_and_in_order(make: Callable[..., Socket], seed: int) -> None:
    """The peer reads slowly, so most of them do not fit into the socket."""
    random = Random(seed)
    near = make()
    peer = near.greeted()
    peer.sendall(_stat(1))
    (message,) = near.turn()
    sizes = [random.choice([0, 1, 300, 70_000, local.READ_BYTES, 700_000]) for _ in range(30)]
    received: list[tuple[list[Any], bytes]] = []
    peer.settimeout(0)
    data = bytearray()
    for number, size in enumerate(sizes):
        near.router.send(message.sender, ["load", number], bytearray([number]) * size)
        with suppress(BlockingIOError):  # so there is room again, and the rest is not sent yet
            data += peer.recv(random.choice([1, 100_000]))
    while len(received) < len(sizes):
        try:
            data += peer.recv(random.choice([1, 1000, 1 << 20]))
        except BlockingIOError:
            near.router.receive(0)
        while len(data) > 9:
            size, begin = (int.from_bytes(data[1:9]), 9) if data[0] else (data[1], 2)
            if len(data) < begin + size:
                break
            received.append(parts(bytes(data[begin : begin + size])))
            del data[: begin + size]
    assert [header[1] for header, _ in received] == list(range(len(sizes)))
    assert [payload for _, payload in received] == [
        bytes([number]) * size for number, size in enumerate(sizes)
    ]


def test_a_large_answer_does_not_wait_for_the_loop(make: Callable[..., Socket]) -> None:
    near = make()
    peer = near.greeted()
    peer.sendall(_stat(1))
    (message,) = near.turn()
    near.router.send(message.sender, ["load", 1], b"x" * 20_000_000)
    assert len(_read(peer, 20_000_000)) == 20_000_000  # the loop makes no turn


def test_a_peer_that_reads_no_answers_is_closed(make: Callable[..., Socket]) -> None:
    near = make()
    peer = near.greeted()
    peer.sendall(_stat(1))
    (message,) = near.turn()
    for number in range(local.UNSENT_MAX + 20):
        near.router.send(message.sender, ["stat", number], b"x" * 100_000)
    assert near.router.gone() == [message.sender]
    assert near.router.statistics.open == 0
    near.router.send(message.sender, ["stat", 0])  # to a connection that has ended


def test_the_rest_of_an_answer_is_sent_at_a_stop(tmp_path: Path) -> None:
    with ExitStack() as stack:
        near = Socket(tmp_path, stack)
        peer = near.greeted()
        peer.sendall(_stat(1))
        (message,) = near.turn()
        near.router.send(message.sender, ["stat", 1], b"x" * 300_000)
        after = peer.dup()
        data = after.recv(1 << 20)
        assert len(data) < 300_000
    with after:
        while part := after.recv(1 << 20):
            data += part
    assert len(data) > 300_000


# ---- which connections ---------------------------------------------------------------------------


def test_above_the_limit_a_silent_connection_makes_room(make: Callable[..., Socket]) -> None:
    near = make(most=2)
    silent, greeted = near.plain(), near.greeted()
    greeted.sendall(_stat(1))
    (message,) = near.turn()
    near.router.greeted(message.sender)
    refused = near.plain()
    near.turn()
    assert _is_closed(refused)
    near.clock.advance(2 * local.GREETING_S)
    late = near.plain()
    near.turn()
    assert _is_closed(silent)
    near.clock.advance(2 * local.GREETING_S)
    near.plain()
    near.turn()
    assert _is_closed(late)
    assert near.router.statistics.refused == 3
    greeted.sendall(_stat(2))
    assert len(near.turn()) == 1


def test_a_large_number_of_a_user_is_read(make: Callable[..., Socket]) -> None:
    router = make().router
    router._rules = Users(frozenset({3_000_000_000}))

    class Accepted:
        def getsockopt(self, *_: int) -> bytes:
            return struct.pack("iII", 7, 3_000_000_000, 0)

    accepted: Any = Accepted()
    assert router._admission_of(accepted) == Admission("user 3000000000, process 7")


def test_an_unfinished_handshake_ends_in_time(make: Callable[..., Socket]) -> None:
    near = make()
    peers = [near.plain() for _ in range(3)]
    peers[1].sendall(GREETING)
    done = near.greeted()
    near.clock.advance(local.HANDSHAKE_S + 1)
    near.turn()
    assert all(map(_is_closed, peers))
    done.sendall(_stat(1))
    assert len(near.turn()) == 1


def test_connections_wait_while_no_descriptor_is_free(
    make: Callable[..., Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near = make()

    class Full:
        def __init__(self, listening: socket.socket) -> None:
            self.close = listening.close

        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    listening = near.router._listening
    monkeypatch.setattr(near.router, "_listening", Full(listening))
    peer = near.plain()
    near.turn()
    near.router._serve([(near.router._listens_at, select.EPOLLIN)])  # an event of before
    monkeypatch.setattr(near.router, "_listening", listening)
    assert near.router.receive(0) == []
    near.clock.advance(2 * local.RETRY_S)
    near.turn()
    peer.sendall(GREETING + READY)
    near.turn()
    assert len(_read(peer, 66)) == 66


# ---- while the loop is busy ----------------------------------------------------------------------


def _has_read(router: Any, count: int) -> bool:
    return len(router._ready) == count


def test_a_busy_agent_admits_and_answers_pings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread reads a few messages of each connection in advance, and no more."""
    with serving(settings := config(tmp_path)) as agent, plugin(settings) as member:
        busy, free = threading.Event(), threading.Event()
        statistics = agent._handler._statistics

        def slow() -> dict[str, Any]:
            busy.set()
            assert free.wait(60)
            return statistics()

        monkeypatch.setattr(agent._handler, "_statistics", slow)
        router: Any = agent._router
        peers = [RawPeer(settings.endpoint)]
        member.client.post("stat")
        assert busy.wait(60)
        try:
            peers.append(RawPeer(settings.endpoint))
            for peer in peers:
                peer.socket.sendall(frame(b"\x04PING\0\0abc", 4))
                assert peer._read(10) == b"\x04\x08\x04PONGabc"
            for number in range(20):
                peers[1].send("stat", number)
                if number < local.AHEAD_MAX:
                    eventually(partial(_has_read, router, number + 1), "it is read")
            for _ in range(2):  # after a pong, the thread has looked at all connections again
                peers[0].socket.sendall(frame(b"\x04PING\0\0", 4))
                assert peers[0]._read(7) == b"\x04\x05\x04PONG"
            ahead = len(router._ready)
        finally:
            free.set()
        assert [peers[1].answer()[1] for _ in range(20)] == list(range(20))
        assert ahead == local.AHEAD_MAX
        for peer in peers:
            peer.close()
