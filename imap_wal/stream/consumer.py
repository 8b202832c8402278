"""Applies the transactions of a stream, in the order of their ids, and stores how far it is.

for each partition, a thread:
the stored mark ─▶ the transactions after it, in batches ─▶ `Marks.apply` ─▶ the next batch
an error        ─▶ the batch again, one transaction at a time, after a pause that grows
                ─▶ `on_error` decides to pass over the transaction; else the consumer stops
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from imap_wal.checks import check_seconds
from imap_wal.errors import Closed, ImapWalError, InvalidSetting, LostRace, StorageUnavailable
from imap_wal.stream.marks import Marks
from imap_wal.stream.progress import Applied, StreamProgress
from imap_wal.stream.shares import ASK_S
from imap_wal.stream.transaction import Mark, StreamRecord

BATCH = 1000
"""How many transactions share a commit of the consumer."""
SHARED_LOOK_S = 0.05
"""The interval in seconds at which a process looks at the mark of a partition that another one
applies, while it waits for it."""
LOOK_S = 0.5
"""How often an idle consumer checks whether it was stopped, in seconds."""

OnError = Callable[[StreamRecord, Exception], bool]
"""What to do with a transaction that cannot be applied: True passes over it."""

_log = logging.getLogger("imap_wal")


class ReadablePartition(Protocol):
    """A partition to read."""

    number: int

    @property
    def mark(self) -> Mark: ...

    @property
    def closed(self) -> bool: ...

    def records(self, after: Mark) -> Iterator[StreamRecord | None]: ...

    def wait(self, after: int, seconds: float, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...


class Share(Protocol):
    """Reports the consumers of this process to the process that serves."""

    def ask(
        self, consumer: str, applied: Sequence[Applied], failure: str, *, shared: bool
    ) -> list[int]:
        """The partitions of a shared consumer that this process may apply. `applied`: those that it
        applies now. `failure`: why the consumer has stopped."""
        ...

    def leave(
        self, consumer: str, applied: Sequence[Applied], failure: str, *, shared: bool
    ) -> object: ...

    def progress(self) -> StreamProgress:
        """What the process that serves knows of the consumers of all processes."""
        ...


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a transaction that failed is applied again. The pause before each attempt is twice
    the one before it, from `pause_s` up to `pause_s_max`."""

    attempts: int = 5
    pause_s: float = 0.1
    pause_s_max: float = 5.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 0:
            raise InvalidSetting(f"attempts is {self.attempts!r}; it takes a number from 0")
        check_seconds(self.pause_s, "pause_s")
        check_seconds(self.pause_s_max, "pause_s_max")


RETRIES = Retries()


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """`applied`, `skipped`: transactions since it was started. `marks`: the last one that it has
    applied in each partition. `lag`: how many acknowledged transactions are not applied; of a
    stream with `read_only`, of those that it has read. With `shared=True`, `applied`, `skipped` and
    `lag` are of the partitions that this process applies; `marks` of others may be old. `failure`:
    why it stopped; "" while it runs. `failures`: attempts that failed since it was started."""

    applied: int
    skipped: int
    marks: dict[int, Mark]
    lag: int
    failure: str
    failures: int


class Consumer:
    """Thread-safe. It runs from the start until `stop`."""

    def __init__(
        self,
        name: str,
        sources: Sequence[ReadablePartition],
        marks: Marks,
        function: Callable[..., object],
        on_error: OnError | None = None,
        retries: Retries = RETRIES,
        batch: int = BATCH,
        share: Share | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """`share`: None without a process that serves. `shared`: with other processes."""
        self.name, self.marks, self._sources = name, marks, sources
        self._share, self._is_shared = share, shared
        self._allowed = set[int]() if shared else {source.number for source in sources}
        self._applied_now: dict[int, bool] = {}
        """The partitions that this process applies now → whether their mark is known."""
        self._leaving = threading.Event()
        self._function, self._on_error = function, on_error
        self._retries, self._batch = retries, batch
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._applied = 0
        self._skipped, self._failures = Counter[int](), Counter[int]()
        """By partition."""
        self._failure: Exception | None = None
        self._at: dict[int, Mark] = {source.number: Mark(source.number) for source in sources}
        self._threads = [
            threading.Thread(target=self._run, args=(source,), name=f"consumer-{name}", daemon=True)
            for source in sources
        ]
        if share is not None:
            name = f"consumer-{name}-share"
            self._threads.append(threading.Thread(target=self._ask, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def failure(self) -> Exception | None:
        """Why it stopped."""
        return self._failure

    @property
    def status(self) -> ConsumerStatus:
        applied = [source for source in self._sources if source.number in self._allowed]
        newest = {source.number: source.mark.id for source in applied}  # may ask a server
        with self._changed:
            lag = sum(max(0, id - self._at[number].id) for number, id in newest.items())
            return ConsumerStatus(
                self._applied,
                self._skipped.total(),
                dict(self._at),
                lag,
                self.failure_text,
                self._failures.total(),
            )

    def applied_now(self) -> list[Applied]:
        """The partitions that this process applies, or did before the consumer stopped."""
        with self._changed:
            return [
                Applied(
                    number,
                    self._at[number].id if is_known else None,
                    self._skipped[number],
                    self._failures[number],
                )
                for number, is_known in sorted(self._applied_now.items())
            ]

    @property
    def failure_text(self) -> str:
        """Why it stopped; "" while it runs."""
        return "" if self._failure is None else _text(self._failure)

    def wait(self, mark: Mark, seconds: float) -> bool:
        """Wait until the transaction of the mark is applied. Returns whether it is. Raises the
        error that has stopped the consumer, and `Closed`."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping.is_set() or self._at[mark.partition].id >= mark.id,
                    min(left, SHARED_LOOK_S) if self._is_shared else left,
                )
                if self._at[mark.partition].id >= mark.id:
                    return True
                if self._failure is not None:
                    raise self._failure
                if self._stopping.is_set():
                    raise Closed("this stream was closed; open it again")
            if left <= 0:
                return False
            if mark.partition not in self._allowed:  # another process applies it
                stored = self.marks.load(self.name, mark.partition)
                with self._changed:  # this process may apply it by now, and be further
                    self._at[mark.partition] = max(self._at[mark.partition], stored)

    def leave(self) -> None:
        """Give the partitions to other processes, before `stop`."""
        self._leaving.set()
        self._stop_soon()
        if self._share is not None:
            self._share.leave(
                self.name, self.applied_now(), self.failure_text, shared=self._is_shared
            )

    def stop(self) -> None:
        """Returns when no transaction is being applied."""
        self._leaving.set()
        self._stop_soon()
        for source in self._sources:
            source.wake()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _stop_soon(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()

    # ---- one partition ----

    def _run(self, source: ReadablePartition) -> None:
        pause, left, before = self._retries.pause_s, self._retries.attempts, -1
        while not self._stopping.is_set():
            if source.number not in self._allowed:
                self._stopping.wait(LOOK_S)
                continue
            try:
                with self._changed:
                    self._applied_now[source.number] = False
                self._follow(source)
            except Exception as error:  # noqa: BLE001  # it is shown, and raised by `wait`
                if source.closed or self._stopping.is_set():
                    return
                if self._at[source.number].id > before:  # since the last error
                    before = self._at[source.number].id
                    pause, left = self._retries.pause_s, self._retries.attempts
                # Another process was faster, or the storage does not answer.
                passes = isinstance(error, LostRace | StorageUnavailable | OSError)
                if not isinstance(error, LostRace | _FunctionFailed):
                    self._count_failure(source.number)
                if isinstance(error, _FunctionFailed):
                    self._fail(source, error.error)
                elif passes or (left and not isinstance(error, ImapWalError)):
                    _log.warning(
                        "consumer %r, partition %d begins again at its mark: %s",
                        self.name,
                        source.number,
                        _text(error),
                    )
                    self._stopping.wait(pause)
                    pause, left = min(2 * pause, self._retries.pause_s_max), left - (not passes)
                else:
                    self._fail(source, error)
            finally:
                with self._changed:
                    if self._failure is None:  # otherwise its mark is still of interest
                        self._applied_now.pop(source.number, None)

    def _ask(self) -> None:
        """Say what this process applies, and keep its share. Also after a failure, so that others
        can see it."""
        assert self._share is not None
        while not self._leaving.is_set():
            with suppress(ImapWalError, OSError):  # no process serves: as before
                allowed = self._share.ask(
                    self.name, self.applied_now(), self.failure_text, shared=self._is_shared
                )
                if self._is_shared:
                    self._allowed = {*allowed}
            self._leaving.wait(ASK_S)

    def _fail(self, source: ReadablePartition, error: Exception) -> None:
        _log.error(
            "consumer %r has stopped at partition %d: %s",
            self.name,
            source.number,
            _text(error),
            exc_info=None if isinstance(error, ImapWalError) else error,
        )
        with self._changed:
            self._failure = error
        self._stop_soon()

    def _follow(self, source: ReadablePartition) -> None:
        at = self.marks.load(self.name, source.number)
        waiting: list[StreamRecord] = []
        for count, record in enumerate(source.records(at)):
            if not count:  # otherwise the mark may be of another history
                self._reached(at, 0)
            if self._stopping.is_set():
                return
            if record is not None:
                waiting.append(record)
            if waiting and (record is None or len(waiting) >= self._batch):
                at, waiting = self._apply(at, waiting), []
            if source.number not in self._allowed:
                return
            if record is None:
                source.wait(at.id, LOOK_S, self._stopping)

    def _apply(self, at: Mark, records: Sequence[StreamRecord]) -> Mark:
        try:
            return self._applied_to(at, records, self._guarded)
        except _FunctionFailed:
            if len(records) == 1 and not self._retries.attempts and self._on_error is None:
                raise
        for record in records:  # the mark did not move
            at = self._apply_one(at, record)
            if self._stopping.is_set():
                break
        return at

    def _apply_one(self, at: Mark, record: StreamRecord) -> Mark:
        pause = self._retries.pause_s
        for left in range(self._retries.attempts, -1, -1):
            try:
                return self._applied_to(at, [record], self._guarded)
            except _FunctionFailed as failed:
                if self._stopping.is_set():
                    return at
                if left:
                    _log.warning(
                        "consumer %r: transaction %d of partition %d failed, and will be tried "
                        "again: %r",
                        self.name,
                        record.id,
                        record.partition,
                        failed.error,
                    )
                    self._stopping.wait(pause)
                    pause = min(2 * pause, self._retries.pause_s_max)
                elif self._on_error is None or not self._on_error(record, failed.error):
                    raise
        at = self._applied_to(at, [record], _nothing)
        with self._changed:
            self._applied -= 1
            self._skipped[record.partition] += 1
        return at

    def _guarded(self, record: StreamRecord, *arguments: Any) -> object:
        """The function. Its errors are told from those of marks and storages."""
        try:
            return self._function(record, *arguments)
        except Exception as error:
            self._count_failure(record.partition)
            raise _FunctionFailed(error) from error

    def _count_failure(self, partition: int) -> None:
        with self._changed:
            self._failures[partition] += 1

    def _applied_to(
        self, at: Mark, records: Sequence[StreamRecord], function: Callable[..., object]
    ) -> Mark:
        self.marks.apply(self.name, at, records, function)
        return self._reached(records[-1].mark, len(records))

    def _reached(self, mark: Mark, count: int) -> Mark:
        with self._changed:
            self._at[mark.partition] = mark
            self._applied += count
            if mark.partition in self._applied_now:
                self._applied_now[mark.partition] = True
            self._changed.notify_all()
        return mark


class _FunctionFailed(Exception):  # internal, never raised to callers
    """The function of the consumer raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ImapWalError) else repr(error)


def _nothing(*_: Any) -> None:
    pass
