"""Reads every byte of a log and says, file by file, what is whole and what is not.

    plan    what listings and manifests say (files that are missing), and a `Unit` for each file
    check   reads the units, newest first, until the time is over

`imap_wal.segment.verdict` has the statuses of a segment. A finding has one of four:

    clean        whole
    torn-tail    a torn tail, or a header that was never whole: a crash; nothing acknowledged is
                 lost
    corrupt      bytes changed, missing or of another log; `first_lost` is the first position that
                 cannot be read
    unsupported  written by a newer version
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import google_crc32c

from imap_wal import layout
from imap_wal.clock import Clock, SystemClock, SystemRandomness
from imap_wal.encryption import keys_of
from imap_wal.entry import decoded
from imap_wal.errors import CorruptLog, EncryptionError, LogError, UnsupportedVersion
from imap_wal.format import OF_ENTRIES, START, Frame, Home, Position
from imap_wal.inspect import older_manifests
from imap_wal.inspect.advice import MISSING, advice
from imap_wal.inspect.inventory import ClusterView, NodeView
from imap_wal.manifest import key_checks, missing
from imap_wal.manifest.cluster import cluster_manifests
from imap_wal.manifest.node import node_manifests
from imap_wal.parquet.salvage import survey_file
from imap_wal.read.file_scan import ARCHIVE, SNAPSHOT, FileScan
from imap_wal.read.parquet_scan import read_archive, read_snapshot
from imap_wal.read.scan import entries_of
from imap_wal.segment import verdict as verdicts
from imap_wal.segment.listing import SegmentFile
from imap_wal.segment.salvage import last_lost, scan_segment
from imap_wal.segment.verdict import FOREIGN, SHORT, UNBORN, Place, Verdict, judge, said_by
from storage_backends import NotFound, SegmentStore

CLEAN, TORN, CORRUPT, UNSUPPORTED = (
    verdicts.CLEAN,
    verdicts.TORN,
    verdicts.CORRUPT,
    verdicts.UNSUPPORTED,
)
ADVICE = "bring the file back from a copy, or write a repaired copy of the log: imap-wal repair"
CUT = "the next start cuts it off"
NAMED_MAX = 100
"""How many invalid entries of a segment a finding names."""
CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding about one file. `offset`: of the first byte that is not whole. `first_lost`,
    `last_lost`: positions of the first and last entry that cannot be read. `frames_after`: whole
    frames after the damage. `lost_records`: how many entries cannot be read. None: unknown."""

    file: str
    kind: str
    status: str
    bytes: int = 0
    records: int = 0
    offset: int | None = None
    first_lost: str | None = None
    last_lost: str | None = None
    frames_after: int | None = None
    lost_records: int | None = None
    what: str = ""
    advice: str = ""
    unopened: bool = False
    """The file is encrypted and its key is missing: only its checksums were verified."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Unit:
    """One file to read. `age`: how many of its kind and node are newer."""

    file: str
    bytes: int
    kind: str
    age: int
    run: Callable[[Deadline], Finding]


class OutOfTime(Exception):
    """The deadline has passed: the file being read does not count as checked."""


class Deadline:
    """When to stop; `seconds` None: never."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock.monotonic() + seconds

    def check(self) -> None:
        """`OutOfTime` if it has passed."""
        if self._end is not None and self._clock.monotonic() >= self._end:
            raise OutOfTime


def check(
    units: Iterable[Unit], tell: Callable[[str], None], deadline: Deadline
) -> tuple[list[Finding], list[Unit]]:
    """Read the units; return the findings, and the units that the time did not suffice for. Newest
    segments first, over all nodes: the next start scans them, and no archive or snapshot has their
    entries yet. Then archives, then snapshots, whose entries are the oldest."""
    order = {"segment": 0, ARCHIVE: 1, SNAPSHOT: 2}
    left = sorted(units, key=lambda unit: (order[unit.kind], unit.age))
    findings: list[Finding] = []
    try:
        for unit in left:
            deadline.check()
            tell(unit.file)
            findings.append(unit.run(deadline))
    except OutOfTime:
        pass
    return findings, left[len(findings) :]


def plan(
    store: SegmentStore, view: ClusterView, wants_node: Callable[[str], bool]
) -> tuple[list[Finding], list[Unit]]:
    """Findings that need no reading of a cluster's files, and the files to read. A missing node is
    a finding about its folder."""
    if view.of_no_manifest:
        whose = "the cluster" if view.logs else "the cluster and no log of a node"
        findings = [_no_manifest(view.folder, whose, view.of_no_manifest)]
    else:
        findings = [
            _manifest(
                f"{view.folder}/manifest/{view.manifest_number:010d}.json",
                older_manifests.of_cluster(view)[1],
            )
        ]
    wrong = key_checks.differing(keys_of(store).ring, view.manifest.keys)
    if wrong:
        newest = f"{view.folder}/manifest/{view.manifest_number:010d}.json"
        advice_of_keys = "bring back the key that had this id; a new key needs a new id"
        findings.append(
            Finding(
                newest,
                "manifest",
                CORRUPT,
                what=key_checks.what_differs(wrong),
                advice=advice_of_keys,
            )
        )
    older = older_manifests.of_claims(view)
    if view.claims_number or older:
        findings.append(_manifest(f"{view.claims_folder}/{view.claims_number:010d}.json", older))
    units: list[Unit] = []
    for name, snapshot in sorted(view.manifest.snapshots.items()):
        for path, wanted in zip_longest(snapshot.files, snapshot.checksums, fillvalue=0):
            piece = FileScan(SNAPSHOT, "", str(path), name)
            size = snapshot.bytes // len(snapshot.files)
            units.append(
                Unit(
                    piece.path,
                    size,
                    SNAPSHOT,
                    0,
                    partial(_parquet, store, piece, None, int(wanted)),
                )
            )
    without = {node.name for node in view.nodes if node.of_no_manifest}
    others = {
        node.name: other
        for node in view.nodes
        if wants_node(node.name) and (other := older_manifests.other_log(store, view, node))[0]
    }
    for node in view.nodes:
        if node.name in others:
            what, way_out = others[node.name]
            what += (
                f"; its {len(node.wal.segments)} segments and {_archives(node)} archives are not "
                "read"
            )
            findings.append(Finding(node.folder, "node", CORRUPT, what=what, advice=way_out))
    renamed = {node.manifest.directory for node in view.nodes if node.name in others}
    for name in view.missing_nodes:
        if (
            wants_node(name)
            and name not in without | others.keys()
            and view.manifest.nodes[name] not in renamed
        ):
            what = (
                f"node {name!r} is registered with log directory {view.manifest.nodes[name]}, "
                "which is not here"
            )
            findings.append(
                Finding(f"{view.folder}/nodes/{name}", "node", CORRUPT, what=what, advice=MISSING)
            )
    for node in view.nodes:
        if wants_node(node.name) and node.name not in others:
            findings += _plan_node(store, view, node, units)
    return findings, units


def foreign_files(view: ClusterView, wants_node: Callable[[str], bool]) -> list[str]:
    """Files in nodes' folders that imap-wal did not write; they are ignored."""
    known = {archive.path for node in view.nodes for archive in node.manifest.archives}
    found = []
    for node in view.nodes:
        if not wants_node(node.name):
            continue
        segments = {segment.path for segment in node.segments}
        for file in node.files:
            rest = file.path.removeprefix(f"{node.folder}/")
            ours = (
                file.path in segments | known
                or rest == "writer.lock"
                or rest.startswith("lost/")
                or (rest.startswith("manifest/") and rest.endswith(".json"))
            )
            if not (
                ours
                or rest.endswith((".fenced", ".writer", ".log"))
                or (rest.startswith("archive/") and rest.endswith(".parquet"))
            ):
                found.append(file.path)
    return found


def _plan_node(
    store: SegmentStore, view: ClusterView, node: NodeView, units: list[Unit]
) -> Iterator[Finding]:
    manifest = node.manifest
    if node.of_no_manifest:
        yield _no_manifest(
            node.folder,
            f"node {node.name!r}",
            f"{len(node.wal.segments)} segments and {_archives(node)} archives",
        )
    else:
        yield _manifest(
            f"{node.folder}/manifest/{node.manifest_number:010d}.json",
            older_manifests.of_node(node, manifest, view.manifest, view.opened).newer,
        )
    for age, archive in enumerate(
        sorted(manifest.archives, key=lambda archive: archive.last, reverse=True)
    ):
        piece = FileScan(
            ARCHIVE,
            node.name,
            archive.path,
            archive.map,
            manifest.directory,
            first=archive.first,
            last=archive.last,
        )
        units.append(
            Unit(
                archive.path,
                archive.bytes,
                ARCHIVE,
                age,
                partial(_parquet, store, piece, archive.records, archive.checksum),
            )
        )
    misplaced = older_manifests.misplaced_wal(node)
    if misplaced:
        yield Finding(f"{node.folder}/wal", "node", CORRUPT, what=misplaced, advice=MISSING)
        return
    for segment in node.wal.void:
        yield Finding(
            segment.path,
            "segment",
            CLEAN,
            segment.bytes,
            what="begun by a writer that had been replaced: nothing in it counts",
        )
    for segment in node.wal.copied:
        yield Finding(
            segment.path,
            "segment",
            CLEAN,
            segment.bytes,
            what="a recovery made a copy of it, which counts instead",
        )
    living = node.wal.segments
    # Without a manifest, those before the first one may have been archived.
    expected = living[0].number if node.of_no_manifest and living else manifest.archived[1] + 1
    for index, segment in enumerate(living):
        if segment.number > expected:
            yield from _missing(
                node,
                segment.epoch,
                range(expected, segment.number),
                "this segment is missing: the log continues after it",
            )
        expected = segment.number + 1
        later = living[index + 1 :]
        units.append(
            Unit(
                segment.path,
                segment.bytes,
                "segment",
                len(later),
                partial(_segment, store, view, node, segment, later),
            )
        )
    missing = range(expected, max(manifest.checkpoint.segment, manifest.newest) + 1)
    yield from _missing(
        node,
        manifest.checkpoint.epoch,
        missing,
        "this segment is missing: the manifest refers to its entries",
    )


def _manifest(path: str, newer: str) -> Finding:
    """`newer`: why the files next to it are newer."""
    if not newer:
        return Finding(path, "manifest", CLEAN)
    what = f"this manifest is older than the files beside it ({newer})"
    return Finding(path, "manifest", CORRUPT, offset=0, what=what, advice=ADVICE)


def _no_manifest(folder: str, whose: str, there: str) -> Finding:
    what = f"there is no manifest of {whose} here, but {there}"
    return Finding(f"{folder}/manifest", "manifest", CORRUPT, what=what, advice=ADVICE)


def _archives(node: NodeView) -> int:
    return sum(layout.parse_archive_path(file.path) is not None for file in node.files)


def _missing(node: NodeView, epoch: int, numbers: range, what: str) -> Iterator[Finding]:
    if numbers:
        lost = str(Position(epoch, numbers.start, 0, 0))
        more = f" ({len(numbers)} in a row)" if len(numbers) > 1 else ""
        file = f"{node.folder}/wal/*-{numbers.start:08d}.wal"
        yield Finding(
            file, "segment", CORRUPT, offset=0, first_lost=lost, what=f"{what}{more}", advice=ADVICE
        )


class _Read(NamedTuple):
    """A segment that was read. `wrong`: its entries with invalid content. `unread`: why it was not
    decrypted."""

    verdict: Verdict
    records: int
    wrong: list[str]
    unread: EncryptionError | None


def _read_segment(
    store: SegmentStore,
    node: NodeView,
    segment: SegmentFile,
    later: Sequence[SegmentFile],
    deadline: Deadline,
) -> _Read:
    manifest = node.manifest
    place = Place(
        segment.path,
        manifest.directory,
        segment.epoch,
        segment.number,
        bool(later),
        manifest.checkpoint,
        manifest.newest,
    )
    # Without a gap.
    paths = [
        each.path for index, each in enumerate(later) if each.number == segment.number + 1 + index
    ]
    records, ended_at = 0, -1
    wrong: list[str] = []
    unread: EncryptionError | None = None

    def count(frame: Frame) -> None:
        nonlocal records
        deadline.check()
        records += frame.count if frame.kind in OF_ENTRIES else 0

    def visit(frame: Frame) -> None:
        count(frame)
        if frame.kind in OF_ENTRIES:
            wrong.extend(_wrong_entries(segment, frame))

    while True:
        records = 0
        wrong.clear()
        try:
            verdict, _ = judge(
                store, place, visit, partial(said_by, store, manifest.directory, paths)
            )
        except EncryptionError as error:
            unread, records = error, 0
            verdict, _ = judge(
                store,
                place,
                count,
                partial(said_by, store, manifest.directory, paths),
                opened=False,
            )
        if verdict.status == CLEAN or later or verdict.end == ended_at:
            return _Read(verdict, records, wrong, unread)
        # Perhaps a commit under way: a writer continues, but damage does not move.
        ended_at = verdict.end


def _segment(
    store: SegmentStore,
    view: ClusterView,
    node: NodeView,
    segment: SegmentFile,
    later: Sequence[SegmentFile],
    deadline: Deadline,
) -> Finding:
    found = Finding(segment.path, "segment", CLEAN, segment.bytes)
    try:
        read = _read_segment(store, node, segment, later, deadline)
    except NotFound:
        return replace(found, bytes=0, what="archived while it was being verified")
    verdict, records, wrong = read.verdict, read.records, read.wrong
    if read.unread is not None and verdict.status in (CLEAN, TORN, CORRUPT):
        return _not_opened(found, read.unread, verdict, records)
    if verdict.status == CLEAN and wrong:
        advice = (
            "write a copy of the log without such an entry: imap-wal repair --drop-entry POSITION"
        )
        more = [f"and {len(wrong) - NAMED_MAX} more"] if len(wrong) > NAMED_MAX else []
        return replace(
            found,
            status=CORRUPT,
            records=records,
            what="; ".join(wrong[:NAMED_MAX] + more),
            advice=advice,
        )
    if verdict.status == CLEAN:
        return replace(found, records=records)
    found = replace(
        found,
        offset=verdict.end,
        first_lost=str(verdict.lost),
        what=verdict.what,
        advice=verdict.advice,
    )
    if verdict.status == UNSUPPORTED:
        return replace(found, status=UNSUPPORTED)
    if verdict.status == FOREIGN:
        return replace(found, status=CORRUPT)
    if verdict.is_tail:
        found = replace(found, status=TORN, advice=CUT)
        return (
            found
            if verdict.status == UNBORN
            else _lost(found, segment, store, view.home(node, segment))
        )
    found = replace(found, status=CORRUPT, advice=ADVICE)
    if verdict.status == SHORT and verdict.end:
        named = node.manifest.checkpoint
        last = str(named) if named[:2] == (segment.epoch, segment.number) else None
        return replace(found, records=records, last_lost=last)
    return _lost(found, segment, store, view.home(node, segment))


def _not_opened(found: Finding, error: EncryptionError, verdict: Verdict, records: int) -> Finding:
    """For an encrypted file that the keys do not open. Without its key only its checksums were
    verified, and `what` says so. Another key under its id, or an unencrypted file where encryption
    is required, is a finding."""
    what = error.what
    if verdict.status != CLEAN:
        found = replace(
            found,
            offset=verdict.end,
            first_lost=str(verdict.lost),
            frames_after=verdict.frames_after,
        )
        what = f"{verdict.what}; {what}"
    if verdict.is_damage or not error.is_missing:
        return replace(found, status=CORRUPT, records=records, what=what, advice=error.advice)
    if verdict.is_tail:
        return replace(found, status=TORN, records=records, what=what, advice=CUT, unopened=True)
    return replace(found, records=records, what=what, unopened=True)


def _wrong_entries(segment: SegmentFile, frame: Frame) -> list[str]:
    """Invalid entries of an undamaged frame, with their positions. Only early versions wrote
    them."""
    try:
        decoded(frame.payload, frame.count)
    except ValueError:
        try:
            _, named = entries_of(
                segment.path, Position(segment.epoch, segment.number, frame.offset, 0), frame
            )
        except CorruptLog as error:
            return [error.what]
        return [
            f"the entry at {position} has an impossible number: {what}" for position, what in named
        ]
    return []


def _lost(found: Finding, segment: SegmentFile, store: SegmentStore, home: Home) -> Finding:
    """Adds the known facts about damaged frames. `records` are those that `repair` can read."""
    try:
        scan = scan_segment(store, segment.path, home)
    except EncryptionError as error:
        return replace(found, what=f"{found.what}; {error.what}")
    gaps = scan.gaps
    told = all(gap.records is not None for gap in gaps)
    last = last_lost(segment.epoch, segment.number, gaps[-1]) if gaps else None
    after = (
        sum(frame.offset >= gaps[0].start for frame in scan.frames) if gaps else len(scan.frames)
    )
    return replace(
        found,
        records=scan.records,
        last_lost=str(last) if last is not None else None,
        frames_after=after,
        lost_records=sum(gap.records or 0 for gap in gaps) if told else None,
    )


def _parquet(
    store: SegmentStore, piece: FileScan, records: int | None, wanted: int, deadline: Deadline
) -> Finding:
    """`wanted`: the manifest's checksum of the whole file, 0 if it has none."""
    found = Finding(piece.path, piece.kind, CORRUPT, advice=ADVICE)
    if piece.first > START:
        found = replace(
            found, first_lost=str(piece.first), last_lost=str(piece.last), lost_records=records
        )
    try:
        found = replace(found, bytes=store.size(piece.path))
        crc = 0
        with store.open_input(piece.path) as file:
            while wanted and (data := file.read(CHUNK_BYTES)):
                crc = google_crc32c.extend(crc, data)
                deadline.check()
        if crc != wanted:
            what = "the file does not match the checksum that the manifest has of it"
            return _readable(store, replace(found, offset=0, what=what), piece, records)
        count = 0
        for batch in (
            read_archive(store, piece) if piece.kind == ARCHIVE else read_snapshot(store, piece)
        ):
            count += len(batch.rows)
            deadline.check()
    except NotFound:
        lost = _still_named(store, piece)
        if lost is None:
            what = "merged or removed while it was being verified"
            return Finding(piece.path, piece.kind, CLEAN, what=what)
        return replace(found, offset=0, what=lost.what)
    except EncryptionError as error:
        if wanted and error.is_missing:
            return Finding(
                piece.path,
                piece.kind,
                CLEAN,
                found.bytes,
                records or 0,
                what=error.what,
                unopened=True,
            )
        return replace(found, offset=0, what=error.what, advice=error.advice)
    except LogError as error:
        said = damaged(piece.path, piece.kind, found.bytes, error, None)
        return _readable(
            store,
            replace(
                found, status=said.status, offset=said.offset, what=said.what, advice=said.advice
            ),
            piece,
            records,
        )
    if records is not None and count != records:
        return replace(
            found,
            records=count,
            lost_records=records - count,
            what=f"{count} records, the manifest says {records}",
        )
    return Finding(piece.path, piece.kind, CLEAN, found.bytes, count)


def _still_named(store: SegmentStore, piece: FileScan) -> LogError | None:
    """Why a missing file is damage: the manifest, read again, still names it. None if it does
    not."""
    folders = piece.path.split("/")
    clock, randomness = SystemClock(), SystemRandomness()
    if piece.kind == ARCHIVE:
        manifests = node_manifests(store, "/".join(folders[:4]), clock, randomness)
        return missing.archive(piece.path, piece.node, manifests.read()[1])
    clusters = cluster_manifests(store, "/".join(folders[:2]), clock, randomness)
    return missing.snapshot_file(piece.path, clusters.read()[1])


def _readable(store: SegmentStore, found: Finding, piece: FileScan, records: int | None) -> Finding:
    """Adds what `repair` can read of a damaged file."""
    try:
        kept = survey_file(
            store, piece.path, log=piece.directory if piece.kind == ARCHIVE else None
        )
    except EncryptionError as error:
        return replace(found, what=f"{found.what}; {error.what}")
    return replace(
        found,
        records=kept.records,
        lost_records=kept.lost if records is None else records - kept.records,
    )


def damaged(file: str, kind: str, size: int, error: LogError, lost: str | None) -> Finding:
    """The finding for an error of a reader."""
    status = UNSUPPORTED if isinstance(error, UnsupportedVersion) else CORRUPT
    return Finding(
        file, kind, status, size, 0, error.offset, lost, what=error.what, advice=advice(error)
    )
