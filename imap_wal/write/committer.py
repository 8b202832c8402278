"""Group commit: all batches that are ready in the ring become one frame with one sync, and then all
of them are acknowledged. A batch is a `CommitRequest`.

There is no committer thread. A thread that waits for a batch tries the commit lock. The one that
gets it is the leader and commits for all; the others sleep until their batch is done, or until a
leader that leaves wakes one of them to lead. So a single caller needs no hand-off between threads.

A failed write or sync poisons the committer: nothing more is acknowledged, and the sync is never
repeated on that file.

The leader may be interrupted at any line (Ctrl-C). `_Commit` records its progress, and the next
leader finishes the commit: an incomplete write is cut off and repeated; a complete one is synced
and acknowledged. If it is unknown which, the committer is poisoned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from imap_wal.errors import Fenced, ImapWalError, NotAppended, OutcomeUnknown, TooLarge
from imap_wal.format import COUNT_MAX, PAYLOAD_BYTES_MAX, Position
from imap_wal.histogram import Distribution, Exemplar, Histogram
from imap_wal.settings import Durability
from imap_wal.write.node_log import NodeLog, RewindPoint
from imap_wal.write.ring import CommitRequest, RingBuffer
from storage_backends import StorageError

SYNC_SECONDS_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
COMMIT_BYTES_BOUNDS = (256, 1024, 4096, 16_384, 65_536, 262_144, 2**20, 2**22, 2**24)
"""The ranges in which the times of syncs and the sizes of commits are counted."""


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """Counters since the log was opened. `records`: entries. `sync_seconds`: the time spent in
    syncs. `rotations`: sealed segments. `sync_times`, `commit_sizes`: how many syncs took how many
    seconds, and how many commits wrote how many bytes."""

    commits: int
    records: int
    bytes: int
    syncs: int
    sync_seconds: float
    rotations: int
    sync_times: Distribution
    commit_sizes: Distribution


class CommitCounts:
    """The numbers themselves. One thread at a time counts; any thread may call `statistics`."""

    __slots__ = ("_commit_sizes", "_sync_times", "commits", "last_sync", "records", "rotations")

    def __init__(self) -> None:
        self.commits = self.records = self.rotations = 0
        self.last_sync = (0.0, 0.0)
        """When the last sync began (monotonic), and its seconds. For the thread that commits."""
        self._sync_times = Histogram(SYNC_SECONDS_BOUNDS)
        self._commit_sizes = Histogram(COMMIT_BYTES_BOUNDS)

    def committed(self, size: int) -> None:
        """A commit wrote so many bytes."""
        self.commits += 1
        self._commit_sizes.add(size)

    def synced(self, start: float, seconds: float) -> None:
        self._sync_times.add(seconds)
        self.last_sync = start, seconds

    def exemplify_sync(self, trace_id: str, at_s: float) -> None:
        """Record that the last sync is a part of this trace. For the thread that commits."""
        self._sync_times.exemplify(Exemplar(trace_id, self.last_sync[1], at_s))

    def statistics(self, bytes_written: int) -> CommitStatistics:
        times, sizes = self._sync_times.snapshot(), self._commit_sizes.snapshot()
        return CommitStatistics(
            self.commits,
            self.records,
            bytes_written,
            times.count,
            times.sum,
            self.rotations,
            times,
            sizes,
        )


T = TypeVar("T")
_KIND_OF = attrgetter("kind")

LOOK_AGAIN_S = 0.5
"""How often a waiting thread checks whether there is a leader: an interrupted leader may have woken
no other."""

CHECKPOINT_COMMITS, CHECKPOINT_S = 1000, 60.0
"""If each commit is an object, the checkpoint moves after this many commits, or this time."""


class _Commit:
    """A commit under way: `batches`, the ring's sequence after them, and where the log was before.
    `written`: it is in the log as a whole. `safe`: it may be acknowledged."""

    __slots__ = ("batches", "end", "mark", "safe", "written")

    def __init__(self, batches: list[CommitRequest], end: int, mark: RewindPoint) -> None:
        self.batches, self.end, self.mark = batches, end, mark
        self.written = self.safe = False


class Committer:
    """Owns the node's log and consumes the ring. `on_commit` gets the log after each commit, so it
    must be quick. `before_ack` gets the batches of a commit between sync and acknowledgement, and
    may give some of them an error (`OutcomeUnknown`)."""

    def __init__(
        self,
        ring: RingBuffer[CommitRequest],
        log: NodeLog,
        on_commit: Callable[[NodeLog], None] | None = None,
        before_ack: Callable[[Sequence[CommitRequest]], None] | None = None,
    ) -> None:
        self.ring, self.log = ring, log
        self._settings, self._clock = log.settings, log.clock
        self._on_commit, self._before_ack = on_commit, before_ack
        self._lock = threading.Lock()
        self._failure: ImapWalError | None = None
        self._under_way: _Commit | None = None
        self._rotating = False
        self._unsynced_since: float | None = None
        self.counts = CommitCounts()
        self._renewed_at = self._clock.monotonic()
        self._checkpointed, self._checkpointed_at = 0, self._clock.monotonic()
        """How many commits have no checkpoint, and since when."""
        self._applies = not log.settings.acknowledges_early
        durability = log.settings.durability
        self._syncs_each = durability is Durability.ALWAYS or (
            not log.store.capabilities.durable_append and durability is not Durability.INTERVAL
        )

    @property
    def failure(self) -> ImapWalError | None:
        """Why nothing more can be appended; None without a failure."""
        return self._failure

    def submit(self, batch: CommitRequest) -> None:
        """Put the batch in the ring; while the ring is full, commit."""
        batch.sleeper = threading.Lock()
        batch.sleeper.acquire()
        while not self.ring.try_publish(batch, batch.size):
            self.commit_ready()

    def wait(self, batch: CommitRequest) -> None:
        """Return when the batch is done: another thread commits it, or this one."""
        batch.awaited = True
        try:
            while not batch.done:
                if not self._lock.locked():
                    self._lead(self._commit_ready)
                else:
                    assert batch.sleeper is not None
                    batch.sleeper.acquire(timeout=LOOK_AGAIN_S)
        finally:
            if not batch.done:  # interrupted: perhaps this thread was to lead next
                batch.awaited = False
                self._wake_next()

    def _lead(self, work: Callable[[], None]) -> None:
        try:
            with self._lock:  # a plain lock: no interrupt between it and its block
                work()
        finally:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake a thread to lead. Threads that published after a leader's last look found the commit
        lock taken and sleep."""
        for batch in self.ring.take() if self.ring.ready() else ():
            if batch.awaited:  # its caller waits, and was not interrupted
                batch.wake()
                return

    def commit_ready(self) -> None:
        """Commit all batches in the ring."""
        self._lead(self._commit_ready)

    def at_rest(self, work: Callable[[Position], T]) -> T:
        """Commit all batches in the ring. Then, before any other commit, call `work` with the end
        of the log, and return its answer. Raises the error of a commit that failed."""
        answers: list[T] = []

        def run() -> None:
            self._commit_ready()
            if self._failure is not None:
                raise self._failure
            answers.append(work(self.log.end))

        self._lead(run)
        return answers[0]

    def sync(self) -> None:
        """Durability barrier: everything acknowledged before is safe when this returns, at any
        durability. Raises `Fenced`, or `NotAppended` if a write or sync failed, even an earlier
        one, and after `close`."""

        def work() -> None:
            self._commit_ready()
            if self._failure is None:
                self._guarded_sync()
            if self._failure is not None:
                raise self._failure

        self._lead(work)

    def checkpoint_if_due(self) -> None:
        """Move the checkpoint, because a recovery reads every object after it. Raises `Fenced`,
        `LostRace` and `StorageError`: the checkpoint does not move, and nothing is lost."""
        now, new = self._clock.monotonic(), self.counts.commits - self._checkpointed
        if not new or (new < CHECKPOINT_COMMITS and now - self._checkpointed_at < CHECKPOINT_S):
            return
        safe: tuple[int, Position, dict[int, int]] | None = None

        def work() -> None:
            nonlocal safe
            if self._failure is None and self._under_way is None and self._unsynced_since is None:
                safe = self.counts.commits, self.log.end, dict(self.log.requests)

        self._lead(work)
        if safe is not None:
            commits, end, requests = safe
            try:
                self.log.move_checkpoint(end, requests)
            except Fenced as error:
                self._lose(error)
                raise
            self._checkpointed, self._checkpointed_at = commits, now

    def checkpoint(self) -> None:
        """Seal the current segment now, and move the checkpoint to its end: a process that later
        removes this segment need not read its entries. Raises the errors of `rotate`, `LostRace`
        and StorageError."""
        safe: tuple[Position, dict[int, int]] | None = None

        def work() -> None:
            nonlocal safe
            self._commit_ready()
            self._rotate()
            if self._failure is not None:
                raise self._failure
            safe = self.log.end, dict(self.log.requests)

        self._lead(work)
        assert safe is not None
        self.log.move_checkpoint(*safe)

    def sync_if_due(self) -> None:
        """For `interval`: sync before the oldest unsynced byte is too old.
        Maintenance calls this four times per interval."""
        since = self._unsynced_since
        if (
            since is None
            or (self._clock.monotonic() - since) * 1000 < 0.75 * self._settings.sync_interval_ms
        ):
            return

        def work() -> None:
            if self._failure is None:
                self._guarded_sync()

        self._lead(work)

    def rotate(self) -> None:
        """Seal the current segment now."""

        def work() -> None:
            self._commit_ready()
            self._rotate()
            if self._failure is not None:
                raise self._failure

        self._lead(work)

    def rotate_if_due(self) -> None:
        """Seal the current segment if it is too old."""
        limit = self._settings.rotate_interval_s
        if not limit or self.log.age_s < limit:
            return

        def work() -> None:
            self._commit_ready()
            if self.log.age_s >= limit:
                self._rotate()

        self._lead(work)

    def renew_lease(self) -> None:
        """Renew the node's lock if it is a lease; its loss ends all acknowledgements. Raises
        StorageError if it was not renewed this time."""
        if self.log.permit.leased and self._failure is None:
            try:
                self.log.permit.renew()
                self._renewed_at = self._clock.monotonic()
            except Fenced as error:
                self._lose(error)

    def look(self) -> None:
        """Notice between commits that another process has taken the log over, or that the node was
        forgotten. One stat on a local file system. Raises StorageError and LogError."""
        if self._failure is None and (lost := self.log.permit.lost()) is not None:
            self._lose(lost)

    def _lose(self, error: Fenced) -> None:
        def work() -> None:
            self._failure = self._failure or error

        self._lead(work)

    def close(self, clean: bool = True) -> None:
        """Commit the rest, then close the log, as clean if `clean`. Safe to call again after an
        interrupt."""

        def work() -> None:
            if clean:
                self._commit_ready()
            try:
                if self._failure is None:
                    self._failure = NotAppended("this store was closed")
                    self.log.close(clean)
                else:
                    self.log.close(clean=False)
            finally:
                self._commit_ready()  # late batches get the error

        self._lead(work)

    @property
    def statistics(self) -> CommitStatistics:
        return self.counts.statistics(self.log.bytes_written)

    @property
    def lease_age_s(self) -> float | None:
        """Seconds since the node's lock was taken or renewed; None if it is no lease."""
        return self._clock.monotonic() - self._renewed_at if self.log.permit.leased else None

    # ---- with the lock held ----

    def _commit_ready(self) -> None:
        if self._under_way is not None or self._rotating:
            self._take_up()
        while self.ring.ready() and (batches := self.ring.take(self._settings.commit_bytes_max)):
            self._under_way = commit = _Commit(
                batches, self.ring.sequence + len(batches), self.log.mark()
            )
            self._conclude(commit)
            if self._failure is None:
                if self.log.full:
                    self._rotate()
                if self._on_commit is not None:
                    self._on_commit(self.log)

    def _take_up(self) -> None:
        """Finish a commit whose leader was interrupted."""
        if self._rotating:
            self._rotate()
        commit = self._under_way
        if commit is None:
            return
        if not commit.written and self._failure is None:
            if self.log.rewind(commit.mark):
                self._under_way = None  # its batches are still in the ring
                return
            self._failure = NotAppended(
                f"a write to the log of node {self.log.identity.node!r} was interrupted, and "
                "the outcome of the write is unknown; nothing more is acknowledged until the "
                "log is opened again"
            )
        if not commit.safe and self._failure is not None:
            for batch in commit.batches:
                batch.error = batch.error or _unknown(self._failure, self._failure)
        self._conclude(commit)

    def _conclude(self, commit: _Commit) -> None:
        """Finish the commit from the step that it has reached: into the log, into memory, out of
        the ring."""
        batches = commit.batches
        if self._failure is None and not commit.safe:
            self._commit(commit)
        elif not commit.safe:
            for batch in batches:
                batch.error = batch.error or _refusal(self._failure)
        for batch in batches:
            if self._applies and batch.error is None and batch.apply is not None and not batch.done:
                batch.apply()
            batch.done = True
            batch.wake()
        self.ring.advance(commit.end - self.ring.sequence)
        self._under_way = None

    def _commit(self, commit: _Commit) -> None:
        batches = commit.batches
        try:
            if not commit.written:
                for kind, group in groupby(batches, key=_KIND_OF):
                    self._write(kind, list(group))
                commit.written = True
                self.counts.committed(self.log.bytes_written - commit.mark.bytes_written)
            self._make_safe()
        except Fenced as error:
            self._failure = error
            certain = not commit.written and self.log.bytes_written == commit.mark.bytes_written
            for batch in batches:
                batch.error = _refusal(error) if certain else _unknown(error, error)
            return
        # Drivers can raise anything; a part of a frame may be written, and callers wait.
        except Exception as error:  # noqa: BLE001
            unwritten = isinstance(error, StorageError | TooLarge) and not commit.written
            certain = (
                unwritten
                and self.log.bytes_written == commit.mark.bytes_written
                and self.log.rewind()
            )
            self._poison(error, "sync" if commit.written else "write")
            outcome = _not_appended if certain else _unknown
            for batch in batches:
                batch.error = outcome(self._failure, error)
            return
        requests = self.log.requests
        for batch in batches:
            if batch.session and batch.request >= requests.get(batch.session, 0):
                requests[batch.session] = batch.request
        if self._before_ack is not None:
            try:
                self._before_ack(batches)
            except Exception as error:  # noqa: BLE001
                # The changes are in the log, but it is unknown whether they may be acknowledged.
                for batch in batches:
                    batch.error = batch.error or _unconfirmed(error)
        commit.safe = True

    def _write(self, kind: int, batches: list[CommitRequest]) -> None:
        """One frame for the batches, or several if they are too large or too many."""
        start = 0
        while start < len(batches):
            payload: list[bytes] = []
            count, size, stop = 0, 0, start
            for batch in batches[start:] if start else batches:
                if stop > start and (
                    count + batch.count > COUNT_MAX or size + batch.size > PAYLOAD_BYTES_MAX
                ):
                    break
                payload += batch.payload
                count += batch.count
                size += batch.size
                stop += 1
            if self._syncs_each and self._unsynced_since is not None:
                # At most one unsynced frame: then a power loss never leaves a whole frame after a
                # torn one.
                self._timed_sync()
            if self._unsynced_since is None:
                self._unsynced_since = self._clock.monotonic()
            position = self.log.write(kind, count, payload)
            epoch, segment, frame, index = position
            for batch in batches[start:stop]:
                batch.position = Position(epoch, segment, frame, index) if index else position
                index += batch.count
            self.counts.records += count
            start = stop

    def _make_safe(self) -> None:
        """Sync as the durability requires before an acknowledgement. A replaced writer acknowledges
        nothing, at any durability."""
        late = (
            self._settings.durability is Durability.INTERVAL
            and self._unsynced_ms() >= self._settings.sync_interval_ms
        )
        if self._syncs_each or late:
            self._timed_sync()
        else:
            self.log.check()

    def _unsynced_ms(self) -> float:
        return (
            0
            if self._unsynced_since is None
            else (self._clock.monotonic() - self._unsynced_since) * 1000
        )

    def _timed_sync(self) -> None:
        now = self._clock.monotonic
        start = now()
        self.log.sync()
        self._unsynced_since = None
        self.counts.synced(start, now() - start)

    def _guarded_sync(self) -> None:
        try:
            self._timed_sync()
        except Fenced as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001
            self._poison(error, "sync")

    def _rotate(self) -> None:
        if self._failure is not None:
            return
        self._rotating = True
        try:
            self.log.rotate()
            self._unsynced_since = None
            self.counts.rotations += 1
        except Fenced as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001
            self._poison(error, "seal")
        self._rotating = False

    def _poison(self, error: Exception, doing: str) -> None:
        self._failure = _failed_to(doing, self.log.identity.node, error)


def _failed_to(doing: str, node: str, error: Exception) -> NotAppended:
    """The failure of a committer whose log could not do this, because of `error`."""
    failure = NotAppended(
        f"the log of node {node!r} failed to {doing}: {error}; nothing more is acknowledged until "
        "it is opened again"
    )
    failure.__cause__ = error
    return failure


def _refusal(failure: ImapWalError | None) -> ImapWalError:
    """The error of a change after the failure: it is not in the log."""
    if isinstance(failure, Fenced):
        error: ImapWalError = Fenced(failure.without_advice, failure.holder, failure.advice)
        error.__cause__ = failure
        return error
    return _caused(NotAppended(f"nothing more is appended: {failure}"), failure)


def _not_appended(failure: ImapWalError | None, cause: Exception) -> ImapWalError:
    """The error of a change that is certainly not in the log."""
    return _caused(NotAppended(f"nothing was appended: {failure}"), cause)


def _unknown(failure: ImapWalError | None, cause: Exception | None) -> ImapWalError:
    """The error of a change that may be in the log."""
    return _caused(OutcomeUnknown(f"the change may be in the log: {failure}"), cause)


def _unconfirmed(cause: Exception) -> ImapWalError:
    """The error of a change that is in the log, but perhaps may not be acknowledged."""
    return OutcomeUnknown(f"the change is in the log, but could not be confirmed: {cause}")


def _caused(error: ImapWalError, cause: BaseException | None) -> ImapWalError:
    error.__cause__ = cause
    return error
