"""One partition of a stream open for writing: its log, its locks and its last requests.

    append   is the request known? ─▶ its mark again
             was a lock written after what the author has seen? ─▶ Conflict
             else: the next id, its locks, one commit with all three   (under one lock, in order)
             ─▶ committer ─▶ acknowledge
    open     the log ─▶ the rows of `locks` and `requests`, from a snapshot and the log after it

The check counts transactions that are not acknowledged yet: two that share a commit conflict too.
If a commit fails, the log is opened again, and the table is read from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgpack

from imap_wal.entry import DataEntry
from imap_wal.errors import (
    Closed,
    Conflict,
    Fenced,
    ImapWalError,
    NotAppended,
    OtherHistory,
    OutcomeUnknown,
    StorageUnavailable,
)
from imap_wal.format import Position
from imap_wal.log.open_log import Log
from imap_wal.rules.valid import demand_size
from imap_wal.serializer import Serializer
from imap_wal.stream.reading import follow, read_tables
from imap_wal.stream.requests import KEPT_S, Known
from imap_wal.stream.transaction import (
    ANY_LOCK,
    LOCKS,
    REQUESTS,
    TRANSACTIONS,
    Header,
    Mark,
    StreamRecord,
    Transaction,
    entry_of,
    key_of,
    packed,
)

OpenLog = Callable[[bool], Log]
"""Opens the log of a partition; the argument: it fences another process that writes it."""
ATTEMPTS = 3
"""How often an append opens its log again, if the process that wrote it was not fenced."""


class Partition:
    """Thread-safe. `open_log` opens its log; it is called again after a failure, and fences nobody
    then."""

    def __init__(
        self,
        number: int,
        open_log: OpenLog,
        serializer: Serializer[Any, Any],
        lock_table_bytes: int,
        takeover: bool = False,
    ) -> None:
        self.number, self._open_log, self._serializer = number, open_log, serializer
        self._lock_table_bytes = lock_table_bytes
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._is_stale = self._closed = False
        self._open(takeover)

    def _open(self, takeover: bool) -> None:
        log = self._open_log(takeover)
        try:
            self.locks, self.requests, self._last = read_tables(
                log.logs, log.node, self.number, self._lock_table_bytes
            )
        except BaseException:
            log.close()
            raise
        self._log, self._is_stale = log, False
        self._acknowledged = Mark(
            self.number, self._last, str(log.high_water_mark) if self._last else ""
        )

    # ---- writing ----

    def append(
        self,
        header: Header,
        transaction: Transaction,
        seen: Mark | None,
        request: str = "",
    ) -> Mark:
        """Append the transaction, and return its mark when it is durable. `seen`: up to where its
        author has seen the partition; None: it has no lock that is checked. A `request` that is in
        the log is not appended again: its mark is returned.

        Raises:
            Conflict: a newer transaction than `seen` wrote a lock; nothing was appended.
            OtherHistory: the log does not have what the author has seen; nothing was appended.
            NotAppended: nothing was appended.
            OutcomeUnknown: without `request`: it may be in the log.
            Fenced: another process writes this partition.
            Closed: the stream was closed.
        """
        if seen is not None and not request:
            self._demand_seen(_checked(self.number, transaction), seen.id)  # not yet serialised
        value = packed(header, transaction, request, self._serializer)
        failure: ImapWalError | None = None
        for _ in range(ATTEMPTS):
            try:
                log = self._ready()
            except (ImapWalError, OSError) as error:
                raise _reason(failure, error) from error
            try:
                return self._append(log, value, transaction, seen, request)
            except (Conflict, Fenced, OtherHistory):
                raise
            except Closed:
                if self._closed:
                    raise
            except OutcomeUnknown as error:
                failure = error
                self._is_stale = True
                if not request or isinstance(error.__cause__, Fenced):
                    raise
            except NotAppended as error:
                if log.committer.failure is None:
                    raise
                failure = error
                self._is_stale = True
            except BaseException:
                self._is_stale = True  # an interrupt: the transaction may be in the ring
                raise
        assert failure is not None
        raise failure

    def _append(
        self,
        log: Log,
        value: bytes,
        transaction: Transaction,
        seen: Mark | None,
        request: str,
    ) -> Mark:
        if seen is not None and seen.position:
            log.demand(Position.parse(seen.position))
        demand_size(f"partition {self.number}", b"", value, log.settings.max_value_bytes)
        written = [
            key_of(self.number, name)
            for name in dict.fromkeys((*transaction.write, *transaction.append))
        ] or [key_of(self.number, ANY_LOCK)]
        checked = _checked(self.number, transaction)
        now = log.clock.now_ms()
        id = 0

        def choose() -> list[DataEntry]:
            nonlocal id
            if log is not self._log or self._is_stale:
                raise Closed("the log is being opened again")
            if known := self.requests.get(request, now):
                raise _Repeated(known)
            if seen is not None:
                if seen.id > self._last:
                    raise OtherHistory(str(log), f"of transaction {seen.id}", "")
                self._demand_seen(checked, seen.id)
            id = self._last + 1
            number = msgpack.packb(id)
            entries = [
                entry_of(TRANSACTIONS, key_of(self.number, id), value, now),
                *(entry_of(LOCKS, lock, number, now) for lock in written),
            ]
            if request:
                until = now + KEPT_S * 1000
                key = key_of(self.number, request)
                entries.append(entry_of(REQUESTS, key, number, now, until))
                self.requests.note(request, Known(id, until))
            for lock in written:
                self.locks.write(lock, id)
            self._last = id
            return entries

        try:
            position = log.append_chosen(choose)
        except _Repeated as repeated:
            return self._durable(log, repeated.id)
        return self._reached(Mark(self.number, id, str(position)))

    def _demand_seen(self, checked: Sequence[tuple[str, bytes]], seen: int) -> None:
        newest_of = self.locks.newest
        for name, lock in checked:
            newest = newest_of(lock)
            if newest > seen:
                raise Conflict(name, self.number, newest, seen)

    def _reached(self, mark: Mark) -> Mark:
        with self._mutex:
            self._acknowledged = max(self._acknowledged, mark)
            self._changed.notify_all()
        return mark

    def _ready(self) -> Log:
        """The log; after a failure, it is opened again."""
        with self._mutex:
            if self._closed:
                raise Closed("this stream was closed; open it again")
            if self._is_stale or self._log.committer.failure is not None:
                failure = self._log.committer.failure
                if isinstance(failure, Fenced):
                    raise failure
                self._is_stale = True
                with suppress(ImapWalError):
                    self._log.close()
                self._open(takeover=False)
            return self._log

    # ---- reading ----

    @property
    def mark(self) -> Mark:
        """The newest acknowledged transaction."""
        return self._acknowledged

    def records(self, after: Mark) -> Iterator[StreamRecord | None]:
        """The acknowledged transactions after a mark, and None whenever there is no further one
        now. Raises the errors of `follow`, and `Closed`."""
        while True:
            log = self._ready()
            for record in follow(log.reader(TRANSACTIONS), after, self._serializer):
                if record is not None:
                    after = record.mark
                yield record
                if self._is_stale or log is not self._log:
                    break  # it is opened again

    def wait(self, after: int, seconds: float) -> bool:
        """Whether there is an acknowledged transaction after this id, at the latest so many seconds
        later."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or self._acknowledged.id > after, seconds
            )

    def archive(self) -> int:
        return self._ready().archive()

    def known(self, request: str) -> Mark | None:
        """The mark of a request that is in the log already. Raises the errors of `append`."""
        log = self._ready()
        id = self.requests.get(request, log.clock.now_ms())
        return self._durable(log, id) if id else None

    def _durable(self, log: Log, id: int) -> Mark:
        """The mark of a transaction whose commit may still be under way."""
        log.sync()
        # The position of an old transaction is not kept: a reader finds it again.
        mark = self._acknowledged
        return mark if mark.id == id else Mark(self.number, id)

    def close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._log.close()


class _Repeated(Exception):  # internal, never raised to callers
    """The request is in the log already."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.id = id


def _checked(partition: int, transaction: Transaction) -> list[tuple[str, bytes]]:
    """The locks that must not be written since, with their keys."""
    names = (*transaction.write, *transaction.read)
    return [(name, key_of(partition, name)) for name in names]


def _reason(failure: ImapWalError | None, error: Exception) -> ImapWalError:
    """Why an append ends if its log cannot be opened again."""
    if failure is not None:
        return failure
    if isinstance(error, ImapWalError):
        return error
    return StorageUnavailable(str(error))
