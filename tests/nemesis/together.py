"""Callers of operations that change many keys at once, in maps of their own.

clear         of each key, a delete: the map is not cleared at one moment. If it fails, some
              partitions may be cleared, so its outcome is unknown.
destroy       the same. A client gets no error if it fails, and while it fails, the map may be empty
              in memory, so only a destroy without a fault is acknowledged, and no caller reads.
transaction   sets or removes all keys of a group. It is all or nothing, so a group is one register:
              its value is what all its keys have, or it is torn, which no history explains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import hazelcast
from hazelcast.transaction import _STATE_ACTIVE, ONE_PHASE, TWO_PHASE

from tests.cluster.waiting import until
from tests.nemesis.clients import (
    LATE_S,
    Attempt,
    Callers,
    History,
    Key,
    NoAnswer,
    Outcome,
    answer_of,
    failed,
    stored,
    told_apart,
)
from tests.nemesis.linearizability import UNKNOWN, Kind, Operation

CLEARED, DESTROYED, TRANSACTED = "nemesis-cleared", "nemesis-destroyed", "nemesis-transacted"
EMPTIED_KEYS = tuple(Key(map, f"k{number}") for map in (CLEARED, DESTROYED) for number in range(10))
GROUPS = tuple(Key(TRANSACTED, f"group-{number}") for number in range(4))
GROUP_KEYS = 4
EMPTYINGS = 0.02
ROLLBACKS = 0.1
TRANSACTION_S = 8.0
BLIND: tuple[Kind, ...] = ("set", "set", "set", "delete")
WHOLE_S = 10.0
"""How long a group may be read as torn: its transaction may not have ended yet."""


def keys_of(group: Key) -> list[str]:
    return [f"{group.name}-{number}" for number in range(GROUP_KEYS)]


def value_of(group: Key, found: Mapping[str, str | None]) -> str | None:
    """The value that all keys of a group have, or which of them has what."""
    values = [found.get(name) for name in keys_of(group)]
    return values[0] if len(set(values)) == 1 else f"torn: {values}"


def with_groups(found: Mapping[Key, str | None]) -> dict[Key, str | None]:
    """The contents of all maps, with the value of each group in place of its keys'."""
    single = {key.name: value for key, value in found.items() if key.map == TRANSACTED}
    groups = {group: value_of(group, single) for group in GROUPS}
    return {key: value for key, value in found.items() if key.map != TRANSACTED} | {
        group: value for group, value in groups.items() if value is not None
    }


def read(client: hazelcast.HazelcastClient, key: Key) -> str | None:
    """A key, or a group. Raises the client's errors."""
    entries = client.get_map(key.map).blocking()
    if key.map != TRANSACTED:
        return told_apart(entries.get(key.name))

    def group() -> str | None:
        return value_of(key, {name: told_apart(entries.get(name)) for name in keys_of(key)})

    with suppress(AssertionError):
        until("the group is whole", lambda: not str(group()).startswith("torn"), WHOLE_S, 0.2)
    return group()


def empty(client: hazelcast.HazelcastClient, map: str) -> None:
    """Clear or destroy a map."""
    if map == DESTROYED:
        client.get_map(map).destroy()
    else:
        answer_of(client.get_map(map).clear())


def emptied(
    keys: Sequence[Key], map: str, start: float, outcome: Outcome, *, client: str, error: str = ""
) -> list[Attempt]:
    """What a clear or a destroy that ends now did to each of the keys in its map."""
    now = time.monotonic()
    operation = Operation(
        kind="clear", start=start, end=now if outcome == "acknowledged" else UNKNOWN, client=client
    )
    return [Attempt(key, operation, outcome, now, error) for key in keys if key.map == map]


class Emptying(Callers):
    """Callers that use the keys of two maps, and clear the one and destroy the other."""

    def _one(
        self, client: hazelcast.HazelcastClient, name: str, rng: Random, last: dict[Key, Any]
    ) -> None:
        if rng.random() >= EMPTYINGS:
            super()._one(client, name, rng, last)
            return
        map, start = rng.choice((CLEARED, DESTROYED)), time.monotonic()
        outcome: Outcome = "acknowledged" if map == CLEARED else "unknown"
        text = ""
        try:
            empty(client, map)
        except Exception as error:
            if isinstance(error, NoAnswer):
                self._late.append(error.answered)
            outcome, text = "unknown", f"{type(error).__name__}: {error}"
        for each in emptied(self._keys, map, start, outcome, client=name, error=text):
            self._history.add(each)
        last.clear()

    def _draw(self, rng: Random, key: Key, seen: Any, name: str) -> Operation:
        if key.map != DESTROYED:
            return super()._draw(rng, key, seen, name)
        kind = rng.choice(BLIND)
        value = f"{next(self._numbers)} of {name}" if kind == "set" else None
        return Operation(kind=kind, start=time.monotonic(), end=UNKNOWN, value=value, client=name)


class Transactions(Callers):
    """Callers that change groups."""

    def _one(
        self, client: hazelcast.HazelcastClient, name: str, rng: Random, last: dict[Key, Any]
    ) -> None:
        group = rng.choice(self._keys)
        value = None if rng.random() < 0.15 else f"{next(self._numbers)} of {name}"
        operation = Operation(
            kind="delete" if value is None else "set",
            start=time.monotonic(),
            end=UNKNOWN,
            value=value,
            client=name,
        )
        kind = rng.choice((ONE_PHASE, TWO_PHASE))
        commits = False
        try:
            transaction = client.new_transaction(TRANSACTION_S, durability=1, type=kind)
            transaction.begin()
            try:
                _change(transaction.get_map(TRANSACTED), keys_of(group), value)
                if rng.random() < ROLLBACKS:
                    raise RolledBack
                commits = True
                transaction.commit()
            except BaseException:
                # After a commit that failed, the client would not send the rollback, not even if it
                # did not send the commit either. The keys would be locked until the time-out of the
                # transaction; then the next caller that waited would get them too late, and so on.
                transaction.state = _STATE_ACTIVE
                with suppress(Exception):
                    transaction.rollback()
                raise
        except Exception as error:
            attempt = failed(group, operation, error)
            # Without a commit, nothing was changed.
            self._history.add(attempt if commits else replace(attempt, outcome="refused"))
            return
        now = time.monotonic()
        self._history.add(Attempt(group, replace(operation, end=now), "acknowledged", now))


class RolledBack(Exception):
    """The caller has rolled its transaction back."""


def _change(entries: Any, names: Sequence[str], value: str | None) -> None:
    for name in names:  # always in this order, so that no two transactions wait for each other
        if value is None:
            entries.delete(name)
        else:
            entries.set(name, stored(value))


Connect = Callable[[int, bool], hazelcast.HazelcastClient]


def callers_of_many(history: History, connect: Connect, seed: int, pause_s: float) -> list[Callers]:
    more: dict[str, Any] = {"seed": seed, "pause_s": pause_s}
    return [
        Emptying(history, connect, EMPTIED_KEYS, count=2, prefix="empty-", **more),
        Transactions(history, connect, GROUPS, count=3, prefix="transact-", **more),
    ]


def emptied_without_fault(client: hazelcast.HazelcastClient, map: str) -> list[Attempt]:
    """Empties a map while nothing else is done, and no fault is left: this must succeed."""
    start = time.monotonic()
    until(f"{map} is emptied", lambda: [empty(client, map)], LATE_S, 0.5)
    return emptied(EMPTIED_KEYS, map, start, "acknowledged", client="judge-empties")
