"""Reads every byte of a log and reports for each file whether it is whole.

    plan    finds missing files in listings and manifests; makes a `Unit` for each other file
    check   reads the units, newest first, until the time is over: `segment_check`, `parquet_check`
    order   looks for keys that two nodes claim
    quick   what `verify --quick` and `doctor` report: `plan`, and `order` unless the log is large

A finding has one of these statuses (`imap_wal.segment.verdict` has those of a segment):

    clean        whole
    torn-tail    a torn tail, or a torn header: the next open cuts it off
    corrupt      bytes changed, missing or of another log; `first_lost` is the first position that
                 cannot be read
    unsupported  written by a newer version
    conflict     two nodes claim one change; the bytes are whole
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.errors import LogError
from imap_wal.format import Position
from imap_wal.inspect import older_manifests
from imap_wal.inspect.advice import MISSING
from imap_wal.inspect.finding import (
    ADVICE,
    CLEAN,
    CONFLICT,
    CORRUPT,
    TORN,
    Deadline,
    Finding,
    OutOfTime,
    Unit,
    damaged,
)
from imap_wal.inspect.segment_check import check_parquet, check_segment
from imap_wal.manifest import key_checks
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.missing import SEGMENT_MISSING
from imap_wal.manifest.older import NO_MANIFEST_ADVICE, OTHER_COPY_ADVICE, other_copy
from imap_wal.manifest.reader_manifest import ReaderManifest
from imap_wal.manifest.readers import examined
from imap_wal.manifest.snapshots import Snapshot, lists_of
from imap_wal.manifest.store import manifest_number
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SNAPSHOT, FileScan
from imap_wal.read.newest.rivals import ADVICE as RESOLVE
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.rewrite import conflicts
from storage_backends import NotFound

ORDER_BYTES_MAX = 1024**3
"""In a larger log, only a full `verify` looks for conflicts of order: that reads all files."""


def check(
    units: Iterable[Unit], tell: Callable[[str], None], deadline: Deadline
) -> tuple[list[Finding], list[Unit]]:
    """Read the units. Returns the findings, and the units that were not read because the time was
    over. Newest segments first, over all nodes: the next start scans them, and their entries are in
    no archive or snapshot yet. Then archives, then snapshots, whose entries are the oldest."""
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


class Quick(NamedTuple):
    """What is found without reading the files. `unread`: those files. `unordered`: why conflicts of
    order were not looked for; "" if they were, or if only one node writes."""

    findings: list[Finding]
    unread: list[Unit]
    unordered: str


def quick(
    context: Context, view: ClusterState, wants_node: Callable[[str], bool] | None = None
) -> Quick:
    """What listings and manifests show; without a newest manifest, only that. `wants_node`: which
    nodes are examined; None: all, and conflicts of order too. Raises `StorageError`."""
    if view.lost:
        newest = [errors[0] for errors in view.lost.values()]
        return Quick([damaged(error.file, "manifest", 0, error, None) for error in newest], [], "")
    findings, units = plan(context, view, wants_node or (lambda _: True))
    if wants_node is not None or len(conflicts.writers(view.manifest)) < 2:
        return Quick(findings, units, "")
    if any(is_problem(finding) for finding in findings):
        return Quick(findings, units, "not checked: the log is damaged")
    size = view.snapshot_bytes + sum(node.wal_bytes + node.archive_bytes for node in view.all_nodes)
    if size > ORDER_BYTES_MAX:
        return Quick(findings, units, f"not checked: that would read {size / 1024**3:.1f} GiB")
    try:
        findings += order(context, view)
    except NotFound:
        return Quick(findings, units, "not checked: files changed meanwhile")
    except LogError as error:
        findings.append(damaged(error.file, "order", 0, error, None))
    return Quick(findings, units, "")


def order(
    context: Context, view: ClusterState, check: Callable[[], None] = lambda: None
) -> list[Finding]:
    """Keys that two nodes claim. If several nodes write, all files are read. `check` may raise.
    Raises `LogError`, and `NotFound` if files changed meanwhile."""
    log = ClusterLog.of(context, view)
    texts = conflicts.found(log, check=check)
    return [Finding(view.folder, "order", CONFLICT, what=text, advice=RESOLVE) for text in texts]


def is_problem(finding: Finding) -> bool:
    """Whether `verify` and `doctor` end with exit code 3 because of it."""
    return finding.status not in (CLEAN, TORN)


def plan(
    context: Context, view: ClusterState, wants_node: Callable[[str], bool]
) -> tuple[list[Finding], list[Unit]]:
    """The findings that do not require reading a cluster's files, and the files to read. A missing
    node is a finding about its folder."""
    readers, damaged_readers = examined(context.store, view.folder)
    findings = [*_plan_manifests(context, view, damaged_readers), *_part_lists(view)]
    units = [*_snapshot_units(context, view, readers.values())]
    without = {node.name for node in view.all_nodes if node.of_no_manifest}
    others = {
        node.name: other
        for node in view.all_nodes
        if wants_node(node.name)
        and (other := older_manifests.other_log(context.store, view, node))[0]
    }
    for node in view.all_nodes:
        if node.name in others:
            problem, way_out = others[node.name]
            problem += (
                f"; its {len(node.wal.segments)} segments and {_archives(node)} archives are not "
                "read"
            )
            findings.append(Finding(node.folder, "node", CORRUPT, what=problem, advice=way_out))
    renamed = {node.manifest.directory for node in view.all_nodes if node.name in others}
    for name in view.missing_nodes:
        if (
            wants_node(name)
            and name not in without | others.keys()
            and view.manifest.nodes[name] not in renamed
        ):
            problem = (
                f"node {name!r} is registered with log directory {view.manifest.nodes[name]}, "
                "which is not here"
            )
            findings.append(
                Finding(
                    f"{view.folder}/nodes/{name}", "node", CORRUPT, what=problem, advice=MISSING
                )
            )
    for node in view.all_nodes:
        if wants_node(node.name) and node.name not in others:
            findings += _plan_node(context, view, node, units)
    return findings, units


def _plan_manifests(
    context: Context, view: ClusterState, readers: Mapping[str, LogError]
) -> Iterator[Finding]:
    """Findings about the manifests of the cluster: its own, the claims, and damaged ones of
    readers."""
    newest = f"{view.folder}/manifest/{view.number:010d}.json"
    if view.of_no_manifest:
        whose = "the cluster" if view.begun_logs else "the cluster and no log of a node"
        yield _no_manifest(view.folder, whose, view.of_no_manifest)
    else:
        yield _manifest(newest, older_manifests.of_cluster(view)[1])
    wrong = key_checks.differing(context.keys.key_ring, view.manifest.keys)
    if wrong:
        difference = key_checks.what_differs(wrong)
        way_out = "bring back the key that had this id; a new key needs a new id"
        yield Finding(newest, "manifest", CORRUPT, what=difference, advice=way_out)
    older = older_manifests.of_claims(view)
    if view.claims_number or older:
        yield _manifest(f"{view.claims_folder}/{view.claims_number:010d}.json", older)
    for error in readers.values():
        kind = "list" if layout.list_number(error.file) else "manifest"
        yield Finding(error.file, kind, CORRUPT, what=error.what, advice=error.advice)


def _part_lists(view: ClusterState) -> Iterator[Finding]:
    wrong = {damage.list: damage.error for damage in view.damaged_lists}
    for lists in lists_of(view.manifest.snapshots).values():
        for file in lists:
            path = layout.list_path(view.folder, file.name)
            if file in wrong:
                yield damaged(path, "list", file.bytes, wrong[file], None)
            else:
                yield Finding(path, "list", CLEAN, file.bytes)


def _snapshot_units(
    context: Context, view: ClusterState, readers: Iterable[ReaderManifest]
) -> Iterator[Unit]:
    """The files of the snapshots, and of former ones that are kept for readers, such as the
    history. A former one that is missing is no damage: the reader begins again, or the former
    moments are not known."""
    named: set[str] = set()
    for name, snapshot in sorted(view.snapshots.items()):
        named.update(snapshot.paths)
        yield from _units_of(context, name, snapshot)
    former = chain.from_iterable(reader.kept_snapshots(view.manifest) for reader in readers)
    for name, snapshot in former:
        with suppress(NotFound):  # the reader has other lists now
            for unit in _units_of(context, name, snapshot):
                if unit.file not in named and context.store.exists(unit.file):
                    named.add(unit.file)
                    yield unit


def _units_of(context: Context, name: str, snapshot: Snapshot) -> Iterator[Unit]:
    for file in snapshot.files:
        scan = FileScan(SNAPSHOT, "", file.path, name)
        check = partial(check_parquet, context, scan, None, file.checksum)
        yield Unit(file.path, file.size, SNAPSHOT, 0, check)


def foreign_files(view: ClusterState, wants_node: Callable[[str], bool]) -> list[str]:
    """Files in nodes' folders that imap-wal did not write. They are ignored."""
    archives = {archive.path for node in view.all_nodes for archive in node.archives}
    foreign = []
    for node in view.all_nodes:
        if not wants_node(node.name):
            continue
        segments = {segment.path for segment in node.all_segments}
        for file in node.files:
            rest = file.path.removeprefix(f"{node.folder}/")
            ours = (
                file.path in segments | archives
                or rest.partition("/")[0] == layout.LOCK  # a file, or a folder of leases
                or rest.startswith("lost/")
                or layout.list_number(file.path)
                or manifest_number(rest.removeprefix("manifest/")) is not None
            )
            if not (
                ours
                or rest.endswith((".fenced", ".writer", ".log"))
                or (rest.startswith("archive/") and rest.endswith(".parquet"))
            ):
                foreign.append(file.path)
    return foreign


def _plan_node(
    context: Context, view: ClusterState, node: NodeState, units: list[Unit]
) -> Iterator[Finding]:
    yield from _lists(node)
    manifest = replace(node.manifest, archives=Listed(node.archives))
    if node.of_no_manifest:
        yield _no_manifest(
            node.folder,
            f"node {node.name!r}",
            f"{len(node.wal.segments)} segments and {_archives(node)} archives",
        )
    else:
        yield _manifest(
            f"{node.folder}/manifest/{node.number:010d}.json",
            older_manifests.of_node(node, manifest, view.manifest, view.opened).newer,
        )
        other = other_copy(node.name, node.manifest, view.manifest, view.opened)
        if other:
            yield Finding(node.folder, "node", CORRUPT, what=other, advice=OTHER_COPY_ADVICE)
    units += _archive_units(context, node)
    yield from _plan_wal(context, view, node, units)


def _lists(node: NodeState) -> Iterator[Finding]:
    wrong = dict(node.damaged_lists)
    for file in node.manifest.archives.lists:
        path = layout.list_path(node.folder, file.name)
        if file in wrong:
            finding = damaged(path, "list", file.bytes, wrong[file], str(file.lowest))
            yield replace(finding, last_lost=str(file.highest))
        else:
            yield Finding(path, "list", CLEAN, file.bytes)


def _archive_units(context: Context, node: NodeState) -> Iterator[Unit]:
    """The archives of a node, the newest first."""
    for age, archive in enumerate(
        sorted(node.archives, key=lambda archive: archive.last, reverse=True)
    ):
        scan = FileScan(
            ARCHIVE,
            node.name,
            archive.path,
            archive.map,
            node.manifest.directory,
            first=archive.first,
            last=archive.last,
        )
        yield Unit(
            archive.path,
            archive.bytes,
            ARCHIVE,
            age,
            partial(check_parquet, context, scan, archive.records, archive.checksum),
        )


def _plan_wal(
    context: Context, view: ClusterState, node: NodeState, units: list[Unit]
) -> Iterator[Finding]:
    """Findings of the listing of segments. Appends each segment that counts to `units`."""
    manifest = node.manifest
    misplaced = node.misplaced
    elsewhere = bool(misplaced and manifest.address and not node.wal.logs)
    if elsewhere:
        yield Finding(f"{node.folder}/wal", "node", CLEAN, what=f"{misplaced}: not verified")
    elif misplaced:
        yield Finding(f"{node.folder}/wal", "node", CORRUPT, what=misplaced, advice=MISSING)
        return
    for segment, why in node.wal.left_out:
        yield Finding(segment.path, "segment", CLEAN, segment.bytes, what=why)
    living = node.wal.segments
    # Without a manifest, the segments before the first one may have been archived.
    expected = living[0].number if node.of_no_manifest and living else manifest.archived[1] + 1
    for index, segment in enumerate(living):
        if segment.number > expected:
            yield from _missing(
                node,
                segment.epoch,
                range(expected, segment.number),
                SEGMENT_MISSING,
            )
        expected = segment.number + 1
        later = living[index + 1 :]
        units.append(
            Unit(
                segment.path,
                segment.bytes,
                "segment",
                len(later),
                partial(check_segment, context, view, node, segment, later),
            )
        )
    missing = range(expected, max(manifest.checkpoint.segment, manifest.newest) + 1)
    if elsewhere:
        return
    yield from _missing(
        node,
        manifest.checkpoint.epoch,
        missing,
        "this segment is missing: the manifest refers to its entries",
    )


def _manifest(path: str, newer: str) -> Finding:
    """`newer`: the evidence that the files next to it are newer."""
    if not newer:
        return Finding(path, "manifest", CLEAN)
    problem = f"this manifest is older than the files beside it ({newer})"
    return Finding(path, "manifest", CORRUPT, offset=0, what=problem, advice=ADVICE)


def _no_manifest(folder: str, whose: str, there: str) -> Finding:
    problem = f"there is no manifest of {whose} here, but {there}"
    return Finding(
        f"{folder}/manifest", "manifest", CORRUPT, what=problem, advice=NO_MANIFEST_ADVICE
    )


def _archives(node: NodeState) -> int:
    return sum(layout.parse_archive_path(file.path) is not None for file in node.files)


def _missing(node: NodeState, epoch: int, numbers: range, problem: str) -> Iterator[Finding]:
    if numbers:
        lost = str(Position(epoch, numbers.start, 0, 0))
        more = f" ({len(numbers)} in a row)" if len(numbers) > 1 else ""
        file = f"{node.folder}/wal/*-{numbers.start:08d}.wal"
        yield Finding(
            file,
            "segment",
            CORRUPT,
            offset=0,
            first_lost=lost,
            what=f"{problem}{more}",
            advice=ADVICE,
        )
