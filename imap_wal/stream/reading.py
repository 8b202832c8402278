"""Reads the partitions of a stream: the tables of locks and requests, and the transactions in the
order of their ids, also in processes that do not write the stream.

    tables     the rows of `locks` and `requests`, of a snapshot and of the log after it, in any
               order: the highest id counts
    follow     the log from the mark on ─▶ ids without a gap; a rewrite and a prune may have moved
               transactions into a snapshot ─▶ from there
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from imap_wal.collector import collecting_rarely
from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, MAP, TIMESTAMP_MS, VALUE, Row, Upserts
from imap_wal.errors import Closed, NoSuchLog, NotReadable, PositionGone, ReadOnly
from imap_wal.format import START, Position
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import Scope
from imap_wal.read.log_reader import LogReader, storage_errors
from imap_wal.serializer import Serializer
from imap_wal.stream.locks import LockTable
from imap_wal.stream.requests import Known, RequestWindow
from imap_wal.stream.transaction import (
    LOCKS,
    REQUESTS,
    TRANSACTIONS,
    Header,
    Logged,
    Mark,
    StreamRecord,
    Transaction,
    id_in,
    id_of,
    ids_in,
    key_of,
    keys_of,
    name_in,
    record_of,
)
from storage_backends import NotFound

POLL_S = 0.1
"""How often a process that does not write the stream looks for new transactions."""


class ReadPartition:
    """One partition, which another process may write. Thread-safe."""

    def __init__(
        self, number: int, logs: ClusterLog, node: str, serializer: Serializer[Any, Any]
    ) -> None:
        self.number, self.logs, self.node = number, logs, node
        self._serializer = serializer
        self._ended = threading.Event()
        self._newest: Logged | None = None

    @property
    def mark(self) -> Mark:
        """The newest transaction that was read."""
        return Mark(self.number) if self._newest is None else self._newest.mark

    def records(self, after: Mark) -> Iterator[StreamRecord | None]:
        """The transactions after a mark, and None whenever there is no further one now. The newest
        one may not be acknowledged yet. Raises the errors of `follow`, and `Closed`."""
        while True:
            reader = LogReader.of(self.logs, self.node, only=TRANSACTIONS)
            try:
                for logged in follow(reader, after):
                    if self._ended.is_set():
                        raise Closed("this stream was closed; open it again")
                    if logged is None:
                        yield None
                        continue
                    if self._newest is None or logged.id > self._newest.id:
                        self._newest = logged  # its mark is made when it is asked for
                    yield record_of(logged, self._serializer)
            except NoSuchLog:
                if after.id or self._newest is not None:
                    raise
                yield None  # its writer is just creating it

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def wait(self, after: int, seconds: float, stop: threading.Event) -> None:
        """Wait until there may be a transaction after this id, or `stop` is set."""
        stop.wait(min(seconds, POLL_S))

    def wake(self) -> None:
        """A wait ends soon by itself."""

    def append(
        self, header: Header, transaction: Transaction, seen: Mark | None, request: str = ""
    ) -> NoReturn:
        raise ReadOnly("the stream was opened with read_only=True; nothing was appended")

    def known(self, request: str) -> NoReturn:
        raise ReadOnly("the stream was opened with read_only=True; nothing was appended")

    def archive(self) -> NoReturn:
        raise ReadOnly("the stream was opened with read_only=True")

    def close(self) -> None:
        self._ended.set()


def read_tables(
    logs: ClusterLog, node: str, partition: int, bytes_max: int
) -> tuple[LockTable, RequestWindow, int]:
    """The locks and requests of a partition, and the id of its newest transaction; 0: it has none.

    Raises:
        NotReadable: a row is not of a stream.
        StorageUnavailable: the storage failed. The errors of `ClusterLog.changes`.
    """

    scope = Scope((node,), span=keys_of(partition))
    with storage_errors(f"reading partition {partition}"), collecting_rarely():
        for attempt in range(ATTEMPTS):
            locks, requests, newest = LockTable(bytes_max), RequestWindow(), 0
            try:
                for changes in logs.changes((LOCKS, REQUESTS), scope):
                    newest = max(newest, _note(changes.rows, locks, requests))
                break
            except NotFound as error:  # a prune removed files meanwhile
                if attempt == ATTEMPTS - 1:
                    raise logs.lost(error) from error
    requests.settle()
    return locks, requests, newest


def _note(rows: Sequence[Row], locks: LockTable, requests: RequestWindow) -> int:
    """The highest id in the rows."""
    of_locks: Sequence[Row] = rows
    others: Sequence[Row] = ()
    if not (isinstance(rows, Upserts) and rows and rows[0][MAP] == LOCKS):
        of_locks = [row for row in rows if row[MAP] == LOCKS and not row[DELETED]]
        others = [row for row in rows if row[MAP] != LOCKS and not row[DELETED]]
    ids = ids_in([row[VALUE] or b"" for row in of_locks])
    locks.write_all([row[KEY] for row in of_locks], ids)
    newest = max(ids, default=0)
    for row in others:
        id = id_in(row[VALUE] or b"")
        requests.note(str(name_in(row[KEY])), Known(id, row[EXPIRES_AT_MS]))
        newest = max(newest, id)
    return newest


def follow(
    reader: LogReader,
    after: Mark,
    newest: Callable[[], int] = lambda: 0,
) -> Iterator[Logged | None]:
    """The transactions after a mark in the order of their ids, and None whenever there is no
    further one now. `reader`: of the map `TRANSACTIONS`. `newest`: an id that it must have found
    by then.

    Raises:
        PositionGone: transactions after the mark were removed. `OtherHistory`: the log was restored
            or replaced since the mark was stored.
        LogError: a file is damaged.
        NotReadable: an entry is not a transaction.
    """
    partition, last, position = after
    begin = at = Position.parse(position) if position else START
    looks, expected = 0, newest()
    for logged in reader.follow(begin.after() if position else begin):
        if logged is None:
            if reader.looks > looks:  # files may have been removed since
                looks = reader.looks
                for record in _rewritten(reader, partition, last, at):
                    last = record.id
                    yield record
            if last < expected:
                raise _gone(partition, last + 1, "")
            expected = newest()
            yield None
            continue
        entry, at = logged.entry, logged.position
        id = id_of(entry.key)
        if entry.value is None:
            raise NotReadable("this is not a transaction of a stream", entry.key)
        if id <= last:  # the mark had no position, or the snapshot had it
            continue
        if id > last + 1:
            for record in _rewritten(reader, partition, last, START):
                if record.id < id:
                    last = record.id
                    yield record
            if id > last + 1:
                raise _gone(partition, last + 1, f"that of transaction {id}")
        yield Logged(partition, id, entry.value, entry.timestamp_ms, at)
        last = id


def _gone(partition: int, id: int, oldest: str) -> PositionGone:
    return PositionGone(f"transaction {id} of partition {partition}", oldest or "not known")


def _rewritten(reader: LogReader, partition: int, last: int, at: Position) -> Iterator[Logged]:
    """The transactions after an id that are in the snapshot: a rewrite and a prune may have removed
    them from the log. None if the snapshot has only what is at or before the position `at`."""
    logs, node = reader.logs, reader.node
    with storage_errors(f"reading partition {partition}"):
        for attempt in range(ATTEMPTS):
            state = logs.state()
            snapshot = state.manifest.snapshots.get(TRANSACTIONS)
            mark = None if snapshot is None else snapshot.marks.get(node)
            if mark is None or mark.position <= at:
                return
            place = state.marked(node, mark.position)
            span = key_of(partition, last + 1), keys_of(partition)[1]
            scope = Scope((node,), until={}, span=span)
            try:
                for changes in logs.changes((TRANSACTIONS,), scope, state=state):
                    for row in changes.rows:
                        if row[VALUE] is not None and id_of(row[KEY]) == last + 1:
                            last += 1
                            yield Logged(partition, last, row[VALUE], row[TIMESTAMP_MS], place)
                return
            except NotFound as error:
                if attempt == ATTEMPTS - 1:
                    raise logs.lost(error) from error
