"""What an embedded map holds in memory, and changes on their way there: in columns, so that a commit of thousands costs little Python per change."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Sequence

from imap_wal.entry import pack, pack_upserts
from imap_wal.serializer import Serializer


class MapState:
    """What memory knows of one map: serialised keys and values, and who expires when."""

    __slots__ = ("_deadlines", "_mutex", "expires", "logged", "name", "serializer", "values")

    def __init__(self, name: str, serializer: Serializer, logged: bool = True) -> None:
        self.name, self.serializer, self.logged = name, serializer, logged
        self.values: dict[bytes, bytes] = {}
        self.expires: dict[bytes, int] = {}
        self._deadlines: list[tuple[int, bytes]] = []
        self._mutex = threading.Lock()
        """Between `set` and `purge`; `get` and the sets of a map where nothing expires do without."""

    def set(self, key: bytes, value: bytes | None, expires_at_ms: int = 0) -> None:
        """Apply one change."""
        with self._mutex:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
            if expires_at_ms and value is not None:
                self.expires[key] = expires_at_ms
                heapq.heappush(self._deadlines, (expires_at_ms, key))
            else:
                self.expires.pop(key, None)

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        value = self.values.get(key)
        if value is not None and self.expires and self.expires.get(key, now_ms + 1) <= now_ms:
            return None
        return value

    def purge(self, now_ms: int) -> None:
        """Forget what has expired."""
        if not self._deadlines:
            return
        with self._mutex:
            while self._deadlines and self._deadlines[0][0] <= now_ms:
                deadline, key = heapq.heappop(self._deadlines)
                if self.expires.get(key) == deadline:
                    # In this order: while `expires` is empty, a put without a lifetime takes no lock, and must not meet the pop.
                    self.values.pop(key, None)
                    del self.expires[key]

    def apply(self, changes: Changes) -> None:
        """Apply all of them, in order."""
        if changes.plain and not self.expires:
            self.values.update(zip(changes.keys, changes.values, strict=True))  # type: ignore[arg-type]  # no None among them
            return
        for index, (key, value) in enumerate(zip(changes.keys, changes.values, strict=True)):
            self.set(key, value, changes.expires.get(index, 0))


class Changes:
    """Serialised changes of one map, in order; grown by whoever makes them, then left alone. Value None: a deletion. `expires`: index → expires_at_ms, of those that do."""

    __slots__ = ("expires", "keys", "state", "values")

    def __init__(self, state: MapState, keys: list[bytes], values: list[bytes | None], expires: dict[int, int] | None = None) -> None:
        self.state, self.keys, self.values = state, keys, values
        self.expires: dict[int, int] = {} if expires is None else expires

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def plain(self) -> bool:
        """Upserts for ever, nothing else."""
        return not self.expires and None not in self.values

    def add(self, other: Changes) -> None:
        """Those of another, of the same map, behind ours."""
        start = len(self.keys)
        self.keys += other.keys
        self.values += other.values
        for index, expires in other.expires.items():
            self.expires[start + index] = expires

    def sizes(self) -> list[int]:
        """Bytes of each change's key and value."""
        return [len(key) + len(value or b"") for key, value in zip(self.keys, self.values, strict=True)]

    def part(self, start: int, stop: int) -> Changes:
        """Those from `start` to before `stop`."""
        expires = {index - start: at for index, at in self.expires.items() if start <= index < stop}
        return Changes(self.state, self.keys[start:stop], self.values[start:stop], expires)

    def pack(self, timestamp_ms: int, incarnation: int, session: int, request: int) -> list[bytes]:
        """As DataEntries, numbered from `request` on: a msgpack stream in pieces."""
        name, label = self.state.name, self.state.serializer.name
        if self.plain:
            return pack_upserts(name, label, self.keys, self.values, timestamp_ms, incarnation, session, request)  # type: ignore[arg-type]  # no None
        order = incarnation, 0, session
        rows = enumerate(zip(self.keys, self.values, strict=True))
        return [
            pack((name, key, label, value, label, value is None, timestamp_ms, self.expires.get(index, 0), 0, (*order, request + index)))
            for index, (key, value) in rows
        ]


def split(runs: Sequence[Changes], count: int) -> tuple[list[Changes], list[Changes]]:
    """The first `count` changes, and the others."""
    first: list[Changes] = []
    rest: list[Changes] = []
    for run in runs:
        taken = min(count, len(run))
        if taken:
            first.append(run if taken == len(run) else run.part(0, taken))
        if taken < len(run):
            rest.append(run.part(taken, len(run)) if taken else run)
        count -= taken
    return first, rest


def apply(runs: Iterable[Changes]) -> None:
    """Bring them into the memory of their maps."""
    for run in runs:
        run.state.apply(run)
