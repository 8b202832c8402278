"""Group commit: what is ready in the ring becomes one frame, one sync, and then all its batches are acknowledged.

There is no committer thread. Whoever waits for a batch tries the commit lock: the one who gets it leads, and commits for everybody; the others sleep until their
batch is done, or until a leader that leaves wakes one of them to lead. One caller alone thus pays no hand-off between threads.

A failed write or sync poisons the committer: nothing more is acknowledged, and the sync is never tried again on that file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

from imap_wal.clock import Clock
from imap_wal.errors import Fenced, ImapWalError, NotAppended, OutcomeUnknown
from imap_wal.format import COUNT_MAX, ENTRIES, Position
from imap_wal.ring import RingBuffer
from imap_wal.settings import Durability, Settings
from imap_wal.writer import NodeLog
from storage_backends import StorageError


class Batch:
    """What one caller wants in the log at once: `payload` is a msgpack stream of `count` entries in pieces, `apply` what to do when it is acknowledged
    (before anyone is told), in log order. `session` and `request` (its last) feed the duplicate check; 0 for none."""

    __slots__ = ("apply", "awaited", "count", "done", "error", "kind", "payload", "position", "request", "session", "size", "sleeper")

    def __init__(
        self, payload: list[bytes], count: int, apply: Callable[[], None] | None = None, kind: int = ENTRIES, session: int = 0, request: int = 0
    ) -> None:
        self.payload, self.count, self.apply, self.kind, self.session, self.request = payload, count, apply, kind, session, request
        self.size = sum(map(len, payload))
        self.done = False
        self.awaited = False
        """A thread sleeps on it, or is about to look whether it must."""
        self.error: ImapWalError | None = None
        self.position: Position | None = None
        self.sleeper: threading.Lock | None = None

    def wake(self) -> None:
        """Let the thread that sleeps on this batch go on, if there is one. Safe to call twice."""
        sleeper = self.sleeper
        if sleeper is not None and sleeper.locked():
            try:
                sleeper.release()
            except RuntimeError:
                pass  # another thread woke it between the two lines

    def result(self) -> Position:
        """The position of the first entry, or the error."""
        if self.error is not None:
            raise self.error
        assert self.position is not None
        return self.position


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """A snapshot, since the log was opened."""

    commits: int
    records: int
    bytes: int
    syncs: int
    sync_seconds: float
    rotations: int


class Committer:
    """Owns the node's log and the ring's committing consumer. `on_commit` is called with the log after each commit, so it must be quick; `before_ack` with the
    batches of a commit, between sync and acknowledgement: it may give some of them an error (`OutcomeUnknown`)."""

    def __init__(
        self,
        ring: RingBuffer[Batch],
        log: NodeLog,
        settings: Settings,
        clock: Clock,
        on_commit: Callable[[NodeLog], None] | None = None,
        before_ack: Callable[[Sequence[Batch]], None] | None = None,
    ) -> None:
        self.ring, self.log = ring, log
        self._settings, self._clock = settings, clock
        self._on_commit, self._before_ack = on_commit, before_ack
        self._consumer = ring.consumer()
        self._lock = threading.Lock()
        self._failure: ImapWalError | None = None
        self._unsynced_since: float | None = None
        self._commits = self._records = self._syncs = self._rotations = 0
        self._sync_seconds = 0.0
        self._syncs_each = settings.durability is Durability.ALWAYS or (
            not log.store.capabilities.durable_append and settings.durability is not Durability.INTERVAL
        )

    @property
    def failure(self) -> ImapWalError | None:
        """Why nothing more can be appended; None while all is well."""
        return self._failure

    def submit(self, batch: Batch) -> None:
        """Put the batch in the ring; when it is full, commit until there is room."""
        batch.sleeper = threading.Lock()
        batch.sleeper.acquire()
        while not self.ring.try_publish(batch, batch.size):
            self.commit_ready()

    def wait(self, batch: Batch) -> None:
        """Return when the batch is done: somebody committed it, or this thread does."""
        batch.awaited = True
        try:
            while not batch.done:
                if self._lock.acquire(blocking=False):
                    try:
                        self._commit_ready()
                    finally:
                        self._leave()
                else:
                    assert batch.sleeper is not None
                    batch.sleeper.acquire()
        finally:
            if not batch.done:  # an interrupt: perhaps it was this thread's turn to lead
                batch.awaited = False
                self._wake_next()

    @contextmanager
    def _leading(self) -> Iterator[None]:
        self._lock.acquire()
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        """Let the commit lock go. Whoever published after our last look found it taken and sleeps: one of them leads now."""
        self._lock.release()
        self._wake_next()

    def _wake_next(self) -> None:
        for batch in self._consumer.take() if self._consumer.ready() else ():
            if batch.awaited:  # not one whose caller has not begun to wait, or was interrupted
                batch.wake()
                return

    def commit_ready(self) -> None:
        """Commit all that is in the ring now."""
        with self._leading():
            self._commit_ready()

    def sync(self) -> None:
        """Durability barrier: all that was acknowledged before is safe when this returns, whatever the durability."""
        with self._leading():
            self._commit_ready()
            if self._failure is None:
                self._guarded_sync()
            if self._failure is not None:
                raise self._failure

    def sync_if_due(self) -> None:
        """`interval`: sync when the oldest unsynced byte is about to be too old (the keeper comes by four times an interval)."""
        since = self._unsynced_since
        if since is None or (self._clock.monotonic() - since) * 1000 < 0.75 * self._settings.sync_interval_ms:
            return
        with self._leading():
            if self._failure is None:
                self._guarded_sync()

    def rotate(self) -> None:
        """Seal the current segment now."""
        with self._leading():
            self._commit_ready()
            self._rotate()
            if self._failure is not None:
                raise self._failure

    def rotate_if_due(self) -> None:
        """Seal the current segment if it is older than it may be."""
        limit = self._settings.rotate_interval_s
        if limit and self.log.age_s >= limit:
            with self._leading():
                self._commit_ready()
                if self.log.age_s >= limit:
                    self._rotate()

    def renew_lease(self) -> None:
        """Hold on to the node where the storage's lock is a lease; losing it ends all acknowledgements. A StorageError: it could not be renewed this time."""
        if self.log.leased and self._failure is None:
            try:
                self.log.renew()
            except Fenced as error:
                with self._leading():
                    self._failure = error

    def close(self, clean: bool = True) -> None:
        """Commit what is left, then close the log; `clean` says so in it."""
        with self._leading():
            if clean:
                self._commit_ready()
            if self._failure is None:
                self._failure = NotAppended("this store was closed")
                self.log.close(clean)
            else:
                self.log.close(clean=False)
            self._commit_ready()  # late comers are told

    @property
    def statistics(self) -> CommitStatistics:
        return CommitStatistics(self._commits, self._records, self.log.bytes_written, self._syncs, self._sync_seconds, self._rotations)

    # ---- with the lock held ----

    def _commit_ready(self) -> None:
        while self._consumer.ready() and (batches := self._consumer.take(self._settings.commit_bytes_max)):
            if self._failure is None:
                self._commit(batches)
            else:
                for batch in batches:
                    batch.error = NotAppended(f"nothing more is appended: {self._failure}")
            applies = not self._settings.acknowledges_early
            for batch in batches:
                if batch.error is None and applies and batch.apply is not None:
                    batch.apply()
                batch.done = True
                batch.wake()
            self._consumer.advance(len(batches))
            if self._failure is None:
                if self.log.full:
                    self._rotate()
                if self._on_commit is not None:
                    self._on_commit(self.log)

    def _commit(self, batches: list[Batch]) -> None:
        before = self.log.bytes_written
        writing = True
        try:
            for kind, group in groupby(batches, key=lambda batch: batch.kind):
                self._write(kind, list(group))
            writing = False
            self._commits += 1
            self._make_safe()
        except Fenced as error:
            self._failure = error
            for batch in batches:
                batch.error = OutcomeUnknown(str(error))
            return
        except StorageError as error:
            certain = writing and self.log.bytes_written == before and self.log.rewind()
            self._poison(error, "write" if writing else "sync")
            for batch in batches:
                kind = NotAppended if certain else OutcomeUnknown
                batch.error = kind(f"{'nothing was appended' if certain else 'the change may be in the log'}: {self._failure}")
            return
        for batch in batches:
            if batch.session:
                self.log.requests[batch.session] = max(self.log.requests.get(batch.session, 0), batch.request)
        if self._before_ack is not None:
            try:
                self._before_ack(batches)
            except (ImapWalError, StorageError) as error:
                # Nobody could say whether these may be acknowledged; and they are in the log, so it is no "no" either.
                for batch in batches:
                    batch.error = batch.error or OutcomeUnknown(f"the change is in the log, but could not be confirmed: {error}")

    def _write(self, kind: int, batches: list[Batch]) -> None:
        """One frame for the batches (several, where a frame cannot count that many)."""
        start = 0
        while start < len(batches):
            payload: list[bytes] = []
            count, stop = 0, start
            while stop < len(batches) and (stop == start or count + batches[stop].count <= COUNT_MAX):
                payload += batches[stop].payload
                count += batches[stop].count
                stop += 1
            if self._syncs_each and self._unsynced_since is not None:
                self._timed_sync()  # one unsynced frame at most: a power loss then never leaves a whole frame behind a torn one
            if self._unsynced_since is None:
                self._unsynced_since = self._clock.monotonic()
            first = self.log.write(kind, count, payload)
            index = 0
            for batch in batches[start:stop]:
                batch.position = first._replace(index=index)
                index += batch.count
            self._records += count
            start = stop

    def _make_safe(self) -> None:
        """As safe as the durability asks before an acknowledgement. A writer that was replaced acknowledges nothing under any of them."""
        late = self._settings.durability is Durability.INTERVAL and self._unsynced_ms() >= self._settings.sync_interval_ms
        if self._syncs_each or late:
            self._timed_sync()
        else:
            self.log.check_fence()

    def _unsynced_ms(self) -> float:
        return 0 if self._unsynced_since is None else (self._clock.monotonic() - self._unsynced_since) * 1000

    def _timed_sync(self) -> None:
        start = self._clock.monotonic()
        self.log.sync()
        self._sync_seconds += self._clock.monotonic() - start
        self._syncs += 1
        self._unsynced_since = None

    def _guarded_sync(self) -> None:
        try:
            self._timed_sync()
        except Fenced as error:
            self._failure = error
        except StorageError as error:
            self._poison(error, "sync")

    def _rotate(self) -> None:
        if self._failure is not None:
            return
        try:
            self.log.rotate()
            self._unsynced_since = None
            self._rotations += 1
        except Fenced as error:
            self._failure = error
        except StorageError as error:
            self._poison(error, "seal")

    def _poison(self, error: StorageError, doing: str) -> None:
        self._failure = NotAppended(
            f"the log of node {self.log.identity.node!r} failed to {doing}: {error}; nothing more is acknowledged until it is opened again"
        )
