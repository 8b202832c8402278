"""A segment snapshot: a file of a snapshot in the frames of a segment, sorted by key. It needs no
library besides those of the log.

    segment header   node "", epoch 0, number 0; the path of the file in place of the log directory
    frame, type 6    4 n, little-endian
                     n msgpack array of nodes: the one that wrote all entries, or that of each entry
                       msgpack stream of entries
    …
    last frame       msgpack array: number of all entries. Its count is 0

A file without its last frame is incomplete. An encrypted file cannot be read under another path.
In each frame, the last synced offset is the frame's own: the file is published as a whole, so any
damage in it is corruption.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from imap_wal import contents, format
from imap_wal.clock import Randomness
from imap_wal.contents import ADVICE, Published
from imap_wal.entry import FAULTS, EntryDecoder, Row, pack
from imap_wal.errors import CorruptLog, Forged, ShortLog
from imap_wal.format import Frame, SegmentHeader
from imap_wal.names import decode
from imap_wal.security.encryption import cipher_of, sealed
from imap_wal.security.encryption_keys import KeyRing, Keys
from imap_wal.segment.frame_search import FrameSearch
from imap_wal.segment.reader import SegmentReader
from storage_backends import SegmentStore

SUFFIX = ".wal"
_LENGTH = struct.Struct("<I")
FRAME_ROWS_MAX, FRAME_BYTES_MAX = 4096, 1024 * 1024
"""A frame ends at this number of entries or bytes."""


def is_segment(path: str) -> bool:
    """Whether a file of a snapshot is a segment snapshot, by its name; otherwise it is Parquet."""
    return path.endswith(SUFFIX)


class SnapshotWriter:
    """Writes a segment snapshot to local disk, and publishes it as a whole."""

    def __init__(
        self, folder: Path, path: str, created_ms: int, keys: KeyRing, randomness: Randomness
    ) -> None:
        """`path`: where it is published. `keys`: those that write."""
        namespace, cluster = map(decode, path.split("/")[:2])
        header = SegmentHeader(
            randomness.token(), namespace, cluster, "", 0, 0, 0, created_ms, path
        )
        header, self._cipher = sealed(keys, header, randomness)
        self._path, self._seed = path, header.checksum_seed
        self._file = tempfile.NamedTemporaryFile(dir=folder, suffix=SUFFIX, delete=False)
        self._local = Path(self._file.name)
        self.size = self._file.write(header.encode())
        self.records = 0

    def add(self, rows: Sequence[Row], nodes: Sequence[str]) -> None:
        """Add the rows of the next keys, and the node that wrote each."""
        start = size = 0
        packed: list[bytes] = []
        for number, row in enumerate(rows, 1):
            packed.append(pack(row))
            size += len(packed[-1])
            if number == len(rows) or size >= FRAME_BYTES_MAX or len(packed) == FRAME_ROWS_MAX:
                own = list(nodes[start:number])
                head = msgspec.msgpack.encode(own[:1] if len(set(own)) == 1 else own)
                self._write([_LENGTH.pack(len(head)), head, *packed], len(packed))
                self.records += len(packed)
                start, size, packed = number, 0, []

    def publish(self, store: SegmentStore) -> Published:
        """Close it and publish it. Raises `AlreadyExists` if another file has its name."""
        self._close()
        return contents.publish(store, self._path, self._local, self.discard)

    def discard(self) -> Published:
        """Close it without publishing."""
        self._close()
        return contents.discard(self._local)

    def _close(self) -> None:
        if not self._file.closed:
            self._write([msgspec.msgpack.encode([self.records])], 0)
            self._file.close()

    def _write(self, payload: list[bytes], count: int) -> None:
        offset = self.size
        if self._cipher is not None:
            payload = self._cipher.seal(offset, format.SNAPSHOT, count, offset, payload)
        pieces, length, _ = format.encode_frame(
            self._seed, offset, format.SNAPSHOT, count, offset, payload
        )
        self._file.writelines(pieces)
        self.size += length


class SnapshotRows(NamedTuple):
    """Rows of a frame in key order, the node that wrote each, and the size of the frame."""

    rows: list[Row]
    nodes: list[str]
    bytes: int


class _OpenFile:
    """The part of a storage that `SegmentReader` needs, for one open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def size(self, _: str) -> int:
        return self._file.seek(0, 2)

    def read(self, _: str, offset: int = 0, length: int | None = None) -> bytes:
        self._file.seek(offset)
        return self._file.read(-1 if length is None else length)


def open_segment(file: BinaryIO, path: str, keys: Keys) -> SegmentReader:
    """The reader of an open segment snapshot. Raises `LogError`, and `EncryptionError` if the keys
    do not fit."""
    reader = SegmentReader(cast(SegmentStore, _OpenFile(file)), path, format.OF_SNAPSHOTS)
    reader.check_keys(keys)
    if reader.header.key_id and reader.header.directory != path:
        reason = f"this file was written as {reader.header.directory!r}: it was moved or replaced"
        raise Forged(path, 0, reason, "bring the right file back from a copy")
    return reader


def read_rows(file: BinaryIO, path: str, keys: Keys) -> Iterator[SnapshotRows]:
    """All entries of an open segment snapshot, frame by frame. Raises the errors of
    `open_segment`."""
    reader = open_segment(file, path, keys)
    records, promised, decoder = 0, -1, EntryDecoder()
    for frame in reader.frames(keys):
        if promised >= 0:
            raise CorruptLog(path, frame.offset, "there is a frame after the last one", ADVICE)
        if not frame.count:
            promised = _promise(frame, path)
            continue
        rows = _rows(frame, path, decoder)
        records += len(rows.rows)
        yield rows
    tail = reader.tail()
    if tail.size > reader.end:
        raise CorruptLog(path, reader.end, "there is no whole frame here", ADVICE)
    if promised < 0:
        raise ShortLog(path, reader.end, "this snapshot has no last frame", ADVICE)
    if promised != records:
        reason = f"this snapshot has {records} entries, but its last frame says {promised}"
        raise CorruptLog(path, reader.end, reason, ADVICE)


def salvaged(file: BinaryIO, path: str, keys: Keys) -> Iterator[SnapshotRows | int | None]:
    """The entries of the whole frames of a damaged file, and last the number of those that are
    lost; None: unknown. Raises the errors of `open_segment` if its header is damaged."""
    reader = open_segment(file, path, keys)
    records, promised = 0, -1
    frames = [*reader.whole_frames()]
    data = _OpenFile(file).read(path, reader.end)
    seed = reader.header.checksum_seed
    frames += FrameSearch(seed, data, reader.end).after(reader.end)
    decoder = EntryDecoder()
    head = _OpenFile(file).read(path, 0, reader.first)
    cipher = cipher_of(keys, reader.header, head, path)
    for frame in frames:
        try:
            opened = frame if cipher is None else cipher.open(frame, path)
            if frame.count:
                rows = _rows(opened, path, decoder)
                records += len(rows.rows)
                yield rows
            else:
                promised = _promise(opened, path)
        except CorruptLog:
            continue
    yield promised - records if promised >= records else None


def _rows(frame: Frame, path: str, decoder: EntryDecoder) -> SnapshotRows:
    try:
        (length,) = _LENGTH.unpack_from(frame.payload)
        start = _LENGTH.size + length
        nodes = _decode_nodes(frame.payload[_LENGTH.size : start])
        rows = decoder.decoded([frame.payload[start:]], frame.count)
        if len(nodes) not in (1, len(rows)):
            raise ValueError(f"{len(nodes)} nodes for {len(rows)} entries")
    except (*FAULTS, struct.error, ValueError) as error:
        raise _unusable(frame, path, error) from error
    return SnapshotRows(
        rows, nodes * len(rows) if len(nodes) == 1 else nodes, frame.end - frame.offset
    )


def _promise(frame: Frame, path: str) -> int:
    try:
        return _decode_promise(frame.payload)[0]
    except FAULTS as error:
        raise _unusable(frame, path, error) from error


_decode_promise = msgspec.msgpack.Decoder(tuple[int]).decode
_decode_nodes = msgspec.msgpack.Decoder(list[str]).decode


def _unusable(frame: Frame, path: str, error: Exception) -> CorruptLog:
    reason = f"the checksum of this frame is right, but its content cannot be used: {error}"
    return CorruptLog(path, frame.offset, reason, ADVICE)
