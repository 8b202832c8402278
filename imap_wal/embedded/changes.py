"""An embedded map in memory, and batches of changes. They are stored in columns, so that a commit
of thousands of changes needs little Python code for each."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import count, islice
from operator import itemgetter
from typing import Any, cast

from imap_wal.embedded.held_keys import AsBytes, HeldKeys, held_keys
from imap_wal.embedded.sorted_keys import EVERYTHING, SortedKeys, Span
from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    VALUE,
    Row,
    clear_of,
    differing,
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


LIVE = frozenset({str, int, float, bool})
"""Types of values that memory may have as objects: nothing can change them, and their bytes follow
from them. All other values are serialised, so no two readers get one object."""
SIZE_SHARE, SIZE_SPARE = 2, 64
"""An object may take at most `SIZE_SHARE` times the memory of its bytes, and `SIZE_SPARE` bytes
more."""
CHUNK_VALUES = 1000
"""How many values an iteration loads at a time."""
NOTHING: dict[Any, Any] = {}
_tie = count()
"""Keys with the same deadline may not be comparable."""


class MapState:
    """One map in memory: its entries, and when keys expire. Keys are held as `HeldKeys` says. A
    value is its bytes, or an object of a type in `LIVE` after a program has read it: an open loads
    millions of values, of which the program may read few.

    `quick`, `find` and `get` take no lock; all other methods are atomic."""

    __slots__ = (
        "_deadlines",
        "_mutex",
        "_removed",
        "_retired",
        "expires",
        "held",
        "logged",
        "name",
        "opened",
        "order",
        "quick",
        "serializer",
        "values",
    )

    def __init__(self, name: str, serializer: Serializer[Any, Any], logged: bool = True) -> None:
        self.name, self.serializer, self.logged = name, serializer, logged
        self.held: HeldKeys = AsBytes(serializer)
        """Bytes until a program opens the map: the log may have many changes of a key."""
        self.opened = False
        """Whether a program has opened the map: then changes may be serialised at any moment."""
        self.values: dict[Any, Any] = {}
        self.quick = NOTHING
        """`values`, while each of its keys is a program's, no key expires, and the store is open;
        else nothing. What a read finds here needs no further check."""
        self.expires: dict[Any, int] = {}
        self._deadlines: list[tuple[int, int, Any]] = []
        """A heap with one deadline for each key of `expires`, and outdated ones: at most as many
        again, plus `HEAP_SPARE`."""
        self.order: SortedKeys | None = None
        """Of a map that was opened with `sorted`."""
        self._removed = 0
        """Keys that were removed since `values` was built."""
        self._retired = False
        self._mutex = threading.Lock()

    # ---- its form in memory ----

    def use(self, serializer: Serializer[Any, Any], *, opened: bool = True) -> None:
        """Use this serializer from now on. `opened`: a program has opened the map with it."""
        with self._mutex:
            self.opened |= opened
            self._hold(held_keys(serializer) if self.opened else AsBytes(serializer))
            self.serializer = serializer
            self._show()

    def _hold(self, held: HeldKeys) -> None:
        """Convert the keys, and the values that are objects."""
        serializer = self.serializer
        before, self.held = self.held, held
        if isinstance(held, AsBytes) and isinstance(before, AsBytes):
            return
        if type(held) is type(before) and _kind_of(serializer) == _kind_of(held.serializer):
            return
        data: list[bytes] = [*self.values]
        values: Iterable[bytes] = self.values.values()
        if not isinstance(before, AsBytes):
            data = [*map(before.data, data)]
            values = [v if type(v) is bytes else serializer.dump(v) for v in values]
        self.values = dict(zip(held.all_held(data), values, strict=True))
        self.expires = {held.held(before.data(key)): at for key, at in self.expires.items()}
        self._count_deadlines()
        if self.order is not None:
            self.order = SortedKeys(held, self.values)

    def _show(self) -> None:
        """Set `quick`, after `values` or `expires` was replaced or became empty."""
        self.quick = self.values if self.held.direct and not self.expires else NOTHING
        if self._retired:  # perhaps since the line before
            self.quick = NOTHING

    def retire(self) -> None:
        """The store was closed, or this is a forked child: every read must ask the store first.
        Takes no lock: in a child, it may never be released."""
        self._retired = True
        self.quick = NOTHING

    # ---- changes ----

    def set(self, key: bytes, value: bytes | None, expires_at_ms: int = 0) -> None:
        """Apply one change."""
        with self._mutex:
            self._set(self.held.held(key), value, expires_at_ms)

    def _set(self, key: Any, value: bytes | None, expires_at_ms: int) -> None:
        if value is None:
            self._remove(key)
        else:
            if expires_at_ms:
                self.quick = NOTHING  # first: no read may find the value without its deadline
            if self.order is not None:
                self.order.note((key,), self.values)
            self.values[key] = value
        if expires_at_ms and value is not None:
            self.expires[key] = expires_at_ms
            heapq.heappush(self._deadlines, (expires_at_ms, next(_tie), key))
        elif self.expires and self.expires.pop(key, 0) and not self.expires:
            self._show()
        if len(self._deadlines) > 2 * len(self.expires) + HEAP_SPARE:
            self._count_deadlines()

    def _count_deadlines(self) -> None:
        self._deadlines = [(at, next(_tie), key) for key, at in self.expires.items()]
        heapq.heapify(self._deadlines)

    def _remove(self, key: Any) -> None:
        if self.values.pop(key, None) is not None:
            self._removed += 1
            if self.order is not None:
                self.order.touch((key,))

    def _clear(self) -> None:
        if self.order is not None:
            self.order.touch(self.values)
        self.values.clear()
        self.expires.clear()
        self._deadlines.clear()
        self._show()

    def replay(self, rows: Sequence[Row], now_ms: int) -> None:
        """Apply changes of a log, in its order. One that has expired deletes its key."""
        with self._mutex:
            keys = self.held.all_held([*map(_KEY_OF, rows)])
            plain = self.order is None and not self.expires
            some = differing(rows)
            if plain and not (any(map(_DELETED_OF, some)) or any(map(_EXPIRY_OF, some))):
                self.values.update(zip(keys, map(_VALUE_OF, rows), strict=True))
                return
            for key, row in zip(keys, rows, strict=True):
                expires_at_ms = row[EXPIRES_AT_MS]
                if is_clear(row):
                    self._clear()
                elif has_expired(expires_at_ms, now_ms):
                    self._set(key, None, 0)
                else:
                    self._set(key, row[VALUE], expires_at_ms)

    def become(self, other: MapState | None) -> None:
        """Have the content of another map, which is not used any more; None: no content."""
        other = other or MapState(self.name, self.serializer)
        with self._mutex:
            if other.values and other.serializer.name != self.serializer.name:
                self.serializer = other.serializer
                self.held = held_keys(self.serializer) if self.opened else self.held
            if self.order is not None:
                self.order.held = self.held
                self.order.forget()
            other._hold(self.held)
            self.values, self.expires = other.values, other.expires
            self._deadlines = other._deadlines
            self._show()

    # ---- reads by serialised keys ----

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        """The serialised value of a serialised key."""
        value = self.find(self.held.held(key), now_ms)
        return None if value is None else self.bytes_of(value)

    def bytes_of(self, value: Any) -> bytes:
        """The serialised value of one that memory has."""
        return value if type(value) is bytes else self.serializer.dump(value)

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
            held = self.held.held(key)
            return None if self.find(held, now_ms) is None else self.expires.get(held, 0)

    def rows(self, now_ms: int) -> tuple[list[bytes], list[bytes]]:
        """All keys and values at one moment, serialised."""
        keys, values = self.pairs(now_ms)
        return [*map(self.held.data, keys)], [*map(self.bytes_of, values)]

    # ---- reads by held keys ----

    def find(self, key: Any, now_ms: int) -> Any:
        """The value of a held key, as memory has it; None: no such key."""
        # The deadline is read first. In the other order, the entry could be purged with its
        # deadline between the two reads, and an expired value would be returned.
        if self.expires and has_expired(self.expires.get(key, 0), now_ms):
            return None
        return self.values.get(key)

    def loaded(self, key: Any, value: Any) -> Any:
        """The value of a held key as a program gets it. Raises `NotReadable` with its place."""
        if type(value) is not bytes:
            return value
        try:
            loaded = self.serializer.load(value)
        except NotReadable as error:
            raise error.at(f"{self.name}[{self.shown_key(self.held.data(key))}]") from error
        if type(loaded) in LIVE:
            self._keep(((key, value, loaded),))
        return loaded

    def all_keys(self, keys: list[Any]) -> Iterator[Any]:
        """The keys of a program, in this order. Raises `NotReadable` with its place."""
        own = self.held.keys(keys)
        return iter(own) if isinstance(own, list) else self._placed(own)

    def _placed(self, keys: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from keys
        except NotReadable as error:
            raise error.at(f"{self.name}[{self.shown_key(error.data)}]") from error

    def all_loaded(self, keys: Iterable[Any], values: Iterable[Any]) -> Iterator[Any]:
        """The values of many held keys, in their order, in chunks."""
        pairs, load = zip(keys, values, strict=True), self.serializer.load
        while some := list(islice(pairs, CHUNK_VALUES)):
            try:
                loaded = [load(value) if type(value) is bytes else value for _, value in some]
            except Exception:  # noqa: BLE001  # raised again, after the values before it
                yield from (self.loaded(key, value) for key, value in some)
                continue
            self._keep((*pair, value) for pair, value in zip(some, loaded, strict=True))
            yield from loaded

    def _keep(self, values: Iterable[tuple[Any, bytes, Any]]) -> None:
        """Replace the bytes by these objects. If the bytes are not what the serializer writes for
        the object, they stay: what compares them must find them."""
        if not self.held.keeps_values:
            return
        dump = self.serializer.dump
        same = [
            (key, value, loaded)
            for key, value, loaded in values
            if type(loaded) in LIVE
            and loaded is not value  # which was an object before
            and loaded.__sizeof__() <= SIZE_SHARE * len(value) + SIZE_SPARE
            and dump(loaded) == value
        ]
        with self._mutex:
            for key, value, loaded in same:
                if self.values.get(key) is value:
                    self.values[key] = loaded

    def purge(self, now_ms: int) -> None:
        """Remove expired keys."""
        if self._deadlines:
            with self._mutex:
                self._purge(now_ms)

    def _purge(self, now_ms: int) -> None:
        while self._deadlines and has_expired(self._deadlines[0][0], now_ms):
            deadline, _, key = heapq.heappop(self._deadlines)
            if self.expires.get(key) == deadline:
                self._remove(key)  # first: `find` must not see the value without its deadline
                del self.expires[key]
                if not self.expires:
                    self._show()

    def size(self, now_ms: int) -> int:
        """The number of live keys."""
        with self._mutex:
            self._purge(now_ms)
            return len(self.values)

    def sort(self) -> None:
        """Keep the keys in order from now on. Raises `NotSerializable` if they have none."""
        with self._mutex:
            if self.order is None:
                self.order = SortedKeys(self.held, self.values)

    def keys(self, now_ms: int, span: Span = EVERYTHING) -> list[Any]:
        """All held keys at one moment; of a map with an `order`, those of the span, sorted."""
        with self._mutex:
            self._purge(now_ms)
            if self.order is None:
                return list(self.values)
            return self.order.between(span, self.values)

    def pairs(self, now_ms: int, span: Span = EVERYTHING) -> tuple[list[Any], list[Any]]:
        """The same with their values. Two lists take a tenth of the memory of a list of pairs."""
        with self._mutex:
            self._purge(now_ms)
            if self.order is None:
                return list(self.values), list(self.values.values())
            keys = self.order.between(span, self.values)
            return keys, [self.values[key] for key in keys]

    def end(self, now_ms: int, besides: Container[Any], *, last: bool) -> tuple[Any, Any] | None:
        """The first or last held key that is not in `besides`, and its value."""
        with self._mutex:
            self._purge(now_ms)
            keys: Iterable[Any]
            if self.order is not None:
                keys = self.order.walk(self.values, last=last)
            elif last:
                keys = reversed(self.values)
            else:
                if self._removed > REMOVED_SPARE + len(self.values) // REMOVED_SHARE:
                    self.values = {key: value for key, value in self.values.items()}  # noqa: C416  `dict` may copy the places too
                    self._removed = 0
                    self._show()
                keys = self.values
            key = next((key for key in keys if key not in besides), NOTHING)
            return None if key is NOTHING else (key, self.values[key])

    def copy(self, now_ms: int) -> MapState:
        """The same content; later changes of one are not in the other."""
        with self._mutex:
            self._purge(now_ms)
            other = MapState(self.name, self.serializer)
            other.held = self.held
            other.values, other.expires = self.values.copy(), self.expires.copy()
            other._deadlines = self._deadlines.copy()
            return other

    def apply(self, changes: WriteBatch) -> None:
        """Apply the changes in order. `keys` and `pairs` see all of them or none."""
        with self._mutex:
            if changes.kind == CLEARS:
                self._clear()
                return
            keys = changes.held()
            if changes.plain and not self.expires:
                if self.order is not None:
                    self.order.note(keys, self.values)
                self.values.update(zip(keys, changes.values, strict=True))
                return
            for index, (key, value) in enumerate(zip(keys, changes.values, strict=True)):
                self._set(key, value, changes.expires.get(index, 0))


def _kind_of(serializer: Serializer[Any, Any]) -> object:
    """Equal for two serializers that read the same."""
    return type(serializer), getattr(serializer, "types", None)


class WriteBatch:
    """Serialised changes of one map, in order. It does not change after it has been passed on. The
    value None is a deletion. `expires`: index → expires_at_ms, for changes that expire. `objects`:
    the keys, if the program's objects can be held; else None."""

    __slots__ = ("expires", "keys", "objects", "state", "values")
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
        self.objects: list[Any] | None = None if keys else []
        self.expires: dict[int, int] = {} if expires is None else expires

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def plain(self) -> bool:
        """Whether all changes are upserts that never expire."""
        return not self.expires and None not in self.values

    def held(self) -> Sequence[Any]:
        """The keys as the map in memory holds them."""
        held = self.state.held
        if self.objects is not None and held.direct:
            return self.objects
        return held.all_held(self.keys)

    def add(self, other: WriteBatch) -> None:
        """Append the changes of another batch of the same map."""
        start = len(self.keys)
        if self.objects is not None and other.objects is not None:
            self.objects += other.objects
        else:
            self.objects = None
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
        part = WriteBatch(self.state, self.keys[start:stop], self.values[start:stop], expires)
        part.objects = None if self.objects is None else self.objects[start:stop]
        return part

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
