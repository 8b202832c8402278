"""A killed process leaves its writes in the page cache, and a later power loss removes those that
were not synced. Values that an open returned in between count as acknowledged: every later open
must return them too.

Random histories of several lives on one disk. Each life ends with a kill or a power loss, at any
operation of the storage, also while it opens.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Literal, TypeAlias, TypeVar

import pytest

import imap_wal
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore, forget
from tests.kit.effort import every, share
from tests.support import FakeClock, contents, embedded

Death: TypeAlias = Literal["kill", "power-loss"]
Change: TypeAlias = dict[str, str | None]
"""What one commit sets; None: a deletion."""

T = TypeVar("T")

ROUNDS = 120
INTERVAL_S = 10_000
"""So long that the maintenance thread never wakes: the history makes time pass, so a seed replays
all of it."""


class Disk(FaultyStore):
    """The storage of one life. `before`: the life that was killed before it; its unsynced writes
    are only in the page cache."""

    def __init__(self, inner: MemoryStore, before: Disk | None) -> None:
        super().__init__(inner)
        if before is not None:
            self._appenders += before._appenders
        for appender in self._appenders:
            appender._store = self  # a power loss in this life removes its bytes
        self.inherited = self.unsynced

    @property
    def unsynced(self) -> bool:
        return any(appender._synced < appender.size for appender in self._appenders)

    def _run(self, kind: str, path: str, action: Callable[[], T]) -> T:
        def act() -> T:
            answer = action()
            if kind in (
                "replace",
                "truncate",
                "delete",
            ):  # durable on return: no part of this file is only in the page cache any more
                self._appenders[:] = [
                    appender for appender in self._appenders if appender.path != path
                ]
            return answer

        return super()._run(kind, path, act)

    def plan_death(self, death: Death, chance: Random, tear: Any, **fault: Any) -> None:
        self.plan = Plan(
            (Fault(death, when=chance.choice(("before", "after")), **fault),),
            chance.getrandbits(32),
            tear,
        )
        self._seen = [0]
        self._random = Random(self.plan.seed)

    def die(self, death: Death, chance: Random, tear: Any) -> None:
        """Now, unless it is dead already."""
        if not self.dead:
            self.plan_death(death, chance, tear)
            with pytest.raises(Killed):
                self.exists("anything")


class History:
    """`returned`: the result of the last open. `changes`: what was tried since, in order; the
    first `kept` of them must be there after the deaths so far."""

    def __init__(self, name: str, chance: Random, only_always: bool) -> None:
        self.chance, self.only_always = chance, only_always
        self.clock = FakeClock()
        self.memory = MemoryStore(name)
        self.disk: Disk | None = None
        self.returned: dict[str, str] = {}
        self.changes: list[Change] = []
        self.kept = self.safe = self.numbers = 0
        self.inherited_and_lost_power = False

    def live(self, durability: str, death: Death) -> None:
        """Open, compare, write, die."""
        chance, disk = self.chance, Disk(self.memory, self.disk)
        # Where several frames are unsynced, a torn sector in the middle of them is damage, and the
        # log refuses to open: docs/limits.md.
        tear = chance.choice(("prefix", "sectors")) if self.only_always else "prefix"
        if chance.random() < 0.2:
            disk.plan_death(death, chance, tear, at=chance.randrange(1, 40))
        store = None
        try:
            store = embedded(
                disk, clock=self.clock, durability=durability, sync_interval_ms=INTERVAL_S * 1000,
                segment_bytes=chance.choice((600, 100_000)), preallocate=chance.random() < 0.5,
            )  # fmt: skip
            self.compare(dict(store.map("m").items()))
            if not disk.plan.faults and chance.random() < 0.8:
                disk.plan_death(
                    death,
                    chance,
                    tear,
                    kind=chance.choice(("sync", "append|sync|truncate")),
                    at=chance.randrange(1, 12),
                )
            for _ in range(chance.randrange(12)):
                self.step(store, durability)
        except Killed:
            pass
        finally:
            if store is not None:
                store.writer.maintenance.stop()
        disk.die(death, chance, tear)
        self.disk = disk
        if death == "power-loss":
            self.inherited_and_lost_power |= disk.inherited and store is not None
            self.disk, self.kept = None, self.safe

    def step(self, store: imap_wal.Store, durability: str) -> None:
        chance, m = self.chance, store.map("m")
        kind = chance.choice(
            ("put", "put", "put", "update", "delete", "sync", "wait", "rotate", "archive")
        )
        if kind in ("put", "update", "delete"):
            keys = [chance.choice("abcdef") for _ in range(3 if kind == "update" else 1)]
            if kind == "delete" and keys[0] not in m:
                return
            self.numbers += 1
            change: Change = {
                key: None
                if kind == "delete"
                else f"{self.numbers}" + "x" * chance.choice((0, 30, 700))
                for key in keys
            }
            self.changes.append(change)
            if kind == "delete":
                del m[keys[0]]
            else:
                m.update(change)
            self.kept = len(self.changes)
            if durability == "always":
                self.safe = self.kept
        elif kind == "sync":
            store.sync()
            self.safe = self.kept
        elif kind == "wait" and durability == "interval":
            self.clock.advance(INTERVAL_S)
            store.committer.sync_if_due()  # what the maintenance thread does
            self.safe = self.kept
        elif kind == "rotate":
            store.committer.rotate()
            self.safe = self.kept
        elif kind == "archive" and chance.random() < 0.3:
            store.archive()
            self.safe = self.kept

    def compare(self, found: dict[str, str]) -> None:
        """A commit counts whole or not at all, and none without those before it."""
        state = dict(self.returned)
        possible = [dict(state)]
        for change in self.changes:
            state.update({key: value for key, value in change.items() if value is not None})
            for key in [key for key, value in change.items() if value is None]:
                del state[key]
            possible.append(dict(state))
        assert found in possible[self.kept :], f"{self.kept} of {len(self.changes)} must be there"
        self.returned, self.changes, self.kept, self.safe = found, [], 0, 0


@every(5)
@pytest.mark.parametrize("first", ["always", "os", "interval"])
def test_returned_values_survive_a_kill_then_power_loss(first: str, seed: int) -> None:
    """Acknowledged and returned values survive a kill and then a power loss. `first`: the
    durability of the first life. If it is `always`, that of all lives; otherwise the others have
    any, because returned values depend on none."""
    lost_power, rounds = 0, share(ROUNDS, ci=30)
    for number in range(rounds):
        chance = Random(f"{seed}/{number}")
        name = f"page-cache-{seed}-{number}"
        history = History(name, chance, first == "always")
        deaths: list[Death] = ["kill", "power-loss"]
        for _ in range(chance.randrange(3)):
            deaths.insert(chance.randrange(3), chance.choice(("kill", "kill", "power-loss")))
        try:
            for life, death in enumerate(deaths):
                history.live(
                    first
                    if life == 0 or first == "always"
                    else chance.choice(("always", "os", "interval")),
                    death,
                )
            history.compare(contents(history.memory))
        except BaseException as error:
            error.add_note(f"round {number}, deaths {deaths}")
            raise
        finally:
            forget(name)
        lost_power += history.inherited_and_lost_power
    assert lost_power > rounds / 50, "no power loss removed the page cache of a killed process"
