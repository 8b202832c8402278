"""The log of one node, open for writing: segments, rotation, sessions, close.
`imap_wal.write.opening` opens it.

    write   frame ─▶ current segment (a new one if there is none or it is full)
    sync    segment sync ─▶ without this epoch's permit nothing is acknowledged
    close   clean-shutdown frame ─▶ seal ─▶ manifest: clean, requests, checkpoint ─▶ unlock

If the storage can append, a segment is a file that grows. If not, every sync creates one immutable
object (`ObjectSegment`), which is a segment. Not thread-safe, except `new_session`,
`move_checkpoint`, `manifests` and `requests`: the committer owns it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import msgpack

from imap_wal import format, layout
from imap_wal.clock import Randomness, SystemRandomness
from imap_wal.errors import (
    EncryptionError,
    Fenced,
    LogError,
    LostRace,
    NotAppended,
    OtherHistory,
    StorageUnavailable,
)
from imap_wal.format import Position, SegmentHeader
from imap_wal.manifest import epochs, key_checks
from imap_wal.manifest.claims import claim_manifests
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.security.encryption import sealed
from imap_wal.security.encryption_keys import UNENCRYPTED, KeyRing
from imap_wal.write.context import LogContext
from imap_wal.write.object_segment import ObjectSegment, RecentObjects
from imap_wal.write.permit import Permit
from imap_wal.write.recovery import RecoveredState
from storage_backends import Lock, SegmentStore, StorageError

_log = logging.getLogger("imap_wal")

PLUGINS_KEPT = 64
"""For how many plug-in starts sessions are kept, to recognise requests that are sent again.
Sessions that have logged nothing are forgotten first: there is nothing to recognise."""


class RewindPoint(NamedTuple):
    """Where the log was before a commit, for `NodeLog.rewind`."""

    segment: SegmentWriter | ObjectSegment | None
    size: int
    checksum: int
    end: Position
    bytes_written: int


class NodeLog:
    """See the module's docstring. `imap_wal.write.opening.open_node_log` creates it."""

    def __init__(
        self,
        context: LogContext,
        manifests: ManifestLog[NodeManifest],
        clusters: ManifestLog[ClusterManifest],
        manifest: NodeManifest,
        recovered: RecoveredState,
        lock: Lock,
    ) -> None:
        self.context = context
        self.store, self.identity, self.settings = context.store, context.identity, context.settings
        self.clock, self.randomness = context.clock, context.randomness
        self.manifests, self.clusters = manifests, clusters
        self.claims = claim_manifests(context.context, self.identity.cluster_folder)
        self.epoch, self.directory, self.recovery = (
            manifest.epoch,
            manifest.directory,
            recovered.recovery,
        )
        self.requests: dict[int, int] = dict(manifest.requests)
        """Session → last durable request, maintained by the committer."""
        self.metadata = manifest.metadata
        self._epochs, self._removed = manifest.epochs, manifest.removed
        self.end = manifest.checkpoint
        """Position of the last written frame."""
        self._folder = self.identity.node_folder
        self._process = os.getpid()
        self._next_segment, self._checksum = recovered.next_segment, recovered.checksum
        self._segment: SegmentWriter | ObjectSegment | None = None
        self._making = False
        """Segment `_next_segment` was begun, and its creation perhaps interrupted."""
        self._began: float | None = None
        self._appends = self.store.capabilities.durable_append
        self.recent = RecentObjects()
        """Where each commit is an object: the last ones."""
        self._mutex = threading.Lock()
        self.bytes_written = 0
        self._closed = False
        self._keys = context.key_ring
        # Last, because it keeps a file open until `close`.
        self.permit = Permit(context, manifests, clusters, manifest, lock)

    def __str__(self) -> str:
        who = self.identity
        return (
            f"the log of node {who.node!r} in cluster {who.cluster!r}, namespace {who.namespace!r}"
        )

    def marked(self, position: Position) -> Position:
        """A position in this log, with the id of its epoch."""
        return epochs.marked(self._epochs, position)

    def demand(self, position: Position) -> Position:
        """A position without its id. Raises `OtherHistory` if it is of another history; not if it
        was forgotten because what followed it was removed before this open."""
        return epochs.demand(self._epochs, position, str(self), self._removed)

    def has(self, position: Position) -> bool:
        """Whether a position is of this history, or of an epoch that is older than all that the log
        knows."""
        if position.epoch < min((epoch.number for epoch in self._epochs), default=0):
            return True
        try:
            self.demand(position)
        except OtherHistory:
            return False
        return True

    # ---- writing ----

    def write(self, kind: int, count: int, payload: list[bytes]) -> Position:
        """Append one frame; returns the position of its first entry. Not safe before `sync`. A
        StorageError poisons this log, see `rewind`. Raises `Fenced` in a forked child, and
        `TooLarge`."""
        if os.getpid() != self._process:
            raise Fenced(
                f"this log was opened by process {self._process}, and this is a forked "
                "child of it: open a separate log here"
            )
        segment = self._segment or self._begin()
        offset = segment.append(kind, count, payload)
        self.bytes_written += segment.size - offset
        first = Position(self.epoch, segment.header.number, offset, 0)
        self.end = first._replace(index=count - 1) if count > 1 else first
        return first

    def sync(self) -> None:
        """Make all frames safe. Raises `Fenced` if another process has taken over."""
        if self._segment is not None:
            self._segment.sync()
        # After the sync, not before: a takeover between a check and the sync had scanned the log
        # already, so the change was acknowledged and never read (decision 22).
        self.check()
        if self._segment is not None and not self._appends:
            self._finish()

    def check(self) -> None:
        """To be called before each acknowledgement: raises `Fenced` if another process has taken
        over, or if the permit or the open segment was deleted, moved or replaced."""
        segment = self._segment
        # After an interrupted seal, the file is closed, and can no longer be compared.
        held = segment if isinstance(segment, SegmentWriter) and not segment.sealed else None
        self.permit.check(held)

    def mark(self) -> RewindPoint:
        """Where the log is now, for `rewind`."""
        segment = self._segment
        return RewindPoint(
            segment,
            segment.size if segment else 0,
            segment.checksum if segment else 0,
            self.end,
            self.bytes_written,
        )

    def rewind(self, mark: RewindPoint | None = None) -> bool:
        """After a `write` that failed, or was interrupted after `mark`: True if certainly nothing
        of it is left."""
        segment = self._segment
        if segment is None:
            return True
        if mark is None:
            mark = self.mark()
        elif mark.segment is None:
            # The segment was begun after the mark.
            mark = mark._replace(segment=segment, size=len(segment.header.encode()))
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
    def unsealed_bytes(self) -> int:
        """Bytes of the current segment, without reserved space; 0 without one. Safe from any
        thread."""
        segment = self._segment
        return 0 if segment is None else segment.size

    @property
    def age_s(self) -> float:
        """Seconds since the current segment began; 0 without one. Safe from any thread."""
        began = self._began
        return 0.0 if began is None else self.clock.monotonic() - began

    def rotate(self) -> None:
        """Seal the current segment (a sync); the next write begins another. Raises `Fenced` if
        another process has taken over."""
        if self._segment is not None:
            if not self._appends:
                self._segment.sync()
            self.check()  # a sealed segment is closed: then another file could get its inode
            self._segment.seal()
            self.permit.check()
            self._finish()

    @property
    def unsealed(self) -> int:
        """Number of the first segment that is not sealed: the current one, or the next one. Safe
        from any thread."""
        # In this order, a segment that begins in between never counts as sealed.
        following, current = self._next_segment, self._segment
        return current.header.number if current is not None else following

    def _begin(self) -> SegmentWriter | ObjectSegment:
        if self._making:
            self._fill_half_made()
        # A replaced writer must not begin a segment: its successor may need the name.
        self.permit.check()
        number = self._next_segment
        path, header = self._next_path(), self._next_header()
        segment: SegmentWriter | ObjectSegment
        if self._appends:
            room = (
                self.settings.segment_bytes
                if self.settings.preallocate and self.store.capabilities.preallocate
                else 0
            )
            self._making = True
            segment = SegmentWriter(
                self.store, path, header, room, self.randomness, self._keys_to_write()
            )
            try:
                self._announce(number)
            except BaseException:
                segment.close()
                raise
        else:
            segment = ObjectSegment(
                self.store,
                path,
                header,
                self.permit.fenced,
                self.randomness,
                self._keys_to_write(),
                self.recent,
            )
        began = self.clock.monotonic()
        self._segment, self._began, self._next_segment, self._making = (
            segment,
            began,
            number + 1,
            False,
        )
        return segment

    def _keys_to_write(self) -> KeyRing:
        """The current keys, if the cluster has none of their ids for another key. Otherwise the
        earlier keys, which can read what they write."""
        keys = self.context.context.keys.key_ring
        if keys != self._keys:
            try:
                key_checks.enter(keys, self.clusters)
                self._keys = keys
            except (EncryptionError, LogError, LostRace, StorageError) as error:
                _log.error(
                    "node %r continues to write with the earlier keys, because the new ones "
                    "cannot be used: %s",
                    self.identity.node,
                    error,
                )
        return self._keys

    def _announce(self, number: int) -> None:
        """Enter a new segment into the manifest, after it was created and before any of its entries
        counts. A copy of this log made during archiving may have neither the segment nor its
        archive; this entry then shows that the copy is incomplete."""
        now = ClusterManifest()

        def change(manifest: NodeManifest) -> NodeManifest:
            self.permit.demand(manifest)
            manifest = replace(manifest, newest=max(manifest.newest, number))
            acks, losses = self.context.writers(now.losses_but(self.identity.node))
            return manifest.with_copied(acks, number, losses)

        try:
            if self.context.address:
                now = self.clusters.read()[1]
            self.manifests.update(change)
        except (StorageError, LostRace) as error:
            if self.context.address:
                # Without this entry, a loss of the disk would not show that a segment was lost.
                raise
            # Appending continues even if only the segments can be reached.
            _log.warning(
                "segment %d of node %r could not be entered into the manifest: %s",
                number,
                self.identity.node,
                error,
            )

    def _next_path(self) -> str:
        return layout.wal_path(self._folder, self.epoch, self._next_segment)

    def _next_header(self) -> SegmentHeader:
        who, number = self.identity, self._next_segment
        # In the header, so that this segment does not look empty if it loses its frames.
        previous = self._checksum or (format.NOTHING_BEFORE if number > 1 else 0)
        return SegmentHeader(
            epochs.segment_id(self._epochs, self.epoch, self.randomness.token()),
            who.namespace,
            who.cluster,
            who.node,
            self.epoch,
            number,
            previous,
            self.clock.now_ms(),
            self.directory,
        )

    def _fill_half_made(self) -> None:
        """Handle an interrupted creation of a segment: its file may exist with a part of its
        header. It keeps its number, empty; the next segment gets the next one. Nothing is deleted:
        a successor may count on the file."""
        self.permit.check()
        self.store.replace(
            self._next_path(), sealed(self._keys, self._next_header(), self.randomness)[0].encode()
        )
        self._next_segment, self._making = self._next_segment + 1, False

    def _finish(self) -> None:
        if self._segment is not None:
            self._checksum = self._segment.checksum or self._checksum
            self._segment = None
            self._began = None

    # ---- sessions ----

    def new_session(
        self,
        plugin: str = "",
        former: Mapping[int, int] | None = None,
        shared: int = 0,
        acks: int = 1,
    ) -> int:
        """A plug-in's session in its incarnation: the existing one if it is known, otherwise a new
        one. From then on this node refuses a manifest of its cluster that is older than the present
        one. `former` is kept with it, see `NodeManifest.former`. `shared`: its number, if it has
        the same one in other logs; 0: this node numbers it. `acks`: how many logs acknowledge each
        of its changes. Raises `NotAppended` if another plug-in has that number."""
        with self._mutex:
            number, cluster = self.clusters.read()
            seen = cluster.seen(number)

            def change(manifest: NodeManifest) -> NodeManifest | None:
                self.permit.demand(manifest)
                before, manifest = manifest, manifest.with_writer(acks)
                if manifest.session_of(plugin) is not None:
                    return None if manifest is before else manifest
                if shared and shared in manifest.plugins.values():
                    raise NotAppended(
                        f"session {shared} already belongs to another member; restart this member, "
                        "so that its plug-in gets another number"
                    )
                session = shared or manifest.session + 1
                manifest = replace(
                    manifest,
                    session=manifest.session if shared else session,
                    cluster=manifest.cluster.up_to(seen),
                )
                if not plugin:
                    return manifest
                others = {**manifest.plugins}
                others.pop(plugin, None)
                by_use = sorted(
                    others.items(),
                    key=lambda item: (item[1] in self.requests, _incarnation(item[0]), item[1]),
                )
                plugins = dict(
                    sorted([*by_use[-(PLUGINS_KEPT - 1) :], (plugin, session)], key=itemgetter(1))
                )
                last_requests = {
                    earlier: last
                    for earlier, last in {**manifest.former, **(former or {})}.items()
                    if earlier in plugins.values()
                }
                return replace(manifest, plugins=plugins, former=last_requests)

            manifest = self.manifests.update(change)
            return manifest.plugins.get(plugin, manifest.session)

    def move_checkpoint(
        self, end: Position, requests: Mapping[int, int], *, clean: bool = False
    ) -> None:
        """Let the next recovery begin at the frame of `end`, which is safe, with the requests up to
        there. Raises `Fenced`, `LostRace` and `StorageError`. Safe from any thread."""

        def change(manifest: NodeManifest) -> NodeManifest:
            self.permit.demand(manifest)
            if not self._appends and end.epoch == self.epoch:
                self._demand_objects(end, manifest)
            # An archive run may have moved it further meanwhile.
            last = {
                session: max(request, manifest.requests.get(session, 0))
                for session, request in requests.items()
            }
            latest = manifest.known_requests({**manifest.requests, **last})
            return replace(
                manifest,
                clean=clean or manifest.clean,
                requests=latest,
                checkpoint=max(end, manifest.checkpoint),
            )

        self.manifests.update(change)

    def _demand_objects(self, end: Position, manifest: NodeManifest) -> None:
        """Raises `Fenced` if an object of a commit since the checkpoint is missing: the bucket or
        prefix was replaced by an older copy."""
        files = self.store.list(f"{self._folder}/wal")
        there = {name[1] for file in files if (name := layout.parse_wal_path(file.path))}
        first = max(manifest.checkpoint.segment, manifest.begins[1])
        missing = [number for number in range(first, end.segment + 1) if number not in there]
        # An archive run deletes an object after it has published the archive.
        if missing and missing[-1] > self.manifests.read()[1].archived[1]:
            path = layout.wal_path(self._folder, end.epoch, missing[-1])
            raise self.permit.replaced(path)

    # ---- closing ----

    def close(self, clean: bool = True) -> None:
        """Seal the log, mark it as clean in log and manifest if `clean`, and release the lock. Safe
        to call twice. Raises `Fenced` if `clean` and another process has taken over; the lock is
        released then, too."""
        # A forked child must not end its parent's log, nor release its lock.
        if self._closed or os.getpid() != self._process:
            return
        try:
            if clean:
                if self._making:
                    self._fill_half_made()
                if self._segment is not None:
                    self.write(
                        format.CLEAN_SHUTDOWN,
                        1,
                        [msgpack.packb([self.clock.now_ms(), dict(self.requests)])],
                    )
                    self.sync()
                    self.rotate()
                self.move_checkpoint(self.end, dict(self.requests), clean=True)
                self.permit.withdraw()
        finally:
            if self._segment is not None:
                self._segment.close()
            self.permit.release()
            self._closed = True


def _incarnation(plugin: str) -> int:
    """Of a name in `NodeManifest.plugins`; 0: it has none."""
    number = plugin.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


class SegmentWriter:
    """Appends frames to a new segment. Not thread-safe: the committer owns it.

    After any error of `append` or `sync` the segment is poisoned: the caller may only `close`
    it.
    """

    def __init__(
        self,
        store: SegmentStore,
        path: str,
        header: SegmentHeader,
        preallocate_bytes: int = 0,
        randomness: Randomness | None = None,
        keys: KeyRing = UNENCRYPTED,
    ) -> None:
        self.path = path
        self.header, self._cipher = sealed(keys, header, randomness or SystemRandomness())
        self._seed = header.checksum_seed
        self._appender = store.open_append(path, preallocate_bytes)
        self.checksum = 0
        """CRC of the last frame, for the next segment's header."""
        self.synced = 0
        self.records = 0
        self._sealed = False
        try:
            # Safe before the first frame: then a segment without a whole header has no frames, see
            # `is_header_torn`.
            self._appender.append(self.header.encode())
            self.sync()
        except BaseException:
            self._appender.close()
            raise

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._appender.size

    def append(self, kind: int, count: int, payload: list[bytes]) -> int:
        """Write one frame at the end; returns its offset. Not safe before `sync`. Raises `TooLarge`
        if the frame would be too large to read."""
        offset = self._appender.size
        if self._cipher is not None:
            payload = self._cipher.seal(offset, kind, count, self.synced, payload)
        # `synced` is in the frame, so that a flipped bit in what was synced does not look like a
        # torn tail, which would be cut off with everything after it (decision 11).
        chunks, _, checksum = format.encode_frame(
            self._seed, offset, kind, count, self.synced, payload
        )
        self._appender.append(*chunks)
        self.checksum = checksum
        self.records += count if kind in format.OF_ENTRIES else 0
        return offset

    def is_there(self) -> bool:
        """Whether the path still names this very file. Raises `StorageError`."""
        return self._appender.is_there()

    def sync(self) -> None:
        """Return when all frames are safe on storage."""
        self._appender.sync()
        self.synced = self._appender.size

    def rewind(self, size: int) -> None:
        """After a failed `append`: cut what it may have left. After an error here, the content is
        unknown."""
        self._appender.truncate(size)

    def seal(self) -> None:
        """Free preallocated space, sync, close. May be called again after an interrupt."""
        if not self._sealed:
            self._appender.truncate(self._appender.size)
            self._sealed = True
        self.close()

    @property
    def sealed(self) -> bool:
        """Whether `seal` was called; its file is then closed, or is about to be."""
        return self._sealed

    def close(self) -> None:
        self._appender.close()
