"""A node's log as the agent has it open: writer, sessions, ring, committer and keeper, opened and
closed as one."""

from __future__ import annotations

from contextlib import suppress

import structlog

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.sessions import Sessions
from imap_wal.clock import Clock, Randomness
from imap_wal.errors import ImapWalError
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.archive import archive_sealed, write_archives
from imap_wal.retention.archiver import writer_for
from imap_wal.retention.policy import remove_outlived
from imap_wal.worker import Worker
from imap_wal.write.committer import Batch, Committer
from imap_wal.write.context import LogContext
from imap_wal.write.maintenance import Keeper
from imap_wal.write.opening import open_node_log
from imap_wal.write.ring import RingBuffer
from storage_backends import StorageError

SIGN_STOP_S = 5.0
"""How long a stop waits for a storage that does not answer."""

_log = structlog.get_logger("imap_wal.agent")


class OpenLog:
    """Opened by its construction, which raises what `open_node_log` raises and then holds
    nothing."""

    def __init__(self, config: AgentConfig, all_logs: ClusterLog, *, takeover: bool = False) -> None:
        self._config, self._all_logs = config, all_logs
        self._store = all_logs.store
        clock: Clock = all_logs.clock
        randomness: Randomness = all_logs.randomness
        self._identity = Identity(config.namespace, config.cluster, config.node)
        what = f"imap-wal agent at {config.endpoint}"
        self.node_log = open_node_log(LogContext(self._store, self._identity, config.log, clock, randomness), what=what, takeover=takeover, maps=True)
        self.keeper = Keeper(config.log, clock)
        self._archiver = writer_for(config.url, config.wal_dir)
        try:
            self.sessions = Sessions(self.node_log, all_logs, config.start_rules)
            self.ring: RingBuffer[Batch] = RingBuffer(config.log.ring_slots, config.log.ring_bytes)
            self.committer = Committer(self.ring, self.node_log, config.log, clock, self.keeper.committed, self.sessions.check_newest)
            self.keeper.start(self.committer, self.archive, self.remove_outlived)
            if self.sessions.sign is not None:
                self.sessions.sign.start()
        except BaseException:
            self._end_threads()
            with suppress(StorageError, ImapWalError):
                self.node_log.close(clean=False)  # else its lock would keep ourselves out
            raise
        self._tell()

    def _tell(self) -> None:
        recovery = self.node_log.recovery
        lost = recovery.lost
        _log.info(
            "log open",
            node=self._config.node,
            epoch=self.node_log.epoch,
            clean=recovery.clean,
            frames=recovery.frames,
            torn_bytes=recovery.torn_bytes,
            lost=""
            if lost is None
            else f"{lost.frames} frames, {lost.records} entries from {lost.first} to {lost.last}, put aside: {', '.join(lost.put_aside)}",
        )

    def close(self, clean: bool) -> None:
        """End the keeper, commit what waits, release the lock. A StorageError when the storage
        cannot be reached: then the lock may remain until it expires."""
        self._end_threads()
        if self.sessions.sign is not None:
            self.sessions.sign.stop(SIGN_STOP_S, clean)
        self.committer.close(clean)

    @property
    def workers(self) -> list[Worker]:
        """The background threads of this log."""
        sign = self.sessions.sign
        return [*self.keeper.workers, *([sign.worker] if sign is not None else [])]

    def _end_threads(self) -> None:
        if self._archiver is not None:
            self._archiver.stop()
        self.keeper.stop()

    def archive(self) -> None:
        """Seal, and turn what is sealed into archives; on the keeper's thread."""
        written = self.keeper.written(self.node_log)
        self.committer.rotate()
        log = self.node_log
        done = archive_sealed(
            self.keeper.until_stop(self._store),
            self._identity.node_folder,
            self._config.node,
            log.manifests,
            epoch=log.epoch,
            writing=log.unsealed,
            write=write_archives if self._archiver is None else self._archiver.write,
        )
        self.keeper.count_from(written)
        _log.info("archived", records=done.records)

    def remove_outlived(self) -> None:
        """Remove what is covered and has outlived its time or its room; on the keeper's thread."""
        logs = self._all_logs
        logs = ClusterLog(self.keeper.until_stop(logs.store), logs.namespace, logs.cluster, logs.clock, logs.randomness)
        removed = remove_outlived(logs, self._config.node, self._config.log, self.node_log.unsealed)
        files = len(removed.archives) + len(removed.segments)
        if files:
            _log.info("covered files removed", files=files, bytes=removed.bytes)
