"""Reads the end of a node's log at open: what its segments have after the checkpoint, and the first
damage. Changes nothing; `imap_wal.write.recovery` decides what to do with damage."""

from __future__ import annotations

from contextlib import closing
from copy import copy
from typing import NamedTuple

from imap_wal import entry, format, layout
from imap_wal.errors import Forged, LogError
from imap_wal.format import START, Frame, Position
from imap_wal.manifest.epochs import ids
from imap_wal.manifest.node import NodeManifest
from imap_wal.progress import Progress
from imap_wal.segment.listing import SegmentFile, WalFolder
from imap_wal.segment.reader import SegmentReader, held, read_ahead
from imap_wal.segment.verdict import (
    CLEAN,
    CORRUPT,
    SHORT,
    UNSUPPORTED,
    Place,
    Verdict,
    at_end,
    begin,
    continues,
    cut_end,
    forged,
)
from imap_wal.settings import RecoveryMode
from imap_wal.write.context import LogContext
from storage_backends import NotFound, SegmentStore


class Damage(NamedTuple):
    """The first damage of the log. `file` is the index of the damaged file, or of the one that
    follows a missing one."""

    file: int
    verdict: Verdict


class LogScan:
    """One scan of the segments in `found`; `run` is called once. `fenced`: an object that fences
    the writer will follow them."""

    def __init__(
        self,
        context: LogContext,
        manifest: NodeManifest,
        wal: WalFolder,
        *,
        fenced: bool = False,
    ) -> None:
        self._context = context
        self._store, self._identity = context.store, context.identity
        self._keys = context.context.keys
        self._manifest, self._mode = manifest, context.settings.recovery_mode
        self.files, self._fenced = wal.segments, fenced
        skips = self._mode is RecoveryMode.POINT_IN_TIME
        start = START if skips or self._mode is RecoveryMode.ABSOLUTE else manifest.checkpoint
        self._start = start
        self._expected = max(start.segment, manifest.archived[1] + 1)
        """Number of the next segment to read."""
        self._next = next(
            (index for index, file in enumerate(self.files) if file.number >= start.segment),
            len(self.files),
        )
        """Index of the next file to read."""
        self._sure: LogScan | None = None
        """This scan before it read a file that may still change."""
        self._damaged = False
        # Without the requests, a repeated one may be appended twice: it has the same order.
        self.requests = {} if skips else dict(manifest.requests)
        """Session → last durable request."""
        self.end = START if skips else manifest.checkpoint
        """The position of the last whole frame before the damage."""
        self.checksum: int | None = None
        """What the next segment's header may contain, see `SegmentReader.continues_from`."""
        self.frames = self.records = 0
        """How many whole frames it has read, and their entries."""
        self.whole = 0
        """The end of the whole frames in the last scanned file."""
        self.loose: list[tuple[str, int]] = []
        """Sealed files with reserved space after their frames."""
        self._progress = Progress(
            context.clock, f"recovering the log of node {self._identity.node!r}"
        )

    def clean_end(self) -> int | None:
        """After a clean stop: the CRC of the log's last frame, if it is at the position in the
        manifest; 0 if its segment is archived. None: something is wrong, scan."""
        checkpoint = self._manifest.checkpoint
        newest = self.files[-1] if self.files else None
        if checkpoint == START or checkpoint[:2] <= self._manifest.archived:
            return 0 if newest is None else None
        if newest is None or newest.name != checkpoint[:2]:
            return None
        try:
            place = self._place(len(self.files) - 1)
            store = held(self._store, newest.path)
            reader = begin(store, place)
            if isinstance(reader, Verdict):
                return None
            kinds = [frame.kind for frame in reader.frames(self._keys, checkpoint.frame)]
            return (
                reader.checksum
                if len(kinds) == 1 and at_end(reader, place).status == CLEAN
                else None
            )
        except (LogError, NotFound):
            return None

    def run(self) -> Damage | None:
        """Read the log after the checkpoint, or all of it if the recovery mode must find damage
        below that or may skip damage. Returns the first damage, or None. Raises
        `UnsupportedVersion`."""
        damage = self._read()
        self._damaged = damage is not None
        self._progress.over(self.records)
        return damage

    def again(self, wal: WalFolder, *, fenced: bool = False) -> LogScan:
        """A scan of a later listing of this log. It does not read again what this scan has read and
        what cannot have changed since: objects and files that have a successor."""
        earlier = self._sure or self
        if earlier._damaged or earlier.files[: earlier._next] != wal.segments[: earlier._next]:
            return LogScan(self._context, self._manifest, wal, fenced=fenced)
        scan = earlier._copy()
        scan.files, scan._fenced = wal.segments, fenced
        return scan

    def _copy(self) -> LogScan:
        other = copy(self)
        other.requests, other.loose = dict(self.requests), list(self.loose)
        return other

    def _read(self) -> Damage | None:
        there, (_, first, last) = {file.number for file in self.files}, self._manifest.given_up
        filled = {*range(first, last + 1)} - there  # the recovery creates them, empty
        files, expected = [], self._expected
        for file in self.files[self._next :]:
            while expected in filled:
                expected += 1
            if file.number != expected:
                break
            files.append(file)
            expected += 1
        stored = ((file, file.path, file.bytes) for file in files)
        with closing(read_ahead(self._store, stored)) as sources:
            for index, (file, store) in enumerate(sources, self._next):
                if index == len(self.files) - 1 and not self._fenced:
                    self._sure = self._copy()
                damage = self._scan_file(
                    index,
                    file,
                    store,
                    self._start.frame if file.number == self._start.segment else None,
                )
                if damage is not None:
                    return damage
                self._next, self._expected = index + 1, file.number + 1
        while expected in filled:
            expected += 1
        return self._missing_after(expected)

    def _missing_after(self, expected: int) -> Damage | None:
        """The damage if the log continues after the segment before `expected`, which is missing."""
        after = next(
            (index for index, file in enumerate(self.files) if file.number > expected),
            len(self.files),
        )
        following = (
            self.files[after].number if after < len(self.files) else max(expected, self.known() + 1)
        )
        if following > expected:
            epochs = [file.epoch for file in self.files[: after + 1]]
            epoch = (
                epochs[-1]
                if after < len(self.files)
                else max([self._manifest.checkpoint.epoch, *epochs])
            )
            place = Place(
                layout.wal_path(self._identity.node_folder, epoch, expected),
                self._manifest.directory,
                epoch,
                expected,
                followed=True,
            )
            reason = f"segment {expected} is missing: the log continues after it"
            return Damage(after, Verdict(SHORT, place, 0, what=reason))
        return None

    def _scan_file(
        self, index: int, file: SegmentFile, store: SegmentStore, first_frame: int | None
    ) -> Damage | None:
        place = self._place(index)
        reader = begin(store, place)
        if isinstance(reader, Verdict):
            if reader.status == UNSUPPORTED:
                raise reader.error()
            return Damage(index, reader)
        reader.check_keys(self._keys)  # before anything is cut off or written
        if not continues(self.checksum, reader.header.previous_checksum):
            return Damage(index - 1, cut_end(self._place(index - 1), self.whole))
        # Now, not at the segment's end: damage may begin before its first frame. Then the next
        # segment continues from the same frame as this one.
        checksum = reader.continues_from
        self.checksum = self.checksum if checksum is None else checksum
        frames = reader.frames(self._keys, first_frame)
        while True:
            try:
                frame = next(frames, None)
            except Forged as error:
                return Damage(index, forged(place, error, store.size(file.path)))
            if frame is None:
                break
            end = Position(file.epoch, file.number, frame.offset, max(frame.count - 1, 0))
            if end <= self._manifest.checkpoint and self._mode is RecoveryMode.ABSOLUTE:
                self.checksum = frame.checksum
                continue  # the request is known
            if frame.kind in format.OF_ENTRIES:
                try:
                    self._note_requests(frame)
                except ValueError as error:
                    reason = (
                        "the checksum of this frame is right, but its content is not entries "
                        f"({error!r})"
                    )
                    return Damage(
                        index, Verdict(CORRUPT, place, frame.offset, store.size(file.path), reason)
                    )
                self.records += frame.count
                self._progress.reached(self.records)
            self.frames += 1
            self.checksum = frame.checksum
            self.end = end
        verdict = at_end(reader, place)
        self.whole = verdict.end
        if verdict.status != CLEAN:
            return Damage(index, verdict)
        if verdict.size > verdict.end and place.followed:
            self.loose.append((file.path, verdict.end))
        return None

    def _note_requests(self, frame: Frame) -> None:
        newest: dict[int, int] = {}
        for row in entry.decoded(frame.payload, frame.count):
            _, _, session, request = row[entry.ORDER]
            newest[session] = max(request, newest.get(session, 0))
        for session, request in newest.items():
            self.requests[session] = max(request, self.requests.get(session, 0))

    def _place(self, index: int) -> Place:
        file, manifest = self.files[index], self._manifest
        return Place(
            file.path,
            manifest.directory,
            *file.name,
            self._fenced or index < len(self.files) - 1,
            manifest.checkpoint,
            manifest.newest,
            ids(manifest.epochs, file.epoch),
        )

    def known(self) -> int:
        """Number of the newest segment that the manifest names."""
        return max(self._manifest.checkpoint.segment, self._manifest.newest)

    def count(self, damage: Damage) -> tuple[int, int, Position | None]:
        """Whole frames after the damage, their entries, the position of the last."""
        frames = records = 0
        last: Position | None = None
        verdict = damage.verdict
        if verdict.frames_after:
            frames, records = verdict.frames_after, verdict.records_after
            last = verdict.lost._replace(frame=verdict.last_after)
        files = self.files[damage.file :]
        for file in files[1:] if verdict.end else files:
            try:
                for frame in SegmentReader(self._store, file.path).whole_frames():
                    frames += 1
                    records += frame.count if frame.kind in format.OF_ENTRIES else 0
                    last = Position(file.epoch, file.number, frame.offset, 0)
            except LogError:
                continue
        return frames, records, last
