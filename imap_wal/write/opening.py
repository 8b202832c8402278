"""Opens a node's log for writing.

open    lock ─▶ newest manifest ─▶ prove: check that nothing refuses this open ─▶ fence the old
        writer, unless it has closed ─▶ scan what it may have written since ─▶ publish epoch + 1
        ─▶ cut a torn tail

A refused open changes nothing: keys, versions, damage and settings are checked before the old
writer is fenced. A takeover does this check also before it takes the lock, so a refused takeover
does not affect a running writer. The scan after the fence decides what was acknowledged. It reads
only what may have changed since the check.

No segment is changed before the epoch is published. `imap_wal.write.recovery` scans and cuts.
`imap_wal.embedded.opening` is above this: it opens maps.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeVar

from imap_wal import layout
from imap_wal.clock import Clock, utc
from imap_wal.disposal import log_links
from imap_wal.entry import SHARED_SESSIONS
from imap_wal.errors import InvalidSetting, LogError, LostRace, MissingNode, WriterLocked
from imap_wal.format import START, Position, epoch_id
from imap_wal.manifest import key_checks
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.epochs import Name, begun, ended
from imap_wal.manifest.node import LOG, NodeManifest, NodeManifestLog
from imap_wal.manifest.older import NOT_OPENED, current_cluster, opened_epochs, replaced
from imap_wal.manifest.roots import demand_root
from imap_wal.placement.router import demand_own
from imap_wal.segment.copies import demand_same
from imap_wal.segment.listing import WalFolder, sorted_out, wal_folder
from imap_wal.settings import Durability, RecoveryMode
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.object_segment import fences_by_object, shut_out
from imap_wal.write.recovery import RecoveredState, Recovery
from imap_wal.write.registration import Registration, demand_current
from storage_backends import AlreadyExists, Lock, Locked, NotFound, SegmentStore, StorageError
from storage_backends.registry import backend_of

_log = logging.getLogger("imap_wal")
T = TypeVar("T")

OPEN_ATTEMPTS = 20
"""How often an open starts again because the manifest changed while it examined the log."""


def check_new_log(context: LogContext) -> None:
    """Raise the errors that `open_node_log` would raise for a node without a manifest. For a caller
    that publishes the first manifest itself."""
    NodeOpening(context).check_before()


def holder_text(holder: str, clock: Clock) -> str:
    """A process's name in a lock: what it is, its number, its machine, and since when."""
    since = utc(clock.now_ms()).partition(".")[0]
    return f"{holder} ({process_text()}, since {since}Z)"


def process_text() -> str:
    """This process and its machine."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def open_node_log(
    context: LogContext,
    *,
    holder: str = "imap-wal",
    takeover: bool = False,
    embedded: bool = False,
    directory: str | None = None,
    maps: bool = False,
    also: Callable[[], object] = lambda: None,
) -> NodeLog:
    """Open a node's log for writing. A refused open changes nothing.

    Args:
        context: the storage, the node and its settings.
        what: this writer's name, for processes that find the log locked.
        takeover: fence a process that has this log open.
        embedded: for a program, not an agent.
        directory: open only this log; None: any log that the node has.
        maps: for changes of maps.
        also: a further check, called after all others and before anything is written. It raises
            to refuse the open.

    Returns:
        The recovered log, with its lock.

    Raises:
        InvalidSetting: a name is not valid, the storage cannot sync and `durability` is always, the
            log would begin in a folder of another log, or `maps` and `imap_wal.log` made the log.
        WriterLocked: another process has the log open.
        CorruptLog: a file is damaged, or an older copy replaced a manifest.
        ShortLog: a file is missing or too short.
        UnsupportedVersion: a newer version wrote a file.
        EncryptionError: the keys do not fit the log.
        MissingNode: the node's log is missing, is not the registered one, or is being forgotten.
        LostRace: other processes changed the manifest at each attempt, or replaced or forgot the
            log `directory`.
        StorageError: the storage failed, or the segments are on another node's own disk.
    """
    return NodeOpening(
        context, takeover=takeover, embedded=embedded, directory=directory, maps=maps, also=also
    ).open(holder)


def _check_durability(store: SegmentStore, durability: Durability) -> None:
    """Raises `InvalidSetting` if the storage cannot keep this promise."""
    can = store.capabilities
    if durability is not Durability.ALWAYS or not can.durable_append or can.durable_sync:
        return
    advice = backend_of(store.url).sync_advice
    raise InvalidSetting(
        f"{store.url} cannot sync, so durability 'always' cannot be kept; choose 'os' or "
        f"'interval'{f', or {advice}' if advice else ''}"
    )


def _locked(store: SegmentStore, identity: layout.Identity, holder: str, *, takeover: bool) -> Lock:
    """The lock of a node's log. Raises `WriterLocked`."""
    path = layout.lock_path(identity.node_folder)
    try:
        return store.lock(path, holder, take=takeover)
    except Locked as error:
        raise WriterLocked(identity.node, error.holder) from error


class _Moved(Exception):
    """A manifest was published that is newer than the one the open uses."""


class _Examined(NamedTuple):
    """What an open found. `before`: the manifest that it continues from. `lose` counts a loss, if
    the open gives up a part of this log."""

    before: NodeManifest
    wal: WalFolder
    recovery: Recovery
    first_session: int
    lose: Callable[[], object]


class NodeOpening:
    """One open. All of it uses one manifest: with the lock held, it examines the log, fences the
    old writer, and publishes the new epoch as the successor of exactly that manifest, before it
    changes a segment. If another manifest was published meanwhile (by the old writer's archive run,
    or by a prune), the open starts again."""

    def __init__(
        self,
        context: LogContext,
        *,
        takeover: bool = False,
        embedded: bool = False,
        directory: str | None = None,
        maps: bool = False,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        self._also: Callable[[], object] | None = also
        self._context, self._store, self._identity = context, context.store, context.identity
        self._takeover, self._embedded, self._maps = takeover, embedded, maps
        self.directory, self._folder = directory, self._identity.node_folder
        self._published = False
        self._opened: Mapping[str, Name] = {}
        self._epoch: int | None = None
        self._recovery: Recovery | None = None
        self.manifests = NodeManifestLog(context.context, self._folder)
        self.clusters = ClusterManifestLog(context.context, self._identity.cluster_folder)
        self._registration = Registration(context, self.clusters)

    def check_before(self) -> None:
        """Check before the lock is taken. If a check failed later, a node without a manifest would
        be left with a folder of a log that never began."""
        self._identity.check()
        _check_durability(self._store, self._context.settings.durability)
        demand_own(self._context.own_disk, self._folder)
        number, before = self.manifests.read()
        self._demand_kind(before)
        if self._context.key_ring.keys:
            key_checks.demand_same(
                self._context.key_ring, self.clusters.read()[1].keys, self.clusters.folder
            )
        if number:
            return
        if not self.clusters.read()[0]:
            demand_root(self._store)
        # Listed before the manifest is read again: it may be opened at this moment.
        files = self._store.list(self._folder)
        wal = sorted_out(file for file in files if file.path.startswith(f"{self._folder}/wal/"))
        number, before = self.manifests.read()
        if number:
            return
        try:
            cluster = self._current_cluster()
            # First: if there are segments without a manifest, the user must repair them, not
            # continue without them.
            demand_current(files, self._folder, before, wal)
            self._registration.check(cluster, "")
        except (LogError, MissingNode):
            if not self.manifests.read()[0]:
                raise
            # Another process has opened it since: `run` checks again, with the lock held.

    def _demand_kind(self, manifest: NodeManifest) -> None:
        if self._maps and manifest.kind == LOG:
            node, cluster, namespace = (
                self._identity.node,
                self._identity.cluster,
                self._identity.namespace,
            )
            raise InvalidSetting(
                f"node {node!r} in cluster {cluster!r}, namespace {namespace!r}, is a log of "
                "records, made by imap_wal.log.create; choose another node name"
            )

    def prove(self) -> None:
        """Raise the error that refuses this open, if any. Needs no lock, and changes nothing."""
        self.check_before()
        self._attempt(self._examine)

    def open(self, holder_name: str) -> NodeLog:
        """As `open_node_log`. What `prove` has read is not read again."""
        store, identity, takeover = self._store, self._identity, self._takeover
        if takeover:
            self.prove()
        else:
            self.check_before()
        holder = holder_text(holder_name, self._context.clock)
        lock = _locked(store, identity, holder, takeover=takeover)
        try:
            manifest, recovered = self.run()
            if takeover:
                _log.warning(
                    "the log of node %r was taken over by %s: epoch %d begins",
                    identity.node,
                    holder,
                    manifest.epoch,
                )
            log_links(store, [f"{self._folder}/wal", f"{self._folder}/archive"])
            return NodeLog(self._context, self.manifests, self.clusters, manifest, recovered, lock)
        except BaseException:
            lock.release()
            raise

    def run(self) -> tuple[NodeManifest, RecoveredState]:
        return self._attempt(self._open)

    def _attempt(self, action: Callable[[int, NodeManifest], T]) -> T:
        """`action` with the newest manifest; again if that was replaced meanwhile."""
        for _ in range(OPEN_ATTEMPTS):
            number, before = self.manifests.read()
            try:
                return action(number, before)
            except _Moved:
                continue
            except (LogError, NotFound, MissingNode):
                if self._published or self.manifests.read()[0] == number:
                    raise
                # It may not be damage: another process may have archived or removed files.
                continue
        raise LostRace(
            f"the manifest of node {self._identity.node!r} changed {OPEN_ATTEMPTS} times "
            "while it was opened; stop the process that archives or prunes it, and open again"
        )

    def _examine(self, number: int, manifest: NodeManifest) -> _Examined:
        """Raise the error that refuses this open, if any. Changes nothing."""
        self._demand_same(manifest)
        cluster_number, cluster = self._current_cluster_of(manifest)
        key_checks.demand_same(self._context.key_ring, cluster.keys, self.clusters.folder)
        self._registration.check_whose(cluster, manifest)
        self._registration.check(cluster, manifest.directory)
        self._opened = opened_epochs(self._store, self._identity.cluster_folder)
        wal = self._wal_of(manifest, cluster)
        before, lose = self._registration.check_place(manifest, wal, cluster)
        demand_current(self._store.list(self._folder), self._folder, before, wal)
        self._demand_no_better(before, wal)
        covered = max(
            (
                mark.position
                for mark in cluster.covered(self._identity.node)
                if mark.directory == before.directory
            ),
            default=START,
        )
        recovery = self._recovery
        if recovery is None or (recovery.manifest, recovery.covered) != (before, covered):
            self._recovery = recovery = Recovery(self._context, before, covered)
        if self._fences(manifest):
            recovery.prove(wal, fenced=self._fences_by_object(manifest))
        if self._also is not None:
            self._also()
            self._also = None
        first_session = self._registration.first_session(cluster, cluster_number)
        return _Examined(before, wal, recovery, first_session, lose)

    def _open(self, number: int, manifest: NodeManifest) -> tuple[NodeManifest, RecoveredState]:
        if self._epoch not in (None, manifest.epoch):
            raise WriterLocked(self._identity.node, "a process that opened it at the same moment")
        self._epoch = manifest.epoch
        examined = self._examine(number, manifest)
        claimed = self._claimed(examined.before, examined.first_session)
        try:
            return self._written(number, manifest, claimed, examined)
        except BaseException:
            if claimed.permit and not self._published:
                with suppress(StorageError):
                    self._store.delete(self._permit_of(claimed))
            raise

    def _written(
        self, number: int, former: NodeManifest, claimed: NodeManifest, examined: _Examined
    ) -> tuple[NodeManifest, RecoveredState]:
        """Do what writes, after all that can refuse the open was examined."""
        before, wal, recovery, _, lose = examined
        if self._fences(former):
            # Its own permit first: if the storage cannot store it, the former writer keeps its own.
            self._create_permit(claimed)
            self._shut_out(former)
            # Listed again, after the fence: with the earlier listing, segments were lost that the
            # former writer began and acknowledged in between (decision 22).
            wal = wal_folder(self._store, self._folder, before.archived, before.begins)

        accepts = self._context.settings.recovery_mode is RecoveryMode.POINT_IN_TIME

        def claim(gives_up: bool = False) -> None:
            if gives_up:
                self._registration.count_loss()
            if not self._published:
                # The log was read with these keys, and none of its segments is changed yet.
                key_checks.enter(self._context.key_ring, self.clusters)
                lose()
                ended = claimed.with_sessions_ended() if gives_up and accepts else claimed
                self._claim(number, before, ended, wal)

        recovered = recovery.run(claim)
        claim()
        manifest = self._note_recovered(claimed, recovered)
        self._registration.enter(manifest, self._opened)
        return manifest, recovered

    def _fences(self, manifest: NodeManifest) -> bool:
        """Whether a former writer may still write. This is possible without a takeover too: if this
        open was paused between lock and manifest, its successor may write now."""
        return bool(manifest.directory) and (self._takeover or not manifest.clean)

    def _fences_by_object(self, manifest: NodeManifest) -> bool:
        return not self._store.capabilities.durable_append and fences_by_object(manifest)

    def _demand_no_better(self, before: NodeManifest, wal: WalFolder) -> None:
        """Refuse an own disk whose segments are older than their uploaded copies, or damaged."""
        if self._context.settings.recovery_mode is not RecoveryMode.TORN_TAIL:
            read = len(wal.segments)
        else:
            read = 0 if before.clean else 1
        own = self._context.own_disk
        demand_same(own, self._folder, wal.segments, before.directory, read)

    def _demand_same(self, before: NodeManifest) -> None:
        """Refuse a log of another kind, and one that is being forgotten."""
        self._demand_kind(before)
        if self.directory not in (None, before.directory):
            reason = (
                f"node {self._identity.node!r} was forgotten or replaced by another process at "
                "the same time"
            )
            raise LostRace(f"{reason}; nothing was changed; run this again")
        if before.forgotten and before.directory:
            raise MissingNode(
                f"node {self._identity.node!r} is being forgotten (imap-wal forget-node): "
                "run that again to its end, and then open a new log"
            )

    def _current_cluster(self) -> ClusterManifest:
        return current_cluster(self._context.context, self._identity.cluster_folder, self.clusters)

    def _current_cluster_of(self, before: NodeManifest) -> tuple[int, ClusterManifest]:
        """The cluster's manifest, and its number."""
        number, cluster = self.clusters.read()
        if (
            before.cluster.newer_than(cluster.seen(number))
            or self._identity.node not in cluster.nodes
        ):
            # All nodes are read only now: this one may be the first to see that the cluster's
            # manifest was replaced by an older copy.
            cluster = self._current_cluster()
        return number, cluster

    def _wal_of(self, before: NodeManifest, cluster: ClusterManifest) -> WalFolder:
        """The segments."""
        wal = wal_folder(self._store, self._folder, before.archived, before.begins)
        last = wal.segments[-1].name if wal.segments else (0, 0)
        there = last if before.lives_in(wal.logs) else None
        node = self._identity.node
        # Or another process has opened it since `before` was read: then this open starts again.
        error = replaced(self._folder, node, before, there, cluster, self._opened)
        if error is not None:
            raise error
        return wal

    def _claimed(self, before: NodeManifest, first_session: int) -> NodeManifest:
        """The manifest of the new epoch."""
        randomness, epoch = self._context.randomness, before.epoch + 1
        opened, _ = self._opened.get(before.directory, NOT_OPENED)
        return replace(
            before,
            epoch=epoch,
            clean=False,
            forgotten=False,
            embedded=self._embedded,
            directory=before.directory or randomness.name(),
            session=before.session if before.directory else first_session,
            wal_id=before.wal_id or randomness.name(),
            permit=randomness.token().hex() if self._store.capabilities.durable_append else "",
            epochs=begun(
                before.epochs,
                epoch,
                epoch_id(randomness.token()),
                # A log may keep entries of one map that are older than what was removed of another.
                START if before.kind == LOG else before.removed,
                opened,
            ),
            address=self._context.address,
            address_key=self._context.address_key,
        )

    def _note_recovered(self, claimed: NodeManifest, recovered: RecoveredState) -> NodeManifest:
        """Publish the result of the recovery, if this open still owns the new epoch."""

        def change(manifest: NodeManifest) -> NodeManifest:
            if (manifest.epoch, manifest.permit) != (claimed.epoch, claimed.permit):
                raise WriterLocked(
                    self._identity.node, "a process that took it over while it was opened"
                )
            # This manifest may be an older copy without the last sessions in the log. Shared ones
            # are not numbered by this node.
            own = [request for request in recovered.requests if request < SHARED_SESSIONS]
            manifest = replace(manifest, session=max(manifest.session, *own, 0))
            newest, requests = (
                max(manifest.newest, recovered.next_segment - 1),
                manifest.known_requests(recovered.requests),
            )
            archived_epoch, archived = manifest.archived
            end = max(recovered.end, Position(archived_epoch, archived + 1, 0, 0))
            return replace(
                manifest,
                requests=requests,
                checkpoint=recovered.end,
                newest=newest,
                begins=(manifest.epoch, recovered.next_segment),
                epochs=ended(manifest.epochs, end),
            )

        return self.manifests.update(change)

    def _shut_out(self, before: NodeManifest) -> None:
        """After this, the writer of that epoch acknowledges nothing more."""
        if self._store.capabilities.durable_append:
            self._store.delete(layout.writer_path(self._folder, before.epoch, before.permit))
        else:
            # The log was read with these keys, so the fence is encrypted with keys of this log.
            key_checks.enter(self._context.key_ring, self.clusters)
            shut_out(self._context, before)

    def _claim(
        self, number: int, before: NodeManifest, claimed: NodeManifest, wal: WalFolder
    ) -> None:
        """Publish the new epoch as the successor of the manifest that was read. Before that, create
        the permit that its writer needs to acknowledge: a successor sees the epoch in the manifest,
        and deletes the permit. Its name has a nonce of this open: if another open took the epoch
        meanwhile and was replaced, a file of the same name would restore that writer's permit."""
        if not before.wal_id:
            with suppress(AlreadyExists):
                self._store.create(layout.log_path(self._folder, claimed.wal_id), b"")
        self._create_permit(claimed)
        if not self.manifests.publish(number, claimed):
            raise _Moved
        self._published = True
        own = self._permit_of(claimed)
        for path in wal.permits:
            if path != own:
                self._store.delete(path)

    def _permit_of(self, claimed: NodeManifest) -> str:
        return layout.writer_path(self._folder, claimed.epoch, claimed.permit)

    def _create_permit(self, claimed: NodeManifest) -> None:
        if self._store.capabilities.durable_append:
            with suppress(AlreadyExists):  # our own create: its answer was lost, or it was earlier
                self._store.create(self._permit_of(claimed), b"")
