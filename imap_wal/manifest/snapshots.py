"""What the cluster's manifest says about the snapshot of each map: its files are in the manifest
itself, or in list files (decision 64 in docs/decisions/files.md).

A list has files of one snapshot that follow each other in key order. A rewrite keeps most of them,
so lists without a changed file are named again, and the files between them are written as new
lists. Readers have lists of their own, in their own folders: what a base needs is not deleted by
publications of the cluster's manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from imap_wal.entry import Pair
from imap_wal.errors import LogError
from imap_wal.format import START, Position
from imap_wal.manifest import list_files
from imap_wal.manifest.list_files import (
    Listed,
    ListFile,
    ListFiles,
    Read,
    ends_of_lists,
    parsed_lists,
)
from imap_wal.manifest.node import without_turn
from imap_wal.manifest.store import (
    Whole,
    checked,
    fields_of,
    packed,
    unpacked,
    whole,
    without_defaults,
)

FILES_MAX = 64
"""At most this many files of a snapshot are in the manifest itself."""


@dataclass(frozen=True, slots=True)
class PartitionVersions:
    """Partition → the highest pair that was in the logs at some moment. A partition owner with a
    lower pair was replaced before that moment, and acknowledges nothing any more."""

    pairs: Mapping[int, Pair] = field(default_factory=dict)

    def encode(self) -> str:
        """Runs of partitions with one pair, as `first+count:incarnation.version`, with commas."""
        runs: list[tuple[int, int, Pair]] = []
        for partition, pair in sorted(self.pairs.items()):
            if runs and runs[-1][0] + runs[-1][1] == partition and runs[-1][2] == pair:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1, pair)
            else:
                runs.append((partition, 1, pair))
        return ",".join(f"{first}+{count}:{pair[0]}.{pair[1]}" for first, count, pair in runs)

    @classmethod
    def decode(cls, text: str) -> Self:
        pairs: dict[int, Pair] = {}
        for run in filter(None, text.split(",")):
            partitions, _, pair = run.partition(":")
            first, count = map(int, partitions.split("+"))
            incarnation, version = map(int, pair.split("."))
            pairs |= dict.fromkeys(range(first, first + count), (incarnation, version))
        return cls(pairs)

    def raised(self, pairs: Iterable[tuple[int, Pair]]) -> Self:
        """The table with these pairs, without turns, where they are higher."""
        pairs_by_partition = dict(self.pairs)
        for partition, pair_with_turn in pairs:
            pair = without_turn(pair_with_turn)
            if pairs_by_partition.get(partition, ()) < pair:
                pairs_by_partition[partition] = pair
        return replace(self, pairs=pairs_by_partition)


NO_VERSIONS = PartitionVersions()


@dataclass(frozen=True, slots=True)
class LowWaterMark:
    """A snapshot covers the positions up to `position` of log `directory`."""

    directory: str
    position: Position


def position_in(directory: str, mark: LowWaterMark | None) -> Position:
    """The position up to which a mark of a node covers this log directory of it."""
    return mark.position if mark is not None and mark.directory == directory else START


class SnapshotFile(NamedTuple):
    """What a manifest says about one file of a snapshot."""

    path: str
    checksum: int
    """CRC-32C of the whole file."""
    size: int
    rows: int
    border: str
    """In hexadecimal digits, perhaps encrypted: no key of the file is lower, and each key of the
    files before it is. That of the first file is empty. Another empty one is unknown."""
    first_expiry_ms: int
    """When its first row expires; 0: no row does."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Files of a snapshot, as JSON has them."""

    files: tuple[str, ...] = ()
    checksums: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    borders: tuple[str, ...] = ()
    expiries: tuple[int, ...] = ()


_COLUMNS = _Columns.__match_args__


def _columns_of(files: Sequence[SnapshotFile]) -> dict[str, Sequence[Any]]:
    columns = zip(*files, strict=True) if files else ((),) * len(_COLUMNS)
    return dict(zip(_COLUMNS, columns, strict=True))


def _files_of(document: Mapping[str, Any]) -> tuple[SnapshotFile, ...]:
    """The inverse of `_columns_of`. Raises ValueError."""
    columns = fields_of(checked(document, _Columns)).values()
    return tuple(map(SnapshotFile._make, zip(*columns, strict=True)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published snapshot of one map: `files` have the newest change of every key up to `marks`,
    in key order. A dropped map has no files."""

    generation: Whole
    files: Listed[SnapshotFile]
    marks: Mapping[str, LowWaterMark]
    live: int
    tombstones: int
    bytes: int
    created_ms: int
    dropped: int = 0
    """Generation of the last drop of this map. A reader that merged entries before it must discard
    them."""
    until_ms: int = 0
    """The state of the map before this Unix time is unknown: older changes of its keys are
    removed."""
    versions: Whole = 0
    """The table in `ClusterManifest.versions` for entries above `marks`; 0: none."""
    last_expiry_ms: int = 0
    """When the last row expires; 0: a row never expires, or unknown."""
    mixed: bool = False
    """A repair took in files of other generations: several may have the same key, in no order, and
    they may have entries above `marks`."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Those of the files. Raises the errors of `Listed`."""
        return tuple(file.path for file in self.files)

    def to_json(self, shared: str | None = None) -> dict[str, Any]:
        """`shared`: the number of its marks, if several snapshots have the same. Without its
        lists."""
        columns = _columns_of(self.files.direct)
        document = {
            "generation": self.generation,
            "files": columns["files"],
            "marks": shared or marks_json(self.marks),
            "live": self.live,
            "tombstones": self.tombstones,
            "bytes": self.bytes,
            "created_ms": self.created_ms,
            "dropped": self.dropped,
            "checksums": columns["checksums"],
            "until_ms": self.until_ms,
            "sizes": columns["sizes"],
            "rows": columns["rows"],
            "versions": self.versions,
            "last_expiry_ms": self.last_expiry_ms,
            "borders": columns["borders"],
            "expiries": columns["expiries"],
            "mixed": self.mixed,
        }
        return without_defaults(
            document,
            ("sizes", "rows", "versions", "last_expiry_ms", "borders", "expiries", "mixed"),
        )

    @classmethod
    def from_json(
        cls, data: dict[str, Any], shared: Mapping[str, Mapping[str, LowWaterMark]] | None = None
    ) -> Self:
        """The inverse of `to_json`. `shared`: marks of several snapshots, by number."""
        written = data["marks"]
        marks = (
            (shared or {})[written]
            if isinstance(written, str)
            else checked(written, dict[str, LowWaterMark])
        )
        snapshot = checked({**data, "files": Listed(_files_of(data)), "marks": {}}, cls)
        return replace(snapshot, marks=marks)


def marks_json(marks: Mapping[str, LowWaterMark]) -> dict[str, Any]:
    return {node: fields_of(mark) for node, mark in marks.items()}


def with_marks_once(snapshots: Mapping[str, Snapshot]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Snapshots as JSON, and the marks that several of them share, once. 1,000 maps in the logs of
    100 nodes have 100,000 marks, but after a rewrite of all maps only 100 distinct ones."""
    # The marks of one manifest or one rewrite are mostly one object. Its content is compared once.
    distinct = {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}
    content = {
        marks_id: tuple(sorted(marks.items(), key=lambda item: item[0]))
        for marks_id, marks in distinct.items()
    }
    same: dict[tuple[Any, ...], int] = {}
    first = {marks_id: same.setdefault(key, marks_id) for marks_id, key in content.items()}
    users = Counter(first[id(snapshot.marks)] for snapshot in snapshots.values())
    numbers = {
        marks_id: str(number)
        for number, marks_id in enumerate(
            (marks_id for marks_id, count in users.items() if count > 1), 1
        )
    }
    documents = {}
    for name, snapshot in snapshots.items():
        number = numbers.get(first[id(snapshot.marks)])
        documents[name] = snapshot.to_json(number)
    return documents, {
        number: marks_json(distinct[marks_id]) for marks_id, number in numbers.items()
    }


def from_json_with_marks(snapshots: Any, marks: Any) -> dict[str, Snapshot]:
    """The inverse of `with_marks_once`. Raises ValueError and KeyError."""
    shared = checked(marks, dict[str, dict[str, LowWaterMark]])
    return {
        name: Snapshot.from_json(snapshot, shared)
        for name, snapshot in checked(snapshots, dict[str, dict[str, Any]]).items()
    }


Lists: TypeAlias = Mapping[str, tuple[ListFile, ...]]
"""Map → its lists, for each map that has some."""


def with_lists(snapshots: Mapping[str, Snapshot], lists: Lists) -> dict[str, Snapshot]:
    """The snapshots with their files in these lists. Raises ValueError."""
    filled = dict(snapshots)
    for name, files in lists.items():
        if not files or name not in filled or filled[name].files:
            raise ValueError(f"lists of map {name!r} do not fit its snapshot")
        filled[name] = replace(filled[name], files=Listed((), files))
    return filled


def bound(snapshots: Mapping[str, Snapshot], read: Read[SnapshotFile]) -> Mapping[str, Snapshot]:
    """The snapshots with lists that `read` reads."""
    if isinstance(snapshots, SnapshotTable):
        return snapshots.bound(read)
    return {
        name: replace(snapshot, files=snapshot.files.bound(read))
        if snapshot.files.lists
        else snapshot
        for name, snapshot in snapshots.items()
    }


def lists_of(snapshots: Mapping[str, Snapshot]) -> Lists:
    """The lists of each map that has some."""
    if isinstance(snapshots, SnapshotTable):
        return snapshots.lists
    return {
        name: snapshot.files.lists for name, snapshot in snapshots.items() if snapshot.files.lists
    }


def lists_json(snapshots: Mapping[str, Snapshot]) -> dict[str, Any]:
    """`lists_of` as JSON."""
    return {
        name: [file.to_json(SnapshotLists.field) for file in files]
        for name, files in lists_of(snapshots).items()
    }


def lists_from_json(data: Any) -> Lists:
    """The inverse of `lists_json`. Raises ValueError and KeyError."""
    return {
        name: parsed_lists(files, SnapshotLists.field)
        for name, files in checked(data, dict[str, Any]).items()
    }


def names_of(lists: Lists) -> set[str]:
    """The names of the lists of all maps."""
    return {file.name for files in lists.values() for file in files}


_Run: TypeAlias = tuple[int, int, ListFile]
"""The files from one index up to another are those of a list."""


class SnapshotLists(ListFiles[SnapshotFile]):
    """The list files of a cluster's, or of a reader's folder."""

    skips_damaged: ClassVar[bool] = False
    """Whether new lists are written although a former one is damaged."""

    field = "parts"

    def _document(self, items: Sequence[SnapshotFile]) -> Any:
        return _columns_of(items)

    def _items(self, document: Any) -> tuple[SnapshotFile, ...]:
        return _files_of(document)

    def _lost(self, file: ListFile) -> str:
        return "the names of these snapshot files"

    def settled(
        self, number: int, content: Listed[SnapshotFile], former: Iterable[ListFile]
    ) -> Listed[SnapshotFile]:
        """What manifest `number` says for the files of a snapshot: few files, or lists of its
        predecessor (`former`) and new ones. Writes the new ones. Raises StorageError, and the
        errors of `read`."""
        lists = tuple(former)
        if len(content) > FILES_MAX and not content.direct and set(lists).issuperset(content.lists):
            return content
        files = tuple(content)
        if len(files) <= FILES_MAX:
            return Listed(files) if content.lists else content
        return Listed((), tuple(self._lists(number, files, lists)), self.read)

    def _lists(
        self, number: int, files: Sequence[SnapshotFile], former: Iterable[ListFile]
    ) -> Iterator[ListFile]:
        count = len(files)
        former_files: dict[ListFile, tuple[SnapshotFile, ...]] = {}
        for file in former:
            try:
                former_files[file] = self.read(file)
            except LogError:
                if not self.skips_damaged:
                    raise
        runs = _unchanged(files, former_files)
        place = 0
        for start, end, unchanged in [*_spaced(runs, count), (count, count, None)]:
            if place < start:
                for first, last in pairwise(ends_of_lists(start - place)):
                    yield self.write(number, tuple(files[place + first : place + last]))
            if unchanged is not None:
                yield unchanged
            place = end


def _unchanged(
    files: Sequence[SnapshotFile], former_lists: Mapping[ListFile, tuple[SnapshotFile, ...]]
) -> list[_Run]:
    """The lists whose files are still there, one after the other, in order."""
    places = {file.path: place for place, file in enumerate(files)}
    whole_lists: list[_Run] = []
    for list_file, items in former_lists.items():
        start = places.get(items[0].path, len(files))
        if tuple(files[start : start + len(items)]) == items:
            whole_lists.append((start, start + len(items), list_file))
    runs: list[_Run] = []
    for run in sorted(whole_lists, key=lambda run: run[:2]):
        if not runs or runs[-1][1] <= run[0]:
            runs.append(run)
    return runs


def _spaced(runs: Sequence[_Run], count: int) -> list[_Run]:
    """Without the lists that are written again: a list that is too small, and one beside too few
    changed files."""
    least = list_files.LIST_MIN
    if len(runs) == 1 and runs[0][:2] == (0, count):
        return list(runs)
    remaining = [run for run in runs if run[1] - run[0] >= least or count < least]
    while True:
        ends = [0, *(end for _, end, _ in remaining)]
        starts = [*(start for start, _, _ in remaining), count]
        small = next((at for at in range(len(ends)) if 0 < starts[at] - ends[at] < least), None)
        if small is None or not remaining:
            return remaining
        beside = [at for at in (small - 1, small) if 0 <= at < len(remaining)]
        del remaining[min(beside, key=lambda at: remaining[at][1] - remaining[at][0])]


def marks_by_node(snapshots: Mapping[str, Snapshot]) -> dict[str, tuple[LowWaterMark, ...]]:
    """Node → for each of its log directories, the farthest mark of any snapshot."""
    farthest: dict[tuple[str, str], Position] = {}
    for marks in {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}.values():
        for node, mark in marks.items():
            log = (node, mark.directory)
            farthest[log] = max(mark.position, farthest.get(log, START))
    by_node: dict[str, tuple[LowWaterMark, ...]] = {}
    for (node, directory), position in farthest.items():
        by_node[node] = (*by_node.get(node, ()), LowWaterMark(directory, position))
    return by_node


class SnapshotTable(Mapping[str, Snapshot]):
    """The snapshots of many maps, stored in a manifest as one string: base64 of deflated JSON. An
    open and a claim copy the table without parsing it, in a time that does not depend on its size;
    they use only `covered`, which is stored separately. Thread-safe."""

    __slots__ = ("_file", "_read", "_text", "_whole", "lists", "marks_by_node")

    def __init__(
        self,
        snapshots: Mapping[str, Snapshot] | None,
        text: str = "",
        covered: Mapping[str, tuple[LowWaterMark, ...]] | None = None,
        file: str = "",
        lists: Lists | None = None,
        read: Read[SnapshotFile] | None = None,
    ) -> None:
        """Pass the first argument, or the others. What is missing is computed at first use; an
        error then is a `CorruptLog` that names the manifest `file`."""
        self._whole, self._text, self._file, self._read = snapshots, text, file, read
        self.marks_by_node = covered
        self.lists: Lists = lists_of(snapshots) if snapshots is not None else lists or {}
        """Those of each map that has some: they are stored separately, too."""

    @property
    def text(self) -> str:
        if not self._text:
            self._text = packed(with_marks_once(self.whole))
        return self._text

    @property
    def whole(self) -> Mapping[str, Snapshot]:
        """The value. Raises `CorruptLog` if the text in the manifest is malformed."""
        if self._whole is None:
            with whole(self._file):
                document = checked(unpacked(self._text), tuple[Any, Any])
                snapshots = with_lists(from_json_with_marks(*document), self.lists)
                self._whole = snapshots if self._read is None else bound(snapshots, self._read)
        return self._whole

    def __len__(self) -> int:
        return len(self.whole)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __getitem__(self, name: str) -> Snapshot:
        return self.whole[name]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SnapshotTable):
            return self is other or self.whole == other.whole
        return self.whole == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.whole)

    def __reduce__(self) -> tuple[Any, ...]:
        # All lists are read now, because the other process may not reach the storage.
        return SnapshotTable, (dict(self.whole),)

    def bound(self, read: Read[SnapshotFile]) -> SnapshotTable:
        """The table with lists that `read` reads."""
        if not self.lists:
            return self
        return SnapshotTable(None, self.text, self.marks_by_node, self._file, self.lists, read)

    @property
    def covered(self) -> Mapping[str, tuple[LowWaterMark, ...]]:
        """Node → for each of its log directories, the farthest mark of any snapshot."""
        if self.marks_by_node is None:
            self.marks_by_node = marks_by_node(self.whole)
        return self.marks_by_node
