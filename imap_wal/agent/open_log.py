"""A node's log that the agent has open: sessions and `LogWriter`, opened and closed together."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial

import structlog

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.sessions import SessionRegistry
from imap_wal.agent.own_disk.uploads import Uploads
from imap_wal.errors import ImapWalError
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.proof import prove_keys
from imap_wal.retention.archiver import writer_for
from imap_wal.retention.log_writer import LogWriter
from imap_wal.retention.other_process import OtherProcess, is_reachable
from imap_wal.rewrite.compaction import KEEP_S, Compactor
from imap_wal.worker import Worker
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from storage_backends import StorageError
from storage_backends.reserve import reserves

SIGN_STOP_S = 5.0
"""How long a close waits for a storage that does not answer."""
UPLOAD_STOP_S = 10.0
"""How long a clean stop uploads what only the node's own disk has."""

_log = structlog.get_logger("imap_wal.agent")


class OpenLog:
    """Opens the log when it is created. Raises the errors of `open_node_log`, and then keeps
    nothing open."""

    def __init__(
        self, config: AgentConfig, all_logs: ClusterLog, *, takeover: bool = False
    ) -> None:
        self._config = config
        identity = Identity(config.namespace, config.cluster, config.node)
        context = LogContext(
            all_logs.context,
            identity,
            config.log,
            config.served_at,
            config.tail_access.public_key() if config.served_at else "",
            writers=lambda losses: self.sessions.writers(losses),  # noqa: PLW0108  # made below
        )
        disk = all_logs.context.own_disk
        for reserve in reserves(all_logs.store)[-1:]:
            # Where segments are. Each attempt to open would use some of the space.
            reserve.demand(config.node)
        holder = f"imap-wal agent at {config.endpoint}"
        self.node_log = open_node_log(
            context,
            holder=holder,
            takeover=takeover,
            maps=True,
            also=partial(prove_keys, all_logs, config.node),
        )
        with ExitStack() as undo:
            undo.callback(self._let_go)
            self.sessions = SessionRegistry(
                self.node_log,
                all_logs,
                config.start_rules,
                look=lambda: self.writer.committer.look(),  # noqa: PLW0108  # made below
            )
            archiver = writer_for(all_logs.context.place)
            self.writer = LogWriter(self.node_log, all_logs, self.sessions.check_newest, archiver)
            undo.callback(self.writer.stop)
            process = None
            # Another process cannot read the tails on own disks: it would refuse each run.
            if disk is None and is_reachable(all_logs.context.place):
                process = OtherProcess(all_logs.context.place, keep_s=KEEP_S)
            self.compactor = Compactor(self.writer, all_logs, process)
            undo.callback(self.compactor.stop)
            self.writer.start(self.archive, self.remove_covered)
            self.uploads: Uploads | None = None
            if disk is not None:
                self.uploads = Uploads(disk, self.node_log, all_logs.clock, all_logs.randomness)
                self.uploads.worker.start()
            if process is not None:  # in this process it would delay answers
                self.compactor.start()
            if self.sessions.sign is not None:
                self.sessions.sign.start()
            undo.pop_all()
        for reserve in reserves(all_logs.store):
            reserve.take(config.reserve_bytes)
        self._log_recovery()

    def _let_go(self) -> None:
        """Release the lock, which would prevent the next open in this process."""
        with suppress(StorageError, ImapWalError):
            self.node_log.close(clean=False)

    def _log_recovery(self) -> None:
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
            else f"{lost.frames} frames, {lost.records} entries from {lost.first} to {lost.last}, "
            f"put aside: {', '.join(lost.put_aside)}",
        )

    def close(self, clean: bool) -> None:
        """End the maintenance, commit the waiting changes, and release the lock. Raises
        StorageError if the storage cannot be reached: then the lock may remain until it expires."""
        self.compactor.stop()
        self.writer.stop()
        if self.sessions.sign is not None:
            self.sessions.sign.stop(SIGN_STOP_S, clean)
        try:
            self.writer.committer.close(clean)
        finally:
            if self.uploads is not None:
                self.uploads.finish(UPLOAD_STOP_S if clean else 0)

    @property
    def workers(self) -> list[Worker]:
        """The background threads of this log."""
        others = [
            upload.worker for upload in (self.sessions.sign, self.uploads) if upload is not None
        ]
        if self.compactor.is_automatic:
            others.append(self.compactor.worker)
        return [*self.writer.maintenance.workers, *others]

    def archive(self) -> None:
        """Seal the current segment, and turn sealed segments into archives."""
        _log.info("archived", records=self.writer.archive().records)

    def remove_covered(self) -> None:
        """Remove covered files as `wal_ttl_seconds` and `wal_size_limit_mb` say."""
        removed = self.writer.remove_covered()
        files = len(removed.archives) + len(removed.segments)
        if files:
            _log.info("covered files removed", files=files, bytes=removed.bytes)
