"""The one listing of a node's segments: which files of `wal/` count, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from imap_wal import layout
from storage_backends import SegmentStore, StoredFile


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment of the listing; `bytes` with preallocated space."""

    epoch: int
    number: int
    path: str
    bytes: int

    @property
    def name(self) -> tuple[int, int]:
        """(epoch, number)."""
        return self.epoch, self.number


@dataclass(frozen=True, slots=True)
class WalFolder:
    """The content of a node's `wal/`. `segments`: those that count and are not archived, in order
    of their numbers. `archived`: files of archived segments. `copied`: files that a recovery
    replaced by copies. `void`: files that a writer began after it had been replaced. `logs`: ids of
    the logs to which the folder belongs. `permits`: path of each permit → its epoch."""

    segments: tuple[SegmentFile, ...]
    archived: tuple[SegmentFile, ...] = ()
    copied: tuple[SegmentFile, ...] = ()
    void: tuple[SegmentFile, ...] = ()
    logs: frozenset[str] = frozenset()
    permits: Mapping[str, int] = field(default_factory=dict)

    @property
    def left_out(self) -> Iterator[tuple[SegmentFile, str]]:
        """The segments that do not count, with the reason."""
        for segment in self.void:
            yield segment, "begun by a writer that had been replaced: nothing in it counts"
        for segment in self.copied:
            yield segment, "a recovery made a copy of it, which counts instead"

    @property
    def newest(self) -> str:
        """Path of the segment with the highest number, archived or not; "" without one."""
        last = max(
            (*self.segments, *self.archived), key=lambda segment: segment.number, default=None
        )
        return "" if last is None else last.path


def wal_folder(
    store: SegmentStore,
    node_folder: str,
    archived: tuple[int, int] = (0, 0),
    begins: tuple[int, int] = (0, 0),
) -> WalFolder:
    """List a node's `wal/`. `archived` and `begins`: as in its `NodeManifest`."""
    return sorted_out(store.list(f"{node_folder}/wal"), archived, begins)


def sorted_out(
    files: Iterable[StoredFile],
    archived: tuple[int, int] = (0, 0),
    begins: tuple[int, int] = (0, 0),
) -> WalFolder:
    """The same from a listing."""
    newest: dict[tuple[int, int], SegmentFile] = {}
    below, copied = [], []
    logs: set[str] = set()
    permits: dict[str, int] = {}
    for file in files:
        name = layout.parse_wal_path(file.path)
        if name is None:
            epoch = layout.parse_writer_path(file.path)
            if epoch is not None:
                permits[file.path] = epoch
            elif file.path.endswith(".log"):
                logs.add(file.path.rpartition("/")[2].removesuffix(".log"))
            continue
        segment = SegmentFile(*name, file.path, file.size)
        if name <= archived:
            below.append(segment)
            continue
        former = newest.setdefault(name, segment)
        if former is not segment:
            older, younger = sorted(
                (former, segment), key=lambda file: layout.recovered_by(file.path)
            )
            newest[name] = younger
            copied.append(older)
    epoch, first = begins
    counting = layout.without_replaced(
        name for name in newest if name[0] >= epoch or name[1] < first
    )
    void = tuple(segment for name, segment in newest.items() if name not in counting)
    segments = sorted((newest[name] for name in counting), key=lambda segment: segment.number)
    return WalFolder(tuple(segments), tuple(below), tuple(copied), void, frozenset(logs), permits)
