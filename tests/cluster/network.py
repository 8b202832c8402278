"""The network between members. Each member announces the address of a proxy. The proxy knows which
member connects by the source address, because each member has its own loopback address.

    member 1 (127.0.1.1) ──▶ proxy of member 2 (127.0.1.2, announced) ──▶ member 2 (127.0.1.2)

cut, split    connections are closed at once, new ones are closed after they were accepted
pause         one direction: bytes wait and are delivered later, connections stay (a black hole)
heal          everything passes again, also the bytes that waited

Clients connect from 127.0.0.1 and are never cut off. A client that has to reach one member only
connects to its own address (`Member.address`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

CHUNK = 1 << 16
REFUSAL_S = 0.1
"""Members connect again at once when a connection is closed: without a pause, several thousand
times a second."""
QUICK_LOSS = {
    "hazelcast.heartbeat.interval.seconds": "1",
    "hazelcast.max.no.heartbeat.seconds": "8",
    "hazelcast.merge.first.run.delay.seconds": "5",
    "hazelcast.merge.next.run.delay.seconds": "3",
    "hazelcast.operation.call.timeout.millis": "20000",
    "hazelcast.partition.migration.timeout": "20",
}
"""Members notice a lost one, and halves merge, within seconds. Hazelcast's defaults are
60, 300, 120. A migration whose answer was lost with its connection is repeated after 20 s and not
after Hazelcast's 300: all others wait for it."""

T = TypeVar("T")


def host(number: int) -> str:
    """The loopback address of member `number` (from 1)."""
    return f"127.0.1.{number}"


@dataclass(eq=False)
class _Connection:
    source: int
    target: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Network:
    """Proxies of all members, on one thread. Members are named by their numbers, from 1."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._cut: set[frozenset[int]] = set()
        self._paused: dict[tuple[int, int], asyncio.Event] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- what tests do ----

    def listen(self, number: int, port: int) -> str:
        """The address to announce for member `number`, which binds this port of its host."""
        return self._call(self._listen(number, port))

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Cut both directions of each pair."""
        self._call(self._close({frozenset(pair) for pair in pairs}))

    def split(self, left: Collection[int], right: Collection[int]) -> None:
        self.cut((one, other) for one in left for other in right)

    def pause(self, source: int, target: int) -> None:
        """What `source` sends to `target`; the other direction passes."""
        self._call(self._hold(source, target))

    def heal(self) -> None:
        self._call(self._release())

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    # ---- on the loop's thread ----

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, number: int, port: int) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(number, port, reader, writer)

        server = await asyncio.start_server(serve, host(number), 0)
        self._servers.append(server)
        return f"{host(number)}:{server.sockets[0].getsockname()[1]}"

    async def _serve(
        self, target: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection, until one of its ends closes it."""
        connection = _Connection(_number(writer.get_extra_info("peername")[0]), target, [writer])
        self._connections.add(connection)
        try:
            if self._is_cut(connection):
                await asyncio.sleep(REFUSAL_S)
                return
            try:
                far_reader, far_writer = await asyncio.open_connection(host(target), port)
            except OSError:  # the member has ended
                await asyncio.sleep(REFUSAL_S)
                return
            connection.writers.append(far_writer)
            if self._is_cut(connection):
                return
            with contextlib.suppress(OSError):
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(connection.source, target, reader, far_writer))
                    pumps.create_task(self._pump(target, connection.source, far_reader, writer))
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _pump(
        self, source: int, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if gate := self._paused.get((source, target)):
                    await gate.wait()
                writer.write(data)
                await writer.drain()
        # If one end closes or is killed, the other is closed: members use no half-closed
        # connections.
        writer.close()

    def _is_cut(self, connection: _Connection) -> bool:
        return frozenset((connection.source, connection.target)) in self._cut

    async def _close(self, pairs: set[frozenset[int]]) -> None:
        self._cut |= pairs
        for connection in list(self._connections):
            if self._is_cut(connection):
                connection.abort()

    async def _hold(self, source: int, target: int) -> None:
        self._paused.setdefault((source, target), asyncio.Event())

    async def _release(self) -> None:
        self._cut.clear()
        gates, self._paused = self._paused, {}
        for gate in gates.values():
            gate.set()

    async def _end(self) -> None:
        await self._release()
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _number(address: str) -> int:
    """The number of the member that connects; 0: a client."""
    return int(address.removeprefix("127.0.1.")) if address.startswith("127.0.1.") else 0
