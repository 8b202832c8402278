"""Recovery at open: finds the end of a node's log, and handles damage.

    manifest says clean  ─▶ only the last frame: does it exist, is it whole?
    otherwise            ─▶ scan from the checkpoint, segment by segment: gaps, missing ends, torn
                            and damaged frames
    absolute             ─▶ scan all segments, also after a clean stop

What each mode does with which damage: the table of `imap_wal.segment.verdict`, and for users
docs/durability.md. A missing segment is handled as a `short` one.

`salvage` is offline: `imap-wal repair` writes a copy. No valid frame is deleted. What is cut off or
given up is copied to `lost/`, byte for byte, if it has whole frames. It cannot return by itself:
its segments keep their numbers, empty, so no later position is confused with one of theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

import msgpack

from imap_wal import entry, format, layout
from imap_wal.errors import CorruptLog, Forged, LogError
from imap_wal.format import START, Frame, Position, SegmentHeader
from imap_wal.manifest.node import NodeManifest
from imap_wal.progress import Progress
from imap_wal.security.encryption import sealed
from imap_wal.segment.copies import demand_no_better_copy
from imap_wal.segment.listing import WalFolder, wal_folder
from imap_wal.segment.read_ahead import held, read_ahead
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.verdict import (
    CLEAN,
    CORRUPT,
    HEADER_TORN,
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
from storage_backends import AlreadyExists, NotFound, SegmentStore

_log = logging.getLogger("imap_wal")


@dataclass(frozen=True, slots=True)
class Lost:
    """What an open gave up. `first` is where the damage begins; `last` the last whole frame after
    it, or None. `put_aside` names the copies."""

    file: str
    offset: int
    what: str
    first: Position
    last: Position | None
    frames: int
    records: int
    bytes: int
    put_aside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings of `open` after the last checkpoint. `torn_bytes` were cut: an incomplete
    commit, never acknowledged unless `lost` says so."""

    clean: bool
    frames: int = 0
    records: int = 0
    torn_file: str = ""
    torn_bytes: int = 0
    lost: Lost | None = None


class RecoveredState(NamedTuple):
    """The state from which the next writer continues: `requests` are session → last durable
    request, `end` the last frame's position, `checksum` its CRC."""

    recovery: RecoveryReport
    requests: Mapping[int, int]
    end: Position
    next_segment: int
    checksum: int


class _File(NamedTuple):
    epoch: int
    number: int
    path: str
    bytes: int


class _Damage(NamedTuple):
    """The first damage of the log. `file` is its index; `missing` the numbers of missing segments
    before `file`."""

    file: int
    verdict: Verdict
    missing: range = range(0)


def recover(
    context: LogContext, manifest: NodeManifest, claim: Callable[[bool], None]
) -> RecoveredState:
    """Make the log ready for writing, as the module's table says. `claim` is called before the
    first file is changed, and again before bytes are given up; its argument says whether they are.
    It raises if the log is not the caller's. Raises `CorruptLog`, `ShortLog`
    or `UnsupportedVersion`; nothing was changed then."""
    return _Recovery(context, manifest, claim).run()


class _Recovery:
    """One run of `recover`."""

    def __init__(
        self, context: LogContext, manifest: NodeManifest, claim: Callable[[bool], None]
    ) -> None:
        self._context, self._store, self._identity = context, context.store, context.identity
        self._manifest, self._mode, self._claim = manifest, context.settings.recovery_mode, claim
        found = wal_folder(
            self._store, self._identity.node_folder, manifest.archived, manifest.begins
        )
        if self._fill(found):
            found = wal_folder(
                self._store, self._identity.node_folder, manifest.archived, manifest.begins
            )
        numbers = [each.number for each in found.segments]
        self._next_segment = (
            max([*numbers, manifest.archived[1], manifest.checkpoint.segment, manifest.newest]) + 1
        )
        self._files = [
            _File(each.epoch, each.number, each.path, each.bytes) for each in found.segments
        ]
        self._copied = [each.path for each in found.copied]
        self._requests = dict(manifest.requests)
        self._end = manifest.checkpoint
        self._checksum: int | None = None
        """What the next segment's header may have, see `SegmentReader.continues_from`."""
        self._frames = self._records = 0
        self._whole = 0
        """The end of the whole frames in the last scanned file."""
        self._progress = Progress(
            context.clock, f"recovering the log of node {self._identity.node!r}"
        )
        self._loose: list[tuple[str, int]] = []
        """Sealed files with reserved space after their frames."""

    def run(self) -> RecoveredState:
        manifest = self._manifest
        # All other modes require a full scan.
        if manifest.clean and self._mode is RecoveryMode.TORN_TAIL:
            checksum = self._clean_end()
            if checksum is not None:
                return RecoveredState(
                    RecoveryReport(True),
                    manifest.requests,
                    manifest.checkpoint,
                    self._next_segment,
                    checksum,
                )
        damage = self._scan()
        self._progress.over(self._records)
        if damage is None:
            self._trim()
            self._copy_newest(self._whole)
            return self._result(
                RecoveryReport(manifest.clean and not self._frames, self._frames, self._records)
            )
        if damage.verdict.is_tail and self._mode is not RecoveryMode.ABSOLUTE:
            self._trim(gives_up=True)
            return self._cut(self._files[damage.file], damage.verdict)
        if self._mode is RecoveryMode.POINT_IN_TIME:
            self._trim(gives_up=True)
            return self._give_up(damage)
        raise self._refusal(damage)

    def _result(self, recovery: RecoveryReport) -> RecoveredState:
        return RecoveredState(
            recovery, self._requests, self._end, self._next_segment, self._checksum or 0
        )

    def _fill(self, found: WalFolder) -> bool:
        """Create the segments that were given up with a disk, empty: each number that was used has
        a file. Returns whether one was missing."""
        epoch, first, last = self._manifest.given_up
        there = {each.number for each in found.segments}
        missing = {*range(max(first, self._manifest.archived[1] + 1), last + 1)} - there
        if not last or not missing:
            return False
        self._claim(False)
        for number in sorted(missing):
            path = layout.wal_path(self._identity.node_folder, epoch, number)
            with suppress(AlreadyExists):  # our own create, its answer was lost
                self._store.create(path, self._empty(_File(epoch, number, path, 0)))
        return True

    # ---- scanning ----

    def _clean_end(self) -> int | None:
        """After a clean stop: the CRC of the log's last frame, if it is at the position in the
        manifest; 0 if its segment is archived. None: something is wrong, scan."""
        checkpoint = self._manifest.checkpoint
        newest = self._files[-1] if self._files else None
        if checkpoint == START or checkpoint[:2] <= self._manifest.archived:
            return 0 if newest is None else None
        if newest is None or newest[:2] != checkpoint[:2]:
            return None
        try:
            place = self._place(len(self._files) - 1)
            store = held(self._store, newest.path)
            reader = begin(store, place)
            if isinstance(reader, Verdict):
                return None
            kinds = [frame.kind for frame in reader.frames(checkpoint.frame)]
            return (
                reader.checksum
                if len(kinds) == 1 and at_end(reader, place).status == CLEAN
                else None
            )
        except (LogError, NotFound):
            return None

    def _scan(self) -> _Damage | None:
        """Read the log after the checkpoint, or all of it if the recovery mode must find damage
        below that or may skip damage. Returns the first damage, or None."""
        start = START if self._mode is RecoveryMode.ABSOLUTE else self._manifest.checkpoint
        if self._mode is RecoveryMode.POINT_IN_TIME:
            self._end = start = START
            # Then a repeated request may be appended twice: it has the same order.
            self._requests = {}
        expected = max(start.segment, self._manifest.archived[1] + 1)
        first = next(
            (index for index, file in enumerate(self._files) if file.number >= start.segment),
            len(self._files),
        )
        files = [
            file for at, file in enumerate(self._files[first:]) if file.number == expected + at
        ]
        wanted = ((file, file.path, file.bytes) for file in files)
        with closing(read_ahead(self._store, wanted)) as sources:
            for index, (file, store) in enumerate(sources, first):
                expected += 1
                damage = self._scan_file(
                    index, file, store, start.frame if file.number == start.segment else None
                )
                if damage is not None:
                    return damage
        after = next(
            (index for index, file in enumerate(self._files) if file.number > expected),
            len(self._files),
        )
        following = (
            self._files[after].number
            if after < len(self._files)
            else max(expected, self._known() + 1)
        )
        if following > expected:
            epochs = [file.epoch for file in self._files[: after + 1]]
            epoch = (
                epochs[-1]
                if after < len(self._files)
                else max([self._manifest.checkpoint.epoch, *epochs])
            )
            place = Place(
                layout.wal_path(self._identity.node_folder, epoch, expected),
                self._manifest.directory,
                epoch,
                expected,
                followed=True,
            )
            what = f"segment {expected} is missing: the log continues after it"
            return _Damage(after, Verdict(SHORT, place, 0, what=what), range(expected, following))
        return None

    def _scan_file(
        self, index: int, file: _File, store: SegmentStore, first_frame: int | None
    ) -> _Damage | None:
        place = self._place(index)
        reader = begin(store, place)
        if isinstance(reader, Verdict):
            if reader.status == UNSUPPORTED:
                raise reader.error()
            return _Damage(index, reader)
        reader.check_keys()  # before anything is cut off or written
        if not continues(self._checksum, reader.header.previous_checksum):
            return _Damage(index - 1, cut_end(self._place(index - 1), self._whole))
        # Now, not at the segment's end: damage may begin before its first frame. Then the next
        # segment continues from the same frame as this one.
        known = reader.continues_from
        self._checksum = self._checksum if known is None else known
        frames = reader.frames(first_frame)
        while True:
            try:
                frame = next(frames, None)
            except Forged as error:
                return _Damage(index, forged(place, error, store.size(file.path)))
            if frame is None:
                break
            end = Position(file.epoch, file.number, frame.offset, max(frame.count - 1, 0))
            if end <= self._manifest.checkpoint and self._mode is RecoveryMode.ABSOLUTE:
                self._checksum = frame.checksum
                continue  # the request is known
            if frame.kind in format.OF_ENTRIES:
                try:
                    self._note_requests(frame)
                except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
                    what = (
                        "the checksum of this frame is right, but its content is not entries "
                        f"({error!r})"
                    )
                    return _Damage(
                        index, Verdict(CORRUPT, place, frame.offset, store.size(file.path), what)
                    )
                self._records += frame.count
                self._progress.reached(self._records)
            self._frames += 1
            self._checksum = frame.checksum
            self._end = end
        found = at_end(reader, place)
        self._whole = found.end
        if found.status != CLEAN:
            return _Damage(index, found)
        if found.size > found.end and place.followed:
            self._loose.append((file.path, found.end))
        return None

    def _note_requests(self, frame: Frame) -> None:
        try:
            requests = [row[entry.ORDER][2:] for row in entry.decoded(frame.payload, frame.count)]
        except ValueError:
            # Only the numbers of the requests matter here. Readers check the rest of an entry.
            rows = list(entry.rows(frame.payload))
            if len(rows) != frame.count:
                raise ValueError(
                    f"it should have {frame.count} entries and has {len(rows)}"
                ) from None
            requests = list(map(entry.request_of, rows))
        found: dict[int, int] = {}
        for session, request in requests:
            found[session] = max(request, found.get(session, 0))
        for session, request in found.items():
            self._requests[session] = max(request, self._requests.get(session, 0))

    def _place(self, index: int) -> Place:
        file, manifest = self._files[index], self._manifest
        return Place(
            file.path,
            manifest.directory,
            *file[:2],
            index < len(self._files) - 1,
            manifest.checkpoint,
            manifest.newest,
        )

    def _known(self) -> int:
        """Number of the newest segment that the manifest names."""
        return max(self._manifest.checkpoint.segment, self._manifest.newest)

    def _refusal(self, damage: _Damage) -> LogError:
        verdict = damage.verdict
        if verdict.is_tail:
            advice = (
                "recovery_mode='absolute' takes a whole log only; open with 'torn-tail' to cut "
                "off entries that were never acknowledged"
            )
            return CorruptLog(
                verdict.place.path,
                verdict.end,
                f"an incomplete last commit ({verdict.what})",
                advice,
            )
        frames, records, last = self._count(damage, self._files[damage.file :])
        return verdict.error(
            "no whole frame follows it"
            if last is None
            else f"{frames} whole frames with {records} entries follow it, up to {last}"
        )

    # ---- changing the log ----

    def _trim(self, *, gives_up: bool = False) -> None:
        if not gives_up and not self._files and self._manifest.checkpoint == START:
            return  # the log is empty
        self._claim(gives_up)
        for path in self._copied:  # an earlier recovery died after its copy
            self._store.delete(path)
        if self._store.capabilities.durable_append:
            for path, end in self._loose:
                with suppress(NotFound):  # a prune has removed it
                    self._store.truncate(path, end)

    def _copy_newest(self, size: int) -> None:
        """Rewrite the newest segment; a sync is not enough. Its data may be only in the page cache:
        the writer died before its sync, or its sync failed and the kernel marked the pages clean.
        From now on they count as acknowledged. Also, a writer that was fenced may still append:
        the copy makes it append to a file that no reader opens."""
        if self._files and self._store.capabilities.durable_append:
            path = self._files[-1].path
            self._put(path, self._store.read(path, 0, size))

    def _put(self, wal: str, data: bytes) -> None:
        """Replace the segment `wal` by `data`, under a name that the previous writer does not know.
        If files are appended to by name, as on HDFS, that writer could otherwise append to the
        recovered file."""
        path = layout.recovered_path(wal, self._manifest.epoch + 1)
        try:
            self._store.create(path, data)
        except AlreadyExists:
            if self._store.read(path) != data:  # equal: our own create, its answer was lost
                raise
        self._delete(wal)

    def _delete(self, wal: str) -> None:
        """From the own disk and the root, if the root has nothing better."""
        demand_no_better_copy(self._store, wal, self._manifest.directory)
        self._store.delete(wal)

    def _cut(self, file: _File, verdict: Verdict) -> RecoveredState:
        size = self._store.size(file.path)
        lost = None
        if verdict.frames_after:
            kept = self._put_aside([file])
            last = verdict.lost._replace(frame=verdict.last_after)
            lost = Lost(
                file.path,
                verdict.end,
                verdict.what,
                verdict.lost,
                last,
                verdict.frames_after,
                verdict.records_after,
                size - verdict.end,
                kept,
            )
            self._tell(lost)
        if verdict.status == HEADER_TORN:
            self._delete(file.path)  # it never had a frame, and no manifest names it
            self._next_segment = file.number
        elif self._store.capabilities.durable_append:
            self._copy_newest(verdict.end)
        return self._result(
            RecoveryReport(False, self._frames, self._records, file.path, size - verdict.end, lost)
        )

    def _give_up(self, damage: _Damage) -> RecoveredState:
        files, verdict = self._files[damage.file :], damage.verdict
        kept = self._put_aside(files)
        frames, records, last = self._count(damage, files)
        size = sum(self._store.size(file.path) for file in files) - verdict.end
        path = layout.original_path(verdict.place.path)
        lost = Lost(
            path, verdict.end, verdict.what, verdict.lost, last, frames, records, size, kept
        )
        # The damaged one last: until then, a crash leaves a log with the same damage. Every used
        # number gets a file, also numbers that are missing after the damage.
        there = {file.number for file in files}
        emptied = [*(files[1:] if verdict.end else files), *self._missing(verdict.place, files)]
        for file in sorted(emptied, key=lambda file: file.number, reverse=True):
            if file.number in there:
                if not self._shuts_out(file):
                    self._put(file.path, self._empty(file))
            else:
                self._store.create(file.path, self._empty(file))
        if verdict.end:
            self._put(files[0].path, self._store.read(files[0].path, 0, verdict.end))
        self._tell(lost)
        return self._result(RecoveryReport(False, self._frames, self._records, path, size, lost))

    def _shuts_out(self, file: _File) -> bool:
        """Whether this is an empty object that fences a replaced writer (`layout.fences`): its
        name must stay in use, and it has no entries to lose."""
        if self._store.capabilities.durable_append:
            return False
        try:
            reader = SegmentReader(self._store, file.path)
        except LogError:
            return False
        return not reader.header.previous_checksum and reader.first == self._store.size(file.path)

    def _missing(self, first: Place, files: Sequence[_File]) -> list[_File]:
        """Segments from `first` to the log's last that have no file, each in the epoch of its
        predecessor: with an older one it would count as begun by a replaced writer."""
        there = {file.number: file for file in files}
        last = max([first.number, *there, self._known()])
        epoch, missing = first.epoch, []
        for number in range(first.number, last + 1):
            if number in there:
                epoch = there[number].epoch
            else:
                missing.append(
                    _File(
                        epoch, number, layout.wal_path(self._identity.node_folder, epoch, number), 0
                    )
                )
        return missing

    def _count(self, damage: _Damage, files: Sequence[_File]) -> tuple[int, int, Position | None]:
        """Whole frames after the damage, their entries, the position of the last."""
        frames = records = 0
        last: Position | None = None
        verdict = damage.verdict
        if verdict.frames_after:
            frames, records = verdict.frames_after, verdict.records_after
            last = verdict.lost._replace(frame=verdict.last_after)
        for file in files[1:] if verdict.end else files:
            try:
                for frame in SegmentReader(self._store, file.path).whole_frames():
                    frames += 1
                    records += frame.count if frame.kind in format.OF_ENTRIES else 0
                    last = Position(file.epoch, file.number, frame.offset, 0)
            except LogError:
                continue
        return frames, records, last

    def _put_aside(self, files: Sequence[_File]) -> tuple[str, ...]:
        kept = []
        for file in files:
            path = layout.lost_path(self._identity.node_folder, self._manifest.epoch + 1, file.path)
            try:
                self._store.create(path, self._store.read(file.path))
            except AlreadyExists:
                pass  # of an earlier recovery that did not finish
            kept.append(path)
        return tuple(kept)

    def _empty(self, file: _File) -> bytes:
        identity = self._identity
        header = SegmentHeader(
            self._context.randomness.token(),
            identity.namespace,
            identity.cluster,
            identity.node,
            file.epoch,
            file.number,
            0,
            self._context.clock.now_ms(),
            self._manifest.directory,
        )
        return sealed(self._context.key_ring, header, self._context.randomness)[0].encode()

    def _tell(self, lost: Lost) -> None:
        _log.warning(
            "%s at byte %d: %s; %d whole frames with %d entries from %s to %s were given up; "
            "they are in %s",
            lost.file,
            lost.offset,
            lost.what,
            lost.frames,
            lost.records,
            lost.first,
            lost.last or "the end",
            ", ".join(lost.put_aside),
        )
