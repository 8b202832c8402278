"""A node's log with everything that writes and maintains it: ring, committer, background
maintenance, archives, removal of covered files. The embedded store, `imap_wal.log` and the agent
each have one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from imap_wal.arrow_library import loading
from imap_wal.format import Position
from imap_wal.manifest.node import NOTHING_SEEN
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import storage_errors
from imap_wal.write.committer import Committer
from imap_wal.write.maintenance import Maintenance
from imap_wal.write.node_log import NodeLog
from imap_wal.write.ring import CommitRequest, CommitSignal, RingBuffer

if TYPE_CHECKING:  # pyarrow is not loaded by a program that never archives
    from imap_wal.retention.archive import Archived
    from imap_wal.retention.archiver import ArchiverProcess
    from imap_wal.retention.removal import Removal


class LogWriter:
    """Thread-safe. `logs`: all logs of the cluster, to find which files snapshots cover.
    `before_ack`: see `Committer`. `archiver`: writes the archives in another process; None: this
    process writes them."""

    def __init__(
        self,
        log: NodeLog,
        logs: ClusterLog,
        before_ack: Callable[[Sequence[CommitRequest]], None] | None = None,
        archiver: ArchiverProcess | None = None,
    ) -> None:
        self.log, self._logs, self._archiver = log, logs, archiver
        self.ring: RingBuffer[CommitRequest] = RingBuffer(
            log.settings.ring_slots, log.settings.ring_bytes
        )
        self.maintenance = Maintenance(log.settings, log.clock)
        self.signal = CommitSignal(log.end)
        self.committer = Committer(self.ring, log, self._committed, before_ack)
        self._archiving = threading.Lock()

    def _committed(self, log: NodeLog) -> None:
        self.maintenance.committed(log)
        self.signal.reached(log.end)

    def start(
        self,
        archive: Callable[[], object] | None = None,
        remove_covered: Callable[[], object] | None = None,
    ) -> None:
        """Start the background maintenance. It calls the arguments instead of the methods of the
        same name; they must call these methods."""
        self.maintenance.start(
            self.committer, archive or self.archive, remove_covered or self.remove_covered
        )

    def archive(self) -> Archived:
        """Seal the current segment, and turn all sealed segments into archives. Raises
        `MissingLibrary`, `StorageUnavailable`, and the errors of `Committer.rotate` and
        `archive_sealed`; nothing is lost then."""
        with loading("an archive is a Parquet file"):
            from imap_wal.retention import archive, archive_writer

        log = self.log
        reached = self.maintenance.reached(log)
        self.committer.rotate()
        write = archive_writer.write_archives if self._archiver is None else self._archiver.write
        with (
            self._archiving,
            storage_errors(f"archiving {log}; nothing is lost, its segments are kept"),
        ):
            store = log.recent.over(self.maintenance.until_stop(log.store))
            context = log.context.context.on(store)
            done = archive.archive_sealed(
                context,
                log.identity.node_folder,
                log.identity.node,
                log.manifests,
                epoch=log.epoch,
                writing=log.unsealed,
                write=write,
            )
        self.maintenance.count_from(reached)
        return done

    def remove_covered(self) -> Removal:
        """Remove covered files by `wal_ttl_seconds` and `wal_size_limit_mb`. Raises
        `StorageUnavailable`; the next run removes the remaining files."""
        from imap_wal.retention.removal import remove_covered

        log, logs = self.log, self._logs
        with (
            self._archiving,
            storage_errors(f"removing covered files of {log}; the next run removes the rest"),
        ):
            logs = logs.on(self.maintenance.until_stop(logs.store))
            return remove_covered(logs, log.identity.node, log.settings, log.unsealed)

    def shrink(self, upto: Position, *, uncovered: bool = False) -> Position:
        """Remove whole archives and sealed segments without an entry above `upto`. Returns the
        position of the last entry that was ever removed. Removes only covered files, unless
        `uncovered`."""
        from imap_wal.retention.removal import plan_removal, remove

        log = self.log
        with self._archiving:
            node, covered, seen = self._logs.node(log.identity.node), None, NOTHING_SEEN
            if not uncovered:
                state = self._logs.state()
                node, covered, seen = (
                    state.nodes[log.identity.node],
                    state.covered(log.identity.node),
                    state.seen,
                )
            if covered is None or covered:
                removal = plan_removal(
                    log.context.context, node, upto=upto, covered=covered, writing=log.unsealed
                )
                remove(log.store, node, log.manifests, removal, seen)
            return log.manifests.read()[1].removed

    def stop(self) -> None:
        """Stop the maintenance, and a running archive run."""
        if self._archiver is not None:
            self._archiver.stop()
        self.maintenance.stop()
