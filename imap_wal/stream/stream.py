"""An open stream: submit transactions, and apply them by consumers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from imap_wal.clock import SystemClock
from imap_wal.errors import Closed, Conflict, InvalidSetting
from imap_wal.stream.consumer import (
    BATCH,
    RETRIES,
    Consumer,
    ConsumerStatus,
    OnError,
    ReadablePartition,
    Retries,
    Share,
)
from imap_wal.stream.marks import Marks
from imap_wal.stream.partition import Partition
from imap_wal.stream.progress import ProgressTable, StreamProgress
from imap_wal.stream.reading import ReadPartition
from imap_wal.stream.transaction import (
    Header,
    Mark,
    StreamRecord,
    Transaction,
    check_header,
    check_name,
    partition_of,
)
from imap_wal.write.opening import process_text

F = TypeVar("F", bound=Callable[..., object])


class AnyPartition(ReadablePartition, Protocol):
    """A partition that this process writes or reads, or that another process serves."""

    def append(
        self, header: Header, transaction: Transaction, seen: Mark | None, request: str = ""
    ) -> Mark: ...

    def known(self, request: str) -> Mark | None: ...

    def archive(self) -> int: ...

    def close(self) -> None: ...


WAIT_S = 0.5
"""How long a submit waits for a view before it tries again."""


class Stream:
    """Thread-safe. As a context manager, it closes itself at the end of the block."""

    def __init__(
        self,
        url: str,
        partitions: Sequence[AnyPartition],
        at_end: Callable[[], object] = lambda: None,
        share: Share | None = None,
    ) -> None:
        """`at_end`: called by `close`. `share`: with the other processes of the stream."""
        self.url, self._partitions, self._at_end = url, partitions, at_end
        self._share = share
        self._consumers: dict[str, Consumer] = {}
        self._mutex = threading.Lock()
        self._closed = False

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self._partitions)

    def partition_of(self, header: Header) -> int:
        """The partition of a header. Raises `NotSerializable`."""
        return partition_of(check_header(header), len(self._partitions))

    # ---- writing ----

    def submit(
        self,
        header: Header,
        transaction: Transaction | Callable[[Any], Transaction | None],
        *,
        marks: str = "",
        mark: Mark | None = None,
        request: str = "",
        timeout_s: float = 30.0,
    ) -> Mark | None:
        """Append a transaction to the partition of a header. Returns its mark when it is durable.

        Args:
            header: text or an int, such as the number of an account.
            transaction: the transaction, or a function that builds it from a view, and returns None
                if there is nothing to do. The function is called again with a newer view if a lock
                was written meanwhile, or if it returns None and the view lacks a transaction that
                was acknowledged before this call. So it must have no side effects.
            marks: the name of the consumer whose view the function gets.
            mark: of the view that a given transaction with `read` or `write` locks was built from.
            request: a name that its author gives to no other request, such as "order/4711". A
                request of the last day that is in the log is not appended again: its mark is
                returned. At most 100,000 are known for each partition.
            timeout_s: how long a function waits for newer views.

        Raises:
            Conflict: a newer transaction wrote a lock; nothing was appended.
            NotSerializable, TooLarge: the data cannot be stored; nothing was appended.
            OtherHistory: the log does not have what the view has; nothing was appended.
            NotAppended: nothing was appended.
            OutcomeUnknown: it may be in the log. With `request`, submit it again.
            Fenced: another process writes this partition; with `connect`, or the log lacks what it
                acknowledged to this process.
            StorageUnavailable: with `connect`: no process answered; nothing was appended.
            ReadOnly: the stream was opened with `read_only=True`.
            InvalidSetting: an argument is missing, or there is no such consumer.
            Closed: the stream was closed.
        """
        header = check_header(header)
        partition = self._partitions[partition_of(header, len(self._partitions))]
        if request:
            request = check_name(request, "a request")
        if mark is not None:
            _demand_mark(mark, partition.number)
        if isinstance(transaction, Transaction):
            return partition.append(header, transaction, mark, request)
        function: Any = transaction
        if not callable(function):
            kind = type(transaction).__name__
            raise InvalidSetting(f"a transaction is a Transaction or a function, not a {kind}")
        if not marks:
            raise InvalidSetting("a function needs marks=, the name of the consumer of its view")
        # Before the function: in its view, the transaction may have been applied already.
        if request and (known := partition.known(request)) is not None:
            return known
        consumer, end = self._consumer(marks), time.monotonic() + timeout_s
        acknowledged = partition.mark
        while True:
            with consumer.marks.view(consumer.name, partition.number) as view:
                seen = view.mark
                built: Any = function(view)
            if isinstance(built, Transaction):
                try:
                    return partition.append(header, built, seen, request)
                except Conflict as conflict:
                    left = end - time.monotonic()
                    if left <= 0:
                        raise
                    # Not for long: the transaction that it has met may fail.
                    consumer.wait(Mark(partition.number, conflict.newest), min(left, WAIT_S))
            elif built is not None:
                kind = type(built).__name__
                raise InvalidSetting(f"the function returned a {kind}, not a Transaction or None")
            elif seen.id >= acknowledged.id or not consumer.wait(
                acknowledged, end - time.monotonic()
            ):
                return None

    # ---- reading ----

    def mark(self, partition: int = 0) -> Mark:
        """The newest transaction of a partition; with `read_only`, the newest that was read."""
        return self._partition(partition).mark

    def read(self, partition: int = 0, after: Mark | None = None) -> Iterator[StreamRecord]:
        """The transactions of a partition in the order of their ids, up to the newest.

        Args:
            partition: its number.
            after: the mark after which to begin; None: at the first transaction.

        Raises:
            InvalidSetting: there is no such partition, or the mark is of another one.
            PositionGone: some were removed. `OtherHistory`: the log was restored or replaced since
                the mark was stored.
            LogError: the log is damaged.
            StorageUnavailable: the storage failed.
        """
        source = self._partition(partition)
        if after is not None:
            _demand_mark(after, partition)
        yield from iter(source.records(after or Mark(partition)).__next__, None)

    def reading(self, partition: int) -> ReadPartition:
        """A partition of a stream that was opened with `read_only`."""
        source = self._partition(partition)
        if not isinstance(source, ReadPartition):
            raise InvalidSetting("this stream was not opened with read_only=True")
        return source

    @property
    def writing(self) -> Sequence[Partition]:
        """The partitions, if this process writes them."""
        return [partition for partition in self._partitions if isinstance(partition, Partition)]

    def consumer(
        self,
        name: str,
        *,
        marks: Marks,
        on_error: OnError | None = None,
        retries: Retries = RETRIES,
        batch: int = BATCH,
        shared: bool = False,
    ) -> Callable[[F], F]:
        """A decorator: the function is called for each transaction of the partitions that this
        process applies, in the order of their ids, from the stored mark on, until the stream is
        closed. Each partition has a thread.

        Args:
            name: of the consumer, under which its marks are stored.
            marks: `SqlMarks`, `MapMarks` or `FileMarks`; they say what the function gets.
            on_error: called with a transaction that failed and its error, after all `retries`: True
                passes over it. Otherwise the consumer stops with the error.
            retries: how often a transaction that failed is applied again.
            batch: how many transactions share a commit.
            shared: with `connect`, the processes that run this consumer share the partitions: each
                is applied by one of them. Their marks must be in one database or store.

        Raises:
            InvalidSetting: an argument is not valid, or there is a consumer of this name.
            Closed: the stream was closed.
        """
        check_consumer(name)
        if not all(hasattr(marks, method) for method in ("load", "apply", "view")):
            raise InvalidSetting(f"marks is {marks!r}; it takes SqlMarks, MapMarks or FileMarks")
        if shared and self._share is None:
            raise InvalidSetting("shared=True is for a stream of imap_wal.stream.connect")

        def start(function: F) -> F:
            with self._mutex:
                if self._closed:
                    raise Closed("this stream was closed; open it again")
                if name in self._consumers:
                    raise InvalidSetting(f"there is a consumer {name!r} already")
                self._consumers[name] = Consumer(
                    name,
                    self._partitions,
                    marks,
                    function,
                    on_error,
                    retries,
                    batch,
                    self._share,
                    shared=shared,
                )
            return function

        return start

    @property
    def consumers(self) -> Mapping[str, ConsumerStatus]:
        """The progress of each consumer that this process runs."""
        return {name: consumer.status for name, consumer in list(self._consumers.items())}

    def progress(self) -> StreamProgress:
        """How far the consumers are in each partition. With `connect`, those of all processes, as
        they were up to a second ago; otherwise those of this process. With `read_only`, the newest
        transactions are those that this process has read.

        Raises:
            StorageUnavailable: no process answered. `Closed`: the stream was closed.
        """
        if self._share is not None:
            return self._share.progress()
        if self._closed:
            raise Closed("this stream was closed; open it again")
        here, progress = process_text(), ProgressTable(len(self._partitions), SystemClock())
        for name, consumer in list(self._consumers.items()):
            progress.note(name, b"", here, consumer.applied_now(), consumer.failure_text)
        newest = [partition.mark.id for partition in self._partitions]
        return StreamProgress(here, newest, progress.consumers(newest))

    def wait(self, consumer: str, mark: Mark, timeout_s: float = 30.0) -> bool:
        """Wait until a transaction is applied by a consumer that this process runs, for `timeout_s`
        at most; with `shared=True`, by any process. Returns whether it is. Raises the error that
        has stopped the consumer; `InvalidSetting`: there is no such consumer; `Closed`."""
        self._partition(mark.partition)
        return self._consumer(consumer).wait(mark, timeout_s)

    def _consumer(self, name: str) -> Consumer:
        consumer = self._consumers.get(name)
        if consumer is None:
            raise InvalidSetting(f"there is no consumer {name!r} in this process")
        return consumer

    def _partition(self, number: int) -> AnyPartition:
        if not 0 <= number < len(self._partitions):
            raise InvalidSetting(
                f"there is no partition {number}; they are numbered from 0 to "
                f"{len(self._partitions) - 1}"
            )
        return self._partitions[number]

    # ---- the log ----

    def archive(self) -> int:
        """Turn what was written into compressed archives. Readers and consumers are not affected.
        Returns the number of entries. Raises the errors of `Log.archive`."""
        return sum(partition.archive() for partition in self._partitions)

    # ---- closing ----

    def close(self) -> None:
        """Stop the consumers, and close the logs. Safe to call twice. Raises
        `StorageUnavailable`; the stream is closed nevertheless."""
        with self._mutex:
            self._closed = True
            consumers = list(self._consumers.values())
        for consumer in consumers:
            consumer.leave()  # all of them, before the first stop ends the connection
        for consumer in consumers:
            consumer.stop()
        failures = []
        for partition in self._partitions:
            try:
                partition.close()
            except Exception as error:  # noqa: BLE001  # the others are closed too
                failures.append(error)
        self._at_end()
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _demand_mark(mark: Any, partition: int) -> None:
    if not isinstance(mark, Mark):
        raise InvalidSetting(f"{mark!r} is not a Mark")
    if mark.partition != partition:
        raise InvalidSetting(f"the mark is of partition {mark.partition}, not of {partition}")


def check_consumer(name: Any) -> None:
    """Raises `InvalidSetting` unless it can be the name of a consumer."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", name):
        raise InvalidSetting(
            f"the name of a consumer is {name!r}; it takes up to 200 letters, digits, _, . and -"
        )
