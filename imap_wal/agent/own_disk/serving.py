"""Answers other agents that read the segments on this agent's disk: `tail` and `tail-read` of
docs/protocol.md. It has its own socket and thread: a read of the disk never delays a commit, and an
agent that waits for another node's tail still answers."""

from __future__ import annotations

import queue
from functools import partial

from imap_wal import layout
from imap_wal.agent.access.admission import ClientKeys
from imap_wal.agent.access.peers import demand
from imap_wal.agent.bounds import (
    TAIL_CONNECTIONS_MAX,
    TAIL_REQUEST_BYTES_MAX,
    UNSENT_BYTES,
    Bounds,
)
from imap_wal.agent.lines import Lines
from imap_wal.agent.requests import Malformed, Tail, TailRead
from imap_wal.agent.transport.network import NetworkRouter
from imap_wal.agent.transport.payload import Payload
from imap_wal.agent.transport.router import Message
from imap_wal.clock import Clock
from imap_wal.errors import NotAllowed
from imap_wal.placement.router import OwnDiskStore
from imap_wal.worker import Worker
from storage_backends import NotFound, StorageError
from storage_backends.paths import is_path

TICK_MS = 200


class TailServer:
    """Serves at `endpoint`, a TCP address, from its creation until `close`. Raises `InvalidSetting`
    if it cannot listen there."""

    def __init__(
        self,
        store: OwnDiskStore,
        endpoint: str,
        rules: ClientKeys | None,
        clock: Clock,
        lines: Lines,
    ) -> None:
        assert store.disk is not None
        self._disk, self._node = store.disk, store.own
        bounds = Bounds(TAIL_CONNECTIONS_MAX, message_bytes=TAIL_REQUEST_BYTES_MAX)
        self._router = NetworkRouter(endpoint, bounds, rules, clock, lines)
        self._left: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._unsent = 0
        self.served = 0
        """Answers with a part of a segment."""
        self.worker = Worker("imap-wal-tails", self._turn)
        self.worker.start()

    def _turn(self, worker: Worker) -> bool:
        for message in self._router.receive(TICK_MS):
            self._answer(message)
        self._router.gone()
        return True

    def _answer(self, message: Message) -> None:
        sender, request, number = message.sender, message.request, message.request.number
        try:
            demand(self._router.peer(message.user), request)
            if isinstance(request, Tail):
                self._router.greeted(sender)
                self._router.send(sender, ["tail", number, self._listed(request.node)])
            elif isinstance(request, TailRead):
                self._read(sender, request)
            elif isinstance(request, Malformed):
                self._error(sender, number, "bad-request", request.text)
            else:
                text = f"{message.kind}: this address only serves segments to other agents"
                self._error(sender, number, "bad-request", text)
        except NotAllowed as error:
            self._error(sender, number, "not-allowed", str(error))
        except NotFound as error:
            self._error(sender, number, "not-found", str(error))
        except StorageError as error:
            self._error(sender, number, "storage", str(error))

    def _listed(self, node: str) -> list[tuple[str, int]]:
        """Name and size of each file. Raises `NotFound` if this is another node's agent."""
        if node != self._node:
            raise NotFound(f"the agent of {self._node} listens here", node)
        return [
            (file.path.rpartition("/")[2], file.size)
            for file in self._disk.list(f"{node}/wal")
            if layout.is_on_disk(file.path)
        ]

    def _read(self, sender: bytes, request: TailRead) -> None:
        path = request.path
        if not (is_path(path) and layout.parse_wal_path(path)) or (
            layout.node_of_wal(path) != self._node
        ):
            raise NotFound("not a segment of this node", path)
        while not self._left.empty():
            self._unsent -= self._left.get()
        if self._unsent >= UNSENT_BYTES:
            self._error(sender, request.number, "not-ready", "other answers use all the memory")
            return
        data = self._disk.read(path, request.offset, request.length)
        # Most of a preallocated segment is zeros, which need not be sent.
        sent = data.rstrip(b"\0")
        payload = Payload(partial(self._left.put, len(sent)))
        payload += sent
        self._unsent += len(sent)
        self.served += 1
        self._router.send(sender, ["tail-read", request.number, len(data)], payload)

    def _error(self, to: bytes, number: int, code: str, text: str) -> None:
        self._router.send(to, ["error", number, code, f"{text} (agent of {self._node})"])

    def close(self) -> None:
        """End the thread and the socket."""
        self._router.close(wait=self.worker.stop(5))
