"""Reads a map while entries expire and other threads change it. Every iteration sees the keys and
values of one moment."""

from __future__ import annotations

import sys
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Protocol

from imap_wal.embedded.changes import MapState


class MapOwner(Protocol):
    """The methods of a store that its maps use."""

    def check_open(self) -> None:
        """Raises `Closed` after the store was closed."""

    def now_ms(self) -> int:
        """The time of the store's clock, in Unix milliseconds."""


class MapReads(Mapping[Any, Any]):
    """The read methods of a map. An iteration sees the map at the moment when it began: it keeps a
    list of the keys, and of the values if it yields them. That takes 8 or 16 bytes per entry, and
    the values that are replaced during the iteration. All methods raise `Closed` after the store
    was closed."""

    def __init__(self, owner: MapOwner, state: MapState) -> None:
        self._owner, self._state = owner, state
        self._copies: dict[int, _Copy] = {}

    @property
    def name(self) -> str:
        """The name of the map."""
        return self._state.name

    def __getitem__(self, key: Any) -> Any:
        self._owner.check_open()
        state = self._state
        value = _copied(self._copies, key) if self._copies else None
        if value is None:
            value = state.get(state.serializer.dump_key(key), self._owner.now_ms())
            if value is None:
                raise KeyError(key)
        return state.serializer.load(value)

    def ttl(self, key: Any) -> float | None:
        """The remaining time to live of a key in seconds; None: it does not expire. Raises KeyError
        if the key does not exist."""
        self._owner.check_open()
        now = self._owner.now_ms()
        expires = self._state.expiry(self._state.serializer.dump_key(key), now)
        if expires is None:
            raise KeyError(key)
        return (expires - now) / 1000 if expires else None

    def __contains__(self, key: object) -> bool:
        self._owner.check_open()
        return (
            self._state.get(self._state.serializer.dump_key(key), self._owner.now_ms()) is not None
        )

    def __iter__(self) -> Iterator[Any]:
        self._owner.check_open()
        return map(self._state.serializer.load_key, self._state.keys(self._owner.now_ms()))

    def __len__(self) -> int:
        self._owner.check_open()
        return self._state.size(self._owner.now_ms())

    def keys(self) -> KeysView[Any]:
        """The keys of the map."""
        return _Keys(self, _caller(2))

    def items(self) -> ItemsView[Any, Any]:
        """The entries of the map."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """The values of the map."""
        return _Values(self)

    def _pairs(self) -> tuple[list[bytes], list[bytes]]:
        self._owner.check_open()
        return self._state.pairs(self._owner.now_ms())


_Place = tuple[int, int]
"""A call of a function, and its current instruction."""


def _caller(depth: int) -> _Place:
    frame = sys._getframe(depth)
    return id(frame), frame.f_lasti


class _Copy:
    """A running `dict(map)`. Python calls `keys()` and then `map[key]` for each key, and nothing
    connects these calls, except that all come from one instruction of one call and use the same key
    objects in the same order. So they get the values from the moment of `keys()`: an entry that
    expires or is deleted during the copy does not make it fail."""

    __slots__ = ("at", "instruction", "keys", "values")

    def __init__(self, instruction: int, keys: list[Any], values: list[bytes]) -> None:
        self.instruction, self.keys, self.values = instruction, keys, values
        self.at = 0


def _copied(copies: dict[int, _Copy], key: Any) -> bytes | None:
    """The value for a running `dict(map)`; None for any other caller."""
    call, instruction = _caller(3)
    copy = copies.get(call)
    if copy is None:
        return None
    value = None
    if copy.instruction == instruction and copy.keys[copy.at] is key:
        value = copy.values[copy.at]
        copy.at += 1
    if value is None or copy.at == len(copy.keys):
        del copies[call]
    return value


class _Keys(KeysView[Any]):
    _mapping: MapReads

    def __init__(self, mapping: MapReads, asked: _Place) -> None:
        super().__init__(mapping)
        self._asked = asked

    def __iter__(self) -> Iterator[Any]:
        here = _caller(2)
        if here != self._asked:
            return iter(self._mapping)
        data, values = self._mapping._pairs()
        keys = list(map(self._mapping._state.serializer.load_key, data))
        if keys:
            self._mapping._copies[here[0]] = _Copy(here[1], keys, values)
        return iter(keys)


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
