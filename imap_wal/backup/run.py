"""Makes a backup, and removes old ones.

Segments that are only on the own disk of a node are read as all others are: the caller opens a
storage that asks the agents (`imap_wal.placement.router`).

Every file is checked while it is copied (`checks`). One that is damaged is copied too, and the
backup says so. A run with damage removes no earlier backup.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import google_crc32c

from imap_wal import format, layout
from imap_wal.backup import catalogue
from imap_wal.backup.age import note
from imap_wal.backup.capture import Captured, capture, demand_nodes, same_front
from imap_wal.backup.catalogue import (
    CHUNK_BYTES,
    LOCK,
    Backup,
    BackupFile,
    DamagedFile,
    chunk_path,
    chunk_size,
)
from imap_wal.clock import Clock
from imap_wal.contents import DIFFERS
from imap_wal.errors import CorruptLog, LogError, LostRace, MissingNode
from imap_wal.format import SegmentHeader
from imap_wal.read.cluster import ClusterLog
from imap_wal.segment.verdict import UNSUPPORTED, Place, Verdict, continues, cut_end, judge
from storage_backends import AlreadyExists, Lock, NotFound, SegmentStore, Unavailable

ATTEMPTS = 20
"""How often a cluster is captured again because files were removed before they were copied."""
_RENEW_MS = 15_000


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """The progress of a run: bytes of the log, and how many of them were copied."""

    bytes: int
    bytes_total: int
    copied_bytes: int

    def __str__(self) -> str:
        part = self.bytes / self.bytes_total if self.bytes_total else 1.0
        return f"{part:.0%}, {self.copied_bytes:,} bytes copied"


@dataclass(frozen=True)
class BackupReport:
    """What a run has done. `removed`: numbers of old backups, `freed_bytes`: their chunks; both are
    empty if the log was damaged (`backup.damaged`)."""

    backup: Backup
    copied_bytes: int
    copied_chunks: int
    replaced_chunks: int
    removed: tuple[int, ...] = ()
    freed_bytes: int = 0


def back_up(
    logs: Iterable[ClusterLog],
    target: SegmentStore,
    *,
    clock: Clock,
    holder: str,
    selection: tuple[str, ...] = (),
    keep: int = 0,
    verify: bool = False,
    progress: Callable[[BackupProgress], None] = lambda _: None,
) -> BackupReport:
    """Copy the logs as they are at one moment of this run; for several clusters, each at its own.

    Args:
        logs: The clusters, all on one storage.
        target: The place of the backups.
        clock: Gives the times.
        holder: One line about this process, for a second run.
        selection: The options that selected these clusters; (): they are all of the storage.
        keep: Keep this many of the newest whole backups of the same logs and selection, and remove
            older ones of them; 0: remove none. None is removed if the log is damaged.
        verify: Read every chunk of the backup back, and write damaged ones again.
        progress: Gets the progress.

    Returns:
        The published backup, and what was copied.

    Raises:
        Locked: Another run writes there.
        LostRace: The log changes too fast, or another run has replaced this one.
        MissingNode: The log of a node is missing, or its own disk cannot be read.
        LogError: A manifest of the log is damaged, or an old backup whose chunks may be needed.
        StorageError: One of the two storages failed.
    """
    logs = list(logs)
    begun_ms = clock.now_ms()
    with target.lock(LOCK, holder) as lock:
        chunks = _Chunks(target, lock, clock, verify=verify)
        copy = _Copy(chunks, progress)
        files = [file for log in logs for file in copy.cluster(log)]
        number = max(catalogue.numbers(target), default=0) + 1
        backup = Backup(
            number=number,
            source=logs[0].store.url if logs else "",
            begun_ms=begun_ms,
            ended_ms=clock.now_ms(),
            clusters=tuple(f"{log.namespace}/{log.cluster}" for log in logs),
            files=tuple(sorted(files, key=lambda file: file.path)),
            selection=selection,
            directories=tuple(sorted(copy.directories)),
            damaged=copy.damaged(files),
        )
        chunks.demand(backup.chunks)
        try:
            catalogue.publish(target, backup)
        except AlreadyExists as error:
            raise LostRace("another run has published a backup meanwhile; run it again") from error
        if not backup.damaged:
            for log in logs:
                note(log, backup.ended_ms)
        removed, freed = _retain(target, backup, keep) if keep and not backup.damaged else ((), 0)
    return BackupReport(backup, chunks.copied_bytes, chunks.copied, chunks.replaced, removed, freed)


class _Chunks:
    """The chunks of the place."""

    def __init__(self, target: SegmentStore, lock: Lock, clock: Clock, *, verify: bool) -> None:
        self._target, self._lock, self._clock, self._verify = target, lock, clock, verify
        self._known = self._listed()
        self._verified: set[str] = set()
        self.copied_bytes = self.copied = self.replaced = 0

    def _listed(self) -> set[str]:
        """The chunks that have the size of their name."""
        files = ((file.path.rpartition("/")[2], file.size) for file in self._target.list("chunks"))
        return {name for name, size in files if name.endswith(f"-{size}")}

    def put(self, data: bytes) -> str:
        """Write a chunk unless it is there; returns its name."""
        self.renew()
        name = catalogue.chunk_name(data)
        path = chunk_path(name)
        if name not in self._known:
            try:
                self._target.create(path, data)
            except AlreadyExists:  # it has another size than its name says
                self._target.replace(path, data)
                self.replaced += 1
            self._known.add(name)
            self.copied += 1
            self.copied_bytes += len(data)
        if self._verify and name not in self._verified:
            if self._target.read(path) != data:
                self._target.replace(path, data)
                self.replaced += 1
                if self._target.read(path) != data:
                    raise CorruptLog(
                        path,
                        0,
                        "this part of the backup was written again, and still reads differently",
                        "check the disk of the backups, or use another one",
                    )
            self._verified.add(name)
        return name

    def renew(self) -> None:
        """Renew the lock, if it is a lease that expires soon."""
        expires = self._lock.expires_ms
        if expires and expires - self._clock.now_ms() < _RENEW_MS:
            self._lock.renew()

    def demand(self, names: Collection[str]) -> None:
        """Raises `LostRace` if another run took the lock and removed chunks."""
        if self._lock.expires_ms:
            self._lock.renew()
        if not self._listed().issuperset(names):
            raise LostRace("another run has removed parts of this backup; run it again")


READS_MAX = 2
"""How often a file is read that seems to be damaged."""


class _Copy:
    """The copy of one run; a file that does not change is read once."""

    def __init__(self, chunks: _Chunks, progress: Callable[[BackupProgress], None]) -> None:
        self._chunks, self._progress = chunks, progress
        self._done: dict[str, BackupFile] = {}
        self._checks: dict[str, SegmentCheck] = {}
        self._damaged: dict[str, DamagedFile] = {}
        self._lists: dict[str, DamagedFile] = {}
        self.directories: set[str] = set()
        """The UUIDs of all log directories."""
        self._bytes = self._total = 0

    def damaged(self, files: Iterable[BackupFile]) -> tuple[DamagedFile, ...]:
        """Those of these files that are damaged, and the lists that are damaged or missing."""
        copied = {file.path for file in files}
        in_copy = {path: damage for path, damage in self._damaged.items() if path in copied}
        in_copy |= self._lists
        return tuple(in_copy[path] for path in sorted(in_copy))

    def cluster(self, log: ClusterLog) -> list[BackupFile]:
        try:
            return self._of_moment(log)
        except (MissingNode, Unavailable):
            demand_nodes(log)  # raises an error that names the node whose agent has ended
            raise

    def _of_moment(self, log: ClusterLog) -> list[BackupFile]:
        for attempt in range(ATTEMPTS):
            captured = capture(log)
            try:
                return self._files(log.store, captured)
            except NotFound as error:
                if attempt == ATTEMPTS - 1:
                    raise log.lost(error) from error
        raise AssertionError

    def _files(self, store: SegmentStore, captured: Captured) -> list[BackupFile]:
        files = []
        sizes = {path: store.size(path) for path in captured.files if path not in self._done}
        small = sum(map(len, captured.contents.values()))
        fronts = sum(front.end for front in captured.fronts.values())
        done = sum(self._done[path].size for path in captured.files if path in self._done)
        self._bytes, self._total = done, done + sum(sizes.values()) + small + fronts
        places = {place.path: place for node in captured.segments for place in node}
        # Segments come first: those that were archived are removed soonest.
        for path, front in captured.fronts.items():
            check = self._checks[path] = SegmentCheck(store, places[path])
            file = self._checked(store, path, front.end, check)
            if not same_front(store, path, front):
                raise NotFound("the end of this segment was written again", path)
            damage = self._damaged.get(path)
            is_damaged = damage is not None and damage.what != UNSTEADY
            if front.is_all and not is_damaged:
                raise NotFound("this segment was written while its end was read", path)
            if is_damaged:  # with what a repair can read after the damage
                file = self._copied(store, path, store.size(path), None)
            files.append(file)
        for path in captured.files:
            if path not in self._done:
                self._done[path] = self._checked(
                    store, path, sizes[path], self._check(store, path, places, captured)
                )
            files.append(self._done[path])
        for path, content in captured.contents.items():
            files.append(self._stored(path, [content]))
        for node in captured.segments:
            for cut_segment in cut_segments([self._checks[place.path] for place in node]):
                self._damaged.setdefault(cut_segment.file, cut_segment)
        self._lists |= {damage.file: damage for damage in captured.damaged}
        self.directories.update(captured.directories)
        return files

    def _check(
        self, store: SegmentStore, path: str, places: Mapping[str, Place], captured: Captured
    ) -> CopyCheck | None:
        if path in places:
            check = self._checks[path] = SegmentCheck(store, places[path])
            return check
        checksum = captured.checksums.get(path, 0)
        return ParquetCheck(path, checksum) if checksum else None

    def _checked(
        self, store: SegmentStore, path: str, size: int, check: CopyCheck | None
    ) -> BackupFile:
        """Copy a file, and note its damage. It is read again if it seems to be damaged: perhaps
        only the reading failed."""
        self._damaged.pop(path, None)
        for attempt in range(READS_MAX):
            before = self._bytes
            if check is not None:
                check.begin()
            file = self._copied(store, path, size, check)
            if check is None or check.whole:
                return file
            if attempt < READS_MAX - 1:
                self._bytes = before
        assert check is not None
        damage = check.damage()
        if damage is not None:
            self._damaged[path] = damage
        return file

    def _copied(
        self, store: SegmentStore, path: str, size: int, check: CopyCheck | None
    ) -> BackupFile:
        def parts() -> Iterable[bytes]:
            for offset in range(0, size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, size - offset)
                data = store.read(path, offset, length)
                if len(data) != length:
                    raise NotFound("this file became shorter while it was copied", path)
                if check is not None:
                    check.feed(data)
                yield data

        return self._stored(path, parts())

    def _stored(self, path: str, parts: Iterable[bytes]) -> BackupFile:
        names = []
        for data in parts:
            names.append(self._chunks.put(data))
            self._bytes += len(data)
            self._progress(BackupProgress(self._bytes, self._total, self._chunks.copied_bytes))
        return BackupFile(path, sum(map(chunk_size, names)), tuple(names))


def _retain(target: SegmentStore, made: Backup, keep: int) -> tuple[tuple[int, ...], int]:
    """Remove the backups that are like `made` and older than the newest whole ones of these, then
    the chunks that no backup names. Returns the numbers of the removed backups, and the bytes of
    the removed chunks."""
    # All backups are read before anything is removed: a damaged one may need any chunk.
    chunks: dict[int, set[str]] = {}
    like: list[int] = []
    whole: list[int] = []
    for number in catalogue.numbers(target):
        backup = _readable(target, number)
        chunks[number] = backup.chunks
        if backup.is_like(made):
            like.append(number)
            if not backup.damaged:
                whole.append(number)
    oldest = whole[-keep:][0] if len(whole) >= keep else 0
    old = tuple(number for number in like if number < oldest)
    for number in old:
        catalogue.remove(target, number)
        del chunks[number]
    needed = set[str]().union(*chunks.values())
    freed = 0
    for file in target.list("chunks"):
        if file.path.rpartition("/")[2] not in needed:
            target.delete(file.path)
            freed += file.size
    return old, freed


def _readable(target: SegmentStore, number: int) -> Backup:
    try:
        return catalogue.read(target, number)
    except CorruptLog as error:
        raise CorruptLog(
            error.file,
            error.offset,
            f"{error.what}, and it may need any part, so no old backup was removed",
            "bring this file back from a copy; or delete it, if that backup is not needed",
        ) from error


# Checks files while they are copied.
#
#   segment    its header, the checksum of each frame, and that the next segment continues from its
#              last frame
#   Parquet    the checksum of the whole file, which a manifest has
#
# Encrypted files are checked without their keys: checksums are of the encrypted bytes. Files that
# the log does not read, such as those that were put aside, are not checked.

UNSTEADY = (
    "its checksums are wrong in the copy, but not in the log: check the memory of this machine and "
    "its connection to the storage"
)


class CopyCheck(Protocol):
    """The check of one file. `whole`: after its last byte."""

    @property
    def whole(self) -> bool: ...

    def begin(self) -> None:
        """The file is read from its first byte."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""

    def damage(self) -> DamagedFile | None:
        """What is damaged, if it is not whole; None: nothing that counts."""


class ParquetCheck:
    """`checksum`: the CRC-32C in the manifest."""

    def __init__(self, path: str, checksum: int) -> None:
        self._path, self._wanted, self._found = path, checksum, 0

    @property
    def whole(self) -> bool:
        return self._found == self._wanted

    def begin(self) -> None:
        self._found = 0

    def feed(self, data: bytes) -> None:
        self._found = google_crc32c.extend(self._found, data)

    def damage(self) -> DamagedFile | None:
        return DamagedFile(self._path, 0, DIFFERS)


class FrameCheck:
    """The check of one segment, from its first byte to its last one, in any pieces.

    It finds the same damage of frames as `imap_wal.segment.reader`, but holds at most the header,
    or the start of a frame: not a window of the file, nor a whole frame. Payloads stay encrypted.

    `end`: the offset after the last whole frame. `checksum`: of that frame; 0: there is none.
    `header`: None until it is whole.
    """

    __slots__ = (
        *("_crc", "_held", "_left", "_next", "_path", "_seed", "_wanted", "_wrong", "_zeros"),
        *("checksum", "end", "header"),
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._held = b""
        self._left = self._next = self._crc = self._wanted = self._seed = 0
        self._zeros = self._wrong = False
        self.header: SegmentHeader | None = None
        self.end = self.checksum = 0

    @property
    def whole(self) -> bool:
        """Whether all bytes so far are a header, whole frames, and then nothing or zeros."""
        return not (self._wrong or self._left or self.header is None or self._held.strip(b"\0"))

    @property
    def continues_from(self) -> int | None:
        """See `SegmentReader.continues_from`."""
        if self.checksum or self.header is None:
            return self.checksum or None
        return self.header.previous_checksum or (0 if self.header.number == 1 else None)

    def feed(self, data: bytes) -> None:
        """Check the next bytes."""
        if self._wrong:
            return
        data, self._held = self._held + data, b""
        at = 0
        if self.header is None:
            if len(data) < format.header_bytes_needed(data):
                self._held = data
                return
            try:
                self.header, at = format.decode_header(data, self._path)
            except LogError:
                self._wrong = True
                return
            self.end, self._seed = at, self.header.checksum_seed
        while at < len(data) and not self._wrong:
            if self._zeros:
                self._wrong = data.count(0, at) != len(data) - at
                return
            if self._left:
                at = self._body(data, at)
            elif len(data) - at < format.FRAME_HEADER_BYTES:
                self._held = data[at:]
                return
            else:
                at = self._begin(data, at)

    def _begin(self, data: bytes, at: int) -> int:
        """Read the start of a frame, or of the zeros after the last one."""
        length, checksum, type_count = format.FRAME_HEADER.unpack_from(data, at)
        self._zeros = length == checksum == type_count == 0
        if self._zeros:
            return at
        self._wrong = not (
            format.SYNCED_BYTES <= length <= format.BODY_BYTES_MAX
            and type_count & 0xFF in format.TYPES
        )
        self._crc = format.frame_seed(self._seed, self.end, length, type_count)
        self._wanted, self._left = checksum, length
        self._next = self.end + format.FRAME_HEADER_BYTES + length
        return at + format.FRAME_HEADER_BYTES

    def _body(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._left]
        self._crc = google_crc32c.extend(self._crc, piece)
        self._left -= len(piece)
        if not self._left:
            if self._crc == self._wanted:
                self.end, self.checksum = self._next, self._wanted
            else:
                self._wrong = True
        return at + len(piece)


class SegmentCheck:
    """The check of a segment at its place in the log."""

    def __init__(self, store: SegmentStore, place: Place) -> None:
        self._store = store
        self.place = place
        self.frames = FrameCheck(place.path)
        self._bytes = 0

    @property
    def whole(self) -> bool:
        return self.frames.whole and self.at_home and not self._lacks_checkpoint

    @property
    def at_home(self) -> bool:
        header, place = self.frames.header, self.place
        return (
            header is not None
            and layout.original_wal_path(header) == layout.original_path(place.path)
            and place.directory in ("", header.directory)
        )

    @property
    def _lacks_checkpoint(self) -> bool:
        named = self.place.checkpoint
        return (self.place.epoch, self.place.number) == named[:2] and self.frames.end <= named.frame

    def begin(self) -> None:
        self.frames, self._bytes = FrameCheck(self.place.path), 0

    def feed(self, data: bytes) -> None:
        self.frames.feed(data)
        self._bytes += len(data)

    def damage(self) -> DamagedFile | None:
        """The verdict of `imap-wal verify`, from the file itself. A torn tail is not damage."""
        ended_at = -1
        while True:
            verdict, _ = judge(self._store, self.place, lambda _: None, keys=None)
            if not verdict.is_damage or self.place.followed or verdict.end == ended_at:
                break
            # Perhaps a commit is under way: then the segment's end moves, but damage does not.
            ended_at = verdict.end
        if verdict.status == UNSUPPORTED:
            raise verdict.error()
        if verdict.is_damage:
            return _said(verdict)
        if verdict.is_tail or not self._bytes:  # or its writer was at its first commit
            return None
        return DamagedFile(self.place.path, self.frames.end, UNSTEADY)


def cut_segments(segments: Sequence[SegmentCheck]) -> Iterator[DamagedFile]:
    """The segments of one node, in order, whose end is missing: the next one continues from a later
    frame."""
    said = 0
    for segment in reversed(segments):
        frames, header = segment.frames, segment.frames.header
        checksum = frames.continues_from
        if segment.whole and segment.place.followed and not continues(checksum, said):
            yield _said(cut_end(segment.place, frames.end))
        # As in `imap_wal.segment.verdict.said_by`.
        if header is None or not segment.at_home:
            said = 0
        elif header.previous_checksum or frames.checksum:
            said = header.previous_checksum


def _said(verdict: Verdict) -> DamagedFile:
    return DamagedFile(verdict.place.path, verdict.end, verdict.what)
