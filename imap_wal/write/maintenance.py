"""Background maintenance of a log: sync by interval, drain the ring of `async`, renew a lease, move
the checkpoint, rotate by time, archive by time, size and number of objects, remove covered files by
age and size.
Threads start only if a setting needs them: one for the short work, the archiver for archives
and removal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from imap_wal.arrow_library import is_installed
from imap_wal.clock import Clock
from imap_wal.errors import Closed, Fenced, ImapWalError, LostRace
from imap_wal.format import SegmentHeader
from imap_wal.security.encryption import sealed
from imap_wal.segment.listing import SegmentFile, wal_folder
from imap_wal.settings import Durability, Settings
from imap_wal.tracing import span
from imap_wal.worker import Turn, Worker
from imap_wal.write.committer import Committer
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore, StorageError
from storage_backends.gated import GatedStore

ASYNC_TICK_S = 0.005
ARCHIVE_TICK_S = LEASE_TICK_S = 1.0
RENEW_S = 10.0
"""A third of a lease's term."""
RETAIN_S = 600.0
"""The longest pause between two searches for covered files to remove, as in RocksDB."""
SMALL_BYTES = 8 * 1024
"""Objects of this size on average are archived by their number: 1,000 of them are what
`RecentObjects` keeps."""
PAUSE_S, PAUSE_S_MAX = 1.0, 600.0
"""The pause before a failed archive is repeated; it doubles each time, because an archive reads
everything that is not archived yet."""


@dataclass(frozen=True, slots=True)
class MaintenanceStatistics:
    """What the background threads have done since the log was opened: runs that archived, and that
    removed covered files, and how many of them failed. `archive_error`, `retention_error`: why the
    last run failed; "" if it did not."""

    archives: int
    archive_failures: int
    archive_error: str
    removals: int
    removal_failures: int
    retention_error: str


@dataclass(frozen=True, slots=True)
class LogExtent:
    """How far a log has grown. `written`: see `Maintenance.written`. `segment`: the number of its
    last segment."""

    written: int
    segment: int


class Growth:
    """Wakes a thread when the log has grown. `at`: the value of `Maintenance.written` to reach."""

    def __init__(self) -> None:
        self.at: float = inf
        self.wake = threading.Event()

    def reach(self, written: int) -> None:
        """The log has grown to this value."""
        if written >= self.at and not self.wake.is_set():
            self.wake.set()


class Maintenance:
    """The background threads of one open log. `compaction`: for the thread that compacts it."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._stop = threading.Event()
        self._header_bytes = 0
        self._full, self.compaction = Growth(), Growth()
        """`max_total_wal_size` is reached; the log is to be compacted, by `grown`."""
        self.segment_bytes_min = 0
        self.workers: list[Worker] = []
        self.archive_error = ""
        """Why the last archive failed. Its segments stay, and it is tried again."""
        self.retention_error = ""
        """Why removing covered files failed last time; it is tried again."""
        self._objects_at: float = inf
        """The number of the segment at which objects are counted next."""
        self._archives = self._archive_failures = self._removals = self._removal_failures = 0

    @property
    def statistics(self) -> MaintenanceStatistics:
        """Safe to read from any thread."""
        return MaintenanceStatistics(
            self._archives,
            self._archive_failures,
            self.archive_error,
            self._removals,
            self._removal_failures,
            self.retention_error,
        )

    def start(
        self, committer: Committer, archive: Callable[[], object], retain: Callable[[], object]
    ) -> None:
        """Start the threads. `archive` seals the current segment, archives the sealed ones and
        calls `count_from`; `retain` removes covered files."""
        settings = self._settings
        drains = settings.durability is Durability.ASYNC and not settings.manual_wal_flush
        if (
            drains
            or settings.durability is Durability.INTERVAL
            or settings.rotate_interval_s
            or committer.log.permit.leased
        ):
            self.workers.append(Worker("imap-wal-maintenance", self._keep(committer)))
        archives = bool(settings.archive_interval_s or settings.max_total_wal_size)
        objects = self._counts_objects(committer.log)
        # Another thread, because syncs and leases must not wait for an archive.
        if archives or objects or _retain_every(settings):
            left = sum(segment.bytes for segment in _left(committer.log)) if archives else 0
            if objects:
                self._objects_at = committer.log.end.segment + 1
            self._header_bytes = _header_bytes(committer.log)
            if settings.max_total_wal_size:
                # The first archive by size waits until something is written.
                self._full.at = self.written(committer.log) + max(
                    settings.max_total_wal_size - left, 1
                )
            at_once = left > 0 and not settings.avoid_flush_during_recovery
            self.workers.append(
                Worker("imap-wal-archiver", self._archiving(committer, archive, retain, at_once))
            )
        for worker in self.workers:
            worker.start()

    def written(self, log: NodeLog) -> int:
        """A number that grows with every byte written to segments, with their headers."""
        return log.bytes_written + log.end.segment * self._header_bytes

    def grown(self, log: NodeLog) -> int:
        """As `written`, but each segment counts as at least `segment_bytes_min`."""
        return log.bytes_written + log.end.segment * self.segment_bytes_min

    def committed(self, log: NodeLog) -> None:
        """The committer calls this after every commit."""
        if self._full.at < inf:
            self._full.reach(self.written(log))
        if self.compaction.at < inf:
            self.compaction.reach(self.grown(log))

    def reached(self, log: NodeLog) -> LogExtent:
        return LogExtent(self.written(log), log.end.segment)

    def count_from(self, reached: LogExtent) -> None:
        """Everything up to there is archived: `max_total_wal_size` and `archive_objects` count from
        there."""
        settings = self._settings
        self._full.at = max(self._full.at, reached.written + settings.max_total_wal_size)
        if self._objects_at < inf:
            at = reached.segment + settings.archive_objects
            self._objects_at = max(self._objects_at, at)

    def _counts_objects(self, log: NodeLog) -> bool:
        """Whether `archive_objects` counts: each commit is an object, and archives can be
        written."""
        return (
            self._settings.archive_objects > 0
            and not log.store.capabilities.durable_append
            and is_installed()
        )

    def _is_due(self, log: NodeLog) -> bool:
        """Whether the log has grown enough for an archive."""
        if self.written(log) >= self._full.at:
            return True
        return log.end.segment >= self._objects_at and self._has_many_small(log)

    def _has_many_small(self, log: NodeLog) -> bool:
        """Whether `archive_objects` are not archived, and are small: requesting larger ones costs a
        restore little, and automatic compaction counts their bytes. If not, decides when to look
        again."""
        # First, and without the last one, which may not be stored yet: so the next look may be too
        # early, and never too late.
        segment = log.end.segment - 1
        try:
            left = _left(log)
        except (StorageError, ImapWalError):
            left = ()  # the next commits notice it too
        room = self._settings.archive_objects - len(left)
        if room <= 0 and sum(segment.bytes for segment in left) <= SMALL_BYTES * len(left):
            return True
        room = room if room > 0 else self._settings.archive_objects
        self._objects_at = segment + room
        return False

    def stop(self) -> None:
        """End the threads. Work through `until_stop` ends at its next call of the storage."""
        for worker in self.workers:
            worker.stopping.set()
        self._stop.set()
        self._full.wake.set()
        for worker in self.workers:
            worker.stop()

    def until_stop(self, store: SegmentStore) -> SegmentStore:
        """The store for long work that may stay unfinished: after `stop` every call raises
        `Closed`."""
        return UntilStop(store, self._stop)

    def _keep(self, committer: Committer) -> Turn:
        settings = self._settings
        ticks = {
            Durability.INTERVAL: settings.sync_interval_ms / 4000,
            Durability.ASYNC: ASYNC_TICK_S,
        }
        renewed_at = self._clock.monotonic()
        tick = ticks.get(settings.durability, LEASE_TICK_S)
        if settings.rotate_interval_s:
            tick = min(tick, settings.rotate_interval_s / 4)

        def turn(worker: Worker) -> bool:
            nonlocal renewed_at
            if self._stop.wait(tick):
                return False
            committer.rotate_if_due()
            if settings.durability is Durability.ASYNC and not settings.manual_wal_flush:
                committer.commit_ready()
            elif settings.durability is Durability.INTERVAL:
                committer.sync_if_due()
            if not committer.log.store.capabilities.durable_append:
                # Tried again; a replaced writer gets the error at its next commit.
                with suppress(StorageError, LostRace, Fenced):
                    committer.checkpoint_if_due()
            if self._clock.monotonic() - renewed_at >= RENEW_S:
                renewed_at = self._clock.monotonic()
                # Tried again before the lease expires. If that fails too, the next writer's first
                # object fences this one.
                with suppress(StorageError):
                    committer.renew_lease()
            return True

        return turn

    def _archiving(
        self,
        committer: Committer,
        archive: Callable[[], object],
        retain: Callable[[], object],
        at_once: bool,
    ) -> Turn:
        log, now = committer.log, self._clock.monotonic
        archive_every, retain_every = (
            self._settings.archive_interval_s or inf,
            _retain_every(self._settings),
        )
        archive_at = now() if at_once else now() + archive_every
        retain_at = now() if retain_every else inf
        pause = 0.0

        def turn(worker: Worker) -> bool:
            nonlocal archive_at, retain_at, pause
            if committer.failure is None:
                if now() >= archive_at or self._is_due(log):
                    tried = self.reached(log)
                    self.archive_error = _attempt(worker, archive, self._clock, "archive")
                    self._archives += 1
                    self._archive_failures += bool(self.archive_error)
                    pause = min(2 * pause or PAUSE_S, PAUSE_S_MAX) if self.archive_error else 0
                    archive_at = now() + min(archive_every, pause or inf)
                    if self.archive_error:
                        # Otherwise every commit would wake this thread until it succeeds.
                        self.count_from(tried)
                    elif retain_every:
                        retain_at = now()
                if now() >= retain_at and not self._stop.is_set():
                    retain_at = now() + retain_every
                    self.retention_error = _attempt(worker, retain, self._clock, "retention")
                    self._removals += 1
                    self._removal_failures += bool(self.retention_error)
            self._full.wake.wait(ARCHIVE_TICK_S)
            self._full.wake.clear()
            return not self.archive_error and not self.retention_error

        return turn


class UntilStop(GatedStore):
    def __init__(self, inner: SegmentStore, stop: threading.Event) -> None:
        super().__init__(inner)
        self._stop = stop

    def there(self, path: str = "") -> SegmentStore:
        """The storage. Raises `Closed` after the stop."""
        if self._stop.is_set():
            raise Closed(
                "the log was closed during this maintenance run; nothing is lost, and the work "
                "is done after the next open"
            )
        return self.inner


def _attempt(worker: Worker, work: Callable[[], object], clock: Clock, name: str) -> str:
    """Run `work`, and return what failed, because it has no caller. Nothing is lost, and it is
    tried again."""
    try:
        with span(clock, name):
            work()
    except (ImapWalError, StorageError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  # an unexpected error: the agent reports unhealthy
        worker.failed(error)
        return f"{type(error).__name__}: {error}"
    return ""


def _retain_every(settings: Settings) -> float:
    """Seconds between two searches for covered files to remove; 0: no search, only a compaction or
    `imap-wal prune` removes them."""
    if not settings.wal_ttl_seconds:
        return RETAIN_S if settings.wal_size_limit_mb else 0
    return min(settings.wal_ttl_seconds / 2, RETAIN_S)


def _left(log: NodeLog) -> Sequence[SegmentFile]:
    """The segments of an earlier run that are not archived. Their reserved space is already
    freed."""
    archived = log.manifests.read()[1].archived
    return wal_folder(log.store, log.identity.node_folder, archived).segments


def _header_bytes(log: NodeLog) -> int:
    """Bytes of a segment besides its frames; much if every commit is a segment."""
    who, number = log.identity, log.end.segment + 1
    header = SegmentHeader(
        bytes(16),
        who.namespace,
        who.cluster,
        who.node,
        log.epoch,
        number,
        2**31,
        log.clock.now_ms(),
        log.directory,
    )
    return len(sealed(log.context.context.keys.key_ring, header, log.randomness)[0].encode())
