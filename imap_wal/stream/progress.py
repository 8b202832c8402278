"""How far the consumers of a stream are, as the processes that run them report.

    each process, every second   the marks of what it applies ─▶ the process that serves
    the log                      the newest transaction of each partition
                                 ─▶ `imap-wal stream consumers`, metrics

The marks are stored where the consumers want them, and no other process reads them there. The
reports are only in memory: a process that has just begun to serve has those of running consumers
after a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from imap_wal.clock import Clock
from imap_wal.stream.shares import LEASE_S

KEPT_S = 7 * 24 * 3600
"""A consumer that no process runs any more is forgotten after this time."""
CONSUMERS_MAX, ROWS_MAX = 1000, 100_000
"""How many consumers, and partitions of all of them, are remembered. Further ones are not shown."""
NAME_MAX = 200
TEXT_MAX = 1000


class Applied(NamedTuple):
    """What a process reports of a partition that it applies. `id`: the last transaction that is
    applied; None: it is not known yet."""

    partition: int
    id: int | None = None
    skipped: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """How far a consumer is in one partition. `mark`: the id of the last transaction that it has
    applied; None: not known. `newest`: the id of the newest acknowledged one. `lag`: how many
    acknowledged transactions it has not applied; None: not known. `process`: which process runs it;
    "": none. `skipped`, `failures`: transactions that were skipped, and attempts that failed, since
    this process started it. `failure`: why it has stopped; "": it has not. `age_s`: seconds since
    a process reported this partition; None: none has."""

    consumer: str
    partition: int
    mark: int | None
    newest: int
    lag: int | None
    process: str
    skipped: int
    failures: int
    failure: str
    age_s: float | None

    @property
    def is_running(self) -> bool:
        return bool(self.process) and not self.failure


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """`process`: which process has the log open. `newest`: the id of the newest acknowledged
    transaction of each partition."""

    process: str
    newest: Sequence[int]
    consumers: Sequence[ConsumerProgress]


@dataclass(slots=True)
class _Report:
    name: str
    applied: Applied
    at: float
    failure: str = ""
    has_left: bool = False

    def counts(self, now: float) -> bool:
        """Whether its process still runs this consumer."""
        return not self.has_left and now - self.at < LEASE_S

    @property
    def rank(self) -> tuple[bool, float]:
        """Of those that do not count any more, the one with the highest rank is kept."""
        return self.applied.id is not None, self.at


_Rows = dict[bytes, _Report]
"""Process → what it has reported of one partition."""


class ProgressTable:
    """What the processes of all consumers have reported. Thread-safe."""

    def __init__(self, partitions: int, clock: Clock) -> None:
        self._partitions, self._clock = range(partitions), clock
        self._mutex = threading.Lock()
        self._consumers: dict[str, dict[int, _Rows]] = {}
        """Of each consumer and partition."""
        self._count = 0

    def note(
        self, consumer: str, process: bytes, name: str, applied: Iterable[Applied], failure: str
    ) -> None:
        """A process runs a consumer. `name`: of the process. `applied`: all partitions that it
        applies now; if the consumer has stopped because of a `failure`, those that it applied."""
        now = self._clock.monotonic()
        reported = {each.partition: each for each in applied if each.partition in self._partitions}
        with self._mutex:
            if consumer not in self._consumers:
                if len(self._consumers) >= CONSUMERS_MAX:
                    return
                self._consumers[consumer] = {of: {} for of in self._partitions}
            for partition, of_partition in self._consumers[consumer].items():
                former, applies = of_partition.get(process), reported.get(partition)
                if applies is None:
                    if former is not None:
                        former.has_left = True
                elif former is not None or self._count < ROWS_MAX:
                    if applies.id is None:
                        applies = applies._replace(id=_last_id(of_partition, process, now))
                    shown = name[:NAME_MAX], applies, now, failure[:TEXT_MAX]
                    of_partition[process] = _Report(*shown)
                    self._count += former is None
            self._forget(consumer, now)

    def leave(self, consumer: str, process: bytes) -> None:
        """A process no longer runs a consumer."""
        with self._mutex:
            for rows in self._consumers.get(consumer, {}).values():
                if process in rows:
                    rows[process].has_left = True

    def consumers(self, newest: Sequence[int]) -> list[ConsumerProgress]:
        """All that is known. `newest`: the newest transaction of each partition."""
        with self._mutex:
            now = self._clock.monotonic()
            for consumer in list(self._consumers):
                self._forget(consumer, now)
            return [
                _progress(consumer, partition, row, now, newest[partition])
                for consumer, partitions in sorted(self._consumers.items())
                for partition, rows in partitions.items()
                for row in (rows.values() or [None])
            ]

    def _forget(self, consumer: str, now: float) -> None:
        """Of a partition that no process applies any more, one row remains."""
        partitions = self._consumers[consumer]
        for rows in partitions.values():
            best = max((row.rank for row in rows.values()), default=None)
            applied = any(row.counts(now) for row in rows.values())
            for process, row in list(rows.items()):
                if not row.counts(now) and (applied or row.rank != best or now - row.at >= KEPT_S):
                    del rows[process]
                    self._count -= 1
        if not any(partitions.values()):
            del self._consumers[consumer]


def _last_id(rows: _Rows, process: bytes, now: float) -> int | None:
    """The last known id, for a process that has not read its mark yet, or cannot read it."""
    former = [row for of, row in rows.items() if of == process or not row.counts(now)]
    return max(former, key=lambda row: row.rank).applied.id if former else None


def _progress(
    consumer: str, partition: int, row: _Report | None, now: float, newest: int
) -> ConsumerProgress:
    if row is None:
        return ConsumerProgress(
            consumer, partition, None, newest, None, "", 0, 0, failure="", age_s=None
        )
    mark = row.applied.id
    return ConsumerProgress(
        consumer,
        partition,
        mark,
        newest,
        None if mark is None else max(0, newest - mark),
        row.name if row.counts(now) else "",
        row.applied.skipped,
        row.applied.failures,
        row.failure,
        now - row.at,
    )
