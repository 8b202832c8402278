"""One durable map of a store, with the methods of a dict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from itertools import chain
from typing import Any

from imap_wal.embedded.changes import MapState, WriteBatch
from imap_wal.embedded.decisions import Decision, clear, pop, pop_last, set_default
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.embedded.views import MapReads
from imap_wal.errors import InvalidSetting, NotSerializable
from imap_wal.rules.valid import demand_columns
from imap_wal.serializer import shown

TTL_S_MAX = 100 * 366 * 86_400
"""100 years."""
RAISE = object()
"""The default of `pop`: raise KeyError."""


class DurableMap(MapReads, MutableMapping[Any, Any]):
    """One map of a store, with the methods of a dict. A change returns when it is as durable as the
    `durability` setting demands. If it raises, memory is unchanged. Every operation is atomic among
    threads, including `pop`, `popitem` and `setdefault`.

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

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def put(self, key: Any, value: Any, ttl: float | None = None) -> None:
        """Set the key.

        Args:
            key: the key.
            value: the value.
            ttl: time to live in seconds, exact to the millisecond, even across restarts; None: the
                key does not expire.

        Raises:
            InvalidSetting: `ttl` is not a number of seconds above 0 and up to 100 years.
        """
        self._writer.change([self.changes([(key, value)], ttl)])

    def changes(self, pairs: Iterable[tuple[Any, Any]], ttl: float | None = None) -> WriteBatch:
        """The changes that set the keys, serialised. Raises `NotSerializable`, `TooLarge`, and
        `InvalidSetting` for an invalid `ttl`."""
        state = self._state
        dump_key, dump = state.serializer.dump_key, state.serializer.dump
        changes = WriteBatch(state, [], [])
        for key, value in pairs:
            try:
                key_data = dump_key(key)
            except NotSerializable as error:
                raise error.at(f"map {state.name!r}, key {shown(key)}") from error
            try:
                data = dump(value)
            except NotSerializable as error:
                raise error.at(f"{state.name}[{shown(key)}]") from error
            changes.keys.append(key_data)
            changes.values.append(data)
        demand_columns(state.name, changes.keys, changes.values, self._writer.max_value_bytes)
        if ttl is not None:
            if not _is_number(ttl) or not 0 < ttl <= TTL_S_MAX:
                raise InvalidSetting(
                    f"ttl is {ttl!r}; it takes a number of seconds, more than 0 and up to "
                    f"{TTL_S_MAX:,}, or None for no limit"
                )
            now = self._writer.now_ms()
            state.purge(now)  # `put` and `get` alone would never remove expired keys
            changes.expires = dict.fromkeys(range(len(changes)), now + max(1, round(ttl * 1000)))
        return changes

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

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
        return None if data is None else pop(self._state, data)

    def popped(self, decision: Decision | None, key: Any, default: Any) -> Any:
        """The return value of `pop`, after its decision was evaluated."""
        if decision is not None and decision.answer is not None:
            return decision.answer.get()[0]
        if default is RAISE:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Any, Any]:
        """Delete the key that was added last, and return it with its value. The log does not keep
        the order in which keys were added: those of an earlier open are in any order, before all
        that were added since. Of several threads, only one gets each key. Raises KeyError if the
        map is empty."""
        decision = pop_last(self._state)
        self._writer.evaluate([decision])
        return self.popped_item(decision)

    def popped_item(self, decision: Decision) -> tuple[Any, Any]:
        """The return value of `popitem`, after its decision was evaluated."""
        if decision.answer is None:
            raise KeyError("popitem(): the map is empty")
        key, value = decision.answer.get()
        return key, value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of the key; if it does not exist, set it to `default` first. If several
        threads call this at the same time, all get the value of the first one."""
        decision = set_default(self.changes([(key, default)]))
        self._writer.evaluate([decision])
        return self._state.serializer.load(decision.answer)

    def update(self, other: Any = (), /, *, ttl: float | None = None, **more: Any) -> None:
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
        return clear(self._state, known_only=not self._writer.knows_all)

    def __repr__(self) -> str:
        return (
            f"<DurableMap {self.name!r} {'closed' if self._writer.closed else f'of {len(self)}'}>"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def pairs(other: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of an argument of `dict.update`."""
    if isinstance(other, Mapping):
        return other.items()
    if hasattr(other, "keys"):
        return ((key, other[key]) for key in other.keys())  # noqa: SIM118  # it may not be iterable itself
    given: Iterable[tuple[Any, Any]] = other
    return given
