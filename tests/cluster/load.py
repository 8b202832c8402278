"""Writers that record what was acknowledged, while faults are applied to the cluster."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import hazelcast
from hazelcast.proxy.map import BlockingMap

ABSENT = None
PAUSE_S = 0.004
"""Between two operations of a thread. Without it, a load takes all processors while a test waits
for members that start."""


class Load:
    """Threads that change keys. Each has keys of its own, so the order of acknowledgements is the
    order of changes. `may_be`: the values that each key may have, one after an acknowledgement,
    more while an outcome is unknown; absent is None."""

    def __init__(
        self,
        client: hazelcast.HazelcastClient,
        name: str,
        *,
        threads: int = 4,
        keys: int = 150,
        value_bytes: int = 0,
        seed: int = 0,
    ) -> None:
        self.seed = seed or random.randrange(10**9)
        self.name, self._client, self._value_bytes = name, client, value_bytes
        self.may_be: dict[str, set[Any]] = {}
        self.acknowledged = self.refused = self.unknown = 0
        self.stale: list[str] = []
        self.errors: dict[str, str] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(
                    [f"{number}-{key}" for key in range(keys)],
                    random.Random(self.seed + number),
                ),
                daemon=True,
            )
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a caller hangs"

    def _run(self, keys: list[str], rng: random.Random) -> None:
        entries = self._client.get_map(self.name).blocking()
        number = 0
        while not self._stop.is_set() and self._client.lifecycle_service.is_running():
            number += 1
            self._stop.wait(PAUSE_S)
            chosen = [rng.choice(keys)]
            value: Any = f"{number}" + "x" * rng.randrange(self._value_bytes + 1)
            kind = rng.random()
            if kind < 0.1:
                self._check(entries, chosen[0])
                continue
            if kind < 0.2:
                self._do(chosen, ABSENT, lambda keys=chosen: entries.delete(keys[0]))
            elif kind < 0.3:
                self._do(chosen, ABSENT, lambda keys=chosen: entries.remove(keys[0]))
            elif kind < 0.4:
                self._do(
                    chosen,
                    value,
                    lambda keys=chosen, value=value: entries.put(keys[0], value, ttl=7200),
                )
            elif kind < 0.5:
                chosen = rng.sample(keys, 5)
                self._do(
                    chosen,
                    value,
                    lambda keys=chosen, value=value: entries.put_all(dict.fromkeys(keys, value)),
                )
            else:
                self._do(
                    chosen, value, lambda keys=chosen, value=value: entries.set(keys[0], value)
                )

    def _do(self, keys: list[str], value: Any, change: Callable[[], object]) -> None:
        try:
            change()
        except Exception as error:
            # Of several keys one may have been refused and another stored.
            certain = "NotAppended" in str(error) and len(keys) == 1
            with self._lock:
                self.errors.setdefault(str(error).split("\n")[0][:300], str(error))
                self.refused += certain
                self.unknown += not certain
            if not certain:
                for key in keys:
                    self.may_be.setdefault(key, {ABSENT}).add(value)
        else:
            for key in keys:
                self.may_be[key] = {value}
            with self._lock:
                self.acknowledged += 1

    def _check(self, entries: BlockingMap[Any, Any], key: str) -> None:
        try:
            value = entries.get(key)
        except Exception:
            return
        allowed = self.may_be.get(key, {ABSENT})
        if value not in allowed:
            self.stale.append(f"{key} is {value!r}, acknowledged was {allowed!r}")

    def differences(self, contents: dict[str, Any]) -> list[str]:
        """Keys with a value that they may not have."""
        return [
            f"{key} is {contents.get(key)!r}, may be {sorted(map(repr, allowed))}"
            for key, allowed in sorted(self.may_be.items())
            if contents.get(key) not in allowed
        ] + [f"{key} is there, and was never written" for key in contents if key not in self.may_be]
