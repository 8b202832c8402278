"""One durable map of a store, with the methods of a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import chain
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar, overload

from imap_wal.embedded import decisions
from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.decisions import Decision
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.embedded.views import MapReads
from imap_wal.embedded.watch import Watch
from imap_wal.errors import InvalidSetting, NotSerializable
from imap_wal.format import Position
from imap_wal.rules.valid import demand_columns
from imap_wal.serializer import K, V, shown

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)

TTL_S_MAX = 100 * 366 * 86_400
"""100 years."""
RAISE = object()
"""The default of `pop`: raise KeyError."""


def checked_ttl(ttl: object, name: str = "ttl") -> float:
    """The time to live in seconds. Raises `InvalidSetting` if this is none."""
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or not 0 < ttl <= TTL_S_MAX:
        raise InvalidSetting(
            f"{name} is {ttl!r}; it takes a number of seconds, more than 0 and up to "
            f"{TTL_S_MAX:,}{', or None for no limit' * (name == 'ttl')}"
        )
    return ttl


class Delete:
    """The class of `DELETE`."""

    def __repr__(self) -> str:
        return "imap_wal.DELETE"


DELETE: Final = Delete()
"""What the function of `DurableMap.change` returns to delete the key."""


class DurableMap(MapReads[K, V], MutableMapping[K, V]):
    """One map of a store, with the methods of a dict. A change returns when it is as durable as the
    `durability` setting demands. If it raises, memory is unchanged. Every operation is atomic among
    threads, including `pop`, `setdefault`, `add`, `replace` and `change`. `update`, `Store.batch`
    and `Store.transaction` change several keys or maps at once.

    A read decodes a value, so a change of what it returned is not in the map. Text, numbers and
    bools cannot change, so memory has them as objects after their first read. While no key of the
    map has a time to live, such a read costs two or three times as much as in a dict.

    Raises:
        NotAppended: the change is not in the log.
        NotSerializable: the key or value cannot be serialised.
        TooLarge: key and value together exceed `max_value_bytes`, or a commit is too large.
        OutcomeUnknown: a write or sync failed; the change may be in the log.
        Fenced: another process took over the log; the change is not in the log.
        Closed: the store was closed. Reads raise it too.
    """

    def __init__(self, writer: MapWriter, state: MapState) -> None:
        super().__init__(writer, state)
        self._writer = writer

    @property
    def durable_map(self) -> DurableMap[K, V]:
        """This map: a batch and a transaction take an `AsyncMap` too."""
        return self

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def put(self, key: K, value: V, ttl: float | None = None) -> None:
        """Set the key.

        Args:
            key: the key.
            value: the value.
            ttl: time to live in seconds, exact to the millisecond, even across restarts; None: the
                key does not expire.

        Raises:
            InvalidSetting: `ttl` is not a number of seconds above 0 and up to 100 years.
        """
        changes = self.one_change(key, value) if ttl is None else None
        self._writer.change([changes or self.changes([(key, value)], ttl)])

    def one_change(self, key: Any, value: Any) -> WriteBatch | None:
        """`changes` of one key, without what only some need. None: `changes` raises an error, or
        does more."""
        state, serializer = self._state, self._state.serializer
        try:
            key_data, data = serializer.dump_key(key), serializer.dump(value)
        except NotSerializable:
            return None
        if (
            state.order is not None
            or type(key_data) is not bytes
            or type(data) is not bytes
            or len(key_data) + len(data) > self._writer.max_value_bytes
        ):
            return None
        changes = WriteBatch(state, [key_data], [data])
        changes.objects = [key] if type(key) in state.held.simple else None
        return changes

    def changes(self, pairs: Iterable[tuple[Any, Any]], ttl: float | None = None) -> WriteBatch:
        """The changes that set the keys, serialised. Raises `NotSerializable`, `TooLarge`, and
        `InvalidSetting` for an invalid `ttl`."""
        state = self._state
        dump = state.serializer.dump
        changes = WriteBatch(state, [], [])
        keys: list[Any] = []
        for key, value in pairs:
            key_data = self._key_data(key)
            try:
                data = dump(value)
            except NotSerializable as error:
                raise error.at(f"{state.name}[{shown(key)}]") from error
            keys.append(key)
            changes.keys.append(key_data)
            changes.values.append(data)
        changes.objects = keys if state.held.simple.issuperset(map(type, keys)) else None
        limit = self._writer.max_value_bytes
        demand_columns(state.name, changes.keys, changes.values, limit, state.shown_key)
        if ttl is not None:
            expires = self.expiry(ttl)
            state.purge(self._writer.now_ms())  # `put` and `get` alone would keep expired keys
            changes.expires = dict.fromkeys(range(len(changes)), expires)
        return changes

    def _key_data(self, key: Any) -> bytes:
        try:
            data = self._state.serializer.dump_key(key)
            if self._state.order is not None:
                self._state.order.demand(key)
            return data
        except NotSerializable as error:
            raise error.at(f"map {self.name!r}, key {shown(key)}") from error

    def expiry(self, ttl: object, name: str = "ttl") -> int:
        """When an entry with this time to live expires, Unix time in milliseconds. Raises
        `InvalidSetting`, with this name of the time."""
        return self._writer.now_ms() + max(1, round(checked_ttl(ttl, name) * 1000))

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, /, default: V) -> V: ...
    @overload
    def pop(self, key: K, /, default: T) -> V | T: ...
    def pop(self, key: Any, default: Any = RAISE) -> Any:
        """Delete the key and return its value. Of several threads, only one gets the value. If the
        key does not exist, return `default`, or raise KeyError without a default."""
        decision = self.popping(key)
        if decision is not None:
            self._writer.evaluate([decision])
        return self.popped(decision, key, default)

    def popping(self, key: Any) -> Decision | None:
        """The decision of `pop`. None: no map of this serializer has the key."""
        self._owner.check_open()
        data = self._key(key)
        return None if data is None else decisions.pop(self._state, data)

    def popped(self, decision: Decision | None, key: Any, default: Any) -> Any:
        """The return value of `pop`, after its decision was evaluated."""
        if decision is not None and decision.answer is not None:
            return decision.answer[0]
        if default is RAISE:
            raise KeyError(key)
        return default

    def popitem(self, *, last: bool = True) -> tuple[K, V]:
        """Delete the key that was added last, and return it with its value. The log does not keep
        the order in which keys were added: those of an earlier open are in any order, before all
        that were added since. Of several threads, only one gets each key. Raises KeyError if the
        map is empty.

        Args:
            last: False: delete the key that was added first, as `OrderedDict.popitem` does. Of a
                map that was opened with `sorted`, these are the largest and the smallest key.
        """
        return self.popped_item(self._evaluated(decisions.pop_end(self._state, last=last)))

    def popped_item(self, entry: tuple[K, V] | None) -> tuple[K, V]:
        """The return value of `popitem`, from the answer of its decision."""
        if entry is None:
            raise KeyError("popitem(): the map is empty")
        return entry

    @overload
    def setdefault(self: DurableMap[K, T | None], key: K, default: None = None, /) -> T | None: ...
    @overload
    def setdefault(self, key: K, default: V, /) -> V: ...
    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of the key; if it does not exist, set it to `default` first. If several
        threads call this at the same time, all get the value of the first one."""
        value, _ = self._evaluated(self.adding_new(key, default, None))
        return self._state.load(self._key_data(key), value)

    def _evaluated(self, decision: Decision) -> Any:
        self._writer.evaluate([decision])
        return decision.answer

    # ---- changes that depend on the present value ----

    def add(self, key: K, amount: Any = 1) -> V:
        """Add to the number of the key, and return the sum. A key that does not exist counts as 0.
        It expires when it would have. Threads that add at the same time share commits.

        Raises:
            TypeError: the value or `amount` is not a number; nothing was changed.
        """
        total: V = self._evaluated(self.adding(key, amount))
        return total

    def adding(self, key: Any, amount: Any) -> Decision:
        """The decision of `add`."""
        if not decisions.is_number(amount):
            raise TypeError(f"amount is {amount!r}; it takes a number")
        return decisions.add(self._state, self._key_data(key), amount, key)

    def add_new(self, key: K, value: V, ttl: float | None = None) -> bool:
        """Set the key if it does not exist. Returns whether it was set. Of several threads, only
        one sets it. Arguments and errors as for `put`."""
        return bool(self._evaluated(self.adding_new(key, value, ttl))[1])

    def adding_new(self, key: Any, value: Any, ttl: float | None) -> Decision:
        """The decision of `add_new`."""
        return decisions.set_default(self.changes([(key, value)], ttl))

    def replace(self, key: K, old: V, new: V, ttl: float | None = None) -> bool:
        """Set the key to `new` if its value equals `old` (compare-and-set). Returns whether it was
        set; False if the key does not exist. `ttl` and errors as for `put`."""
        return bool(self._evaluated(self.replacing(key, old, new, ttl)))

    def replacing(self, key: Any, old: Any, new: Any, ttl: float | None) -> Decision:
        """The decision of `replace`."""
        return decisions.replace(self.changes([(key, new)], ttl), old)

    def change(
        self,
        key: K,
        function: Callable[[Any], V | Delete],
        ttl: float | None = None,
    ) -> V | None:
        """Read, change and write one value atomically.

        Args:
            key: the key.
            function: gets the value, or None if the key does not exist, and returns the new value,
                or `imap_wal.DELETE`. It is called again if another caller changed the value
                meanwhile, so it should do nothing else.
            ttl: time to live of the new value in seconds; None: it expires when the former value
                would have.

        Returns:
            The new value; None if the key was deleted.
        """
        while True:
            new, swap = self.changing(key, self.before(key), function, ttl)
            if self._evaluated(swap):
                return None if isinstance(new, Delete) else new

    def before(self, key: K) -> bytes | None:
        """The serialised value that `change` begins with."""
        self._owner.check_open()
        return self._state.get(self._key_data(key), self._owner.now_ms())

    def changing(
        self,
        key: K,
        before: bytes | None,
        function: Callable[[Any], V | Delete],
        ttl: float | None,
    ) -> tuple[V | Delete, Decision]:
        """One attempt of `change`: the new value, and the decision whose answer says whether it was
        set."""
        state = self._state
        new = function(None if before is None else state.load(self._key_data(key), before))
        if new is DELETE:
            changes = WriteBatch(state, [self._key_data(key)], [None])
        else:
            changes = self.changes([(key, new)], ttl)
        return new, decisions.swap(changes, before, keeps_expiry=ttl is None and new is not DELETE)

    def touch(self, key: K, ttl: float | None) -> bool:
        """Let the key expire `ttl` seconds from now, or never if it is None. Returns whether the
        key exists. Raises `InvalidSetting` as `put` does."""
        touching = self.touching(key, ttl)
        return touching is not None and bool(self._evaluated(touching))

    def touching(self, key: Any, ttl: float | None) -> Decision | None:
        """The decision of `touch`. None: no map of this serializer has the key."""
        expires = 0 if ttl is None else self.expiry(ttl)
        self._owner.check_open()
        data = self._key(key)
        return None if data is None else decisions.touch(self._state, data, expires)

    def update(self, other: Pairs[K, V] = (), /, *, ttl: float | None = None, **more: V) -> None:
        """Set several keys in one commit: after a crash, all of them are set or none.

        Args:
            other: a mapping or an iterable of pairs, as for `dict.update`. Pass a key named "ttl"
                here: `update({"ttl": 5})`.
            ttl: time to live of all these keys in seconds; None: they do not expire.
            **more: more keys and values.

        Raises:
            InvalidSetting: `ttl` is not a number of seconds above 0 and up to 100 years.
            TooLarge: a key and its value exceed `max_value_bytes`, or the commit is too large.
        """
        self._writer.check_open()
        changes = self.changes(chain(pairs(other), more.items()), ttl)
        if changes:
            self._writer.change([changes])

    def clear(self) -> None:
        """Delete all keys in one commit. This is one entry in the log, unless the store was opened
        with `shared` or `wal_filter`: then only the keys that it knows are deleted."""
        self._writer.evaluate([self.clearing()])

    def clearing(self) -> Decision:
        """The change that deletes all keys."""
        return decisions.clear(self._state, known_only=not self._writer.knows_all)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # `|` gives a dict
        self.update(other)
        return self

    def watch(self, since: Position | str | None = None) -> Watch:
        """The changes of this map, one after the other, as they become durable. The iteration waits
        for the next change, and ends when the store is closed, or `Watch.close` is called.

            for event in orders.watch():
                print(event.kind, event.key, event.old, event.new)

        Args:
            since: the position of an event, or its text: the changes after it, also those before
                a restart; None: the changes from now on.

        Raises:
            InvalidSetting: the map was opened with `disable_wal`.
            ValueError: `since` is text that is not a position.
            PositionGone: a compaction has removed changes after `since`, or what the map had
                then. `OtherHistory`: `since` is a position of another copy of the log.
            Closed: the store was closed.
        """
        return Watch(self._writer, self._state, since)


class HasItems(Protocol[K, V_co]):
    """What `dict.update` takes besides mappings and pairs."""

    def keys(self) -> Iterable[K]: ...

    def __getitem__(self, key: K, /) -> V_co: ...


Pairs: TypeAlias = "Mapping[K, V] | HasItems[K, V] | Iterable[tuple[K, V]]"


def pairs(other: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of an argument of `dict.update`."""
    if isinstance(other, Mapping):
        return other.items()
    if hasattr(other, "keys"):
        return ((key, other[key]) for key in other.keys())  # noqa: SIM118  # it may not be iterable itself
    key_values: Iterable[tuple[Any, Any]] = other
    return key_values
