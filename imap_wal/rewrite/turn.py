"""One rewrite at a time: a lock of the cluster.

Two rewrites at once do no harm, because only one of them publishes. But the work of the other is
lost, and a long one would lose each time against compactions that a store or an agent starts. So
every rewrite takes this lock first. A compaction that starts automatically does not wait for it:
another process does the same work. That also elects one agent of a cluster.

The operating system releases the lock of a process that was killed. On storage without such locks
it is a lease, which a thread renews.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from imap_wal import layout
from imap_wal.errors import ImapWalError
from imap_wal.read.cluster import ClusterLog
from imap_wal.worker import Worker
from imap_wal.write.opening import holder_text
from storage_backends import Lock, Locked, StorageError


class RewriteRunning(ImapWalError):
    """Another process rewrites this log. The text names it."""


LOOK_S = 0.2
"""How often to look whether another rewrite has ended."""
RENEW_S = 10.0
"""A third of a lease's term."""


@contextmanager
def turn(
    log: ClusterLog, purpose: str, waits: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the lock. Others can read `purpose` in it. If another process holds the lock, `waits` is
    called once with that process's name, and the lock is awaited; without `waits`, this raises
    `RewriteRunning`. Raises StorageError."""
    lock = _taken(log, purpose, waits)
    stop = threading.Event()
    renewing = Worker("imap-wal-rewrite-lock", lambda _: _renewed(lock, stop))
    if lock.expires_ms:
        renewing.start()
    try:
        yield
    finally:
        stop.set()
        renewing.stop()
        with suppress(StorageError):  # then it expires
            lock.release()


def _taken(log: ClusterLog, purpose: str, waits: Callable[[str], None] | None) -> Lock:
    path, holder = layout.rewrite_lock_path(log.folder), holder_text(purpose, log.clock)
    pause, said = threading.Event(), False
    while True:
        try:
            return log.store.lock(path, holder)
        except Locked as error:
            if waits is None:
                raise RewriteRunning(f"{error.holder} rewrites {log.folder}") from error
            if not said:
                waits(error.holder)
                said = True
        pause.wait(LOOK_S)


def _renewed(lock: Lock, stop: threading.Event) -> bool:
    if not stop.wait(RENEW_S):
        # Without the lease, another rewrite may begin; then one of the two publishes nothing.
        with suppress(StorageError):
            lock.renew()
    return True
