"""What a log needs done while nobody asks: sync by interval, drain the ring of `async`, renew a lease, rotate by time, archive by time and size. Threads are started only
if a setting wants them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from imap_wal.clock import Clock
from imap_wal.committer import Committer
from imap_wal.settings import Durability, Settings
from storage_backends import StorageError

ASYNC_TICK_S = 0.005
ARCHIVE_TICK_S = LEASE_TICK_S = 1.0
RENEW_S = 10.0
"""A third of a lease's term."""


class Keeper:
    """The background threads of one open log."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._sealed_bytes = 0
        self._threads: list[threading.Thread] = []
        self.archive_error = ""
        """Why the last archive failed; its segments stay, nothing is lost, the next one tries again."""

    def start(self, committer: Committer, archive: Callable[[], int]) -> None:
        """Begin. `archive` seals the current segment, archives what is sealed and returns the number of entries."""
        settings = self._settings
        works: list[tuple[str, Callable[[], None]]] = []
        drains = settings.durability is Durability.ASYNC and not settings.manual_wal_flush
        if drains or settings.durability is Durability.INTERVAL or settings.rotate_interval_s or committer.log.leased:
            works.append(("imap-wal-keeper", lambda: self._keep(committer)))
        if settings.archive_interval_s or settings.max_total_wal_size:  # a thread of its own: syncs and leases must not wait for an archive
            self._sealed_bytes = sum(file.size for file in committer.log.store.list(f"{committer.log.identity.node_folder}/wal"))
            if self._sealed_bytes and not settings.avoid_flush_during_recovery:
                self._wake.set()
            works.append(("imap-wal-archiver", lambda: self._archive(committer, archive)))
        for name, work in works:
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def sealed(self) -> None:
        """A segment was sealed; the committer says so."""
        self._sealed_bytes += self._settings.segment_bytes
        if self._settings.max_total_wal_size and self._sealed_bytes >= self._settings.max_total_wal_size:
            self._wake.set()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, committer: Committer) -> None:
        settings = self._settings
        ticks = {Durability.INTERVAL: settings.sync_interval_ms / 4000, Durability.ASYNC: ASYNC_TICK_S}
        renewed_at = self._clock.monotonic()
        tick = ticks.get(settings.durability, LEASE_TICK_S)
        if settings.rotate_interval_s:
            tick = min(tick, settings.rotate_interval_s / 4)
        while not self._stop.wait(tick):
            committer.rotate_if_due()
            if settings.durability is Durability.ASYNC and not settings.manual_wal_flush:
                committer.commit_ready()
            elif settings.durability is Durability.INTERVAL:
                committer.sync_if_due()
            if self._clock.monotonic() - renewed_at >= RENEW_S:
                renewed_at = self._clock.monotonic()
                with suppress(StorageError):  # tried again before the lease runs out; if not, the next writer's first object fences this one
                    committer.renew_lease()

    def _archive(self, committer: Committer, archive: Callable[[], int]) -> None:
        archived_at = self._clock.monotonic()
        while True:
            self._wake.wait(ARCHIVE_TICK_S)
            if self._stop.is_set():
                return
            by_time = self._settings.archive_interval_s and self._clock.monotonic() - archived_at >= self._settings.archive_interval_s
            if not (by_time or self._wake.is_set()) or committer.failure is not None:
                self._wake.clear()
                continue
            self._wake.clear()
            self._sealed_bytes = 0
            archived_at = self._clock.monotonic()
            try:
                archive()
                self.archive_error = ""
            except Exception as error:  # noqa: BLE001  # whatever it is, its segments stay, and the next archive tries again
                self.archive_error = f"{type(error).__name__}: {error}"
