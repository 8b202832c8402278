"""Reads the segments on the disks of other nodes: asks their agents, whose addresses are in the
nodes' manifests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from imap_wal.agent.access.keys import KeyPair
from imap_wal.agent.bounds import TAIL_BYTES_MAX
from imap_wal.agent.transport.client import AgentClient, NoAgent
from imap_wal.clock import Clock
from imap_wal.context import Context
from imap_wal.errors import LogError, NotAllowed
from imap_wal.layout import node_of_wal
from imap_wal.manifest.node import NodeManifestLog
from storage_backends import NotFound, SegmentStore, StorageError, StoredFile, Unavailable

ANSWER_MS = 3000
"""How long to wait for an answer."""
AWAY_S, AWAY_S_MAX = 0.5, 8.0
"""An agent that did not answer is not asked again in this time: otherwise a reader of one log would
wait several times. It doubles with each attempt, up to the maximum."""


@dataclass(slots=True)
class _Peer:
    """The agent of a node. `until`: it is not asked before this time (monotonic seconds), because
    of `why`."""

    address: tuple[str, str] = ("", "")
    client: AgentClient | None = None
    until: float = 0.0
    pause: float = AWAY_S
    why: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def disconnect(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None


class AgentTails:
    """The `Tails` that ask agents. Thread-safe. `key`: the key with which the agents admit this
    process; None: they use no keys. Methods raise `Unavailable` if the agent does not answer or
    refuses, and `NotFound` if it does not have the file or is another node's agent."""

    def __init__(self, root: SegmentStore, key: KeyPair | None, clock: Clock) -> None:
        self._root, self._key, self._clock = root, key, clock
        self._peers: dict[str, _Peer] = {}
        self._mutex = threading.Lock()

    def files(self, node: str) -> list[StoredFile]:
        header, _ = self._ask(node, "tail", node)
        try:
            return [StoredFile(f"{node}/wal/{name}", int(size)) for name, size in header[2]]
        except (LookupError, TypeError, ValueError) as error:
            raise Unavailable(
                f"its agent's answer does not have the form of docs/protocol.md ({error!r})", node
            ) from error

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        parts: list[bytes] = []
        while length is None or length > 0:
            part_bytes = TAIL_BYTES_MAX if length is None else min(length, TAIL_BYTES_MAX)
            header, payload = self._ask(node_of_wal(path), "tail-read", path, offset, part_bytes)
            count = header[2] if len(header) > 2 else -1
            if type(count) is not int or not len(payload) <= count <= part_bytes:
                raise Unavailable(
                    "its agent's answer does not have the form of docs/protocol.md", path
                )
            parts += [payload, bytes(count - len(payload))]
            if count < part_bytes:
                break
            offset, length = offset + count, None if length is None else length - count
        return b"".join(parts)

    def close(self) -> None:
        with self._mutex:
            peers, self._peers = self._peers, {}
        for peer in peers.values():
            with peer.lock:
                peer.disconnect()

    def _ask(self, node: str, kind: str, *fields: Any) -> tuple[list[Any], bytes]:
        with self._mutex:
            peer = self._peers.setdefault(node, _Peer())
        with peer.lock:
            if self._clock.monotonic() < peer.until:
                raise Unavailable(peer.why, fields[0])
            try:
                header, payload = self._answer(node, peer, kind, fields)
            except Unavailable as error:
                peer.why, peer.until = str(error), self._clock.monotonic() + peer.pause
                peer.pause = min(2 * peer.pause, AWAY_S_MAX)
                raise Unavailable(peer.why, fields[0]) from error
            peer.pause = AWAY_S
        if header[0] == "error":
            code, text = (*header[2:4], "", "")[:2]
            if code == "not-found":
                raise NotFound(str(text), fields[0])
            raise Unavailable(f"its agent at {peer.address[0]} refused {kind}: {text}", node)
        return header, payload

    def _answer(
        self, node: str, peer: _Peer, kind: str, fields: tuple[Any, ...]
    ) -> tuple[list[Any], bytes]:
        """The answer of a node's agent. If an earlier connection does not work any more, the agent
        may have been restarted or moved: its address is read again, for a new connection."""
        for is_new in (peer.client is None, True):
            if peer.client is None:
                peer.address = address, public = self._address(node)
                key = self._key if public else None
                peer.client = AgentClient(address, ANSWER_MS, key, public, waits=False)
            try:
                return peer.client.ask(kind, *fields)
            except TimeoutError:
                why = f"its agent at {peer.address[0]} does not answer"
            except (NotAllowed, NoAgent) as error:
                why = str(error)
            peer.disconnect()
            if is_new:
                break
        raise Unavailable(why)

    def _address(self, node: str) -> tuple[str, str]:
        """Where a node's agent serves its disk, and the agent's public key."""
        try:
            manifest = NodeManifestLog(Context(self._root), node).read()[1]
        except (LogError, StorageError) as error:
            raise Unavailable(f"the address of its agent cannot be read: {error}") from error
        if not manifest.address:
            raise Unavailable("its manifest has no address of an agent")
        return manifest.address, manifest.address_key
