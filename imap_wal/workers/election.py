"""Which of several processes serves."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from imap_wal.checks import location
from imap_wal.clock import Clock
from imap_wal.errors import Closed
from imap_wal.workers.endpoint import Endpoint
from imap_wal.workers.server import Served, Server
from imap_wal.write.opening import holder_text
from storage_backends import Locked
from storage_backends.location import Place

PATIENCE_S = 1.0
"""How long a log may still be locked by a process that has died. On other storages than local files
its lock expires only later."""


class Election:
    """Serves what `open` opens from this process, as soon as no other process does. Thread-safe.
    `url`: of the log."""

    def __init__(
        self, url: Place, endpoint: Endpoint, clock: Clock, open: Callable[[], Served]
    ) -> None:
        self._open, self._endpoint, self._clock = open, endpoint, clock
        self.url = str(location(url))
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._ended = False
        self.server: Server | None = None
        _serving.add(self)

    def patience_s(self, timeout_s: float) -> float:
        """How long a process waits for the lock of one that has died: the kernel releases that of a
        local file."""
        is_local = "://" not in self.url or self.url.startswith("file:")
        return PATIENCE_S if is_local else timeout_s

    @property
    def is_serving(self) -> bool:
        """Whether this process serves."""
        return self.server is not None and self.server.is_serving

    @property
    def failure(self) -> Exception | None:
        """Why this process, which served, can write no more."""
        return None if self.server is None else self.server.served.failure

    def elect(self) -> bool:
        """Serve, unless another process does. Returns whether this process serves now. Raises the
        errors of opening the log."""
        with self._mutex:
            if self._ended:
                raise Closed("this connection was closed; call connect again")
            if self.is_serving:
                return True
            try:
                lock = self._endpoint.lock(holder_text(f"the server of {self.url}", self._clock))
            except Locked:
                return False
            try:
                served = self._open()
                try:
                    self.server = Server(served, self._endpoint, lock)
                except BaseException:
                    served.close()
                    raise
            except BaseException:
                lock.release()
                raise
            return True

    def stop(self) -> None:
        """Serve no longer, also not later. Safe to call twice. Raises the errors of closing the
        log."""
        self._ended = True
        if os.getpid() != self._process:
            return
        with self._mutex:  # a request of another thread may just be opening the log
            server = self.server
        if server is not None:
            server.stop()


_serving: WeakSet[Election] = WeakSet()


def _stop_all() -> None:
    for serving in list(_serving):
        with suppress(Exception):
            serving.stop()


atexit.register(_stop_all)
