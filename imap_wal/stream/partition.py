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
from typing import Any, TypeVar

import msgpack

from imap_wal.entry import DataEntry
from imap_wal.errors import (
    Closed,
    Conflict,
    Fenced,
    ImapWalError,
    InvalidSetting,
    NotAppended,
    OtherHistory,
    OutcomeUnknown,
    StorageUnavailable,
)
from imap_wal.forked import Openness
from imap_wal.format import Position
from imap_wal.log.open_log import Log
from imap_wal.read.log_reader import storage_errors
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
    Logged,
    Mark,
    StoredTransaction,
    StreamRecord,
    Transaction,
    entry_of,
    key_of,
    packed,
    partition_of,
    record_of,
    stored_of,
)

OpenLog = Callable[[bool, bool], Log]
"""Opens the log of a partition. The arguments: whether it may create the log, and whether it fences
another process that writes it."""
ATTEMPTS = 3
"""How often an append opens its log again, if the process that wrote it was not fenced."""
T = TypeVar("T")


class _OpenLog:
    """The log since its last open, with the tables that were read from it. After a failure, all of
    it is replaced: what an append has noted here and could not write is gone with it."""

    def __init__(self, log: Log, partition: int, lock_table_bytes: int) -> None:
        self.log, self._partition = log, partition
        self.locks, self.requests, self.last = read_tables(
            log.logs, log.node, partition, lock_table_bytes
        )
        self.is_stale = False
        """It may have noted what is not in the log."""

    @property
    def mark(self) -> Mark:
        """That of the newest transaction when it was opened."""
        return Mark(self._partition, self.last, str(self.log.high_water_mark) if self.last else "")

    def demand_seen(self, checked: Sequence[tuple[str, bytes]], seen: int) -> None:
        newest_of = self.locks.newest
        for name, lock in checked:
            newest = newest_of(lock)
            if newest > seen:
                raise Conflict(name, self._partition, newest, seen)


class Partition:
    """Thread-safe. `open_log` opens its log. After a failure it is called again, and then fences no
    other process."""

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
        self._closed = False
        self._openness = Openness("stream")
        self._opened = self._open(first=True, takeover=takeover)
        self._acknowledged = self._opened.mark

    def _open(self, *, first: bool = False, takeover: bool = False) -> _OpenLog:
        log = self._open_log(first, takeover)
        try:
            return _OpenLog(log, self.number, self._lock_table_bytes)
        except BaseException:
            log.close()
            raise

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
        if seen is not None and not request:  # before it is serialised
            self._ready().demand_seen(self._checked(transaction), seen.id)
        value = packed(header, transaction, request, self._serializer)
        return self._append_value(value, transaction, seen, request)

    def append_packed(self, value: bytes, seen: Mark | None, partitions: int) -> Mark:
        """`append` of what another process has packed, for one of so many partitions. Raises also
        `InvalidSetting` and `NotReadable`: it has packed something else."""
        stored = stored_of(value)
        if partition_of(stored.header, partitions) != self.number:
            raise InvalidSetting(f"header {stored.header!r} is not of partition {self.number}")
        return self._append_value(value, stored, seen, stored.request)

    def _append_value(
        self, value: bytes, locks: Transaction | StoredTransaction, seen: Mark | None, request: str
    ) -> Mark:
        checked = self._checked(locks)
        if checked and seen is None:
            raise InvalidSetting(
                "a transaction with read or write locks needs the mark of the view that it was "
                "built from: pass mark=, or a function and marks="
            )
        written = [
            key_of(self.number, name) for name in dict.fromkeys((*locks.write, *locks.append))
        ] or [key_of(self.number, ANY_LOCK)]
        return self._tried(
            lambda opened: self._append(opened, value, checked, written, seen, request),
            repeats=bool(request),
        )

    def _checked(self, locks: Transaction | StoredTransaction) -> Sequence[tuple[str, bytes]]:
        return [(name, key_of(self.number, name)) for name in (*locks.write, *locks.read)]

    def _tried(self, work: Callable[[_OpenLog], T], *, repeats: bool) -> T:
        """The result of `work` on the log, which is opened again after a failure. `repeats`: also
        if it may have succeeded."""
        failure: ImapWalError | None = None
        for _ in range(ATTEMPTS):
            try:
                opened = self._ready()
            except (ImapWalError, OSError) as error:
                raise _reason(failure, error) from error
            try:
                return work(opened)
            except Closed as error:  # another thread opens the log again
                if self._closed:
                    raise
                failure = failure or NotAppended(f"the log failed several times: {error}")
            except OutcomeUnknown as error:
                opened.is_stale, failure = True, error
                if not repeats or isinstance(error.__cause__, Fenced):
                    raise
            except NotAppended as error:
                if opened.log.committer.failure is None:
                    raise
                opened.is_stale, failure = True, error
            except (Fenced, OtherHistory):
                raise
            except BaseException:
                opened.is_stale = True  # an interrupt: the transaction may be in the ring
                raise
        assert failure is not None
        raise failure

    def _append(
        self,
        opened: _OpenLog,
        value: bytes,
        checked: Sequence[tuple[str, bytes]],
        written: Sequence[bytes],
        seen: Mark | None,
        request: str,
    ) -> Mark:
        """`checked`: locks that must not be written since, with their keys. `written`: the keys of
        those that it writes."""
        log = opened.log
        if seen is not None and seen.position:
            log.demand(Position.parse(seen.position))
        demand_size(f"partition {self.number}", b"", value, log.settings.max_value_bytes)
        now = log.clock.now_ms()
        id = 0

        def failed() -> None:
            if id:  # it is noted in the tables
                opened.is_stale = True

        def choose() -> list[DataEntry]:
            nonlocal id
            if opened.is_stale:
                raise Closed("the log is being opened again")
            if known := opened.requests.get(request, now):
                raise _Repeated(known)
            if seen is not None:
                if seen.id > opened.last:
                    raise OtherHistory(str(log), f"of transaction {seen.id}", "")
                opened.demand_seen(checked, seen.id)
            id = opened.last + 1
            number = msgpack.packb(id)
            entries = [
                entry_of(TRANSACTIONS, key_of(self.number, id), value, now),
                *(entry_of(LOCKS, lock, number, now) for lock in written),
            ]
            if request:
                until = now + KEPT_S * 1000
                key = key_of(self.number, request)
                entries.append(entry_of(REQUESTS, key, number, now, until))
                opened.requests.note(request, Known(id, until))
            for lock in written:
                opened.locks.write(lock, id)
            opened.last = id
            return entries

        try:
            position = log.append_chosen(choose, failed)
        except _Repeated as repeated:
            return self._durable(opened, repeated.id)
        return self._reached(Mark(self.number, id, str(position)))

    def _reached(self, mark: Mark) -> Mark:
        with self._mutex:
            self._acknowledged = max(self._acknowledged, mark)
            self._changed.notify_all()
        return mark

    def _ready(self) -> _OpenLog:
        """The log; after a failure, it is opened again."""
        self._openness.check_process()
        with self._mutex:
            if self._closed:
                raise Closed("this stream was closed; open it again")
            opened = self._opened
            failure = opened.log.committer.failure
            if isinstance(failure, Fenced):
                raise failure
            if opened.is_stale or failure is not None:
                opened.is_stale = True
                with suppress(ImapWalError):
                    opened.log.close()
                self._opened = self._open()
                self._acknowledged = max(self._acknowledged, self._opened.mark)
                self._changed.notify_all()
            return self._opened

    # ---- reading ----

    @property
    def mark(self) -> Mark:
        """The newest acknowledged transaction."""
        return self._acknowledged

    def records(self, after: Mark) -> Iterator[StreamRecord | None]:
        """The acknowledged transactions after a mark, and None whenever there is no further one
        now. Raises the errors of `follow`, and `Closed`."""
        for logged in self.logged(after):
            yield None if logged is None else record_of(logged, self._serializer)

    def logged(self, after: Mark) -> Iterator[Logged | None]:
        """`records`, not decoded."""
        last: Logged | None = None
        while True:
            if last is not None:
                after = last.mark
            opened = self._ready()
            try:
                reader = opened.log.reader(TRANSACTIONS)
            except Closed:
                continue  # it is being opened again
            for logged in follow(reader, after, lambda: self.mark.id):
                last = logged or last
                yield logged
                if opened.is_stale or opened is not self._opened:
                    break  # it is opened again

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def replaced(self) -> Fenced | None:
        """Why this process can write the partition no more: another one does."""
        failure = self._opened.log.committer.failure
        return failure if isinstance(failure, Fenced) else None

    @property
    def lease_age_s(self) -> float:
        """Seconds since the lock of the log was taken or renewed, if it is a lease."""
        return self._opened.log.committer.lease_age_s or 0.0

    def prove(self) -> None:
        """Raises `Fenced` if another process has the log, and `StorageUnavailable` if that cannot
        be known now."""
        committer = self._opened.log.committer
        with storage_errors("whether this process still has the log is not known"):
            committer.renew_lease()
            committer.look()
        if (failure := self.replaced) is not None:
            raise failure

    @property
    def limits(self) -> tuple[int, int]:
        """Bytes that may wait for a commit, and those of the largest value."""
        settings = self._opened.log.settings
        return settings.ring_bytes, settings.max_value_bytes

    def has(self, mark: Mark) -> bool:
        """Whether the log has the transaction of a mark, or cannot know it any more."""
        if mark.id > self.mark.id:
            return False
        return not mark.position or self._opened.log.has(Position.parse(mark.position))

    def wait(self, after: int, seconds: float, stop: threading.Event) -> None:
        """Wait until there is an acknowledged transaction after this id, or `stop` is set before
        `wake`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._acknowledged.id > after or stop.is_set(), seconds
            )

    def wake(self) -> None:
        """End the waits that are to stop."""
        with self._changed:
            self._changed.notify_all()

    def archive(self) -> int:
        return self._tried(lambda opened: opened.log.archive(), repeats=True)

    def known(self, request: str) -> Mark | None:
        """The mark of a request that is in the log already. Raises the errors of `append`."""

        def look(opened: _OpenLog) -> Mark | None:
            id = opened.requests.get(request, opened.log.clock.now_ms())
            return self._durable(opened, id) if id else None

        return self._tried(look, repeats=True)

    def _durable(self, opened: _OpenLog, id: int) -> Mark:
        """The mark of a transaction whose commit may still be under way."""
        opened.log.sync()
        # The position of an old transaction is not kept: a reader finds it again.
        mark = self._acknowledged
        return mark if mark.id == id else Mark(self.number, id)

    def close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._opened.log.close()


class _Repeated(Exception):  # internal, never raised to callers
    """The request is in the log already."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.id = id


def _reason(failure: ImapWalError | None, error: Exception) -> ImapWalError:
    """Why an append ends if its log cannot be opened again."""
    if failure is not None:
        return failure
    if isinstance(error, ImapWalError):
        return error
    return StorageUnavailable(str(error))
