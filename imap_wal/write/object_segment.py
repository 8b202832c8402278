"""Segments on a storage that cannot append: every sync creates one immutable object. The last
object of an epoch, which is empty, fences its writer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from imap_wal import format, layout
from imap_wal.clock import Randomness
from imap_wal.errors import Fenced, LogError, StorageUnavailable
from imap_wal.format import SegmentHeader
from imap_wal.manifest.epochs import segment_id
from imap_wal.manifest.node import NodeManifest
from imap_wal.security.encryption import sealed
from imap_wal.security.encryption_keys import KeyRing
from imap_wal.segment.listing import sorted_out
from imap_wal.write.context import LogContext
from storage_backends import AlreadyExists, NotFound, SegmentStore
from storage_backends.gated import GatedStore


class ObjectSegment:
    """Collects frames; `sync` publishes them as one object. It has the methods of
    `SegmentWriter`. `append` raises `TooLarge`, `sync` raises `Fenced` if another process has
    created the object, and `rewind` always raises `StorageUnavailable`."""

    def __init__(
        self,
        store: SegmentStore,
        path: str,
        header: SegmentHeader,
        fenced: Callable[[], Fenced],
        randomness: Randomness,
        key_ring: KeyRing,
        recent: RecentObjects,
    ) -> None:
        self._store, self.path, self._fenced, self._recent = store, path, fenced, recent
        self.header, self._cipher = sealed(key_ring, header, randomness)
        self._seed = header.checksum_seed
        self._chunks = [self.header.encode()]
        self.size = len(self._chunks[0])
        self.checksum = 0

    def append(self, kind: int, count: int, payload: list[bytes]) -> int:
        offset = self.size
        if self._cipher is not None:
            payload = self._cipher.seal(offset, kind, count, 0, payload)
        chunks, length, self.checksum = format.encode_frame(
            self._seed, offset, kind, count, 0, payload
        )
        self._chunks += chunks
        self.size += length
        return offset

    def sync(self) -> None:
        data = b"".join(self._chunks)
        try:
            self._store.create(self.path, data)
        except AlreadyExists as error:
            if self._store.read(self.path) != data:  # equal: our own create, its answer was lost
                raise self._fenced() from error
        self._recent.add(self.path, data)

    def rewind(self, size: int) -> None:
        raise StorageUnavailable(
            f"{self.path}: it is not known whether the object was created; open the log again"
        )

    def seal(self) -> None:
        """Does nothing: its sync sealed it."""

    def close(self) -> None:
        """Does nothing: no resource is held."""


def fences_by_object(manifest: NodeManifest) -> bool:
    """Whether `shut_out` fences the writer of this manifest by an object. A writer that has written
    nothing needs no such fence: it must first publish where its epoch begins, and that fails once
    an open has published its manifest."""
    return manifest.begins[0] in (0, manifest.epoch)


def shut_out(context: LogContext, manifest: NodeManifest) -> None:
    """Create the segment that the old writer would create next, so that its create fails. This
    comes before the scan that decides what the writer acknowledged, and after all else that can
    refuse an open. There is only one such segment, the last of its epoch, however often this is
    repeated; `layout.fences` never deletes it."""
    if not fences_by_object(manifest):
        return
    store, identity = context.store, context.identity
    folder, epoch = identity.node_folder, manifest.epoch
    files = store.list(f"{folder}/wal")
    began, first = manifest.begins
    if began == epoch:
        # Only names of this epoch say which one is next: a late open may have left an empty segment
        # of another epoch with a higher number. A gap in the names of this epoch is damage, which
        # the scan reports; it is not filled here.
        names = filter(None, (layout.parse_wal_path(file.path) for file in files))
        number = max(
            [
                first - 1,
                manifest.archived[1],
                *(number for segment_epoch, number in names if segment_epoch == epoch),
            ]
        )
    else:  # opened by a version that does not record where an epoch begins
        counting = sorted_out(files, manifest.archived).segments
        number = max(
            [
                manifest.archived[1],
                manifest.checkpoint.segment,
                *(segment.number for segment in counting),
            ]
        )
    path = layout.wal_path(folder, epoch, number)
    while not holds_nothing(store, path):
        number += 1
        path = layout.wal_path(folder, epoch, number)
        header = SegmentHeader(
            segment_id(manifest.epochs, epoch, context.randomness.token()),
            identity.namespace,
            identity.cluster,
            identity.node,
            epoch,
            number,
            0,
            context.clock.now_ms(),
            manifest.directory,
        )
        # It exists after one more commit of the old writer, or after an interrupted takeover.
        with suppress(AlreadyExists):
            store.create(path, sealed(context.key_ring, header, context.randomness)[0].encode())


def holds_nothing(store: SegmentStore, path: str) -> bool:
    """Whether a segment exists and ends with its header."""
    try:
        data = store.read(path)
        return format.decode_header(data, path)[1] == len(data)
    except (NotFound, LogError):
        return False


# The objects that a writer created last. An archive run takes them from memory instead of
# requesting each of them again.

BYTES_MAX = 8 * 1024 * 1024
"""How much is kept. A larger object is not kept."""


class RecentObjects:
    """Thread-safe. The objects never change, so what is kept is what the storage has."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[str, bytes] = {}
        self._size = 0
        self._mutex = threading.Lock()

    def add(self, path: str, data: bytes) -> None:
        """An object was created. The oldest ones are forgotten when there are too many bytes."""
        if len(data) > self._bytes_max:
            return
        with self._mutex:
            self._size += len(data) - len(self._kept.pop(path, b""))
            self._kept[path] = data
            while self._size > self._bytes_max:
                self._size -= len(self._kept.pop(next(iter(self._kept))))

    def get(self, path: str) -> bytes | None:
        return self._kept.get(path)

    def over(self, store: SegmentStore) -> SegmentStore:
        """`store`, which reads these objects from memory."""
        return _FromMemory(store, self)


class _FromMemory(GatedStore):
    def __init__(self, inner: SegmentStore, recent: RecentObjects) -> None:
        super().__init__(inner)
        self._recent = recent

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        store = self.there(path)  # first: it may refuse
        data = self._recent.get(path)
        if data is None:
            return store.read(path, offset, length)
        return data[offset:] if length is None else data[offset : offset + length]
