"""Reads the partitions of a stream: the tables of locks and requests, and the transactions in the
order of their ids, also in processes that do not write the stream.

    tables     the rows of `locks` and `requests`, of a snapshot and of the log after it, in any
               order: the highest id counts
    follow     the log from the mark on ─▶ ids without a gap; a rewrite and a prune may have moved
               transactions into a snapshot ─▶ from there
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import msgpack

from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, MAP, TIMESTAMP_MS, VALUE, Row
from imap_wal.errors import Closed, NotReadable, PositionGone, ReadOnly
from imap_wal.format import START, Position
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import Scope
from imap_wal.read.log_reader import LogReader, storage_errors
from imap_wal.serializer import Serializer
from imap_wal.stream.locks import LockTable
from imap_wal.stream.requests import Known, RequestWindow
from imap_wal.stream.transaction import (
    ANY_LOCK,
    LOCKS,
    REQUESTS,
    TRANSACTIONS,
    Header,
    Mark,
    StreamRecord,
    Transaction,
    key_of,
    name_in,
    record_of,
)

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
        self._newest = Mark(number)

    @property
    def mark(self) -> Mark:
        """The newest transaction that was read."""
        return self._newest

    def records(self, after: Mark) -> Iterator[StreamRecord | None]:
        """The transactions after a mark, and None whenever there is no further one now. The newest
        one may not be acknowledged yet. Raises the errors of `follow`, and `Closed`."""
        for record in follow(
            LogReader.of(self.logs, self.node, only=TRANSACTIONS), after, self._serializer
        ):
            if self._ended.is_set():
                raise Closed("this stream was closed; open it again")
            if record is not None and record.id > self._newest.id:
                self._newest = record.mark
            yield record

    def wait(self, after: int, seconds: float) -> bool:
        """Wait until there may be a transaction after this id."""
        return not self._ended.wait(min(seconds, POLL_S))

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
    Raises the errors of `ClusterLog.changes`."""
    locks, requests, newest = LockTable(bytes_max), RequestWindow(), 0
    begin = key_of(partition, ANY_LOCK)[:-1]
    with storage_errors(f"reading partition {partition}"):
        # Rows of a snapshot belong to no node; rows of the log do.
        for scope in (Scope(until={}), Scope((node,), snapshots=False)):
            for changes in logs.changes((LOCKS, REQUESTS), scope):
                rows = [row for row in changes.rows if row[KEY].startswith(begin)]
                newest = max(newest, _note(rows, locks, requests))
    requests.settle()
    return locks, requests, newest


def _note(rows: list[Row], locks: LockTable, requests: RequestWindow) -> int:
    newest, unpack = 0, msgpack.unpackb
    for row in rows:
        if row[DELETED]:
            continue
        id = unpack(row[VALUE])
        if row[MAP] == LOCKS:
            locks.write(row[KEY], id)
        else:
            requests.note(str(name_in(row[KEY])), Known(id, row[EXPIRES_AT_MS]))
        newest = max(newest, id)
    return newest


def follow(
    reader: LogReader, after: Mark, serializer: Serializer[Any, Any]
) -> Iterator[StreamRecord | None]:
    """The transactions after a mark in the order of their ids, and None whenever there is no
    further one now. `reader`: of the map `TRANSACTIONS`.

    Raises:
        PositionGone: transactions after the mark were removed. `OtherHistory`: the log was restored
            or replaced since the mark was stored.
        LogError: a file is damaged.
    """
    partition, last, position = after
    looks = 0
    for found in reader.follow(Position.parse(position).after() if position else START):
        if found is None:
            if reader.looks > looks:  # files may have been removed since
                looks = reader.looks
                for record in _rewritten(reader, partition, last, serializer):
                    last = record.id
                    yield record
            yield None
            continue
        entry = found.entry
        id = name_in(entry.key)
        if type(id) is not int or entry.value is None:
            raise NotReadable("this is not a transaction of a stream", entry.key)
        if id <= last:  # the mark had no position, or the snapshot had it
            continue
        if id > last + 1:
            for record in _rewritten(reader, partition, last, serializer):
                if record.id < id:
                    last = record.id
                    yield record
            if id > last + 1:
                missing = f"transaction {last + 1} of partition {partition}"
                raise PositionGone(missing, f"that of transaction {id}")
        place = str(found.position)
        yield record_of(entry.key, entry.value, entry.timestamp_ms, place, serializer)
        last = id


def _rewritten(
    reader: LogReader, partition: int, last: int, serializer: Serializer[Any, Any]
) -> Iterator[StreamRecord]:
    """The transactions after an id that are in the snapshot: a rewrite and a prune may have removed
    them from the log."""
    logs = reader.logs
    state = logs.state()
    snapshot = state.manifest.snapshots.get(TRANSACTIONS)
    mark = None if snapshot is None else snapshot.marks.get(reader.node)
    if mark is None:
        return
    position = str(state.marked(reader.node, mark.position))
    begin = key_of(partition, ANY_LOCK)[:-1]
    for changes in logs.changes((TRANSACTIONS,), Scope(until={}), state=state):
        for row in changes.rows:
            key, value, time_ms = row[KEY], row[VALUE], row[TIMESTAMP_MS]
            if value is not None and key.startswith(begin) and name_in(key) == last + 1:
                last += 1
                yield record_of(key, value, time_ms, position, serializer)
