"""Whether the Hazelcast cluster that has the log is alive: small files that change while it is.

    SignOfLife   an agent that hears members of the newest incarnation: `{node}-{epoch}-{number}` in
                 `claims/alive/`, created again under the next number, the former one deleted
    Watch        an agent that has to claim a new lifetime: waits until no file has changed for a while

The watching agent only checks whether the files change, by its own monotonic clock. This decides
when a claim is made, never what counts: the claim itself is safe at any time.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from imap_wal import layout
from imap_wal.clock import Clock
from imap_wal.worker import Worker
from storage_backends import SegmentStore, StorageError

RENEWALS = 3
"""How many times a sign is renewed within the time after which it no longer counts."""


class SignOfLife:
    """Renewed by its own thread. While that hears no member it updates `watch`, so a new cluster need
    not wait for the whole time. `heard` and `silent` do not wait for the storage."""

    def __init__(self, store: SegmentStore, cluster: str, node: str, epoch: int, timeout_s: float, watch: Watch) -> None:
        self._watch = watch
        self._store, self._cluster, self._node, self._epoch = store, cluster, node, epoch
        self._every_s = timeout_s / RENEWALS
        self._number = self._unheard = 0
        self._path = ""
        self._heard = 0
        """The incarnation of which a member was heard since the last renewal."""
        self._silent = False
        self._wake = threading.Event()
        self.worker = Worker("imap-wal-alive", self._turn)

    def start(self) -> None:
        """Begin. Signs of earlier runs of this node's agent are deleted: no member is heard yet."""
        with suppress(StorageError):
            for path in signs(self._store, self._cluster):
                if layout.parse_alive_path(path) == self._node:
                    self._store.delete(path)
        self.worker.start()

    def heard(self, incarnation: int) -> None:
        """A member of this incarnation, the newest one known here, has sent something."""
        self._heard = incarnation
        if not self._path:
            self._wake.set()  # the first sign comes at once

    def silent(self) -> None:
        """The last member has said bye: the sign is deleted now. A member that is heard later makes a new one."""
        self._heard, self._silent = 0, True
        self._wake.set()

    def stop(self, timeout_s: float, clean: bool) -> None:
        """End the thread; after a clean stop no sign is left. It waits at most `timeout_s` for a storage
        that does not answer."""
        self.worker.stopping.set()
        self._wake.set()
        if self.worker.stop(timeout_s) and clean:
            with suppress(StorageError):
                self._remove()

    def _turn(self, worker: Worker) -> bool:
        self._wake.wait(self._every_s)
        self._wake.clear()
        if worker.stopping.is_set():
            return False
        if self._silent:
            self._silent = False
            if not self._heard:
                self._remove()
                return True
        # Another cluster may have claimed the log since, and this member may not know it yet.
        if not self._heard or not self._store.exists(layout.claim_path(self._cluster, self._heard)):
            self._heard = 0
            self._unheard += 1
            if self._unheard >= RENEWALS:  # its members were killed: the next cluster need not wait for them
                self._remove()
            self._watch.alive()
        else:
            self._heard = self._unheard = 0
            self._number += 1
            following = layout.alive_path(self._cluster, self._node, self._epoch, self._number)
            self._store.create(following, b"")
            former, self._path = self._path, following
            if former:
                self._store.delete(former)
        return True

    def _remove(self) -> None:
        path, self._path = self._path, ""
        if path:
            self._store.delete(path)


def signs(store: SegmentStore, cluster: str) -> list[str]:
    """The files that exist now."""
    found = [file.path for file in store.list(layout.alive_folder(cluster))]
    return [path for path in found if layout.parse_alive_path(path) is not None]


class Watch:
    """Checks the signs when it is called, from any thread. `timeout_s` 0: no cluster counts as alive."""

    def __init__(self, store: SegmentStore, cluster: str, timeout_s: float, clock: Clock) -> None:
        self._store, self._cluster, self._timeout_s, self._clock = store, cluster, timeout_s, clock
        self._since: dict[str, float] = {}
        """Sign → when it was seen first."""

    def alive(self) -> str:
        """The nodes with a sign of life, as text for an error; "" if there is none. A sign counts until
        it has been seen unchanged for `timeout_s`."""
        if not self._timeout_s:
            return ""
        now, before = self._clock.monotonic(), self._since
        found = {path: before.get(path, now) for path in signs(self._store, self._cluster)}
        for path, since in found.items():
            if now - since >= self._timeout_s and not self._store.exists(path):
                found[path] = now  # it was renewed, and the listing is too old to show that
        self._since = found  # if another thread does so too, the wait is longer at worst
        ages = {str(layout.parse_alive_path(path)): now - since for path, since in found.items() if now - since < self._timeout_s}
        return ", ".join(f"node {node!r} (its sign of life has not changed for {age:.1f} s)" for node, age in sorted(ages.items()))

    def forget(self) -> None:
        """After a claim: delete the signs that were watched, as their cluster has lost the log."""
        for path in self._since:
            with suppress(StorageError):
                self._store.delete(path)
        self._since = {}
