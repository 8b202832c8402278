"""Reads a map while entries expire and other threads change it. Every iteration sees the keys and
values of one moment."""

from __future__ import annotations

from collections.abc import (
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    MappingView,
    ValuesView,
)
from html import escape
from itertools import compress, islice
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from imap_wal.embedded.changes import MapState
from imap_wal.embedded.sorted_keys import Prefix, Span, begins, demand_prefix
from imap_wal.errors import InvalidSetting, NotSerializable
from imap_wal.forked import OfOneProcess
from imap_wal.serializer import K, V, shown

SHOWN_ENTRIES = 10
"""How many entries a notebook shows of a map."""

T = TypeVar("T")
Columns: TypeAlias = "tuple[list[Any], list[Any]]"
"""Keys and values as memory has them."""
_ABSENT = object()


class MapOwner(Protocol):
    """The methods of a store that its maps use."""

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""

    def check_open(self) -> None:
        """Raises `Closed` after the store was closed."""

    def now_ms(self) -> int:
        """The time of the store's clock, in Unix milliseconds."""


class MapReads(OfOneProcess, Mapping[K, V]):
    """The read methods of a map. An iteration sees the map at the moment when it began: it keeps a
    list of the keys, and of the values if it yields them. That takes 8 or 16 bytes per entry, and
    the values that are replaced during the iteration.

    `snapshot()` and `dict(map.items())` show the map at one moment. `dict(map)` and `{**map}` do
    not: Python reads all keys first, and then one value after the other, so it raises KeyError for
    a key that was deleted or has expired meanwhile.

    A map that was opened with `sorted` is iterated in the order of its keys. Other maps are
    iterated in the order in which the keys were added since the open; before them come those of
    earlier opens, in any order.

    A key that the serializer does not accept is absent. All methods raise `Closed` after the store
    was closed."""

    def __init__(self, owner: MapOwner, state: MapState) -> None:
        self._owner, self._state = owner, state

    @property
    def name(self) -> str:
        """The name of the map."""
        return self._state.name

    # These three try `quick` first, and take no other step if it has the answer: then a read costs
    # two or three times what it costs in a dict.

    def __getitem__(self, key: K) -> V:
        try:
            value = self._state.quick[key]
        except (KeyError, TypeError, ValueError):
            value = None
        if value is None or type(value) is bytes:
            value = self._read(key)
            if value is _ABSENT:
                raise KeyError(key)
        return value  # type: ignore[no-any-return]

    @overload
    def get(self, key: K, default: None = None) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    @overload
    def get(self, key: K, default: T) -> V | T: ...
    def get(self, key: Any, default: Any = None) -> Any:
        """The value of the key, or `default` if it does not exist."""
        try:
            value = self._state.quick[key]
        except (KeyError, TypeError, ValueError):
            value = None
        if value is None or type(value) is bytes:
            value = self._read(key)
            if value is _ABSENT:
                return default
        return value

    def __contains__(self, key: object) -> bool:
        try:
            if key in self._state.quick:
                return True
        except (TypeError, ValueError):  # no dict takes this key, but a serializer may
            pass
        return self._found(key)[1] is not None

    def _read(self, key: Any) -> Any:
        """The value of a key, or `_ABSENT`. Raises `NotReadable` with its place."""
        held, value = self._found(key)
        return _ABSENT if value is None else self._state.loaded(held, value)

    def _found(self, key: Any) -> tuple[Any, Any]:
        """The held key, and the value that memory has of it; None: the key does not exist."""
        self._owner.check_open()
        state = self._state
        if state.held.direct:
            try:
                value = state.find(key, self._owner.now_ms())
                if value is not None or type(key) in state.held.simple:
                    return key, value
            except (TypeError, ValueError):  # no dict takes this key
                return key, None
        data = self._key(key)
        if data is None:
            return key, None
        held = state.held.held(data)
        return held, state.find(held, self._owner.now_ms())

    def ttl(self, key: K) -> float | None:
        """The remaining time to live of a key in seconds; None: it does not expire. Raises KeyError
        if the key does not exist."""
        self._owner.check_open()
        now = self._owner.now_ms()
        data = self._key(key)
        return time_left(key, None if data is None else self._state.expiry(data, now), now)

    def _key(self, key: Any) -> bytes | None:
        """None: no map of this serializer has the key."""
        try:
            return self._state.serializer.dump_key(key)
        except NotSerializable:
            return None

    def __iter__(self) -> Iterator[K]:
        self._owner.check_open()
        return self._state.all_keys(self._state.keys(self._owner.now_ms()))

    def __len__(self) -> int:
        self._owner.check_open()
        return self._state.size(self._owner.now_ms())

    def __reversed__(self) -> Iterator[K]:
        self._owner.check_open()
        return self._state.all_keys(self._state.keys(self._owner.now_ms())[::-1])

    def keys(self, *, prefix: Prefix | None = None) -> MapKeys[K]:
        """The keys of the map.

        Args:
            prefix: only those that begin with it: text, bytes, or a tuple that is the beginning of
                tuples. This looks at every key, unless the map was opened with `sorted`.
        """
        return MapKeys(self, prefix)

    def items(self, *, prefix: Prefix | None = None) -> MapItems[K, V]:
        """The entries of the map; with `prefix`, as for `keys`."""
        return MapItems(self, prefix)

    def values(self, *, prefix: Prefix | None = None) -> MapValues[V]:
        """The values of the map; with `prefix`, those whose key begins with it, as for `keys`."""
        return MapValues(self, prefix)

    def irange(
        self,
        minimum: Any = None,
        maximum: Any = None,
        inclusive: tuple[bool, bool] = (True, True),
        reverse: bool = False,
    ) -> Iterator[K]:
        """The keys from `minimum` to `maximum`, in order, at one moment. The map must have been
        opened with `sorted`.

        Args:
            minimum: the first key; None: from the smallest on.
            maximum: the last key; None: up to the largest.
            inclusive: whether `minimum` and `maximum` themselves belong to the range.
            reverse: from the largest to the smallest.

        Raises:
            InvalidSetting: the map was not opened with `sorted`.
            TypeError: a limit cannot be compared with the keys.
        """
        keys, _ = self._range(Span(minimum, maximum, inclusive))
        return self._state.all_keys(keys[::-1] if reverse else keys)

    def irange_items(
        self,
        minimum: Any = None,
        maximum: Any = None,
        inclusive: tuple[bool, bool] = (True, True),
        reverse: bool = False,
    ) -> Iterator[tuple[K, V]]:
        """The same with the values. Arguments and errors as for `irange`."""
        return _entries(self._state, self._range(Span(minimum, maximum, inclusive)), reverse)

    def _range(self, span: Span) -> Columns:
        self._owner.check_open()
        if self._state.order is None:
            raise InvalidSetting(
                f"map {self.name!r} has no order of keys; open it with "
                f"store.map({self.name!r}, sorted=True)"
            )
        try:
            return self._state.pairs(self._owner.now_ms(), span)
        except TypeError as error:
            raise TypeError(
                f"map {self.name!r}: the range from {shown(span.minimum)} to "
                f"{shown(span.maximum)} cannot be compared with the keys: {error}"
            ) from error

    def snapshot(self) -> dict[K, V]:
        """All keys and values of one moment."""
        return dict(self.items())

    def copy(self) -> dict[K, V]:
        """The same as `snapshot`: a dict, which is not durable."""
        return self.snapshot()

    def __or__(self, other: Mapping[K, V]) -> dict[K, V]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**self.snapshot(), **(other.snapshot() if isinstance(other, MapReads) else other)}

    def __ror__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**other, **self.snapshot()}

    def _columns(self, prefix: Prefix | None) -> Columns:
        """Held keys and values, at one moment. Without an order, also of keys that do not begin
        with the prefix."""
        self._owner.check_open()
        return self._state.pairs(self._owner.now_ms(), Span(prefix=prefix))

    def __repr__(self) -> str:
        state = "closed" if self._owner.closed else f"of {len(self)}"
        return f"<{type(self).__name__} {self.name!r} {state}>"

    def _repr_html_(self) -> str:
        """The first entries as a table, for notebooks."""
        if self._owner.closed:
            return escape(repr(self))
        some = islice(self.items(), SHOWN_ENTRIES + 1)
        rows = [
            f"<td>{escape(shown(key))}</td><td>{escape(shown(value))}</td>" for key, value in some
        ]
        if len(rows) > SHOWN_ENTRIES:
            rows[SHOWN_ENTRIES] = "<td>…</td><td>…</td>"
        return table(repr(self), ("key", "value"), rows)


def time_left(key: object, expires_at_ms: int | None, now_ms: int) -> float | None:
    """In seconds; None: it does not expire. Raises KeyError if there is no such key."""
    if expires_at_ms is None:
        raise KeyError(key)
    return (expires_at_ms - now_ms) / 1000 if expires_at_ms else None


def table(caption: str, titles: tuple[str, ...], rows: list[str]) -> str:
    """A table in HTML. `rows`: the cells of each row."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


class _View(MappingView):
    """Of the entries whose key begins with `prefix`; None: of all."""

    _mapping: MapReads[Any, Any]

    def __init__(self, mapping: MapReads[Any, Any], prefix: Prefix | None) -> None:
        super().__init__(mapping)
        if prefix is not None:
            demand_prefix(prefix)
        self._prefix = prefix

    def __len__(self) -> int:
        return len(self._mapping) if self._prefix is None else len(self._columns()[0])

    def _has(self, key: object) -> bool:
        return self._prefix is None or begins(key, self._prefix)

    def _columns(self) -> Columns:
        """The keys and values as memory has them, at one moment."""
        prefix, state = self._prefix, self._mapping._state
        keys, values = self._mapping._columns(prefix)
        if prefix is None or state.order is not None:
            return keys, values
        begin = [begins(key, prefix) for key in state.all_keys(keys)]
        return [*compress(keys, begin)], [*compress(values, begin)]


class MapKeys(_View, KeysView[K]):
    """The keys of a map; it can be reversed."""

    def __contains__(self, key: object) -> bool:
        return self._has(key) and key in self._mapping

    def __iter__(self) -> Iterator[K]:
        if self._prefix is None:
            return iter(self._mapping)
        return self._mapping._state.all_keys(self._columns()[0])

    def __reversed__(self) -> Iterator[K]:
        return self._mapping._state.all_keys(self._columns()[0][::-1])


class MapItems(_View, ItemsView[K, V]):
    """The entries of a map; it can be reversed."""

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        return self._has(item[0]) and super().__contains__(item)

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return _entries(self._mapping._state, self._columns())

    def __reversed__(self) -> Iterator[tuple[K, V]]:
        return _entries(self._mapping._state, self._columns(), reverse=True)


class MapValues(_View, ValuesView[V]):
    """The values of a map; it can be reversed."""

    def __iter__(self) -> Iterator[V]:
        return _loaded(self._mapping._state, *self._columns())

    def __reversed__(self) -> Iterator[V]:
        return _loaded(self._mapping._state, *_reversed(self._columns()))

    def __contains__(self, value: object) -> bool:
        return any(own is value or own == value for own in self)


def _reversed(columns: Columns) -> Columns:
    return columns[0][::-1], columns[1][::-1]


def _entries(state: MapState, columns: Columns, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
    """Keys and values, decoded. Raises `NotReadable` with its place."""
    keys, values = _reversed(columns) if reverse else columns
    return zip(state.all_keys(keys), _loaded(state, keys, values), strict=True)


def _loaded(state: MapState, keys: list[Any], values: list[Any]) -> Iterator[Any]:
    """The values, decoded."""
    return state.all_loaded(keys, values) if bytes in set(map(type, values)) else iter(values)
