"""Closes a failed log and opens it again when the storage can be reached. This runs on its own
thread: an unreachable storage answers late, and the agent's loop must keep answering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from imap_wal.errors import ImapWalError
from imap_wal.worker import Worker
from storage_backends import StorageError

REOPEN_S, REOPEN_S_MAX = 1.0, 30.0
"""The pause before a failed log is opened again with a new epoch; it doubles with each failure, up
to the maximum."""

_log = structlog.get_logger("imap_wal.agent")


class Closable(Protocol):
    def close(self, clean: bool) -> None: ...


T = TypeVar("T", bound=Closable)


class Mender(Generic[T]):
    """Starts its thread at once. `opened`: the new log, once it is open; the thread has ended by
    then."""

    def __init__(self, failed: Closable, open: Callable[[], T], node: str) -> None:
        self._failed: Closable | None = failed
        self._open, self._node = open, node
        self._pause = REOPEN_S
        self.opened: T | None = None
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
