"""Callers of the cluster that record every answer and its time.

acknowledged   it took effect, with this result
refused        `NotAppended` or `LogUnavailable`: nothing was changed
unknown        `OutcomeUnknown`, any other error, or no answer in time: it may take effect, also
               later
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import hazelcast
from hazelcast.future import Future

from imap_wal.errors import NotAppended
from imap_wal.hazelcast import LogUnavailable, error_of
from tests.nemesis.linearizability import READS, UNKNOWN, UNSEEN, Kind, Operation

Outcome = Literal["acknowledged", "refused", "unknown"]
ANSWER_S = 10.0
"""Without an answer for this time the outcome is unknown; the caller continues with other keys."""
LATE_S = 30.0
"""Longer than members try to execute an operation."""
LONG_TTL_S = 24 * 3600
EVICTIONS = 0.1
WEIGHTS: dict[Kind, int] = {
    "get": 25,
    "contains": 5,
    "put": 20,
    "set": 10,
    "remove": 7,
    "delete": 5,
    "put_if_absent": 14,
    "replace": 14,
}
"""How often each operation is drawn."""
PAD_MAX = 2048
"""Values get up to this much padding, so that segments fill, rotate and are archived."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    map: str
    name: str

    def __str__(self) -> str:
        return f"{self.map}/{self.name}"


class NoAnswer(Exception):
    """`answered` is set if a late answer arrives."""

    def __init__(self, answered: threading.Event) -> None:
        super().__init__(f"no answer for {ANSWER_S} s")
        self.answered = answered


def stored(value: str | None) -> str | None:
    """As it is put into the map."""
    return None if value is None else f"{value}~{'x' * (zlib.crc32(value.encode()) % PAD_MAX)}"


def told_apart(found: Any) -> str | None:
    """The value without its padding, from the answer of a map. A damaged value is marked as
    damaged."""
    value = None if found is None else str(found).partition("~")[0]
    return value if stored(value) == found else f"damaged: {str(found)[:80]}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One operation of one caller; `ended` is when the caller got an answer, or gave up."""

    key: Key
    operation: Operation
    outcome: Outcome
    ended: float
    error: str = ""


class History:
    """What all callers recorded since it was last taken. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: list[Attempt] = []

    def add(self, attempt: Attempt) -> None:
        with self._lock:
            self._attempts.append(attempt)

    def take(self) -> list[Attempt]:
        with self._lock:
            taken, self._attempts = self._attempts, []
        return taken

    def since(self, moment: float) -> list[Attempt]:
        with self._lock:
            return [each for each in self._attempts if each.operation.start >= moment]


def by_key(attempts: Iterable[Attempt]) -> dict[Key, list[Attempt]]:
    found: dict[Key, list[Attempt]] = defaultdict(list)
    for each in attempts:
        found[each.key].append(each)
    return found


def counts(attempts: Iterable[Attempt]) -> dict[str, int]:
    return dict(Counter(each.outcome for each in attempts))


class Callers:
    """Threads with a client each. Every second client knows one member only, and sends all through
    it; the others send each operation to the owner of its key."""

    def __init__(
        self,
        history: History,
        connect: Callable[[int, bool], hazelcast.HazelcastClient],
        keys: Sequence[Key],
        *,
        seed: int,
        count: int = 6,
        prefix: str = "",
        pause_s: float = 0.02,
        evicted: str = "",
    ) -> None:
        """`prefix` distinguishes these callers and their values from others of the same history.
        `evicted`: a map whose keys are also evicted from memory, which must change no answer."""
        self._evicted = evicted
        self._prefix = prefix
        self._history, self._connect, self._keys, self._pause_s = history, connect, keys, pause_s
        self._numbers = itertools.count(1)
        self._late: list[threading.Event] = []
        self._go, self._end = threading.Event(), threading.Event()
        self._idle = [threading.Event() for _ in range(count)]
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(number, random.Random(f"{seed} {prefix}{number}")),
                name=f"caller {number}",
                daemon=True,
            )
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def resume(self) -> None:
        for idle in self._idle:
            idle.clear()
        self._go.set()

    def pause(self) -> None:
        """When this returns, no operation of a caller is in flight. Those that a caller stopped
        waiting for were answered, or their time-out has passed."""
        self._go.clear()
        for number, idle in enumerate(self._idle):
            assert idle.wait(120), f"caller {number} hangs"
        late, self._late = self._late, []
        deadline = time.monotonic() + LATE_S
        for answered in late:
            answered.wait(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        self._end.set()
        self._go.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, number: int, rng: random.Random) -> None:
        client: hazelcast.HazelcastClient | None = None
        last: dict[Key, Any] = {}
        while not self._end.is_set():
            if not self._go.is_set():
                if client is not None and _direct(number):
                    # Each member has such a caller at the beginning; since then it may have moved
                    # to another one.
                    client.shutdown()
                    client = None
                self._idle[number].set()
                self._go.wait()
                continue
            if client is None or not client.lifecycle_service.is_running():
                client = self._connected(number)
                continue
            self._one(client, f"{self._prefix}{number}", rng, last)
            self._end.wait(self._pause_s * rng.uniform(0.5, 1.5))
        if client is not None:
            client.shutdown()

    def _connected(self, number: int) -> hazelcast.HazelcastClient | None:
        try:
            return self._connect(number, _direct(number))
        except Exception:
            self._end.wait(0.2)  # nothing to connect to; the next try may name other members
            return None

    def _one(
        self, client: hazelcast.HazelcastClient, name: str, rng: random.Random, last: dict[Key, Any]
    ) -> None:
        key = rng.choice(self._keys)
        if key.map == self._evicted and rng.random() < EVICTIONS:
            with suppress(Exception):  # whatever its outcome, no value may differ
                answer_of(client.get_map(key.map).evict(key.name))
        operation = self._draw(rng, key, last.get(key), name)
        try:
            result = _call(client, key, operation, LONG_TTL_S if rng.random() < 0.2 else None)
        except Exception as error:
            if isinstance(error, NoAnswer):
                self._late.append(error.answered)
            self._history.add(failed(key, operation, error))
            return
        now = time.monotonic()
        done = replace(operation, end=now, result=result)
        self._history.add(Attempt(key, done, "acknowledged", now))
        # A later replace expects this value. It is often the right one: otherwise no replace would
        # succeed.
        if operation.kind != "contains":
            last[key] = (
                result if operation.kind in ("get", "remove", "put_if_absent") else operation.value
            )

    def _draw(self, rng: random.Random, key: Key, seen: Any, name: str) -> Operation:
        (kind,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind == "replace" and seen is None:
            kind = "put_if_absent"
        writes = kind in ("put", "set", "put_if_absent", "replace")
        value = f"{next(self._numbers)} of {name}" if writes else None
        return Operation(
            kind=kind,
            start=time.monotonic(),
            end=UNKNOWN,
            value=value,
            expected=seen if kind == "replace" else None,
            client=name,
        )


def _direct(number: int) -> bool:
    return number % 2 == 0


def failed(key: Key, operation: Operation, error: Exception) -> Attempt:
    refused = isinstance(error_of(error), (NotAppended, LogUnavailable))
    outcome: Outcome = "refused" if refused or operation.kind in READS else "unknown"
    return Attempt(
        key,
        operation,
        outcome,
        time.monotonic(),
        f"{type(error).__name__}: {error}".split("\n")[0][:400],
    )


def _call(
    client: hazelcast.HazelcastClient, key: Key, operation: Operation, ttl: int | None
) -> Any:
    entries, name, value = client.get_map(key.map), key.name, stored(operation.value)
    match operation.kind:
        case "get":
            return told_apart(answer_of(entries.get(name)))
        case "contains":
            return answer_of(entries.contains_key(name))
        case "put":
            return told_apart(answer_of(entries.put(name, value, ttl=ttl)))
        case "set":
            answer_of(entries.set(name, value, ttl=ttl))
        case "remove":
            return told_apart(answer_of(entries.remove(name)))
        case "delete":
            answer_of(entries.delete(name))
        case "put_if_absent":
            return told_apart(answer_of(entries.put_if_absent(name, value, ttl=ttl)))
        case "replace":
            return answer_of(entries.replace_if_same(name, stored(operation.expected), value))
    return UNSEEN


def answer_of(future: Future[Any]) -> Any:
    answered = threading.Event()
    future.add_done_callback(lambda _: answered.set())
    if not answered.wait(ANSWER_S):
        raise NoAnswer(answered)
    return future.result()


# ---- how long nothing succeeded ----


def outages(attempts: Iterable[Attempt]) -> dict[Key, float]:
    """For each key the longest time without a success, in seconds: from the beginning of an attempt
    or from the last success, whichever is later, to the end of the last attempt that failed, or of
    a success that began before that; at least the longest time that an operation took. The time
    between the last failure and the attempt that succeeded does not count: it depends on how often
    callers choose the key."""
    found: dict[Key, float] = {}
    for key, those in by_key(attempts).items():
        since: float | None = None
        longest = success = failure = 0.0
        for each in sorted(those, key=lambda each: each.ended):
            start = max(each.operation.start, success)
            succeeds = each.outcome == "acknowledged"
            if since is None or (succeeds and start > failure):
                since = start
            since = min(since, start)
            longest = max(longest, each.ended - since, each.ended - each.operation.start)
            if succeeds:
                since, success = None, each.ended
            else:
                failure = each.ended
        found[key] = longest
    return found
