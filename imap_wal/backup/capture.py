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

Damage does not prevent a capture if the manifests of the cluster and of its nodes are whole:

- The newest segment of a node is damaged: all of it belongs to the moment.
- A list file is damaged or missing: all Parquet files of that kind belong to it, because any may be
  named.
- A manifest or a list of a reader is damaged: the reader's files are not known.
"""

from __future__ import annotations

import builtins
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Never

from imap_wal import layout
from imap_wal.backup.catalogue import DamagedFile
from imap_wal.errors import LogError, LostRace, MissingNode, UnsupportedVersion
from imap_wal.manifest import readers
from imap_wal.manifest.list_files import ListFile
from imap_wal.manifest.snapshots import SnapshotFile
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.segment.reader import SegmentReader, is_header_torn
from imap_wal.segment.verdict import Place
from storage_backends import (
    Appender,
    Capabilities,
    Held,
    Linked,
    Lock,
    NotFound,
    SegmentStore,
    StoredFile,
    Unsupported,
)

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
    `offset` (0: there is none) and has this checksum. `is_all`: the whole file, because it seems to
    be damaged."""

    end: int
    offset: int = 0
    checksum: int = 0
    is_all: bool = False


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
    segments: tuple[tuple[Place, ...], ...] = ()
    """For each node, its segments in order."""
    checksums: Mapping[str, int] = field(default_factory=dict)
    """Path of a Parquet file → its CRC-32C in a manifest; 0: unknown."""
    damaged: tuple[DamagedFile, ...] = ()
    """Lists that are damaged or missing, and damaged manifests of readers."""
    directories: tuple[str, ...] = ()
    """The UUIDs of the log directories of the registered nodes."""


@dataclass(frozen=True)
class _Look:
    """One listing of a cluster's folder."""

    small: frozenset[str]
    segments: Mapping[str, StoredFile]
    aside: tuple[str, ...]
    snapshots: frozenset[str] = frozenset()
    """Files of snapshots, also of former ones."""
    archives: frozenset[str] = frozenset()
    """Archives, also those that no manifest names."""
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
        LogError: A manifest of the cluster or of a node is damaged, or a segment is missing.
        NotFound: Files were removed during each attempt.
    """
    fronts: dict[str, Front] = {}
    misfits = 0
    for _ in range(ATTEMPTS):
        before = _look(log)
        try:
            fronts = {path: _front(log.store, path, fronts.get(path)) for path in _newest(before)}
            contents = {path: log.store.read(path) for path in sorted(before.small)}
        except NotFound:
            continue
        if not before.still(_look(log)):
            continue
        try:
            return _of_moment(log, before, contents, fronts, strict=misfits < MISFITS_MAX - 1)
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
        reasons = "; ".join(f"node {node!r}: {why}" for node, why in missing.items())
        raise MissingNode(
            reasons,
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
    archives: set[str] = set()
    ids: set[str] = set()
    own_disks = log.context.own_disk is not None
    for file in log.store.list(log.folder):
        path = file.path.removeprefix(f"{log.folder}/")
        manifest = _MANIFEST.fullmatch(path)
        if manifest:
            folder = manifest["folder"]
            newest[folder] = max(newest.get(folder, ""), file.path)
        elif own_disks and layout.is_on_disk(file.path) and file.path.endswith(".log"):
            ids.add(file.path)
        elif _SMALL.fullmatch(path):
            small.add(file.path)
        elif _ASIDE.fullmatch(path):
            aside.append(file.path)
        elif path.startswith("snapshot/"):
            snapshots.add(file.path)
        elif layout.parse_archive_path(file.path):
            archives.add(file.path)
        elif re.fullmatch(r"nodes/[^/]+/wal/[^/]+", path) and layout.parse_wal_path(file.path):
            segments[file.path] = file
    return _Look(
        frozenset({*small, *newest.values()}),
        segments,
        tuple(aside),
        frozenset(snapshots),
        frozenset(archives),
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


def _front(store: SegmentStore, path: str, earlier: Front | None) -> Front:
    """The front now; `earlier`: an earlier one, after which reading continues. If synced
    frames cannot be read, it is the whole file, so that what follows the damage is not lost."""
    size = 0
    for attempt in range(4):  # a writer may write meanwhile
        try:
            reader = SegmentReader(store, path)
        except UnsupportedVersion:
            raise
        except LogError:
            if is_header_torn(store, path):  # its writer is at its first commit
                return Front(0)
            size = store.size(path)
            continue
        front = earlier if earlier is not None and earlier.offset else Front(reader.first)
        if not same_front(store, path, front):
            front = Front(reader.first)
        for frame in reader.whole_frames(front.end):
            front = Front(frame.end, frame.offset, frame.checksum)
        tail = reader.tail()
        if tail.status != "corrupt":
            return front
        earlier = None if attempt else front
        size = tail.size
    return Front(size, is_all=True)


def _of_moment(
    log: ClusterLog,
    look: _Look,
    contents: Mapping[str, bytes],
    fronts: Mapping[str, Front],
    *,
    strict: bool,
) -> Captured:
    """`strict`: damage is an error."""
    held = {path: CapturedFile(len(content), content) for path, content in contents.items()}
    held |= {path: CapturedFile(0, b"") for path in look.ids}
    for path, file in look.segments.items():
        held[path] = CapturedFile(fronts[path].end if path in fronts else file.size)
    view = FileView(held, log.store.capabilities)
    state = log.on(view).state()
    state.demand_all()  # the files of every node
    segments = {segment.path for node in state.nodes.values() for segment in node.segments}
    damaged: list[LogError] = []
    former = _former_snapshots(log, look, view, state, damaged)
    named = {**_archives(state, look, damaged), **_snapshots(state, look, damaged)}
    for error in damaged:
        if strict or isinstance(error, UnsupportedVersion):
            raise error
    return Captured(
        contents,
        {path: front for path, front in fronts.items() if path in segments},
        (
            *sorted(segments - set(fronts)),
            *sorted(former.keys() - named.keys()),
            *look.aside,
            *named,
        ),
        tuple(tuple(_places(state, node)) for node in state.nodes.values()),
        {path: former.get(path) or named.get(path, 0) for path in (*former, *named)},
        tuple(DamagedFile(error.file, error.offset, error.what) for error in damaged),
        tuple(sorted(filter(None, state.manifest.nodes.values()))),
    )


def _places(state: ClusterState, node: NodeState) -> Iterator[Place]:
    for index, segment in enumerate(node.segments, 1):
        followed = index < len(node.segments)
        yield state.place(node, node.manifest, segment, followed=followed)


def _former_snapshots(
    log: ClusterLog, look: _Look, view: FileView, state: ClusterState, damaged: list[LogError]
) -> dict[str, int]:
    """The snapshot files that are kept for readers, such as the history, with their checksums. A
    reader whose manifest is damaged, or whose files are missing, must not stop the backup."""
    sound, wrong = readers.examined(view, log.folder)
    damaged += wrong.values()
    sums: dict[str, int] = {}
    for reader in sound.values():
        for _, snapshot in reader.kept_snapshots(state.manifest):
            sums |= _summed(snapshot.files)
    return {path: sums[path] for path in sums.keys() & look.snapshots}


def _archives(state: ClusterState, look: _Look, damaged: list[LogError]) -> dict[str, int]:
    sums: dict[str, int] = {}
    wrong: list[tuple[ListFile, LogError]] = []
    for node in state.nodes.values():
        archives = node.manifest.archives.readable(wrong)
        sums |= {archive.path: archive.checksum for archive in archives}
    damaged += [error for _, error in wrong]
    return dict.fromkeys(sorted(look.archives), 0) | sums if wrong else sums


def _snapshots(state: ClusterState, look: _Look, damaged: list[LogError]) -> dict[str, int]:
    sums: dict[str, int] = {}
    wrong: list[tuple[ListFile, LogError]] = []
    for snapshot in state.manifest.snapshots.values():
        sums |= _summed(snapshot.files.readable(wrong))
    damaged += [error for _, error in wrong]
    return dict.fromkeys(sorted(look.snapshots), 0) | sums if wrong else sums


def _summed(files: Iterable[SnapshotFile]) -> dict[str, int]:
    """Path → checksum."""
    return {file.path: file.checksum for file in files}


# The files of one moment as a storage that can only be read.


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """A file of a view; its content, if it is in memory."""

    size: int
    content: bytes | None = None


class FileView:
    """A `SegmentStore` of given files. Reads raise `NotFound` for a file that is not given, or
    whose content is not; all methods that write, and `lock`, raise `Unsupported`.

    Args:
        files: Path → file.
        capabilities: Those of the storage from which the files are: they decide how a log is read.
    """

    url = "backup:"

    def __init__(self, files: Mapping[str, CapturedFile], capabilities: Capabilities) -> None:
        self._files = files
        self.capabilities = replace(capabilities, locks=False, stale_listings=False)

    def list(self, folder: str) -> builtins.list[StoredFile]:
        prefix = f"{folder}/" if folder else ""
        return [
            StoredFile(path, self._files[path].size)
            for path in sorted(self._files)
            if path.startswith(prefix)
        ]

    def folders(self, folder: str) -> builtins.list[str]:
        prefix = f"{folder}/" if folder else ""
        inside = [path[len(prefix) :] for path in self._files if path.startswith(prefix)]
        return sorted({path.partition("/")[0] for path in inside if "/" in path})

    def exists(self, path: str) -> bool:
        return path in self._files

    def hold(self, path: str) -> Held:
        self._refuse(path)

    def size(self, path: str) -> int:
        return self._of(path).size

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        content = self._of(path).content
        if content is None:
            raise NotFound("the content of this file was not captured", path)
        return content[offset : None if length is None else offset + length]

    def open_input(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def _of(self, path: str) -> CapturedFile:
        if path not in self._files:
            raise NotFound("there is no such file in the backup", path)
        return self._files[path]

    def _refuse(self, path: str) -> Never:
        raise Unsupported("a backup cannot be changed", path)

    def create(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def create_from(self, path: str, local_file: str) -> None:
        self._refuse(path)

    def replace(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        self._refuse(path)

    def truncate(self, path: str, size: int) -> None:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def discard(self, path: str) -> None:
        self._refuse(path)

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        self._refuse(", ".join(paths))

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        self._refuse(path)

    def close(self) -> None:
        pass
