"""A store compared with a dict, operation by operation."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore, forget
from tests.support import FakeClock, embedded

KEYS = st.sampled_from(["a", "b", "c", 1, (1, "t"), b"raw", None])


VALUES = st.one_of(
    st.integers(-9, 9),
    st.text(max_size=4),
    st.binary(max_size=300),
    st.none(),
    st.lists(st.integers(0, 9), max_size=3),
)


NAMES = st.sampled_from(["m", "../other"])


_numbers = itertools.count()


class Reference(RuleBasedStateMachine):
    """Two maps over a store that is closed, killed, rotated, archived; the model is a dict of
    (value, when it expires)."""

    durability = "always"
    crash = "kill"

    @initialize(preallocate=st.booleans(), segment_bytes=st.sampled_from([400, 4000]))
    def begin(self, preallocate: bool, segment_bytes: int) -> None:
        self.clock = FakeClock()
        self.options = {
            "preallocate": preallocate,
            "segment_bytes": segment_bytes,
            "durability": self.durability,
            "clock": self.clock,
        }
        self.name = f"reference-{next(_numbers)}"
        self.model: dict[str, dict[Any, tuple[Any, int]]] = {"m": {}, "../other": {}}
        self.open()

    def open(self) -> None:
        self.storage = FaultyStore(MemoryStore(self.name))
        self.store = embedded(self.storage, **self.options)

    def live(self, name: str) -> dict[Any, Any]:
        now = self.clock.now_ms()
        self.model[name] = {
            key: (value, until)
            for key, (value, until) in self.model[name].items()
            if not 0 < until <= now
        }
        return {key: value for key, (value, _) in self.model[name].items()}

    @rule(name=NAMES, key=KEYS, value=VALUES)
    def put(self, name: str, key: Any, value: Any) -> None:
        self.store.map(name)[key] = value
        self.model[name][key] = (value, 0)

    @rule(name=NAMES, key=KEYS, value=VALUES, seconds=st.sampled_from([0.001, 1, 60]))
    def put_for_a_while(self, name: str, key: Any, value: Any, seconds: float) -> None:
        self.store.map(name).put(key, value, ttl=seconds)
        self.model[name][key] = (value, self.clock.now_ms() + round(seconds * 1000))

    @rule(name=NAMES, key=KEYS)
    def delete(self, name: str, key: Any) -> None:
        assert self.store.map(name).pop(key, "absent") == self.live(name).get(key, "absent")
        self.model[name].pop(key, None)

    @rule(name=NAMES, pairs=st.lists(st.tuples(KEYS, VALUES), max_size=6))
    def update(self, name: str, pairs: list[tuple[Any, Any]]) -> None:
        self.store.map(name).update(pairs)
        self.model[name].update({key: (value, 0) for key, value in pairs})

    @rule(name=NAMES)
    def clear(self, name: str) -> None:
        self.store.map(name).clear()
        self.model[name].clear()

    @rule(seconds=st.sampled_from([0.001, 0.5, 30]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def rotate(self) -> None:
        self.store.committer.rotate()

    @rule()
    def archive(self) -> None:
        self.store.archive()

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self.open()

    @rule(seed=st.integers(0, 99), tear=st.sampled_from(["prefix", "sectors"]))
    def crash_and_reopen(self, seed: int, tear: Any) -> None:
        self.die(seed, tear)
        self.open()

    @rule(
        name=NAMES,
        key=KEYS,
        value=VALUES,
        at=st.integers(1, 4),
        seed=st.integers(0, 99),
        tear=st.sampled_from(["prefix", "sectors"]),
    )
    def crash_in_a_put(
        self, name: str, key: Any, value: Any, at: int, seed: int, tear: Any
    ) -> None:
        acked = False
        try:
            self.storage.plan = Plan((Fault(self.crash, at=at),), seed, tear)  # type: ignore[arg-type]
            self.storage._seen = [0]
            self.store.map(name)[key] = value
            acked = True
            self.storage.plan = Plan()
            self.die(seed, tear)
        except Killed:
            pass
        self.open()
        found = self.store.map(name).get(key, "absent")
        before = self.live(name).get(key, "absent")
        assert found == value or (found == before and not acked)
        if found == value and (acked or found != before):
            self.model[name][key] = (value, 0)
        elif found == value and before == value:
            self.model[name][key] = (
                (value, 0) if self.store.map(name).ttl(key) is None else self.model[name][key]
            )

    @rule(at=st.integers(1, 40))
    def crash_in_an_archive(self, at: int) -> None:
        try:
            self.storage.plan = Plan((Fault(self.crash, at=at),))  # type: ignore[arg-type]
            self.storage._seen = [0]
            self.store.archive()
            self.storage.plan = Plan()
        except Killed:
            self.open()

    def die(self, seed: int, tear: Any) -> None:
        self.storage.plan = Plan((Fault(self.crash),), seed, tear)  # type: ignore[arg-type]
        self.storage._seen = [0]
        try:
            self.storage.exists("anything")
        except Killed:
            return
        raise AssertionError("the planned crash did not happen")

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if hasattr(self, "store"):
            for name in self.model:
                assert dict(self.store.map(name).items()) == self.live(name)
                assert len(self.store.map(name)) == len(self.live(name))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            forget(self.name)
