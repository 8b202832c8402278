"""The permit of a writer: its file, which a successor deletes, the lock of the node, and the entry
in the node's manifest. Without all three, a writer acknowledges nothing.

The file is identified by device and inode, on HDFS by its id, not by its name: if the folder is
replaced by a copy, the permit in the copy is another file.
"""

from __future__ import annotations

from contextlib import suppress

from imap_wal import layout
from imap_wal.errors import Fenced, ImapWalError
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.write.context import LogContext
from storage_backends import Held, Lock, Locked, NotFound, StorageError, lock_holder

OTHER_NODE = "a store that was opened later"
"""The name of an open in the lock of another node whose writer it fences."""


class Permit:
    """The permit of the open that published `manifest`. As thread-safe as the store. Creating it
    raises `Fenced` if another open has deleted it already."""

    def __init__(
        self,
        context: LogContext,
        manifests: ManifestLog[NodeManifest],
        clusters: ManifestLog[ClusterManifest],
        manifest: NodeManifest,
        lock: Lock,
    ) -> None:
        self._store, self._identity = context.store, context.identity
        self._manifests, self._clusters = manifests, clusters
        self._epoch, self._nonce, self._directory = (
            manifest.epoch,
            manifest.permit,
            manifest.directory,
        )
        self._lock, self._folder = lock, self._identity.node_folder
        self._path = layout.writer_path(self._folder, self._epoch, self._nonce)
        """The epoch may acknowledge only while this file exists."""
        self._file: Held | None = None
        self._holder = ""
        """The line of this writer in the lock."""
        if self._store.capabilities.durable_append:
            self._holder = self._lock_holder()
            try:
                self._file = self._store.hold(self._path)
            except NotFound:
                raise self.fenced() from None

    def check(self, segment: Held | None = None) -> None:
        """Raises `Fenced` if another process has raised the epoch, or if the permit, or the open
        segment, is no longer the file that its name leads to. One look at each on a local file
        system."""
        # Not only whether a file is there: a writer whose folder was replaced by a copy had
        # acknowledged changes that no later open reads (decision 77).
        if self._file is not None and not self._file.is_there():
            raise self.replaced(self._path) if self._store.exists(self._path) else self.fenced()
        if segment is not None and not segment.is_there():
            raise self.replaced(segment.path)

    def lost(self) -> Fenced | None:
        """The error of `check`, if a manifest says so too: a folder that is not mounted for a
        moment has no files. Raises StorageError and LogError."""
        try:
            self.check()
        except Fenced as error:
            if self._store.exists(self._path):  # another file, in another folder
                return error
            number, manifest = self._manifests.read()
            is_other = (manifest.epoch, manifest.permit) != (self._epoch, self._nonce)
            is_forgotten = self._directory in self._clusters.read()[1].forgotten
            return error if (number and is_other) or is_forgotten else None
        return None

    def demand(self, manifest: NodeManifest) -> None:
        """Raises `Fenced` if the node's manifest is that of another open, or in another folder. On
        a storage without files that a process can hold, the manifest also must not be older than
        one that this process has seen."""
        self.check()
        if self._file is None and self._manifests.went_back:
            raise self.replaced(self._manifests.folder)
        if manifest.epoch != self._epoch:
            raise self.fenced()
        if manifest.permit != self._nonce:
            who = (
                f"another process opened node {self._identity.node!r} with epoch {self._epoch} too"
            )
            why = "the node's manifest was replaced by an older copy"
            raise Fenced(f"{who}: {why}", advice="close this one")

    @property
    def leased(self) -> bool:
        """Whether the lock is a lease, which must be renewed."""
        return self._lock.expires_ms > 0

    def renew(self) -> None:
        """Renew the lease. Raises `Fenced` if another process has it."""
        try:
            self._lock.renew()
        except Locked as error:
            raise self.fenced() from error

    def withdraw(self) -> None:
        """Delete the file, after the last acknowledgement of a log that is clean."""
        if self._file is not None:
            self._store.delete(self._path)

    def release(self) -> None:
        """Release the lock."""
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self._lock.release()

    def replaced(self, path: str) -> Fenced:
        """The error for a writer whose file, or folder, is not the one that it had."""
        reason = "deleted or moved away, or its folder was replaced"
        return Fenced(
            f"{path} of node {self._identity.node!r} was {reason}, while this process had it open",
            advice=(
                "close this writer. Changes that it acknowledged are in the former folder or file: "
                "stop all writers, and bring that back before you open the log again"
            ),
        )

    def _lock_holder(self) -> str:
        return lock_holder(self._store, layout.lock_path(self._folder))

    def fenced(self) -> Fenced:
        """The error for this writer, which was fenced. The text names the reason if its log was
        forgotten, or if its folder was moved or is a copy. Otherwise it names the holder of this
        node's lock. If that lock is free, it names the holders of other nodes' locks: an open under
        another node name takes this log over and closes it."""
        who, by_other_node = "", False
        with suppress(StorageError, ImapWalError):
            number, manifest = self._manifests.read()
            if self._directory in self._clusters.read()[1].forgotten or manifest.forgotten:
                reason = (
                    f"node {self._identity.node!r} was forgotten (imap-wal forget-node): no "
                    "restore reads its log any more"
                )
                return Fenced(
                    reason, advice="close this one; an open under this node name begins a new log"
                )
            who = self._lock_holder()
            is_mine = (manifest.epoch, manifest.permit) == (self._epoch, self._nonce)
            if self._file is not None and who in ("", self._holder) and (is_mine or not number):
                return self.replaced(self._path)
            by_other_node = who.startswith(OTHER_NODE)
            if not who:
                folders = {
                    node: layout.node_folder(self._identity.cluster_folder, node)
                    for node in sorted(self._clusters.read()[1].nodes)
                }
                holders = {
                    node: lock_holder(self._store, layout.lock_path(folder))
                    for node, folder in folders.items()
                }
                who = ", ".join(
                    f"node {node!r}, {holder}" for node, holder in holders.items() if holder
                )
                by_other_node = bool(who)
        advice = "close this one"
        if by_other_node:
            advice += "; if several processes write different keys, open each with shared=True"
        return Fenced(
            f"the log of node {self._identity.node!r} was taken over by {who or 'another process'}",
            who,
            advice,
        )
