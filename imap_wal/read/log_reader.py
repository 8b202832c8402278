"""Reads one node's log in position order, while it is written: archives, then segments, then new
entries.

    look      the node's manifest and its listing: where is `wanted`, was it removed?
    archives  one file for each map; their position ranges overlap ─▶ merged
    segments  one window of a file at a time ─▶ records
    the end   is there a frame after the last one, or a segment after this one? Both are found
              without a manifest

A file may be archived or removed between two reads. Then the reader searches for its position
again, and finds the rest in the archive, or raises `PositionGone`. Readers take no lock and write
nothing; there may be any number of them.

A reader in another process returns every whole frame that it finds. The newest one may not be
acknowledged yet: it is lost if the power fails or another writer takes over at that moment. A
reader that a `Log` returned (`Log.read`, `Log.tail`) returns acknowledged entries only.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Self, TypeAlias

import msgpack

from imap_wal.checks import check_seconds, check_source, location
from imap_wal.clock import Clock, Randomness
from imap_wal.context import open_context
from imap_wal.entry import MAP, DataEntry, Row
from imap_wal.errors import CorruptLog, MissingNode, NoSuchLog, PositionGone, StorageUnavailable
from imap_wal.forked import Openness
from imap_wal.format import FRAME_HEADER_BYTES, START, MarkedPosition, Position
from imap_wal.manifest.epochs import Epoch, between, demand, id_in, ids, marked
from imap_wal.manifest.list_files import Archive
from imap_wal.manifest.node import LOG, NodeManifest
from imap_wal.manifest.older import MISSING_ADVICE
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, FileScan
from imap_wal.read.scan import read_scan
from imap_wal.read.state import NodeState
from imap_wal.segment.listing import SegmentFile, wal_folder
from imap_wal.segment.reader import SegmentReader
from storage_backends import NotFound, SegmentStore, StorageError

MERGE_FILES_MAX = 16
"""Archives that are merged at once; each has a batch of rows in memory. More are merged in rounds,
over temporary files."""

_Placed: TypeAlias = tuple[Position, Row]


class Record(NamedTuple):
    """One entry and its position. To continue after it, read from `position.after()`."""

    position: Position
    entry: DataEntry


@dataclass(slots=True)
class _Place:
    """The progress of a reader: everything below `wanted` was yielded. `segment` is the one being
    read, from byte `offset` on (0: its start)."""

    next: Position
    epochs: tuple[Epoch, ...] = ()
    directory: str = ""
    segment: SegmentFile | None = None
    offset: int = 0
    cuts: tuple[tuple[int, Position], ...] = ()
    begins: tuple[int, int] = (0, 0)


class Bound:
    """How far a reader may read, and how it waits. This class reads to the end, and waits for the
    given time."""

    def limit(self) -> Position | None:
        """Position of the last entry to be read; None for no limit."""
        return None

    def over(self) -> bool:
        """Whether no more entries will come."""
        return False

    def wait(self, limit: Position | None, seconds: float, stop: threading.Event) -> None:
        """Wait until there may be an entry after `limit`, for `seconds`, or until `stop` is set."""
        stop.wait(seconds)


class LogReader:
    """Reads one log in order: a log of `imap_wal.log.create`, of embedded maps (cluster "embedded"
    and its node), or of an agent. It takes no lock and opens nothing until it reads. Thread-safe.
    In a forked child, its methods raise `Fenced`.

    Args:
        url: a folder or URL.
        namespace: namespace of the cluster.
        cluster: cluster of the log.
        node: name of the log in its cluster.
        storage: an open storage, instead of the one that `url` names; `close` leaves it open.
        wal_dir: as for `imap_wal.open`.
        storage_options: as for `imap_wal.open`.
        encryption_keys: the source of the keys of an encrypted log, as in `Settings`.
        clock: for tests.
        randomness: for tests.
        bound: limits what is read; `Log` passes it.
        partial: of a log whose own disk cannot be read, read what was uploaded.
        only: the name of a map; other entries are passed over, also those that were removed, so
            there is no `PositionGone`. The caller must notice what is missing.

    Raises:
        InvalidSetting: an argument is not valid.
        StorageUnavailable: the storage cannot be opened.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        namespace: str = "default",
        cluster: str = "log",
        node: str = "log",
        storage: SegmentStore | None = None,
        wal_dir: str | os.PathLike[str] = "",
        storage_options: Mapping[str, Any] | None = None,
        encryption_keys: str = "",
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        bound: Bound | None = None,
        partial: bool = False,
        only: str = "",
    ) -> None:
        place = location(url, options=storage_options)
        with storage_errors(place.url):
            check_source(encryption_keys)
            context = open_context(
                place,
                wal_dir=location(wal_dir, "wal_dir"),
                keys=encryption_keys,
                storage=storage,
                clock=clock,
                randomness=randomness,
            )
        logs = ClusterLog(context, namespace, cluster)
        self._read_from(logs, node, place.url, bound, partial, only)
        self._owns_store = storage is None

    @classmethod
    def of(
        cls,
        log: ClusterLog,
        node: str,
        url: str = "",
        *,
        bound: Bound | None = None,
        partial: bool = False,
        only: str = "",
    ) -> Self:
        """A reader of one of the logs of a cluster, through their storage, which stays open. `url`:
        for messages."""
        reader = cls.__new__(cls)
        reader._read_from(log, node, url or log.store.url, bound, partial, only)
        return reader

    def _read_from(
        self, log: ClusterLog, node: str, url: str, bound: Bound | None, partial: bool, only: str
    ) -> None:
        self.url, self.namespace, self.cluster, self.node = url, log.namespace, log.cluster, node
        self._log, self._store, self._owns_store = log, log.store, False
        self._bound, self._partial, self._only = bound or Bound(), partial, only
        self._appends = log.store.capabilities.durable_append
        self.looks = 0
        """How often it has read the manifest."""
        self._openness = Openness("reader")

    @property
    def logs(self) -> ClusterLog:
        """All logs of the cluster."""
        return self._log

    def oldest(self) -> Position:
        """The oldest position from which no entry was removed.

        Raises:
            NoSuchLog: there is no log of this name.
            LogError: a manifest is damaged, or was written by a newer version.
            StorageUnavailable: the storage failed.
        """
        self._openness.check_process()
        with storage_errors(self.url):
            manifest = self._known(self._log.node(self.node).manifest)
        removed = manifest.removed
        return marked(manifest.epochs, removed).after() if removed > START else START

    def read(self, start: Position | str | None = None) -> Iterator[Record]:
        """All records from a position to the log's end, in position order.

        Args:
            start: the position, or its text; None: the oldest entry that is left.

        Yields:
            The records.

        Raises:
            PositionGone: some entries from `start` on were removed. `OtherHistory`: the log was
                replaced by a copy since `start` was read.
            NoSuchLog: there is no log of this name.
            MissingNode: segments of the log are missing here.
            LogError: a file is damaged, or was written by a newer version.
            EncryptionError: the keys do not fit a file.
            StorageUnavailable: the storage failed.
            ValueError: `start` is text that is not a position.
        """
        with storage_errors(self.url):
            yield from self._catch_up(self._place(start))

    def tail(
        self,
        start: Position | str | None = None,
        poll_s: float = 0.1,
        stop: threading.Event | None = None,
    ) -> Iterator[Record]:
        """As `read`, and then new records as they arrive, across rotations, archives and takeovers.
        After an error, continue with `tail(last.position.after())`, where `last` is the last
        record.

        Args:
            start: as for `read`.
            poll_s: the pause between two searches for new records, in seconds. In this process, the
                tail of a `Log` is woken by every commit instead.
            stop: ends the iteration when it is set.

        Yields:
            The records.

        Raises:
            InvalidSetting: `poll_s` is not valid.
            PositionGone: some entries from `start` on were removed; and the other errors of `read`.
        """
        check_seconds(poll_s, "poll_s")
        stop = stop or threading.Event()
        records = self.follow(start)
        while not stop.is_set():
            over, limit = self._bound.over(), self._bound.limit()
            for record in iter(records.__next__, None):
                yield record
                if stop.is_set():
                    return
            if over:
                return
            self._bound.wait(limit, poll_s, stop)

    def follow(self, start: Position | str | None = None) -> Generator[Record | None]:
        """As `tail`, but without waiting: yields None when there is no further record now, and
        searches again after that. Errors as for `read`."""
        with storage_errors(self.url):
            place = self._place(start)
            while True:
                yield from self._catch_up(place)
                yield None

    def close(self) -> None:
        """Close connections. Safe to call twice."""
        if self._owns_store:
            self._store.close()

    def _place(self, start: Position | str | None) -> _Place:
        if start is None:
            start = self.oldest()
        elif isinstance(start, str):
            start = Position.parse(start)
        return _Place(start)

    # ---- one pass, up to the present end ----

    def _catch_up(self, place: _Place) -> Iterator[Record]:
        """Yields the entries from `place.next` on, and updates `place`."""
        attempts = 0
        while True:
            self._openness.check_process()
            begun_at, limit = place.next, self._bound.limit()
            try:
                segments = self._following(place)
                if segments is None:
                    state = self._look(place)
                    yield from self._archived(place, state.manifest.archives)
                    segments = [
                        segment
                        for segment in state.segments
                        if (segment.epoch, segment.number) >= place.next[:2]
                    ]
                for index, segment in enumerate(segments):
                    self._openness.check_process()
                    if limit is not None and limit[:2] < (segment.epoch, segment.number):
                        # This segment has no acknowledged entry yet, and the one before may have
                        # unacknowledged ones.
                        return
                    following = segments[index + 1].path if index + 1 < len(segments) else ""
                    yield from self._segment(place, segment, following, limit)
                return
            except CorruptLog:
                # The log may have been replaced: then its manifest has other epochs.
                former_epochs, place.segment = place.epochs, None
                self._look(place)
                if place.epochs == former_epochs:
                    raise
            except NotFound as error:
                # Archived or removed while it was read: look in the manifest.
                place.segment = None
                attempts = attempts + 1 if place.next == begun_at else 0
                if attempts == ATTEMPTS:
                    raise self._log.lost(error) from error

    def _following(self, place: _Place) -> list[SegmentFile] | None:
        """The segment being read and those after it, from their listing alone; None if the manifest
        is needed."""
        current = place.segment
        if current is None:
            return None
        last = place.epochs[-1].number if place.epochs else 0
        wal = wal_folder(self._store, self._log.node_folder(self.node), begins=place.begins)
        segments = [segment for segment in wal.segments if segment.number >= current.number]
        if not segments or [segment.number for segment in segments] != list(
            range(current.number, current.number + len(segments))
        ):
            return None
        if 0 < last < segments[-1].epoch:  # only the manifest says whether it follows what was read
            return None
        return (
            segments
            if (segments[0].epoch, segments[0].number) == (current.epoch, current.number)
            else None
        )

    def _look(self, place: _Place) -> NodeState:
        self.looks += 1
        state = self._log.node(self.node)
        manifest = self._known(state.manifest)
        if place.directory and manifest.directory != place.directory:
            raise MissingNode(
                f"{state.folder} now has log directory {manifest.directory}, and "
                f"{place.directory} was being read: its log was replaced",
                "begin again at the start of the new log",
            )
        place.directory, place.begins, place.epochs = (
            manifest.directory,
            manifest.begins,
            manifest.epochs,
        )
        if state.missing and not self._partial:
            raise MissingNode(state.missing, MISSING_ADVICE)
        if START < manifest.removed >= place.next and not self._only:
            oldest = marked(manifest.epochs, manifest.removed).after()
            raise PositionGone(str(place.next), str(oldest))
        demand(manifest.epochs, place.next, f"node {self.node!r} in {self.url}")
        # A log of records has no cluster lifetimes, and needs no manifest of the cluster.
        if manifest.kind != LOG:
            lifetimes = self._log.manifest().lifetimes
            place.cuts = tuple(
                (lifetime.incarnation, lifetime.cuts.get(self.node, START))
                for lifetime in lifetimes
            )
        return state

    def _known(self, manifest: NodeManifest) -> NodeManifest:
        if manifest.empty:
            raise NoSuchLog(
                f"{self.url} has no log of node {self.node!r} in cluster {self.cluster!r}, "
                f"namespace {self.namespace!r}; `imap-wal ls` shows what is there"
            )
        return manifest

    # ---- segments ----

    def _segment(
        self, place: _Place, segment: SegmentFile, following: str, limit: Position | None
    ) -> Iterator[Record]:
        segment_name = (segment.epoch, segment.number)
        is_current = (
            place.segment is not None
            and (place.segment.epoch, place.segment.number) == segment_name
        )
        start = (
            place.offset
            if is_current
            else self._offset(segment.path, place.next)
            if place.next[:2] == segment_name
            else 0
        )
        place.segment, place.offset = segment, start
        known_ids = ids(place.epochs, segment.epoch)
        if (
            is_current
            and start
            and (
                not self._appends
                or not self._store.read(segment.path, start, FRAME_HEADER_BYTES).strip(b"\0")
            )
        ):
            if self._appends and known_ids:
                header = SegmentReader(self._store, segment.path).header
                if header.epoch_id not in known_ids:
                    raise NotFound("the log was replaced by a copy", segment.path)
            return  # nothing new
        # A frame is acknowledged as a whole.
        until = None if limit is None else limit._replace(index=2**62)
        scan = FileScan(
            SEGMENT,
            self.node,
            segment.path,
            "",
            place.directory,
            segment.epoch,
            segment.number,
            next_path=following,
            start=start,
            until=until,
            cuts=place.cuts,
            bytes=segment.bytes,
            epochs=between(place.epochs, segment.epoch, segment.epoch),
        )
        for changes in read_scan(self._log.context, scan, positions=True):
            placed = zip(changes.positions or (), changes.rows, strict=True)
            yield from _records(place, placed, self._only)
            place.offset = changes.next_offset

    def _offset(self, path: str, position: Position) -> int:
        """The offset to begin at in a segment: the frame that `position` names, or the start if
        there is no frame."""
        if position.frame:
            for frame in SegmentReader(self._store, path).whole_frames(
                position.frame, position.frame + 1
            ):
                return frame.offset
        return 0

    # ---- archives ----

    def _archived(self, place: _Place, archives: Sequence[Archive]) -> Iterator[Record]:
        waiting = sorted(
            (
                archive
                for archive in archives
                if archive.last >= place.next and self._only in ("", archive.map)
            ),
            key=lambda archive: archive.first,
        )
        while waiting:
            group = [waiting.pop(0)]
            last = group[0].last
            while waiting and waiting[0].first <= last:
                group.append(waiting.pop(0))
                last = max(last, group[-1].last)
            merged = self._merged([self._archive(place, archive) for archive in group])
            yield from _records(place, merged, self._only)

    def _archive(self, place: _Place, archive: Archive) -> Iterator[_Placed]:
        scan = FileScan(
            ARCHIVE,
            self.node,
            archive.path,
            archive.map,
            place.directory,
            first=archive.first,
            last=archive.last,
            cuts=place.cuts,
            bytes=archive.bytes,
            records=archive.records,
            checksum=archive.checksum,
            epochs=between(place.epochs, archive.first.epoch, archive.last.epoch),
        )
        begun_at = place.next
        for changes in read_scan(self._log.context, scan, positions=True):
            if changes.last >= begun_at:
                yield from (
                    placed
                    for placed in zip(changes.positions or (), changes.rows, strict=True)
                    if placed[0] >= begun_at
                )

    def _merged(self, sources: Sequence[Iterator[_Placed]]) -> Iterator[_Placed]:
        """Merged in position order. Positions are distinct, so rows are never compared."""
        with ExitStack() as stack:
            while len(sources) > MERGE_FILES_MAX:
                parts = [
                    sources[at : at + MERGE_FILES_MAX]
                    for at in range(0, len(sources), MERGE_FILES_MAX)
                ]
                sources = [
                    _spilled(stack.enter_context(tempfile.TemporaryFile()), heapq.merge(*part))
                    for part in parts
                ]
            yield from heapq.merge(*sources)


def _spilled(file: BinaryIO, placed: Iterator[_Placed]) -> Iterator[_Placed]:
    pack = msgpack.Packer(use_bin_type=True).pack
    file.writelines(pack((position, id_in(position), row)) for position, row in placed)
    file.seek(0)
    unpacked = msgpack.Unpacker(file, use_list=False, raw=False, max_buffer_size=0)
    return (
        (MarkedPosition.of(place, epoch_id) if epoch_id else Position(*place), row)
        for place, epoch_id, row in unpacked
    )


def _records(place: _Place, placed: Iterable[_Placed], only: str) -> Iterator[Record]:
    """The records from `place.next` on, of one map or all. Each moves `place.next` forward."""
    for position, row in placed:
        if position >= place.next and only in ("", row[MAP]):
            place.next = position.after()
            yield Record(position, DataEntry(*row))


@contextmanager
def storage_errors(beginning: str) -> Iterator[None]:
    """Raises `StorageUnavailable` for errors of a storage. `beginning`: of its text."""
    try:
        yield
    except StorageError as error:
        raise StorageUnavailable(f"{beginning}: {error}") from error


__all__ = ["START", "Bound", "LogReader", "Position", "Record", "storage_errors"]
