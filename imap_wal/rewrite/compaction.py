"""Compaction of an open log: a rewrite and a prune, in another process.

    this process                                        the other process
    seals the segment, so that it can be removed ────▶  rewrite: publishes a snapshot
                                                        prune: removes what it covers
    continues to append ◀─────────────────────────────  a report

`Compactor` starts a compaction automatically when the log has grown by
`auto_rewrite_percentage` of the snapshots since the last compaction, and by at least
`auto_rewrite_min_bytes`, as Redis rewrites its append-only file.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from dataclasses import dataclass
from math import inf
from pathlib import Path

from imap_wal.clock import Clock
from imap_wal.errors import Closed, ImapWalError, StorageUnavailable
from imap_wal.format import START
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import storage_errors
from imap_wal.retention.log_writer import LogWriter
from imap_wal.retention.other_process import OtherProcess
from imap_wal.settings import Settings
from imap_wal.worker import Worker
from imap_wal.write.maintenance import UntilStop
from storage_backends import SegmentStore, StorageError

_log = logging.getLogger("imap_wal")

LOOK_S = 1.0
"""The interval in which the size of the log is compared with the settings."""
PAUSE_S, PAUSE_S_MAX = 1.0, 600.0
"""The pause after a failed compaction; it doubles each time."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction. `records_read`: from the logs and the former snapshots.
    `written_bytes`: the size of the new snapshot files. `snapshot_bytes`: the size of all current
    snapshots. `removed_bytes`: the size of the removed files."""

    records_read: int
    written_bytes: int
    snapshot_bytes: int
    removed_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Compacts one cluster's log. `unsealed`: number of the first segment of `node` that is not
    sealed. `folder`: local, for temporary files."""

    namespace: str
    cluster: str
    node: str
    unsealed: int
    memory_bytes: int
    folder: Path

    def run(self, store: SegmentStore, clock: Clock | None = None) -> Compaction:
        """Raises the errors of `rewrite` and `prune`. `clock`: for tests."""
        # Imported here, because they load pyarrow.
        from imap_wal.rewrite.local_engine import LocalEngine
        from imap_wal.rewrite.prune import prune
        from imap_wal.rewrite.run import rewrite

        log = ClusterLog(store, self.namespace, self.cluster, clock)
        settings = Settings(restore_memory_bytes=self.memory_bytes, scratch=self.folder)
        start = log.clock.monotonic()
        report = rewrite(log, LocalEngine(settings))
        removed = prune(log, unsealed={self.node: self.unsealed})
        return Compaction(
            records_read=report.records_read,
            written_bytes=sum(each.bytes_written for each in report.maps if not each.unchanged),
            snapshot_bytes=sum(each.bytes_after for each in report.maps),
            removed_bytes=removed.bytes,
            seconds=log.clock.monotonic() - start,
        )


class Compactor:
    """Compacts the log of `writer`, on request and automatically. Thread-safe. `logs`: all logs of
    the cluster. `process`: does the work; None: a thread of this process does it."""

    def __init__(
        self, writer: LogWriter, logs: ClusterLog, process: OtherProcess | None = None
    ) -> None:
        settings = writer.log.settings
        self._writer, self._logs, self._clock = writer, logs, logs.clock
        self._percentage = settings.auto_rewrite_percentage
        self._min_bytes = settings.auto_rewrite_min_bytes
        self._process = process
        self._compacting, self._stop = threading.Lock(), threading.Event()
        self._at: float = -inf
        """The number of written bytes at which the next compaction begins; -inf: not known yet."""
        self.worker: Worker | None = None
        self.error = ""
        """Why the last automatic compaction failed; it is tried again. "": it did not."""

    def start(self) -> None:
        """Start automatic compaction, if the settings ask for it."""
        if self._percentage:
            pause = 0.0

            def turn(worker: Worker) -> bool:
                nonlocal pause
                if self._stop.wait(LOOK_S + pause):
                    return False
                error = self._look(worker)
                if error and error != self.error:
                    _log.warning(
                        "%s was not compacted, and grows until it can be: %s",
                        self._writer.log,
                        error,
                    )
                self.error = error
                pause = min(2 * pause or PAUSE_S, PAUSE_S_MAX) if self.error else 0.0
                return not self.error

            self.worker = Worker("imap-wal-compactor", turn)
            self.worker.start()

    def compact(self) -> Compaction:
        """Rewrite all maps, and remove what the new snapshots cover.

        Raises:
            LostRace: another process rewrote a map meanwhile.
            LogError: the log is damaged; no file that a damaged snapshot covers was removed.
            StorageUnavailable: the storage failed.
            ProcessDied: the other process was killed.
            Closed: the log was closed meanwhile.
        """
        written = self._written
        with self._compacting, storage_errors(f"compacting {self._writer.log}; nothing is lost"):
            self._writer.committer.rotate()
            done = self._run()
        self._at = written + self._allowed(done.snapshot_bytes)
        return done

    def stop(self) -> None:
        """End a running compaction, and the thread."""
        self._stop.set()
        if self.worker is not None:
            self.worker.stopping.set()
        if self._process is not None:
            self._process.stop()
        if self.worker is not None:
            self.worker.stop()

    @property
    def _written(self) -> int:
        return self._writer.maintenance.written(self._writer.log)

    def _allowed(self, snapshot_bytes: int) -> int:
        """How many bytes may be appended after a compaction before the next one begins."""
        return max(self._min_bytes, snapshot_bytes * self._percentage // 100)

    def _run(self) -> Compaction:
        log = self._writer.log
        try:
            # This process removes the folder, because the other process may be killed.
            with tempfile.TemporaryDirectory(
                prefix="imap-wal-compact-", dir=log.settings.scratch, ignore_cleanup_errors=True
            ) as folder:
                task = CompactionTask(
                    self._logs.namespace,
                    self._logs.cluster,
                    log.identity.node,
                    log.unsealed,
                    log.settings.restore_memory_bytes,
                    Path(folder),
                )
                if self._process is not None:
                    done: Compaction = self._process.run(task)
                    return done
                return task.run(UntilStop(self._logs.store, self._stop), self._clock)
        except OSError as error:  # from this machine: the store raises StorageErrors
            room = log.settings.scratch or tempfile.gettempdir()
            raise StorageUnavailable(
                f"compacting {log} needs space for temporary files in {room}: {error}; nothing "
                "is lost"
            ) from error

    def _look(self, worker: Worker) -> str:
        """Compact if the log has grown enough. Returns the error text if that failed."""
        if self._writer.committer.failure is not None:
            return ""
        try:
            if self._at == -inf:
                uncovered, snapshots = sizes(self._logs)
                self._at = self._written + self._allowed(snapshots) - uncovered
            if self._written >= self._at:
                self.compact()
        except Closed:
            return ""
        except (ImapWalError, StorageError) as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001  # an unexpected error: `worker` reports it
            worker.failed(error)
            return f"{type(error).__name__}: {error}"
        return ""


def sizes(log: ClusterLog) -> tuple[int, int]:
    """The bytes of archives and segments that are not covered, and the bytes of all snapshots. A
    segment counts as a whole."""
    state = log.state()
    uncovered = 0
    for node in state.nodes.values():
        covered = state.covered(node.name)
        uncovered += sum(
            archive.bytes
            for archive in node.manifest.archives
            if archive.last > covered.get(archive.map, START)
        )
        uncovered += sum(segment.bytes for segment in node.segments)
    return uncovered, sum(each.bytes for each in state.manifest.snapshots.values())
