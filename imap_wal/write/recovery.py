"""Recovery at open: finds the end of a node's log (`imap_wal.write.log_scan`), and handles damage.

    manifest says clean  ─▶ only the last frame: does it exist, is it whole?
    otherwise            ─▶ scan from the checkpoint, segment by segment: gaps, missing ends, torn
                            and damaged frames
    absolute             ─▶ scan all segments, even after a clean stop

What each mode does with which damage: the table of `imap_wal.segment.verdict`, and for users
docs/durability.md. A missing segment is handled as a `short` one.

`salvage` is offline: `imap-wal repair` writes a copy. No valid frame is deleted. What is cut off or
given up is copied to `lost/`, byte for byte, if it has whole frames. It cannot return by itself:
its segments keep their numbers, empty, so no later position is confused with one of theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from imap_wal import layout
from imap_wal.errors import CorruptLog, LogError, LostRace
from imap_wal.format import START, Position, SegmentHeader
from imap_wal.manifest.epochs import segment_id
from imap_wal.manifest.node import NodeManifest
from imap_wal.security.encryption import sealed
from imap_wal.segment.copies import demand_no_better_copy
from imap_wal.segment.listing import SegmentFile, WalFolder, wal_folder
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.verdict import HEADER_TORN, Place, Verdict
from imap_wal.settings import RecoveryMode
from imap_wal.write.context import LogContext
from imap_wal.write.log_scan import Damage, LogScan
from storage_backends import AlreadyExists, NotFound

_log = logging.getLogger("imap_wal")

PROOFS_MAX = 20
"""How often a log is read until the same damage is found twice: a running writer may still complete
what looks like damage."""


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
    commit, never acknowledged unless `lost` says so, and the unused rest of its file."""

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


class Recovery:
    """Makes the log of `manifest` ready for writing, as the module's table says. `covered`: up to
    where any snapshot covers this log."""

    def __init__(
        self, context: LogContext, manifest: NodeManifest, covered: Position = START
    ) -> None:
        self.manifest, self.covered = manifest, covered
        self._context, self._store, self._identity = context, context.store, context.identity
        self._mode = context.settings.recovery_mode
        # All other modes require a full scan.
        self._only_end = manifest.clean and self._mode is RecoveryMode.TORN_TAIL
        self._proof: LogScan | None = None

    def prove(self, wal: WalFolder, *, fenced: bool) -> None:
        """Raise the error that `run` would raise for the segments `wal`, before their writer is
        fenced. `fenced`: an object that fences the writer will follow them. Changes nothing, and
        may be called again: it reads again only what may have changed. Raises the errors of `run`,
        and `NotFound` if a segment was removed meanwhile."""
        if self._only_end and self._scan_of(wal).clean_end() is not None:
            return
        damage: Damage | None = None
        for _ in range(PROOFS_MAX):
            former = damage
            self._proof = scan = self._scan_of(wal, fenced=fenced)
            damage = scan.run()
            if damage is None or self._allows(damage.verdict):
                return
            if damage == former:
                raise self._refusal(scan, damage)
            # A writer that is not fenced may have completed its commit between two reads.
            wal = self._listed()
        raise LostRace(
            f"{self._identity.node_folder}/wal changed {PROOFS_MAX} times while it was examined; "
            "try again"
        )

    def run(self, claim: Callable[[bool], None]) -> RecoveredState:
        """Make the log ready for writing. What `prove` has read is read again only if it may have
        changed since. `claim` is called before the first file is changed, and again before frames
        are given up; its argument says whether they are. It raises if another process has the log.
        Raises `CorruptLog`, `ShortLog`, `UnsupportedVersion` or `EncryptionError`; nothing was
        changed then."""
        manifest, wal, self._claim = self.manifest, self._listed(), claim
        if self._fill(wal):
            wal = self._listed()
        self._scan = scan = self._scan_of(wal)
        self._files = scan.files
        numbers = [file.number for file in self._files]
        self._next_segment = (
            max([*numbers, manifest.archived[1], manifest.checkpoint.segment, manifest.newest]) + 1
        )
        self._copied = [segment.path for segment in wal.copied]
        if self._only_end:
            checksum = scan.clean_end()
            if checksum is not None:
                return RecoveredState(
                    RecoveryReport(True),
                    manifest.requests,
                    manifest.checkpoint,
                    self._next_segment,
                    checksum,
                )
        damage = scan.run()
        if damage is None:
            self._trim()
            self._copy_newest(scan.whole)
            return self._result(
                RecoveryReport(manifest.clean and not scan.frames, scan.frames, scan.records)
            )
        if not self._allows(damage.verdict):
            raise self._refusal(scan, damage)
        if damage.verdict.is_tail:
            self._trim(gives_up=self._loses(damage.verdict))
            return self._cut(self._files[damage.file], damage.verdict)
        self._trim(gives_up=True)
        return self._give_up(damage)

    def _listed(self) -> WalFolder:
        return wal_folder(
            self._store, self._identity.node_folder, self.manifest.archived, self.manifest.begins
        )

    def _scan_of(self, wal: WalFolder, *, fenced: bool = False) -> LogScan:
        if self._proof is None:
            return LogScan(self._context, self.manifest, wal, fenced=fenced)
        return self._proof.again(wal, fenced=fenced)

    def _allows(self, verdict: Verdict) -> bool:
        """Whether this recovery mode opens a log with this damage."""
        if verdict.is_tail:
            return self._mode is not RecoveryMode.ABSOLUTE
        return self._mode is RecoveryMode.POINT_IN_TIME

    def _result(self, recovery: RecoveryReport) -> RecoveredState:
        scan = self._scan
        return RecoveredState(
            recovery, scan.requests, scan.end, self._next_segment, scan.checksum or 0
        )

    def _fill(self, wal: WalFolder) -> bool:
        """Create the segments that were given up with a disk, empty: each number that was used has
        a file. Returns whether one was missing."""
        epoch, first, last = self.manifest.given_up
        there = {segment.number for segment in wal.segments}
        missing = {*range(max(first, self.manifest.archived[1] + 1), last + 1)} - there
        if not last or not missing:
            return False
        self._claim(False)
        for number in sorted(missing):
            path = layout.wal_path(self._identity.node_folder, epoch, number)
            with suppress(AlreadyExists):  # our own create, its answer was lost
                self._store.create(path, self._empty(SegmentFile(epoch, number, path, 0)))
        return True

    def _loses(self, tail: Verdict) -> bool:
        """Whether a damaged end may have been a frame that counted: whole ones follow it, or a
        snapshot has it, or copies of it may count on this log. Otherwise a commit was interrupted,
        or no reader can tell the difference."""
        has_copies = bool(self._context.address)
        return has_copies or bool(tail.frames_after) or self.covered > self._scan.end

    def _refusal(self, scan: LogScan, damage: Damage) -> LogError:
        verdict = damage.verdict
        if verdict.is_tail:
            advice = (
                "recovery_mode='absolute' accepts only a whole log; open with 'torn-tail' to cut "
                "off what is incomplete"
            )
            return CorruptLog(verdict.place.path, verdict.end, verdict.what, advice)
        frames, records, last = scan.count(damage)
        return verdict.error(
            "no whole frame follows it"
            if last is None
            else f"{frames} whole frames with {records} entries follow it, up to {last}"
        )

    # ---- changing the log ----

    def _trim(self, *, gives_up: bool = False) -> None:
        if not gives_up and not self._files and self.manifest.checkpoint == START:
            return  # the log is empty
        self._claim(gives_up)
        for path in self._copied:  # an earlier recovery died after its copy
            self._store.delete(path)
        if self._store.capabilities.durable_append:
            for path, end in self._scan.loose:
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
        path = layout.recovered_path(wal, self.manifest.epoch + 1)
        try:
            self._store.create(path, data)
        except AlreadyExists:
            if self._store.read(path) != data:  # equal: our own create, its answer was lost
                raise
        self._delete(wal)

    def _delete(self, wal: str) -> None:
        """From the own disk and the root, if the root has nothing better."""
        demand_no_better_copy(self._context.own_disk, wal, self.manifest.directory)
        self._store.delete(wal)

    def _cut(self, file: SegmentFile, verdict: Verdict) -> RecoveredState:
        size = self._store.size(file.path)
        lost = None
        if verdict.frames_after:
            put_aside = self._put_aside([file])
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
                put_aside,
            )
            self._log_lost(lost)
        if verdict.status == HEADER_TORN:
            self._delete(file.path)  # it never had a frame, and no manifest names it
            self._next_segment = file.number
        elif self._store.capabilities.durable_append:
            self._copy_newest(verdict.end)
        return self._result(
            RecoveryReport(
                False,
                self._scan.frames,
                self._scan.records,
                file.path,
                size - verdict.end,
                lost,
            )
        )

    def _give_up(self, damage: Damage) -> RecoveredState:
        files, verdict = self._files[damage.file :], damage.verdict
        put_aside = self._put_aside(files)
        frames, records, last = self._scan.count(damage)
        size = sum(self._store.size(file.path) for file in files) - verdict.end
        path = layout.original_path(verdict.place.path)
        lost = Lost(
            path, verdict.end, verdict.what, verdict.lost, last, frames, records, size, put_aside
        )
        # The damaged one last: until then, a crash leaves a log with the same damage. Every used
        # number gets a file, including numbers that are missing after the damage.
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
        self._log_lost(lost)
        return self._result(
            RecoveryReport(False, self._scan.frames, self._scan.records, path, size, lost)
        )

    def _shuts_out(self, file: SegmentFile) -> bool:
        """Whether this is an empty object that fences a replaced writer (`layout.fences`): its
        name must stay in use, and it has no entries to lose."""
        if self._store.capabilities.durable_append:
            return False
        try:
            reader = SegmentReader(self._store, file.path)
        except LogError:
            return False
        return not reader.header.previous_checksum and reader.first == self._store.size(file.path)

    def _missing(self, first: Place, files: Sequence[SegmentFile]) -> list[SegmentFile]:
        """Segments from `first` to the log's last that have no file, each in the epoch of its
        predecessor: with an older one it would count as begun by a replaced writer."""
        there = {file.number: file for file in files}
        last = max([first.number, *there, self._scan.known()])
        epoch, missing = first.epoch, []
        for number in range(first.number, last + 1):
            if number in there:
                epoch = there[number].epoch
            else:
                missing.append(
                    SegmentFile(
                        epoch, number, layout.wal_path(self._identity.node_folder, epoch, number), 0
                    )
                )
        return missing

    def _put_aside(self, files: Sequence[SegmentFile]) -> tuple[str, ...]:
        paths = []
        for file in files:
            path = layout.lost_path(self._identity.node_folder, self.manifest.epoch + 1, file.path)
            try:
                self._store.create(path, self._store.read(file.path))
            except AlreadyExists:
                pass  # of an earlier recovery that did not finish
            paths.append(path)
        return tuple(paths)

    def _empty(self, file: SegmentFile) -> bytes:
        identity = self._identity
        header = SegmentHeader(
            segment_id(self.manifest.epochs, file.epoch, self._context.randomness.token()),
            identity.namespace,
            identity.cluster,
            identity.node,
            file.epoch,
            file.number,
            0,
            self._context.clock.now_ms(),
            self.manifest.directory,
        )
        return sealed(self._context.key_ring, header, self._context.randomness)[0].encode()

    def _log_lost(self, lost: Lost) -> None:
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
