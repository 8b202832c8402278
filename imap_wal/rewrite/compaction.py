"""Compaction of an open log: a rewrite and a prune, in another process.

    this process                                        the other process
    seals the segment, so that it can be removed ────▶  rewrite: publishes a snapshot
                                                        prune: removes what it covers
    continues to append ◀─────────────────────────────  a report

`Compactor` starts a compaction automatically when the log has grown by
`auto_rewrite_percentage` of the snapshots since the last compaction, and by at least
`auto_rewrite_min_bytes`, as Redis rewrites its append-only file. Of several processes that write
logs of one cluster, the one that has the lock compacts all of them (`imap_wal.rewrite.turn`).
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from imap_wal.arrow_library import is_installed
from imap_wal.context import Context
from imap_wal.errors import Closed, ImapWalError, StorageUnavailable
from imap_wal.format import START
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import storage_errors
from imap_wal.read.state import NodeState
from imap_wal.retention.log_writer import LogWriter
from imap_wal.retention.other_process import OtherProcess, Report, unreported
from imap_wal.rewrite.plan import Engine
from imap_wal.rewrite.turn import RewriteRunning, turn
from imap_wal.settings import Settings
from imap_wal.tracing import span
from imap_wal.worker import Worker
from imap_wal.write.maintenance import UntilStop
from imap_wal.write.node_log import NodeLog
from storage_backends import StorageError
from storage_backends.metered import LimitedStore

_log = logging.getLogger("imap_wal")

FIRST_LOOK_S = 1.0
"""How long after the open the size of the log is first compared with the settings: a program that
ends earlier spends no time on it."""
OTHERS_S = 5.0
"""The pause while another process rewrites the log."""
PAUSE_S, PAUSE_S_MAX = 1.0, 600.0
"""The pause after a failed compaction; it doubles each time."""
KEEP_S = 10.0
"""How long the other process waits for the next compaction before it ends."""
MEMORY_BYTES = 256 * 1024 * 1024
"""The most memory that an automatic compaction takes, in addition to the program's own."""
LAST_BYTES_PER_S, LAST_ROW_BYTES_PER_S = 128 * 1024 * 1024, 16 * 1024 * 1024
"""When a log is closed, a compaction is awaited only if it can end in time at this rate; the second
one is that of an install without pyarrow."""
SEGMENTS_MAX = 8
"""This number of small segments is compacted as `auto_rewrite_min_bytes` are: an open finds and
opens each of them."""
TINY_BYTES = 1024 * 1024
"""When a log of this size is closed, this process compacts it, without pyarrow: another process
takes longer to start."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction. `records_read`: from the logs and the former snapshots.
    `written_bytes`: the size of the new snapshot files. `snapshot_bytes`: the size of all current
    snapshots. `removed_bytes`: the size of the removed files. `advice`: what to do about readers
    that may be gone, and for which files are kept, and about a history that cannot be kept."""

    records_read: int
    written_bytes: int
    snapshot_bytes: int
    removed_bytes: int
    seconds: float
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionStatistics:
    """Automatic and requested compactions since the log was opened, and how many of them failed.
    `seconds`, `written_bytes`, `removed_bytes`: of those that succeeded, together. `error`: why the
    last automatic one failed; "" if it did not."""

    runs: int = 0
    failures: int = 0
    seconds: float = 0.0
    written_bytes: int = 0
    removed_bytes: int = 0
    error: str = ""

    def plus(self, done: Compaction) -> CompactionStatistics:
        return replace(
            self,
            runs=self.runs + 1,
            seconds=self.seconds + done.seconds,
            written_bytes=self.written_bytes + done.written_bytes,
            removed_bytes=self.removed_bytes + done.removed_bytes,
        )


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Compacts one cluster's log. `unsealed`: number of the first segment of `node` that is not
    sealed. `settings`: of the log. `folder`: local, for temporary files. `bytes_per_s`: how much it
    may read and write per second; 0: no limit. `waits`: whether it waits for another rewrite of the
    log; if not, it then raises `RewriteRunning`. `by_rows`: as in an install without pyarrow."""

    namespace: str
    cluster: str
    node: str
    unsealed: int
    settings: Settings
    folder: Path
    bytes_per_s: int = 0
    waits: bool = True
    by_rows: bool = False

    def run(
        self,
        context: Context,
        report: Report = unreported,
        pause: Callable[[float], object] = time.sleep,
    ) -> Compaction:
        """Raises the errors of `turn`, `keep_history`, `rewrite` and `prune`. `report`: gets how
        much of the logs is read. `pause`: waits this number of seconds, to keep
        to `bytes_per_s`."""
        # Imported here, because a program that ends soon does not need them.
        from imap_wal.retention.history import keep_history
        from imap_wal.rewrite.prune import prune
        from imap_wal.rewrite.run import rewrite

        if self.bytes_per_s:
            context = context.on(LimitedStore(context.store, self.bytes_per_s, pause))
        log = ClusterLog(context, self.namespace, self.cluster)
        with turn(log, _holder(self.node), _wait if self.waits else None):
            start = log.clock.monotonic()
            warning = keep_history(log, self.settings.history_s)
            done = rewrite(
                log,
                self._engine(report),
                policy=self.settings.recovery_policy,
            )
            removed = prune(
                log,
                ttl_s=self.settings.wal_ttl_seconds,
                size_limit_mb=self.settings.wal_size_limit_mb,
                unsealed={self.node: self.unsealed},
            )
        return Compaction(
            records_read=done.records_read,
            written_bytes=sum(
                map_report.bytes_written for map_report in done.maps if not map_report.unchanged
            ),
            snapshot_bytes=sum(map_report.bytes_after for map_report in done.maps),
            removed_bytes=removed.bytes,
            seconds=log.clock.monotonic() - start,
            advice=(
                *((warning,) if warning else ()),
                *(held.advice for held in removed.kept if held.is_stale),
                *(
                    f"map {table.map!r} was not published as {table.table}: {table.error}"
                    for table in done.tables
                    if table.error
                ),
            ),
        )

    def _engine(self, report: Report) -> Engine:
        settings = replace(self.settings, scratch=self.folder)
        if self.by_rows or not is_installed():
            from imap_wal.rewrite.row_engine import RowEngine

            return RowEngine(settings, lambda now: report(now.part))
        from imap_wal.rewrite.local_engine import LocalEngine

        return LocalEngine(settings, lambda now: report(now.part))


def _holder(node: str) -> str:
    return f"compaction of node {node!r}"


def _wait(holder: str) -> None:
    """`turn` waits, and reports nothing."""


class Compactor:
    """Compacts the log of `writer`, on request and automatically. Thread-safe. `logs`: all logs of
    the cluster. `process`: does the work; None: a thread of this process does it."""

    def __init__(
        self, writer: LogWriter, logs: ClusterLog, process: OtherProcess | None = None
    ) -> None:
        self._settings = writer.log.settings
        self._writer, self._logs, self._clock = writer, logs, logs.clock
        self._process = process
        self._compacting, self._stop = threading.Lock(), threading.Event()
        self._closing = threading.Event()
        """The thread does what is due; if `_stop` is set too, it ends at once."""
        self._finished = threading.Event()
        """It has looked since `_closing` was set."""
        self._growth = writer.maintenance.compaction
        self._segment_bytes_min = writer.maintenance.segment_bytes_min = self._least_of_segment()
        self._is_tiny = False
        """Whether `finish` has found a log of at most `TINY_BYTES`."""
        self._pause = 0.0
        self._advised = False
        """The last compaction had advice."""
        self.is_automatic = False
        """`worker` runs."""
        self.statistics = CompactionStatistics()
        """Replaced as a whole: safe to read from any thread."""
        self.part: float | None = None
        """How much of the logs the running compaction has read, from 0 to 1; None: none runs. Safe
        to read from any thread."""
        self.worker = Worker("imap-wal-compactor", self._turn)

    def start(self) -> None:
        """Start automatic compaction, if the settings ask for it."""
        if self._settings.auto_rewrite_percentage:
            self.is_automatic = True
            self._growth.at = -inf
            self._pause = FIRST_LOOK_S
            self.worker.start()

    def compact(self) -> Compaction:
        """Rewrite all maps, and remove what the new snapshots cover. Waits while another process
        rewrites them.

        Raises:
            LostRace: another process dropped a map or opened the log meanwhile.
            LogError: the log is damaged; no file that a damaged snapshot covers was removed.
            StorageUnavailable: the storage failed.
            ProcessDied: the other process was killed.
            Closed: the log was closed meanwhile.
        """
        return self._compact(automatic=False)

    def finish(self, limit_s: float) -> None:
        """Before `stop`: wait for an automatic compaction that runs, and for one more if it is due,
        so that the next open has little to read. Together they take at most `limit_s` seconds, and
        nothing is begun that would take longer, or while the interpreter shuts down."""
        if not self.is_automatic or limit_s <= 0 or self.statistics.error:
            return
        until = self._clock.monotonic() + limit_s
        # When the main thread has ended, the interpreter shuts down.
        if threading.main_thread().is_alive() and self._fits(limit_s):
            self._closing.set()
            self._growth.wake.set()
            # Not `worker.stop`: a thread that is between two turns, or before its first one, would
            # end without a look.
            self._finished.wait(max(until - self._clock.monotonic(), 0))

    def _fits(self, limit_s: float) -> bool:
        """Whether there is something to compact, and so little that it can end in time."""
        if self.part is None and self._grown < self._growth.at:
            return False
        try:
            log_sizes = self._measured()
            if self.part is None and self._grown < self._growth.at:
                return False
            manifest = self._logs.manifest()
            needs_parquet = manifest.decoded or manifest.tables
            self._is_tiny = log_sizes.all <= TINY_BYTES and not needs_parquet
        except (ImapWalError, StorageError):  # the next open finds it, too
            return False
        rate = LAST_BYTES_PER_S if is_installed() else LAST_ROW_BYTES_PER_S
        return log_sizes.all <= limit_s * rate

    def stop(self) -> None:
        """End a running compaction, and the thread."""
        self._stop.set()
        self._closing.set()
        self.worker.stopping.set()
        self._growth.wake.set()
        if self._process is not None:
            self._process.stop()
        self.worker.stop()

    @property
    def _grown(self) -> int:
        return self._writer.maintenance.grown(self._writer.log)

    def _least_of_segment(self) -> int:
        """As how many bytes a small segment counts, of `auto_rewrite_min_bytes`. Where each commit
        is an object, archives have the entries of small ones."""
        least = self._settings.auto_rewrite_min_bytes
        if self._writer.log.store.capabilities.durable_append:
            return least // SEGMENTS_MAX
        objects = self._settings.archive_objects
        return 0 if not objects or is_installed() else least // objects

    def _measured(self) -> LogSizes:
        """The sizes of the log, after which it is known when a compaction is due."""
        log_sizes = sizes(self._logs, self._writer.log, self._segment_bytes_min)
        if self._growth.at == -inf:
            self._growth.at = self._grown + self._allowed(log_sizes.snapshots) - log_sizes.grown
        return log_sizes

    def _compact(self, *, automatic: bool) -> Compaction:
        grown = self._grown
        try:
            with (
                self._compacting,
                storage_errors(f"compacting {self._writer.log}; nothing is lost"),
            ):
                self._writer.committer.checkpoint()
                self.part = 0.0
                try:
                    done = self._traced(automatic)
                finally:
                    self.part = None
        except (RewriteRunning, Closed):
            raise
        except BaseException:
            before = self.statistics
            self.statistics = replace(before, runs=before.runs + 1, failures=before.failures + 1)
            raise
        self.statistics = self.statistics.plus(done)
        if done.advice and not self._advised:
            _log.warning("%s: %s", self._writer.log, "; ".join(done.advice))
        self._advised = bool(done.advice)
        self._growth.at = grown + self._allowed(done.snapshot_bytes)
        return done

    def _traced(self, automatic: bool) -> Compaction:
        with span(self._clock, "compaction") as facts:
            done = self._run(automatic)
            facts |= {
                "records": done.records_read,
                "written_bytes": done.written_bytes,
                "removed_bytes": done.removed_bytes,
            }
        return done

    def _reached(self, part: float) -> None:
        self.part = part

    def _allowed(self, snapshot_bytes: int) -> int:
        """How many bytes may be appended after a compaction before the next one begins."""
        settings = self._settings
        share = snapshot_bytes * settings.auto_rewrite_percentage // 100
        return max(settings.auto_rewrite_min_bytes, share)

    def _run(self, automatic: bool) -> Compaction:
        log, settings = self._writer.log, self._settings
        bytes_per_s = settings.auto_rewrite_bytes_per_second
        if automatic:
            memory = min(settings.restore_memory_bytes, MEMORY_BYTES)
            settings = replace(settings, restore_memory_bytes=memory)
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
                    settings,
                    Path(folder),
                    0 if self._closing.is_set() or not automatic else bytes_per_s,
                    waits=not automatic,
                    by_rows=self._is_tiny,
                )
                if self._process is not None and not self._is_tiny:
                    done: Compaction = self._process.run(task, self._reached)
                    return done
                context = self._logs.context.on(UntilStop(self._logs.store, self._stop))
                return task.run(context, self._reached, self._stop.wait)
        except OSError as error:  # from this machine: the store raises StorageErrors
            room = log.settings.scratch or tempfile.gettempdir()
            raise StorageUnavailable(
                f"compacting {log} needs space for temporary files in {room}: {error}; nothing "
                "is lost. Free space there, or choose another scratch folder"
            ) from error

    # ---- automatic ----

    def _turn(self, worker: Worker) -> bool:
        if not self._closing.wait(self._pause):
            while self._grown < self._growth.at and not self._closing.is_set():
                self._growth.wake.wait()
                self._growth.wake.clear()  # first: `stop` sets it after it has set `_closing`
        if self._finished.is_set():
            worker.stopping.wait()
        if self._stop.is_set():
            return False
        before, self._pause = self._pause, 0.0
        closing = self._closing.is_set()
        try:
            error = self._look(worker)
        finally:
            if closing:
                self._finished.set()
        if error and error != self.statistics.error:
            _log.warning(
                "%s was not compacted, and grows until it can be: %s", self._writer.log, error
            )
        if error:
            self._pause = min(2 * before or PAUSE_S, PAUSE_S_MAX)
        self.statistics = replace(self.statistics, error=error)
        return not error

    def _look(self, worker: Worker) -> str:
        """Compact if the log has grown enough. Returns the error text if that failed."""
        if self._writer.committer.failure is not None:
            self._growth.at = inf  # nothing more is written
            return ""
        try:
            self._compact_if_due()
        except Closed:
            return ""
        except (ImapWalError, StorageError) as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001  # an unexpected error: `worker` reports it
            worker.failed(error)
            return f"{type(error).__name__}: {error}"
        return ""

    def _compact_if_due(self) -> None:
        if self._growth.at == -inf:
            self._measured()
        if self._grown >= self._growth.at:
            try:
                # First: otherwise each attempt would seal a segment and start another process.
                with turn(self._logs, _holder(self._writer.log.identity.node)):
                    pass
                self._compact(automatic=True)
            except RewriteRunning:
                self._growth.at = -inf  # perhaps nothing is left to do afterwards
                self._pause = OTHERS_S


# How much of a log is not covered by snapshots yet.


@dataclass(frozen=True, slots=True)
class LogSizes:
    """Sizes in bytes. `uncovered`: of the entries that no snapshot covers (archives, sealed
    segments with entries, and the segment that this process writes). `grown`: the same, but each
    segment counts as at least some bytes, because an open has to find and open each of them.
    `snapshots`: of all snapshots. The segments that others write do not count: they cannot be
    removed yet, and their sizes include space that is only reserved."""

    uncovered: int
    grown: int
    snapshots: int

    @property
    def all(self) -> int:
        return self.uncovered + self.snapshots


def sizes(logs: ClusterLog, own: NodeLog, segment_bytes_min: int) -> LogSizes:
    """`segment_bytes_min`: see `LogSizes.grown`. Raises StorageError, `LogError`."""
    state = logs.state()
    archives, segments = 0, [own.unsealed_bytes]
    for node in state.nodes.values():
        covered, complete = state.covered(node.name), state.complete(node.name)
        archives += sum(
            archive.bytes
            for archive in node.manifest.archives
            if archive.last > covered.get(archive.map, START)
        )
        writing = own.unsealed if node.name == own.identity.node else _newest(node)
        for segment in node.segments:
            if segment.number < writing:
                if segment.name == complete[:2]:
                    segments.append(max(segment.bytes - complete.frame, 0))
                elif segment.name > complete[:2]:
                    segments.append(segment.bytes)
    return LogSizes(
        archives + sum(segments),
        archives + sum(max(size, segment_bytes_min) for size in segments if size),
        sum(snapshot.bytes for snapshot in state.manifest.snapshots.values()),
    )


def _newest(node: NodeState) -> int:
    """The number of the segment that a node may be writing. That of a closed log is sealed."""
    return 2**62 if node.manifest.clean or not node.segments else node.segments[-1].number
