"""Writes a segment: a header, then frames."""

from __future__ import annotations

from imap_wal import format
from imap_wal.clock import Randomness, SystemRandomness
from imap_wal.format import SegmentHeader
from imap_wal.security.encryption import sealed
from imap_wal.security.encryption_keys import UNENCRYPTED, KeyRing
from storage_backends import SegmentStore


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
