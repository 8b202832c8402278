"""The verdict on a segment: whole, the tail of a crash, or damage. Open, live readers, archive,
`verify` and `repair` all use it, so all of them have the same verdict on the same bytes.

The verdict depends on the segment's bytes and on three other things. Does a later segment follow (a
file that counts, or one that the manifest knows)? Does the checkpoint name a frame in it? Which
checksum of its last frame does the next segment's header have?

| status      | what is found                                                                      |
|-------------|------------------------------------------------------------------------------------|
| clean       | whole frames, then nothing or zeros                                                |
| torn-tail   | no frame here; no frame says that this place was synced; nothing follows, and the  |
|             | checkpoint is below                                                                |
| header-torn | the front of a header and zeros; nothing follows, and the manifest knows none yet  |
| corrupt     | any other place that is no frame, for example because bytes were cut out; any      |
|             | other header that is not whole; at a recovery, a frame whose checksum is right and |
|             | whose content is not entries                                                       |
| short       | the file ends between two frames (or inside its header), and the log continues     |
| foreign     | a segment of another log or log directory, or with another number, under this name |
| unsupported | a newer format version, or a frame of an unknown type                              |
| forged      | an encrypted frame whose checksum is right, and which was not sealed for this      |
|             | place                                                                              |

Missing or wrong keys are not a verdict but an `EncryptionError`: they say nothing about the bytes.

What each caller does. "Log error" is `CorruptLog` or `ShortLog`; the number is an exit code.

| status      | absolute | torn-tail     | point-in-time | live view, archive | verify         | repair            |
|-------------|----------|---------------|---------------|--------------------|----------------|-------------------|
| clean       | opens    | opens         | opens         | reads all          | clean, 0       | copied            |
| torn-tail   | refuses  | cuts          | cuts          | reads to there     | torn-tail, 0   | trimmed           |
| … with      | refuses  | cuts, puts    | cuts, puts    | reads to there,    | torn-tail, 0   | salvage keeps     |
| whole       |          | aside         | aside         | warns              |                | them, p.-i.-t.    |
| frames after|          |               |               |                    |                | does not          |
| header-torn | refuses  | deletes       | deletes       | reads nothing      | torn-tail, 0   | left out          |
| corrupt     | refuses  | refuses       | gives up from | log error          | corrupt, 3     | what is whole     |
|             |          |               | there         |                    |                |                   |
| short       | refuses  | refuses       | as corrupt    | log error          | corrupt, 3     | what is whole     |
| foreign     | refuses  | refuses       | as corrupt    | log error          | corrupt, 3     | emptied           |
| unsupported | refuses  | refuses       | refuses       | UnsupportedVersion | unsupported, 3 | refuses           |
| forged      | refuses  | refuses       | as corrupt    | Forged             | corrupt, 3     | what is whole     |

A torn-tail open scans from the checkpoint; the restore that follows finds damage below it.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from imap_wal import layout
from imap_wal.errors import (
    SEGMENT_ADVICE,
    CorruptLog,
    Forged,
    LogError,
    ShortLog,
    UnsupportedVersion,
)
from imap_wal.format import NOTHING_BEFORE, START, Frame, Position
from imap_wal.security.encryption_keys import Keys
from imap_wal.segment.reader import SegmentReader, is_header_torn
from storage_backends import NotFound, SegmentStore

CLEAN, TORN, HEADER_TORN, CORRUPT = "clean", "torn-tail", "header-torn", "corrupt"
SHORT, FOREIGN, UNSUPPORTED, FORGED = "short", "foreign", "unsupported", "forged"
HISTORY_ADVICE = (
    "put back the segments and the manifests of one copy, or write a repaired copy of the log "
    "with `imap-wal repair`"
)
INCOMPLETE = (
    "an incomplete last commit: a commit that a crash interrupted was not acknowledged, but damage "
    "to an acknowledged last commit looks the same"
)
"""What is known about a torn tail without whole frames after it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A segment's place in its log. `directory`: the log's, "" if unknown. `followed`: a later
    segment counts. `checkpoint`, `newest`: from the node's manifest, which a segment is entered
    into after its header is safe and before its first frame. `epoch_ids`: those that its epoch may
    have, none if unknown (`imap_wal.manifest.epochs`)."""

    path: str
    directory: str
    epoch: int
    number: int
    followed: bool = False
    checkpoint: Position = START
    newest: int = 0
    epoch_ids: tuple[str, ...] = ()

    @property
    def known(self) -> int:
        """Number of the newest segment in the manifest."""
        return max(self.newest, self.checkpoint.segment)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`end`: where the whole frames end and the damage begins; 0 if the header is not whole.
    `size`: the file's. `frames_after` counts whole frames after the damage, `records_after` their
    entries, `last_after` is the offset of the last one (0 if the header is damaged)."""

    status: str
    place: Place
    end: int
    size: int = 0
    what: str = ""
    frames_after: int = 0
    records_after: int = 0
    last_after: int = 0
    advice: str = SEGMENT_ADVICE

    @property
    def is_tail(self) -> bool:
        """Whether the next open cuts it: nothing shows that a lost byte was synced (see
        `INCOMPLETE`)."""
        return self.status in (TORN, HEADER_TORN)

    @property
    def is_damage(self) -> bool:
        return self.status != CLEAN and not self.is_tail

    @property
    def lost(self) -> Position:
        """The first position that cannot be read."""
        return Position(self.place.epoch, self.place.number, self.end, 0)

    def error(self, more: str = "") -> LogError:
        """The error for a caller that cannot continue. `more` follows the first lost position."""
        kinds: dict[str, type[LogError]] = {
            SHORT: ShortLog,
            UNSUPPORTED: UnsupportedVersion,
            FORGED: Forged,
        }
        changed = ": bytes in the middle of the log have changed" if self.status == CORRUPT else ""
        reason = f"{self.what}{changed}; first lost position {self.lost}{more and f', {more}'}"
        if self.status == UNSUPPORTED:
            reason = self.what  # nothing is lost
        return kinds.get(self.status, CorruptLog)(self.place.path, self.end, reason, self.advice)


def judge(
    store: SegmentStore,
    place: Place,
    visit: Callable[[Frame], object],
    said: Callable[[], int] = lambda: 0,
    *,
    keys: Keys | None,
) -> tuple[Verdict, SegmentReader | None]:
    """Read a segment from start to end; returns the verdict. `visit` gets every whole frame before
    the damage. `said`: see `at_end`. `keys`: None: encrypted frames are not decrypted, so none is
    found to be forged. The reader is None without a header.
    Raises `EncryptionError`."""
    reader = begin(store, place)
    if isinstance(reader, Verdict):
        return reader, None
    if keys is not None:
        reader.check_keys(keys)
    try:
        for frame in reader.whole_frames() if keys is None else reader.frames(keys):
            visit(frame)
    except UnsupportedVersion as error:
        return _unsupported(place, error), reader
    except Forged as error:
        return forged(place, error, store.size(place.path)), reader
    return at_end(reader, place, said), reader


def begin(store: SegmentStore, place: Place, attempts: int = 2) -> SegmentReader | Verdict:
    """A reader of the segment, or the verdict if its header is not readable. Reads the header again
    if it was perhaps being written. Raises `NotFound`."""
    try:
        reader = SegmentReader(store, place.path)
    except UnsupportedVersion as error:
        return _unsupported(place, error)
    except LogError as error:
        size = store.size(place.path)
        if not _followed(place) and place.known < place.number:
            if is_header_torn(store, place.path):
                reason = "the file ends inside its header: a crash before its first commit"
                return Verdict(HEADER_TORN, place, 0, size, reason)
            if attempts > 1:
                return begin(store, place, attempts - 1)
        status = SHORT if isinstance(error, ShortLog) else CORRUPT
        return Verdict(status, place, 0, size, error.what)
    header = reader.header
    if not _at_home(reader, place.directory):
        reason = (
            f"this is segment {header.epoch}-{header.number} of node {header.node!r} of "
            f"{header.namespace}/"
            f"{header.cluster}, log directory {header.directory}"
        )
        if layout.original_wal_path(header) != layout.original_path(place.path):
            reason += ", under another name: it was copied here or renamed"
        else:
            reason += f", but this log has the directory {place.directory}: it was copied here"
        advice = (
            "move it back to its place and name, and restore the file that belongs here from a copy"
        )
        return Verdict(FOREIGN, place, 0, store.size(place.path), reason, advice=advice)
    if place.epoch_ids and header.epoch_id not in place.epoch_ids:
        reason = (
            f"this is a segment of epoch {header.epoch} with id {header.epoch_id}, but in the "
            f"manifest of this log that epoch has id {place.epoch_ids[-1]}: the segment is from "
            "another copy of the log, which was written too"
        )
        return Verdict(FOREIGN, place, 0, store.size(place.path), reason, advice=HISTORY_ADVICE)
    return reader


def at_end(reader: SegmentReader, place: Place, said: Callable[[], int] = lambda: 0) -> Verdict:
    """The verdict after `reader` has read all whole frames. `said` returns the next segment's
    checksum of this one's last frame (0: unknown); it is called only if that decides."""
    tail = reader.tail()
    after = tail.frames_after, tail.records_after, tail.last_after
    named = (place.epoch, place.number) == place.checkpoint[
        :2
    ] and tail.end <= place.checkpoint.frame
    if tail.status == "corrupt" or (tail.status == "torn-tail" and (_followed(place) or named)):
        reason = f"a damaged frame ({tail.frames_after} whole frames after it)"
        if tail.cut_bytes:
            reason = (
                f"{tail.cut_bytes:,} bytes were cut out: a later, synced frame is in their place"
            )
        if named:
            reason = (
                "the frame that the manifest names as the last good one is damaged or cut: "
                f"{reason}"
            )
        return Verdict(CORRUPT, place, tail.end, tail.size, reason, *after)
    if named:
        reason = "the frame that the manifest names as the last good one is missing"
        return Verdict(SHORT, place, tail.end, tail.size, reason)
    if tail.status == "torn-tail":
        reason = INCOMPLETE
        if tail.frames_after:
            reason = (
                f"damage above the last synced position, with {tail.frames_after} whole frames "
                "after it: a power loss"
            )
        return Verdict(TORN, place, tail.end, tail.size, reason, *after)
    checksum = reader.continues_from
    if place.followed and checksum is not None and not continues(checksum, said()):
        return cut_end(place, tail.end, tail.size)
    return Verdict(CLEAN, place, tail.end, tail.size)


def cut_end(place: Place, end: int, size: int = 0) -> Verdict:
    """The verdict on a segment whose successor continues from a later frame than its last."""
    reason = (
        "the next segment continues from a later frame: the end of this one is missing, or it "
        "was replaced"
    )
    return Verdict(SHORT, place, end, size or end, reason)


def continues(before: int | None, said: int) -> bool:
    """Whether a segment whose header has the checksum `said` of the frame before it can follow a
    frame with the checksum `before`; 0 or `NOTHING_BEFORE`: no frame is before, None: unknown."""
    return before is None or said in (0, NOTHING_BEFORE, before)


def _at_home(reader: SegmentReader, directory: str) -> bool:
    """Whether a segment is of the log with this directory ("": not known), and has its own name."""
    header = reader.header
    return layout.original_wal_path(header) == layout.original_path(reader.path) and directory in (
        "",
        header.directory,
    )


def said_by(store: SegmentStore, directory: str, later: Iterable[str]) -> int:
    """The checksum of the last frame before the following segments, from their headers; 0 if
    unknown. One without frames may not know it; then the next one is read. `directory`: see
    `Place`."""
    for path in later:
        try:
            reader = SegmentReader(store, path)
            if not _at_home(reader, directory):
                return 0
            if reader.header.previous_checksum or next(reader.whole_frames(), None) is not None:
                return reader.header.previous_checksum
        except (LogError, NotFound):
            return 0  # that segment has a verdict of its own
    return 0


def _followed(place: Place) -> bool:
    return place.followed or place.known > place.number


def forged(place: Place, error: Forged, size: int) -> Verdict:
    """The verdict for an encrypted frame that the right key does not open."""
    return Verdict(FORGED, place, error.offset, size, error.what, advice=error.advice)


def _unsupported(place: Place, error: LogError) -> Verdict:
    advice = "upgrade imap-wal: a newer version wrote it; the file was not changed"
    return Verdict(UNSUPPORTED, place, error.offset, 0, error.what, advice=advice)
