"""What the cluster's manifest says about the snapshot of each map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from imap_wal.entry import Pair
from imap_wal.format import START, Position
from imap_wal.manifest.document import (
    Whole,
    checked,
    fields_of,
    packed,
    unpacked,
    whole,
    without_defaults,
)
from imap_wal.manifest.node import without_turn
from imap_wal.manifest.parts import (
    COLUMNS,
    ListedColumn,
    ListedParts,
    PartList,
    Parts,
    Read,
    unread,
)


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
        found = dict(self.pairs)
        for partition, given in pairs:
            pair = without_turn(given)
            if found.get(partition, ()) < pair:
                found[partition] = pair
        return replace(self, pairs=found)


NO_VERSIONS = PartitionVersions()


@dataclass(frozen=True, slots=True)
class LowWaterMark:
    """A snapshot covers the positions up to `position` of log `directory`."""

    directory: str
    position: Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published snapshot of one map: `files` have the newest change of every key up to `marks`. A
    dropped map has no files. If the files are in lists, `files`, `checksums`, `sizes`, `rows`,
    `borders` and `expiries` are read at first use, with the errors of `ListedParts`."""

    generation: Whole
    files: Sequence[str]
    marks: Mapping[str, LowWaterMark]
    live: int
    tombstones: int
    bytes: int
    created_ms: int
    dropped: int = 0
    """Generation of the last drop of this map. A reader that merged entries before it must discard
    them."""
    checksums: Sequence[int] = ()
    """CRC-32C of each whole file; empty: unknown."""
    until_ms: int = 0
    """The state of the map before this Unix time is unknown: older changes of its keys are
    removed."""
    sizes: Sequence[int] = ()
    """Bytes of each file; empty: unknown."""
    rows: Sequence[int] = ()
    """The number of rows of each file; empty: unknown."""
    versions: Whole = 0
    """The table in `ClusterManifest.versions` for entries above `marks`; 0: none."""
    last_expiry_ms: int = 0
    """When the last row expires; 0: a row never expires, or unknown."""
    borders: Sequence[str] = ()
    """For each file, in hexadecimal digits: no key of it is lower, and each key of the files before
    it is. Empty: unknown."""
    expiries: Sequence[int] = ()
    """When the first row of each file expires; 0: no row does. Empty: unknown."""

    @property
    def listed(self) -> ListedParts | None:
        """The lists with the files; None: the manifest has them."""
        columns = [getattr(self, name) for name in COLUMNS]
        first = columns[0].listed if isinstance(columns[0], ListedColumn) else None
        same = all(isinstance(each, ListedColumn) and each.listed is first for each in columns)
        return first if same else None

    @property
    def parts(self) -> Parts:
        """What is known of the files. Raises the errors of `ListedParts.whole`."""
        return Parts(*(tuple(getattr(self, name)) for name in COLUMNS))

    def with_parts(self, parts: Parts) -> Snapshot:
        """With these files, in the manifest."""
        return replace(self, **fields_of(parts))

    def with_lists(self, listed: ListedParts) -> Snapshot:
        """With these files, in lists."""
        columns: dict[str, Any] = {name: ListedColumn(listed, name) for name in COLUMNS}
        return replace(self, **columns)

    def to_json(self, shared: str | None = None) -> dict[str, Any]:
        """`shared`: the number of its marks, if several snapshots have the same. Without its lists
        (`imap_wal.manifest.part_lists`)."""
        parts = fields_of(Parts() if self.listed is not None else self.parts)
        document = {**fields_of(self), **parts, "marks": shared or marks_json(self.marks)}
        return without_defaults(
            document, ("sizes", "rows", "versions", "last_expiry_ms", "borders", "expiries")
        )

    @classmethod
    def from_json(
        cls, data: dict[str, Any], shared: Mapping[str, Mapping[str, LowWaterMark]] | None = None
    ) -> Self:
        """`shared`: marks of several snapshots, by number."""
        given = data["marks"]
        marks = (
            (shared or {})[given]
            if isinstance(given, str)
            else checked(given, dict[str, LowWaterMark])
        )
        parts = checked({name: data.get(name, ()) for name in COLUMNS}, Parts)
        found = checked({**data, **fields_of(Parts()), "marks": {}}, cls)
        return replace(found, marks=marks, **fields_of(parts))


def marks_json(marks: Mapping[str, LowWaterMark]) -> dict[str, Any]:
    return {node: fields_of(mark) for node, mark in marks.items()}


def with_marks_once(snapshots: Mapping[str, Snapshot]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Snapshots as JSON, and the marks that several of them share, once. 1,000 maps in the logs of
    100 nodes have 100,000 marks, but after a rewrite of all maps only 100 distinct ones."""
    # The marks of one manifest or one rewrite are mostly one object. Its content is compared once.
    distinct = {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}
    content = {
        each: tuple(sorted(marks.items(), key=lambda item: item[0]))
        for each, marks in distinct.items()
    }
    same: dict[tuple[Any, ...], int] = {}
    first = {each: same.setdefault(key, each) for each, key in content.items()}
    users = Counter(first[id(snapshot.marks)] for snapshot in snapshots.values())
    numbers = {
        each: str(number)
        for number, each in enumerate((each for each, count in users.items() if count > 1), 1)
    }
    found = {}
    for name, snapshot in snapshots.items():
        number = numbers.get(first[id(snapshot.marks)])
        found[name] = snapshot.to_json(number)
    return found, {number: marks_json(distinct[each]) for each, number in numbers.items()}


def from_json_with_marks(snapshots: Any, marks: Any) -> dict[str, Snapshot]:
    """The inverse of `with_marks_once`. Raises ValueError and KeyError."""
    shared = checked(marks, dict[str, dict[str, LowWaterMark]])
    return {
        name: Snapshot.from_json(snapshot, shared)
        for name, snapshot in checked(snapshots, dict[str, dict[str, Any]]).items()
    }


def with_lists(
    snapshots: Mapping[str, Snapshot],
    lists: Mapping[str, tuple[PartList, ...]],
    read: Read = unread,
) -> dict[str, Snapshot]:
    """The snapshots with their files in these lists, for each map that has some. Raises
    ValueError."""
    found = dict(snapshots)
    for name, each in lists.items():
        if not each or name not in found or found[name].files:
            raise ValueError(f"lists of map {name!r} do not fit its snapshot")
        found[name] = found[name].with_lists(ListedParts(each, read))
    return found


def bound(snapshots: Mapping[str, Snapshot], read: Read) -> Mapping[str, Snapshot]:
    """The snapshots with lists that `read` reads."""
    if isinstance(snapshots, SnapshotTable):
        return snapshots.bound(read)
    lists = {name: each.listed.lists for name, each in snapshots.items() if each.listed is not None}
    if not lists:
        return snapshots
    return {
        name: each.with_lists(ListedParts(lists[name], read)) if name in lists else each
        for name, each in snapshots.items()
    }


def marks_by_node(snapshots: Mapping[str, Snapshot]) -> dict[str, tuple[LowWaterMark, ...]]:
    """Node → for each of its log directories, the farthest mark of any snapshot."""
    farthest: dict[tuple[str, str], Position] = {}
    for marks in {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}.values():
        for node, mark in marks.items():
            log = (node, mark.directory)
            farthest[log] = max(mark.position, farthest.get(log, START))
    found: dict[str, tuple[LowWaterMark, ...]] = {}
    for (node, directory), position in farthest.items():
        found[node] = (*found.get(node, ()), LowWaterMark(directory, position))
    return found


class SnapshotTable(Mapping[str, Snapshot]):
    """The snapshots of many maps, stored in a manifest as one string: base64 of deflated JSON. An
    open and a claim copy the table without parsing it, in a time that does not depend on its size;
    they use only `covered`, which is stored separately. Thread-safe."""

    __slots__ = ("_file", "_text", "_whole", "lists", "marks_by_node", "read")

    def __init__(
        self,
        snapshots: Mapping[str, Snapshot] | None,
        text: str = "",
        covered: Mapping[str, tuple[LowWaterMark, ...]] | None = None,
        file: str = "",
        lists: Mapping[str, tuple[PartList, ...]] | None = None,
        read: Read = unread,
    ) -> None:
        """Pass the first argument, or the others. What is missing is computed at first use; an
        error then is a `CorruptLog` that names the manifest `file`."""
        self._whole, self._text, self._file = snapshots, text, file
        self.marks_by_node = covered
        self.lists, self.read = lists, read
        """The lists of each map that has some: they are stored separately, too."""
        if snapshots is not None:
            listed = {name: each.listed for name, each in snapshots.items()}
            self.lists = {name: each.lists for name, each in listed.items() if each is not None}

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
                found = from_json_with_marks(*document)
                self._whole = with_lists(found, self.lists or {}, self.read)
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
        # With its lists read: another process may not have the storage.
        return SnapshotTable, (dict(self.whole),)

    def bound(self, read: Read) -> SnapshotTable:
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
