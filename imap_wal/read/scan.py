"""Reads one file of a log: `read_scan` yields the entries of a `FileScan` that count, as
`EntryBatch`.

A scan is a `FileScan`: a plain value that can be sent to another process. Spark reads each in its
own task.

`imap_wal.rules.counts` says which entries count. Up to `FileScan.complete`, snapshots cover all
entries; these are not even decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import msgpack

from imap_wal import entry, format
from imap_wal.arrow_library import loading
from imap_wal.contents import open_checked
from imap_wal.context import Context
from imap_wal.entry import EntryDecoder, Row
from imap_wal.errors import CorruptLog
from imap_wal.format import FRAME_HEADER_BYTES, Frame, Position
from imap_wal.manifest.epochs import all_marked, ids
from imap_wal.read.file_scan import (
    ARCHIVE,
    BATCH_BYTES_MAX,
    SEGMENT,
    SNAPSHOT,
    EntryBatch,
    FileScan,
    Metadata,
    by_node,
)
from imap_wal.rules.counts import counting_rows
from imap_wal.segment import snapshot
from imap_wal.segment.reader import SegmentReader, held, read_ahead
from imap_wal.segment.snapshot import is_segment
from imap_wal.segment.verdict import CLEAN, Place, Verdict, at_end, begin, said_by

_log = logging.getLogger("imap_wal")

ROWS_MAX = 8192
LOOKS_MAX = 3
"""How often one reading also reads frames that were appended meanwhile."""
PAUSES_S = (0.005, 0.01, 0.02)
"""The pauses after which bytes that are not a valid frame are read again. The writer may still
write them, and without a sync its bytes become visible in any order: a frame that is incomplete now
may be complete then."""


class CutBack(CorruptLog):
    """The frame after which reading should continue is missing: an open has cut it off, or the file
    is damaged. Reading the file from its start shows which."""


def read_scan(
    context: Context,
    scan: FileScan,
    maps: Collection[str] | None = None,
    *,
    positions: bool = False,
    rows_max: int = ROWS_MAX,
) -> Iterator[EntryBatch]:
    """The entries of a scan that count; without `positions`, those of an archive may be in another
    order than the log's (`EntryBatch`). `rows_max`: a batch of a segment ends after this many rows.
    Raises `NotFound` if the file was archived or pruned since the scan was made; `LogError`."""
    if scan.kind == SEGMENT:
        return _SegmentPass(context, scan, maps, positions, rows_max).read()
    if maps is not None and scan.map not in maps:
        return iter(())
    if scan.kind == SNAPSHOT and is_segment(scan.path):
        return _read_segment_snapshot(context, scan)
    with loading(f"{scan.path} is a Parquet file"):  # late, because it loads pyarrow
        from imap_wal.read.parquet_scan import read_archive, read_snapshot
    return (
        read_archive(context, scan, positions=positions)
        if scan.kind == ARCHIVE
        else read_snapshot(context, scan)
    )


def row_counts(context: Context, scan: FileScan, columns: list[str] | None = None) -> Iterator[int]:
    """Read an archive or a file of a snapshot, without making entries of it. The number of rows of
    each batch. `columns`: of a Parquet file; None: all. Raises `NotFound`, and `CorruptLog` if the
    file is not what its scan says."""
    if is_segment(scan.path):
        return (len(batch.rows) for batch in _read_segment_snapshot(context, scan))
    with loading(f"{scan.path} is a Parquet file"):  # late, because it loads pyarrow
        from imap_wal.read import parquet_scan
    return parquet_scan.row_counts(context, scan, columns)


def check_snapshot(context: Context, scan: FileScan) -> None:
    """Read a file of a snapshot, and few columns of a Parquet file. Raises the errors of
    `row_counts`."""
    for _ in row_counts(context, scan, ["deleted"]):
        pass


def _read_segment_snapshot(context: Context, scan: FileScan) -> Iterator[EntryBatch]:
    """The rows of a segment snapshot, separated by the node that wrote them."""
    records = 0
    with open_checked(context.store, scan.path, scan.checksum) as file:
        for snapshot_rows in snapshot.read_rows(file, scan.path, context.keys):
            records += len(snapshot_rows.rows)
            yield from by_node(snapshot_rows.rows, snapshot_rows.nodes, snapshot_rows.bytes)
    if scan.records and records != scan.records:
        difference = f"this snapshot has {records} entries, but the manifest says {scan.records}"
        raise CorruptLog(scan.path, 0, difference, "restore it from a copy")


def ahead(context: Context, scans: Iterable[FileScan]) -> Generator[tuple[FileScan, Context]]:
    """Each scan with the context to read it with: segments of objects are requested before they are
    needed (`imap_wal.segment.reader`)."""
    files = ((scan, scan.path if scan.kind == SEGMENT else "", scan.bytes) for scan in scans)
    with closing(read_ahead(context.store, files)) as sources:
        for scan, store in sources:
            yield scan, context.on(store)


class _SegmentPass:
    """One reading of a segment: groups frames into batches, each under one rule."""

    def __init__(
        self,
        context: Context,
        scan: FileScan,
        maps: Collection[str] | None,
        positions: bool,
        rows_max: int,
    ) -> None:
        self._rows_max, self._keys, self._decoder = rows_max, context.keys, EntryDecoder()
        self._store, self._scan, self._maps, self._positions = (
            held(context.store, scan.path),
            scan,
            maps,
            positions,
        )
        self._place = Place(
            scan.path,
            scan.directory,
            scan.epoch,
            scan.number,
            bool(scan.next_path),
            scan.checkpoint,
            scan.newest,
            ids(scan.epochs, scan.epoch),
        )
        self._frames: list[Frame] = []
        self._bytes = self._records = 0

    def read(self) -> Iterator[EntryBatch]:
        scan = self._scan
        reader = self._open()
        if reader is None:
            return
        start, stop = self._start(reader), None
        if scan.until is not None and scan.until[:2] <= (scan.epoch, scan.number):
            if scan.until[:2] < (scan.epoch, scan.number):
                return
            stop = scan.until.frame + 1
        borders = self._borders()
        border = borders.pop() if borders else None
        frames = reader.frames(self._keys, start, stop)
        stuck_at, pauses, looks = -1, iter(PAUSES_S), 0
        while True:
            for frame in frames:
                if border is not None and frame.offset > border:
                    yield from self._flush()
                    while border is not None and frame.offset > border:
                        border = borders.pop() if borders else None
                if frame.kind in format.OF_ENTRIES:
                    self._frames.append(frame)
                    self._bytes += frame.end - frame.offset
                    self._records += frame.count
                    if self._bytes >= BATCH_BYTES_MAX or self._records >= self._rows_max:
                        yield from self._flush()
                elif frame.kind == format.METADATA:
                    yield from self._flush()
                    position = self._position(frame)
                    items = self._metadata(frame)
                    yield EntryBatch(
                        scan.node, [], position, position, metadata=items, next_offset=frame.end
                    )
                else:
                    yield from self._flush()
                    position = self._position(frame)
                    yield EntryBatch(scan.node, [], position, position, next_offset=frame.end)
            yield from self._flush()
            if stop is not None and reader.end >= stop:
                return
            continues = not scan.next_path and reader.has_more()
            if not continues:
                verdict = self._check_tail(reader)
                if not verdict.is_damage and not verdict.frames_after:
                    return
                continues = not scan.next_path and reader.has_more()
            if continues:
                # The writer continues, so what was found after the end is no damage. Read more only
                # a few times: a busy writer would otherwise keep this loop running.
                looks += 1
                if looks > LOOKS_MAX:
                    return
                frames = reader.frames(self._keys, reader.end, stop)
                continue
            if reader.end != stuck_at:
                if stuck_at >= 0 and verdict.is_tail:  # a writer, which may continue in this way
                    looks += 1
                    if looks > LOOKS_MAX:
                        return
                stuck_at, pauses = reader.end, iter(PAUSES_S)
            pause = None if scan.next_path else next(pauses, None)
            if pause is None:
                if verdict.is_damage:
                    raise verdict.error()
                self._warn_of_tail(verdict)
                return
            time.sleep(pause)
            frames = reader.frames(self._keys, reader.end, stop)

    def _open(self) -> SegmentReader | None:
        reader = begin(self._store, self._place)
        if isinstance(reader, Verdict) and reader.is_damage and not self._scan.next_path:
            # Its header may have been written in between.
            reader = begin(self._store, self._place)
        if isinstance(reader, SegmentReader):
            reader.check_keys(self._keys)
            return reader
        if reader.is_damage:
            raise reader.error()
        return None  # the newest: its writer is at its first commit, or died in it

    def _start(self, reader: SegmentReader) -> int | None:
        scan = self._scan
        if scan.start:
            return scan.start
        if scan.since is None or scan.since[:2] != (scan.epoch, scan.number):
            return None
        for frame in reader.whole_frames(scan.since.frame, scan.since.frame + 1):
            return frame.end
        reason = f"there is no frame at {scan.since}, after which reading should continue"
        raise CutBack(scan.path, scan.since.frame, reason)

    def _borders(self) -> list[int]:
        """Frame offsets after which another rule applies, greatest first."""
        name = (self._scan.epoch, self._scan.number)
        places = [
            *self._scan.covered.values(),
            *(cut for _, cut in self._scan.cuts),
            self._scan.complete,
        ]
        return sorted({place.frame for place in places if place[:2] == name}, reverse=True)

    def _position(self, frame: Frame) -> Position:
        return Position(self._scan.epoch, self._scan.number, frame.offset, max(frame.count - 1, 0))

    def _metadata(self, frame: Frame) -> tuple[Metadata, ...]:
        items = _unpacked(self._scan.path, frame)
        if not all(map(_is_metadata, items)):
            raise CorruptLog(
                self._scan.path,
                frame.offset,
                "the checksum of this frame is right, but its content is not metadata",
            )
        return tuple(items)

    def _entries(self, frames: list[Frame]) -> list[Row]:
        try:
            return self._decoder.decoded([frame.payload for frame in frames], self._records)
        except ValueError:
            place = Position(self._scan.epoch, self._scan.number, 0, 0)
            for frame in frames:
                demand_entries(self._scan.path, place._replace(frame=frame.offset), frame)
            raise

    def _flush(self) -> Iterator[EntryBatch]:
        frames = self._frames
        if not frames:
            return
        scan = self._scan
        rows: list[Row] = []
        first, last = self._position(frames[0])._replace(index=0), self._position(frames[-1])
        if last > scan.complete and (self._maps is None or self._maps):  # else only positions
            rows = self._entries(frames)
        places: list[Position] | None = None
        if self._positions and rows:
            epoch, number = scan.epoch, scan.number
            places = [
                Position(epoch, number, frame.offset, index)
                for frame in frames
                for index in range(frame.count)
            ]
        rows, places = counting_rows(scan, rows, places, last, self._maps)
        if places is not None:
            places = all_marked(scan.epochs, places)
        clears = format.CLEARS in {frame.kind for frame in frames}
        changes = EntryBatch(
            scan.node,
            rows,
            first,
            last,
            self._bytes,
            places,
            next_offset=frames[-1].end,
            clears=clears,
            frames=tuple((frame.offset, frame.count) for frame in frames)
            if len(rows) == self._records
            else (),
        )
        self._frames = []
        self._bytes = self._records = 0
        yield changes

    def _check_tail(self, reader: SegmentReader) -> Verdict:
        scan = self._scan
        if not scan.next_path:
            probe = (
                self._store.read(scan.path, reader.end, FRAME_HEADER_BYTES) if scan.start else b"?"
            )
            if not probe.strip(b"\0"):
                return Verdict(CLEAN, self._place, reader.end)  # nothing was appended since
        objects = not self._store.capabilities.durable_append  # an object is never cut short
        return at_end(
            reader,
            self._place,
            lambda: 0 if objects else said_by(self._store, scan.directory, [scan.next_path]),
        )

    def _warn_of_tail(self, verdict: Verdict) -> None:
        _log.warning(
            "%s at byte %d: a torn commit with %d whole frames after it, none of which was "
            "synced; they are not read, and the next open of node %s cuts them off and puts them "
            "aside",
            self._scan.path, verdict.end, verdict.frames_after, self._scan.node,
        )  # fmt: skip


def _unpacked(path: str, frame: Frame) -> list[Any]:
    """The items of a frame. Raises `CorruptLog`."""
    try:
        return list(entry.rows(frame.payload))
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list as a key
        reason = f"the checksum of this frame is right, but its content is not msgpack ({error})"
        raise CorruptLog(path, frame.offset, reason) from error


def _is_metadata(item: Any) -> bool:
    """Whether a node's manifest can keep it."""
    match item:
        case ("schema", int(number), bytes()):
            return type(number) is int
        case (str(name), *rest):
            return name != "schema" and {*map(type, rest)} <= {str, int}
        case _:
            return False


def demand_entries(path: str, first: Position, frame: Frame) -> None:
    """Raises `CorruptLog` for a frame with an invalid entry. `first`: the position of the frame's
    first entry. The error names that of the invalid one."""
    try:
        entry.decoded(frame.payload, frame.count)
        return
    except ValueError as error:
        reason = f"the entries of this frame cannot be used: {error}"
    rows = _unpacked(path, frame)
    if len(rows) != frame.count:
        raise CorruptLog(
            path, frame.offset, f"this frame should have {frame.count} entries and has {len(rows)}"
        )
    for index, row in enumerate(rows):
        try:
            entry.check(row)
        except ValueError as error:
            place = first._replace(index=index)
            reason = f"the entry at {place} cannot be used: {error}"
            break
    raise CorruptLog(path, frame.offset, reason)
