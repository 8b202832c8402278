"""An embedded map in memory, and batches of changes. They are stored in columns, so that a commit
of thousands of changes needs little Python code for each."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from operator import itemgetter
from typing import Any, cast

from imap_wal.embedded.sorted_keys import EVERYTHING, SortedKeys, Span
from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    VALUE,
    Row,
    clear_of,
    is_clear,
    pack,
    pack_upserts,
)
from imap_wal.errors import NotReadable
from imap_wal.format import CLEARS, ENTRIES
from imap_wal.rules.alive import has_expired
from imap_wal.serializer import Serializer, shown

_KEY_OF: Callable[[Row], bytes] = itemgetter(KEY)
_VALUE_OF: Callable[[Row], bytes] = itemgetter(VALUE)
_DELETED_OF: Callable[[Row], bool] = itemgetter(DELETED)
_EXPIRY_OF: Callable[[Row], int] = itemgetter(EXPIRES_AT_MS)
HEAP_SPARE = 64
"""The heap may have this many outdated deadlines before it is built again."""
REMOVED_SPARE, REMOVED_SHARE = 1000, 64
"""A dict keeps the place of each removed key, and a search for its first key passes all of them. It
is built again when so many, and one for this many keys, were removed."""


class MapState:
    """One map in memory: serialised keys and values, and when keys expire. `get` takes no lock; all
    other methods are atomic."""

    __slots__ = (
        "_deadlines",
        "_mutex",
        "_removed",
        "expires",
        "logged",
        "name",
        "opened",
        "order",
        "serializer",
        "values",
    )

    def __init__(self, name: str, serializer: Serializer[Any, Any], logged: bool = True) -> None:
        self.name, self.serializer, self.logged = name, serializer, logged
        self.opened = False
        """Whether a program has opened the map: then changes may be serialised at any moment."""
        self.values: dict[bytes, bytes] = {}
        self.expires: dict[bytes, int] = {}
        self._deadlines: list[tuple[int, bytes]] = []
        """A heap with one deadline for each key of `expires`, and outdated ones: at most as many
        again, plus `HEAP_SPARE`."""
        self.order: SortedKeys | None = None
        """Of a map that was opened with `sorted`."""
        self._removed = 0
        """Keys that were removed since `values` was built."""
        self._mutex = threading.Lock()

    def set(self, key: bytes, value: bytes | None, expires_at_ms: int = 0) -> None:
        """Apply one change."""
        with self._mutex:
            self._set(key, value, expires_at_ms)

    def _set(self, key: bytes, value: bytes | None, expires_at_ms: int) -> None:
        if value is None:
            self._remove(key)
        else:
            if self.order is not None:
                self.order.note((key,), self.values)
            self.values[key] = value
        if expires_at_ms and value is not None:
            self.expires[key] = expires_at_ms
            heapq.heappush(self._deadlines, (expires_at_ms, key))
        else:
            self.expires.pop(key, None)
        if len(self._deadlines) > 2 * len(self.expires) + HEAP_SPARE:
            self._deadlines = [(at, other) for other, at in self.expires.items()]
            heapq.heapify(self._deadlines)

    def _remove(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            self._removed += 1
            if self.order is not None:
                self.order.touch((key,))

    def replay(self, rows: Sequence[Row], now_ms: int) -> None:
        """Apply changes of a log, in its order. One that has expired deletes its key."""
        with self._mutex:
            plain = self.order is None and not self.expires
            if plain and not (any(map(_DELETED_OF, rows)) or any(map(_EXPIRY_OF, rows))):
                self.values.update(zip(map(_KEY_OF, rows), map(_VALUE_OF, rows), strict=True))
                return
            for row in rows:
                expires_at_ms = row[EXPIRES_AT_MS]
                if is_clear(row):
                    if self.order is not None:
                        self.order.touch(self.values)
                    self.values.clear()
                    self.expires.clear()
                    self._deadlines.clear()
                elif has_expired(expires_at_ms, now_ms):
                    self._set(row[KEY], None, 0)
                else:
                    self._set(row[KEY], row[VALUE], expires_at_ms)

    def become(self, other: MapState | None) -> None:
        """Have the content of another map, which is not used any more; None: no content."""
        other = other or MapState(self.name, self.serializer)
        with self._mutex:
            if other.values and other.serializer.name != self.serializer.name:
                self.serializer = other.serializer
            if self.order is not None:
                self.order.forget()
            self.values, self.expires = other.values, other.expires
            self._deadlines = other._deadlines

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        # The deadline is read first. In the other order, the entry could be purged with its
        # deadline between the two reads, and an expired value would be returned.
        if self.expires and has_expired(self.expires.get(key, 0), now_ms):
            return None
        return self.values.get(key)

    def load(self, key: bytes, value: bytes) -> Any:
        """The value of a key. Raises `NotReadable` with its place."""
        try:
            return self.serializer.load(value)
        except NotReadable as error:
            raise error.at(f"{self.name}[{self.shown_key(key)}]") from error

    def shown_key(self, key: bytes) -> str:
        """A serialised key, for an error."""
        try:
            return shown(self.serializer.load_key(key))
        except Exception:  # noqa: BLE001  of a serializer of the user too
            return shown(key)

    def expiry(self, key: bytes, now_ms: int) -> int | None:
        """When the key expires, Unix time in milliseconds; 0: never; None: no such key."""
        with self._mutex:
            return None if self.get(key, now_ms) is None else self.expires.get(key, 0)

    def purge(self, now_ms: int) -> None:
        """Remove expired keys."""
        if self._deadlines:
            with self._mutex:
                self._purge(now_ms)

    def _purge(self, now_ms: int) -> None:
        while self._deadlines and has_expired(self._deadlines[0][0], now_ms):
            deadline, key = heapq.heappop(self._deadlines)
            if self.expires.get(key) == deadline:
                self._remove(key)  # first: `get` must not see the value without its deadline
                del self.expires[key]

    def size(self, now_ms: int) -> int:
        """The number of live keys."""
        with self._mutex:
            self._purge(now_ms)
            return len(self.values)

    def sort(self) -> None:
        """Keep the keys in order from now on. Raises `NotSerializable` if they have none."""
        with self._mutex:
            if self.order is None:
                self.order = SortedKeys(self.serializer, self.values)

    def keys(self, now_ms: int, span: Span = EVERYTHING) -> list[bytes]:
        """All keys at one moment; of a map with an `order`, those of the span, sorted."""
        with self._mutex:
            self._purge(now_ms)
            if self.order is None:
                return list(self.values)
            return self.order.between(span, self.values)

    def pairs(self, now_ms: int, span: Span = EVERYTHING) -> tuple[list[bytes], list[bytes]]:
        """The same with their values. Two lists take a tenth of the memory of a list of pairs."""
        with self._mutex:
            self._purge(now_ms)
            if self.order is None:
                return list(self.values), list(self.values.values())
            keys = self.order.between(span, self.values)
            return keys, [self.values[key] for key in keys]

    def end(
        self, now_ms: int, besides: Container[bytes], *, last: bool
    ) -> tuple[bytes, bytes] | None:
        """The first or last key that is not in `besides`, and its value."""
        with self._mutex:
            self._purge(now_ms)
            keys: Iterable[bytes]
            if self.order is not None:
                keys = self.order.walk(self.values, last=last)
            elif last:
                keys = reversed(self.values)
            else:
                if self._removed > REMOVED_SPARE + len(self.values) // REMOVED_SHARE:
                    self.values = {key: value for key, value in self.values.items()}  # noqa: C416  `dict` may copy the places too
                    self._removed = 0
                keys = self.values
            key = next((key for key in keys if key not in besides), None)
            return None if key is None else (key, self.values[key])

    def copy(self, now_ms: int) -> MapState:
        """The same content; later changes of one are not in the other."""
        with self._mutex:
            self._purge(now_ms)
            other = MapState(self.name, self.serializer)
            other.values, other.expires = self.values.copy(), self.expires.copy()
            other._deadlines = self._deadlines.copy()
            return other

    def apply(self, changes: WriteBatch) -> None:
        """Apply the changes in order. `keys` and `pairs` see all of them or none."""
        with self._mutex:
            if changes.plain and not self.expires:
                if self.order is not None:
                    self.order.note(changes.keys, self.values)
                self.values.update(zip(changes.keys, changes.values, strict=True))  # type: ignore[arg-type]  # no None among them
                return
            for index, (key, value) in enumerate(zip(changes.keys, changes.values, strict=True)):
                self._set(key, value, changes.expires.get(index, 0))


class WriteBatch:
    """Serialised changes of one map, in order. It does not change after it has been passed on. The
    value None is a deletion. `expires`: index → expires_at_ms, for changes that expire."""

    __slots__ = ("expires", "keys", "state", "values")
    kind = ENTRIES
    """The type of the frame for them."""

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
        """Whether all changes are upserts that never expire."""
        return not self.expires and None not in self.values

    def add(self, other: WriteBatch) -> None:
        """Append the changes of another batch of the same map."""
        start = len(self.keys)
        self.keys += other.keys
        self.values += other.values
        if other.expires:
            for index, expires in other.expires.items():
                self.expires[start + index] = expires

    def sizes(self) -> list[int]:
        """The size of each change's key and value, in bytes."""
        return [
            len(key) + len(value or b"") for key, value in zip(self.keys, self.values, strict=True)
        ]

    def part(self, start: int, stop: int) -> WriteBatch:
        """The changes from index `start` up to, but not including, `stop`."""
        expires = {index - start: at for index, at in self.expires.items() if start <= index < stop}
        return WriteBatch(self.state, self.keys[start:stop], self.values[start:stop], expires)

    def pack(self, timestamp_ms: int, incarnation: int, session: int, request: int) -> list[bytes]:
        """The changes as DataEntries, numbered from `request` on: a msgpack stream in chunks."""
        name, label = self.state.name, self.state.serializer.name
        if self.plain:
            values = cast("list[bytes]", self.values)  # plain: there are no deletions
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
    """Deletes all keys of a map with one entry in the log. `keys`: those that memory may
    contain."""

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


def split(batches: Sequence[WriteBatch], count: int) -> tuple[list[WriteBatch], list[WriteBatch]]:
    """The first `count` changes, and the others."""
    first: list[WriteBatch] = []
    rest: list[WriteBatch] = []
    for batch in batches:
        taken = min(count, len(batch))
        if taken:
            first.append(batch if taken == len(batch) else batch.part(0, taken))
        if taken < len(batch):
            rest.append(batch.part(taken, len(batch)) if taken else batch)
        count -= taken
    return first, rest


def apply(batches: Iterable[WriteBatch]) -> None:
    """Apply the changes to their maps in memory."""
    for batch in batches:
        batch.state.apply(batch)
