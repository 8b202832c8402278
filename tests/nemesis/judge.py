"""Is every answer right, is every acknowledged change present, and does a restart restore the same
contents?

live map      a read of everything, after the cluster works again: part of the history of each key
history       each key's history is linearizable
query         a query (`entry_set`) and reads of single keys say the same
restart       what was live before everything was killed is live after the restart, and nothing else
stale read    a member that was frozen or cut off answered from memory before it noticed: counted,
              but not a failure
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import hazelcast

from tests.cluster.waiting import until
from tests.nemesis.clients import Attempt, Key, by_key
from tests.nemesis.linearizability import (
    READS,
    UNKNOWN,
    UNSEEN,
    Checker,
    Operation,
    TooLarge,
    Violation,
)
from tests.nemesis.together import read

READER = "judge"
ROWS_MAX = 40


@dataclass(frozen=True, slots=True)
class Finding:
    """`judgement` is the one that failed. `story`: the key's history as a table."""

    judgement: str
    text: str
    key: Key | None = None
    story: str = ""


class Judge:
    """Keeps for each key what is still possible."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._checkers = {key: Checker(again=True) for key in keys}
        self._past: dict[Key, list[Attempt]] = {key: [] for key in keys}
        self.stale_reads = self.undecided = 0

    def judge(
        self, attempts: Iterable[Attempt], *, stale: tuple[float, float] | None = None
    ) -> list[Finding]:
        """`attempts`: all since the last call. `stale`: between these moments, answers from memory
        alone may be out of date."""
        findings = []
        for key, those in sorted(by_key(attempts).items()):
            self._past[key] = [*self._past[key][-ROWS_MAX:], *those]
            counted = [each.operation for each in those if each.outcome != "refused"]
            violation = self._feed(key, counted, stale)
            if violation is not None:
                findings.append(self._finding(key, violation, those))
                # The next judgement begins with the present state, so each damage is reported once.
                self._checkers[key] = Checker(_last_seen(counted), again=True)
        return findings

    def _feed(
        self, key: Key, operations: list[Operation], stale: tuple[float, float] | None
    ) -> Violation | None:
        before = self._checkers[key].copy()
        try:
            violation = self._checkers[key].feed(operations)
            if violation is None or stale is None:
                return violation
            weaker = [
                each
                for each in (_weakened(each, *stale) for each in operations)
                if each is not None
            ]
            self._checkers[key] = before
            if (second := before.feed(weaker)) is None:
                self.stale_reads += 1
            return second
        except TooLarge:
            self.undecided += 1
            self._checkers[key] = Checker(_last_seen(operations), again=True)
            return None

    def _finding(self, key: Key, violation: Violation, attempts: Sequence[Attempt]) -> Finding:
        operation = violation.operation
        judgement = "live map" if operation.client == READER else "history"
        refused = [
            each
            for each in attempts
            if each.outcome == "refused" and each.operation.value is not None
        ]
        text = (
            f"{described(operation)}, but it could be only "
            f"{' or '.join(map(repr, violation.possible))}"
        )
        if any(each.operation.value == operation.result for each in refused):
            text += "; that value was refused"
        return Finding(judgement, text, key, table(self._past[key], operation))

    def restarted(self, before: Mapping[Key, Any], after: Mapping[Key, Any]) -> list[Finding]:
        """Compares the live maps before everything was killed with those after the restart. What
        is judged next begins with the latter: an operation that was unknown has happened or not."""
        different = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
        self.begin_again(after)
        return [
            Finding(
                "restart",
                f"live before {before.get(key)!r}, after {after.get(key)!r}",
                key,
                table(self._past[key]),
            )
            for key in different
        ]

    def begin_again(self, contents: Mapping[Key, Any]) -> None:
        """The present contents count from now on."""
        for key in self._checkers:
            self._checkers[key] = Checker(contents.get(key), again=True)

    def queried(self, query: Mapping[Key, Any], single: Mapping[Key, Any]) -> list[Finding]:
        return [
            Finding(
                "query",
                f"a query says {query.get(key)!r}, get says {single.get(key)!r}",
                key,
                table(self._past[key]),
            )
            for key in sorted({*query, *single})
            if query.get(key) != single.get(key)
        ]


def reads(client: hazelcast.HazelcastClient, keys: Sequence[Key]) -> list[Attempt]:
    """Each key read by itself, as the judge's own part of the history."""
    found = []
    for key in keys:
        start = time.monotonic()
        (value,) = until(f"{key} can be read", partial(_read, client, key), 60, 0.5)
        now = time.monotonic()
        operation = Operation(kind="get", start=start, end=now, result=value, client=READER)
        found.append(Attempt(key, operation, "acknowledged", now))
    return found


def _read(client: hazelcast.HazelcastClient, key: Key) -> list[Any]:
    return [read(client, key)]


def seen(contents: Mapping[Key, Any], keys: Sequence[Key], start: float) -> list[Attempt]:
    """The same for a query that began at `start`."""
    now = time.monotonic()
    return [
        Attempt(
            key,
            Operation(kind="get", start=start, end=now, result=contents.get(key), client=READER),
            "acknowledged",
            now,
        )
        for key in keys
    ]


def _weakened(operation: Operation, begin: float, end: float) -> Operation | None:
    """The operation without its answer, if it began in that time and its answer is from memory
    alone."""
    if not operation.observed or operation.client == READER or not begin <= operation.start <= end:
        return operation
    return None if operation.kind in READS else replace(operation, end=UNKNOWN, result=UNSEEN)


def _last_seen(operations: Sequence[Operation]) -> Any:
    """What the judge read last, which is after everything else."""
    return next((each.result for each in reversed(operations) if each.client == READER), None)


# ---- tables ----


def described(operation: Operation) -> str:
    arguments = [repr(each) for each in (operation.expected, operation.value) if each is not None]
    answer = "" if operation.result is UNSEEN else f" = {operation.result!r}"
    return f"{operation.kind}({', '.join(arguments)}){answer}"


def table(attempts: Sequence[Attempt], wrong: Operation | None = None) -> str:
    """The end of a key's history, in the order of the answers; ✗ marks the operation that nothing
    explains."""
    rows = sorted(attempts, key=lambda each: each.ended)
    at = next(
        (number for number, each in enumerate(rows) if each.operation is wrong), len(rows) - 1
    )
    shown = rows[max(0, at - ROWS_MAX) : at + 6]
    first = min((each.operation.start for each in shown), default=0.0)
    lines = [f"    {'start':>9} {'end':>9}  caller  outcome       operation"]
    for each in shown:
        mark = "✗" if each.operation is wrong else " "
        error = f"  {each.error[:140]}" if each.error else ""
        lines.append(
            f"  {mark} {each.operation.start - first:9.3f} {each.ended - first:9.3f}  "
            f"{each.operation.client:6}  {each.outcome:12}  {described(each.operation)}{error}"
        )
    return "\n".join(lines)
