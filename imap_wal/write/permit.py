"""The permit of a writer: its file, which a successor deletes, the lock of the node, and the entry
in the node's manifest. Without all three, a writer acknowledges nothing."""

from __future__ import annotations

from contextlib import suppress

from imap_wal import layout
from imap_wal.errors import Fenced, ImapWalError
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.write.context import LogContext
from storage_backends import Lock, Locked, StorageError, lock_holder

OTHER_NODE = "a store that was opened later"
"""The name of an open in the lock of another node whose writer it fences."""


class Permit:
    """The permit of the open that published `manifest`. As thread-safe as the store."""

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
        self._appends = self._store.capabilities.durable_append

    def check(self) -> None:
        """Raises `Fenced` if another process has raised the epoch. One stat on a local file
        system."""
        if self._appends and not self._store.exists(self._path):
            raise self.fenced()

    def lost(self) -> Fenced | None:
        """The error of `check`, if a manifest says so too: a folder that is not mounted for a
        moment has no files. Raises StorageError and LogError."""
        try:
            self.check()
        except Fenced as error:
            number, manifest = self._manifests.read()
            is_other = (manifest.epoch, manifest.permit) != (self._epoch, self._nonce)
            is_forgotten = self._directory in self._clusters.read()[1].forgotten
            return error if (number and is_other) or is_forgotten else None
        return None

    def demand(self, manifest: NodeManifest) -> None:
        """Raises `Fenced` if the node's manifest is that of another open."""
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
        if self._appends:
            self._store.delete(self._path)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def fenced(self) -> Fenced:
        """The error for this writer, which was fenced. The text names the reason if its log was
        forgotten. Otherwise it names the holder of this node's lock. If that lock is free, it names
        the holders of other nodes' locks: an open under another node name takes this log over and
        closes it."""
        who, by_other_node = "", False
        with suppress(StorageError, ImapWalError):
            if (
                self._directory in self._clusters.read()[1].forgotten
                or self._manifests.read()[1].forgotten
            ):
                what = (
                    f"node {self._identity.node!r} was forgotten (imap-wal forget-node): no "
                    "restore reads its log any more"
                )
                return Fenced(
                    what, advice="close this one; an open under this node name begins a new log"
                )
            who = lock_holder(self._store, layout.lock_path(self._folder))
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
