"""What a log needs done while nobody asks: sync by interval, drain the ring of `async`, renew a lease, archive by time and size. One thread, started only if a setting wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from imap_wal.clock import Clock
from imap_wal.committer import Committer
from imap_wal.settings import Durability, Settings
from storage_backends import StorageError

ASYNC_TICK_S = 0.005
ARCHIVE_TICK_S = 1.0
RENEW_S = 10.0
"""A third of a lease's term."""


class Keeper:
    """The background thread of one open log."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._sealed_bytes = 0
        self._thread: threading.Thread | None = None
        self.archive_error = ""
        """Why the last archive failed; its segments stay, nothing is lost, the next one tries again."""

    def start(self, committer: Committer, archive: Callable[[], int]) -> None:
        """Begin. `archive` seals the current segment, archives what is sealed and returns the number of entries."""
        settings = self._settings
        timed = settings.durability in (Durability.INTERVAL, Durability.ASYNC)
        if timed or settings.archive_interval_s or settings.archive_bytes or committer.log.leased:
            self._thread = threading.Thread(target=self._run, args=(committer, archive), name="imap-wal-keeper", daemon=True)
            self._thread.start()

    def sealed(self) -> None:
        """A segment was sealed; the committer says so."""
        self._sealed_bytes += self._settings.segment_bytes
        if self._settings.archive_bytes and self._sealed_bytes >= self._settings.archive_bytes:
            self._wake.set()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, committer: Committer, archive: Callable[[], int]) -> None:
        settings = self._settings
        ticks = {Durability.INTERVAL: settings.sync_interval_ms / 4000, Durability.ASYNC: ASYNC_TICK_S}
        tick = ticks.get(settings.durability, ARCHIVE_TICK_S)
        archived_at = renewed_at = self._clock.monotonic()
        while True:
            self._wake.wait(tick)
            if self._stop.is_set():
                return
            if settings.durability is Durability.ASYNC:
                committer.commit_ready()
            elif settings.durability is Durability.INTERVAL:
                committer.sync_if_due()
            if self._clock.monotonic() - renewed_at >= RENEW_S:
                renewed_at = self._clock.monotonic()
                with suppress(StorageError):  # tried again before the lease runs out; if not, the next writer's first object fences this one
                    committer.renew_lease()
            by_time = settings.archive_interval_s and self._clock.monotonic() - archived_at >= settings.archive_interval_s
            if (by_time or self._wake.is_set()) and committer.failure is None:
                self._wake.clear()
                self._sealed_bytes = 0
                archived_at = self._clock.monotonic()
                try:
                    archive()
                    self.archive_error = ""
                except Exception as error:  # noqa: BLE001  # whatever it is, syncs and leases must go on
                    self.archive_error = f"{type(error).__name__}: {error}"
