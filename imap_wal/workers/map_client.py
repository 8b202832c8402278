"""The maps of the processes that do not serve: a `DurableMap` over a state and a writer that
ask."""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from imap_wal.clock import Clock, SystemClock
from imap_wal.embedded.changes import NOTHING, MapState, WriteBatch
from imap_wal.embedded.decisions import Choice, Decision, OutlookOf
from imap_wal.embedded.held_keys import AsBytes
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.embedded.sorted_keys import EVERYTHING, Span
from imap_wal.errors import InvalidSetting
from imap_wal.serializer import Serializer
from imap_wal.workers.client import Client
from imap_wal.workers.map_messages import (
    MAPS,
    NO_RECORD,
    Acknowledged,
    map_of,
    set_result,
    written,
)
from imap_wal.write.node_log import NodeLog
from imap_wal.write.ring import CommitRequest

OPERATIONS_MAX = 4096
"""How many operations of one process share a request."""


@dataclass(eq=False)
class MapClient(Client):
    """Requests about maps."""

    kind = MAPS
    _acknowledged: Acknowledged = field(default=NO_RECORD, init=False)
    """The last record in the log of a change that any line was answered."""

    def acknowledged(self) -> Acknowledged:
        return self._acknowledged

    def noted(self, client: bytes, number: int, answer: Any) -> Any:
        place, results = answer
        record = place, client, number
        self._acknowledged = max(self._acknowledged, record)
        return results

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
        """The records of its requests are removed from the log, if a process serves it; nothing
        waits for that."""
        with self._mutex:
            clients = [line.client for line in self._free if line.has_record]
        if clients:
            self.tell("forget", clients)
        super().close()


def reading(state: MapState, *call: Any) -> Decision:
    """A read, for another process: "get" or "expiry" with a key, or "size"."""

    def choose(outlook_of: OutlookOf) -> Choice:
        raise NotImplementedError

    return Decision(state, choose, sum(map(len, call)), call)


class RemoteState(MapState):
    """A map in the process that serves."""

    __slots__ = ("_client",)

    def __init__(self, name: str, serializer: Serializer[Any, Any], client: MapClient) -> None:
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

    def __init__(self, client: MapClient, clock: Clock | None = None) -> None:
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
