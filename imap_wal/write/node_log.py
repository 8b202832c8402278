"""The log of one node, open for writing: lock, manifest, tail, segments, rotation, permit, close.

    open    lock ─▶ newest manifest ─▶ shut out the old writer, unless it closed ─▶ scan what follows its checkpoint, cut a torn tail ─▶ publish epoch + 1
    write   frame ─▶ current segment (a new one when there is none or it is full)
    sync    segment sync ─▶ is this epoch's permit gone? then nothing is acknowledged
    close   clean-shutdown frame ─▶ seal ─▶ manifest: clean, requests, checkpoint ─▶ unlock

Where the storage can append, a segment is a file that grows; where it cannot, every sync is one
immutable object (`ObjectSegment`), a segment of its own. Not thread-safe, except `new_session`,
`move_checkpoint`, `manifests` and `requests`: the committer owns it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import msgpack

from imap_wal import format, layout
from imap_wal.clock import Clock, Randomness
from imap_wal.disposal import tell_links
from imap_wal.encryption import keys_of, sealed
from imap_wal.encryption_keys import KeyRing
from imap_wal.errors import EncryptionError, Fenced, ImapWalError, InvalidSetting, LogError, LostRace, MissingNode, StorageUnavailable, WriterLocked
from imap_wal.format import Position, SegmentHeader
from imap_wal.layout import Identity
from imap_wal.manifest import evidence, key_checks
from imap_wal.manifest.cluster import ClusterManifest, claim_manifests, cluster_manifests
from imap_wal.manifest.node import LOG, NodeManifest, node_manifests
from imap_wal.manifest.older import MISSING_ADVICE, current_cluster, foreign_wal, mark_beyond, older_epoch, older_manifest, opened_epochs
from imap_wal.manifest.store import ManifestLog
from imap_wal.segment.listing import WalFolder, sorted_out, wal_folder
from imap_wal.segment.writer import SegmentWriter
from imap_wal.settings import Durability, RecoveryPolicy, Settings
from imap_wal.write.recovery import Recovered, Recoverer, Recovery
from storage_backends import AlreadyExists, Lock, Locked, NotFound, SegmentStore, StorageError, StoredFile, lock_holder

_log = logging.getLogger("imap_wal")

OPEN_ATTEMPTS = 20
"""How often an open begins again because the manifest moved while it looked at the log."""
SESSIONS_A_LOG = 2**20
"""More than a log ever gives."""
PLUGINS_KEPT = 64
"""Sessions of the last so many plug-in starts are remembered, to recognise what they send again."""


WITHOUT = "and open with recovery_policy='partial'"
OTHER_NODE = "a store that was opened later"
"""How an open names itself in the lock of another node whose writer it shuts out."""


class ObjectSegment:
    """A segment for storages that cannot append: collects frames, and `sync` publishes them as one object. Same surface as `SegmentWriter`."""

    def __init__(
        self, store: SegmentStore, path: str, header: SegmentHeader, fenced: Callable[[], Fenced], randomness: Randomness, ring: KeyRing
    ) -> None:
        self._store, self.path, self._fenced = store, path, fenced
        self.header, self._cipher = sealed(ring, header, randomness)
        self._seed = header.checksum_seed
        self._chunks = [self.header.encode()]
        self.size = len(self._chunks[0])
        self.checksum = 0

    def append(self, kind: int, count: int, payload: list[bytes]) -> int:
        offset = self.size
        if self._cipher is not None:
            payload = self._cipher.seal(offset, kind, count, 0, payload)
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
                raise self._fenced() from error

    def rewind(self, size: int) -> None:
        raise StorageUnavailable(f"{self.path}: it is not known whether the object was created")

    def seal(self) -> None:
        """Sealed by its sync."""

    def close(self) -> None:
        """Nothing is held."""


class Mark(NamedTuple):
    """Where the log was before a commit, for `NodeLog.rewind`."""

    segment: SegmentWriter | ObjectSegment | None
    size: int
    checksum: int
    end: Position
    bytes_written: int


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
        ring: KeyRing,
    ) -> None:
        self.store, self.identity, self.settings, self.clock, self.randomness = store, identity, settings, clock, randomness
        self.manifests, self.clusters = manifests, clusters
        self.claims = claim_manifests(store, identity.cluster_folder, clusters.read()[1].claims, clock, randomness)
        self.epoch, self.directory, self.recovery = manifest.epoch, manifest.directory, recovery
        self.requests: dict[int, int] = dict(manifest.requests)
        """Session → last durable request, kept by whoever commits."""
        self.metadata = manifest.metadata
        self.end = manifest.checkpoint
        """Position of the last frame written."""
        self._folder = identity.node_folder
        self._token = manifest.permit
        self._permit = layout.writer_path(self._folder, self.epoch, self._token)
        """While this file exists, the epoch may acknowledge."""
        self._process = os.getpid()
        self._next_segment, self._checksum = next_segment, checksum
        self._segment: SegmentWriter | ObjectSegment | None = None
        self._making = False
        """A segment of number `_next_segment` was begun, and perhaps interrupted."""
        self._lock = lock
        self._began: float | None = None
        self._appends = store.capabilities.durable_append
        self._mutex = threading.Lock()
        self.bytes_written = 0
        self._closed = False
        self._ring = ring

    # ---- writing ----

    def write(self, kind: int, count: int, payload: list[bytes]) -> Position:
        """Append one frame; returns the position of its first entry. Not safe before `sync`. A StorageError poisons this log, see `rewind`."""
        if os.getpid() != self._process:
            raise Fenced(f"this log was opened by process {self._process}, and this is a forked child: open a log of its own here")
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
        if self._appends and not self.store.exists(self._permit):
            raise self._fenced()

    def _fenced(self) -> Fenced:
        """The error for this writer, which was shut out. It says if its log was forgotten. Else it
        names the holder of this node's lock. If that lock is free, it names the holders of other
        nodes' locks: an open under another node name takes this log over and closes it."""
        who, by_other_node = "", False
        with suppress(StorageError, ImapWalError):
            if self.directory in self.clusters.read()[1].forgotten or self.manifests.read()[1].forgotten:
                what = f"node {self.identity.node!r} was forgotten (imap-wal forget-node): no restore reads its log any more"
                return Fenced(what, advice="close this one; an open under this node name begins a new log")
            who = lock_holder(self.store, f"{self._folder}/writer.lock")
            by_other_node = who.startswith(OTHER_NODE)
            if not who:
                folders = {node: layout.node_folder(self.identity.cluster_folder, node) for node in sorted(self.clusters.read()[1].nodes)}
                holders = {node: lock_holder(self.store, f"{folder}/writer.lock") for node, folder in folders.items()}
                who = ", ".join(f"node {node!r}, {holder}" for node, holder in holders.items() if holder)
                by_other_node = bool(who)
        advice = "close this one"
        if by_other_node:
            advice += "; if several processes write different keys, open each with shared=True"
        return Fenced(f"the log of node {self.identity.node!r} was taken over by {who or 'another process'}", who, advice)

    def mark(self) -> Mark:
        """Where the log is now, for `rewind`."""
        segment = self._segment
        return Mark(segment, segment.size if segment else 0, segment.checksum if segment else 0, self.end, self.bytes_written)

    def rewind(self, mark: Mark | None = None) -> bool:
        """After a failed `write`, or one that was interrupted after `mark`: True when it is certain
        that nothing of it is left."""
        segment = self._segment
        if segment is None:
            return True
        if mark is None:
            mark = self.mark()
        elif mark.segment is None:
            mark = mark._replace(segment=segment, size=len(segment.header.encode()))  # it was begun since
        if mark.segment is not segment:
            return False
        try:
            segment.rewind(mark.size)
        except (StorageError, StorageUnavailable):
            return False
        segment.checksum, self.end, self.bytes_written = mark.checksum, mark.end, mark.bytes_written
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
        if self._making:
            self._settle_half_made()
        # A replaced writer must begin no segment: its successor may need the name.
        self.check_fence()
        number = self._next_segment
        path, header = self._next_path(), self._next_header()
        segment: SegmentWriter | ObjectSegment
        if self._appends:
            room = self.settings.segment_bytes if self.settings.preallocate and self.store.capabilities.preallocate else 0
            self._making = True
            segment = SegmentWriter(self.store, path, header, room, self.randomness, self._keys_to_write())
            try:
                self._announce(number)
            except BaseException:
                segment.close()
                raise
        else:
            segment = ObjectSegment(self.store, path, header, self._fenced, self.randomness, self._keys_to_write())
        began = self.clock.monotonic()
        self._segment, self._began, self._next_segment, self._making = segment, began, number + 1, False
        return segment

    def _keys_to_write(self) -> KeyRing:
        """The keys as they are now, if the cluster has none of their ids for another key; else those
        of before, which can read what they write."""
        ring = keys_of(self.store).ring
        if ring != self._ring:
            try:
                key_checks.enter(ring, self.clusters)
                self._ring = ring
            except (EncryptionError, LogError, LostRace, StorageError) as error:
                _log.error("node %r continues to write with the keys of before, for the new ones cannot be used: %s", self.identity.node, error)
        return self._ring

    def _announce(self, number: int) -> None:
        """Enter a new segment into the manifest, after it was created and before anything in it
        counts. A copy of this log made while segments were archived and removed may have neither
        segment nor archive; the entry shows that it is incomplete."""

        def change(manifest: NodeManifest) -> NodeManifest:
            self._own(manifest)
            return replace(manifest, newest=max(manifest.newest, number))

        try:
            self.manifests.update(change)
        except (StorageError, LostRace) as error:  # appending continues where only the segments can be reached
            _log.warning("segment %d of node %r could not be entered into the manifest: %s", number, self.identity.node, error)

    def _next_path(self) -> str:
        return layout.wal_path(self._folder, self.epoch, self._next_segment)

    def _next_header(self) -> SegmentHeader:
        who, number = self.identity, self._next_segment
        # Said, so that this segment is not taken for an empty one if it loses its frames.
        previous = self._checksum or (format.NOTHING_BEFORE if number > 1 else 0)
        return SegmentHeader(
            self.randomness.token(), who.namespace, who.cluster, who.node, self.epoch, number, previous, self.clock.now_ms(), self.directory
        )

    def _settle_half_made(self) -> None:
        """An interrupt stopped the making of a segment: its file may be there, with a part of its
        header. It keeps its number, empty; the next segment gets the next one. Nothing is deleted:
        a successor may have taken the file into account."""
        self.check_fence()
        self.store.replace(self._next_path(), sealed(self._ring, self._next_header(), self.randomness)[0].encode())
        self._next_segment, self._making = self._next_segment + 1, False

    def _finish(self) -> None:
        if self._segment is not None:
            self._checksum = self._segment.checksum or self._checksum
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
            raise self._fenced() from error

    # ---- sessions ----

    def new_session(self, plugin: str = "", former: Mapping[int, int] | None = None) -> int:
        """The session of a plug-in in its incarnation (the one it had, if it is known), or a new
        one. From then on this node refuses a manifest of its cluster that is older than the present
        one. `former`: kept with it, see `NodeManifest.former`."""
        with self._mutex:
            number, cluster = self.clusters.read()
            seen = cluster.seen(number)

            def change(manifest: NodeManifest) -> NodeManifest | None:
                self._own(manifest)
                if plugin in manifest.plugins:
                    return None
                session = manifest.session + 1
                manifest = replace(manifest, session=session, cluster=manifest.cluster.up_to(seen))
                if not plugin:
                    return manifest
                newest = sorted({**manifest.plugins, plugin: session}.items(), key=lambda item: item[1])[-PLUGINS_KEPT:]
                known = {number: last for number, last in {**manifest.former, **(former or {})}.items() if number in dict(newest).values()}
                return replace(manifest, plugins=dict(newest), former=known)

            manifest = self.manifests.update(change)
            return manifest.plugins.get(plugin, manifest.session)

    def move_checkpoint(self, end: Position, requests: Mapping[int, int], *, clean: bool = False) -> None:
        """Have the next recovery begin at the frame of `end`, which is safe, with the requests that
        are in the log up to there. `Fenced`, `LostRace`, StorageError. Safe from any thread."""

        def change(manifest: NodeManifest) -> NodeManifest:
            self._own(manifest)
            # An archive run may have moved it further in between.
            last = {session: max(request, manifest.requests.get(session, 0)) for session, request in requests.items()}
            known = manifest.known_requests({**manifest.requests, **last})
            return replace(manifest, clean=clean or manifest.clean, requests=known, checkpoint=max(end, manifest.checkpoint))

        self.manifests.update(change)

    def _own(self, manifest: NodeManifest) -> None:
        if manifest.epoch != self.epoch:
            raise self._fenced()
        if manifest.permit != self._token:
            who = f"another process opened node {self.identity.node!r} with epoch {self.epoch} too"
            why = "the node's manifest was replaced by an older copy"
            raise Fenced(f"{who}: {why}", advice="close this one")

    # ---- the end ----

    def close(self, clean: bool = True) -> None:
        """Seal and, if `clean`, say so in the log and in the manifest; then let go of the lock. Safe to call twice."""
        if self._closed or os.getpid() != self._process:  # a child made by fork must not end its parent's log, nor release its lock
            return
        try:
            if clean:
                if self._making:
                    self._settle_half_made()
                if self._segment is not None:
                    self.write(format.CLEAN_SHUTDOWN, 1, [msgpack.packb([self.clock.now_ms(), dict(self.requests)])])
                    self.sync()
                    self.rotate()
                self.move_checkpoint(self.end, dict(self.requests), clean=True)
                if self._appends:
                    self.store.delete(self._permit)
        finally:
            if self._segment is not None:
                self._segment.close()
            self._lock.release()
            self._closed = True


def check_new_log(store: SegmentStore, identity: Identity, settings: Settings, clock: Clock, randomness: Randomness) -> None:
    """Raise what `open_node_log` would raise where a node has no manifest. For a caller that
    publishes the first one itself."""
    _Opening(store, identity, settings, clock, randomness, takeover=False, embedded=False).check_before()


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
    embedded: bool = False,
    directory: str | None = None,
    maps: bool = False,
) -> NodeLog:
    """Become the writer of a node's log; `embedded`: of a program, not of an agent; `directory`: only
    of this log, `LostRace` where another one has replaced it or it was forgotten; `maps`: for changes
    of maps, `InvalidSetting` where `imap_wal.log` made the log. `WriterLocked`, `CorruptLog`, `ShortLog`, `UnsupportedVersion`, `MissingNode`, `StorageUnavailable`."""
    identity.check()
    can = store.capabilities
    if settings.durability is Durability.ALWAYS and can.durable_append and not can.durable_sync:
        raise InvalidSetting(
            f"{store.url} cannot sync, so durability 'always' would be a lie; choose 'os' or 'interval'"
            + (", or add ?sync_on_close=true where data nodes sync on close" if "hdfs" in store.url else "")
        )
    folder = identity.node_folder
    opening = _Opening(store, identity, settings, clock, randomness, takeover, embedded, directory, maps)
    opening.check_before()
    try:
        lock = store.lock(f"{folder}/writer.lock", holder_text(what), take=takeover)
    except Locked as error:
        raise WriterLocked(identity.node, error.holder) from error
    try:
        manifest, recovered = opening.run()
        if takeover:
            _log.warning("the log of node %r was taken over by %s: epoch %d begins", identity.node, holder_text(what), manifest.epoch)
        tell_links(store, [f"{folder}/wal", f"{folder}/archive"])
        return NodeLog(
            store, identity, settings, clock, randomness, opening.manifests, opening.clusters, manifest,
            recovered.recovery, recovered.next_segment, recovered.checksum, lock, opening.ring,
        )  # fmt: skip
    except BaseException:
        lock.release()
        raise


def shut_out_others(log: NodeLog, what: str, *, embedded: bool = False) -> list[str]:
    """Take over, and close, the log of every other node that is not closed; `embedded`: only of
    those that programs opened, and not agents. Call it after a claim that a later open sees. The
    names of those nodes. `what`: who does it, for their writers."""
    who, found = log.identity, []
    for node in sorted(log.clusters.read()[1].nodes):
        if node == who.node:
            continue
        other = replace(who, node=node)
        manifest = node_manifests(log.store, other.node_folder, log.clock, log.randomness).read()[1]
        if manifest.clean and not log.store.capabilities.stale_listings:  # else a newer manifest may be there
            continue
        if embedded and not manifest.embedded:
            continue
        try:
            opened = open_node_log(log.store, other, log.settings, log.clock, log.randomness, what=what, takeover=True, directory=manifest.directory)
            opened.close()
        except LostRace:
            if node_manifests(log.store, other.node_folder, log.clock, log.randomness).read()[1].directory == manifest.directory:
                raise
            # It was forgotten. A log that was begun in its place was opened after the claim.
        except MissingNode:
            if log.settings.recovery_policy is RecoveryPolicy.FULL:
                raise
        else:
            found.append(node)
    return found


class _Moved(Exception):
    """A newer manifest was published than the one that an open acted on."""


class _Opening:
    """One open, with the lock held. Everything it does rests on one manifest: the old writer is
    shut out, the log is looked at, and the new epoch is published as the successor of that manifest
    and of no other, before a segment is changed. If another manifest was published in between (by
    the old writer's archive run, or by a prune), the open begins again."""

    def __init__(
        self,
        store: SegmentStore,
        identity: Identity,
        settings: Settings,
        clock: Clock,
        randomness: Randomness,
        takeover: bool,
        embedded: bool,
        directory: str | None = None,
        maps: bool = False,
    ) -> None:
        self._directory, self._maps = directory, maps
        self._store, self._identity, self._settings, self._takeover = store, identity, settings, takeover
        self._embedded = embedded
        self._clock, self._randomness = clock, randomness
        self._folder = identity.node_folder
        self._published = False
        self._opened: Mapping[str, int] = {}
        self.ring = keys_of(store).ring
        self.manifests = node_manifests(store, self._folder, clock, randomness)
        self.clusters = cluster_manifests(store, identity.cluster_folder, clock, randomness)

    def check_before(self) -> None:
        """What is refused before the lock is taken. It would leave a folder for a log that never
        began, where a node has no manifest."""
        number, before = self.manifests.read()
        self._demand_kind(before)
        if self.ring.keys:
            key_checks.demand_same(self.ring, self.clusters.read()[1].keys, self.clusters.folder)
        if number:
            return
        # Listed before the manifest is read again: it may be opened at this moment.
        files = self._store.list(self._folder)
        wal = sorted_out(file for file in files if file.path.startswith(f"{self._folder}/wal/"))
        number, before = self.manifests.read()
        if number:
            return
        try:
            cluster = current_cluster(self._store, self._identity.cluster_folder, self.clusters, self._clock, self._randomness)
            # First: for segments without a manifest the way out is `repair`, not to do without them.
            _demand_current(files, self._folder, before, wal)
            self._check_registered(cluster, "")
        except (LogError, MissingNode):
            if not self.manifests.read()[0]:
                raise
            # Another process has opened it since: `run` looks again, with the lock held.

    def _demand_kind(self, manifest: NodeManifest) -> None:
        if self._maps and manifest.kind == LOG:
            node, cluster, namespace = self._identity.node, self._identity.cluster, self._identity.namespace
            raise InvalidSetting(
                f"node {node!r} in cluster {cluster!r}, namespace {namespace!r}, is a log of records, made by imap_wal.log.create; choose another node name"
            )

    def run(self) -> tuple[NodeManifest, Recovered]:
        first_epoch: int | None = None
        for _ in range(OPEN_ATTEMPTS):
            number, before = self.manifests.read()
            if first_epoch is not None and before.epoch != first_epoch:
                raise WriterLocked(self._identity.node, "a process that opened it at the same moment")
            first_epoch = before.epoch
            try:
                return self._open(number, before)
            except _Moved:
                continue
            except (LogError, NotFound, MissingNode):
                if self._published or self.manifests.read()[0] == number:
                    raise
                continue  # what looked like damage may have been archived or removed by another process
        raise LostRace(
            f"the manifest of node {self._identity.node!r} changed {OPEN_ATTEMPTS} times while it was opened; stop what archives or prunes it, and open again"
        )

    def _open(self, number: int, before: NodeManifest) -> tuple[NodeManifest, Recovered]:
        self._demand_kind(before)
        if self._directory not in (None, before.directory):
            what = f"node {self._identity.node!r} was forgotten or replaced by another process at the same time"
            raise LostRace(f"{what}; nothing was changed; run this again")
        if before.forgotten and before.directory:
            raise MissingNode(
                f"node {self._identity.node!r} is being forgotten (imap-wal forget-node): run that again to its end, and then open a new log"
            )
        cluster_number, cluster = self.clusters.read()
        if before.cluster.newer_than(cluster.seen(cluster_number)) or self._identity.node not in cluster.nodes:
            # All nodes are asked only now: this one may be the first to see that the cluster's
            # manifest was put back.
            cluster = current_cluster(self._store, self._identity.cluster_folder, self.clusters, self._clock, self._randomness)
        self._check_whose(cluster, before)
        self._check_registered(cluster, before.directory)
        self._opened = opened_epochs(self._store, self._identity.cluster_folder)
        older = older_epoch(before, self._opened)
        if older:  # or another process has opened it since `before` was read: then this open begins again
            raise older_manifest(f"{self._folder}/manifest", older)
        wal = wal_folder(self._store, self._folder, before.archived, before.begins)
        if before.lives_in(wal.logs):
            # Before an object is created that shuts the writer out: it would be taken for the
            # segment that is missing.
            beyond = mark_beyond(self._identity.node, before, wal.segments[-1].name if wal.segments else (0, 0), cluster)
            if beyond:
                raise older_manifest(f"{self._folder}/manifest", beyond)
        if before.directory and (self._takeover or not before.clean):
            # Not only for a takeover: an open that was stopped between lock and manifest, and
            # replaced meanwhile, finds its successor here.
            self._shut_out(before)
            wal = wal_folder(self._store, self._folder, before.archived, before.begins)
        before = self._check_place(before, wal, cluster)
        _demand_current(self._store.list(self._folder), self._folder, before, wal)
        claimed = replace(
            before,
            epoch=before.epoch + 1,
            clean=False,
            forgotten=False,
            embedded=self._embedded,
            directory=before.directory or self._randomness.name(),
            session=before.session if before.directory else self._first_session(cluster, cluster_number),
            wal_id=before.wal_id or self._randomness.name(),
            permit=self._randomness.token().hex() if self._store.capabilities.durable_append else "",
        )

        def claim() -> None:
            if not self._published:
                key_checks.enter(self.ring, self.clusters)  # the log was read with it, and nothing is written yet
                self._claim(number, before, claimed, wal)

        mode = self._settings.recovery_mode
        recovered = Recoverer(self._store, self._identity, before, mode, self._clock, self._randomness, claim).run()
        claim()

        def change(manifest: NodeManifest) -> NodeManifest:
            if (manifest.epoch, manifest.permit) != (claimed.epoch, claimed.permit):
                raise WriterLocked(self._identity.node, "a process that took it over while it was opened")
            # This manifest may be an older copy that does not know the last sessions in the log.
            manifest = replace(manifest, session=max(manifest.session, *recovered.requests, 0))
            newest, requests = max(manifest.newest, recovered.next_segment - 1), manifest.known_requests(recovered.requests)
            return replace(manifest, requests=requests, checkpoint=recovered.end, newest=newest, begins=(manifest.epoch, recovered.next_segment))

        manifest = self.manifests.update(change)
        self._register(manifest)
        return manifest, recovered

    def _first_session(self, cluster: ClusterManifest, number: int) -> int:
        """Where the sessions of a new log begin. Order compares them with those of a former log
        under this node name, which may be lost: so they begin above all that it can have given, by
        the number of the cluster's manifest, which grew when it was registered."""
        known_before = self._identity.node in cluster.nodes or cluster.forgotten
        return number * SESSIONS_A_LOG if known_before else 0

    def _shut_out(self, before: NodeManifest) -> None:
        """After this, the writer of that epoch acknowledges nothing more."""
        if self._store.capabilities.durable_append:
            self._store.delete(layout.writer_path(self._folder, before.epoch, before.permit))
            if not before.wal_id:  # the log was last opened by a version that looks for a fence
                with suppress(AlreadyExists):
                    self._store.create(layout.old_fence_path(self._folder, before.epoch), b"")
        else:
            key_checks.enter(self.ring, self.clusters)
            _occupy(self._store, self._identity, before, self._clock, self._randomness, self.ring)

    def _claim(self, number: int, before: NodeManifest, claimed: NodeManifest, wal: WalFolder) -> None:
        """Publish the new epoch as the successor of what was read. The permit that its writer needs
        to acknowledge is created first: a successor sees the epoch in the manifest, and deletes the
        permit. The name has a nonce of this open: if another open took the epoch meanwhile and was
        replaced, a file of the same name would restore the permit of that writer."""
        if not before.wal_id:
            with suppress(AlreadyExists):
                self._store.create(layout.log_path(self._folder, claimed.wal_id), b"")
        if self._store.capabilities.durable_append:
            with suppress(AlreadyExists):  # our own create, whose answer was lost
                self._store.create(layout.writer_path(self._folder, claimed.epoch, claimed.permit), b"")
        if not self.manifests.publish(number, claimed):
            raise _Moved
        self._published = True
        own = layout.writer_path(self._folder, claimed.epoch, claimed.permit)
        for path in wal.permits:
            if path != own:
                self._store.delete(path)

    def _check_place(self, before: NodeManifest, wal: WalFolder, cluster: ClusterManifest) -> NodeManifest:
        """The manifest, if the segments beside it are this log's. If they are not, and the recovery
        policy allows it: the manifest of the same log without those segments. Its numbers continue
        after all that are known."""
        if before.lives_in(wal.logs):
            return before
        what = f"node {self._identity.node!r}: {foreign_wal(self._folder, before, wal.logs)}"
        if wal.segments or wal.archived:
            raise MissingNode(what, f"bring the right folder back; to continue without it, move {self._folder}/wal away first, {WITHOUT}")
        if self._settings.recovery_policy is RecoveryPolicy.FULL:
            raise MissingNode(what, MISSING_ADVICE)
        _log.warning("%s; this node continues without the entries that only those segments held", what)
        numbers = [mark.position.segment for mark in cluster.covered(self._identity.node)]
        number = max([before.newest, before.checkpoint.segment, before.archived[1], *(each.number for each in wal.segments), *numbers])
        return replace(before, wal_id="", clean=True, archived=(before.epoch, number))

    def _check_whose(self, cluster: ClusterManifest, before: NodeManifest) -> None:
        """Refuse another log than the registered one, whatever the recovery policy: that allows to
        continue without a log that is missing, not with another one. A log without archives, and
        with no segment but empty ones that shut a writer out, was begun here by an open that did not
        come far enough to register it."""
        known, folder = cluster.nodes.get(self._identity.node), self._folder
        if not before.directory or known == before.directory:
            return
        owner = next((node for node, each in cluster.nodes.items() if each == before.directory), "")
        if owner:
            what = f"{folder} holds the log of node {owner!r} (log directory {before.directory}): this folder was copied or renamed"
            raise MissingNode(what, f"move it away, or back to {layout.node_folder(self._identity.cluster_folder, owner)}")
        segments = wal_folder(self._store, folder).segments
        gone = before.newest > max((each.number for each in segments), default=0)
        if known and (gone or before.archives or before.archived[1] or not all(holds_nothing(self._store, each.path) for each in segments)):
            what = f"node {self._identity.node!r} is registered with log {known}, but {folder} holds another one, {before.directory}"
            raise MissingNode(what, f"bring the right folder back; to continue without it, move {folder} away first, {WITHOUT}")

    def _check_registered(self, cluster: ClusterManifest, directory: str) -> None:
        if directory and directory in cluster.forgotten:
            raise MissingNode(
                f"node {self._identity.node!r} was forgotten (imap-wal forget-node): restores no longer read its log; "
                f"move {self._folder} away to begin a new one under this name"
            )
        known = cluster.nodes.get(self._identity.node)
        if known not in (None, directory) and self._settings.recovery_policy is RecoveryPolicy.FULL:
            raise MissingNode(
                f"node {self._identity.node!r} is registered with log {known}, but {self._folder} holds {directory or 'no manifest'}: "
                "its log was lost or replaced",
                MISSING_ADVICE,
            )

    def _register(self, opened: NodeManifest) -> None:
        """Enter the log directory into the cluster's manifest, and its epoch beside that: in a file
        of its own, so that many nodes can be opened at the same time."""
        node, directory, cluster = self._identity.node, opened.directory, self._identity.cluster_folder
        lost: str | None = None

        def change(manifest: ClusterManifest) -> ClusterManifest | None:
            nonlocal lost
            if manifest.nodes.get(node) == directory:
                return None
            self._check_registered(manifest, directory)
            lost = manifest.nodes.get(node)
            return replace(manifest, nodes={**manifest.nodes, node: directory})

        self.clusters.update(change)
        if lost is not None:
            text = "node %r continues with a new log, %s, without the entries that only its missing log %s held"
            _log.warning(text, node, directory, lost)
        with suppress(AlreadyExists):  # our own create, whose answer was lost
            self._store.create(layout.opened_path(cluster, directory, opened.epoch), b"")
        former = self._opened.get(directory, 0)
        if 0 < former < opened.epoch:
            self._store.delete(layout.opened_path(cluster, directory, former))


def _demand_current(files: Iterable[StoredFile], folder: str, manifest: NodeManifest, wal: WalFolder) -> None:
    """`CorruptLog` where the files beside a node's manifest know more than it: see
    `imap_wal.manifest.evidence`."""
    newer = evidence.of_files(files, manifest, {each.name for each in wal.segments}).newer
    if newer:
        raise older_manifest(f"{folder}/manifest", newer)


def _occupy(store: SegmentStore, identity: Identity, manifest: NodeManifest, clock: Clock, randomness: Randomness, ring: KeyRing) -> None:
    """Create the segment that the old writer would create next: its create then fails. This comes
    before the scan of the log, so that the scan finds all that it acknowledged. There is one such
    segment, the last of its epoch, however often this is repeated; `layout.fences` never deletes
    it."""
    folder, epoch = identity.node_folder, manifest.epoch
    files = store.list(f"{folder}/wal")
    began, first = manifest.begins
    if began == epoch:
        # Segments of other epochs say nothing about the next name of this one: a late open may have
        # left an empty segment with a higher number. A gap in the names of this epoch is damage. It
        # is not filled here: the scan reports it.
        names = filter(None, (layout.parse_wal_path(file.path) for file in files))
        number = max([first - 1, manifest.archived[1], *(number for each, number in names if each == epoch)])
    elif began:
        # The writer of this epoch has written nothing. It first publishes where its epoch begins,
        # which fails after the manifest of this open.
        return
    else:  # opened by a version that does not say where an epoch begins
        counting = sorted_out(files, manifest.archived).segments
        number = max([manifest.archived[1], manifest.checkpoint.segment, *(each.number for each in counting)])
    path = layout.wal_path(folder, epoch, number)
    while not holds_nothing(store, path):
        number += 1
        path = layout.wal_path(folder, epoch, number)
        header = SegmentHeader(
            randomness.token(), identity.namespace, identity.cluster, identity.node, epoch, number, 0, clock.now_ms(), manifest.directory
        )
        with suppress(AlreadyExists):  # one more commit of the old writer, or an earlier takeover that stopped half-way
            store.create(path, sealed(ring, header, randomness)[0].encode())


def holds_nothing(store: SegmentStore, path: str) -> bool:
    """Whether a segment is there and ends with its header."""
    try:
        data = store.read(path)
        return format.decode_header(data, path)[1] == len(data)
    except (NotFound, LogError):
        return False


__all__ = ["Identity", "NodeLog", "Recovery", "check_new_log", "holder_text", "holds_nothing", "open_node_log"]
