"""Reads one segment, and reports why it stopped.

The reader has at most one window of the file (or one frame, if that is larger) in memory. It may
read a segment that is being written: it stops at the last whole frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from imap_wal import format
from imap_wal.errors import Forged, UnsupportedVersion
from imap_wal.format import Frame, NoFrame, SegmentHeader
from imap_wal.names import decode
from imap_wal.security.encryption import SegmentCipher, cipher_of
from imap_wal.security.encryption_keys import Keys
from imap_wal.segment.frame_search import FrameSearch
from storage_backends import SegmentStore

WINDOW_BYTES = 4 * 1024 * 1024
_ZEROS = bytes(WINDOW_BYTES)
FIRST_WINDOW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SegmentTail:
    """The end of a segment. `status`: "clean", "torn-tail" (damage after all that was synced),
    "corrupt" (damage before that).

    `end` is the offset after the last whole frame; `size` the file's. `frames_after` counts valid
    frames after the damage (a torn tail can have them too: a power loss keeps any part of what was
    not synced), `records_after` their entries, `last_after` is the offset of the last.
    `cut_bytes`: at least so many bytes were cut out, because a frame with a greater offset follows.
    """

    status: str
    end: int
    size: int
    frames_after: int = 0
    records_after: int = 0
    last_after: int = 0
    cut_bytes: int = 0


class SegmentReader:
    """Reads a segment from start to end. The constructor reads the header, and raises `ShortLog`,
    `CorruptLog` or `UnsupportedVersion`."""

    def __init__(self, store: SegmentStore, path: str, types: Container[int] | None = None) -> None:
        """`types`: those of the frames that the file may have; None: those of a segment."""
        self._store, self._types = store, format.TYPES if types is None else types
        self.path = path
        start = store.read(path, 0, 4096)
        needed = format.header_bytes_needed(start)
        if needed > len(start):
            start = store.read(path, 0, needed)
        self.header, self.first = format.decode_header(start, path)
        self._head = start[: self.first]
        self._seed = self.header.checksum_seed
        self.end = self.first
        """Offset after the last whole frame that was read."""
        self.checksum = 0
        self.synced = 0
        """The highest last-synced offset of any frame."""

    def frames(
        self, keys: Keys, start: int | None = None, stop: int | None = None
    ) -> Iterator[Frame]:
        """Whole frames from offset `start` (a frame's; default: the first) to below `stop`. Ends
        without an error at the first place that is not a frame; `tail` then has the reason. Never
        skips a frame: `UnsupportedVersion` for one of an unknown type, `Forged` for a forged one,
        `EncryptionError` if the keys do not fit."""
        if not self.header.key_id and keys.key_ring.allows_plain:
            return self.whole_frames(start, stop)
        return self._opened(keys, start, stop)

    def _opened(self, keys: Keys, start: int | None, stop: int | None) -> Iterator[Frame]:
        cipher: SegmentCipher | None = None
        for frame in self.whole_frames(start, stop):
            # Only now: a segment without frames needs no cipher.
            cipher = cipher or cipher_of(keys, self.header, self._head, self.path)
            assert cipher is not None  # `cipher_of` refuses unencrypted segments
            try:
                opened = cipher.open(frame, self.path)
            except Forged:
                self.end = frame.offset
                raise
            yield opened

    def check_keys(self, keys: Keys) -> None:
        """Raises `EncryptionError` if `frames` could not read this segment, or if its header was
        made without the key. Also for a segment without frames, which could hide that there were
        some."""
        cipher_of(keys, self.header, self._head, self.path)

    def whole_frames(self, start: int | None = None, stop: int | None = None) -> Iterator[Frame]:
        """`frames`, as stored: payloads stay encrypted."""
        offset = self.first if start is None else max(start, self.first)
        self.end = offset
        window, base = b"", offset
        # A reader that continues mostly finds few bytes here, and then preallocated zeros.
        size = WINDOW_BYTES if start is None else FIRST_WINDOW_BYTES
        while stop is None or offset < stop:
            frame = format.decode_frame(self._seed, window, offset - base, offset)
            if isinstance(frame, NoFrame):
                if frame.reason not in ("short", "end"):
                    return
                length = max(size, frame.needed)
                size = min(4 * size, WINDOW_BYTES)
                held = len(window) - (offset - base)
                window, base = self._store.read(self.path, offset, length), offset
                if len(window) <= held or len(window) < frame.needed:
                    return
                continue
            if frame.kind not in self._types:
                reason, advice = (
                    f"a frame of unknown type {frame.kind}",
                    "upgrade imap-wal: a newer version wrote it",
                )
                raise UnsupportedVersion(self.path, offset, reason, advice)
            offset = self.end = frame.end
            self.checksum = frame.checksum
            self.synced = max(self.synced, frame.synced)
            yield frame

    @property
    def continues_from(self) -> int | None:
        """The checksum that the next segment's header should have of the last frame before it: the
        CRC of this segment's last frame, or, without frames, the one in its own header. 0 or
        `NOTHING_BEFORE`: there is no frame before. None: unknown; no header has it, or reading
        began after the first frame."""
        if self.checksum or self.end > self.first:
            return self.checksum or None
        return self.header.previous_checksum or (0 if self.header.number == 1 else None)

    def has_more(self) -> bool:
        """Whether a whole frame is now where reading ended: its writer has appended it since. Then
        whatever `tail` found was written meanwhile, and is no damage."""
        again, end = copy(self), self.end
        start = self._store.read(self.path, end, format.FRAME_HEADER_BYTES)
        return bool(start.strip(b"\0")) and any(again.whole_frames(end, end + 1))

    def tail(self) -> SegmentTail:
        """What follows the last frame from `frames`."""
        size = self._store.size(self.path)
        if size <= self.end:
            return SegmentTail("clean", self.end, size)
        written = self._written(size)
        if not written:
            return SegmentTail("clean", self.end, size)
        data = self._store.read(self.path, self.end, written - self.end)
        search = FrameSearch(self._seed, data, self.end, size - written)
        frames = list(search.after(self.end + 1))
        synced = max([self.synced, *(frame.synced for frame in frames)])
        cut_bytes = 0
        if synced <= self.end and (displaced := search.displaced(self.end)) is not None:
            at, frame = displaced
            synced, cut_bytes = frame.synced, frame.offset - at
        records = sum(frame.count for frame in frames if frame.kind in format.OF_ENTRIES)
        last_after = frames[-1].offset if frames else 0
        return SegmentTail(
            "corrupt" if synced > self.end else "torn-tail",
            self.end,
            size,
            len(frames),
            records,
            last_after,
            cut_bytes,
        )

    def _written(self, size: int) -> int:
        """Where the bytes after the last whole frame end, if only zeros (preallocated space) follow
        them, rounded up; 0: there are only zeros."""
        for start in reversed(range(self.end, size, WINDOW_BYTES)):
            window = self._store.read(self.path, start, min(WINDOW_BYTES, size - start))
            if window != _ZEROS[: len(window)]:
                return start + len(window)
        return 0


def is_header_torn(store: SegmentStore, path: str) -> bool:
    """Whether a crash left only the start of a segment's header, and zeros: it never had a
    frame."""
    namespace, cluster, _, node = (decode(part) for part in path.split("/")[:4])
    # The damage may be in the header's length field. But a header with these names is never longer
    # than one with the largest numbers.
    number, token = 2**32 - 1, b"\0" * 16
    longest = SegmentHeader(
        token, namespace, cluster, node, number, number, number, 2**63, "-" * 36
    )
    start = store.read(path, 0, format.PREFIX_BYTES)
    if format.says_encrypted(start):
        longest = longest._replace(key_id="-" * format.KEY_ID_MAX, key_check=token)
    start = start[: len(format.MAGIC)].rstrip(b"\0")
    return format.MAGIC.startswith(start) and not store.read(path, len(longest.encode())).strip(
        b"\0"
    )


# Reads segments before they are needed, several at a time, on a storage where each commit is an
# object. There, every read is a request over a network, and mostly waits.
#
#   files, in order ─▶ up to READERS requests at a time, up to AHEAD_BYTES ─▶ the next file
#
# Results arrive in the order of the files. The error of a request is raised when its file is read.

READERS = 16
"""How many files are requested at the same time. 1: none before it is needed."""
AHEAD_BYTES = 64 * 1024 * 1024
"""No further file is requested while those that are not needed yet take this much."""

T = TypeVar("T")


class RequestedFile:
    """A store with one file. It is requested once, at the first read, and kept in memory."""

    def __init__(self, store: SegmentStore, request: Callable[[], bytes]) -> None:
        self.capabilities = store.capabilities
        self._request: Callable[[], bytes] | None = request
        self._data = b""

    def size(self, path: str) -> int:
        return len(self.read(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if self._request is not None:
            self._data, self._request = self._request(), None
        if offset == 0 and length is None:
            return self._data
        return self._data[offset:] if length is None else self._data[offset : offset + length]


def held(store: SegmentStore, path: str) -> SegmentStore:
    """The store to read a segment from, in one request if each read is one."""
    if store.capabilities.durable_append or isinstance(store, RequestedFile):
        return store
    return cast(SegmentStore, RequestedFile(store, partial(store.read, path)))


def read_ahead(
    store: SegmentStore, files: Iterable[tuple[T, str, int]]
) -> Generator[tuple[T, SegmentStore]]:
    """Each item with the store to read its file from.

    Args:
        store: The storage.
        files: (item, path of its segment, bytes). Path "": this file is read when it is needed.

    Closing the iterator early drops the requests that have not begun.
    """
    if store.capabilities.durable_append or READERS < 2:
        for item, path, _ in files:
            yield item, held(store, path) if path else store
        return
    upcoming = iter(files)
    waiting: deque[tuple[T, int, Future[bytes] | None]] = deque()
    requested = bytes_ahead = 0
    with ThreadPoolExecutor(READERS, "imap-wal-reader") as pool:
        try:
            while True:
                while requested < READERS and bytes_ahead < AHEAD_BYTES:
                    following = next(upcoming, None)
                    if following is None:
                        break
                    item, path, size = following
                    answer = pool.submit(store.read, path) if path else None
                    requested, bytes_ahead = requested + 1, bytes_ahead + (size if path else 0)
                    waiting.append((item, size if path else 0, answer))
                if not waiting:
                    return
                item, size, answer = waiting.popleft()
                if answer is None:
                    yield item, store
                else:
                    yield item, cast(SegmentStore, RequestedFile(store, answer.result))
                requested, bytes_ahead = requested - 1, bytes_ahead - size
        finally:
            for _, _, answer in waiting:
                if answer is not None:
                    answer.cancel()
