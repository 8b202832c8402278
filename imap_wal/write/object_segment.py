"""Segments of a storage that cannot append: every sync is one immutable object. The last object of
an epoch, empty, shuts its writer out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from imap_wal import format, layout
from imap_wal.clock import Randomness
from imap_wal.errors import Fenced, LogError, StorageUnavailable
from imap_wal.format import SegmentHeader
from imap_wal.manifest.node import NodeManifest
from imap_wal.security.encryption import sealed
from imap_wal.security.encryption_keys import KeyRing
from imap_wal.segment.listing import sorted_out
from imap_wal.write.context import LogContext
from storage_backends import AlreadyExists, NotFound, SegmentStore


class ObjectSegment:
    """Collects frames; `sync` publishes them as one object. It has the methods of
    `SegmentWriter`."""

    def __init__(
        self,
        store: SegmentStore,
        path: str,
        header: SegmentHeader,
        fenced: Callable[[], Fenced],
        randomness: Randomness,
        ring: KeyRing,
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
            if self._store.read(self.path) != data:  # else: our own create, whose answer was lost
                raise self._fenced() from error

    def rewind(self, size: int) -> None:
        raise StorageUnavailable(f"{self.path}: it is not known whether the object was created")

    def seal(self) -> None:
        """Sealed by its sync."""

    def close(self) -> None:
        """Nothing is held."""


def shut_out(context: LogContext, manifest: NodeManifest) -> None:
    """Create the segment that the old writer would create next: its create then fails. This comes
    before the scan of the log, so that the scan finds all that it acknowledged. There is one such
    segment, the last of its epoch, however often this is repeated; `layout.fences` never deletes
    it."""
    store, identity = context.store, context.identity
    folder, epoch = identity.node_folder, manifest.epoch
    files = store.list(f"{folder}/wal")
    began, first = manifest.begins
    if began == epoch:
        # Segments of other epochs say nothing about the next name of this one: a late open may have
        # left an empty segment with a higher number. A gap in the names of this epoch is damage. It
        # is not filled here: the scan reports it.
        names = filter(None, (layout.parse_wal_path(file.path) for file in files))
        number = max(
            [first - 1, manifest.archived[1], *(number for each, number in names if each == epoch)]
        )
    elif began:
        # The writer of this epoch has written nothing. It first publishes where its epoch begins,
        # which fails after the manifest of this open.
        return
    else:  # opened by a version that does not say where an epoch begins
        counting = sorted_out(files, manifest.archived).segments
        number = max(
            [manifest.archived[1], manifest.checkpoint.segment, *(each.number for each in counting)]
        )
    path = layout.wal_path(folder, epoch, number)
    while not holds_nothing(store, path):
        number += 1
        path = layout.wal_path(folder, epoch, number)
        header = SegmentHeader(
            context.randomness.token(),
            identity.namespace,
            identity.cluster,
            identity.node,
            epoch,
            number,
            0,
            context.clock.now_ms(),
            manifest.directory,
        )
        with suppress(
            AlreadyExists
        ):  # one more commit of the old writer, or an earlier takeover that stopped half-way
            store.create(path, sealed(context.ring, header, context.randomness)[0].encode())


def holds_nothing(store: SegmentStore, path: str) -> bool:
    """Whether a segment is there and ends with its header."""
    try:
        data = store.read(path)
        return format.decode_header(data, path)[1] == len(data)
    except (NotFound, LogError):
        return False
