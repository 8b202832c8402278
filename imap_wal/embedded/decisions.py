"""Changes that depend on the content of the map: `pop`, `popitem`, `setdefault`, `clear`.

A `Decision` is evaluated when it is published, while the store's order lock is held. It sees the
map as it will be after all changes that were published before it (`Outlook`). So it is atomic among
threads and tasks, and shares commits with other changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from imap_wal.embedded.changes import Clear, MapState, WriteBatch


class Undecided(Exception):
    """The decision depends on a change that another caller has published and that is not
    acknowledged yet. That change may still fail."""


class Outlook:
    """One map as it will be after all earlier changes. `pending`: changes of other callers in the
    ring."""

    def __init__(self, state: MapState, now_ms: int, pending: Sequence[WriteBatch]) -> None:
        self._state, self._now_ms, self._pending = state, now_ms, pending
        self._changed: dict[bytes, bytes | None] = {}
        """Values from earlier changes of the same commit."""
        self._added: dict[bytes, None] = {}
        """Keys that those changes added, in order."""
        self._gone: set[bytes] = {key for batch in pending for key in batch.keys}
        """Keys that `last` skips: keys with pending changes, or deleted by the same commit."""

    def add(self, changes: WriteBatch) -> None:
        """Add the next changes."""
        for key, value in zip(changes.keys, changes.values, strict=True):
            known = key in self._changed
            there = self._changed[key] if known else self._state.get(key, self._now_ms)
            self._changed[key] = value
            if value is None:
                self._added.pop(key, None)
                self._gone.add(key)
            elif there is None:
                self._added[key] = None

    def get(self, key: bytes) -> bytes | None:
        """The value of the key, or None. Raises `Undecided`."""
        if key in self._changed:
            return self._changed[key]
        if any(key in batch.keys for batch in self._pending):
            raise Undecided
        return self._state.get(key, self._now_ms)

    def last(self) -> tuple[bytes, bytes] | None:
        """The key that was added last, and its value. Raises `Undecided` if only pending changes
        may have added one."""
        for key in reversed(self._added):
            value = self._changed[key]
            assert value is not None
            return key, value
        found = self._state.last(self._now_ms, besides=self._gone)
        if found is None:
            if self._pending:
                raise Undecided
            return None
        key, value = found
        changed = self._changed.get(key)
        return key, value if changed is None else changed

    def keys(self) -> list[bytes]:
        """All keys that may exist, including those that pending changes set."""
        there = dict.fromkeys(self._state.keys(self._now_ms))
        pending = {key: None for batch in self._pending for key in batch.keys}
        return [*{**there, **pending, **dict.fromkeys(self._changed)}]


Choose: TypeAlias = "Callable[[Outlook], tuple[Any, WriteBatch | None]]"
"""Returns the answer, and the changes or None."""


class Decision(WriteBatch):
    """A change that is not evaluated yet. While it waits, it counts as one change of `size` bytes.
    Evaluating it sets `answer`."""

    __slots__ = ("answer", "choose", "size")

    def __init__(self, state: MapState, choose: Choose, size: int = 0) -> None:
        super().__init__(state, [], [])
        self.choose, self.size = choose, size
        self.answer: Any = None

    def __len__(self) -> int:
        return 1

    def sizes(self) -> list[int]:
        return [self.size]


class Taken:
    """An entry that is deleted and returned. It is decoded before the deletion is committed, so an
    entry that cannot be decoded is not deleted."""

    def __init__(self, decode: Callable[[], tuple[Any, ...]]) -> None:
        self._found: tuple[Any, ...] = ()
        self._error: Exception | None = None
        try:
            self._found = decode()
        except Exception as error:  # noqa: BLE001  a serializer of the user may raise anything
            self._error = error

    def __bool__(self) -> bool:
        return self._error is None

    def get(self) -> tuple[Any, ...]:
        """What was decoded. Raises the serializer's error."""
        if self._error is not None:
            raise self._error
        return self._found


def pop(state: MapState, key: bytes) -> Decision:
    """Delete the key. The answer is its value as `Taken`, or None."""

    def choose(outlook: Outlook) -> tuple[Taken | None, WriteBatch | None]:
        value = outlook.get(key)
        if value is None:
            return None, None
        taken = Taken(lambda: (state.serializer.load(value),))
        return taken, WriteBatch(state, [key], [None]) if taken else None

    return Decision(state, choose, len(key))


def set_default(default: WriteBatch) -> Decision:
    """Make this single change unless its key exists. The answer is the value afterwards."""
    key, value = default.keys[0], default.values[0]

    def choose(outlook: Outlook) -> tuple[bytes | None, WriteBatch | None]:
        present = outlook.get(key)
        return (value, default) if present is None else (present, None)

    return Decision(default.state, choose, sum(default.sizes()))


def pop_last(state: MapState) -> Decision:
    """Delete the key that was added last. The answer is key and value as `Taken`, or None."""

    def choose(outlook: Outlook) -> tuple[Taken | None, WriteBatch | None]:
        found = outlook.last()
        if found is None:
            return None, None
        key, value = found
        taken = Taken(lambda: (state.serializer.load_key(key), state.serializer.load(value)))
        return taken, WriteBatch(state, [key], [None]) if taken else None

    return Decision(state, choose)


def clear(state: MapState, *, known_only: bool = False) -> Decision:
    """Delete all keys. `known_only`: only the keys that this store knows, because its log may have
    others."""

    def choose(outlook: Outlook) -> tuple[None, WriteBatch | None]:
        keys = outlook.keys()
        if not keys:
            return None, None
        return None, WriteBatch(state, keys, [None] * len(keys)) if known_only else Clear(
            state, keys
        )

    return Decision(state, choose)


def made(
    steps: Sequence[WriteBatch], outlook_of: Callable[[MapState], Outlook]
) -> list[WriteBatch]:
    """The steps, with each decision replaced by its changes. A decision sees all steps before it.
    Raises `Undecided`."""
    outlooks: dict[MapState, Outlook] = {}
    batches: list[WriteBatch] = []
    for step in steps:
        outlook = outlooks.get(step.state)
        if outlook is None:
            outlook = outlooks[step.state] = outlook_of(step.state)
        changes: WriteBatch | None = step
        if isinstance(step, Decision):
            step.answer, changes = step.choose(outlook)
        if changes is not None:
            outlook.add(changes)
            batches.append(changes)
    return batches
