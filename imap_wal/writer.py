"""The log of one node, open for writing: lock, manifest, tail, segments, rotation, fencing, close.

    open    lock ─▶ newest manifest ─▶ fence the old writer, unless it closed ─▶ scan what follows its checkpoint, cut a torn tail ─▶ publish epoch + 1
    write   frame ─▶ current segment (a new one when there is none or it is full)
    sync    segment sync ─▶ was this epoch fenced meanwhile? then nothing is acknowledged
    close   clean-shutdown frame ─▶ seal ─▶ manifest: clean, requests, checkpoint ─▶ unlock

Where the storage can append, a segment is a file that grows; where it cannot, every sync is one immutable object (`ObjectSegment`), a segment of its own.
Not thread-safe, except `new_session`, `manifests` and `requests`: the committer owns it.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from dataclasses import replace

import msgpack

from imap_wal import format, layout
from imap_wal.clock import Clock, Randomness
from imap_wal.errors import Fenced, InvalidSetting, LogError, MissingNode, StorageUnavailable, WriterLocked
from imap_wal.format import Position, SegmentHeader
from imap_wal.layout import Identity
from imap_wal.manifest import ClusterManifest, ManifestLog, NodeManifest, cluster_manifests, node_manifests
from imap_wal.recovery import Recoverer, Recovery
from imap_wal.segment import SegmentWriter
from imap_wal.settings import Durability, RecoveryPolicy, Settings
from storage_backends import AlreadyExists, Lock, Locked, NotFound, SegmentStore, StorageError

PLUGINS_KEPT = 64
"""Sessions of the last so many plug-in starts are remembered, to recognise what they send again."""


class ObjectSegment:
    """A segment for storages that cannot append: collects frames, and `sync` publishes them as one object. Same surface as `SegmentWriter`."""

    def __init__(self, store: SegmentStore, path: str, header: SegmentHeader) -> None:
        self._store, self.path, self.header = store, path, header
        self._seed = header.checksum_seed
        self._chunks = [header.encode()]
        self.size = len(self._chunks[0])
        self.checksum = 0

    def append(self, kind: int, count: int, payload: list[bytes]) -> int:
        offset = self.size
        chunks, length, self.checksum = format.encode_frame(self._seed, offset, kind, count, 0, payload)
        self._chunks += chunks
        self.size += length
        return offset

    def sync(self) -> None:
        data = b"".join(self._chunks)
        try:
            self._store.create(self.path, data)
        except AlreadyExists as error:
            if self._store.read(self.path) != data:  # else: our own create, whose answer was lost
                raise Fenced(f"{self.path} exists already: another process took this log over; close this one") from error

    def rewind(self, size: int) -> None:
        raise StorageUnavailable(f"{self.path}: nobody knows whether the object was created")

    def seal(self) -> None:
        """Sealed by its sync."""

    def close(self) -> None:
        """Nothing is held."""


class NodeLog:
    """See the module. Made by `open_node_log`."""

    def __init__(
        self,
        store: SegmentStore,
        identity: Identity,
        settings: Settings,
        clock: Clock,
        randomness: Randomness,
        manifests: ManifestLog[NodeManifest],
        clusters: ManifestLog[ClusterManifest],
        manifest: NodeManifest,
        recovery: Recovery,
        next_segment: int,
        checksum: int,
        lock: Lock,
    ) -> None:
        self.store, self.identity, self.settings, self.clock, self.randomness = store, identity, settings, clock, randomness
        self.manifests, self.clusters = manifests, clusters
        self.epoch, self.directory, self.recovery = manifest.epoch, manifest.directory, recovery
        self.requests: dict[int, int] = dict(manifest.requests)
        """Session → last durable request, kept by whoever commits."""
        self.end = manifest.checkpoint
        """Position of the last frame written."""
        self._folder = identity.node_folder
        self._fence = layout.fence_path(self._folder, self.epoch)
        self._next_segment, self._checksum = next_segment, checksum
        self._segment: SegmentWriter | ObjectSegment | None = None
        self._lock = lock
        self._began: float | None = None
        self._appends = store.capabilities.durable_append
        self._mutex = threading.Lock()
        self.bytes_written = 0
        self._closed = False

    # ---- writing ----

    def write(self, kind: int, count: int, payload: list[bytes]) -> Position:
        """Append one frame; returns the position of its first entry. Not safe before `sync`. A StorageError poisons this log, see `rewind`."""
        segment = self._segment or self._begin()
        before = segment.size
        offset = segment.append(kind, count, payload)
        self.bytes_written += segment.size - before
        self.end = Position(self.epoch, segment.header.number, offset, max(count - 1, 0))
        return Position(self.epoch, segment.header.number, offset, 0)

    def sync(self) -> None:
        """Make all frames safe, and refuse to go on when another process took over (`Fenced`)."""
        if self._segment is not None:
            self._segment.sync()
        self.check_fence()
        if self._segment is not None and not self._appends:
            self._finish()

    def check_fence(self) -> None:
        """`Fenced` if the epoch was raised by another process. One stat on a local file system."""
        if self._appends and self.store.exists(self._fence):
            raise Fenced(
                f"another process took over the log of node {self.identity.node!r}; what it did not see acknowledged is void, close this one"
            )

    def rewind(self) -> bool:
        """After a failed `write`: True when it is certain that nothing of it is left behind."""
        if self._segment is None:
            return True
        try:
            self._segment.rewind(self._segment.size)
        except (StorageError, StorageUnavailable):
            return False
        return True

    @property
    def full(self) -> bool:
        return self._segment is not None and self._segment.size >= self.settings.segment_bytes

    @property
    def age_s(self) -> float:
        """Seconds since the current segment began; 0 where there is none. Safe from any thread."""
        began = self._began
        return 0.0 if began is None else self.clock.monotonic() - began

    def rotate(self) -> None:
        """Seal the current segment (a sync); the next write begins another."""
        if self._segment is not None:
            if not self._appends:
                self._segment.sync()
            self._segment.seal()
            self.check_fence()
            self._finish()

    @property
    def unsealed(self) -> int:
        """Number of the first segment that is not sealed: the one being written, or the next one. Safe from any thread."""
        following, current = self._next_segment, self._segment  # in this order: a segment that begins in between is then never taken for sealed
        return current.header.number if current is not None else following

    def _begin(self) -> SegmentWriter | ObjectSegment:
        number = self._next_segment
        path = layout.wal_path(self._folder, self.epoch, number)
        who = self.identity
        header = SegmentHeader(
            self.randomness.token(), who.namespace, who.cluster, who.node, self.epoch, number, self._checksum, self.clock.now_ms(), self.directory
        )
        segment: SegmentWriter | ObjectSegment
        if self._appends:
            room = self.settings.segment_bytes if self.settings.preallocate and self.store.capabilities.preallocate else 0
            segment = SegmentWriter(self.store, path, header, room)
        else:
            segment = ObjectSegment(self.store, path, header)
        self._segment = segment
        self._began = self.clock.monotonic()
        self._next_segment = number + 1
        return segment

    def _finish(self) -> None:
        if self._segment is not None:
            self._checksum = self._segment.checksum
            self._segment = None
            self._began = None

    @property
    def leased(self) -> bool:
        """Whether the lock is a lease, to be renewed now and then."""
        return self._lock.expires_ms > 0

    def renew(self) -> None:
        """Renew the lease. `Fenced` when somebody else has it."""
        try:
            self._lock.renew()
        except Locked as error:
            raise Fenced(f"the lease on the log of node {self.identity.node!r} is now held by {error.holder}") from error

    # ---- sessions ----

    def new_session(self, plugin: str = "") -> int:
        """The session of a plug-in in its incarnation (the one it had, if it is known), or a new one."""
        with self._mutex:

            def change(manifest: NodeManifest) -> NodeManifest | None:
                self._own(manifest)
                if plugin in manifest.plugins:
                    return None
                session = manifest.session + 1
                if not plugin:
                    return replace(manifest, session=session)
                newest = sorted({**manifest.plugins, plugin: session}.items(), key=lambda item: item[1])[-PLUGINS_KEPT:]
                return replace(manifest, session=session, plugins=dict(newest))

            manifest = self.manifests.update(change)
            return manifest.plugins.get(plugin, manifest.session)

    def _own(self, manifest: NodeManifest) -> None:
        if manifest.epoch != self.epoch:
            raise Fenced(f"node {self.identity.node!r} is at epoch {manifest.epoch}, this writer at {self.epoch}: another process took over")

    # ---- the end ----

    def close(self, clean: bool = True) -> None:
        """Seal and, if `clean`, say so in the log and in the manifest; then let go of the lock. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            if clean:
                if self._segment is not None:
                    self.write(format.CLEAN_SHUTDOWN, 1, [msgpack.packb([self.clock.now_ms(), dict(self.requests)])])
                    self.sync()
                    self.rotate()
                requests, end = dict(self.requests), self.end

                def change(manifest: NodeManifest) -> NodeManifest:
                    self._own(manifest)
                    return replace(manifest, clean=True, requests=requests, checkpoint=max(end, manifest.checkpoint))

                self.manifests.update(change)
        finally:
            if self._segment is not None:
                self._segment.close()
            self._lock.release()


def holder_text(what: str) -> str:
    """How this process names itself in a lock: what it is, its number, its machine."""
    return f"{what} (process {os.getpid()} on {socket.gethostname()})"


def open_node_log(
    store: SegmentStore,
    identity: Identity,
    settings: Settings,
    clock: Clock,
    randomness: Randomness,
    *,
    what: str = "imap-wal",
    takeover: bool = False,
) -> NodeLog:
    """Become the writer of a node's log. `WriterLocked`, `CorruptLog`, `ShortLog`, `UnsupportedVersion`, `MissingNode`, `StorageUnavailable`."""
    can = store.capabilities
    if settings.durability is Durability.ALWAYS and can.durable_append and not can.durable_sync:
        raise InvalidSetting(
            f"{store.url} cannot sync, so durability 'always' would be a lie; choose 'os' or 'interval'"
            + (", or add ?sync_on_close=true where data nodes sync on close" if "hdfs" in store.url else "")
        )
    folder = identity.node_folder
    manifests = node_manifests(store, folder, clock, randomness)
    clusters = cluster_manifests(store, identity.cluster_folder, clock, randomness)
    try:
        lock = store.lock(f"{folder}/writer.lock", holder_text(what), take=takeover)
    except Locked as error:
        raise WriterLocked(identity.node, error.holder) from error
    try:
        _, before = manifests.read()
        # Not only for a takeover: an open that was stopped between lock and manifest, and taken over meanwhile, finds its successor here.
        if before.epoch and (takeover or not before.clean):
            if store.capabilities.durable_append:
                try:
                    store.create(layout.fence_path(folder, before.epoch), holder_text(what).encode())
                except AlreadyExists:
                    pass  # an earlier takeover stopped half-way
            else:
                _occupy(store, identity, before, clock, randomness)

        def own(manifest: NodeManifest, epoch: int) -> None:
            if manifest.epoch != epoch:
                raise WriterLocked(identity.node, "a process that opened it at the same moment")

        claimed = before.epoch

        def claim() -> None:
            """Publish the new epoch before any file is changed: what was read may be old, and the newest segment a successor's by now."""

            def publish(manifest: NodeManifest) -> NodeManifest:
                own(manifest, before.epoch)
                return replace(manifest, epoch=before.epoch + 1, clean=False)

            nonlocal claimed
            claimed = manifests.update(publish).epoch

        recovery, requests, end, next_segment, checksum = Recoverer(store, identity, before, settings.recovery_mode, clock, randomness, claim).run()

        def change(manifest: NodeManifest) -> NodeManifest:
            own(manifest, claimed)
            directory = manifest.directory or randomness.name()
            return replace(manifest, directory=directory, epoch=before.epoch + 1, requests=requests, checkpoint=end, clean=False)

        manifest = manifests.update(change)
        _register(clusters, identity, manifest.directory, settings)
    except BaseException:
        lock.release()
        raise
    return NodeLog(store, identity, settings, clock, randomness, manifests, clusters, manifest, recovery, next_segment, checksum, lock)


def _register(clusters: ManifestLog[ClusterManifest], identity: Identity, directory: str, settings: Settings) -> None:
    def change(manifest: ClusterManifest) -> ClusterManifest | None:
        known = manifest.nodes.get(identity.node)
        if known == directory:
            return None
        if known is not None and settings.recovery_policy is RecoveryPolicy.FULL:
            raise MissingNode(
                f"node {identity.node!r} was known with log directory {known}, here stands {directory}: its log was lost or replaced; "
                "bring the old directory back, or open with recovery_policy='partial' to go on without it"
            )
        return replace(manifest, nodes={**manifest.nodes, identity.node: directory})

    clusters.update(change)


def _occupy(store: SegmentStore, identity: Identity, manifest: NodeManifest, clock: Clock, randomness: Randomness) -> None:
    """Create the segment that the old writer would create next: it then fails, and knows. Before the log is scanned, so that whatever it acknowledged is scanned. One
    segment, the last of its epoch, however often this is begun anew: `layout.fences` keeps that for ever."""
    names = [name for file in store.list(f"{identity.node_folder}/wal") if (name := layout.parse_wal_path(file.path))]
    number = max([manifest.archived[1], manifest.checkpoint.segment, *(segment for _, segment in names)])
    path = layout.wal_path(identity.node_folder, manifest.epoch, number)
    while not _holds_nothing(store, path):
        number += 1
        path = layout.wal_path(identity.node_folder, manifest.epoch, number)
        header = SegmentHeader(
            randomness.token(), identity.namespace, identity.cluster, identity.node, manifest.epoch, number, 0, clock.now_ms(), manifest.directory
        )
        with suppress(AlreadyExists):  # one more commit of the old writer, or an earlier takeover that stopped half-way
            store.create(path, header.encode())


def _holds_nothing(store: SegmentStore, path: str) -> bool:
    """Whether a segment is there and ends with its header."""
    try:
        data = store.read(path)
        return format.decode_header(data, path)[1] == len(data)
    except (NotFound, LogError):
        return False


__all__ = ["Identity", "NodeLog", "Recovery", "holder_text", "open_node_log"]
