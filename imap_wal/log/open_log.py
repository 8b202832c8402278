"""A log open for writing: entries are appended, and read back once they are acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Self

from imap_wal.clock import Clock
from imap_wal.entry import RAW, DataEntry, is_clear, pack
from imap_wal.errors import Fenced, InvalidSetting, NotSerializable, TooLarge
from imap_wal.forked import Openness
from imap_wal.format import CLEARS, END, ENTRIES, START, Position
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import Bound, LogReader, Record, storage_errors
from imap_wal.retention.log_writer import LogWriter
from imap_wal.rules.valid import demand_valid
from imap_wal.settings import Settings
from imap_wal.write.committer import CommitStatistics
from imap_wal.write.recovery import RecoveryReport
from imap_wal.write.ring import CommitRequest
from storage_backends import StorageError


class Change(NamedTuple):
    """One change of one key. `value` None deletes the key. `expires_at_ms`: Unix time in
    milliseconds; 0: never."""

    key: bytes
    value: bytes | None
    expires_at_ms: int = 0


class Log:
    """A log open for writing, from `create` or `open`. It is the only writer of its log. It is
    thread-safe. As a context manager, it closes itself at the end of the block.

    After `close`, all methods except `close` raise `Closed`. In a forked child, all raise
    `Fenced`."""

    def __init__(self, url: str, writer: LogWriter, incarnation: int) -> None:
        self.url, self._incarnation = url, incarnation
        self._writer, self._log, self.committer = writer, writer.log, writer.committer
        self._session = self._log.new_session()
        self._request = 0
        self._order_lock = threading.Lock()
        self._acknowledged = _Acknowledged(self, self._log.end)
        self._openness = Openness("log")
        writer.start()

    # ---- writing ----

    def append(
        self,
        map: str,
        *changes: Change | tuple[bytes, bytes | None] | tuple[bytes, bytes | None, int],
    ) -> Position:
        """Append changes of one map as one commit. Returns when all of them are as durable as the
        `durability` setting demands.

        Args:
            map: name of the map, 1 to 1024 bytes of UTF-8.
            changes: one or more, each a `Change` or a tuple (key, value) or
                (key, value, expires_at_ms). Key and value together take at most `max_value_bytes`.

        Returns:
            The position of the first change. The others follow it: a reader that begins there
            gets all of them.

        Raises:
            NotAppended: no change is in the log (`NotSerializable` and `TooLarge` are subclasses).
            OutcomeUnknown: a write or sync failed; the changes may be in the log.
            Fenced: another process took over the log; no change is in the log.
            InvalidSetting: there is no change, or the name of the map is not valid.
            Closed: this log was closed.
        """
        now = self.clock.now_ms()
        return self.append_entries(_entry(map, Change(*change), now) for change in changes)

    def append_entries(self, entries: Iterable[DataEntry]) -> Position:
        """Append entries of any maps, including clears, that were read from another log. Their
        classes, times and partitions are kept; their order is replaced by this log's. Returns and
        raises the same as `append`."""
        self._check_open()
        appended = list(entries)
        if not appended:
            raise InvalidSetting("an append takes at least one change")
        for entry in appended:
            self._check(entry)
        return self.append_chosen(lambda: appended)

    def append_chosen(
        self,
        choose: Callable[[], Sequence[DataEntry]],
        failed: Callable[[], object] = lambda: None,
    ) -> Position:
        """For `imap_wal.stream`: append the entries that `choose` returns, which must be valid, as
        one commit. It is called under the lock that gives all appends their order, and `failed`
        under the same lock if the entries did not get their place. If `choose` raises an error,
        nothing is appended. Returns and raises the same as `append`."""
        self._check_open()
        incarnation, session = self._incarnation, self._session
        with self._order_lock:
            try:
                entries = choose()
                request = self._request
                rows = [
                    pack(entry._replace(order=(incarnation, 0, session, request + number)))
                    for number, entry in enumerate(entries, 1)
                ]
                batch = CommitRequest(
                    [b"".join(rows)],
                    len(rows),
                    kind=CLEARS if any(map(is_clear, entries)) else ENTRIES,
                    session=session,
                    request=request + len(rows),
                )
                self._request = batch.request
                batch.apply = partial(self._acknowledged.moved, batch)
                self.committer.submit(batch)
            except BaseException:
                failed()
                raise
        self.committer.wait(batch)
        batch.apply = None  # breaks a reference cycle
        return self._log.marked(batch.result())

    def sync(self) -> None:
        """Durability barrier: when this returns, all earlier appends are synced.

        Raises:
            NotAppended: the sync failed.
            Fenced: another process took over the log.
            Closed: this log was closed.
        """
        self._check_open()
        self.committer.sync()

    def rotate(self) -> None:
        """Seal the current segment; the next append begins a new one. Sealed segments can be
        archived and removed.

        Raises:
            NotAppended: the storage failed, now or earlier.
            Fenced: another process took over the log.
            Closed: this log was closed.
        """
        self._check_open()
        self.committer.rotate()

    def archive(self) -> int:
        """Seal the current segment, turn all sealed segments into compressed archives, and remove
        covered files by `wal_ttl_seconds` and `wal_size_limit_mb`. Readers are not affected.

        Returns:
            The number of archived entries.

        Raises:
            NotAppended: the storage failed while the segment was sealed.
            StorageUnavailable: the storage or the local temporary folder failed.
            LogError: a sealed segment is damaged.
            Fenced: another process took over the log.
            LostRace: other processes changed the log's manifest several times meanwhile.
            Closed: this log was closed.
        """
        self._check_open()
        moved = self._writer.archive().records
        self._writer.remove_covered()
        return moved

    def shrink(self, upto: Position | str | None = None, *, uncovered: bool = False) -> Position:
        """Remove whole archives and sealed segments that have no entry above a position.

        Args:
            upto: the position, or its text; None: all archives and sealed segments.
            uncovered: also remove files that no snapshot covers; their entries are lost.
                Otherwise only files that a snapshot of `imap-wal rewrite` covers are removed.

        Returns:
            The oldest position that can still be read.

        Raises:
            ValueError: `upto` is text that is not a position.
            OtherHistory: the log was replaced by a copy since `upto` was read.
            StorageUnavailable: the storage failed.
            LogError: a file is damaged.
            LostRace: another process replaced the log.
            Closed: this log was closed.
        """
        self._check_open()
        position = Position.parse(upto) if isinstance(upto, str) else upto
        limit = END if position is None else self._log.demand(position)
        with storage_errors(f"shrinking {self}"):
            removed = self._writer.shrink(limit, uncovered=uncovered)
        return self._log.marked(removed).after() if removed > START else START

    # ---- reading ----

    def read(self, start: Position | str | None = None) -> Iterator[Record]:
        """All acknowledged records from the position `start` on. Arguments and errors as for
        `LogReader.read`, and `Closed`."""
        return self.reader().read(start)

    def tail(
        self,
        start: Position | str | None = None,
        poll_s: float = 0.1,
        stop: threading.Event | None = None,
    ) -> Iterator[Record]:
        """As `read`, and then every later record as soon as it is acknowledged, until this log is
        closed or `stop` is set. Arguments and errors as for `LogReader.tail`, and `Closed`."""
        return self.reader().tail(start, poll_s, stop)

    def reader(self, only: str = "") -> LogReader:
        """A reader of the acknowledged records. `only`: as for `LogReader`. Raises `Closed`."""
        self._check_open()
        node, bound = self._log.identity.node, self._acknowledged
        return LogReader.of(self.logs, node, self.url, bound=bound, only=only)

    def demand(self, position: Position) -> None:
        """Raises `OtherHistory` unless the position is of the history of this log."""
        self._log.demand(position)

    def has(self, position: Position) -> bool:
        """Whether the position is of the history of this log, or of an epoch that is older than all
        that the log knows."""
        return self._log.has(position)

    @property
    def logs(self) -> ClusterLog:
        """All logs of the cluster."""
        who = self._log.identity
        return ClusterLog(self._log.context.context, who.namespace, who.cluster)

    @property
    def node(self) -> str:
        """The name of the log in its cluster."""
        return self._log.identity.node

    @property
    def settings(self) -> Settings:
        return self._log.settings

    @property
    def clock(self) -> Clock:
        return self._log.clock

    @property
    def high_water_mark(self) -> Position:
        """The position of the last acknowledged entry. Raises `Fenced` in a forked child."""
        self._openness.check_process()
        return self._log.marked(self._acknowledged.position)

    @property
    def recovery(self) -> RecoveryReport:
        """The result of the open: what it scanned, cut off and gave up."""
        return self._log.recovery

    @property
    def statistics(self) -> CommitStatistics:
        """Counters since the log was opened. Raises `Fenced` in a forked child."""
        self._openness.check_process()
        return self.committer.statistics

    # ---- closing ----

    def close(self) -> None:
        """Commit all waiting entries, write the clean-shutdown frame, seal the segment, and release
        the lock. Safe to call twice.

        Raises:
            StorageUnavailable: the storage failed; the log is closed nevertheless.
        """
        self._openness.check_process()
        if self.closed:
            return
        self._openness.end()
        self._writer.stop()
        try:
            with storage_errors(f"closing {self}"):
                self.committer.close()
        finally:
            self._acknowledged.end()
            self._log.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self._log)

    @property
    def closed(self) -> bool:
        """Whether `close` was called. Also in a forked child."""
        return self._openness.closed

    def _check_open(self) -> None:
        self._openness.check()

    def _check(self, entry: DataEntry) -> None:
        takes = is_clear(entry) or type(entry.key) is bytes
        if not takes or not (entry.value is None or type(entry.value) is bytes):
            raise NotSerializable("the key of an entry must be bytes, and its value bytes or None")
        try:
            demand_valid(entry._replace(order=(0, 0, 0, 0)), self._log.settings.max_value_bytes)
        except (TooLarge, InvalidSetting):
            raise
        except ValueError as error:
            raise NotSerializable(
                f"map {entry.map!r}: an entry cannot be appended: {error}"
            ) from error


class _Acknowledged(Bound):
    """Limits this log's own readers to acknowledged entries."""

    def __init__(self, log: Log, position: Position) -> None:
        self.position = position
        self._log = log
        self._changed = threading.Condition()
        self._waiting = 0
        self._ended = self._fenced = False

    def moved(self, batch: CommitRequest) -> None:
        """Called when the committer acknowledges this request."""
        assert batch.position is not None
        self.position = batch.position._replace(index=batch.position.index + batch.count - 1)
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def limit(self) -> Position | None:
        # After a takeover, this process knows no more than any other process.
        return (
            None
            if self._fenced or isinstance(self._log.committer.failure, Fenced)
            else self.position
        )

    def over(self) -> bool:
        return self._ended

    def end(self) -> None:
        """The log is closed: tails end after the last acknowledged entry."""
        self._ended = True
        with self._changed:
            self._changed.notify_all()

    def wait(self, limit: Position | None, seconds: float, stop: threading.Event) -> None:
        self._log._openness.check_process()
        if limit is None:
            super().wait(limit, seconds, stop)
            return
        with self._changed:
            self._waiting += 1  # before the check: `moved` must see a waiter
            try:
                if self.position != limit or self._ended or self._changed.wait(seconds):
                    return
            finally:
                self._waiting -= 1
        with suppress(StorageError):
            try:
                self._log._log.permit.check()  # a writer with nothing to write would not notice
            except Fenced:
                self._fenced = True


def _entry(map: str, change: Change, now_ms: int) -> DataEntry:
    return DataEntry(
        map,
        change.key,
        RAW,
        change.value,
        RAW,
        change.value is None,
        now_ms,
        change.expires_at_ms,
        0,
        (0, 0, 0, 0),
    )
