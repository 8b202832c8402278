"""Reads a map while entries expire and other threads change it. Every iteration sees the keys and
values of one moment."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Protocol

from imap_wal.embedded.changes import MapState
from imap_wal.errors import NotSerializable


class MapOwner(Protocol):
    """The methods of a store that its maps use."""

    def check_open(self) -> None:
        """Raises `Closed` after the store was closed."""

    def now_ms(self) -> int:
        """The time of the store's clock, in Unix milliseconds."""


class MapReads(Mapping[Any, Any]):
    """The read methods of a map. An iteration sees the map at the moment when it began: it keeps a
    list of the keys, and of the values if it yields them. That takes 8 or 16 bytes per entry, and
    the values that are replaced during the iteration.

    `snapshot()` and `dict(map.items())` show the map at one moment. `dict(map)` and `{**map}` do
    not: Python reads all keys first, and then one value after the other, so it raises KeyError for
    a key that was deleted or has expired meanwhile.

    A key that the serializer does not accept is absent. All methods raise `Closed` after the store
    was closed."""

    def __init__(self, owner: MapOwner, state: MapState) -> None:
        self._owner, self._state = owner, state

    @property
    def name(self) -> str:
        """The name of the map."""
        return self._state.name

    def __getitem__(self, key: Any) -> Any:
        self._owner.check_open()
        state = self._state
        data = self._key(key)
        value = None if data is None else state.get(data, self._owner.now_ms())
        if value is None:
            raise KeyError(key)
        return state.serializer.load(value)

    def ttl(self, key: Any) -> float | None:
        """The remaining time to live of a key in seconds; None: it does not expire. Raises KeyError
        if the key does not exist."""
        self._owner.check_open()
        now = self._owner.now_ms()
        data = self._key(key)
        expires = None if data is None else self._state.expiry(data, now)
        if expires is None:
            raise KeyError(key)
        return (expires - now) / 1000 if expires else None

    def __contains__(self, key: object) -> bool:
        self._owner.check_open()
        data = self._key(key)
        return data is not None and self._state.get(data, self._owner.now_ms()) is not None

    def _key(self, key: Any) -> bytes | None:
        """None: no map of this serializer has the key."""
        try:
            return self._state.serializer.dump_key(key)
        except NotSerializable:
            return None

    def __iter__(self) -> Iterator[Any]:
        self._owner.check_open()
        return map(self._state.serializer.load_key, self._state.keys(self._owner.now_ms()))

    def __len__(self) -> int:
        self._owner.check_open()
        return self._state.size(self._owner.now_ms())

    def keys(self) -> KeysView[Any]:
        """The keys of the map."""
        return KeysView(self)

    def snapshot(self) -> dict[Any, Any]:
        """All keys and values of one moment."""
        return dict(self.items())

    def items(self) -> ItemsView[Any, Any]:
        """The entries of the map."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """The values of the map."""
        return _Values(self)

    def _pairs(self) -> tuple[list[bytes], list[bytes]]:
        self._owner.check_open()
        return self._state.pairs(self._owner.now_ms())


class _Items(ItemsView[Any, Any]):
    _mapping: MapReads

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        keys, values = self._mapping._pairs()
        serializer = self._mapping._state.serializer
        return zip(map(serializer.load_key, keys), map(serializer.load, values), strict=True)


class _Values(ValuesView[Any]):
    _mapping: MapReads

    def __iter__(self) -> Iterator[Any]:
        _, values = self._mapping._pairs()
        return map(self._mapping._state.serializer.load, values)

    def __contains__(self, value: object) -> bool:
        return any(each is value or each == value for each in self)
