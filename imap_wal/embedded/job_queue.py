"""A durable queue of jobs, on two maps of a store: `Store.queue`.

    put    NAME         (number, attempts) ─▶ job, a plain put
    take   NAME.leased  (end of lease, number, attempts, token) ─▶ job, moved in one commit
    ack    the leased entry is deleted
    nack   the job is moved back in one commit; after the end of its lease, `take` takes it again

Both maps are sorted: the first job of the one waits longest, and the first lease of the other ends
first. `take`, `ack` and `nack` are decisions, so no two takers get the same lease.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from imap_wal.embedded.changes import WriteBatch
from imap_wal.embedded.decisions import Choice, Decision, OutlookOf
from imap_wal.embedded.durable_map import DurableMap
from imap_wal.embedded.map_writer import MapWriter
from imap_wal.errors import InvalidSetting
from imap_wal.forked import OfOneProcess
from imap_wal.serializer import shown

if TYPE_CHECKING:
    import asyncio

LEASED = ".leased"
"""The end of the name of the map with the jobs that were taken."""
LOOK_S = 1.0
"""How often a waiting taker looks for a lease that has ended, in seconds."""


class Job(NamedTuple):
    """A job that was taken. `number`: the same at each attempt, and of no other job. `value`: what
    was put. `attempt`: how often the job was taken, this time included."""

    number: int
    value: Any
    attempt: int
    lease: tuple[int, int, int, int]
    """The key of the lease; its first part is when it ends, Unix time in milliseconds."""


class JobQueue(OfOneProcess):
    """A durable queue, from `Store.queue`: the job that was put first is taken first. Thread-safe.

    Each job is taken *at least once*: it is given to another taker if its lease ends, or if the
    program dies, before `ack` has returned True. After that it is never given again. So make the
    work of a job repeatable; `Job.number` tells which job it is.

    All methods raise the errors of `DurableMap`.
    """

    def __init__(
        self, writer: MapWriter, waiting: DurableMap[Any, Any], leased: DurableMap[Any, Any]
    ) -> None:
        self._writer, self._waiting, self._leased = writer, waiting, leased
        self.signal = writer.signal
        _demand_keys(waiting, 2)
        _demand_keys(leased, 4)
        # From the time, so that a number is not used again after the queue was empty.
        used = itertools.chain((key[0] for key in waiting), (key[1] for key in leased))
        last = max(used, default=0)
        self._numbers = itertools.count(max(last + 1, writer.now_ms() * 1000))

    def put(self, value: Any) -> int:
        """Add a job. Returns its number when it is durable."""
        number, job = self.putting(value)
        self._writer.change([job])
        return number

    def take(self, lease: float = 60.0, timeout: float | None = None) -> Job | None:
        """Take the job that was put first, and wait for one if there is none.

        Args:
            lease: seconds until the job is given to another taker, unless it is acknowledged.
            timeout: how long to wait, in seconds; 0: not at all; None: until there is a job.

        Returns:
            The job, or None if there was none in this time.

        Raises:
            InvalidSetting: `lease` is not a number of seconds above 0 and up to 100 years.
        """
        signal, clock = self.signal, self._writer.log.clock
        end = None if timeout is None else clock.monotonic() + timeout
        while True:
            seen = signal.position
            taking = self.taking(lease)
            self._writer.evaluate([taking])
            left = LOOK_S if end is None else min(LOOK_S, end - clock.monotonic())
            if taking.answer is not None or left <= 0:
                return self.taken(taking)
            signal.wait(seen, left)

    def ack(self, job: Job) -> bool:
        """The work of a job is done: it is never given again. Returns False if its lease had ended
        and the job was given to another taker, or was acknowledged already."""
        decision = self.moving(job, back=False)
        self._writer.evaluate([decision])
        return bool(decision.answer)

    def nack(self, job: Job) -> bool:
        """Give a job back: it is the next one to be taken. Returns False as `ack` does."""
        decision = self.moving(job, back=True)
        self._writer.evaluate([decision])
        return bool(decision.answer)

    def __len__(self) -> int:
        """How many jobs are not acknowledged: those that wait, and those that were taken."""
        return len(self._waiting) + len(self._leased)

    def __repr__(self) -> str:
        if self._writer.closed:
            return f"<JobQueue {self._waiting.name!r} closed>"
        return f"<JobQueue {self._waiting.name!r} of {len(self)}, {len(self._leased)} taken>"

    # ---- the changes; `AsyncJobQueue` commits the same ----

    def putting(self, value: Any) -> tuple[int, WriteBatch]:
        """The number of a new job, and the change that adds it."""
        number = next(self._numbers)
        return number, self._waiting.changes([((number, 0), value)])

    def taking(self, lease: float) -> Decision:
        """The decision of `take`. Its answer is the serialised lease and job, or None."""
        leased, waiting = self._leased._state, self._waiting._state
        now, until = self._writer.now_ms(), self._leased.expiry(lease, "lease")
        token = int.from_bytes(self._writer.log.randomness.token()[:7])

        def choose(outlook_of: OutlookOf) -> Choice:
            source, first = leased, outlook_of(leased).end(last=False)
            number, attempt = 0, 0
            if first is not None:
                ends, number, attempt, _ = leased.serializer.load_key(first[0])
                if ends > now:
                    first = None
            if first is None:
                source, first = waiting, outlook_of(waiting).end_or_wait(last=False)
                if first is None:
                    return None, ()
                number, attempt = waiting.serializer.load_key(first[0])
            key = leased.serializer.dump_key((until, number, attempt + 1, token))
            moved = WriteBatch(source, [first[0]], [None]), WriteBatch(leased, [key], [first[1]])
            return (key, first[1]), moved

        return Decision(leased, choose)

    def taken(self, taking: Decision) -> Job | None:
        """The job of an answered `taking`."""
        if taking.answer is None:
            return None
        leased = self._leased._state
        key, value = taking.answer
        lease = leased.serializer.load_key(key)
        return Job(lease[1], leased.load(key, value), lease[2], lease)

    def moving(self, job: Job, *, back: bool) -> Decision:
        """The decision of `ack`, or of `nack`, which moves the job `back`."""
        leased, waiting = self._leased._state, self._waiting._state
        key = leased.serializer.dump_key(job.lease)

        def choose(outlook_of: OutlookOf) -> Choice:
            value = outlook_of(leased).get(key)
            if value is None:
                return False, ()
            moved: Sequence[WriteBatch] = [WriteBatch(leased, [key], [None])]
            if back:
                place = waiting.serializer.dump_key((job.number, job.attempt))
                moved = [*moved, WriteBatch(waiting, [place], [value])]
            return True, moved

        return Decision(leased, choose, len(key))


def _demand_keys(map: DurableMap[Any, Any], parts: int) -> None:
    """Raise `InvalidSetting` unless the keys are those of a queue."""
    for key in map:
        if (
            type(key) is not tuple
            or len(key) != parts
            or any(type(part) is not int for part in key)
        ):
            raise InvalidSetting(
                f"map {map.name!r} has the key {shown(key)}, so it is not the map of a queue; "
                "choose another name for the queue"
            )


class Commits(Protocol):
    """How an `AsyncStore` commits."""

    def enqueue(self, make: Callable[[], WriteBatch]) -> asyncio.Future[None]: ...

    def decide(self, decision: Decision) -> asyncio.Future[None]: ...


class AsyncJobQueue(OfOneProcess):
    """`JobQueue` for asyncio, from `AsyncStore.queue`; its methods are coroutine functions. If
    `take` is cancelled while it takes a job, the job comes back after the end of its lease."""

    def __init__(self, store: Commits, queue: JobQueue) -> None:
        self._store, self._queue = store, queue

    async def put(self, value: Any) -> int:
        """As `JobQueue.put`."""
        number, job = self._queue.putting(value)
        await self._store.enqueue(lambda: job)
        return number

    async def take(
        self,
        lease: float = 60.0,
        timeout: float | None = None,  # noqa: ASYNC109  # a cancelled `take` may have a lease
    ) -> Job | None:
        """As `JobQueue.take`."""
        import asyncio

        loop, signal = asyncio.get_running_loop(), self._queue.signal
        end = None if timeout is None else loop.time() + timeout
        while True:
            seen = signal.position
            taking = self._queue.taking(lease)
            await self._store.decide(taking)
            left = LOOK_S if end is None else min(LOOK_S, end - loop.time())
            if taking.answer is not None or left <= 0:
                return self._queue.taken(taking)
            await signal.wait_async(seen, left)

    async def ack(self, job: Job) -> bool:
        """As `JobQueue.ack`."""
        return await self._moved(self._queue.moving(job, back=False))

    async def nack(self, job: Job) -> bool:
        """As `JobQueue.nack`."""
        return await self._moved(self._queue.moving(job, back=True))

    async def _moved(self, decision: Decision) -> bool:
        await self._store.decide(decision)
        return bool(decision.answer)

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        return f"<Async{repr(self._queue)[1:]}"
