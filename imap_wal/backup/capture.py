"""Which files of a cluster belong to one moment.

Manifests are read between two listings that show the same ones, so all of them were current at one
moment. The end of the newest segment of each node (its *front*) is found between the same two
listings: an entry after it may belong to a later manifest. Segments that were begun between the two
listings do not count.

    listing ─▶ fronts, manifests, claims, permits ─▶ the same listing? ─▶ what the manifests name
       ▲                                                   │ no
       └───────────────────────────────────────────────────┘

Segments on the own disks of nodes are listed and read like others, from the agents of these nodes.
The ids of these logs stay on the disks: in the root, an id says that all segments are there, so a
disk that is lost would look like one without segments.

A listing does not show one moment: it may have a segment and not the one before it. Then the files
that were found do not fit together, and they are listed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imap_wal import layout
from imap_wal.backup.view import CapturedFile, FileView
from imap_wal.errors import CorruptLog, LogError, LostRace, MissingNode
from imap_wal.manifest import readers
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.segment.reader import SegmentReader, is_header_torn
from storage_backends import NotFound, SegmentStore, StoredFile
from storage_backends.own_disk import own_disk_of
from storage_backends.paths import is_on_disk

ATTEMPTS = 100
MISFITS_MAX = 8
"""How often files that do not fit together are listed again before they count as damage."""
_MANIFEST = re.compile(r"(?P<folder>(?:|claims/|readers/[^/]+/|nodes/[^/]+/)manifest)/(\d+)\.json")
_SMALL = re.compile(
    r"claims/\d+\.claim|opened/[^/]+|nodes/[^/]+/wal/[^/]+\.(?:log|writer)"
    r"|(?:|readers/[^/]+/|nodes/[^/]+/)lists/[^/]+"
)
_ASIDE = re.compile(r"set-aside/.+|nodes/[^/]+/lost/.+")


@dataclass(frozen=True, slots=True)
class Front:
    """The part of a segment that counts: whole frames up to byte `end`; the last one begins at
    `offset` (0: there is none) and has this checksum."""

    end: int
    offset: int = 0
    checksum: int = 0


@dataclass(frozen=True)
class Captured:
    """The files of one cluster at one moment."""

    contents: Mapping[str, bytes]
    """Path → content of a small file: manifests, lists, claims, permits."""
    fronts: Mapping[str, Front]
    """Path → front of the newest segment of a node."""
    files: tuple[str, ...]
    """Whole files: they do not change, but may be removed. Those that are removed soonest come
    first."""


@dataclass(frozen=True)
class _Look:
    """One listing of a cluster's folder."""

    small: frozenset[str]
    segments: Mapping[str, StoredFile]
    aside: tuple[str, ...]
    snapshots: frozenset[str] = frozenset()
    """Files of snapshots, also of former ones."""
    ids: frozenset[str] = frozenset()
    """Of logs on own disks: empty files."""

    def still(self, later: _Look) -> bool:
        """Whether the later one shows all of these files, and no other small ones."""
        return self.small == later.small and self.segments.keys() <= later.segments.keys()


def capture(log: ClusterLog) -> Captured:
    """Find the files of one moment.

    Args:
        log: The cluster.

    Returns:
        The files, with the content of the small ones.

    Raises:
        LostRace: The manifests changed during each attempt.
        MissingNode: The log of a registered node is missing.
        LogError: A manifest or the newest segment is damaged.
        NotFound: Files were removed during each attempt.
    """
    known: dict[str, Front] = {}
    misfits = 0
    for _ in range(ATTEMPTS):
        before = _look(log)
        try:
            known = {path: _front(log.store, path, known.get(path)) for path in _newest(before)}
            contents = {path: log.store.read(path) for path in sorted(before.small)}
        except NotFound:
            continue
        if not before.still(_look(log)):
            continue
        try:
            return _of_moment(log, before, contents, known)
        except LogError:
            misfits += 1
            if misfits == MISFITS_MAX:
                raise
    raise LostRace(
        f"{log.folder}: its manifests changed {ATTEMPTS} times while they were read; try again"
    )


def demand_nodes(log: ClusterLog) -> None:
    """Raises `MissingNode` if the log of a registered node cannot be read now, with the reason."""
    missing = log.state().missing
    if missing:
        what = "; ".join(f"node {node!r}: {why}" for node, why in missing.items())
        raise MissingNode(
            what,
            "a backup needs the logs of all nodes: start the agent of this node with its disk, and "
            "run the backup again; or remove the node with `imap-wal forget-node`",
        )


def same_front(store: SegmentStore, path: str, front: Front) -> bool:
    """Whether the segment still has the last frame of the front: a writer whose commit was
    interrupted may write another one in its place."""
    if not front.offset:
        return True
    reader = SegmentReader(store, path)
    frame = next(reader.whole_frames(front.offset, front.offset + 1), None)
    return frame is not None and (frame.end, frame.checksum) == (front.end, front.checksum)


def _look(log: ClusterLog) -> _Look:
    newest: dict[str, str] = {}
    small: set[str] = set()
    segments: dict[str, StoredFile] = {}
    aside: list[str] = []
    snapshots: set[str] = set()
    ids: set[str] = set()
    own_disks = own_disk_of(log.store) is not None
    for file in log.store.list(log.folder):
        path = file.path.removeprefix(f"{log.folder}/")
        manifest = _MANIFEST.fullmatch(path)
        if manifest:
            folder = manifest["folder"]
            newest[folder] = max(newest.get(folder, ""), file.path)
        elif own_disks and is_on_disk(file.path) and file.path.endswith(".log"):
            ids.add(file.path)
        elif _SMALL.fullmatch(path):
            small.add(file.path)
        elif _ASIDE.fullmatch(path):
            aside.append(file.path)
        elif path.startswith("snapshot/"):
            snapshots.add(file.path)
        elif re.fullmatch(r"nodes/[^/]+/wal/[^/]+", path) and layout.parse_wal_path(file.path):
            segments[file.path] = file
    return _Look(
        frozenset({*small, *newest.values()}),
        segments,
        tuple(aside),
        frozenset(snapshots),
        frozenset(ids),
    )


def _newest(look: _Look) -> Iterator[str]:
    """Each file that a writer may be appending to: the newest of each folder by number, including
    those that do not count."""
    folders: dict[str, tuple[int, int]] = {}
    for path in look.segments:
        name = layout.parse_wal_path(path)
        assert name is not None
        folder = path.rpartition("/")[0]
        folders[folder] = max(folders.get(folder, (0, 0)), name)
    for path in look.segments:
        if layout.parse_wal_path(path) == folders[path.rpartition("/")[0]]:
            yield path


def _front(store: SegmentStore, path: str, known: Front | None) -> Front:
    """The front now; `known`: an earlier one, after which reading continues."""
    for attempt in range(4):
        try:
            reader = SegmentReader(store, path)
        except LogError:
            if is_header_torn(store, path):  # its writer is at its first commit
                return Front(0)
            raise
        front = known if known is not None and known.offset else Front(reader.first)
        if not same_front(store, path, front):
            front = Front(reader.first)
        for frame in reader.whole_frames(front.end):
            front = Front(frame.end, frame.offset, frame.checksum)
        tail = reader.tail()
        if tail.status != "corrupt":
            return front
        known = None if attempt else front  # the writer may have written meanwhile
    raise CorruptLog(
        path,
        tail.end,
        "synced frames after this place cannot be read, so a copy would lose them",
        "`imap-wal verify` shows what is damaged, and `imap-wal repair` writes a repaired copy",
    )


def _of_moment(
    log: ClusterLog, look: _Look, contents: Mapping[str, bytes], fronts: Mapping[str, Front]
) -> Captured:
    held = {path: CapturedFile(len(content), content) for path, content in contents.items()}
    held |= {path: CapturedFile(0, b"") for path in look.ids}
    for path, file in look.segments.items():
        held[path] = CapturedFile(fronts[path].end if path in fronts else file.size)
    view = FileView(held, log.store.capabilities)
    state = ClusterLog(view, log.namespace, log.cluster, log.clock, log.randomness).state()
    state.demand_all()  # the files of every node
    segments = {segment.path for node in state.nodes.values() for segment in node.segments}
    return Captured(
        contents,
        {path: front for path, front in fronts.items() if path in segments},
        (
            *sorted(segments - set(fronts)),
            *_former_snapshots(log, look, view, state),
            *look.aside,
            *_parquet(state),
        ),
    )


def _former_snapshots(
    log: ClusterLog, look: _Look, view: FileView, state: ClusterState
) -> list[str]:
    """The snapshot files that are only kept for readers, such as the history. A reader whose
    manifest is damaged, or whose files are missing, must not stop the backup."""
    kept = {
        path
        for reader in readers.examined(view, log.folder)[0].values()
        for path, _ in reader.kept_files(state.manifest)
    }
    named = {path for each in state.manifest.snapshots.values() for path in each.files}
    return sorted((kept - named) & look.snapshots)


def _parquet(state: ClusterState) -> Iterator[str]:
    for node in state.nodes.values():
        for archive in node.manifest.archives:
            yield archive.path
    for snapshot in state.manifest.snapshots.values():
        yield from snapshot.files
