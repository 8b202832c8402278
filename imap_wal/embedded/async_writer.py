"""How the tasks of an event loop share commits.

Operations collect while a commit runs, and the next commit takes all of them. One thread commits,
so the event loop never waits for the disk.

`ring_bytes` and `ring_slots` limit the waiting operations and the running commit together. An
operation beyond these limits is not serialised yet: it waits in a queue, and so does the task that
awaits it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from imap_wal.embedded.changes import MapState, WriteBatch, split
from imap_wal.embedded.decisions import Decision
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.errors import TooLarge

COMMIT_BYTES_MAX = 64 * 1024 * 1024
"""The largest commit, unless a single operation is larger."""

_Counts: TypeAlias = "dict[asyncio.Future[None], int]"
_PendingCommit: TypeAlias = "tuple[list[WriteBatch], list[asyncio.Future[None]], _Counts]"
"""All changes of one commit, the future of each operation, and how many changes an operation has,
if not one."""


class AsyncWriter:
    """Commits the changes of one event loop with a `MapWriter`."""

    def __init__(self, writer: MapWriter) -> None:
        self.writer = writer
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._commits: queue.SimpleQueue[_PendingCommit | None] = queue.SimpleQueue()
        # A plain queue and thread: an executor's bookkeeping costs 20 µs a commit.
        self._thread = threading.Thread(target=self._run, name="imap-wal-commit", daemon=True)
        self._thread.start()
        self._waiting: list[WriteBatch] = []
        """Consecutive changes of one map share a batch."""
        self._last: WriteBatch | None = None
        """The batch for the next change of the same map."""
        self._futures: list[asyncio.Future[None]] = []
        self._many: dict[asyncio.Future[None], int] = {}
        """The number of changes of each waiting operation that does not have exactly one change."""
        self._bytes = 0
        self._operations_max, self._bytes_max = writer.bounds
        self._room = self._bytes_max
        """How many more bytes may wait: the limit minus the bytes of the running commit."""
        self._later: deque[tuple[asyncio.Future[None], Callable[[], WriteBatch]]] = deque()
        """Operations beyond the limits, each with the function that serialises it."""
        self._full = False
        """New operations are appended to `_later`."""
        self._idle = True
        """No commit runs or is scheduled."""
        self._decides = False
        """Whether there has been a decision. Before the first one, commits are not searched for
        decisions."""

    async def drain(self) -> None:
        """Wait for all operations."""
        while self._futures or self._later or not self._idle:
            await asyncio.wait(self._futures) if self._futures else await asyncio.sleep(0)

    def stop(self) -> None:
        """After `drain`. Safe to call twice."""
        self._commits.put(None)
        self._thread.join()

    def enqueue(self, make: Callable[[], WriteBatch]) -> asyncio.Future[None]:
        """Commit the changes that `make` serialises, together with all waiting changes. The future
        is done when they are durable. Raises `Closed`, and the errors of `make`."""
        self.writer.check_open()
        future = self._create_future()
        if self._full:
            self._later.append((future, make))
        else:
            self._add(make(), future)
            if self._idle:
                self._schedule()
        return future

    def decide(self, decision: Decision) -> asyncio.Future[None]:
        """Evaluate a decision when all changes before it are in the log. The future is done when
        its changes are durable."""
        if self._full or self.writer.closed:
            return self.enqueue(lambda: decision)
        # The code of `enqueue` for one decision, inlined: the event loop spends this time on each.
        self._waiting.append(decision)
        self._last, self._decides = None, True
        future = self._create_future()
        futures = self._futures
        futures.append(future)
        self._bytes = waiting = self._bytes + decision.size
        if waiting >= self._room or len(futures) >= self._operations_max:
            self._full = True
        if self._idle:
            self._schedule()
        return future

    async def decided(self, make: Callable[[], Decision]) -> Any:
        """The same for a decision that `make` serialises, not before there is room for it. Returns
        its answer."""
        decision: Decision | None = None

        def remember() -> Decision:
            nonlocal decision
            decision = make()
            return decision

        await self.enqueue(remember)
        assert decision is not None
        return decision.answer

    def _add(self, changes: WriteBatch, future: asyncio.Future[None]) -> None:
        if isinstance(changes, Decision):
            self._waiting.append(changes)
            self._last, self._decides = None, True
        else:
            self._batch_for(changes.state).add(changes)
        self._futures.append(future)
        if len(changes) != 1:
            self._many[future] = len(changes)
        self._bytes += sum(changes.sizes())
        if self._bytes >= self._room or len(self._futures) >= self._operations_max:
            self._full = True

    def _admit(self) -> None:
        """Accept operations of `_later`, in order, as far as the limits allow."""
        self._full = False
        while self._later and not self._full:
            future, make = self._later.popleft()
            if future.done():
                continue  # cancelled
            try:
                changes = make()
            except Exception as error:  # passed to the caller
                future.set_exception(error)
            else:
                self._add(changes, future)

    def _batch_for(self, state: MapState) -> WriteBatch:
        """The batch for the next change of this map."""
        batch = self._last
        if batch is None or batch.state is not state:
            batch = self._last = WriteBatch(state, [], [])
            self._waiting.append(batch)
        return batch

    def _schedule(self) -> None:
        """Begin a commit after the callbacks that are ready now."""
        self._idle = False
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._commits.put(self._take())

    def _take(self) -> _PendingCommit:
        """The changes for the next commit: all that wait, or as many whole operations as fit into
        `COMMIT_BYTES_MAX`."""
        batches, futures = self._waiting, self._futures
        self._last = None
        if self._bytes <= COMMIT_BYTES_MAX or len(futures) == 1:
            self._room -= self._bytes
            self._waiting, self._futures, self._bytes = [], [], 0
            many, self._many = self._many, {}
            return batches, futures, many
        sizes = [size for batch in batches for size in batch.sizes()]
        operations, end, taken = 0, 0, 0
        for future in futures:
            count = self._many.get(future, 1)
            size = sum(sizes[end : end + count])
            if operations and taken + size > COMMIT_BYTES_MAX:
                break
            operations, end, taken = operations + 1, end + count, taken + size
        now, self._waiting = split(batches, end)
        self._futures, self._bytes, self._room = (
            futures[operations:],
            self._bytes - taken,
            self._room - taken,
        )
        taken_now = futures[:operations]
        many = {future: self._many.pop(future) for future in taken_now if future in self._many}
        return now, taken_now, many

    def _run(self) -> None:
        """The thread that commits."""
        while (commit := self._commits.get()) is not None:
            batches, futures, many = commit
            error = self._commit(batches)
            errors = [error] * len(futures)
            if isinstance(error, TooLarge) and len(futures) > 1:
                for index, future in enumerate(futures):  # perhaps only together
                    own, batches = split(batches, many.get(future, 1))
                    errors[index] = self._commit(own)
            self._loop.call_soon_threadsafe(self._finish, futures, errors)

    def _commit(self, batches: Sequence[WriteBatch]) -> BaseException | None:
        """Returns the error, for the callers."""
        try:
            if self._decides and any(isinstance(batch, Decision) for batch in batches):
                self.writer.evaluate(batches)
            else:
                self.writer.change(batches)
        except BaseException as error:  # passed to the callers
            return error
        return None

    def _finish(
        self,
        futures: list[asyncio.Future[None]],
        errors: Sequence[BaseException | None],
    ) -> None:
        for future, error in zip(futures, errors, strict=True):
            try:
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
            except asyncio.InvalidStateError:
                pass  # cancelled
        self._room = self._bytes_max
        if self._full:
            self._full = self._bytes >= self._room or len(self._futures) >= self._operations_max
            if not self._full:
                self._admit()
        if self._futures:
            self._loop.call_soon(
                self._flush
            )  # after the tasks that were just woken: their next operations join this commit
        else:
            self._idle = True
