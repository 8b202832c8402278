"""Changes that depend on the content of maps: `pop`, `setdefault`, `add`, `replace`, transactions.

A `Decision` is evaluated when it is published, while the store's order lock is held. It sees the
maps as they will be after all changes that were published before it (`Outlook`). So it is atomic
among threads and tasks, and shares commits with other changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any, TypeAlias

from imap_wal.embedded.changes import Clear, MapState, WriteBatch
from imap_wal.errors import NotReadable, NotSerializable
from imap_wal.format import CLEARS
from imap_wal.serializer import shown


class Undecided(Exception):
    """The decision depends on a change that another caller has published and that is not
    acknowledged yet. That change may still fail."""


class Outlook:
    """One map as it will be after all earlier changes. `pending`: changes of other callers in the
    ring."""

    def __init__(self, state: MapState, now_ms: int, pending: Sequence[WriteBatch]) -> None:
        self._state, self._now_ms, self._pending = state, now_ms, pending
        self._changed: dict[Any, tuple[bytes | None, int]] = {}
        """Held key → its value from earlier changes of the same commit, and when it expires."""
        self._added: dict[Any, None] = {}
        """Held keys that those changes added, in order."""
        self._gone: set[Any] = {key for batch in pending for key in batch.held()}
        """Held keys that `end` skips: those with pending changes, or deleted by the same commit."""

    def add(self, changes: WriteBatch) -> None:
        """Add the next changes."""
        for index, key in enumerate(changes.held()):
            value = changes.values[index]
            earlier = self._changed.get(key)
            before = self._state.find(key, self._now_ms) if earlier is None else earlier[0]
            self._changed[key] = value, changes.expires.get(index, 0)
            if value is None:
                self._added.pop(key, None)
                self._gone.add(key)
            elif before is None:
                self._added[key] = None

    def get(self, key: bytes) -> bytes | None:
        """The value of the key, or None. Raises `Undecided`."""
        return self.entry(key)[0]

    def entry(self, key: bytes) -> tuple[bytes | None, int]:
        """The value of the key, or None, and when it expires: Unix time in milliseconds; 0: never.
        Raises `Undecided`."""
        held = self._state.held.held(key)
        if held in self._changed:
            return self._changed[held]
        if any(key in batch.keys for batch in self._pending):
            raise Undecided
        value = self._state.find(held, self._now_ms)
        if value is None:
            return None, 0
        return self._state.bytes_of(value), self._state.expires.get(held, 0)

    def end(self, *, last: bool) -> tuple[bytes, bytes] | None:
        """The first or last key, and its value. Keys with pending changes are passed over."""
        state = self._state
        stored = state.end(self._now_ms, self._gone, last=last)
        ends = [] if stored is None else [stored[0]]
        if self._added:
            order = state.order
            if order is not None:
                ends = [order.outermost([*self._added, *ends], last=last)]
            elif last or not ends:
                ends = [next(reversed(self._added) if last else iter(self._added))]
        if not ends:
            return None
        key = ends[0]
        changed, _ = self._changed.get(key, (None, 0))
        if changed is None:
            assert stored is not None
            changed = state.bytes_of(stored[1])
        return state.held.data(key), changed

    def end_or_wait(self, *, last: bool) -> tuple[bytes, bytes] | None:
        """The same. Raises `Undecided` if only pending changes may have added a key."""
        entry = self.end(last=last)
        if entry is None and self._pending:
            raise Undecided
        return entry

    def keys(self) -> list[bytes]:
        """All keys that may exist, including those that pending changes set."""
        keys = dict.fromkeys(self._state.keys(self._now_ms))
        for batch in self._pending:
            keys |= dict.fromkeys(batch.held())
        return [*map(self._state.held.data, keys | self._changed)]


OutlookOf: TypeAlias = "Callable[[MapState], Outlook]"
Choice: TypeAlias = "tuple[Any, Sequence[WriteBatch]]"
"""The answer, and the changes."""


class Decision(WriteBatch):
    """A change that is not evaluated yet. While it waits, it counts as one change of `size` bytes.
    `state`: one of the maps that it changes. `call`: the name of the function that made it, and its
    arguments, for another process that has the map."""

    __slots__ = ("_answer", "_choose", "_error", "call", "size")

    def __init__(
        self,
        state: MapState,
        choose: Callable[[OutlookOf], Choice],
        size: int = 0,
        call: tuple[Any, ...] = (),
    ) -> None:
        # It has no changes of its own. Without the constructor of the batch: 256 tasks that add to
        # one counter create 40,000 of these in a second.
        self.state, self.size, self._choose, self.call = state, size, choose, call
        self._answer: Any = None
        self._error: Exception | None = None

    def __len__(self) -> int:
        return 1

    def sizes(self) -> list[int]:
        return [self.size]

    def decide(self, outlook_of: OutlookOf) -> Sequence[WriteBatch]:
        """The changes. If a serializer or a comparison raises an error, nothing is changed, and
        `answer` raises it. Raises `Undecided`."""
        self._error = None
        try:
            self._answer, changes = self._choose(outlook_of)
        except Undecided:
            raise
        except Exception as error:  # noqa: BLE001  code of the user may raise anything
            self._error = error
            return ()
        return changes

    @property
    def answer(self) -> Any:
        """The result of the evaluation."""
        if self._error is not None:
            raise self._error
        return self._answer

    def answered(self, answer: Any, error: Exception | None = None) -> None:
        """Another process has evaluated it, with this answer or error."""
        self._answer, self._error = answer, error


def pop(state: MapState, key: bytes) -> Decision:
    """Delete the key. The answer is a tuple of its value, or None. An entry that cannot be decoded
    is not deleted."""

    def choose(outlook_of: OutlookOf) -> Choice:
        value = outlook_of(state).get(key)
        if value is None:
            return None, ()
        return (state.load(key, value),), [WriteBatch(state, [key], [None])]

    return Decision(state, choose, len(key), ("pop", key))


def pop_end(state: MapState, *, last: bool) -> Decision:
    """Delete the first or last key. The answer is key and value, or None. An entry that cannot be
    decoded is not deleted."""

    def choose(outlook_of: OutlookOf) -> Choice:
        newest = outlook_of(state).end_or_wait(last=last)
        if newest is None:
            return None, ()
        key, value = newest
        entry = state.serializer.load_key(key), state.load(key, value)
        return entry, [WriteBatch(state, [key], [None])]

    return Decision(state, choose, call=("pop_end", last))


def set_default(default: WriteBatch) -> Decision:
    """Make this single change unless its key exists. The answer is the value afterwards, and
    whether the change was made."""
    state, key, value = default.state, default.keys[0], default.values[0]

    def choose(outlook_of: OutlookOf) -> Choice:
        present = outlook_of(state).get(key)
        return ((value, True), [default]) if present is None else ((present, False), ())

    return Decision(state, choose, sum(default.sizes()), ("set_default", default))


def add(state: MapState, key: bytes, amount: Any, named: Any) -> Decision:
    """Add to the number of the key, or set it to `amount`. It expires when it would have. The
    answer is the sum. `named`: the key, for errors."""
    serializer = state.serializer

    def choose(outlook_of: OutlookOf) -> Choice:
        value, expires = outlook_of(state).entry(key)
        try:
            if value is None:
                total = amount
            else:
                number = serializer.load(value)
                if type(number) is not int and not is_number(number):
                    raise TypeError(
                        f"{state.name}[{shown(named)}] is of type {type(number).__name__}, which "
                        "is not a number; nothing was changed"
                    )
                total = number + amount
            return total, (WriteBatch(state, [key], [serializer.dump(total)], _expiry(expires)),)
        except (NotReadable, NotSerializable) as error:
            raise error.at(f"{state.name}[{shown(named)}]") from error

    return Decision(state, choose, len(key), ("add", key, amount))


def replace(change: WriteBatch, old: Any) -> Decision:
    """Make this single change if the present value equals `old`. The answer says whether it was
    made."""
    state, key = change.state, change.keys[0]

    def choose(outlook_of: OutlookOf) -> Choice:
        value = outlook_of(state).get(key)
        same = value is not None and bool(state.load(key, value) == old)
        return same, [change] if same else ()

    return Decision(state, choose, sum(change.sizes()), ("replace", change, old))


def touch(state: MapState, key: bytes, expires_at_ms: int) -> Decision:
    """Change when the key expires; 0: never. The answer says whether the key exists."""

    def choose(outlook_of: OutlookOf) -> Choice:
        value = outlook_of(state).get(key)
        if value is None:
            return False, ()
        return True, [WriteBatch(state, [key], [value], _expiry(expires_at_ms))]

    return Decision(state, choose, len(key), ("touch", key, expires_at_ms))


def swap(change: WriteBatch, before: bytes | None, *, keeps_expiry: bool) -> Decision:
    """Make this single change if the serialised value is `before`. The answer says whether it was
    made. `keeps_expiry`: the new value expires when the former would have."""
    state, key, value = change.state, change.keys[0], change.values[0]

    def choose(outlook_of: OutlookOf) -> Choice:
        present, expires = outlook_of(state).entry(key)
        if present != before:
            return False, ()
        if value is None and present is None:
            return True, ()
        return True, [WriteBatch(state, [key], [value], _expiry(expires))] if keeps_expiry else [
            change
        ]

    call = ("swap", change, before, keeps_expiry)
    return Decision(state, choose, sum(change.sizes()), call)


def together(
    changes: Sequence[WriteBatch], reads: Mapping[MapState, Mapping[bytes, bytes | None]]
) -> Decision:
    """Make the changes, of one map or more, if all values that were read are the same now. The
    answer says whether they were made. There is at least one change or one map that was read."""
    state = changes[0].state if changes else next(iter(reads))

    def choose(outlook_of: OutlookOf) -> Choice:
        same = all(
            outlook_of(read).get(key) == value
            for read, values in reads.items()
            for key, value in values.items()
        )
        return same, changes if same else ()

    size = sum(size for batch in changes for size in batch.sizes())
    size += sum(len(key) + len(value or b"") for of in reads.values() for key, value in of.items())
    return Decision(state, choose, size, ("together", changes, reads))


def clear(state: MapState, *, known_only: bool = False) -> Decision:
    """Delete all keys. `known_only`: only the keys that this store knows, because its log may have
    others."""

    def choose(outlook_of: OutlookOf) -> Choice:
        keys = outlook_of(state).keys()
        if not keys:
            return None, ()
        return None, [
            WriteBatch(state, keys, [None] * len(keys)) if known_only else Clear(state, keys)
        ]

    return Decision(state, choose, call=("clear",))


def refused(state: MapState, error: Exception) -> Decision:
    """Change nothing. The answer raises the error."""

    def choose(outlook_of: OutlookOf) -> Choice:
        raise error

    return Decision(state, choose)


def is_number(value: object) -> bool:
    """Whether `add` can add it: True and False are no numbers."""
    kind = type(value)
    return kind is int or kind is float or (isinstance(value, Number) and kind is not bool)


def _expiry(expires_at_ms: int) -> dict[int, int] | None:
    return {0: expires_at_ms} if expires_at_ms else None


class _Outlooks(dict[MapState, Outlook]):
    """The outlook of each map that a decision asks for."""

    def __init__(self, outlook_of: OutlookOf) -> None:
        super().__init__()
        self._outlook_of = outlook_of

    def __missing__(self, state: MapState) -> Outlook:
        outlook = self[state] = self._outlook_of(state)
        return outlook


def made(steps: Sequence[WriteBatch], outlook_of: OutlookOf) -> list[WriteBatch]:
    """The steps, with each decision replaced by its changes. A decision sees all steps before it.
    Raises `Undecided`."""
    outlook = _Outlooks(outlook_of).__getitem__
    batches: list[WriteBatch] = []
    last: WriteBatch | None = None
    for step in steps:
        if not isinstance(step, Decision):
            outlook(step.state).add(step)
            batches.append(step)
            last = None
            continue
        for changes in step.decide(outlook):
            outlook(changes.state).add(changes)
            if changes.kind == CLEARS:
                batches.append(changes)
                last = None
                continue
            # Changes of many decisions are packed as one batch.
            if last is None or last.state is not changes.state:
                last = WriteBatch(changes.state, [], [])
                batches.append(last)
            last.add(changes)
    return batches
