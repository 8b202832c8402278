"""Streams for asyncio. Each call runs in a thread, so transactions of tasks share commits, and the
event loop waits for nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from imap_wal.embedded.asyncio_store import AsyncOpening
from imap_wal.errors import InvalidSetting
from imap_wal.forked import Openness
from imap_wal.stream.consumer import ConsumerStatus
from imap_wal.stream.marks import FileMarks, Marks
from imap_wal.stream.opening import StreamOpenOptions
from imap_wal.stream.opening import open as open_stream
from imap_wal.stream.progress import StreamProgress
from imap_wal.stream.served import StreamConnectOptions, connect
from imap_wal.stream.stream import Stream
from imap_wal.stream.transaction import Header, Mark, StreamRecord, Transaction
from storage_backends.location import Place

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

THREADS_MAX = 64
"""How many calls of one stream run at the same time; others wait. With `aconnect`, each needs a
connection."""
READ_RECORDS = 100
"""How many transactions a thread reads at once."""


class AsyncStream:
    """A `Stream` for one event loop, from `aopen` or `aconnect`. As an async context manager, it
    closes itself at the end of the block. Methods have the arguments and errors of those of
    `Stream`. If a task is cancelled while it waits for a submit, the transaction may be in the log:
    submit it again with the same `request`."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._loop = stream, asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS_MAX, "imap-wal-stream")
        self._openness = Openness("stream")

    @property
    def url(self) -> str:
        return self._stream.url

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self._stream.partitions

    def partition_of(self, header: Header) -> int:
        """The partition of a header."""
        return self._stream.partition_of(header)

    async def submit(
        self,
        header: Header,
        transaction: Transaction | Callable[[Any], Transaction | None],
        *,
        marks: str = "",
        mark: Mark | None = None,
        request: str = "",
        timeout_s: float = 30.0,
    ) -> Mark | None:
        """Append a transaction; see `Stream.submit`. A function is a plain one, and is called in a
        thread."""
        call = partial(self._stream.submit, header, transaction, marks=marks, mark=mark)
        return await self._called(partial(call, request=request, timeout_s=timeout_s))

    async def mark(self, partition: int = 0) -> Mark:
        """The newest transaction of a partition."""
        return await self._called(partial(self._stream.mark, partition))

    async def read(
        self, partition: int = 0, after: Mark | None = None
    ) -> AsyncIterator[StreamRecord]:
        """The transactions of a partition in the order of their ids, up to the newest."""
        records = self._stream.read(partition, after)

        while batch := await self._called(lambda: [*islice(records, READ_RECORDS)]):
            for record in batch:
                yield record

    def consumer(self, name: str, *, marks: Marks, **options: Any) -> Callable[[F], F]:
        """A decorator: the function is called for each transaction; see `Stream.consumer`. It is a
        plain function, which is called in a thread, or with `FileMarks` also a coroutine function,
        which runs in the event loop while a thread waits for it."""
        start = self._stream.consumer(name, marks=marks, **options)

        def started(function: F) -> F:
            if not inspect.iscoroutinefunction(function):
                start(function)
            elif isinstance(marks, FileMarks):
                start(self._in_loop(function))
            else:
                raise InvalidSetting(
                    "a coroutine function needs FileMarks: transactions of databases and stores "
                    "belong to a thread; pass a plain function"
                )
            return function

        return started

    def _in_loop(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result()

        return run

    async def consumers(self) -> Mapping[str, ConsumerStatus]:
        """The progress of each consumer."""
        return await self._called(lambda: self._stream.consumers)

    async def progress(self) -> StreamProgress:
        """How far the consumers of all processes are; see `Stream.progress`."""
        return await self._called(self._stream.progress)

    async def wait(self, consumer: str, mark: Mark, timeout_s: float = 30.0) -> bool:
        """Wait until a transaction is applied by a consumer; see `Stream.wait`."""
        return await self._called(partial(self._stream.wait, consumer, mark, timeout_s))

    async def archive(self) -> int:
        """Turn what was written into compressed archives; see `Stream.archive`."""
        return await self._called(self._stream.archive)

    async def close(self) -> None:
        """Stop the consumers, and close the logs. Safe to call twice. Calls of other tasks get
        `Closed`. Raises `Fenced` in a forked child."""
        self._openness.check_process()
        self._openness.end()
        try:
            # In a thread of its own: all others may be in use by calls that wait.
            await asyncio.to_thread(self._stream.close)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _called(self, function: Callable[[], R]) -> R:
        self._openness.check()
        return await self._loop.run_in_executor(self._threads, function)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def aopen(url: Place, **options: Unpack[StreamOpenOptions]) -> AsyncOpening[AsyncStream]:
    """`imap_wal.stream.open` for asyncio, with the same options and errors. Use `async with
    aopen(url) as bank:`, or `bank = await aopen(url)` with `await bank.close()` at the end.

    Args:
        url: a folder or URL.
        **options: the options of `imap_wal.stream.open`.
    """
    return AsyncOpening(partial(open_stream, url, **options), AsyncStream)


def aconnect(url: Place, **options: Unpack[StreamConnectOptions]) -> AsyncOpening[AsyncStream]:
    """`imap_wal.stream.connect` for asyncio, with the same options and errors; otherwise as
    `aopen`.

    Args:
        url: a folder or URL, or `tcp://host:port`.
        **options: the options of `imap_wal.stream.connect`.
    """
    return AsyncOpening(partial(connect, url, **options), AsyncStream)
