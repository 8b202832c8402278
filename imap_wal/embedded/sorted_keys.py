"""The keys of a map in their order: for ranges, prefixes and the smallest key.

A change of the map only notes which keys it adds or removes (`touch`). They are put in order by
the next read, so a put costs little, and no comparison runs in a commit. The keys are in lists of
some `LIST_KEYS`, as in `sortedcontainers`: a key is added or removed in one short list.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from imap_wal.embedded.held_keys import ForeignKey, HeldKeys
from imap_wal.errors import NotSerializable
from imap_wal.serializer import shown

LIST_KEYS = 1000
"""A list that has grown to twice as many keys is split."""
REBUILD_SHARE = 8
"""If more than one key in so many was touched, and `LIST_KEYS` more, all are sorted again."""

Prefix: TypeAlias = "str | bytes | tuple[Any, ...]"


def demand_prefix(prefix: object) -> None:
    """Raise TypeError unless keys can begin with this."""
    if not isinstance(prefix, str | bytes | tuple):
        raise TypeError(f"prefix is {prefix!r}; it takes text, bytes or a tuple")


def begins(key: Any, prefix: Prefix) -> bool:
    """Whether a key begins with the prefix. The prefix of a tuple is a shorter tuple."""
    if isinstance(prefix, tuple):
        return isinstance(key, tuple) and key[: len(prefix)] == prefix
    return isinstance(key, type(prefix)) and bool(key.startswith(prefix))  # type: ignore[arg-type]  # of one type


class Span(NamedTuple):
    """The keys from `minimum` to `maximum`; None: no limit. `inclusive`: whether each of them
    belongs to it. With a `prefix`, only the keys that begin with it."""

    minimum: Any = None
    maximum: Any = None
    inclusive: tuple[bool, bool] = (True, True)
    prefix: Prefix | None = None


EVERYTHING = Span()


class SortedKeys:
    """The order of one map. Not thread-safe, except `demand`: `MapState` calls the other methods
    with its lock held."""

    def __init__(self, held: HeldKeys, keys: Iterable[Any]) -> None:
        """`keys`: the held keys of the map. Raises `NotSerializable` if the keys cannot be compared
        with each other."""
        self.held = held
        self._touched: set[Any] = set()
        """Held keys that were added or removed since the last read."""
        self._stale = True
        """So many keys were touched that the next read sorts all keys: they are not noted then."""
        self._lists: list[list[Any]] = []
        self._lasts: list[Any] = []
        """The last key of each list."""
        self._count = 0
        self._kind: Any = None
        """Of the keys, see `_kind_of`. None: there was no key yet."""
        self._kind_lock = threading.Lock()
        keys = list(keys)
        if any(type(key) is ForeignKey for key in keys):
            raise NotSerializable("it has keys that its serializer does not write")
        for key in held.keys(keys):
            self.demand(key)

    def demand(self, key: Any) -> None:
        """Raise `NotSerializable` if the key cannot be compared with all keys of the map. Safe
        from any thread."""
        if _kind_of(key) == self._kind:
            return
        serializer = self.held.serializer
        plain = serializer.load_key(serializer.dump_key(key))
        try:
            ordered = not isinstance(plain, AbstractSet) and not plain < plain
        except TypeError:
            ordered = False
        if not ordered:
            raise NotSerializable(
                f"keys of type {type(key).__name__} have no order, and the map is sorted"
            )
        kind = _kind_of(plain)
        with self._kind_lock:
            merged = kind if self._kind is None else _merged(self._kind, kind)
            if merged is None:
                raise NotSerializable(
                    f"{shown(key)} cannot be compared with the other keys, which are of the kind "
                    f"{_named(self._kind)}, and the map is sorted"
                )
            self._kind = merged

    def note(self, keys: Iterable[Any], values: Collection[Any]) -> None:
        """These keys will be set; `values` has the present ones."""
        if not self._stale:
            self.touch(key for key in keys if key not in values)

    def touch(self, keys: Iterable[Any]) -> None:
        """These keys are added or removed."""
        if not self._stale:
            self._touched.update(keys)
            if len(self._touched) > self._count // REBUILD_SHARE + LIST_KEYS:
                self.forget()

    def between(self, span: Span, values: Collection[Any]) -> list[Any]:
        """The held keys of the map in a span, in order. `values`: all present keys. Raises
        TypeError if the limits cannot be compared with the keys."""
        self._catch_up(values)
        low, high = self._limits(span)
        if low >= high:
            return []
        (first, start), (last, stop) = low, high
        if first == last:
            parts = [self._lists[first][start:stop]]
        else:
            tail = [self._lists[last][:stop]] if stop else []
            parts = [self._lists[first][start:], *self._lists[first + 1 : last], *tail]
        return list(self.held.of_keys(chain.from_iterable(parts)))

    def walk(self, values: Collection[Any], *, last: bool) -> Iterator[Any]:
        """The held keys from the smallest on, or from the largest on."""
        self._catch_up(values)
        lists = reversed(self._lists) if last else iter(self._lists)
        keys = chain.from_iterable(map(reversed, lists) if last else lists)
        return self.held.of_keys(keys)

    def outermost(self, keys: Iterable[Any], *, last: bool) -> Any:
        """The smallest or largest of some held keys."""
        choose = max if last else min
        return choose(keys, key=self._key)

    def _key(self, held: Any) -> Any:
        return next(iter(self.held.keys([held])))

    def _limits(self, span: Span) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where a span begins and ends: list, and index in it."""
        low, high = (0, 0), (len(self._lists), 0)
        if span.prefix is not None:
            prefix = span.prefix
            if self._kind is not None and _merged(self._kind, _kind_of(prefix)) is None:
                return low, low
            low = self._place(bisect_left, prefix)
            # From there on, the keys that begin with the prefix come first.
            ends = lambda key: not begins(key, prefix)  # noqa: E731
            last = bisect_left(self._lasts, True, low[0], key=ends)
            if last == len(self._lists):
                return low, high
            start = low[1] if last == low[0] else 0
            return low, (last, bisect_left(self._lists[last], True, start, key=ends))
        if span.minimum is not None:
            low = self._place(bisect_left if span.inclusive[0] else bisect_right, span.minimum)
        if span.maximum is not None:
            high = self._place(bisect_right if span.inclusive[1] else bisect_left, span.maximum)
        return low, high

    def _place(self, bisect: Callable[[list[Any], Any], int], key: Any) -> tuple[int, int]:
        number = bisect(self._lasts, key)
        return number, bisect(self._lists[number], key) if number < len(self._lists) else 0

    def _catch_up(self, values: Collection[Any]) -> None:
        """Put the touched keys in order."""
        if not (self._stale or self._touched):
            return
        try:
            if self._stale:
                self._fill(sorted(self.held.keys(filter(_is_own, values))))
            for held in filter(_is_own, self._touched):
                (self._add if held in values else self._discard)(self._key(held))
            self._touched.clear()
            self._stale = False
        except BaseException:  # also a Ctrl-C: the next read sorts all keys again
            self.forget()
            raise

    def forget(self) -> None:
        """Any key may be added or removed."""
        self._stale = True
        self._touched.clear()
        self._fill([])

    def _fill(self, keys: list[Any]) -> None:
        starts = range(0, len(keys), LIST_KEYS)
        self._lists = [keys[start : start + LIST_KEYS] for start in starts]
        self._lasts = [part[-1] for part in self._lists]
        self._count = len(keys)

    def _add(self, key: Any) -> None:
        if not self._lists:
            self._fill([key])
            return
        number = min(bisect_left(self._lasts, key), len(self._lists) - 1)
        part = self._lists[number]
        index = bisect_left(part, key)
        if index < len(part) and part[index] == key:
            return
        part.insert(index, key)
        self._count += 1
        if len(part) >= 2 * LIST_KEYS:
            self._lists[number : number + 1] = part[:LIST_KEYS], part[LIST_KEYS:]
            self._lasts[number : number + 1] = part[LIST_KEYS - 1], part[-1]
        else:
            self._lasts[number] = part[-1]

    def _discard(self, key: Any) -> None:
        number, index = self._place(bisect_left, key)
        if number == len(self._lists) or self._lists[number][index] != key:
            return
        part = self._lists[number]
        del part[index]
        self._count -= 1
        if part:
            self._lasts[number] = part[-1]
        else:
            del self._lists[number], self._lasts[number]


def _is_own(held: Any) -> bool:
    return type(held) is not ForeignKey


def _kind_of(key: Any) -> Any:
    """What decides whether keys can be compared: their type, and that of each part of a tuple.
    Numbers can be compared with each other."""
    kind = type(key)
    if kind is str or kind is bytes:
        return kind
    if kind is tuple:
        return tuple(map(_kind_of, key))
    if kind is int or kind is bool:
        return float
    aware = getattr(key, "tzinfo", None) is not None
    return f"{kind.__name__} with a time zone" if aware else kind


def _merged(one: Any, other: Any) -> Any:
    """The kind of a map that has keys of both kinds; None: they cannot be compared."""
    if not (isinstance(one, tuple) and isinstance(other, tuple)):
        return one if one == other else None
    parts = tuple(_merged(*pair) for pair in zip(one, other, strict=False))
    longer = one if len(one) > len(other) else other
    return None if None in parts else (*parts, *longer[len(parts) :])


def _named(kind: Any) -> str:
    if isinstance(kind, tuple):
        return f"({', '.join(map(_named, kind))}{',' if len(kind) == 1 else ''})"
    return "number" if kind is float else getattr(kind, "__name__", kind)
