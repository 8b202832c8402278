"""The log of an agent: closed after a failed write or sync, and opened again when the storage can
be reached. That runs on its own thread: an unreachable storage answers late, and the agent's loop
must keep answering."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.open_log import OpenLog
from imap_wal.errors import Fenced, ImapWalError, StorageUnavailable
from imap_wal.read.cluster import ClusterLog
from imap_wal.worker import Worker
from storage_backends import StorageError

REOPEN_S, REOPEN_S_MAX = 1.0, 30.0
"""The pause before a failed log is opened again with a new epoch; it doubles with each failure, up
to the maximum."""
CLOSE_S = 5.0
"""How long a stop waits for a log that is being opened again."""

_log = structlog.get_logger("imap_wal.agent")


class AgentLog:
    """`now`: the open log, or the one that failed; replaced as a whole. Used by the serving
    thread; any thread may read `now` and `workers`. Raises the errors of `OpenLog`."""

    def __init__(self, config: AgentConfig, all_logs: ClusterLog) -> None:
        self._config, self._all_logs = config, all_logs
        self.now = OpenLog(config, all_logs, takeover=config.takeover)
        self.mender: Mender | None = None
        """None: the log is open."""

    @property
    def workers(self) -> list[Worker]:
        mender = self.mender
        return [*self.now.workers, *([mender.worker] if mender is not None else [])]

    def commit_ready(self) -> None:
        """Commit the content of the ring."""
        # Otherwise the ring is empty, and the mender may be waiting for the storage.
        if self.mender is None:
            self.now.writer.committer.commit_ready()

    def mend(self, state: Callable[[], str]) -> None:
        """After a failed write or sync: close the failed epoch, and open the next one when the
        storage can be reached. Until then every request is refused, with the reason. `state`: the
        reason in one word, for the message. Raises `Fenced` if another process has the log."""
        failure, node = self.now.writer.committer.failure, self._config.node
        if failure is None:
            return
        if isinstance(failure, Fenced):
            raise failure
        if self.mender is None:
            _log.error("log failed", node=node, state=state(), error=str(failure))
            self.mender = Mender(self.now, lambda: OpenLog(self._config, self._all_logs), node)
        if self.mender.opened is not None:
            self.now, self.mender = self.mender.opened, None

    def close(self, clean: bool) -> None:
        """Close the log. Raises `StorageUnavailable` if the storage cannot be reached at a clean
        close."""
        if self.mender is not None:
            self.mender.stop(CLOSE_S)
            return
        try:
            self.now.close(clean)
        except StorageError as error:
            node = self._config.node
            if clean:
                raise StorageUnavailable(
                    f"closing the log of node {node!r}: {error}; all acknowledged changes are in it"
                ) from error
            _log.warning("the log could not be closed", node=node, error=str(error))


class Mender:
    """Starts its thread at once. `opened`: the new log, once it is open; the thread has ended by
    then."""

    def __init__(self, failed: OpenLog, open: Callable[[], OpenLog], node: str) -> None:
        self._failed: OpenLog | None = failed
        self._open, self._node = open, node
        self._pause = REOPEN_S
        self.opened: OpenLog | None = None
        self.worker = Worker("imap-wal-mender", self._turn)
        self.worker.start()

    def _turn(self, worker: Worker) -> bool:
        failed, self._failed = self._failed, None
        if failed is not None:
            try:
                failed.close(False)
            except (
                ImapWalError,
                StorageError,
            ) as error:  # acknowledged changes are safe; the lock expires or ends with this process
                _log.warning(
                    "the failed log could not be closed", node=self._node, error=str(error)
                )
        if worker.stopping.wait(self._pause):
            return False
        self._pause = min(2 * self._pause, REOPEN_S_MAX)
        try:
            self.opened = self._open()
        except (ImapWalError, StorageError) as error:
            _log.error("log still fails", node=self._node, error=str(error))
            return True
        worker.stopping.set()
        return True

    def stop(self, timeout_s: float) -> None:
        """End the thread after the current step, and close the log if it was opened. A thread that
        still waits for the storage ends with the process."""
        if self.worker.stop(timeout_s) and self.opened is not None:
            self.opened.close(True)
