"""What an embedded map holds in memory, and changes on their way there: in columns, so that a
commit of thousands costs little Python per change."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Container, Iterable, Sequence
from typing import cast

from imap_wal.embedded.serializer import Serializer
from imap_wal.entry import clear_of, pack, pack_upserts
from imap_wal.format import CLEARS, ENTRIES

HEAP_SPARE = 64
"""So many outdated deadlines are not worth a new heap."""


class MapState:
    """What memory knows of one map: serialised keys and values, and which keys expire when. `get`
    takes no lock; all else is one step among threads."""

    __slots__ = ("_deadlines", "_mutex", "expires", "logged", "name", "serializer", "values")

    def __init__(self, name: str, serializer: Serializer, logged: bool = True) -> None:
        self.name, self.serializer, self.logged = name, serializer, logged
        self.values: dict[bytes, bytes] = {}
        self.expires: dict[bytes, int] = {}
        self._deadlines: list[tuple[int, bytes]] = []
        """A heap: one for each key of `expires`, and outdated ones, at most as many and
        `HEAP_SPARE`."""
        self._mutex = threading.Lock()

    def set(self, key: bytes, value: bytes | None, expires_at_ms: int = 0) -> None:
        """Apply one change."""
        with self._mutex:
            self._set(key, value, expires_at_ms)

    def _set(self, key: bytes, value: bytes | None, expires_at_ms: int) -> None:
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value
        if expires_at_ms and value is not None:
            self.expires[key] = expires_at_ms
            heapq.heappush(self._deadlines, (expires_at_ms, key))
        else:
            self.expires.pop(key, None)
        if len(self._deadlines) > 2 * len(self.expires) + HEAP_SPARE:
            self._deadlines = [(at, each) for each, at in self.expires.items()]
            heapq.heapify(self._deadlines)

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        # The deadline first: between the other order's two looks, the entry may expire and be
        # purged, deadline and all.
        if self.expires and self.expires.get(key, now_ms + 1) <= now_ms:
            return None
        return self.values.get(key)

    def expiry(self, key: bytes, now_ms: int) -> int | None:
        """When the key expires, 0 for never; None where there is none."""
        with self._mutex:
            return None if self.get(key, now_ms) is None else self.expires.get(key, 0)

    def purge(self, now_ms: int) -> None:
        """Forget what has expired."""
        if self._deadlines:
            with self._mutex:
                self._purge(now_ms)

    def _purge(self, now_ms: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline, key = heapq.heappop(self._deadlines)
            if self.expires.get(key) == deadline:
                self.values.pop(
                    key, None
                )  # in this order: `get` never finds the value without its deadline
                del self.expires[key]

    def size(self, now_ms: int) -> int:
        """How many keys there are now."""
        with self._mutex:
            self._purge(now_ms)
            return len(self.values)

    def keys(self, now_ms: int) -> list[bytes]:
        """All keys of one moment."""
        with self._mutex:
            self._purge(now_ms)
            return list(self.values)

    def pairs(self, now_ms: int) -> tuple[list[bytes], list[bytes]]:
        """All keys and their values of one moment: two lists take a tenth of what a list of pairs
        takes."""
        with self._mutex:
            self._purge(now_ms)
            return list(self.values), list(self.values.values())

    def last(self, now_ms: int, besides: Container[bytes]) -> tuple[bytes, bytes] | None:
        """The key that was added last, and its value; none of `besides`."""
        with self._mutex:
            self._purge(now_ms)
            return next(
                ((key, self.values[key]) for key in reversed(self.values) if key not in besides),
                None,
            )

    def apply(self, changes: WriteBatch) -> None:
        """Apply all of them, in order, as one step for `keys` and `pairs`."""
        with self._mutex:
            if changes.plain and not self.expires:
                self.values.update(zip(changes.keys, changes.values, strict=True))  # type: ignore[arg-type]  # no None among them
                return
            for index, (key, value) in enumerate(zip(changes.keys, changes.values, strict=True)):
                self._set(key, value, changes.expires.get(index, 0))


class WriteBatch:
    """Serialised changes of one map, in order; grown by whoever makes them, then left alone. Value
    None: a deletion. `expires`: index → expires_at_ms, of those that do."""

    __slots__ = ("expires", "keys", "state", "values")
    kind = ENTRIES
    """Of the frame that takes them."""

    def __init__(
        self,
        state: MapState,
        keys: list[bytes],
        values: list[bytes | None],
        expires: dict[int, int] | None = None,
    ) -> None:
        self.state, self.keys, self.values = state, keys, values
        self.expires: dict[int, int] = {} if expires is None else expires

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def plain(self) -> bool:
        """Upserts for ever, nothing else."""
        return not self.expires and None not in self.values

    def add(self, other: WriteBatch) -> None:
        """Those of another, of the same map, behind ours."""
        start = len(self.keys)
        self.keys += other.keys
        self.values += other.values
        for index, expires in other.expires.items():
            self.expires[start + index] = expires

    def sizes(self) -> list[int]:
        """Bytes of each change's key and value."""
        return [
            len(key) + len(value or b"") for key, value in zip(self.keys, self.values, strict=True)
        ]

    def part(self, start: int, stop: int) -> WriteBatch:
        """Those from `start` to before `stop`."""
        expires = {index - start: at for index, at in self.expires.items() if start <= index < stop}
        return WriteBatch(self.state, self.keys[start:stop], self.values[start:stop], expires)

    def pack(self, timestamp_ms: int, incarnation: int, session: int, request: int) -> list[bytes]:
        """As DataEntries, numbered from `request` on: a msgpack stream in pieces."""
        name, label = self.state.name, self.state.serializer.name
        if self.plain:
            values = cast("list[bytes]", self.values)  # plain: no tombstone is among them
            return pack_upserts(
                name, label, self.keys, values, timestamp_ms, incarnation, session, request
            )
        order = incarnation, 0, session
        rows = enumerate(zip(self.keys, self.values, strict=True))
        return [
            pack(
                (
                    name,
                    key,
                    label,
                    value,
                    label,
                    value is None,
                    timestamp_ms,
                    self.expires.get(index, 0),
                    0,
                    (*order, request + index),
                )
            )
            for index, (key, value) in rows
        ]


class Clear(WriteBatch):
    """All keys of a map are deleted: one entry in the log. `keys`: those that memory may have."""

    __slots__ = ()
    kind = CLEARS

    def __init__(self, state: MapState, keys: list[bytes]) -> None:
        super().__init__(state, keys, [None] * len(keys))

    def __len__(self) -> int:
        return 1

    def pack(self, timestamp_ms: int, incarnation: int, session: int, request: int) -> list[bytes]:
        return [
            pack(clear_of(self.state.name, 0, 1, timestamp_ms, (incarnation, 0, session, request)))
        ]


def split(runs: Sequence[WriteBatch], count: int) -> tuple[list[WriteBatch], list[WriteBatch]]:
    """The first `count` changes, and the others."""
    first: list[WriteBatch] = []
    rest: list[WriteBatch] = []
    for run in runs:
        taken = min(count, len(run))
        if taken:
            first.append(run if taken == len(run) else run.part(0, taken))
        if taken < len(run):
            rest.append(run.part(taken, len(run)) if taken else run)
        count -= taken
    return first, rest


def apply(runs: Iterable[WriteBatch]) -> None:
    """Bring them into the memory of their maps."""
    for run in runs:
        run.state.apply(run)
